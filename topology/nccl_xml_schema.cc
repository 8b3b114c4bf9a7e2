// SPDX-License-Identifier: Apache-2.0
// The tables of NCCL's topology XML.
// Source: NCCL src/graph/xml.cc (what is written), src/graph/topo.cc (what is read, and how).
#include "topology/nccl_xml_schema.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

#include "base/status_macros.h"
#include "topology/pci_bus_id.h"

namespace ferry {
namespace {

using Value = NcclValueKind;

constexpr NcclAttributeSpec kSystemAttributes[] = {{"version", Value::kInteger, true, false},
                                                   {"name", Value::kText, false, true}};
constexpr NcclAttributeSpec kCpuAttributes[] = {
    {"numaid", Value::kInteger, true, false},    {"host_hash", Value::kHex64, false, false},
    {"affinity", Value::kMask, false, true},     {"affinity_offset", Value::kInteger, false, false},
    {"familyid", Value::kInteger, false, false}, {"modelid", Value::kInteger, false, false}};
constexpr NcclAttributeSpec kPciAttributes[] = {{"busid", Value::kBusId, true, false},
                                                {"class", Value::kHex64, false, false},
                                                {"vendor", Value::kHex64, false, true},
                                                {"device", Value::kHex64, false, true},
                                                {"subsystem_vendor", Value::kHex64, false, true},
                                                {"subsystem_device", Value::kHex64, false, true},
                                                {"link_width", Value::kInteger, false, true}};
constexpr NcclAttributeSpec kGpuAttributes[] = {{"dev", Value::kInteger, false, false},
                                                {"sm", Value::kInteger, false, false},
                                                {"rank", Value::kInteger, false, false},
                                                {"gdr", Value::kInteger, false, false},
                                                {"mlopart", Value::kInteger, false, false}};
// A target need not be a bus id: NCCL writes "fffffff:ffff:ff" for a switch it cannot see.
constexpr NcclAttributeSpec kNvlinkAttributes[] = {{"target", Value::kText, true, false},
                                                   {"count", Value::kInteger, true, false},
                                                   {"tclass", Value::kHex64, false, false}};
constexpr NcclAttributeSpec kC2cAttributes[] = {{"count", Value::kInteger, true, false},
                                                {"bw", Value::kInteger, true, false}};
constexpr NcclAttributeSpec kPcilinkAttributes[] = {{"target", Value::kBusId, true, false}};
constexpr NcclAttributeSpec kNetAttributes[] = {
    {"dev", Value::kInteger, false, false},  {"speed", Value::kInteger, false, false},
    {"port", Value::kInteger, false, false}, {"latency", Value::kDecimal, false, false},
    {"guid", Value::kHex64, false, false},   {"maxconn", Value::kInteger, false, false},
    {"gdr", Value::kInteger, false, false},  {"coll", Value::kInteger, false, false},
    {"keep", Value::kInteger, false, false}, {"rail", Value::kInteger, false, false},
    {"plane", Value::kInteger, false, false}};

// In the order of NcclElementKind.
const NcclElementSpec kElements[] = {
    {NcclElementKind::kSystem, "system", "the file itself", kSystemAttributes},
    {NcclElementKind::kCpu, "cpu", "<system>", kCpuAttributes},
    {NcclElementKind::kPci, "pci", "<cpu> or <pci>", kPciAttributes},
    {NcclElementKind::kGpu, "gpu", "<pci>", kGpuAttributes},
    {NcclElementKind::kNvlink, "nvlink", "<gpu>", kNvlinkAttributes},
    {NcclElementKind::kC2c, "c2c", "<gpu>", kC2cAttributes},
    {NcclElementKind::kPcilink, "pcilink", "<pci>", kPcilinkAttributes},
    {NcclElementKind::kNic, "nic", "<pci> or <cpu>", {}},
    {NcclElementKind::kNet, "net", "<nic>", kNetAttributes},
    {NcclElementKind::kGin, "gin", "<nic>", kNetAttributes},
    {NcclElementKind::kRma, "rma", "<nic>", kNetAttributes},
};

// Parses the digits behind "0x", or returns nullopt; `digits` are those of a number without "0x".
std::optional<uint64_t> ParseUnsigned(absl::string_view text) {
  int base = 10;
  if (absl::ConsumePrefix(&text, "0x") || absl::ConsumePrefix(&text, "0X")) base = 16;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool IsMask(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return c == ',' || absl::ascii_isxdigit(static_cast<unsigned char>(c));
  });
}

}  // namespace

const NcclElementSpec* FindNcclElement(absl::string_view name) {
  for (const NcclElementSpec& spec : kElements) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

const NcclElementSpec& NcclElementSpecOf(NcclElementKind kind) {
  const NcclElementSpec& spec = kElements[static_cast<int>(kind)];
  FERRY_CHECK(spec.kind == kind);
  return spec;
}

bool IsNcclChild(NcclElementKind parent, NcclElementKind child) {
  using Kind = NcclElementKind;
  switch (child) {
    case Kind::kSystem:
      return false;
    case Kind::kCpu:
      return parent == Kind::kSystem;
    case Kind::kPci:
    case Kind::kNic:
      return parent == Kind::kCpu || parent == Kind::kPci;
    case Kind::kGpu:
    case Kind::kPcilink:
      return parent == Kind::kPci;
    case Kind::kNvlink:
    case Kind::kC2c:
      return parent == Kind::kGpu;
    case Kind::kNet:
    case Kind::kGin:
    case Kind::kRma:
      return parent == Kind::kNic;
  }
  return false;
}

std::optional<int> ParseNcclInteger(absl::string_view text) {
  const bool negative = absl::ConsumePrefix(&text, "-");
  const std::optional<uint64_t> value = ParseUnsigned(text);
  if (!value.has_value() || *value > uint64_t{std::numeric_limits<int>::max()}) return std::nullopt;
  return negative ? -static_cast<int>(*value) : static_cast<int>(*value);
}

std::optional<absl::string_view> CheckNcclValue(const NcclAttributeSpec& spec,
                                                absl::string_view value) {
  if (value.empty()) {
    if (spec.may_be_empty) return std::nullopt;
    return "is empty";
  }
  double decimal = 0;
  switch (spec.value) {
    case Value::kText:
      return std::nullopt;
    case Value::kInteger:
      if (ParseNcclInteger(value).has_value()) return std::nullopt;
      return "is not a whole number";
    case Value::kHex64:
      if (ParseUnsigned(value).has_value()) return std::nullopt;
      return "is not a hexadecimal number like 0x060400";
    case Value::kDecimal:
      if (absl::SimpleAtod(value, &decimal) && decimal >= 0 && decimal <= 1e18) return std::nullopt;
      return "is not a number";
    case Value::kBusId:
      if (NormalizePciBusId(value).has_value()) return std::nullopt;
      return "is not a PCI bus id like 0000:19:00.0";
    case Value::kMask:
      if (IsMask(value)) return std::nullopt;
      return "is not a mask of hexadecimal digits and commas";
  }
  return std::nullopt;
}

}  // namespace ferry

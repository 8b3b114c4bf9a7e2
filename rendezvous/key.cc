// SPDX-License-Identifier: Apache-2.0
// Formatting and parsing of keys.
#include "rendezvous/key.h"

#include <utility>
#include <vector>

// Header only: nothing to link.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/text.h"

namespace ferry {
namespace {

// Device names and edges of real graphs have hundreds of bytes; this is far above.
constexpr size_t kMaxTextBytes = 64 << 10;
// Length of a rejected name in errors.
constexpr size_t kNamedBytes = 100;

absl::Status Invalid(absl::string_view text, absl::string_view why) {
  // Two spaces, as TensorFlow writes it.
  return absl::InvalidArgumentError(absl::StrCat(
      "Invalid  rendezvous key: ", absl::CEscape(text.substr(0, 400)), " (", why, ")"));
}

}  // namespace

std::string RendezvousKey::Text(absl::string_view src_device, uint64_t src_incarnation,
                                absl::string_view dst_device, absl::string_view edge,
                                uint64_t frame, uint64_t iteration) {
  return absl::StrCat(src_device, ";", absl::Hex(src_incarnation, absl::kZeroPad16), ";",
                      dst_device, ";", edge, ";", frame, ":", iteration);
}

absl::Status RendezvousKey::CheckEdge(absl::string_view edge) {
  std::string why;
  if (edge.empty()) {
    why = "a name is not empty";
  } else if (absl::StrContains(edge, ';')) {
    why = "a name has no ';'";
  } else if (edge.size() > kMaxEdgeBytes) {
    why = absl::StrCat("a name has at most ", kMaxEdgeBytes, " bytes, and this one ", edge.size());
  } else {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a value cannot be called ", Quoted(edge.substr(0, kNamedBytes)), ": ", why));
}

uint64_t RendezvousKey::HashOf(absl::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

absl::StatusOr<RendezvousKey> RendezvousKey::Parse(absl::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return Invalid(text, absl::StrCat(text.size(), " bytes, over the limit of ", kMaxTextBytes));
  }
  auto parsed = std::make_shared<Parsed>();
  parsed->text = std::string(text);
  const std::vector<absl::string_view> parts = absl::StrSplit(parsed->text, ';');
  if (parts.size() != 5) return Invalid(text, absl::StrCat(parts.size(), " parts instead of 5"));
  parsed->src_device = parts[0];
  parsed->dst_device = parts[2];
  parsed->edge = parts[3];
  // Without the prefix that the number parser would accept too.
  const bool is_hex = parts[1].size() <= 16 &&
                      parts[1].find_first_not_of("0123456789abcdefABCDEF") == parts[1].npos &&
                      absl::SimpleHexAtoi(parts[1], &parsed->src_incarnation);
  if (!is_hex) return Invalid(text, "the incarnation is no hexadecimal number of 64 bits");
  if (parts[3].empty()) return Invalid(text, "no edge name");
  if (parts[4].empty()) return Invalid(text, "no frame and iteration");
  std::optional<TaskDevice> src = ParseDeviceName(parts[0]);
  if (!src.has_value()) return Invalid(text, "the source is no full device name");
  std::optional<TaskDevice> dst = ParseDeviceName(parts[2]);
  if (!dst.has_value()) return Invalid(text, "the destination is no full device name");
  parsed->src = *std::move(src);
  parsed->dst = *std::move(dst);
  parsed->src_worker = WorkerNumber(parsed->src.task);
  parsed->dst_worker = WorkerNumber(parsed->dst.task);
  const uint64_t hash = HashOf(parsed->text);
  return RendezvousKey(std::move(parsed), hash);
}

RendezvousKey RendezvousKey::StepEnd(const TaskName& src, uint64_t src_incarnation,
                                     const TaskName& dst) {
  auto parsed = std::make_shared<Parsed>();
  parsed->src.task = src;
  parsed->dst.task = dst;
  parsed->src_worker = WorkerNumber(src);
  parsed->dst_worker = WorkerNumber(dst);
  parsed->src_incarnation = src_incarnation;
  parsed->text = Text(ToString(src), src_incarnation, ToString(dst), /*edge=*/"");
  const uint64_t hash = HashOf(parsed->text);
  return RendezvousKey(std::move(parsed), hash);
}

}  // namespace ferry

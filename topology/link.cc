// SPDX-License-Identifier: Apache-2.0
// Names and nominal bandwidths of link types.
#include "topology/link.h"

#include "absl/strings/str_cat.h"

namespace ferry {

absl::string_view LinkTypeName(LinkType type) {
  switch (type) {
    case LinkType::kLoc:
      return "LOC";
    case LinkType::kNvl:
      return "NVL";
    case LinkType::kPix:
      return "PIX";
    case LinkType::kPxb:
      return "PXB";
    case LinkType::kPhb:
      return "PHB";
    case LinkType::kNode:
      return "NODE";
    case LinkType::kSys:
      return "SYS";
    case LinkType::kNet:
      return "NET";
    case LinkType::kDis:
      return "DIS";
  }
  return "?";
}

absl::string_view ExplainLinkType(LinkType type) {
  switch (type) {
    case LinkType::kLoc:
      return "the same device, or the host memory of one machine";
    case LinkType::kNvl:
      return "NVLink, directly or through NVSwitches";
    case LinkType::kPix:
      return "at most one PCIe switch";
    case LinkType::kPxb:
      return "several PCIe switches, but not the host bridge";
    case LinkType::kPhb:
      return "the PCIe host bridge of one CPU";
    case LinkType::kNode:
      return "several host bridges within one NUMA node";
    case LinkType::kSys:
      return "the interconnect between NUMA nodes";
    case LinkType::kNet:
      return "the network between machines";
    case LinkType::kDis:
      return "unknown, or not connected";
  }
  return "?";
}

std::optional<LinkType> ParseLinkType(absl::string_view name) {
  for (const LinkType type : kLinkTypes) {
    if (LinkTypeName(type) == name) return type;
  }
  return std::nullopt;
}

bool IsNearer(LinkType a, LinkType b) { return static_cast<int>(a) < static_cast<int>(b); }

Link PlainLink(LinkType type) {
  Link link;
  link.type = type;
  link.pcie = type;
  return link;
}

Link NvLink(int count, bool switched, LinkType pcie, int compute_major, int compute_minor) {
  Link link;
  link.type = LinkType::kNvl;
  link.pcie = pcie;
  link.nvlink_count = count;
  link.nvlink_switched = switched;
  link.bandwidth_bytes_per_s =
      static_cast<uint64_t>(count) * NvLinkBytesPerSecond(compute_major, compute_minor);
  return link;
}

uint64_t NvLinkBytesPerSecond(int compute_major, int compute_minor) {
  if (compute_major == 6) return 20'000'000'000;
  if (compute_major == 8 && compute_minor == 6) return 14'062'500'000;
  if (compute_major >= 7 && compute_major <= 9) return 25'000'000'000;
  if (compute_major == 10) return 50'000'000'000;
  return 0;
}

std::string LinkText(const Link& link) {
  if (link.type == LinkType::kNvl && link.nvlink_count > 0) {
    return absl::StrCat("NV", link.nvlink_count);
  }
  return std::string(LinkTypeName(link.type));
}

std::ostream& operator<<(std::ostream& out, const Link& link) {
  return out << LinkText(link) << " (without NVLink " << LinkTypeName(link.pcie)
             << (link.nvlink_switched ? ", switched" : "") << ", " << link.bandwidth_bytes_per_s
             << " bytes/s)";
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// Link types between two devices, near to far, with NCCL's and nvidia-smi's names.
#ifndef FERRY_TOPOLOGY_LINK_H_
#define FERRY_TOPOLOGY_LINK_H_

#include <array>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "absl/strings/string_view.h"

namespace ferry {

// In order: a smaller value is nearer. The values are on the wire (proto/ferry_topology.proto).
// Source: NCCL src/include/graph.h (PATH_*), and nvidia-smi topo -m for NODE, which NCCL does not
// distinguish.
enum class LinkType {
  kLoc = 0,
  kNvl = 1,
  kPix = 2,
  kPxb = 3,
  kPhb = 4,
  kNode = 5,
  kSys = 6,
  kNet = 7,
  kDis = 8,
};

inline constexpr std::array<LinkType, 9> kLinkTypes = {
    LinkType::kLoc,  LinkType::kNvl, LinkType::kPix, LinkType::kPxb, LinkType::kPhb,
    LinkType::kNode, LinkType::kSys, LinkType::kNet, LinkType::kDis};

// "LOC", "NVL", ... "DIS".
absl::string_view LinkTypeName(LinkType type);

// One sentence on what data crosses on such a link.
absl::string_view ExplainLinkType(LinkType type);

// The link type called `name`, in capitals, or nullopt.
std::optional<LinkType> ParseLinkType(absl::string_view name);

// True if `a` is nearer than `b`.
bool IsNearer(LinkType a, LinkType b);

// The known properties of the path between two devices. A plain value; the same in both
// directions.
struct Link {
  LinkType type = LinkType::kDis;  // the best path
  LinkType pcie = LinkType::kDis;  // the best path that uses no NVLink; kDis when unknown
  int nvlink_count = 0;  // NVLinks of the pair; 0 when there are none or the number is unknown
  bool nvlink_switched = false;        // they end in an NVSwitch, so all peers share them
  uint64_t bandwidth_bytes_per_s = 0;  // nominal, one direction; 0 when unknown

  friend bool operator==(const Link&, const Link&) = default;
};

// A path that uses no NVLink.
Link PlainLink(LinkType type);

// A path over `count` NVLinks of GPUs with compute capability `compute_major`.`compute_minor`.
//   pcie: what connects the pair otherwise.
Link NvLink(int count, bool switched, LinkType pcie, int compute_major, int compute_minor);

// Nominal bandwidth of one NVLink in one direction, or 0 for an unknown architecture.
// Source: NVIDIA's architecture white papers (P100 20 GB/s, V100, A100 and H100 25 GB/s, B200 50
// GB/s per link and direction; the 8.6 workstation cards 14.0625 GB/s).
uint64_t NvLinkBytesPerSecond(int compute_major, int compute_minor);

// "PIX", or "NV12" for twelve NVLinks, as nvidia-smi topo -m writes cells.
std::string LinkText(const Link& link);
std::ostream& operator<<(std::ostream& out, const Link& link);

// A link and the two devices it joins, by their indexes in LocalTopology::devices.
struct DeviceLink {
  int first = 0;  // smaller than second
  int second = 0;
  Link link;

  friend bool operator==(const DeviceLink&, const DeviceLink&) = default;
};

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_LINK_H_

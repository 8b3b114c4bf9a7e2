// SPDX-License-Identifier: Apache-2.0
// NCCL's topology XML: what NCCL_TOPO_FILE reads and NCCL_TOPO_DUMP_FILE writes.
#ifndef FERRY_TOPOLOGY_NCCL_XML_H_
#define FERRY_TOPOLOGY_NCCL_XML_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "topology/local_topology.h"

namespace ferry {

// The elements known to NCCL and their nesting: system > cpu > pci > (pci, gpu > (nvlink, c2c),
// nic > (net, gin, rma), pcilink); a nic may also be in a cpu. Source: NCCL src/graph/xml.cc, the
// load handlers; src/graph/topo.cc for gin and rma.
enum class NcclElementKind {
  kSystem,   // the machine
  kCpu,      // one NUMA node
  kPci,      // a PCI function: a switch with children, a GPU or a NIC
  kGpu,      // what CUDA reports for the GPU of the enclosing pci element
  kNvlink,   // `count` NVLinks from the GPU to `target`, of PCI class `tclass`
  kC2c,      // chip-to-chip links between the GPU and its CPU
  kPcilink,  // a direct connection between two PCI switches
  kNic,      // a network card, with one element per interface
  kNet,
  kGin,
  kRma,
};

// "system", "cpu", ...
absl::string_view NcclElementName(NcclElementKind kind);

struct NcclAttribute {
  std::string name;
  std::string value;

  friend bool operator==(const NcclAttribute&, const NcclAttribute&) = default;
};

// An element with its descendants. A value type; thread-compatible. Unknown attributes are kept.
struct NcclElement {
  NcclElementKind kind = NcclElementKind::kSystem;
  std::vector<NcclAttribute> attributes;
  std::vector<NcclElement> children;
  int line = 0;  // the line it was read from; 0 if generated; not compared

  // The value of the attribute called `name`, or nullopt.
  std::optional<absl::string_view> Attribute(absl::string_view name) const;

  // The attribute as an integer, or `fallback` if it is absent or empty. REQUIRES: the reader has
  // validated it.
  int NumberOr(absl::string_view name, int fallback) const;

  friend bool operator==(const NcclElement& a, const NcclElement& b) {
    return a.kind == b.kind && a.attributes == b.attributes && a.children == b.children;
  }
};

struct NcclTopology {
  NcclElement system;
  // Elements and attributes that NCCL would skip, as "line 12: <foo>"; not kept in the tree and
  // not compared.
  std::vector<std::string> ignored;

  friend bool operator==(const NcclTopology& a, const NcclTopology& b) {
    return a.system == b.system;
  }
};

// Limits on files; larger than NCCL's own 256 to 65536 elements.
inline constexpr size_t kMaxNcclXmlBytes = size_t{16} << 20;
inline constexpr size_t kMaxNcclXmlElements = 65536;
inline constexpr int kMaxNcclXmlDepth = 64;
// Source: NCCL src/graph/xml.h, MAX_STR_LEN and MAX_ATTR_COUNT.
inline constexpr size_t kMaxNcclXmlTextBytes = 254;
inline constexpr size_t kMaxNcclXmlAttributes = 16;

// Parses the XML text of a topology.
//   Errors: INVALID_ARGUMENT beginning with "line N: <element>" for: XML that is malformed or ends
//   early; a document type or an entity; an element where NCCL does not expect it; a missing or
//   repeated attribute; an invalid number or bus id; a bus id that appears twice, on its own
//   ancestor or elsewhere; a version other than 1. RESOURCE_EXHAUSTED above one of the limits.
absl::StatusOr<NcclTopology> ReadNcclXml(absl::string_view text);

// Reads a file. Errors: as ReadNcclXml, with the path in front; NOT_FOUND if it cannot be opened.
absl::StatusOr<NcclTopology> ReadNcclXmlFile(const std::string& path);

// Returns the XML text in NCCL's layout: two spaces per level, one element per line. Reading it
// gives an equal topology.
std::string WriteNcclXml(const NcclTopology& topology);

// Returns the GPUs of the file and the paths between them, classified as NCCL does:
//   NVL: NVLinks between the two, or from both to NVSwitches.
//   PIX: one PCIe switch; PXB: several, or switches joined by a pcilink; PHB: one cpu element;
//   SYS: two; NET: cpu elements of different hosts (host_hash).
// NCCL has no NODE. A two-level Broadcom switch counts as one, as in NCCL. NVLink through a third
// GPU, or through the CPU of POWER machines, is not NVL here: no transport of Ferry uses such a
// path. There is a device for each pci element of a display class (0x03...), numbered by gpu/@dev
// if all have different ones, else in file order. Host name, boot id and sizes are not in such
// files and stay empty.
//   Errors: INVALID_ARGUMENT if there are more GPUs than kMaxDevicesPerNode.
absl::StatusOr<LocalTopology> ToLocalTopology(const NcclTopology& topology);

// The inverse: returns the smallest tree of PCI switches with the same link types between the
// GPUs. The switches have made-up bus ids "ffff:ff:...", as in cloud vendors' files; NCCL
// completes the tree when it loads it. What the format cannot express is lost: host devices,
// UUIDs, sizes, and NODE, which becomes PHB.
//   Errors: FAILED_PRECONDITION if a GPU's bus id is unknown, or two GPUs (MIG slices) share one.
absl::StatusOr<NcclTopology> ToNcclTopology(const LocalTopology& topology);

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_NCCL_XML_H_

// SPDX-License-Identifier: Apache-2.0
// The public C++ values, read-only.
#include "python/src/topology.h"

#include <ferry/topology.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "python/src/arrays.h"
#include "python/src/errors.h"

namespace ferry::python {
namespace nb = nanobind;
using nb::literals::operator""_a;

void DefineTopology(nb::module_& core) {
  nb::class_<DeviceInfo>(core, "DeviceInfo",
                         "A device of the job: the host memory or a GPU of a node.")
      .def_ro("global_id", &DeviceInfo::global_id,
              "Position in Topology.devices, the same on all nodes.")
      .def_ro("rank", &DeviceInfo::rank, "The rank of its node.")
      .def_prop_ro(
          "device", [](const DeviceInfo& self) { return DeviceName(self.device); },
          "Its name within the node: \"cpu\", \"cuda:0\".")
      .def_ro("model", &DeviceInfo::model, "The name of the GPU or processor: \"NVIDIA H200\".")
      .def_ro("uuid", &DeviceInfo::uuid, "Empty for hosts, shared GPUs, and if unknown.")
      .def_ro("pci_bus_id", &DeviceInfo::pci_bus_id, "Empty for hosts.")
      .def_prop_ro(
          "compute_capability",
          [](const DeviceInfo& self) {
            return nb::make_tuple(self.compute_major, self.compute_minor);
          },
          nb::sig("def compute_capability(self) -> tuple[int, int]"), "(0, 0) for hosts.")
      .def_ro("core_count", &DeviceInfo::core_count,
              "Streaming multiprocessors of a GPU, physical cores of a host.")
      .def_ro("memory_bytes", &DeviceInfo::memory_bytes, "0 if unknown.")
      .def_ro("numa_node", &DeviceInfo::numa_node, "-1 if unknown, or if the host has several.")
      .def("__repr__", [](const DeviceInfo& self) {
        return absl::StrCat("<ferry.DeviceInfo ", self.global_id, ": ", DeviceName(self.device),
                            " of rank ", self.rank, ", ", self.model, ">");
      });
  nb::class_<NodeInfo>(core, "NodeInfo", "A node of the job.")
      .def_ro("rank", &NodeInfo::rank, "Its rank.")
      .def_ro("host_name", &NodeInfo::host_name, "For display: two hosts may have the same name.")
      .def_ro("partition", &NodeInfo::partition,
              "Nodes whose GPUs share an NVLink fabric, or else a host, are in one partition.")
      .def_ro("devices", &NodeInfo::devices, "Global ids of its devices.")
      .def("__repr__", [](const NodeInfo& self) {
        return absl::StrCat("<ferry.NodeInfo rank ", self.rank, " on ", self.host_name,
                            ", devices ", absl::StrJoin(self.devices, ", "), ">");
      });
  nb::class_<Link>(core, "Link", "The best path between two devices.")
      .def_prop_ro(
          "type", [](const Link& self) { return ToString(self.type); },
          "As nvidia-smi names it: \"LOC\" (the device itself), \"NVL\", \"PIX\", \"PXB\", "
          "\"PHB\", \"NODE\", \"SYS\", "
          "\"NET\", \"DIS\" (unknown).")
      .def_ro("nvlink_count", &Link::nvlink_count, "0 if there are none, or if unknown.")
      .def_ro("bandwidth_bytes_per_s", &Link::bandwidth_bytes_per_s,
              "Nominal, in one direction; 0 if unknown.")
      .def("__repr__",
           [](const Link& self) { return absl::StrCat("<ferry.Link ", ToString(self.type), ">"); });
  nb::class_<Topology>(
      core, "Topology",
      "The devices of all nodes of a job, and the links between them; the same on every node.")
      .def_prop_ro(
          "nodes", [](const Topology& self) { return self.nodes(); },
          nb::sig("def nodes(self) -> list[NodeInfo]"), "By rank.")
      .def_prop_ro(
          "devices", [](const Topology& self) { return self.devices(); },
          nb::sig("def devices(self) -> list[DeviceInfo]"), "By global id.")
      .def(
          "find_device",
          [](const Topology& self, int rank, nb::handle device) {
            return self.FindDevice(rank, ParseDevice(device));
          },
          "rank"_a, "device"_a,
          nb::sig("def find_device(self, rank: int, device: typing.Any) -> int | None"),
          "The global id of a node's device, or None.")
      .def("same_host", &Topology::IsSameHost, "rank_a"_a, "rank_b"_a,
           "Whether both nodes run on one host.")
      .def(
          "link",
          [](const Topology& self, int a, int b) { return ValueOf(self.LinkBetween(a, b)); }, "a"_a,
          "b"_a,
          "The path between two devices, by their global ids. Raises ValueError if there is no "
          "such device.")
      .def("__repr__", [](const Topology& self) {
        return absl::StrCat("<ferry.Topology of ", self.nodes().size(), " nodes, ",
                            self.devices().size(), " devices>");
      });
}

}  // namespace ferry::python

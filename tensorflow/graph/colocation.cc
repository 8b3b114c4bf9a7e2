// SPDX-License-Identifier: Apache-2.0
// Joins nodes into groups and chooses a device for each.
#include "tensorflow/graph/colocation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

#include "base/status_macros.h"
#include "tensorflow/graph/names.h"

namespace ferry::graph {
namespace {

constexpr char kClassAttr[] = "_class";
constexpr absl::string_view kClassPrefix = "loc:@";

DeviceSpec WithoutDevice(DeviceSpec spec) {
  spec.type.reset();
  spec.index.reset();
  return spec;
}

DeviceSpec SpecOf(const TaskDevice& device) {
  return {device.task.job, device.task.replica, device.task.task, device.type, device.index};
}

std::string KernelText(const KernelSchema& kernel) {
  std::string text = absl::StrCat("  device='", kernel.device_type, "'");
  if (kernel.type_attr.empty()) return text;
  absl::StrAppend(&text, "; ", kernel.type_attr, " in [",
                  absl::StrJoin(kernel.types, ", ",
                                [](std::string* out, DataType type) {
                                  absl::StrAppend(out, tensorflow::DataType_Name(type));
                                }),
                  "]");
  return text;
}

}  // namespace

Colocation::Colocation(const Graph& graph, const DeviceSet& devices, bool is_soft)
    : graph_(graph),
      devices_(devices),
      is_soft_(is_soft),
      parents_(static_cast<size_t>(graph.node_count())),
      groups_(static_cast<size_t>(graph.node_count())) {
  std::iota(parents_.begin(), parents_.end(), 0);
  for (int i = 0; i < devices.size(); ++i) {
    const std::string& type = devices.device(i).device.type;
    if (std::find(types_.begin(), types_.end(), type) == types_.end()) types_.push_back(type);
  }
}

absl::Status Colocation::Gather(absl::Span<const int> placed) {
  FERRY_CHECK(types_.size() <= DeviceSet::kMaxTypes);
  for (int i = 0; i < graph_.node_count(); ++i) {
    groups_[static_cast<size_t>(i)].types = KernelTypes(graph_.node(i));
    if (static_cast<size_t>(i) < placed.size()) {
      groups_[static_cast<size_t>(i)].device = placed[static_cast<size_t>(i)];
      groups_[static_cast<size_t>(i)].spec =
          SpecOf(devices_.device(placed[static_cast<size_t>(i)]).device);
    } else {
      FERRY_RETURN_IF_ERROR(ReadSpec(i));
    }
  }
  // Users of a variable are placed with the variable, regardless of the client's device request.
  for (int i = 0; i < graph_.node_count(); ++i) {
    const absl::Span<const Endpoint> inputs = graph_.inputs(i);
    size_t at = 0;
    for (const TypeList::Run& run : graph_.node(i).signature.inputs.runs()) {
      for (; at < static_cast<size_t>(run.end); ++at) {
        if (run.type == tensorflow::DT_RESOURCE) JoinResource(i, inputs[at].node);
      }
    }
  }
  for (int i = 0; i < graph_.node_count(); ++i) FERRY_RETURN_IF_ERROR(GatherClasses(i));
  return absl::OkStatus();
}

absl::Status Colocation::ReadSpec(int node) {
  const std::string& text = graph_.node(node).def.device();
  if (text.empty()) return absl::OkStatus();
  const std::string& name = graph_.node(node).name();
  auto known = specs_.find(text);
  if (known == specs_.end()) {
    std::optional<DeviceSpec> spec = ParseDeviceSpec(text);
    if (!spec.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("Malformed device specification '",
                                                     Shown(text), "' in node: {{node ", Shown(name),
                                                     "}}", AboutNode(name)));
    }
    // Soft placement replaces the device, never a task that does not exist.
    if (FirstPossible(is_soft_ ? WithoutDevice(*spec) : *spec, ~uint64_t{0}) < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Cannot assign a device for operation ", Shown(name), ": {{node ", Shown(name),
          "}} was explicitly assigned to ", Shown(text), " but available devices are ",
          devices_.ListText(), ". Make sure the device specification refers to a valid device.",
          AboutNode(name)));
    }
    known = specs_.emplace(text, *std::move(spec)).first;
  }
  groups_[static_cast<size_t>(node)].spec = known->second;
  return absl::OkStatus();
}

absl::Status Colocation::GatherClasses(int node) {
  const auto& attrs = graph_.node(node).def.attr();
  const auto found = attrs.find(kClassAttr);
  if (found == attrs.end()) return absl::OkStatus();
  for (const std::string& entry : found->second.list().s()) {
    absl::string_view name = entry;
    if (!absl::ConsumePrefix(&name, kClassPrefix)) continue;
    // A class name need not be a node's name; if it is, that node belongs to the class.
    const int named = graph_.Find(name);
    const int first = classes_.emplace(name, named >= 0 ? named : node).first->second;
    FERRY_RETURN_IF_ERROR(Join(node, first));
  }
  return absl::OkStatus();
}

int Colocation::GroupOf(int node) const {
  while (parents_[static_cast<size_t>(node)] != node) {
    int& parent = parents_[static_cast<size_t>(node)];
    parent = parents_[static_cast<size_t>(parent)];
    node = parent;
  }
  return node;
}

absl::Status Colocation::Join(int node, int other) {
  const int a = GroupOf(node);
  const int b = GroupOf(other);
  if (a == b) return absl::OkStatus();
  DeviceSpec spec = groups_[static_cast<size_t>(b)].spec;
  absl::Status merged = Merge(groups_[static_cast<size_t>(a)].spec, is_soft_, spec);
  const int device_a = groups_[static_cast<size_t>(a)].device;
  const int device_b = groups_[static_cast<size_t>(b)].device;
  if (merged.ok() && device_a >= 0 && device_b >= 0 && device_a != device_b) {
    merged = absl::InvalidArgumentError(absl::StrCat(
        "they are on different devices since before: '", devices_.device(device_a).name, "' and '",
        devices_.device(device_b).name, "'"));
  }
  if (!merged.ok()) {
    const std::string& name = graph_.node(node).name();
    return absl::InvalidArgumentError(absl::StrCat(
        "Cannot colocate nodes {{colocation_node ", Shown(name), "}} and {{colocation_node ",
        Shown(graph_.node(other).name()), "}}: ", merged.message(), AboutNode(name)));
  }
  Unite(a, b, std::move(spec));
  return absl::OkStatus();
}

void Colocation::JoinResource(int user, int source) {
  const int a = GroupOf(user);
  const int b = GroupOf(source);
  if (a == b) return;
  DeviceSpec spec = groups_[static_cast<size_t>(b)].spec;
  // If the specs conflict, the resource's wins.
  Merge(groups_[static_cast<size_t>(a)].spec, false, spec).IgnoreError();
  if (groups_[static_cast<size_t>(b)].device >= 0) groups_[static_cast<size_t>(a)].device = -1;
  Unite(a, b, std::move(spec));
}

void Colocation::Unite(int root, int other, DeviceSpec spec) {
  if (groups_[static_cast<size_t>(root)].size < groups_[static_cast<size_t>(other)].size) {
    std::swap(root, other);
  }
  Group& to = groups_[static_cast<size_t>(root)];
  const Group& from = groups_[static_cast<size_t>(other)];
  parents_[static_cast<size_t>(other)] = root;
  to.size += from.size;
  to.types &= from.types;
  to.device = std::max(to.device, from.device);
  to.spec = std::move(spec);
}

uint64_t Colocation::KernelTypes(const Node& node) const {
  uint64_t types = 0;
  for (size_t i = 0; i < types_.size(); ++i) {
    if (FindKernel(*node.op, node.def, types_[i]) != nullptr) types |= uint64_t{1} << i;
  }
  return types;
}

uint64_t Colocation::TypeBit(int device) const {
  const auto found = std::find(types_.begin(), types_.end(), devices_.device(device).device.type);
  return uint64_t{1} << (found - types_.begin());
}

bool Colocation::IsPossible(int node, int device) const {
  const Group& group = this->group(node);
  return (group.types & TypeBit(device)) != 0 &&
         Matches(group.spec, devices_.device(device).device);
}

absl::Status Colocation::CheckKernel(int node, int device) const {
  const std::string& type = devices_.device(device).device.type;
  const Node& checked = graph_.node(node);
  if (FindKernel(*checked.op, checked.def, type) != nullptr) return absl::OkStatus();
  return NoDeviceError(node);
}

int Colocation::FirstPossible(const DeviceSpec& spec, uint64_t types) {
  const auto [known, is_new] =
      first_possible_.emplace(absl::StrCat(ToString(spec), " ", types), -1);
  if (!is_new) return known->second;
  if (spec.job.has_value() && spec.task.has_value() && spec.type.has_value() &&
      spec.index.has_value()) {
    // Fast path: in large jobs most nodes name exactly one device, and scanning all is slow.
    const int device = devices_.Find(ferry::ToString(
        TaskDevice{{*spec.job, spec.replica.value_or(0), *spec.task}, *spec.type, *spec.index}));
    if (device >= 0 && (types & TypeBit(device)) != 0) return known->second = device;
  }
  for (int i = 0; i < devices_.size(); ++i) {
    if ((types & TypeBit(i)) == 0 || !Matches(spec, devices_.device(i).device)) continue;
    known->second = i;
    break;
  }
  return known->second;
}

absl::StatusOr<int> Colocation::Choose(int node) {
  const Group& group = this->group(node);
  int device = FirstPossible(group.spec, group.types);
  if (device < 0 && is_soft_) device = FirstPossible(WithoutDevice(group.spec), group.types);
  if (device < 0) return NoDeviceError(node);
  return device;
}

absl::Status Colocation::NoDeviceError(int node) const {
  const Node& about = graph_.node(node);
  if (KernelTypes(about) == 0) return NoKernelError(about);
  const Group& group = this->group(node);
  std::vector<std::string> kernels;
  for (const KernelSchema& kernel : about.op->kernels) kernels.push_back(KernelText(kernel));
  return absl::InvalidArgumentError(absl::StrCat(
      "Cannot assign a device for operation ", Shown(about.name()),
      ": Could not satisfy explicit device specification '", ToString(group.spec),
      "' because no supported kernel for ", group.spec.type.value_or("its"),
      " devices is available.\nOp: ", about.op->name, "\nNode attrs: ",
      TypeAttrsText(*about.op, about.def), "\nNodes of its colocation group: ", group.size,
      "\nRegistered kernels:\n", absl::StrJoin(kernels, "\n"),
      "\nAvailable devices: ", devices_.ListText(), AboutNode(about.name())));
}

absl::Status Colocation::NoKernelError(const Node& node) const {
  std::vector<std::string> kernels;
  for (const KernelSchema& kernel : node.op->kernels) kernels.push_back(KernelText(kernel));
  return absl::InvalidArgumentError(
      absl::StrCat("No OpKernel was registered to support Op '", node.op->name, "' used by {{node ",
                   Shown(node.name()), "}} with these attrs: ", TypeAttrsText(*node.op, node.def),
                   "\nRegistered devices: ", devices_.TypesText(), "\nRegistered kernels:\n",
                   absl::StrJoin(kernels, "\n"), AboutNode(node.name())));
}

}  // namespace ferry::graph

// SPDX-License-Identifier: Apache-2.0
// Graphs by handle, and stateful kernels by node name.
#include "tensorflow/worker/session.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "gpu/gpus.h"
#include "tensorflow/worker/registered_graph.h"

namespace ferry::worker {
namespace {

// Beyond this limit, new stateful nodes do not keep state across graphs.
constexpr size_t kMaxStatefulKernels = size_t{1} << 20;

// True if a kernel for one can serve the other.
bool IsSameOp(const tensorflow::NodeDef& a, const tensorflow::NodeDef& b) {
  if (a.op() != b.op() || a.attr_size() != b.attr_size()) return false;
  for (const auto& [name, value] : a.attr()) {
    const auto other = b.attr().find(name);
    if (other == b.attr().end() || value.SerializeAsString() != other->second.SerializeAsString()) {
      return false;
    }
  }
  return true;
}

}  // namespace

Devices::Devices(const std::vector<WorkerDevice>& devices, const BufferAllocator& allocate,
                 Gpus* gpus, CollectiveGpus* collectives)
    : collectives_(collectives) {
  // Variables are heap-allocated, because environments point to them.
  for (const WorkerDevice& each : devices) {
    const std::optional<TaskDevice> parsed = ParseDeviceName(each.name);
    FERRY_CHECK(parsed.has_value());
    Device device{each.name, each.type, *parsed, std::make_unique<Variables>(each.name), {}, {}};
    device.environment.allocate = allocate;
    device.environment.variables = device.variables.get();
    if (gpus != nullptr && each.type == "GPU") {
      device.open_gpu = [gpus, ordinal = each.gpu_ordinal]() -> absl::StatusOr<KernelGpu> {
        FERRY_ASSIGN_OR_RETURN(Gpu* const gpu, gpus->Get(ordinal));
        return KernelGpu{gpus, gpu->compute.get()};
      };
    }
    devices_.push_back(std::move(device));
  }
}

int Devices::Find(absl::string_view name) const {
  const std::optional<TaskDevice> parsed = ParseDeviceName(name);
  for (int i = 0; parsed.has_value() && i < count(); ++i) {
    if (at(i).parsed == *parsed) return i;
  }
  return -1;
}

void Devices::Clear(absl::Span<const std::string> containers) {
  for (const Device& device : devices_) device.variables->Clear(containers);
}

int Devices::variable_count() const {
  int count = 0;
  for (const Device& device : devices_) count += device.variables->variable_count();
  return count;
}

absl::StatusOr<std::shared_ptr<const Kernel>> Session::KernelFor(const graph::Node& node,
                                                                 int device) {
  if (node.op->is_stateful) {
    absl::MutexLock lock(&mu_);
    const auto found = stateful_.find(node.name());
    if (found != stateful_.end() && found->second.device == device &&
        IsSameOp(found->second.node->def, node.def)) {
      return found->second.kernel;
    }
  }
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<Kernel> made,
                         MakeKernel(node.def, devices_->type(device), devices_->open_gpu(device)));
  const std::shared_ptr<const Kernel> kernel = std::move(made);
  if (!node.op->is_stateful) return kernel;
  auto copy = std::make_shared<graph::Node>(node);
  absl::MutexLock lock(&mu_);
  if (stateful_.size() >= kMaxStatefulKernels) return kernel;
  // A different op of that name keeps its entry: a session's graphs normally agree on their nodes.
  const auto [found, is_new] =
      stateful_.emplace(node.name(), StatefulKernel{std::move(copy), device, kernel});
  const bool is_same =
      is_new || (found->second.device == device && IsSameOp(found->second.node->def, node.def));
  return is_same ? found->second.kernel : kernel;
}

absl::Status Session::AddGraph(std::shared_ptr<const RegisteredGraph> graph, size_t max_graphs) {
  absl::MutexLock lock(&mu_);
  if (graphs_.size() >= max_graphs) {
    return absl::ResourceExhaustedError(
        absl::StrCat(max_graphs,
                     " graphs are registered in this session, the limit "
                     "(raise --max-graphs, or in programs WorkerLimits::max_graphs)"));
  }
  const std::string handle = graph->handle();
  graphs_.emplace(handle, std::move(graph));
  return absl::OkStatus();
}

std::shared_ptr<const RegisteredGraph> Session::FindGraph(absl::string_view handle) const {
  absl::MutexLock lock(&mu_);
  const auto found = graphs_.find(handle);
  return found == graphs_.end() ? nullptr : found->second;
}

bool Session::RemoveGraph(absl::string_view handle) {
  absl::MutexLock lock(&mu_);
  const auto found = graphs_.find(handle);
  if (found == graphs_.end()) return false;
  graphs_.erase(found);
  return true;
}

size_t Session::graph_count() const {
  absl::MutexLock lock(&mu_);
  return graphs_.size();
}

}  // namespace ferry::worker

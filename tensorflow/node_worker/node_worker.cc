// SPDX-License-Identifier: Apache-2.0
// NodeWorker: maps the node's devices to TensorFlow device names, with shareable host memory.
#include "tensorflow/node_worker/node_worker.h"

#include <utility>

#include <grpcpp/impl/codegen/service_type.h>

#include "base/usable_resources.h"
#include "tensorflow/worker/collectives/nccl_gpu.h"
#include "tensorflow/worker/worker_service.h"
#include "topology/gpu_description.h"

namespace ferry {
namespace {

// Smaller tensors are sent eagerly, inside the message that announces them.
constexpr size_t kArenaBytes = size_t{16} << 10;

worker::WorkerOptions WorkerOptionsOf(TransferEngine& engine, const NodeWorkerOptions& options) {
  worker::WorkerOptions result;
  result.task = engine.task();
  const uint64_t incarnation = engine.self().peer.incarnation;
  result.devices.push_back({.name = ToString(TaskDevice{result.task, "CPU", 0}),
                            .type = "CPU",
                            .memory_bytes = static_cast<int64_t>(Usable().memory_bytes),
                            .incarnation = incarnation});
  result.gpus = engine.gpus();
  if (result.gpus != nullptr) {
    result.collectives = std::make_shared<worker::NcclGpus>(*result.gpus, engine.nccl());
  }
  for (const Device& device : options.devices) {
    if (device.kind != DeviceKind::kGpu || engine.gpus() == nullptr ||
        device.ordinal >= engine.gpus()->count()) {
      continue;
    }
    result.devices.push_back({.name = ToString(TaskDevice{result.task, "GPU", device.ordinal}),
                              .type = "GPU",
                              .memory_bytes = static_cast<int64_t>(device.memory_bytes),
                              .incarnation = incarnation,
                              .gpu_ordinal = device.ordinal,
                              .description = GpuDescription(device),
                              .numa_node = device.numa_node});
  }
  result.allocate = [&engine](size_t bytes) -> absl::StatusOr<std::shared_ptr<Buffer>> {
    if (bytes >= kArenaBytes) {
      absl::StatusOr<std::shared_ptr<Buffer>> buffer = engine.arena().Allocate(bytes);
      if (buffer.ok()) return buffer;
    }
    return AllocateHeapBuffer(bytes);
  };
  result.host_name = engine.self().host_name;
  result.thread_count = options.thread_count;
  result.limits = options.limits;
  return result;
}

}  // namespace

NodeWorker::NodeWorker(TransferEngine& engine, NodeWorkerOptions options)
    : steps_(engine, options.lookup),
      worker_(steps_, WorkerOptionsOf(engine, options)),
      service_(worker::MakeWorkerService(worker_, options.auth)) {}

NodeWorker::~NodeWorker() = default;

NodeServiceFactory ServeGraphs(GraphOptions options) {
  return [options = std::move(options)](NodeServiceContext context) {
    NodeWorkerOptions worker;
    worker.thread_count = options.thread_count;
    worker.limits = options.limits;
    worker.auth = std::move(context.auth);
    worker.devices = std::move(context.devices);
    worker.lookup = std::move(context.find_node);
    return std::make_unique<NodeWorker>(context.engine, std::move(worker));
  };
}

}  // namespace ferry

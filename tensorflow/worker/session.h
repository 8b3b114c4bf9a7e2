// SPDX-License-Identifier: Apache-2.0
// Session: a master's session at a worker: its graphs, and state that outlives steps.
#ifndef FERRY_TENSORFLOW_WORKER_SESSION_H_
#define FERRY_TENSORFLOW_WORKER_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "rendezvous/device_name.h"
#include "tensorflow/graph/graph.h"
#include "tensorflow/worker/kernel.h"
#include "tensorflow/worker/variables.h"

namespace ferry::worker {

class CollectiveGpus;
class RegisteredGraph;

// A device of a worker, as reported by GetStatus.
struct WorkerDevice {
  // "/job:worker/replica:0/task:1/device:CPU:0".
  std::string name;
  // "CPU".
  std::string type;
  int64_t memory_bytes = 0;
  uint64_t incarnation = 0;
  // For a GPU: its ordinal in this process, and TensorFlow's description ("device: 0, name: ...").
  int gpu_ordinal = 0;
  std::string description;
  // -1: unknown.
  int numa_node = -1;
};

using BufferAllocator = std::function<absl::StatusOr<std::shared_ptr<Buffer>>(size_t bytes)>;

// A worker's devices and their variables. Thread-safe; shared by sessions that do not request
// isolation.
class Devices final {
 public:
  //   devices: with full names. allocate: see KernelEnvironment; may be empty.
  //   gpus: may be null: then GPUs compute nothing. Must outlive this.
  //   collectives: for those GPUs; may be null: then collectives go through the host. Must outlive
  //   this.
  Devices(const std::vector<WorkerDevice>& devices, const BufferAllocator& allocate, Gpus* gpus,
          CollectiveGpus* collectives = nullptr);

  int count() const { return static_cast<int>(devices_.size()); }
  const std::string& name(int device) const { return at(device).name; }
  const std::string& type(int device) const { return at(device).type; }
  const KernelEnvironment& environment(int device) const { return at(device).environment; }
  // Empty for a device that is not a GPU, or is unusable.
  const OpenGpu& open_gpu(int device) const { return at(device).open_gpu; }
  CollectiveGpus* collectives() const { return collectives_; }
  // Accepts a name in any of TensorFlow's forms; returns -1 if there is none.
  int Find(absl::string_view name) const;

  // See Variables.
  void Clear(absl::Span<const std::string> containers);
  int variable_count() const;

 private:
  struct Device {
    std::string name;
    std::string type;
    TaskDevice parsed;
    std::unique_ptr<Variables> variables;
    KernelEnvironment environment;
    OpenGpu open_gpu;
  };

  const Device& at(int device) const { return devices_[static_cast<size_t>(device)]; }

  // Constant after construction.
  CollectiveGpus* const collectives_;
  std::vector<Device> devices_;
};

struct SessionOptions {
  std::string handle;
  // The master and its incarnation. May be empty.
  std::string master_task;
  int64_t master_incarnation = 0;
};

// Thread-safe. Shared by the table of sessions and pending calls.
class Session final {
 public:
  Session(SessionOptions options, std::shared_ptr<Devices> devices)
      : options_(std::move(options)), devices_(std::move(devices)) {}

  const std::string& handle() const { return options_.handle; }
  const SessionOptions& options() const { return options_; }
  const std::shared_ptr<Devices>& devices() const { return devices_; }

  // Returns a kernel for the node: a new one, except for stateful ops that the session already has.
  //   Errors: as MakeKernel.
  absl::StatusOr<std::shared_ptr<const Kernel>> KernelFor(const graph::Node& node, int device)
      ABSL_LOCKS_EXCLUDED(mu_);

  //   Errors: RESOURCE_EXHAUSTED if there are `max_graphs` already.
  absl::Status AddGraph(std::shared_ptr<const RegisteredGraph> graph, size_t max_graphs)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns null if there is none.
  std::shared_ptr<const RegisteredGraph> FindGraph(absl::string_view handle) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns false if there is none.
  bool RemoveGraph(absl::string_view handle) ABSL_LOCKS_EXCLUDED(mu_);
  size_t graph_count() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct StatefulKernel {
    std::shared_ptr<const graph::Node> node;
    int device = 0;
    std::shared_ptr<const Kernel> kernel;
  };

  const SessionOptions options_;
  const std::shared_ptr<Devices> devices_;
  mutable absl::Mutex mu_;
  // Keyed by node name.
  absl::flat_hash_map<std::string, StatefulKernel> stateful_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, std::shared_ptr<const RegisteredGraph>> graphs_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_SESSION_H_

// SPDX-License-Identifier: Apache-2.0
// A master's session at a worker: its graphs, and what outlives its steps.
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

// A device of a worker, as GetStatus tells of it.
struct WorkerDevice {
  // "/job:worker/replica:0/task:1/device:CPU:0".
  std::string name;
  // "CPU".
  std::string type;
  int64_t memory_bytes = 0;
  uint64_t incarnation = 0;
  // Of a GPU: its number in this process, and what TensorFlow says of it ("device: 0, name: ...").
  int gpu_ordinal = 0;
  std::string description;
  // -1: not known.
  int numa_node = -1;
};

using BufferAllocator = std::function<absl::StatusOr<std::shared_ptr<Buffer>>(size_t bytes)>;

// The devices of a worker with their variables. Thread-safe; shared by sessions that do not ask for
// their own.
class Devices final {
 public:
  //   devices: their names are full ones. allocate: see KernelEnvironment; may be empty.
  //   gpus: may be null, and then GPUs compute nothing; outlives this.
  //   collectives: of those GPUs; may be null, and then collectives go by the host. Outlives this.
  Devices(const std::vector<WorkerDevice>& devices, const BufferAllocator& allocate, Gpus* gpus,
          CollectiveGpus* collectives = nullptr);

  int count() const { return static_cast<int>(devices_.size()); }
  const std::string& name(int device) const { return at(device).name; }
  const std::string& type(int device) const { return at(device).type; }
  const KernelEnvironment& environment(int device) const { return at(device).environment; }
  // Empty for a device that is no GPU, or cannot be used.
  const OpenGpu& open_gpu(int device) const { return at(device).open_gpu; }
  CollectiveGpus* collectives() const { return collectives_; }
  // By a name in any form that TensorFlow has; -1 if there is none.
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
  // Whose it is, and in which of its lives. May be empty.
  std::string master_task;
  int64_t master_incarnation = 0;
};

// Thread-safe. Shared by the table of sessions and by calls that are under way.
class Session final {
 public:
  Session(SessionOptions options, std::shared_ptr<Devices> devices)
      : options_(std::move(options)), devices_(std::move(devices)) {}

  const std::string& handle() const { return options_.handle; }
  const SessionOptions& options() const { return options_; }
  const std::shared_ptr<Devices>& devices() const { return devices_; }

  // The kernel of a node: a new one, but for stateful ops that the session has had before.
  //   Errors: as MakeKernel.
  absl::StatusOr<std::shared_ptr<const Kernel>> KernelFor(const graph::Node& node, int device)
      ABSL_LOCKS_EXCLUDED(mu_);

  //   Errors: RESOURCE_EXHAUSTED when there are `max_graphs`.
  absl::Status AddGraph(std::shared_ptr<const RegisteredGraph> graph, size_t max_graphs)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Null if there is none.
  std::shared_ptr<const RegisteredGraph> FindGraph(absl::string_view handle) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // False if there is none.
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
  // By the names of their nodes.
  absl::flat_hash_map<std::string, StatefulKernel> stateful_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, std::shared_ptr<const RegisteredGraph>> graphs_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_SESSION_H_

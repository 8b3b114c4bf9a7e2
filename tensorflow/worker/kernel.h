// SPDX-License-Identifier: Apache-2.0
// Kernel: the computation of a node.
#ifndef FERRY_TENSORFLOW_WORKER_KERNEL_H_
#define FERRY_TENSORFLOW_WORKER_KERNEL_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "proto/tf_node.pb.h"
#include "tensor/tensor.h"

namespace ferry {
class GpuCompute;
class Gpus;
}  // namespace ferry

namespace ferry::worker {

class Variables;

// Memory of this machine, as a limit for one tensor.
size_t MemoryBytes();

// The environment of one device's kernels. Owned by the device; outlives its steps.
struct KernelEnvironment {
  // Allocates outputs that are not views of inputs: at least that many bytes of host memory,
  // aligned to kBufferAlignment. Empty: the heap.
  std::function<absl::StatusOr<std::shared_ptr<Buffer>>(size_t bytes)> allocate;
  // Largest output in bytes; a larger one fails with RESOURCE_EXHAUSTED before it is allocated.
  size_t max_tensor_bytes = MemoryBytes();
  // Variables of this device. May be null if no kernel uses them.
  Variables* variables = nullptr;
};

// Inputs and outputs of one kernel invocation. Used by one thread.
class KernelContext final {
 public:
  //   inputs: as many as the node's signature says, valid, of its types; must outlive this object.
  //   Resource handles are string tensors: see variables.h.
  KernelContext(const KernelEnvironment& environment, absl::Span<const Tensor> inputs,
                int output_count)
      : environment_(environment), inputs_(inputs), outputs_(static_cast<size_t>(output_count)) {}

  int input_count() const { return static_cast<int>(inputs_.size()); }
  const Tensor& input(int index) const { return inputs_[static_cast<size_t>(index)]; }
  absl::Span<const Tensor> inputs() const { return inputs_; }

  int output_count() const { return static_cast<int>(outputs_.size()); }
  void set_output(int index, Tensor tensor) {
    outputs_[static_cast<size_t>(index)] = std::move(tensor);
  }
  // All are valid once Compute has returned OK.
  std::vector<Tensor>& outputs() { return outputs_; }

  // Returns a tensor with undefined elements. Not for strings.
  //   Errors: RESOURCE_EXHAUSTED beyond the environment's limit, or out of memory.
  absl::StatusOr<Tensor> Allocate(DataType dtype, const Shape& shape) const;
  // Returns OK, or Allocate's error, for a tensor of this size that is created in another way.
  absl::Status CheckBytes(size_t bytes) const;

  Variables* variables() const { return environment_.variables; }

 private:
  const KernelEnvironment& environment_;
  const absl::Span<const Tensor> inputs_;
  std::vector<Tensor> outputs_;
};

// Immutable except for random generators, and thread-safe: any number of steps may call Compute
// concurrently. Computes on the caller's thread and blocks only on short locks.
//
// Kernels of stateful ops (graph::OpSchema::is_stateful) belong to a session, not to a registered
// graph: TensorFlow creates one per node of a session, so that a generator continues where it was
// when the next step prunes the graph differently.
class Kernel {
 public:
  virtual ~Kernel() = default;

  // Sets all outputs, or returns TensorFlow's status. Outputs may be views of inputs' buffers;
  // shared memory is never written afterwards.
  virtual absl::Status Compute(KernelContext& context) const = 0;
  // True if Compute may block in a driver; it then must not run on borrowed threads.
  virtual bool may_block() const { return false; }
};

// The GPU that a kernel computes on; both outlive the kernel.
struct KernelGpu {
  Gpus* gpus = nullptr;
  GpuCompute* compute = nullptr;
};
// Opens the GPU if necessary; may block.
using OpenGpu = std::function<absl::StatusOr<KernelGpu>()>;

// Creates a kernel for `node`, whose attributes are complete (graph::Graph ensures that).
//   device_type: "CPU" or "GPU". On "GPU", ops that TensorFlow computes in host memory (int32) and
//   ops that only forward tensors need no GPU.
//   open_gpu: called for nodes that need the GPU; empty: there is none.
//   Errors: those of TensorFlow's kernels about attributes; NOT_FOUND, with TensorFlow's text, if
//   the op has no kernel for these types there; UNIMPLEMENTED for ops that are not kernels (_Send,
//   collectives), and for ops that need a GPU if there is none or this build has no kernels for it;
//   errors of `open_gpu`.
absl::StatusOr<std::unique_ptr<Kernel>> MakeKernel(const tensorflow::NodeDef& node,
                                                   absl::string_view device_type,
                                                   const OpenGpu& open_gpu = {});

// Turns an out-of-memory error into Allocate's error; other errors are returned unchanged.
absl::Status AsOutOfMemory(const absl::Status& status, DataType dtype, const Shape& shape);

// Appends the node's name to the message of `status`, as TensorFlow's executor does for kernels; OK
// stays OK.
absl::Status AttachNode(const absl::Status& status, absl::string_view node_name);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNEL_H_

// SPDX-License-Identifier: Apache-2.0
// Kernel: what a node does to its inputs when a step comes to it.
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

// Of this machine, as a limit for one tensor.
size_t MemoryBytes();

// What the kernels of one device are given besides their inputs. The device's; outlives its steps.
struct KernelEnvironment {
  // Where outputs lie that are not views of inputs: at least that many bytes in the host's memory,
  // aligned to kBufferAlignment. Empty: the heap.
  std::function<absl::StatusOr<std::shared_ptr<Buffer>>(size_t bytes)> allocate;
  // Largest output; above it a kernel fails with RESOURCE_EXHAUSTED before it allocates.
  size_t max_tensor_bytes = MemoryBytes();
  // Of this device. May be null if no kernel is about variables.
  Variables* variables = nullptr;
};

// One run of one kernel: what it takes and gives. Used by one thread.
class KernelContext final {
 public:
  //   inputs: as many as the node's signature says, valid, of its types; they outlive this object.
  //   Handles of resources are tensors of strings: see variables.h.
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
  // All of them are valid when Compute has returned OK.
  std::vector<Tensor>& outputs() { return outputs_; }

  // Its elements are undefined. Not for strings.
  //   Errors: RESOURCE_EXHAUSTED beyond the environment's limit, or when there is no such memory.
  absl::StatusOr<Tensor> Allocate(DataType dtype, const Shape& shape) const;
  // OK, or that of Allocate, for a tensor of so many bytes that is made in another way.
  absl::Status CheckBytes(size_t bytes) const;

  Variables* variables() const { return environment_.variables; }

 private:
  const KernelEnvironment& environment_;
  const absl::Span<const Tensor> inputs_;
  std::vector<Tensor> outputs_;
};

// Immutable but for generators of random numbers, and thread-safe: any number of steps may be in
// Compute at once. Computes on the caller's thread and waits for nothing but short locks.
//
// Kernels of stateful ops (graph::OpSchema::is_stateful) belong to a session, not to a registered
// graph: TensorFlow makes one for each node of a session, so that a generator goes on where it was
// when the next step prunes the graph in another way.
class Kernel {
 public:
  virtual ~Kernel() = default;

  // Sets all outputs, or returns TensorFlow's status. Outputs may be views of inputs' buffers; what
  // an output shares is never written afterwards.
  virtual absl::Status Compute(KernelContext& context) const = 0;
  // It may wait for a driver, and so is not for the threads of others.
  virtual bool may_block() const { return false; }
};

// The GPU that a kernel computes on; both outlive it.
struct KernelGpu {
  Gpus* gpus = nullptr;
  GpuCompute* compute = nullptr;
};
// Opens it if need be, and may block.
using OpenGpu = std::function<absl::StatusOr<KernelGpu>()>;

// A kernel for `node`, whose attributes are complete (graph::Graph makes them so).
//   device_type: "CPU"; or "GPU": then what TensorFlow computes in the host's memory there (int32),
//   and what only hands tensors on, needs no GPU.
//   open_gpu: called for nodes that do need one; empty: there is none.
//   Errors: those of TensorFlow's kernels about attributes; NOT_FOUND, with TensorFlow's text, when
//   the op has no kernel for these types there; UNIMPLEMENTED for ops that are not kernels
//   (_Send, collectives), and those that need a GPU where there is none, or for which this build
//   has no kernels; what `open_gpu` says.
absl::StatusOr<std::unique_ptr<Kernel>> MakeKernel(const tensorflow::NodeDef& node,
                                                   absl::string_view device_type,
                                                   const OpenGpu& open_gpu = {});

// That of Allocate, for a tensor that there is no memory for; other errors stay.
absl::Status AsOutOfMemory(const absl::Status& status, DataType dtype, const Shape& shape);

// `status` with the node's name behind its text, as TensorFlow's executor does with what kernels
// say; OK stays OK.
absl::Status AttachNode(const absl::Status& status, absl::string_view node_name);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNEL_H_

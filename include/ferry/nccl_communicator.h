// SPDX-License-Identifier: Apache-2.0
// NcclCommunicator: one rank of a NCCL communicator.
#ifndef FERRY_INCLUDE_FERRY_NCCL_COMMUNICATOR_H_
#define FERRY_INCLUDE_FERRY_NCCL_COMMUNICATOR_H_

#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include <ferry/device.h>
#include <ferry/namespace.h>
#include <ferry/tensor.h>

// ncclComm_t points to it.
struct ncclComm;
// CUstream and cudaStream_t point to it.
struct CUstream_st;

namespace ferry {
FERRY_NAMESPACE_BEGIN

struct NcclCommunicatorOptions {
  // The device for which the call is made, by its global id; required if several of the
  // communicator's devices are this node's. Each of these then needs its own thread.
  std::optional<int> own_device;
  // How long to wait for the other ranks.
  absl::Duration timeout = absl::Minutes(1);
  // Limit on the thread blocks (CTAs) that NCCL runs; fewer use less memory and have less
  // bandwidth. 0: NCCL's default.
  int max_ctas = 0;
};

enum class ReduceOp { kSum = 0, kProduct = 1, kMax = 2, kMin = 3 };

// Made by Node::Communicator; the Node must outlive it. Thread-safe. NCCL is the library that Ferry
// has loaded at run time (libnccl.so.2, or FERRY_NCCL_LIBRARY). All ranks must issue the same
// operations in the same order. The operations enqueue work on a stream and return; the stream's
// later work runs after it. They take turns with tensors that steps move over NCCL on the same GPU,
// and wait for them, a minute at most. Tensors must stay alive until the work has completed.
//   Common errors: INVALID_ARGUMENT tensors that are not in the memory of device(), or do not have
//   equal types and the sizes that the operation needs, or a type that NCCL does not have; ABORTED
//   a rank has abandoned the communicator; DEADLINE_EXCEEDED; INTERNAL and UNAVAILABLE with NCCL's
//   error.
class NcclCommunicator {
 public:
  // Operations in flight must have completed: otherwise the communicator is aborted on all ranks.
  ~NcclCommunicator();

  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const;
  int size() const;
  // The GPU of this rank.
  Device device() const;
  // A stream of device() that belongs to the communicator, for programs that have none of their
  // own.
  CUstream_st* stream() const;

  // Reduces element by element over all ranks. `output` may be `input`, and is of its size.
  absl::Status AllReduce(const Tensor& input, Tensor& output, ReduceOp op, CUstream_st* stream);
  // Copies `tensor` of rank `root` to `tensor` of every other rank.
  absl::Status Broadcast(Tensor& tensor, int root, CUstream_st* stream);
  // Concatenates the inputs of all ranks: `output` has size() times the elements of `input`.
  absl::Status AllGather(const Tensor& input, Tensor& output, CUstream_st* stream);

  // Makes calls of NCCL: `calls` is called on the thread that makes all NCCL calls for the device,
  // uses `stream` in them, and returns the first ncclResult_t that is neither ncclSuccess nor
  // ncclInProgress, or the last one. Waits until the operations are enqueued. Programs that link
  // NCCL must use the same library.
  absl::Status Run(CUstream_st* stream, absl::FunctionRef<int(ncclComm*)> calls,
                   absl::Duration timeout = absl::Minutes(1));
  // Whether all ranks still use the communicator. Does not block.
  //   Errors: ABORTED a rank has abandoned it: operations in flight may never complete.
  absl::Status Check();
  // Aborts its operations on all ranks, permanently. Blocks until NCCL returns. No other call may
  // be in progress; later ones fail with ABORTED.
  void Abort(const absl::Status& reason);

 private:
  class Impl;
  friend class ApiAccess;

  explicit NcclCommunicator(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_NCCL_COMMUNICATOR_H_

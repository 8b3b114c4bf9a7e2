// SPDX-License-Identifier: Apache-2.0
// A tensor in GPU memory together with the event that marks the completion of its bytes.
#ifndef FERRY_GPU_CUDA_READY_TENSOR_H_
#define FERRY_GPU_CUDA_READY_TENSOR_H_

#include <memory>

#include "gpu/cuda/cuda_event.h"
#include "gpu/cuda/device_buffer.h"
#include "tensor/tensor.h"

namespace ferry::cuda {

// Returns a tensor with the same elements in the same memory; readers must wait for `ready` first,
// on the device. Each send and each arrival has its own: two parts of a buffer may be written by
// two streams.
//   ready: null: the elements are complete.
//   REQUIRES: tensor.is_valid(), of fixed size.
Tensor WithReady(const Tensor& tensor, std::shared_ptr<const ReadyEvent> ready);

// Returns the event after which the elements are complete; null: they are.
std::shared_ptr<const ReadyEvent> ReadyOf(const Tensor& tensor);

// Returns the buffer that WithReady was given, or the tensor's own.
const std::shared_ptr<Buffer>& MemoryOf(const Tensor& tensor);

// Marks its memory as in use until `event` has completed; see DeviceBuffer::AddUse. Returns false
// if such memory does not count uses (a foreign buffer, host memory); the caller must keep the
// tensor until then.
bool AddUse(const Tensor& tensor, std::shared_ptr<const ReadyEvent> event);

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_READY_TENSOR_H_

// SPDX-License-Identifier: Apache-2.0
// A tensor in a GPU's memory together with the event that marks when its bytes are there.
#ifndef FERRY_GPU_CUDA_READY_TENSOR_H_
#define FERRY_GPU_CUDA_READY_TENSOR_H_

#include <memory>

#include "gpu/cuda/cuda_event.h"
#include "gpu/cuda/device_buffer.h"
#include "tensor/tensor.h"

namespace ferry::cuda {

// The same elements in the same memory; whoever reads them waits for `ready` first, on the device.
// Of each send and each arrival one of its own: two parts of a buffer may be written by two
// streams.
//   ready: null: they are there already.
//   REQUIRES: tensor.is_valid(), of fixed size.
Tensor WithReady(const Tensor& tensor, std::shared_ptr<const ReadyEvent> ready);

// When the elements are there; null: they are.
std::shared_ptr<const ReadyEvent> ReadyOf(const Tensor& tensor);

// The buffer that WithReady was given, or the tensor's own.
const std::shared_ptr<Buffer>& MemoryOf(const Tensor& tensor);

// Its memory is in use until `event` is done; see DeviceBuffer::AddUse. False: nobody counts the
// uses of such memory (a foreign buffer's, host memory), so the caller keeps the tensor until then.
bool AddUse(const Tensor& tensor, std::shared_ptr<const ReadyEvent> event);

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_READY_TENSOR_H_

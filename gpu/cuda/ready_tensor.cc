// SPDX-License-Identifier: Apache-2.0
// A buffer that wraps another buffer, with an event.
#include "gpu/cuda/ready_tensor.h"

#include <utility>

#include "base/status_macros.h"

namespace ferry::cuda {
namespace {

class ReadyBuffer final : public Buffer {
 public:
  ReadyBuffer(std::shared_ptr<Buffer> memory, std::shared_ptr<const ReadyEvent> ready)
      : Buffer(memory->data(), memory->bytes(), memory->location()),
        memory_(std::move(memory)),
        ready_(std::move(ready)) {}

  const void* arena() const override { return memory_->arena(); }
  ArenaOffset arena_offset() const override { return memory_->arena_offset(); }

  const std::shared_ptr<Buffer>& memory() const { return memory_; }
  const std::shared_ptr<const ReadyEvent>& ready() const { return ready_; }

 private:
  const std::shared_ptr<Buffer> memory_;
  const std::shared_ptr<const ReadyEvent> ready_;
};

const ReadyBuffer* AsReadyBuffer(const Tensor& tensor) {
  if (tensor.buffer() == nullptr || tensor.buffer()->location().space == MemorySpace::kHost) {
    return nullptr;
  }
  return dynamic_cast<const ReadyBuffer*>(tensor.buffer().get());
}

}  // namespace

Tensor WithReady(const Tensor& tensor, std::shared_ptr<const ReadyEvent> ready) {
  const std::shared_ptr<Buffer>& memory = MemoryOf(tensor);
  std::shared_ptr<Buffer> buffer =
      ready == nullptr ? memory : std::make_shared<ReadyBuffer>(memory, std::move(ready));
  absl::StatusOr<Tensor> made =
      Tensor::Create(tensor.dtype(), tensor.shape(), std::move(buffer), tensor.offset_bytes());
  FERRY_CHECK(made.ok());
  return *std::move(made);
}

std::shared_ptr<const ReadyEvent> ReadyOf(const Tensor& tensor) {
  const ReadyBuffer* const buffer = AsReadyBuffer(tensor);
  return buffer == nullptr ? nullptr : buffer->ready();
}

const std::shared_ptr<Buffer>& MemoryOf(const Tensor& tensor) {
  const ReadyBuffer* const buffer = AsReadyBuffer(tensor);
  return buffer == nullptr ? tensor.buffer() : buffer->memory();
}

bool AddUse(const Tensor& tensor, std::shared_ptr<const ReadyEvent> event) {
  if (tensor.buffer() == nullptr) return false;
  DeviceBuffer* const buffer = AsDeviceBuffer(MemoryOf(tensor).get());
  if (buffer == nullptr) return false;
  buffer->AddUse(std::move(event));
  return true;
}

}  // namespace ferry::cuda

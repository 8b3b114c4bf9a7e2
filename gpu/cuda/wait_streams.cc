// SPDX-License-Identifier: Apache-2.0
// WaitStreams: queries the streams for an idle one.
#include "gpu/cuda/wait_streams.h"

#include <utility>

#include "absl/memory/memory.h"

#include "base/status_macros.h"

namespace ferry::cuda {

absl::StatusOr<std::unique_ptr<WaitStreams>> WaitStreams::Create(std::shared_ptr<CudaDevice> device,
                                                                 int count) {
  std::unique_ptr<WaitStreams> made = absl::WrapUnique(new WaitStreams(device));
  for (int i = 0; i < count; ++i) {
    FERRY_ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream, CudaStream::Create(device));
    made->streams_.push_back(std::move(stream));
  }
  return made;
}

Stream WaitStreams::TakeIdle() const {
  const ScopedCurrent current(*device_);
  for (const std::unique_ptr<CudaStream>& stream : streams_) {
    // A device that has failed reports its error when work is enqueued.
    if (device_->table().stream_query(stream->get()) != kErrorNotReady) return stream->get();
  }
  return nullptr;
}

Stream WaitStreams::TakeIdleOrAny() {
  const Stream idle = TakeIdle();
  return idle != nullptr ? idle : streams_[next_++ % streams_.size()]->get();
}

}  // namespace ferry::cuda

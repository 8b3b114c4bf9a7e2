// SPDX-License-Identifier: Apache-2.0
// Uses of a buffer.
#include "gpu/cuda/device_buffer.h"

namespace ferry::cuda {
namespace {

// Beyond this, uses that are done are looked for and forgotten.
constexpr size_t kManyUses = 16;

}  // namespace

DeviceBuffer::~DeviceBuffer() {
  Uses uses;
  {
    absl::MutexLock lock(&mu_);
    uses.swap(uses_);
  }
  if (release_) std::move(release_)(std::move(uses));
}

void DeviceBuffer::AddUse(std::shared_ptr<const ReadyEvent> event) {
  Uses old;
  {
    absl::MutexLock lock(&mu_);
    uses_.push_back(std::move(event));
    if (uses_.size() <= kManyUses) return;
    old.swap(uses_);
  }
  // The driver is asked with no lock held.
  Uses kept;
  for (std::shared_ptr<const ReadyEvent>& use : old) {
    const absl::StatusOr<bool> is_done = use->IsDone();
    if (!is_done.ok() || !*is_done) kept.push_back(std::move(use));
  }
  absl::MutexLock lock(&mu_);
  for (std::shared_ptr<const ReadyEvent>& use : kept) uses_.push_back(std::move(use));
}

DeviceBuffer* AsDeviceBuffer(Buffer* buffer) { return dynamic_cast<DeviceBuffer*>(buffer); }

}  // namespace ferry::cuda

// SPDX-License-Identifier: Apache-2.0
// DeviceBuffer: tracking of uses.
#include "gpu/cuda/device_buffer.h"

namespace ferry::cuda {
namespace {

// Above this number completed uses are pruned.
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
  // The driver is called with no lock held.
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

// SPDX-License-Identifier: Apache-2.0
// References to registered memory, with the names of those who have them.
#include "gpu/cuda/registered_memory.h"

#include <algorithm>
#include <utility>

namespace ferry::cuda {
namespace {

// One reference. The name goes first: the last reference ends the memory.
class HeldMemory final {
 public:
  HeldMemory(std::shared_ptr<const RegisteredMemory> memory, std::string holder)
      : memory_(std::move(memory)), id_(memory_->holders()->Add(std::move(holder))) {}
  ~HeldMemory() { memory_->holders()->Remove(id_); }

  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;

 private:
  const std::shared_ptr<const RegisteredMemory> memory_;
  const MemoryHolders::Id id_;
};

}  // namespace

RegisteredMemory::RegisteredMemory(Tensor tensor, std::vector<uint64_t> allocation_ids,
                                   std::shared_ptr<MemoryHolders> holders,
                                   absl::AnyInvocable<void(const RegisteredMemory&)> forget)
    : tensor_(std::move(tensor)),
      allocation_ids_(std::move(allocation_ids)),
      holders_(std::move(holders)),
      forget_(std::move(forget)) {}

RegisteredMemory::~RegisteredMemory() {
  // First: its deleter may free the addresses, and others register what is there next.
  forget_(*this);
  tensor_ = Tensor();
  holders_->End();
}

std::shared_ptr<const void> RegisteredMemory::Hold(std::string holder) const {
  return std::make_shared<const HeldMemory>(shared_from_this(), std::move(holder));
}

bool RegisteredMemory::is_retired() const {
  absl::MutexLock lock(&mu_);
  return is_retired_;
}

void RegisteredMemory::Listen(const std::weak_ptr<RegistrationListener>& listener) const {
  absl::MutexLock lock(&mu_);
  if (is_retired_) return;
  const auto is_needless = [&listener](const std::weak_ptr<RegistrationListener>& each) {
    return each.expired() || (!each.owner_before(listener) && !listener.owner_before(each));
  };
  listeners_.erase(std::remove_if(listeners_.begin(), listeners_.end(), is_needless),
                   listeners_.end());
  listeners_.push_back(listener);
}

size_t RegisteredMemory::listener_count() const {
  absl::MutexLock lock(&mu_);
  return listeners_.size();
}

void RegisteredMemory::Retire() const {
  std::vector<std::weak_ptr<RegistrationListener>> listeners;
  {
    absl::MutexLock lock(&mu_);
    is_retired_ = true;
    listeners.swap(listeners_);
  }
  for (const std::weak_ptr<RegistrationListener>& each : listeners) {
    if (const auto listener = each.lock()) listener->OnRetired(*this);
  }
}

}  // namespace ferry::cuda

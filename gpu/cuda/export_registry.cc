// SPDX-License-Identifier: Apache-2.0
// Registered tensors by the ids of their allocations.
#include "gpu/cuda/export_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "gpu/cuda/ipc_descriptor.h"
#include "gpu/cuda/memory_kind.h"

namespace ferry::cuda {

RegisteredMemory::RegisteredMemory(Tensor tensor, std::vector<uint64_t> allocation_ids,
                                   std::shared_ptr<absl::Notification> is_released)
    : tensor_(std::move(tensor)),
      allocation_ids_(std::move(allocation_ids)),
      is_released_(std::move(is_released)) {}

RegisteredMemory::~RegisteredMemory() {
  tensor_ = Tensor();
  is_released_->Notify();
}

bool RegisteredMemory::is_retired() const {
  absl::MutexLock lock(&mu_);
  return is_retired_;
}

void RegisteredMemory::Listen(std::weak_ptr<RegistrationListener> listener) const {
  absl::MutexLock lock(&mu_);
  if (!is_retired_) listeners_.push_back(std::move(listener));
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

ExportRegistration::ExportRegistration(std::shared_ptr<ExportRegistry> registry,
                                       std::shared_ptr<const RegisteredMemory> memory,
                                       std::shared_ptr<const absl::Notification> is_released,
                                       std::string what)
    : registry_(std::move(registry)),
      is_released_(std::move(is_released)),
      what_(std::move(what)),
      memory_(std::move(memory)) {}

ExportRegistration::~ExportRegistration() { Retire(); }

void ExportRegistration::Retire() {
  std::shared_ptr<const RegisteredMemory> memory;
  {
    absl::MutexLock lock(&mu_);
    memory = std::move(memory_);
    memory_ = nullptr;
  }
  if (memory == nullptr) return;
  // In this order: what looks for it from now on finds none, and what has found it is told.
  registry_->Remove(*memory);
  memory->Retire();
}

absl::Status ExportRegistration::Release(absl::Duration timeout) {
  Retire();
  if (is_released_->WaitForNotificationWithTimeout(timeout)) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("waited ", absl::FormatDuration(timeout), " for other processes to close ",
                   what_, ", and some still use it, or NCCL's work keeps them from closing it: ",
                   "release the tensors received from it there, and do not free it yet"));
}

absl::StatusOr<std::unique_ptr<ExportRegistration>> ExportRegistry::Register(
    const CudaDevice& device, Tensor tensor) {
  FERRY_ASSIGN_OR_RETURN(const MemoryInfo info, Classify(device, tensor.data(), tensor.bytes()));
  std::string what =
      absl::StrCat(tensor.bytes(), " bytes of ", MemoryKindName(info.kind), " of ", device.name());
  if (info.export_by == ExportBy::kNone) {
    return absl::FailedPreconditionError(
        absl::StrCat("no other process can map ", what, ": ", info.no_export_reason));
  }
  std::vector<uint64_t> ids;
  for (const MemoryPiece& piece : info.pieces) {
    ids.push_back(AllocationId(piece.buffer_id, piece.base, piece.allocation_bytes));
  }
  const auto is_released = std::make_shared<absl::Notification>();
  const auto memory =
      std::make_shared<const RegisteredMemory>(std::move(tensor), std::move(ids), is_released);
  {
    absl::MutexLock lock(&mu_);
    for (const uint64_t id : memory->allocation_ids()) by_id_[id].push_back(memory);
  }
  return std::unique_ptr<ExportRegistration>(
      new ExportRegistration(shared_from_this(), memory, is_released, std::move(what)));
}

std::shared_ptr<const RegisteredMemory> ExportRegistry::Find(uint64_t allocation_id) const {
  absl::MutexLock lock(&mu_);
  const auto found = by_id_.find(allocation_id);
  return found == by_id_.end() ? nullptr : found->second.back();
}

void ExportRegistry::Remove(const RegisteredMemory& memory) {
  absl::MutexLock lock(&mu_);
  for (const uint64_t id : memory.allocation_ids()) {
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) continue;
    auto& registered = found->second;
    registered.erase(std::remove_if(registered.begin(), registered.end(),
                                    [&](const auto& each) { return each.get() == &memory; }),
                     registered.end());
    if (registered.empty()) by_id_.erase(found);
  }
}

}  // namespace ferry::cuda

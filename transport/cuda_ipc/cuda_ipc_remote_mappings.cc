// SPDX-License-Identifier: Apache-2.0
// Counts the transfers of mapped memory, and asks the peer to close it when the program does.
#include "transport/cuda_ipc/cuda_ipc_remote_mappings.h"

#include "absl/strings/str_cat.h"

namespace ferry {

std::shared_ptr<const void> CudaIpcRemoteMappings::Acquire(const GpuPair& pair,
                                                           uint64_t allocation_id) {
  const Key key(pair.destination, allocation_id);
  const std::shared_ptr<const cuda::RegisteredMemory> memory = registry_->Find(allocation_id);
  if (memory == nullptr) return nullptr;
  // Destroyed without the lock: it may be the last reference to the program's tensor.
  std::shared_ptr<const cuda::RegisteredMemory> before = memory;
  std::shared_ptr<const void> held = memory->Hold(absl::StrCat(peer_, ", which has it mapped"));
  {
    absl::MutexLock lock(&mu_);
    // Nothing would ever end the mapping.
    if (is_aborted_) return nullptr;
    Mapping& mapping = mappings_[key];
    // The reply must be about every transfer so far.
    if (mapping.is_reclaiming) return nullptr;
    // An earlier registration of the allocation may have been retired: the new one keeps it.
    before.swap(mapping.memory);
    if (before != memory) held.swap(mapping.held);
    mapping.pair = pair;
    ++mapping.transfers;
  }
  // If it has been retired meanwhile, the end of the transfer reclaims it.
  if (before != memory) memory->Listen(weak_from_this());
  return {this, [self = shared_from_this(), key](const void*) { self->EndTransfer(key); }};
}

bool CudaIpcRemoteMappings::MustReclaim(Mapping& mapping) {
  if (mapping.transfers > 0 || mapping.is_reclaiming || !mapping.memory->is_retired()) return false;
  mapping.is_reclaiming = true;
  return true;
}

void CudaIpcRemoteMappings::SendReclaim(const std::vector<CudaIpcReclaim>& to_reclaim) {
  // If the control channel has closed, that ends the mappings.
  for (const CudaIpcReclaim& each : to_reclaim) {
    control_channel_(EncodeCudaIpcReclaim(each), {}).IgnoreError();
  }
}

void CudaIpcRemoteMappings::EndTransfer(const Key& key) {
  std::vector<CudaIpcReclaim> to_reclaim;
  {
    absl::MutexLock lock(&mu_);
    const auto found = mappings_.find(key);
    // The control channel has ended.
    if (found == mappings_.end()) return;
    --found->second.transfers;
    if (MustReclaim(found->second)) to_reclaim.push_back({found->second.pair, key.second});
  }
  SendReclaim(to_reclaim);
}

void CudaIpcRemoteMappings::OnRetired(const cuda::RegisteredMemory& memory) {
  std::vector<CudaIpcReclaim> to_reclaim;
  {
    absl::MutexLock lock(&mu_);
    for (auto& [key, mapping] : mappings_) {
      if (mapping.memory.get() == &memory && MustReclaim(mapping)) {
        to_reclaim.push_back({mapping.pair, key.second});
      }
    }
  }
  SendReclaim(to_reclaim);
}

absl::Status CudaIpcRemoteMappings::OnReclaimed(const CudaIpcReclaim& reclaimed) {
  Mapping mapping;
  absl::MutexLock lock(&mu_);
  const auto found = mappings_.find({reclaimed.pair.destination, reclaimed.allocation_id});
  if (found == mappings_.end() || !found->second.is_reclaiming) {
    return absl::InvalidArgumentError(
        "the peer reports that it has closed memory that it was not asked to close");
  }
  // Destroyed without the lock: it may be the last reference to the program's tensor.
  mapping = std::move(found->second);
  mappings_.erase(found);
  return absl::OkStatus();
}

std::vector<std::shared_ptr<const void>> CudaIpcRemoteMappings::Abort() {
  absl::flat_hash_map<Key, Mapping> left;
  {
    absl::MutexLock lock(&mu_);
    is_aborted_ = true;
    left.swap(mappings_);
  }
  std::vector<std::shared_ptr<const void>> held;
  for (const auto& [key, mapping] : left) {
    held.push_back(mapping.memory->Hold(absl::StrCat(
        peer_, ", which may still have it mapped: its control channel has closed, and it has ",
        "neither closed the memory nor been dead for two seconds")));
  }
  return held;
}

}  // namespace ferry

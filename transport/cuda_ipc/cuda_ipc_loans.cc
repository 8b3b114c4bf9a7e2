// SPDX-License-Identifier: Apache-2.0
// Counts the transfers of lent memory, and asks for it when the program does.
#include "transport/cuda_ipc/cuda_ipc_loans.h"

#include "absl/strings/str_cat.h"

namespace ferry {

std::shared_ptr<const void> CudaIpcLoans::Lend(const GpuPair& pair, uint64_t buffer_id) {
  const Key key(pair.destination, buffer_id);
  const std::shared_ptr<const cuda::RegisteredMemory> memory = registry_->Find(buffer_id);
  if (memory == nullptr) return nullptr;
  // Destroyed without the lock: it may be the last reference to the program's tensor.
  std::shared_ptr<const cuda::RegisteredMemory> before = memory;
  std::shared_ptr<const void> held = memory->Hold(absl::StrCat(peer_, ", which has it mapped"));
  {
    absl::MutexLock lock(&mu_);
    // Nothing would ever end it.
    if (is_aborted_) return nullptr;
    Loan& loan = loans_[key];
    // The reply must be about every transfer so far.
    if (loan.is_asked_for) return nullptr;
    // An earlier registration of the allocation may have been retired: the new one keeps it.
    before.swap(loan.memory);
    if (before != memory) held.swap(loan.held);
    loan.pair = pair;
    ++loan.transfers;
  }
  // If it has been retired meanwhile, the end of the transfer asks for it.
  if (before != memory) memory->Listen(weak_from_this());
  return {this, [self = shared_from_this(), key](const void*) { self->EndTransfer(key); }};
}

bool CudaIpcLoans::MustAskFor(Loan& loan) {
  if (loan.transfers > 0 || loan.is_asked_for || !loan.memory->is_retired()) return false;
  loan.is_asked_for = true;
  return true;
}

void CudaIpcLoans::AskFor(const std::vector<CudaIpcReclaim>& loans) {
  // If the control channel has closed, that ends the loans.
  for (const CudaIpcReclaim& each : loans) {
    control_channel_(EncodeCudaIpcReclaim(each), {}).IgnoreError();
  }
}

void CudaIpcLoans::EndTransfer(const Key& key) {
  std::vector<CudaIpcReclaim> asked_for;
  {
    absl::MutexLock lock(&mu_);
    const auto found = loans_.find(key);
    // The control channel has ended.
    if (found == loans_.end()) return;
    --found->second.transfers;
    if (MustAskFor(found->second)) asked_for.push_back({found->second.pair, key.second});
  }
  AskFor(asked_for);
}

void CudaIpcLoans::OnRetired(const cuda::RegisteredMemory& memory) {
  std::vector<CudaIpcReclaim> asked_for;
  {
    absl::MutexLock lock(&mu_);
    for (auto& [key, loan] : loans_) {
      if (loan.memory.get() == &memory && MustAskFor(loan)) {
        asked_for.push_back({loan.pair, key.second});
      }
    }
  }
  AskFor(asked_for);
}

absl::Status CudaIpcLoans::OnReclaimed(const CudaIpcReclaim& reclaimed) {
  Loan loan;
  absl::MutexLock lock(&mu_);
  const auto found = loans_.find({reclaimed.pair.destination, reclaimed.buffer_id});
  if (found == loans_.end() || !found->second.is_asked_for) {
    return absl::InvalidArgumentError("memory was closed that was not asked for");
  }
  // Destroyed without the lock: it may be the last reference to the program's tensor.
  loan = std::move(found->second);
  loans_.erase(found);
  return absl::OkStatus();
}

std::vector<std::shared_ptr<const void>> CudaIpcLoans::Abort() {
  absl::flat_hash_map<Key, Loan> left;
  {
    absl::MutexLock lock(&mu_);
    is_aborted_ = true;
    left.swap(loans_);
  }
  std::vector<std::shared_ptr<const void>> held;
  for (const auto& [key, loan] : left) {
    held.push_back(loan.memory->Hold(absl::StrCat(
        peer_, ", which may still have it mapped: its control channel has closed, and it has ",
        "neither closed the memory nor been dead for two seconds")));
  }
  return held;
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// NcclArbiter: counts the programs that request a turn.
#include "gpu/nccl_arbiter.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry {

void NcclArbiter::NotifyKeyed() {
  std::shared_ptr<Keyed> keyed;
  {
    absl::MutexLock lock(&mu_);
    keyed = keyed_.lock();
    if (keyed == nullptr) is_quiet_ = true;
  }
  if (keyed != nullptr) keyed->OnTurn();
}

void NcclArbiter::Request() {
  {
    absl::MutexLock lock(&mu_);
    ++count_;
  }
  NotifyKeyed();
}

bool NcclArbiter::has_turn() const {
  absl::MutexLock lock(&mu_);
  return is_quiet_;
}

absl::Status NcclArbiter::Await(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  if (mu_.AwaitWithTimeout(absl::Condition(this, &NcclArbiter::is_quiet), timeout)) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "waited ", absl::FormatDuration(timeout), " for keyed transfers by NCCL on gpu:", ordinal_,
      " to end, which a program's own NCCL work must not run beside"));
}

void NcclArbiter::End() {
  {
    absl::MutexLock lock(&mu_);
    FERRY_CHECK(count_ > 0);
    --count_;
  }
  NotifyKeyed();
}

absl::Status NcclArbiter::CheckKeyedLocked() const {
  if (keyed_.expired()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("another node of this process has keyed transfers by NCCL on gpu:", ordinal_,
                   ", and NCCL's work on a GPU has one order"));
}

absl::Status NcclArbiter::CheckKeyed() const {
  absl::MutexLock lock(&mu_);
  return CheckKeyedLocked();
}

absl::Status NcclArbiter::SetKeyed(std::weak_ptr<Keyed> keyed) {
  {
    absl::MutexLock lock(&mu_);
    FERRY_RETURN_IF_ERROR(CheckKeyedLocked());
    keyed_ = std::move(keyed);
  }
  NotifyKeyed();
  return absl::OkStatus();
}

bool NcclArbiter::is_wanted() const {
  absl::MutexLock lock(&mu_);
  return count_ > 0;
}

void NcclArbiter::SetQuiesced() {
  absl::MutexLock lock(&mu_);
  is_quiet_ = true;
}

bool NcclArbiter::TryResume() {
  absl::MutexLock lock(&mu_);
  if (count_ > 0) return false;
  is_quiet_ = false;
  return true;
}

absl::StatusOr<std::shared_ptr<NcclTurn>> NcclTurn::Take(std::shared_ptr<NcclArbiter> turns,
                                                         std::shared_ptr<cuda::SyncGate> gate,
                                                         absl::Duration timeout) {
  turns->Request();
  if (absl::Status status = turns->Await(timeout); !status.ok()) {
    turns->End();
    return status;
  }
  gate->BeginProgramWork(turns->ordinal());
  return std::shared_ptr<NcclTurn>(new NcclTurn(std::move(turns), std::move(gate)));
}

NcclTurn::~NcclTurn() {
  gate_->EndProgramWork(turns_->ordinal());
  turns_->End();
}

std::shared_ptr<NcclArbiters> NcclArbiters::OfProcess() {
  static absl::Mutex mu(absl::kConstInit);
  static auto& known = *new std::weak_ptr<NcclArbiters>;
  absl::MutexLock lock(&mu);
  std::shared_ptr<NcclArbiters> arbiters = known.lock();
  if (arbiters == nullptr) known = arbiters = std::make_shared<NcclArbiters>();
  return arbiters;
}

std::shared_ptr<NcclArbiter> NcclArbiters::Get(int ordinal) {
  absl::MutexLock lock(&mu_);
  std::shared_ptr<NcclArbiter>& turns = turns_[ordinal];
  if (turns == nullptr) turns = std::make_shared<NcclArbiter>(ordinal);
  return turns;
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// Pauses a GPU's keyed transfers: to let the GPUs become quiet, and for a program's own NCCL work.
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/text.h"
#include "transport/nccl/nccl_device.h"

namespace ferry {
namespace {

// The program's work may itself wait for a tensor that a transfer brings to another rank: then it
// never ends unless the transfer takes another path.
constexpr absl::Duration kTurnTimeout = absl::Seconds(1);

}  // namespace

void NcclDevice::UpdatePause(GrantActions& actions) {
  if (is_quiet_wanted_ || is_turn_wanted_) return endpoint_.Pause(actions);
  endpoint_.Resume(actions);
}

void NcclDevice::SetQuietWanted(bool is_wanted) {
  Run([&](GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    is_quiet_wanted_ = is_wanted;
    UpdatePause(actions);
  });
}

void NcclDevice::OnTurn() {
  Run([&](GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (turns_->is_wanted()) {
      if (std::exchange(is_turn_wanted_, true)) return;
      turn_since_ = SteadyClock().Now();
      auto end_patience = [weak = weak_from_this(), turn = ++last_turn_] {
        if (const auto self = weak.lock()) self->EndTurnPatience(turn);
      };
      if (common_.after) {
        common_.after(kTurnTimeout, std::move(end_patience));
      } else {
        common_.loop->PostAt(turn_since_ + kTurnTimeout, std::move(end_patience));
      }
    } else {
      // Before anything new is agreed on. Fails if the turn is requested again meanwhile, which
      // causes another call.
      if (!turns_->TryGoOn()) return;
      is_turn_wanted_ = false;
      is_turn_long_ = false;
    }
    UpdatePause(actions);
  });
}

void NcclDevice::EndTurnPatience(uint64_t turn) {
  Run([&](GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // A later turn may be in progress.
    if (!is_turn_wanted_ || turn != last_turn_) return;
    is_turn_long_ = true;
    std::vector<TransferKey> keys;
    for (const auto& [key, transfer] : transfers_) keys.push_back(key);
    const absl::Status why = TurnRefusal();
    for (const TransferKey& key : keys) endpoint_.Cancel(key, why, actions);
  });
}

absl::Status NcclDevice::TurnRefusal() const {
  if (!is_turn_long_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("a program's own NCCL work has been under way on gpu:", ordinal_, " for ",
                   ShortDuration(SteadyClock().Now() - turn_since_)));
}

}  // namespace ferry

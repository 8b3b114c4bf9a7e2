// SPDX-License-Identifier: Apache-2.0
// TransferPause: the reasons why a GPU's keyed transfers agree on nothing new.
#include "transport/nccl/transfer_pause.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/text.h"

namespace ferry {

std::optional<uint64_t> TransferPause::BeginTurn(absl::Time now) {
  if (std::exchange(is_turn_wanted_, true)) return std::nullopt;
  turn_since_ = now;
  return ++last_turn_;
}

void TransferPause::EndTurn() {
  is_turn_wanted_ = false;
  is_turn_long_ = false;
}

bool TransferPause::ExpireTurn(uint64_t turn) {
  if (!is_turn_wanted_ || turn != last_turn_) return false;
  is_turn_long_ = true;
  return true;
}

absl::Status TransferPause::Refusal(absl::Time now) const {
  if (!is_turn_long_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("a program's own NCCL work has been under way on gpu:", ordinal_, " for ",
                   ShortDuration(now - turn_since_)));
}

}  // namespace ferry

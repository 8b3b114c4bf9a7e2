// SPDX-License-Identifier: Apache-2.0
// TransferPause: the reasons why a GPU's keyed transfers agree on nothing new.
#ifndef FERRY_TRANSPORT_NCCL_TRANSFER_PAUSE_H_
#define FERRY_TRANSPORT_NCCL_TRANSFER_PAUSE_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ferry {

// There are two reasons: the GPUs are to become quiet, and a program has, or wants, a turn for NCCL
// work of its own (NcclArbiter). That work may itself wait for a tensor that a transfer brings to
// another rank, and then it never ends unless the transfer takes another path; so transfers wait
// only for a limited time for the end of a turn. Not thread-safe.
class TransferPause final {
 public:
  static constexpr absl::Duration kTurnTimeout = absl::Seconds(1);

  //   ordinal: the GPU's, for messages.
  explicit TransferPause(int ordinal) : ordinal_(ordinal) {}

  void SetQuietWanted(bool is_wanted) { is_quiet_wanted_ = is_wanted; }
  // Returns the number of the turn, for ExpireTurn after kTurnTimeout; nothing: it began before.
  std::optional<uint64_t> BeginTurn(absl::Time now);
  void EndTurn();
  // Returns false if that turn is over; a later one may be in progress.
  bool ExpireTurn(uint64_t turn);

  bool is_paused() const { return is_quiet_wanted_ || is_turn_wanted_; }
  bool is_turn_wanted() const { return is_turn_wanted_; }
  // Why a transfer must not wait for the end of the program's turn; OK: it may.
  absl::Status Refusal(absl::Time now) const;

 private:
  const int ordinal_;
  bool is_quiet_wanted_ = false;
  // The program's turn: its number, since when, and whether it has exceeded the timeout.
  uint64_t last_turn_ = 0;
  bool is_turn_wanted_ = false;
  bool is_turn_long_ = false;
  absl::Time turn_since_ = absl::InfinitePast();
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_TRANSFER_PAUSE_H_

// SPDX-License-Identifier: Apache-2.0
// ReplayChannel: the messages between cuda_replay and the processes in which it replays records.
#ifndef FERRY_BENCHMARKS_GPU_CALLS_REPLAY_CHANNEL_H_
#define FERRY_BENCHMARKS_GPU_CALLS_REPLAY_CHANNEL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "benchmarks/gpu/calls/live_call.h"

namespace ferry::calls {

struct ReplayMessage {
  enum Type : int32_t { kPlay, kPlayed, kLeave, kFailed };

  Type type = kPlay;
  int64_t index = 0;               // of the call in its record
  std::optional<Foreign> foreign;  // of kPlay: what it opens; of kPlayed: what it exported
  bool is_error = false;
  std::string differences;  // one per line
  std::string skipped;      // of kFailed: why
};

// Sends a descriptor as a copy. Errors: UNAVAILABLE if the other side is gone.
absl::Status SendMessage(int socket, const ReplayMessage& message);
// A received descriptor is the caller's to close. Errors: UNAVAILABLE if the other side is gone,
// RESOURCE_EXHAUSTED if there was no room for the message's descriptor.
absl::StatusOr<ReplayMessage> ReceiveMessage(int socket);

}  // namespace ferry::calls

#endif  // FERRY_BENCHMARKS_GPU_CALLS_REPLAY_CHANNEL_H_

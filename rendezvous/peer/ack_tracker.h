// SPDX-License-Identifier: Apache-2.0
// AckTracker: which of a producer's answers are known to have been received.
#ifndef FERRY_RENDEZVOUS_PEER_ACK_TRACKER_H_
#define FERRY_RENDEZVOUS_PEER_ACK_TRACKER_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"

namespace ferry {

// Counts the answers on a control channel that the consumer may reject. A control channel
// preserves order: a peer that has answered a PING has received everything sent before it. For the
// latest few steps the number of their last answer is known; for others only that it is no larger
// than the largest forgotten one. Not thread-safe.
class AckTracker final {
 public:
  struct Flush {
    // Number of answers whose receipt is to be confirmed. 0: nothing to confirm.
    uint64_t number = 0;
    // A PING with that number must be sent; call OnPingFailed if it cannot be.
    bool needs_ping = false;
    // True if waiting is worthwhile: after a timeout, the peer is not waited for again until it
    // answers something.
    bool is_awaited = false;
  };

  // Counts an answer sent in that step.
  void Count(int64_t step_id);
  // Starts to find out when all answers of that step so far have been received.
  Flush Start(int64_t step_id);
  // True if that many answers were received, or will never be confirmed since their PING could not
  // be sent.
  bool IsOver(uint64_t number) const { return acknowledged_ >= number || has_ping_failed_; }
  // The PING with that number could not be sent.
  void OnPingFailed(uint64_t number);
  // Waiting for that number has timed out.
  void GiveUp(uint64_t number);
  //   Errors: INVALID_ARGUMENT for a PONG without a PING.
  absl::Status OnPong(uint64_t number);

 private:
  struct Recent {
    int64_t step_id = 0;
    // The total when the step's last answer was counted.
    uint64_t answered = 0;
  };

  uint64_t answered_ = 0;
  // The number of the last PING, and the largest number answered.
  uint64_t pinged_ = 0;
  uint64_t acknowledged_ = 0;
  // The last PING could not be sent.
  bool has_ping_failed_ = false;
  bool has_timed_out_ = false;
  std::array<Recent, 8> recent_;
  // Index of the latest entry.
  size_t latest_ = 0;
  // The largest number of the steps no longer in the list.
  uint64_t forgotten_ = 0;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_ACK_TRACKER_H_

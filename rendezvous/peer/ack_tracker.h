// SPDX-License-Identifier: Apache-2.0
// AckTracker: which of the answers that a producer has sent are known to have been heard.
#ifndef FERRY_RENDEZVOUS_PEER_ACK_TRACKER_H_
#define FERRY_RENDEZVOUS_PEER_ACK_TRACKER_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"

namespace ferry {

// Counts the answers through a control channel that their asker may decline. A control channel
// keeps its order: whoever has answered a PING has heard all that went before it. Of the latest few
// steps it is known which answer was their last; of others only that theirs are no younger than any
// that was forgotten. Not thread-safe.
class AckTracker final {
 public:
  struct Flush {
    // What is asked for: whether so many answers have been heard. 0: there is nothing to be heard.
    uint64_t number = 0;
    // A PING of that number is to be sent; OnLost if it cannot be.
    bool needs_ping = false;
    // Whether it is worth while to wait for it: whoever was waited for in vain is not waited for
    // again until something is heard of him.
    bool is_awaited = false;
  };

  // An answer in that step has been sent.
  void Count(int64_t step_id);
  // Begins to find out when all answers in that step so far have been heard.
  Flush Start(int64_t step_id);
  // So many have been heard, or will not be said to be: the PING for them could not be sent.
  bool IsOver(uint64_t number) const { return heard_ >= number || is_lost_; }
  // The PING of that number could not be sent.
  void OnLost(uint64_t number);
  // It was waited for long enough.
  void GiveUp(uint64_t number);
  //   Errors: INVALID_ARGUMENT for an answer to what was not asked.
  absl::Status OnPong(uint64_t number);

 private:
  struct Recent {
    int64_t step_id = 0;
    // How many there were when its last was counted.
    uint64_t answered = 0;
  };

  uint64_t answered_ = 0;
  // The number of the last PING, and the largest that was answered.
  uint64_t asked_ = 0;
  uint64_t heard_ = 0;
  // The last PING could not be sent.
  bool is_lost_ = false;
  bool is_silent_ = false;
  std::array<Recent, 8> recent_;
  // The one that was counted last.
  size_t latest_ = 0;
  // Of steps that are not among them any more, the largest.
  uint64_t forgotten_ = 0;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_ACK_TRACKER_H_

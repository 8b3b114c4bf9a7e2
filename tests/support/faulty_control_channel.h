// SPDX-License-Identifier: Apache-2.0
// FaultyWire: a control channel without a network between two handlers; a seed selects the faults
// of its frames.
#ifndef FERRY_TESTS_SUPPORT_FAULTY_CONTROL_CHANNEL_H_
#define FERRY_TESTS_SUPPORT_FAULTY_CONTROL_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "transport/control/control_channel.h"

namespace ferry {

// How often, out of a thousand frames.
struct WireFaults {
  // Some bytes at its end are missing.
  int truncate = 0;
  // A bit is another one.
  int corrupt = 0;
  // Only behind the head of a transfer descriptor: the elements of a tensor, or a transport's own
  // bytes.
  int corrupt_body = 0;
  int duplicate = 0;
  int drop = 0;
  // It is swapped with the next one.
  int reorder = 0;
  // The wire breaks instead.
  int close = 0;
  // Send returns RESOURCE_EXHAUSTED.
  int refuse = 0;
  // Not a fault: it arrives together with some of those behind it.
  int together = 100;
  // Not out of a thousand: this many frames that the other side has not read count as a backlog.
  size_t backlog_frames = 1'000'000;
};

// Frames wait until Step, which picks a side by chance: so they are late by any time. A plain
// object: one thread. Control channels may outlive it.
class FaultyWire final {
 public:
  FaultyWire(uint64_t seed, WireFaults faults);
  // Like Break.
  ~FaultyWire();

  FaultyWire(const FaultyWire&) = delete;
  FaultyWire& operator=(const FaultyWire&) = delete;

  // Calls OnOpen of both, now or each in a Step. `a` sees `b_peer`, and the other way round.
  void Open(std::shared_ptr<ControlHandler> a, PeerId a_peer, std::shared_ptr<ControlHandler> b,
            PeerId b_peer, bool is_late = false);
  // Delivers one frame, or several together, or one side's end. False: there is nothing left to do.
  bool Step();
  // Both sides are notified at once that the other has ended; frames in flight are lost.
  void Break();
  // The process of `a`, or of `b`, is killed: of the frames that it has sent some are lost, of
  // which the last are.
  void Kill(bool is_a);
  // The first error of a handler.
  const absl::Status& violation() const { return violation_; }

  // Frames that did not arrive as they were sent.
  int damaged() const { return damaged_; }
  int duplicated() const { return duplicated_; }
  bool is_over() const;
  // At least one side ends it, or has ended.
  bool is_ending() const;
  // Frames of that type that were sent, on either side.
  int64_t sent(uint16_t type) const;
  // Those of them sent while a frame of the other type was handled.
  int64_t sent_while_handling(uint16_t type, uint16_t handled) const;

 private:
  class End;

  bool Chance(int out_of_thousand);
  // The next event for `end`, with its faults.
  void Deliver(End& end);
  // Frames without descriptors.
  absl::Status DeliverTogether(End& end, const std::vector<struct WireFrame>& frames);
  void Damage(std::deque<struct WireFrame>& frames);

  std::mt19937_64 random_;
  const WireFaults faults_;
  std::shared_ptr<End> ends_[2];
  int damaged_ = 0;
  int duplicated_ = 0;
  absl::Status violation_;
  // The type of the frame that is being handled; 0: none.
  uint16_t handled_ = 0;
  // By type, and by the type of the frame that was being handled.
  std::map<std::pair<uint16_t, uint16_t>, int64_t> sent_;
};

}  // namespace ferry

#endif  // FERRY_TESTS_SUPPORT_FAULTY_CONTROL_CHANNEL_H_

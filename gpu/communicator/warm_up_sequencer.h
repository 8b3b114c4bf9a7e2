// SPDX-License-Identifier: Apache-2.0
// WarmUpSequencer: the order in which a device takes part in warm-ups of communicators.
#ifndef FERRY_GPU_COMMUNICATOR_WARM_UP_SEQUENCER_H_
#define FERRY_GPU_COMMUNICATOR_WARM_UP_SEQUENCER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/synchronization/mutex.h"

namespace ferry {

// NCCL's work on a device is serialized, and each warm-up waits for its other ranks: threads that
// create communicators of the same devices in different orders could deadlock. So all devices run
// warm-ups in one order, on which the ranks of each agree:
//   1  a rank that has initialized a communicator joins its device's queue, and gets a number
//      larger than any that the device has seen; it publishes the number to the other ranks
//   2  once all ranks have published, the largest of their numbers is that of the warm-up, on all
//   3  the first in a queue begins if its number is agreed, and leaves the queue when it has ended
// An agreed number is no smaller than the proposed one, so a later warm-up overtakes none; and the
// order of (number, communicator) is the same everywhere. The smallest of all is, or will be, first
// in all its queues: all its ranks begin, and it ends. One per device of a process; thread-safe.
class WarmUpSequencer final : public std::enable_shared_from_this<WarmUpSequencer> {
 public:
  // Tests disable rules to show what each prevents.
  struct Rules {
    // The number is the one agreed by all ranks, and not this device's own.
    bool agrees = true;
    // Warm-ups that join after one has been agreed are ordered after it.
    bool remembers_agreed = true;
  };

  explicit WarmUpSequencer(const Rules& rules) : rules_(rules) {}
  WarmUpSequencer() : WarmUpSequencer(Rules{}) {}

  // Leaves the queue when destroyed.
  class Place final {
   public:
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    // This device's proposed number. Never 0.
    uint64_t number() const { return number_; }
    // Sets the agreed number, the largest of all ranks'. Called once.
    void Agree(uint64_t agreed);
    bool is_first() const;
    // The head of the queue, for messages; "nothing" if it is this one.
    std::string DescribeFirst() const;

   private:
    friend class WarmUpSequencer;
    // The smallest goes first. The last field is unique within this queue: no two places are equal.
    using Order = std::tuple<uint64_t, std::string, uint64_t>;
    Place(std::shared_ptr<WarmUpSequencer> queue, Order order)
        : queue_(std::move(queue)), number_(std::get<0>(order)), order_(std::move(order)) {}

    const std::shared_ptr<WarmUpSequencer> queue_;
    const uint64_t number_;
    Order order_;
  };

  //   name: the communicator and its generation; the same on all ranks, and unique.
  //   what: the same, human-readable.
  std::unique_ptr<Place> Join(std::string name, std::string what) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Waiting {
    std::string what;
    bool is_agreed = false;
  };

  const Rules rules_;

  mutable absl::Mutex mu_;
  // The largest number that this device has proposed or seen.
  uint64_t largest_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t count_ ABSL_GUARDED_BY(mu_) = 0;
  absl::btree_map<Place::Order, Waiting> queue_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_GPU_COMMUNICATOR_WARM_UP_SEQUENCER_H_

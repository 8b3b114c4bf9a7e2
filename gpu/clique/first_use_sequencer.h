// SPDX-License-Identifier: Apache-2.0
// FirstUseSequencer: the order in which a device takes part in first exchanges of communicators.
#ifndef FERRY_GPU_CLIQUE_FIRST_USE_SEQUENCER_H_
#define FERRY_GPU_CLIQUE_FIRST_USE_SEQUENCER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/synchronization/mutex.h"

namespace ferry {

// NCCL's work on a device runs one after the other, and each first exchange waits for its other
// ranks: threads that make communicators of the same devices in different orders would wait for
// each other in a circle. So all devices have them in one order, on which the ranks of each agree:
//   1  who has initialised a communicator joins its device's line, and is given a number larger
//      than any that the device has heard of; it tells the other ranks
//   2  once all ranks have told, the largest of their numbers is that of the exchange, on all
//   3  the first in a line begins if its number is agreed on, and leaves when it is over
// An agreed number is no smaller than the one before, so nobody is overtaken by a later one; and
// the order of (number, clique) is the same everywhere. The smallest of all is, or will be, first
// in all its lines: all its ranks begin, and it ends. One for a device in a process; thread-safe.
class FirstUseSequencer final : public std::enable_shared_from_this<FirstUseSequencer> {
 public:
  // What a test leaves out, to see what it prevents.
  struct Rules {
    // The number is one that all ranks have agreed on, and not this device's own.
    bool agrees = true;
    // What joins after an exchange has been agreed on comes after it.
    bool remembers_agreed = true;
  };

  explicit FirstUseSequencer(const Rules& rules) : rules_(rules) {}
  FirstUseSequencer() : FirstUseSequencer(Rules{}) {}

  // Leaves the line when it goes.
  class Place final {
   public:
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    // What this device says. Never 0.
    uint64_t number() const { return number_; }
    // All ranks have told; `agreed` is the largest. Once.
    void Agree(uint64_t agreed);
    bool is_first() const;
    // What is at the head of the line, for messages; "nothing" if this is.
    std::string WhatIsFirst() const;

   private:
    friend class FirstUseSequencer;
    // Smaller goes first. The last is of this line alone: no two places are the same.
    using Order = std::tuple<uint64_t, std::string, uint64_t>;
    Place(std::shared_ptr<FirstUseSequencer> line, Order order)
        : line_(std::move(line)), number_(std::get<0>(order)), order_(std::move(order)) {}

    const std::shared_ptr<FirstUseSequencer> line_;
    const uint64_t number_;
    Order order_;
  };

  //   name: of the clique in its generation, the same on all ranks and of no other.
  //   what: the same for people.
  std::unique_ptr<Place> Join(std::string name, std::string what) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Waiting {
    std::string what;
    bool is_agreed = false;
  };

  const Rules rules_;

  mutable absl::Mutex mu_;
  // The largest number that this device has said or heard of.
  uint64_t largest_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t count_ ABSL_GUARDED_BY(mu_) = 0;
  absl::btree_map<Place::Order, Waiting> line_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_GPU_CLIQUE_FIRST_USE_SEQUENCER_H_

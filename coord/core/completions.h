// SPDX-License-Identifier: Apache-2.0
// Completions: callbacks that are due, queued until no lock is held; and the wait id layout.
#ifndef FERRY_COORD_CORE_COMPLETIONS_H_
#define FERRY_COORD_CORE_COMPLETIONS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

#include "coord/core/types.h"

namespace ferry::coord {

using Completion = absl::AnyInvocable<void() &&>;
// Gets the result of a call that has no other.
using StatusCallback = absl::AnyInvocable<void(absl::Status) &&>;

// Not thread-safe: part of a Coordinator. Every pending call ends by exactly one Add.
class Completions final {
 public:
  void Add(Completion completion) { ready_.push_back(std::move(completion)); }
  // Queues the call `done(value)`.
  template <typename Done, typename Value>
  void Post(Done done, Value value) {
    Add([done = std::move(done), value = std::move(value)]() mutable {
      std::move(done)(std::move(value));
    });
  }
  // Answers a call that does not wait.
  WaitId Answer(StatusCallback done, absl::Status status) {
    Post(std::move(done), std::move(status));
    return kNoWait;
  }
  std::vector<Completion> Take() { return std::exchange(ready_, {}); }
  bool empty() const { return ready_.empty(); }

 private:
  std::vector<Completion> ready_;
};

// The kind of a wait; stored in the lowest bits of its WaitId, so that Cancel finds its table.
enum class WaitKind : uint64_t {
  kGet = 1,
  kBarrier,
  kPoll,
  kWatchTasks,
  kAlive,
  kEnumerate,
  kFailJoining,
  kWatchJoining,
  // A wait in a Lighthouse; a Coordinator has none.
  kQuorum
};

class WaitIds final {
 public:
  WaitId Next(WaitKind kind) { return WaitId(++last_ << 4 | static_cast<uint64_t>(kind)); }
  static WaitKind Kind(WaitId wait) { return static_cast<WaitKind>(wait.value() & 15); }

 private:
  uint64_t last_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_COMPLETIONS_H_

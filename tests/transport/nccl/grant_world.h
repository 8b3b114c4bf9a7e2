// SPDX-License-Identifier: Apache-2.0
// A world of grant endpoints: control channels that delay, streams as NCCL's, failures; and a
// ledger of it all.
#ifndef FERRY_TESTS_TRANSPORT_NCCL_GRANT_WORLD_H_
#define FERRY_TESTS_TRANSPORT_NCCL_GRANT_WORLD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/inlined_vector.h"

#include "base/clock.h"
#include "tests/transport/nccl/grant_steps.h"
#include "transport/nccl/batch_agreement_endpoint.h"

namespace ferry::grant_test {

// Shared between copies until one of them edits it.
template <typename T>
class Shared final {
 public:
  Shared() : value_(std::make_shared<T>()) {}
  const T& operator*() const { return *value_; }
  const T* operator->() const { return value_.get(); }
  T& Edit() {
    if (value_.use_count() > 1) value_ = std::make_shared<T>(*value_);
    return *value_;
  }

 private:
  std::shared_ptr<T> value_;
};

// Executions that may be skipped. The reason for each is given where it is skipped.
struct Reductions {
  bool indifferent_events = true;
  bool equal_transfers = true;
  bool forgets_ends = true;
};

struct WorldOptions {
  int device_count = 3;
  // Each is matched at some point, and its transfer descriptor travels to the destination.
  std::vector<BatchAgreementTransfer> transfers;
  // One communicator of all devices, or one of each pair.
  bool has_pair_communicators = false;
  // How often each may happen, at any point.
  int deaths = 0;
  int errors = 0;
  int cancels = 0;
  // A device cannot make a communicator that another one may have open by then; the other is
  // notified if `hears_of_failed_opens`. With any, the first communicators are opened in any order.
  int failed_opens = 0;
  bool hears_of_failed_opens = true;
  // Devices that agree on nothing new until nothing runs on them.
  int pauses = 0;
  // These devices (a bit each) pause at some point, and continue only when all live ones have been
  // quiet at the same time: as for a collective of the program's, which none can end alone.
  uint32_t collective = 0;
  // Transfers that both sides have got back ABORTED are matched once more.
  bool runs_again = false;
  // The reductions of the search; a test compares the results with and without them.
  Reductions reductions;
  BatchAgreementOptions endpoint;
};

struct Event {
  enum class Kind {
    kMatch,         // transfer `index`
    kDeliver,       // the next on the control channel from `index` to `other`
    kComplete,      // the first batch of the stream of device `index`
    kFail,          // that batch, with an error; `choice`: its peer gets the data all the same
    kThrowOut,      // the first batch of the stream of `index` whose communicator was aborted
    kThrowOutLate,  // the same, but it was through already
    kDie,           // device `index`; `choice` as above
    kNotice,        // device `index` is notified that `other` is dead
    kOpen,          // device `index` opens communicator `other`
    kGiveUp,        // device `index` cannot, and gives it up
    kHearGivenUp,   // device `index` is notified that communicator `other` is given up
    kCancel,        // transfer `index`; `choice`: at the destination
    kPause,         // device `index`
    kResume,        // device `index`, on which nothing runs
    kJoin,          // device `index` pauses for the collective
    kMeet,          // all are quiet, and the collective runs and ends
    kLeave,         // device `index` continues after it
  };
  Kind kind = Kind::kMatch;
  int index = 0;
  int other = 0;
  bool choice = false;
};

// No invariant depends on these.
inline bool IsMischief(const Event& event) {
  return event.kind == Event::Kind::kFail || event.kind == Event::Kind::kDie ||
         event.kind == Event::Kind::kCancel || event.kind == Event::Kind::kPause ||
         event.kind == Event::Kind::kGiveUp;
}

// A value. Nothing in it moves but by Apply.
class World final {
 public:
  World(const WorldOptions& options, const Clock& clock);

  std::vector<Event> Enabled() const;
  void Apply(const Event& event);
  // The event that Apply would execute next, as text.
  std::string Describe(const Event& event) const;

  // A violated invariant: a mismatch, a transfer that ends twice, ...; empty: none.
  const std::string& violation() const { return violation_; }
  // REQUIRES: nothing is enabled. Returns transfers that are not done, or have different outcomes.
  std::string CheckEnd() const;
  // How each transfer has ended, in one line.
  std::string DescribeEnd() const;
  size_t Hash() const;

  // How often events happened.
  int64_t launches() const { return launches_; }
  int64_t finished_ok() const { return finished_ok_; }
  int64_t finished_badly() const { return finished_badly_; }
  const std::vector<BatchAgreementTransfer>& transfers() const { return *transfers_; }
  const BatchAgreementEndpoint& endpoint(int device) const {
    return devices_[device].known->endpoint;
  }
  bool is_alive(int device) const { return devices_[device].is_alive; }

 private:
  // State that all worlds of a search share.
  struct Ground {
    explicit Ground(const WorldOptions& of) : options(of), steps(of.device_count) {}

    WorldOptions options;
    GrantSteps steps;
  };
  // A transfer descriptor, a message, or a transfer descriptor that carries a message.
  struct Item {
    int descriptor = -1;
    const BatchAgreementMessage* message = nullptr;
    size_t hash = 0;
  };
  using ControlChannel = absl::InlinedVector<Item, 2>;
  struct Running {
    const AgreedBatch* batch = nullptr;
    size_t hash = 0;
    int communicator = 0;
    // The peer is through with it; the data is here, or never will be.
    bool has_data = false;
    bool is_stuck = false;
  };
  struct Device {
    const KnownEndpoint* known = nullptr;
    bool is_alive = true;
    bool is_paused = false;
    bool has_joined = false;
    bool has_left = false;
    uint32_t knows_dead = 0;
    absl::InlinedVector<Running, 2> stream;
    // Per communicator of the world.
    uint64_t opened = 0;
    uint64_t flagged = 0;
    uint64_t aborted = 0;
    uint64_t freed = 0;
  };
  struct Communicator {
    CommunicatorName name;
    std::vector<int> devices;
    bool has_successor = false;
    bool is_given_up = false;
  };
  struct Outcome {
    bool is_matched = false;
    bool is_run_again = false;
    bool is_cancelled = false;
    // At the source and the destination.
    bool is_added[2] = {false, false};
    std::optional<absl::StatusCode> ended[2];
  };

  enum class Input {
    kAdd,
    kHear,
    kCompleted,
    kCancel,
    kPeerFailed,
    kOpen,
    kBreak,
    kPause,
    kResume,
  };
  // The endpoint's actions for `call`; `what` distinguishes it from other inputs.
  template <typename Call, typename... What>
  const GrantStep& Take(int device, Call call, Input input, const What&... what) const;
  // The same, done, for a call that cannot be refused.
  template <typename Call, typename... What>
  void Happen(int device, Call call, Input input, const What&... what);
  const GrantStep& Hear(const Item& item, int device) const;
  void Match(int transfer);
  void Perform(int device, const GrantStep& step, size_t first_action = 0);
  void OnFinish(int device, const FinishTransfer& finish);
  void Return(int device, size_t position, bool is_ok, bool data_arrives);
  void Die(int device, bool data_arrives);
  void Hold(int device);
  void GoOn(int device);
  void SucceedCommunicators();
  int IndexOf(const CommunicatorName& name) const;
  std::optional<size_t> FirstAborted(int device) const;
  // The first batch of the device's stream is also the first of the peer's, or the data is here.
  bool IsRunning(int device) const;
  bool CanMeet() const;
  std::optional<Event> IndifferentEvent() const;
  bool IsIndifferent(const Item& item, int from, int to) const;
  bool IsOfNoUse(const Communicator& communicator) const;
  bool HasEqualBefore(size_t transfer) const;
  void AddOutcome(size_t index, size_t& hash) const;
  void Check(int device);
  void Violate(std::string what);
  ControlChannel& channel(int from, int to) {
    return channels_[static_cast<size_t>(from) * devices_.size() + static_cast<size_t>(to)];
  }
  const ControlChannel& channel(int from, int to) const {
    return channels_[static_cast<size_t>(from) * devices_.size() + static_cast<size_t>(to)];
  }

  std::shared_ptr<Ground> ground_;
  Shared<std::vector<BatchAgreementTransfer>> transfers_;
  absl::InlinedVector<Outcome, 4> outcomes_;
  absl::InlinedVector<Device, 3> devices_;
  absl::InlinedVector<ControlChannel, 9> channels_;
  Shared<std::vector<Communicator>> communicators_;
  int deaths_left_;
  int errors_left_;
  int cancels_left_;
  int failed_opens_left_;
  int pauses_left_;
  bool has_met_ = false;
  // Transfers need not end well any more.
  bool has_failed_ = false;
  std::string violation_;
  int64_t launches_ = 0;
  int64_t finished_ok_ = 0;
  int64_t finished_badly_ = 0;
};

struct SearchResult {
  // The shortest trace; empty: none.
  std::string violation;
  std::vector<std::string> trace;
  // The final worlds, and how many there are; if there is no violation.
  std::map<std::string, int64_t> ends;
  absl::btree_set<size_t> end_states;
  int64_t states = 0;
  bool is_complete = false;
};

// Visits every state that can be reached, up to the first violation or `max_states`.
SearchResult Search(const WorldOptions& options, int64_t max_states);

}  // namespace ferry::grant_test

#endif  // FERRY_TESTS_TRANSPORT_NCCL_GRANT_WORLD_H_

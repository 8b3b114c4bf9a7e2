// SPDX-License-Identifier: Apache-2.0
// A world of grant endpoints: lanes that delay, streams as NCCL's, failures; and a ledger of it
// all.
#ifndef FERRY_TESTS_TRANSPORT_NCCL_GRANT_WORLD_H_
#define FERRY_TESTS_TRANSPORT_NCCL_GRANT_WORLD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"

#include "base/clock.h"
#include "transport/nccl/grant_endpoint.h"

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

struct WorldOptions {
  int device_count = 3;
  // Each is matched at some point, and its ticket travels to the destination.
  std::vector<GrantTransfer> transfers;
  // One communicator of all devices, or one of each pair.
  bool has_pair_communicators = false;
  // How often each may happen, at any point.
  int deaths = 0;
  int errors = 0;
  int cancels = 0;
  // A device cannot make a communicator that another one may have open by then; who has it hears of
  // that, if `hears_of_failed_opens`. With any, the first communicators are opened in any order.
  int failed_opens = 0;
  bool hears_of_failed_opens = true;
  // Devices that agree on nothing new until nothing runs on them.
  int pauses = 0;
  // These devices (a bit each) pause at some point, and go on only when all of those that live have
  // been quiet at the same time: as for a collective of the program's, which none can end alone.
  uint32_t collective = 0;
  // What both sides have got back ABORTED is matched once more.
  bool runs_again = false;
  GrantOptions endpoint;
};

struct Event {
  enum class Kind {
    kMatch,         // transfer `index`
    kDeliver,       // the next on the lane from `index` to `other`
    kComplete,      // the first batch of the stream of device `index`
    kFail,          // that batch, with an error; `choice`: its peer gets the data all the same
    kThrowOut,      // the first batch of the stream of `index` whose communicator was aborted
    kThrowOutLate,  // the same, but it was through already
    kDie,           // device `index`; `choice` as above
    kNotice,        // device `index` hears that `other` is dead
    kOpen,          // device `index` opens communicator `other`
    kGiveUp,        // device `index` cannot, and gives it up
    kHearGivenUp,   // device `index` hears that communicator `other` is given up
    kCancel,        // transfer `index`; `choice`: at the destination
    kPause,         // device `index`
    kResume,        // device `index`, on which nothing runs
    kJoin,          // device `index` pauses for the collective
    kMeet,          // all are quiet, and the collective runs and ends
    kLeave,         // device `index` goes on after it
  };
  Kind kind = Kind::kMatch;
  int index = 0;
  int other = 0;
  bool choice = false;
};

// Nobody may count on these.
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
  // As Apply would do next, for people.
  std::string Describe(const Event& event) const;

  // What must not be: a mismatch, a transfer that ends twice, ...; empty: nothing is wrong.
  const std::string& violation() const { return violation_; }
  // REQUIRES: nothing is enabled. What has been left undone, or has come out differently.
  std::string CheckEnd() const;
  size_t Hash() const;

  // How often things happened.
  int64_t launches() const { return launches_; }
  int64_t finished_ok() const { return finished_ok_; }
  int64_t finished_badly() const { return finished_badly_; }
  const std::vector<GrantTransfer>& transfers() const { return *transfers_; }
  const GrantEndpoint& endpoint(int device) const { return *devices_[device]->endpoint; }
  bool is_alive(int device) const { return devices_[device]->is_alive; }

 private:
  struct Item {
    std::optional<GrantTransfer> ticket;
    std::shared_ptr<const GrantMessage> message;
    size_t hash = 0;
  };
  using Lane = std::vector<Item>;
  struct Running {
    std::shared_ptr<const GrantBatch> batch;
    size_t hash = 0;
    // The peer is through with it; the data is here, or never will be.
    bool has_data = false;
    bool is_stuck = false;
  };
  struct Device {
    std::shared_ptr<const GrantEndpoint> endpoint;
    size_t hash = 0;
    bool is_alive = true;
    bool is_paused = false;
    bool has_joined = false;
    bool has_left = false;
    uint32_t knows_dead = 0;
    std::vector<Running> stream;
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

  template <typename Call>
  void At(int device, Call call);
  void Perform(int device, const GrantActions& actions);
  void PerformMatch(int transfer, GrantActions& actions);
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
  std::optional<Event> IndifferentDelivery() const;
  bool IsIndifferent(const Item& item, int from, int to) const;
  void Check(int device);
  void Violate(std::string what);
  const Lane& lane(int from, int to) const;
  void Push(int from, int to, Item item);
  Item Pop(int from, int to);
  std::shared_ptr<const Lane>& LaneAt(int from, int to) {
    return lanes_[static_cast<size_t>(from) * devices_.size() + static_cast<size_t>(to)];
  }

  std::shared_ptr<const WorldOptions> options_;
  Shared<std::vector<GrantTransfer>> transfers_;
  absl::InlinedVector<Outcome, 4> outcomes_;
  absl::InlinedVector<Shared<Device>, 4> devices_;
  // Null: empty.
  absl::InlinedVector<std::shared_ptr<const Lane>, 9> lanes_;
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
  // Of the shortest trace; empty: none.
  std::string violation;
  std::vector<std::string> trace;
  int64_t states = 0;
  bool is_complete = false;
};

// Visits every state that can be reached, nearest first, up to the first violation or `max_states`.
SearchResult Search(const WorldOptions& options, int64_t max_states);

}  // namespace ferry::grant_test

#endif  // FERRY_TESTS_TRANSPORT_NCCL_GRANT_WORLD_H_

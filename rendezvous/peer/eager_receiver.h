// SPDX-License-Identifier: Apache-2.0
// EagerReceiver: decides what a consumer requests from one producer, and what it waits for.
#ifndef FERRY_RENDEZVOUS_PEER_EAGER_RECEIVER_H_
#define FERRY_RENDEZVOUS_PEER_EAGER_RECEIVER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/table_sizes.h"
#include "rendezvous/key.h"
#include "rendezvous/peer/eager_protocol.h"
#include "rendezvous/peer/eager_rules.h"

namespace ferry {

// The consumer's part of the eager protocol on one control channel (docs/rendezvous.md). It sends
// nothing itself: the caller has the table of values that have arrived and of receives that wait,
// and the control channel, and sends what the methods return, in order, before the next call. Not
// thread-safe; no locks, no clock, no I/O. Copyable, for the model checker
// (tests/rendezvous/eager_search_test.cc).
class EagerReceiver final {
 public:
  enum class Route {
    // In the caller's table, for a value that comes by itself.
    kWait,
    // REQUEST, and then OnRequestSent.
    kRequest,
    // The step is over at the producer.
    kFail,
  };
  struct Decision {
    Route route = Route::kWait;
    // For kRequest: the name's number, 0: send the text.
    uint32_t name = 0;
    // For kWait: send a WATCH for the step, then OnWatchEnded when its ERROR comes.
    bool needs_watch = false;
    // This was the first call for the step: call OnStepEnd when it is over.
    bool is_new_step = false;
    // For kFail.
    absl::Status status;
  };
  // A value that has arrived; the caller keeps it with the value until it is taken or dropped.
  struct Arrival {
    int64_t step_id = 0;
    uint64_t sequence = 0;
    size_t bytes = 0;
    // As Decision::is_new_step.
    bool is_new_step = false;
  };
  // To be sent, in this order.
  struct Output {
    EagerRanges acks;
    std::vector<EagerScope> pushes;
    bool empty() const { return acks.empty() && pushes.empty(); }
  };
  struct StepEnd {
    // The WATCH is to be cancelled, like a request.
    bool has_watch = false;
    // In this order, then STEP_REFUSED if that is needed.
    EagerRanges acks;
    bool is_refused = false;
    // PUSH is to be sent for the step.
    bool is_pushed = false;
  };

  // `limits`: what this consumer has announced. `first`: as the sender's.
  explicit EagerReceiver(const EagerLimits& limits, const EagerRules& rules = {},
                         uint64_t first = 0);

  // True if there is state for the step.
  bool has_step(int64_t step_id) const { return steps_.contains(step_id); }
  // Requests that are being sent, also those that began before the control channel was opened:
  // adds to their number.
  void AddRequestsBeingSent(uint64_t count) { requests_being_sent_ += count; }
  uint64_t requests_being_sent() const { return requests_being_sent_; }
  bool has_acks() const { return !acks_.empty(); }

  // The control channel is open, and requests made before have been sent.
  void Start();

  // A posted receive without an unexpected value that it would match. If it returns
  // kRequest, receives that wait for the same step and key are to be requested before.
  Decision OnReceive(int64_t step_id, const RendezvousKey& key);
  // True if OnReceive would return kWait for each key of at most that many bytes, which then counts
  // as called: `decision` is its result.
  bool MayWait(int64_t step_id, size_t key_bytes, Decision& decision);
  // A step with values that have arrived, which the program has not opened. True: send a WATCH, as
  // with Decision::needs_watch.
  bool StartWatch(int64_t step_id);
  // That REQUEST has been sent, or will not be.
  void OnRequestSent() { --requests_being_sent_; }
  // The same for a receive that waits and whose scope has been pulled. Adds a request that is being
  // sent.
  uint32_t Convert(const RendezvousKey& key);
  // The number that the REQUEST of a receive whose scope has been pulled may have; 0: the text.
  // Valid until OnRequestSent.
  uint32_t NumberForRequest(const RendezvousKey& key) const;
  // The producer's ERROR for the WATCH. Receives of that producer and step that wait end with it.
  void OnWatchEnded(int64_t step_id, const absl::Status& status);

  // An EAGER frame, or several that EagerFrameReader reads as one, whose sequence numbers it has
  // checked; for each record of them then OnRecord.
  //   Errors, for both: INVALID_ARGUMENT: a violation.
  absl::Status OnEager(const EagerHead& head);
  // Returns the key: of the definition, whose text is parsed, or of an earlier one.
  //   known: the key with the record's text, so that it need not be parsed; none: it is not known.
  absl::StatusOr<RendezvousKey> OnRecord(const EagerRecord& record,
                                         std::optional<RendezvousKey> known = std::nullopt);
  // An equal key, which other receives use too: comparing it with theirs is then cheaper.
  void AdoptKey(uint32_t name, const RendezvousKey& key);
  // The sequence number of the last record.
  uint64_t last_sequence() const { return next_sequence_ - 1; }
  // The value of a record of the frames that are being read is kept until it is taken.
  //   Errors: INVALID_ARGUMENT if it exceeds the limits: a violation.
  absl::StatusOr<Arrival> OnArrival(const EagerRecord& record, uint64_t sequence);
  // The same for a value that a receive takes at once: OnArrival, then OnTaken.
  absl::StatusOr<Arrival> OnArrivalTaken(const EagerRecord& record, uint64_t sequence);
  // A run of records that receives take as they come, in place of OnRecord and OnArrivalTaken:
  // 1. StartTaking. False: it is not possible now.
  // 2. CanTake for each record, with the number and the bytes of those before it in the run.
  //    Returns the name's key; null: the run ends before this record. For a record without a number
  //    HasRoom, and false ends the run.
  // 3. OnTaken with the number and the bytes of those that were taken.
  bool StartTaking() const;
  bool HasRoom(uint64_t count, uint64_t bytes) const {
    return values_ + unacked_values_ + count < limits_.peer_values &&
           bytes_ + unacked_bytes_ + bytes < limits_.peer_bytes;
  }
  //   REQUIRES: name != 0.
  const RendezvousKey* CanTake(uint32_t name, uint64_t count, uint64_t bytes) const {
    if (!HasRoom(count, bytes)) return nullptr;
    if (name > names_.size() || !names_[name - 1].has_value()) return nullptr;
    const Name& found = *names_[name - 1];
    return found.scope.is_pulled ? nullptr : &found.key;
  }
  void OnTaken(uint64_t count, uint64_t bytes);
  // The step is over here, and the value of that arrival is dropped; then OnDropped.
  void OnWithdrawn(const Arrival& arrival) { Release(arrival); }
  // The step of the last record is over here: the value is dropped. The caller sends the
  // acknowledgements, then STEP_REFUSED if the result says so.
  StepEnd OnDropped();
  // A receive has taken it.
  void OnTaken(const Arrival& arrival);
  // A receive has rejected it. Returns the id of the REJECTED that is to be sent; it acknowledges
  // too.
  uint64_t OnRejected(const Arrival& arrival);

  // A PULL. If it returns true, convert every receive in the scope that waits, those of a step and
  // key in order, before the next frame and the next TakeOutput.
  //   is_step_over: for a PULL of a step: it is over here.
  //   Errors: INVALID_ARGUMENT: a violation.
  absl::StatusOr<bool> OnPull(const EagerPullMessage& pull, bool is_step_over);
  // The key of a name with a number.
  const RendezvousKey* FindName(uint32_t name) const;
  // An ACK_NOW.
  void OnAckNow(int64_t step_id);

  // True if TakeOutput returns something worth sending at once.
  bool has_output() const;
  // All acknowledgements if some are due or something is pushed, or if `all`.
  Output TakeOutput(bool all = false);
  // For the head of an EAGER frame in the other direction, which this release does not send yet.
  // Count 0: none.
  EagerRange TakeOneAck();

  // The step is over here: what has arrived for it was dropped, its receives have ended.
  //   may_begin_again: the program has never opened it; its state is discarded, and later values
  //   open it again.
  StepEnd OnStepEnd(int64_t step_id, bool may_begin_again = false);

  // A receive of that step and key is requested.
  bool is_pulled(int64_t step_id, const RendezvousKey& key) const;
  // For tests.
  bool is_pulled(const EagerScope& scope) const;
  uint64_t values_held() const { return values_; }
  uint64_t values_unacknowledged() const { return values_ + unacked_values_; }
  TableSizes InnerTableSizes() const;
  // An encoding of the state, for the model checker's set of visited states. Keys are represented
  // by their hashes; the frame being read and the status of ended steps are left out.
  std::string State() const;

 private:
  // When a scope that is pulled is pushed.
  enum class Answer : uint8_t { kNever, kNow, kWhenFree };
  enum class Watch : uint8_t { kNone, kSent, kEnded };

  struct HashOfKey {
    size_t operator()(const RendezvousKey& key) const { return key.hash(); }
  };
  struct Scope {
    bool is_pulled = false;
    Answer answer = Answer::kNever;
  };
  struct Step {
    Scope scope;
    Watch watch = Watch::kNone;
    absl::Status ended;
    // Arrived and not taken.
    uint64_t values = 0;
    uint64_t bytes = 0;
    // Values with lower sequence numbers are acknowledged as soon as they are taken.
    uint64_t acked_at_once_below = 0;
  };
  struct Name {
    RendezvousKey key;
    Scope scope;
  };

  const Name* Find(const RendezvousKey& key) const;
  // `step`: null if there is no state for it.
  bool IsPulled(const Step* step, const RendezvousKey& key) const;
  absl::Status Define(uint32_t name, absl::string_view text,
                      std::optional<RendezvousKey> known = std::nullopt);
  bool IsHalfFree() const;
  bool IsHalfFree(const Step& step) const;
  bool AreAcksDue() const;
  bool IsAnswerDue(const EagerScope& scope) const;
  EagerRanges TakeAcks();
  void AddAck(uint64_t sequence);
  void AddAcks(uint64_t first, uint64_t count);
  // Adds state for the step if there is none.
  //   Errors: as OnArrival.
  absl::Status CheckArrival(const EagerRecord& record, Step*& step, bool& is_new_step);
  // The value is no longer held. Returns the state for its step; null: there is none.
  Step* Release(const Arrival& arrival);
  // `step`: the value's; null: there is no state for it.
  void AddTaken(const Arrival& arrival, const Step* step);

  EagerLimits limits_;
  EagerRules rules_;
  // From so many values or bytes on EAGER_ACK is sent at once; fewer wait for others to join them.
  uint64_t most_unacked_values_;
  uint64_t most_unacked_bytes_;
  Scope all_{true, Answer::kNever};
  uint64_t next_sequence_ = 0;
  // The step of the frames that are being read.
  int64_t step_id_ = 0;
  uint64_t requests_being_sent_ = 0;
  // Held for all steps.
  uint64_t values_ = 0;
  uint64_t bytes_ = 0;
  // Taken by receives; EAGER_ACK has not been sent. The two counts are of these values.
  EagerRanges acks_;
  uint64_t unacked_values_ = 0;
  uint64_t unacked_bytes_ = 0;
  bool is_ack_due_ = false;
  uint64_t name_bytes_ = 0;
  // Few, and at stable addresses.
  std::map<int64_t, Step> steps_;
  // Scopes whose answer is due at some time.
  std::vector<EagerScope> answers_;
  // Steps that were refused lately.
  std::array<std::optional<int64_t>, 8> refused_;
  size_t next_refused_ = 0;
  // By number, from 1.
  std::vector<std::optional<Name>> names_;
  uint64_t pulled_names_ = 0;
  absl::flat_hash_map<RendezvousKey, uint32_t, HashOfKey> numbers_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_EAGER_RECEIVER_H_

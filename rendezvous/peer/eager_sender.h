// SPDX-License-Identifier: Apache-2.0
// EagerSender: decides which values a producer sends to one consumer before they are requested.
#ifndef FERRY_RENDEZVOUS_PEER_EAGER_SENDER_H_
#define FERRY_RENDEZVOUS_PEER_EAGER_SENDER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/table_sizes.h"
#include "rendezvous/key.h"
#include "rendezvous/peer/eager_protocol.h"
#include "rendezvous/peer/eager_rules.h"
#include "rendezvous/peer/recent_hashes.h"
#include "rendezvous/peer/sequence_table.h"

namespace ferry {

// The producer's part of the eager protocol on one control channel (docs/rendezvous.md). It sends
// nothing itself: the caller has the table of values and the control channel, and sends what the
// methods return, in order, before the next call. Not thread-safe; no locks, no clock, no I/O.
// Copyable, for the model checker (tests/rendezvous/eager_search_test.cc).
class EagerSender final {
 public:
  struct Value {
    size_t bytes = 0;
    // Small, in host memory, and of a type and rank that a record can have.
    bool is_eager = false;
    // An earlier value of that step and key is queued here.
    bool is_behind_another = false;
    // It was queued, and is drained.
    bool is_drained = false;
    // The step's deferred requests have been started (RemoteRendezvous::Initialize).
    bool is_step_serving = true;
    // Too much is queued on the control channel.
    bool is_channel_full = false;
    // When it was sent, in nanoseconds; for ForEachRecord.
    int64_t since = 0;
  };
  struct Decision {
    // The value is to be sent in an EAGER record with these numbers, else to be queued.
    bool is_sent = false;
    uint64_t sequence = 0;
    // 0: the record has the text.
    uint32_t name = 0;
    // The record has the text, as the definition of the number.
    bool defines_name = false;
    // To be sent. Definitions point into the key's text.
    absl::InlinedVector<EagerPullMessage, 1> pulls;
    // ACK_NOW is to be sent after it: the step is being flushed.
    bool asks_for_acks = false;
    // Something can be drained, see NextToDrain.
    bool needs_drain = false;
    // This was the first call for the step: call OnStepEnd when it is over.
    bool is_new_step = false;
    // No earlier value of the step is unacknowledged.
    bool is_first_unacknowledged = false;
  };
  // A value that was sent, for reports.
  struct Record {
    int64_t step_id = 0;
    size_t bytes = 0;
    RendezvousKey key;
    // Its slot, if the name had a number.
    uint32_t name = 0;
    int64_t since = 0;
    // The consumer's step is over: it was not received, and holds no credit.
    bool is_refused = false;
  };
  // A value that was sent, as it is kept.
  struct Sent {
    int64_t step_id = 0;
    int64_t since = 0;
    uint32_t bytes = 0;
    uint32_t name = 0;
    bool is_refused = false;
    // The step is over here; it has been visited.
    bool is_over = false;
    // Set if the name has no number; other keys are in slots.
    std::optional<RendezvousKey> key;
  };
  // Queued values that are to be looked for after a PUSH, and added with AddToDrain: those of all
  // steps for that consumer, or of one key in all steps.
  struct Scan {
    bool is_needed = false;
    std::optional<RendezvousKey> key;
  };
  using Visitor = absl::FunctionRef<void(uint64_t sequence, const Record& record)>;

  // `limits`: the consumer's. `first`: the first value's sequence number, 0 but in tests.
  explicit EagerSender(const EagerLimits& limits, const EagerRules& rules = {}, uint64_t first = 0);

  // Decides about a new value, or the first of those queued for that key. REQUIRES: no receive
  // waits for it in the table.
  Decision Send(int64_t step_id, const RendezvousKey& key, const Value& value);

  // Values of one step that need no other message. StartBurst: false: there may be none of them
  // now. Then SendInBurst for each, up to the first for which it returns false: Send decides about
  // that.
  //   decision: is_new_step, and is_first_unacknowledged if the first value is sent.
  // REQUIRES: is_step_serving; no receive waits for the keys, and none of their values is queued.
  bool StartBurst(int64_t step_id, Decision& decision);
  //   Sets sequence, name and defines_name.
  bool SendInBurst(const RendezvousKey& key, size_t bytes, int64_t since, Decision& decision);

  // A PUSH has arrived. Afterwards drain, and scan first if that is needed.
  //   Errors: INVALID_ARGUMENT if the scope was not pulled: a violation.
  absl::StatusOr<Scan> OnPush(const EagerScope& scope);
  // Values of that key are queued. Returns true if it was the first call for the step, see
  // Decision::is_new_step.
  bool AddToDrain(int64_t step_id, const RendezvousKey& key);
  // True if there is state for the step.
  bool has_step(int64_t step_id) const { return steps_.contains(step_id); }
  // Returns a key whose queued values may perhaps be sent, and forgets it: call Send for the first
  // of them, and so on until one is not sent.
  std::optional<std::pair<int64_t, RendezvousKey>> NextToDrain();
  bool needs_drain() const;

  // The step's deferred requests have been started. Afterwards drain.
  void OnStepServing(int64_t step_id);

  // An EAGER_ACK, or the part of one in an EAGER. Visits what has been received.
  //   Errors: INVALID_ARGUMENT if any of it was not sent: a violation.
  absl::Status OnAck(const EagerRange& range,
                     absl::FunctionRef<void(uint64_t sequence, const Sent& sent)> visit);
  // A REJECTED for that id. Null: it is known already that it was not received.
  //   Errors: INVALID_ARGUMENT if it was not sent.
  absl::StatusOr<std::optional<Record>> OnRejected(uint64_t id);
  // A STEP_REFUSED.
  void OnStepRefused(int64_t step_id);

  // Acknowledgements of the step are waited for, including those of values that are sent until
  // EndFlush. True: send ACK_NOW.
  bool StartFlush(int64_t step_id);
  void EndFlush(int64_t step_id);
  // All that was sent in that step was received.
  bool IsFlushed(int64_t step_id) const;
  // Sent in that step, and not known to be received.
  size_t unacknowledged(int64_t step_id) const;

  // The step is over here; its queued values have been dropped. Visits what was not received. Its
  // credit is free when the consumer has acknowledged or refused it.
  void OnStepEnd(int64_t step_id, Visitor visit);
  // The control channel has ended: visits what was not received, and forgets everything.
  void OnChannelEnd(Visitor visit);

  // The key of a name with a number, of a REQUEST; null if there is none.
  const RendezvousKey* FindName(uint32_t name) const;

  // For listing what is in flight.
  void ForEachRecord(Visitor visit) const;
  // True if a value of that step and key would have to be requested.
  bool is_pulled(int64_t step_id, const RendezvousKey& key) const;

  // For tests.
  TableSizes InnerTableSizes() const;
  uint64_t values_out() const { return values_; }
  // An encoding of the state, for the model checker's set of visited states. Keys are represented
  // by their hashes.
  std::string State() const;

 private:
  struct HashOfKey {
    size_t operator()(const RendezvousKey& key) const { return key.hash(); }
  };
  struct Step {
    // From PULL to PUSH.
    bool is_pulled = false;
    bool is_refused = false;
    // Values wait for OnStepServing.
    bool is_starting = false;
    bool is_flushing = false;
    // ACK_NOW has been sent for the values below that sequence number.
    uint64_t asked_below = 0;
    // Not acknowledged. Refused values hold no credit.
    uint64_t values = 0;
    uint64_t bytes = 0;
    uint64_t refused = 0;
    // Keys with queued values that may be sent once the step, and everything, is pushed.
    // Each once, first come, first served.
    std::deque<RendezvousKey> backlog;
    absl::flat_hash_set<RendezvousKey, HashOfKey> is_listed;

    void Add(const RendezvousKey& key) {
      if (is_listed.insert(key).second) backlog.push_back(key);
    }
  };
  struct Slot {
    RendezvousKey key;
    // Records with this number.
    uint32_t records = 0;
    bool is_pulled = false;
    bool has_asked = false;
    // Values of eager size in a row since it was pulled.
    uint8_t streak = 0;
    bool is_recent = true;
    // That of the name whose value was sent next the last time, which it usually is again; 0: none.
    uint32_t next = 0;
  };

  // Values of eager size in a row after which the producer asks for the PUSH of a name.
  static constexpr uint8_t kStreak = 2;
  // Slots that one call looks at for a name that is pulled.
  static constexpr size_t kMaxPulledSearch = 64;

  // Returns the number of that name; 0: it has none.
  uint32_t NumberOf(const RendezvousKey& key);
  // Returns the number of that name, or of a new one; 0 if there is no room.
  uint32_t NameOf(const RendezvousKey& key, bool& is_new);
  // The same for a name without a number whose value is sent; 0 also if it was not sent lately.
  uint32_t NameToSend(const RendezvousKey& key, bool& is_new);
  // Returns a number for a text of that size, which another name may have had; 0 if there is none.
  uint32_t FreeName(size_t bytes);
  void PullAll(Decision& decision, EagerPullKind kind);
  // So that the number of a name that is pulled becomes free again: asks for its PUSH.
  void AskForPushOfName(Decision& decision);
  // Some number can be given to another name.
  bool HasFreeNames() const;
  Step* FindStep(int64_t step_id);
  // `step`: its state; null: it is over here.
  void Release(const Sent& sent, Step* step);
  Record RecordOf(const Sent& sent) const;
  // Extends the low bits of a sequence number that has been sent. Null: it has not.
  std::optional<uint64_t> Extend(uint32_t low) const;
  bool IsDrainable(const Step& step, const RendezvousKey& key) const;
  const Slot* FindName(const RendezvousKey& key) const;

  EagerLimits limits_;
  EagerRules rules_;
  // Until the first PUSH of everything nothing is sent, and nothing is kept for later.
  bool has_started_ = false;
  bool is_all_pulled_ = true;
  // True between the PULL of everything that is sent when no number is free for a name, and the
  // PULL of the kind kMayPush that follows.
  bool lacks_names_ = false;
  uint64_t next_sequence_ = 0;
  // Totals of the steps, including those that are over here.
  uint64_t values_ = 0;
  uint64_t bytes_ = 0;
  uint64_t name_bytes_ = 0;
  // Names that are pulled, and the bytes of their texts.
  uint64_t pulled_names_ = 0;
  uint64_t pulled_bytes_ = 0;
  size_t hand_ = 0;
  size_t pulled_hand_ = 0;
  SequenceTable<Sent> records_;
  // Few, and drained in this order.
  std::map<int64_t, Step> steps_;
  // The burst's step; its node in `steps_` is stable.
  int64_t burst_step_id_ = 0;
  Step* burst_step_ = nullptr;
  // By number, from 1.
  std::vector<std::optional<Slot>> slots_;
  absl::flat_hash_map<RendezvousKey, uint32_t, HashOfKey> names_;
  // Names that were sent without a number.
  RecentHashes seen_;
  // The last one that NumberOf returned; 0: none.
  uint32_t last_name_ = 0;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_EAGER_SENDER_H_

// SPDX-License-Identifier: Apache-2.0
// A small world of the eager protocol, whose every execution is explored: one producer and one
// consumer with their tables, and the control channel between them.
#ifndef FERRY_TESTS_RENDEZVOUS_EAGER_WORLD_H_
#define FERRY_TESTS_RENDEZVOUS_EAGER_WORLD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"

#include "rendezvous/peer/eager_receiver.h"
#include "rendezvous/peer/eager_sender.h"

namespace ferry::eager_test {

// Holds a few elements, and is cheap to copy.
template <typename T>
class Queue final : public absl::InlinedVector<T, 2> {
 public:
  void pop_front() { this->erase(this->begin()); }
};

// The rules for the callers of EagerSender and EagerReceiver.
struct CallerRules {
  // Receives that wait are requested when their scope is pulled.
  bool converts = true;
  // A scope's waiting receives of a key are requested in the order in which they were posted.
  bool converts_in_order = true;
  // A receive that finds its scope pulled first requests earlier receives of its key.
  bool converts_own_key_first = true;
  // A step's values that were sent while it was starting are drained when it serves.
  bool drains_started_steps = true;
  // A receive takes a value that has arrived before anything is requested.
  bool takes_arrivals_first = true;
  // A value that waits for a receive in the producer's table is given to it.
  bool serves_requests_first = true;
  // A step that is being closed asks for acknowledgements on a new control channel too.
  bool flushes_again = true;
  // Values found by a scan are drained.
  bool scans = true;
  // A value that arrived on an earlier control channel is not acknowledged on this one.
  bool acks_on_same_channel = true;
};

struct ValueOptions {
  int step = 0;
  int name = 0;
  // kWrong: small, and the receive rejects it.
  enum class Kind { kSmall, kLarge, kDead, kWrong } kind = Kind::kSmall;
};

struct ReceiveOptions {
  int step = 0;
  int name = 0;
};

struct WorldOptions {
  // Sent, and posted, in this order.
  std::vector<ValueOptions> values;
  std::vector<ReceiveOptions> receives;
  int steps = 1;
  int names = 1;
  EagerLimits limits = {1, 100, 100, 1000, 10, 10000};
  // Messages that wait on the control channel before it counts as full.
  size_t channel_room = 100;
  EagerRules rules;
  CallerRules callers;
  // The peer is one without the capability.
  bool is_old_peer = false;
  // How often each may happen, at any point.
  int cancels = 0;
  int breaks = 0;
  // Steps, by bit, which may be closed or aborted at any point, on either side.
  uint32_t closes = 0;
  uint32_t aborts = 0;
  uint32_t consumer_ends = 0;
  // The producer may close a step only after all its values have been sent.
  bool closes_last = false;
  // Steps that begin late at the producer.
  uint32_t late_steps = 0;
};

struct Event {
  enum class Kind {
    kOpen,
    kSend,
    kStart,
    kDrain,
    kToProducer,
    kToConsumer,
    kReceive,
    kRequest,
    kConvert,
    kOutput,
    kClosed,
    kProducerHears,
    kConsumerHears,
    // These need not happen.
    kCancel,
    kClose,
    kCloseFails,
    kAbort,
    kEndConsumer,
    kBreak,
  };
  Kind kind = Kind::kOpen;
  int index = 0;
};

inline bool IsMischief(const Event& event) { return event.kind >= Event::Kind::kCancel; }

// Nothing in it moves but by Apply.
class World final {
 public:
  explicit World(const WorldOptions& options);

  std::vector<Event> Enabled() const;
  void Apply(const Event& event);
  std::string Describe(const Event& event) const;
  // Empty, or what was wrong in the last event.
  const std::string& violation() const { return violation_; }
  // Describes what is wrong where nothing has to happen any more.
  std::string CheckEnd() const;
  uint64_t Hash() const;

 private:
  struct Message {
    enum class Kind {
      // To the producer.
      kRequest,
      kCancel,
      kWatch,
      kAck,
      kPush,
      kStepRefused,
      kRejected,
      // To the consumer.
      kEager,
      kReadyToSend,
      kError,
      kPull,
      kAckNow,
    };
    Kind kind = Kind::kRequest;
    uint64_t id = 0;
    int step = 0;
    // Index of the key, whose text the message has; -1: only a number.
    int key = -1;
    uint32_t name = 0;
    bool has_definition = false;
    int value = -1;
    uint64_t sequence = 0;
    EagerScope scope;
    EagerPullKind pull = EagerPullKind::kUntilFree;
    EagerRange range;
  };
  enum class Fate : uint8_t {
    kUnsent,
    kQueued,
    kSent,
    kReplied,
    kArrived,
    kTaken,
    // By its receive.
    kRejected,
    // At the consumer, whose step is over.
    kDropped,
    // The reply to a cancelled request.
    kDiscarded,
    // With the control channel.
    kLost,
    // Its step is over at the producer.
    kCleared,
  };
  struct Value {
    Fate fate = Fate::kUnsent;
    bool was_eager = false;
    // The producer knows that it was taken, or has been told that it was lost.
    bool is_confirmed = false;
    bool is_reported = false;
  };
  enum class Phase : uint8_t { kNotBegun, kStarting, kServing, kClosing, kClosed, kFailed };
  struct Deferred {
    uint64_t id = 0;
    int key = 0;
  };
  struct Watcher {
    uint64_t id = 0;
    int step = 0;
  };
  enum class Wait : uint8_t { kUnposted, kWaiting, kRequesting, kQueued, kRequested, kOk, kFailed };
  struct Receive {
    Wait wait = Wait::kUnposted;
    uint64_t id = 0;
    int value = -1;
    uint32_t number = 0;
  };
  struct Request {
    uint64_t id = 0;
    int receive = 0;
    bool is_cancelled = false;
  };
  struct Arrived {
    int value = 0;
    EagerReceiver::Arrival arrival;
    int epoch = 0;
  };

  int KeyOf(int step, int name) const { return step * options_->names + name; }
  int StepOf(int key) const { return key / options_->names; }
  const RendezvousKey& NameOf(int key) const;
  bool is_over(int step) const { return phases_[static_cast<size_t>(step)] >= Phase::kClosed; }
  void Fail(std::string what);

  void Open();
  void Send();
  // Decides about a value that no receive waits for.
  bool Push(int value, int key, bool is_behind_another, bool is_drained);
  void Reply(uint64_t id, int value);
  void ServeRequest(uint64_t id, int key);
  void Start(int step);
  void Drain();
  void Scan(const EagerSender::Scan& scan);
  void EndProducerStep(int step, Phase phase);
  void ToProducer();
  void ToConsumer();
  void OnEager(const Message& message);
  void PostReceive();
  void Convert(int receive);
  void SendRequest(int receive);
  void ConvertNext();
  std::optional<int> NextToConvert() const;
  void SendOutput();
  void SendEnd(int step, const EagerReceiver::StepEnd& end);
  // Without `arrival`: it was requested, or came on an earlier control channel.
  void Take(int receive, int value, const EagerReceiver::Arrival* arrival);
  void EndReceive(int receive, Wait wait);
  void EndConsumerStep(int step);
  void Cancel(int receive);
  void PutToProducer(const Message& message);
  void PutToConsumer(const Message& message);
  std::string CheckState() const;

  const WorldOptions* options_;
  std::string violation_;
  // Both sides have heard of the end of a broken control channel before the next one.
  bool is_open_[2] = {false, false};
  bool is_broken_ = false;
  int epoch_ = 0;
  int breaks_left_;
  int cancels_left_;
  bool had_mischief_ = false;
  bool had_break_ = false;
  Queue<Message> to_producer_;
  Queue<Message> to_consumer_;
  std::vector<Value> values_;
  std::vector<Receive> receives_;
  size_t next_value_ = 0;
  size_t next_receive_ = 0;
  // The producer.
  std::optional<EagerSender> sender_;
  std::vector<Phase> phases_;
  std::vector<Queue<int>> queued_;
  std::vector<Queue<uint64_t>> requested_;
  std::vector<Deferred> deferred_;
  std::vector<Watcher> watchers_;
  std::vector<bool> has_loss_;
  // The value of each sequence number on this control channel.
  std::vector<int> sent_;
  // The consumer.
  std::optional<EagerReceiver> receiver_;
  std::vector<bool> is_over_here_;
  std::vector<Queue<Arrived>> arrived_;
  std::vector<Queue<int>> waiting_;
  std::vector<Request> requests_;
  std::vector<Watcher> watches_;
  uint64_t last_id_ = 0;
  bool is_converting_ = false;
};

struct SearchResult {
  int64_t states = 0;
  bool is_complete = false;
  std::string violation;
  std::vector<std::string> trace;
};

// Explores every execution, or as many states; with a violation, the shortest trace to one.
SearchResult Search(const WorldOptions& options, int64_t max_states = 20'000'000);

// Runs one execution, which follows from `seed`, to its end; `states` are its events. Events that
// need not happen are rare.
SearchResult RunAtRandom(const WorldOptions& options, uint64_t seed);

}  // namespace ferry::eager_test

#endif  // FERRY_TESTS_RENDEZVOUS_EAGER_WORLD_H_

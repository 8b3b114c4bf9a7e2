// SPDX-License-Identifier: Apache-2.0
// The events of the world, and what must hold after each.
#include "tests/rendezvous/eager_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "tests/rendezvous/rendezvous_fixture.h"

namespace ferry::eager_test {
namespace {

constexpr size_t kSmallBytes = 10;

const std::vector<RendezvousKey>& Names() {
  static const auto& names = *new std::vector<RendezvousKey>{Key("a", 1), Key("b", 1), Key("c", 1),
                                                             Key("d", 1), Key("e", 1)};
  return names;
}

size_t BytesOf(const ValueOptions& value) {
  switch (value.kind) {
    case ValueOptions::Kind::kSmall:
    case ValueOptions::Kind::kWrong:
      return kSmallBytes;
    case ValueOptions::Kind::kLarge:
      return 1000;
    case ValueOptions::Kind::kDead:
      return 0;
  }
  return 0;
}

}  // namespace

World::World(const WorldOptions& options)
    : options_(&options),
      breaks_left_(options.breaks),
      cancels_left_(options.cancels),
      values_(options.values.size()),
      receives_(options.receives.size()) {
  const auto keys = static_cast<size_t>(options.steps * options.names);
  phases_.resize(static_cast<size_t>(options.steps), Phase::kServing);
  for (int step = 0; step < options.steps; ++step) {
    if ((options.late_steps >> step & 1) != 0)
      phases_[static_cast<size_t>(step)] = Phase::kNotBegun;
  }
  has_loss_.resize(static_cast<size_t>(options.steps));
  is_over_here_.resize(static_cast<size_t>(options.steps));
  queued_.resize(keys);
  requested_.resize(keys);
  arrived_.resize(keys);
  waiting_.resize(keys);
}

const RendezvousKey& World::NameOf(int key) const {
  return Names()[static_cast<size_t>(key % options_->names)];
}

void World::Fail(std::string what) {
  if (violation_.empty()) violation_ = std::move(what);
}

std::vector<Event> World::Enabled() const {
  using Kind = Event::Kind;
  std::vector<Event> events;
  const auto add = [&events](Kind kind, int index = 0) { events.push_back({kind, index}); };
  const bool is_open = is_open_[0] && is_open_[1];
  if (!is_open_[0] && !is_open_[1]) add(Kind::kOpen);
  if (next_value_ < values_.size()) {
    const int step = options_->values[next_value_].step;
    if (phases_[static_cast<size_t>(step)] != Phase::kNotBegun) add(Kind::kSend);
  }
  for (int step = 0; step < options_->steps; ++step) {
    const Phase phase = phases_[static_cast<size_t>(step)];
    if (phase == Phase::kNotBegun || phase == Phase::kStarting) add(Kind::kStart, step);
    if (phase == Phase::kClosing) {
      bool is_empty = !has_loss_[static_cast<size_t>(step)];
      for (int name = 0; name < options_->names; ++name) {
        is_empty &= queued_[static_cast<size_t>(KeyOf(step, name))].empty();
      }
      if (is_empty && (!sender_.has_value() || sender_->IsFlushed(step))) add(Kind::kClosed, step);
      add(Kind::kCloseFails, step);
    }
    if (phase == Phase::kServing) {
      bool may_close = (options_->closes >> step & 1) != 0;
      for (size_t i = next_value_; may_close && options_->closes_last && i < values_.size(); ++i) {
        may_close = options_->values[i].step != step;
      }
      if (may_close) add(Kind::kClose, step);
      if ((options_->aborts >> step & 1) != 0) add(Kind::kAbort, step);
    }
    if ((options_->consumer_ends >> step & 1) != 0 && !is_over_here_[static_cast<size_t>(step)]) {
      add(Kind::kEndConsumer, step);
    }
  }
  if (sender_.has_value() && sender_->needs_drain()) add(Kind::kDrain);
  if (is_open_[0] && !to_producer_.empty()) add(Kind::kToProducer);
  if (is_open_[1] && !to_consumer_.empty() && !is_converting_) add(Kind::kToConsumer);
  bool is_requesting = false;
  for (size_t i = 0; i < receives_.size(); ++i) {
    const Wait wait = receives_[i].wait;
    if (wait == Wait::kRequesting) {
      is_requesting = true;
      add(Kind::kRequest, static_cast<int>(i));
    }
    if (cancels_left_ > 0 &&
        (wait == Wait::kWaiting || wait == Wait::kRequested || wait == Wait::kQueued)) {
      add(Kind::kCancel, static_cast<int>(i));
    }
  }
  if (!is_requesting && next_receive_ < receives_.size()) add(Kind::kReceive);
  if (is_converting_) add(Kind::kConvert);
  if (receiver_.has_value() && !is_converting_ && receiver_->has_output()) add(Kind::kOutput);
  if (is_broken_ && is_open_[0]) add(Kind::kProducerHears);
  if (is_broken_ && is_open_[1] && !is_converting_ && !is_requesting) add(Kind::kConsumerHears);
  if (is_open && !is_broken_ && breaks_left_ > 0) add(Kind::kBreak);
  return events;
}

void World::Apply(const Event& event) {
  const auto index = static_cast<size_t>(event.index);
  had_mischief_ |= IsMischief(event) && event.kind != Event::Kind::kClose;
  switch (event.kind) {
    case Event::Kind::kOpen:
      Open();
      break;
    case Event::Kind::kSend:
      Send();
      break;
    case Event::Kind::kStart:
      Start(event.index);
      break;
    case Event::Kind::kDrain:
      Drain();
      break;
    case Event::Kind::kToProducer:
      ToProducer();
      break;
    case Event::Kind::kToConsumer:
      ToConsumer();
      break;
    case Event::Kind::kReceive:
      PostReceive();
      break;
    case Event::Kind::kRequest:
      SendRequest(event.index);
      break;
    case Event::Kind::kConvert:
      ConvertNext();
      break;
    case Event::Kind::kOutput:
      SendOutput();
      break;
    case Event::Kind::kClose:
      phases_[index] = Phase::kClosing;
      if (sender_.has_value() && sender_->StartFlush(event.index)) {
        PutToConsumer({.kind = Message::Kind::kAckNow, .step = event.index});
      }
      break;
    case Event::Kind::kClosed:
      for (size_t i = 0; i < values_.size(); ++i) {
        if (options_->values[i].step == event.index && values_[i].was_eager &&
            values_[i].fate != Fate::kTaken) {
          Fail(absl::StrCat("V7: step ", event.index, " is closed, and value ", i,
                            " was not received"));
        }
      }
      EndProducerStep(event.index, Phase::kClosed);
      break;
    case Event::Kind::kCloseFails:
    case Event::Kind::kAbort:
      EndProducerStep(event.index, Phase::kFailed);
      break;
    case Event::Kind::kCancel:
      --cancels_left_;
      Cancel(event.index);
      break;
    case Event::Kind::kEndConsumer:
      EndConsumerStep(event.index);
      break;
    case Event::Kind::kBreak:
      --breaks_left_;
      is_broken_ = true;
      had_break_ = true;
      break;
    case Event::Kind::kProducerHears:
      is_open_[0] = false;
      to_producer_.clear();
      sender_->OnChannelEnd([this](uint64_t sequence, const EagerSender::Record& record) {
        has_loss_[static_cast<size_t>(record.step_id)] = true;
        values_[static_cast<size_t>(sent_[sequence])].is_reported = true;
      });
      sender_.reset();
      for (Queue<uint64_t>& ids : requested_) ids.clear();
      deferred_.clear();
      watchers_.clear();
      break;
    case Event::Kind::kConsumerHears:
      is_open_[1] = false;
      for (const Message& message : to_consumer_) {
        if (message.value >= 0) values_[static_cast<size_t>(message.value)].fate = Fate::kLost;
      }
      to_consumer_.clear();
      for (size_t i = 0; i < receives_.size(); ++i) {
        if (receives_[i].wait == Wait::kWaiting || receives_[i].wait == Wait::kRequested) {
          EndReceive(static_cast<int>(i), Wait::kFailed);
        }
      }
      requests_.clear();
      watches_.clear();
      receiver_.reset();
      break;
  }
  if (violation_.empty()) violation_ = CheckState();
}

void World::Open() {
  is_open_[0] = is_open_[1] = true;
  is_broken_ = false;
  ++epoch_;
  to_producer_.clear();
  to_consumer_.clear();
  sent_.clear();
  sender_.emplace(options_->limits, options_->rules);
  receiver_.emplace(options_->limits, options_->rules);
  for (int step = 0; step < options_->steps; ++step) {
    if (phases_[static_cast<size_t>(step)] == Phase::kClosing && options_->callers.flushes_again) {
      sender_->StartFlush(step);
    }
  }
  // In the order of the calls.
  for (size_t i = 0; i < receives_.size(); ++i) {
    if (receives_[i].wait != Wait::kQueued) continue;
    receiver_->OnReceive(options_->receives[i].step,
                         NameOf(KeyOf(options_->receives[i].step, options_->receives[i].name)));
    SendRequest(static_cast<int>(i));
  }
  if (!options_->is_old_peer) receiver_->Start();
}

void World::PutToProducer(const Message& message) {
  if (is_open_[1] && !is_broken_) to_producer_.push_back(message);
}

void World::PutToConsumer(const Message& message) {
  if (is_open_[0] && !is_broken_) {
    to_consumer_.push_back(message);
  } else if (message.value >= 0) {
    values_[static_cast<size_t>(message.value)].fate = Fate::kLost;
  }
}

// The producer.

void World::Send() {
  const int value = static_cast<int>(next_value_++);
  const ValueOptions& sent = options_->values[static_cast<size_t>(value)];
  const auto key = static_cast<size_t>(KeyOf(sent.step, sent.name));
  const Phase phase = phases_[static_cast<size_t>(sent.step)];
  if (phase != Phase::kStarting && phase != Phase::kServing) {
    // An error to its sender.
    values_[static_cast<size_t>(value)].fate = Fate::kCleared;
    return;
  }
  if (!requested_[key].empty() && options_->callers.serves_requests_first) {
    const uint64_t id = requested_[key].front();
    requested_[key].pop_front();
    return Reply(id, value);
  }
  if (Push(value, static_cast<int>(key), !queued_[key].empty(), /*is_drained=*/false)) return;
  values_[static_cast<size_t>(value)].fate = Fate::kQueued;
  queued_[key].push_back(value);
}

bool World::Push(int value, int key, bool is_behind_another, bool is_drained) {
  if (!sender_.has_value()) return false;
  const int step = StepOf(key);
  EagerSender::Value asked;
  asked.bytes = BytesOf(options_->values[static_cast<size_t>(value)]);
  asked.is_eager = options_->values[static_cast<size_t>(value)].kind != ValueOptions::Kind::kLarge;
  asked.is_behind_another = is_behind_another;
  asked.is_drained = is_drained;
  asked.is_step_serving = phases_[static_cast<size_t>(step)] != Phase::kStarting;
  asked.is_channel_full = to_consumer_.size() >= options_->channel_room;
  const EagerSender::Decision decision = sender_->Send(step, NameOf(key), asked);
  for (const EagerPullMessage& pull : decision.pulls) {
    PutToConsumer({.kind = Message::Kind::kPull,
                   .key = key,
                   .has_definition = !pull.definition.empty(),
                   .scope = pull.scope,
                   .pull = pull.kind});
  }
  if (!decision.is_sent) return false;
  Value& sent = values_[static_cast<size_t>(value)];
  sent.fate = Fate::kSent;
  sent_.push_back(value);
  sent.was_eager = true;
  PutToConsumer({.kind = Message::Kind::kEager,
                 .step = step,
                 .key = key,
                 .name = decision.name,
                 .has_definition = decision.defines_name,
                 .value = value,
                 .sequence = decision.sequence});
  if (decision.asks_for_acks) PutToConsumer({.kind = Message::Kind::kAckNow, .step = step});
  return true;
}

void World::Reply(uint64_t id, int value) {
  values_[static_cast<size_t>(value)].fate = Fate::kReplied;
  PutToConsumer({.kind = Message::Kind::kReadyToSend, .id = id, .value = value});
}

void World::ServeRequest(uint64_t id, int key) {
  Queue<int>& values = queued_[static_cast<size_t>(key)];
  if (values.empty()) {
    requested_[static_cast<size_t>(key)].push_back(id);
    return;
  }
  const int value = values.front();
  values.pop_front();
  Reply(id, value);
}

void World::Start(int step) {
  Phase& phase = phases_[static_cast<size_t>(step)];
  if (phase == Phase::kNotBegun) {
    phase = Phase::kStarting;
    return;
  }
  for (size_t i = 0; i < deferred_.size(); ++i) {
    if (StepOf(deferred_[i].key) != step) continue;
    const Deferred request = deferred_[i];
    deferred_.erase(deferred_.begin() + static_cast<std::ptrdiff_t>(i));
    return ServeRequest(request.id, request.key);
  }
  phase = Phase::kServing;
  if (sender_.has_value() && options_->callers.drains_started_steps) sender_->OnStepServing(step);
}

void World::Drain() {
  const auto next = sender_->NextToDrain();
  if (!next.has_value()) return;
  const int step = static_cast<int>(next->first);
  int key = 0;
  while (!(NameOf(key) == next->second)) ++key;
  key = KeyOf(step, key);
  Queue<int>& values = queued_[static_cast<size_t>(key)];
  while (!values.empty() && Push(values.front(), key, false, /*is_drained=*/true))
    values.pop_front();
}

void World::Scan(const EagerSender::Scan& scan) {
  if (!scan.is_needed || !options_->callers.scans) return;
  for (size_t key = 0; key < queued_.size(); ++key) {
    const int index = static_cast<int>(key);
    if (queued_[key].empty() || (scan.key.has_value() && !(*scan.key == NameOf(index)))) continue;
    sender_->AddToDrain(StepOf(index), NameOf(index));
  }
}

void World::EndProducerStep(int step, Phase phase) {
  phases_[static_cast<size_t>(step)] = phase;
  const auto refuse = [this](uint64_t id) {
    PutToConsumer({.kind = Message::Kind::kError, .id = id});
  };
  for (int name = 0; name < options_->names; ++name) {
    const auto key = static_cast<size_t>(KeyOf(step, name));
    for (const int value : queued_[key]) {
      values_[static_cast<size_t>(value)].fate = Fate::kCleared;
    }
    queued_[key].clear();
    for (const uint64_t id : requested_[key]) refuse(id);
    requested_[key].clear();
  }
  for (const Deferred& each : deferred_) {
    if (StepOf(each.key) == step) refuse(each.id);
  }
  deferred_.erase(std::remove_if(deferred_.begin(), deferred_.end(),
                                 [&](const auto& each) { return StepOf(each.key) == step; }),
                  deferred_.end());
  for (const Watcher& each : watchers_) {
    if (each.step == step) refuse(each.id);
  }
  watchers_.erase(std::remove_if(watchers_.begin(), watchers_.end(),
                                 [&](const auto& each) { return each.step == step; }),
                  watchers_.end());
  if (!sender_.has_value()) return;
  sender_->OnStepEnd(step, [this](uint64_t sequence, const EagerSender::Record& record) {
    values_[static_cast<size_t>(sent_[sequence])].is_reported = true;
  });
}

void World::ToProducer() {
  const Message message = to_producer_.front();
  to_producer_.pop_front();
  switch (message.kind) {
    case Message::Kind::kRequest: {
      int key = message.key;
      if (message.name != 0) {
        const RendezvousKey* const name = sender_->FindName(message.name);
        if (name == nullptr || !(*name == NameOf(key))) {
          return Fail(absl::StrCat("V8: name ", message.name, " of request ", message.id,
                                   " is another one at the producer"));
        }
      }
      if (!is_over(message.step) && !sender_->is_pulled(message.step, NameOf(key))) {
        return Fail(absl::StrCat("V4: request ", message.id, " of what the producer may send"));
      }
      if (is_over(message.step)) {
        return PutToConsumer({.kind = Message::Kind::kError, .id = message.id});
      }
      const Phase phase = phases_[static_cast<size_t>(message.step)];
      if (phase == Phase::kNotBegun || phase == Phase::kStarting) {
        deferred_.push_back({message.id, key});
        return;
      }
      return ServeRequest(message.id, key);
    }
    case Message::Kind::kCancel: {
      bool is_found = false;
      for (Queue<uint64_t>& ids : requested_) {
        const auto found = std::find(ids.begin(), ids.end(), message.id);
        if (found == ids.end()) continue;
        ids.erase(found);
        is_found = true;
      }
      for (size_t i = 0; i < deferred_.size(); ++i) {
        if (deferred_[i].id != message.id) continue;
        deferred_.erase(deferred_.begin() + static_cast<std::ptrdiff_t>(i));
        is_found = true;
        break;
      }
      for (size_t i = 0; i < watchers_.size(); ++i) {
        if (watchers_[i].id != message.id) continue;
        watchers_.erase(watchers_.begin() + static_cast<std::ptrdiff_t>(i));
        is_found = true;
        break;
      }
      if (is_found) PutToConsumer({.kind = Message::Kind::kError, .id = message.id});
      return;
    }
    case Message::Kind::kWatch:
      if (is_over(message.step)) {
        return PutToConsumer({.kind = Message::Kind::kError, .id = message.id});
      }
      watchers_.push_back({message.id, message.step});
      return;
    case Message::Kind::kAck: {
      const absl::Status status =
          sender_->OnAck(message.range, [this](uint64_t sequence, const EagerSender::Sent& record) {
            const int index = sent_[sequence];
            Value& value = values_[static_cast<size_t>(index)];
            value.is_confirmed = true;
            if (value.fate != Fate::kTaken) {
              Fail(absl::StrCat("V1: value ", index, " was acknowledged, and was not taken"));
            }
            if (record.is_refused) {
              Fail(absl::StrCat("V1: value ", index, " was refused before it was acknowledged"));
            }
          });
      if (!status.ok()) Fail(std::string(status.message()));
      return;
    }
    case Message::Kind::kPush: {
      const auto scan = sender_->OnPush(message.scope);
      if (!scan.ok()) return Fail(std::string(scan.status().message()));
      // It would be pulled again at once, and so on without end.
      const EagerScope& scope = message.scope;
      const bool is_without_credit =
          scope.kind == EagerScopeKind::kStep
              ? sender_->unacknowledged(scope.step_id) >= options_->limits.step_values
              : scope.kind == EagerScopeKind::kAll &&
                    sender_->values_out() >= options_->limits.peer_values;
      if (is_without_credit) {
        Fail("V6: a PUSH without credit");
      }
      return Scan(*scan);
    }
    case Message::Kind::kStepRefused:
      return sender_->OnStepRefused(message.step);
    case Message::Kind::kRejected: {
      const auto record = sender_->OnRejected(message.id);
      if (!record.ok()) return Fail(std::string(record.status().message()));
      if (!record->has_value()) return;
      values_[static_cast<size_t>(sent_[message.id & ~kEagerRejectedBit])].is_reported = true;
      has_loss_[static_cast<size_t>((*record)->step_id)] = true;
      return;
    }
    default:
      return Fail("a message of the producer at the producer");
  }
}

// The consumer.

void World::Take(int receive, int value, const EagerReceiver::Arrival* arrival) {
  const bool is_wrong =
      options_->values[static_cast<size_t>(value)].kind == ValueOptions::Kind::kWrong;
  receives_[static_cast<size_t>(receive)].value = value;
  values_[static_cast<size_t>(value)].fate = is_wrong ? Fate::kRejected : Fate::kTaken;
  EndReceive(receive, is_wrong ? Wait::kFailed : Wait::kOk);
  if (arrival != nullptr && is_wrong) {
    PutToProducer({.kind = Message::Kind::kRejected, .id = receiver_->OnRejected(*arrival)});
  } else if (arrival != nullptr) {
    receiver_->OnTaken(*arrival);
  }
  const ReceiveOptions& mine = options_->receives[static_cast<size_t>(receive)];
  for (size_t i = 0; i < receives_.size(); ++i) {
    const ReceiveOptions& other = options_->receives[i];
    if (other.step != mine.step || other.name != mine.name || receives_[i].value < 0) continue;
    const int index = static_cast<int>(i);
    if ((index < receive && receives_[i].value >= value) ||
        (index > receive && receives_[i].value <= value)) {
      Fail(absl::StrCat("V2: receive ", receive, " got value ", value, ", and receive ", i,
                        " value ", receives_[i].value));
    }
  }
}

void World::EndReceive(int receive, Wait wait) {
  Receive& of = receives_[static_cast<size_t>(receive)];
  if (of.wait == Wait::kOk || of.wait == Wait::kFailed) {
    return Fail(absl::StrCat("V10: receive ", receive, " ends twice"));
  }
  if (of.wait == Wait::kWaiting) {
    const ReceiveOptions& mine = options_->receives[static_cast<size_t>(receive)];
    Queue<int>& waiting = waiting_[static_cast<size_t>(KeyOf(mine.step, mine.name))];
    const auto found = std::find(waiting.begin(), waiting.end(), receive);
    if (found != waiting.end()) waiting.erase(found);
  }
  of.wait = wait;
}

void World::PostReceive() {
  const int receive = static_cast<int>(next_receive_++);
  const ReceiveOptions& mine = options_->receives[static_cast<size_t>(receive)];
  const int key = KeyOf(mine.step, mine.name);
  if (is_over_here_[static_cast<size_t>(mine.step)]) return EndReceive(receive, Wait::kFailed);
  Queue<Arrived>& arrived = arrived_[static_cast<size_t>(key)];
  if (!arrived.empty() && options_->callers.takes_arrivals_first) {
    const Arrived first = arrived.front();
    arrived.pop_front();
    const bool is_same = first.epoch == epoch_ || !options_->callers.acks_on_same_channel;
    return Take(receive, first.value, receiver_.has_value() && is_same ? &first.arrival : nullptr);
  }
  Receive& of = receives_[static_cast<size_t>(receive)];
  if (!receiver_.has_value()) {
    of.wait = Wait::kQueued;
    return;
  }
  const EagerReceiver::Decision decision = receiver_->OnReceive(mine.step, NameOf(key));
  switch (decision.route) {
    case EagerReceiver::Route::kFail:
      return EndReceive(receive, Wait::kFailed);
    case EagerReceiver::Route::kRequest:
      if (options_->callers.converts_own_key_first) {
        while (!waiting_[static_cast<size_t>(key)].empty()) {
          Convert(waiting_[static_cast<size_t>(key)].front());
        }
      }
      of.wait = Wait::kRequesting;
      of.number = decision.name;
      return;
    case EagerReceiver::Route::kWait:
      of.wait = Wait::kWaiting;
      waiting_[static_cast<size_t>(key)].push_back(receive);
      if (decision.needs_watch) {
        watches_.push_back({++last_id_, mine.step});
        PutToProducer({.kind = Message::Kind::kWatch, .id = last_id_, .step = mine.step});
      }
      return;
  }
}

void World::Convert(int receive) {
  const ReceiveOptions& mine = options_->receives[static_cast<size_t>(receive)];
  const int key = KeyOf(mine.step, mine.name);
  Queue<int>& waiting = waiting_[static_cast<size_t>(key)];
  waiting.erase(std::find(waiting.begin(), waiting.end(), receive));
  receives_[static_cast<size_t>(receive)].number = receiver_->Convert(NameOf(key));
  receives_[static_cast<size_t>(receive)].wait = Wait::kRequesting;
  SendRequest(receive);
  is_converting_ = is_converting_ && NextToConvert().has_value();
}

void World::SendRequest(int receive) {
  const ReceiveOptions& mine = options_->receives[static_cast<size_t>(receive)];
  Receive& of = receives_[static_cast<size_t>(receive)];
  receiver_->OnRequestSent();
  if (is_over_here_[static_cast<size_t>(mine.step)]) return EndReceive(receive, Wait::kFailed);
  of.wait = Wait::kRequested;
  of.id = ++last_id_;
  requests_.push_back({of.id, receive, false});
  PutToProducer({.kind = Message::Kind::kRequest,
                 .id = of.id,
                 .step = mine.step,
                 .key = KeyOf(mine.step, mine.name),
                 .name = of.number});
}

std::optional<int> World::NextToConvert() const {
  for (size_t key = 0; key < waiting_.size(); ++key) {
    const int index = static_cast<int>(key);
    if (waiting_[key].empty() || !receiver_->is_pulled(StepOf(index), NameOf(index))) continue;
    return options_->callers.converts_in_order ? waiting_[key].front() : waiting_[key].back();
  }
  return std::nullopt;
}

void World::ConvertNext() {
  if (const std::optional<int> next = NextToConvert(); next.has_value()) Convert(*next);
}

void World::SendOutput() {
  const EagerReceiver::Output output = receiver_->TakeOutput();
  for (const EagerRange& range : output.acks) {
    PutToProducer({.kind = Message::Kind::kAck, .range = range});
  }
  for (const EagerScope& scope : output.pushes) {
    PutToProducer({.kind = Message::Kind::kPush, .scope = scope});
  }
}

void World::SendEnd(int step, const EagerReceiver::StepEnd& end) {
  for (const EagerRange& range : end.acks) {
    PutToProducer({.kind = Message::Kind::kAck, .range = range});
  }
  if (end.is_refused) PutToProducer({.kind = Message::Kind::kStepRefused, .step = step});
  if (!end.has_watch) return;
  for (size_t i = 0; i < watches_.size(); ++i) {
    if (watches_[i].step == step) {
      PutToProducer({.kind = Message::Kind::kCancel, .id = watches_[i].id});
    }
  }
}

void World::OnEager(const Message& message) {
  EagerHead head;
  head.step_id = message.step;
  head.sequence = static_cast<uint32_t>(message.sequence);
  head.count = 1;
  EagerRecord record;
  record.name = message.name;
  const std::string payload(BytesOf(options_->values[static_cast<size_t>(message.value)]), 'x');
  record.payload = payload;
  record.is_dead = payload.empty();
  if (message.has_definition || message.name == 0) record.text = NameOf(message.key).text();
  if (const absl::Status status = receiver_->OnEager(head); !status.ok()) {
    return Fail(std::string(status.message()));
  }
  const auto key = receiver_->OnRecord(record);
  if (!key.ok()) return Fail(std::string(key.status().message()));
  if (!(*key == NameOf(message.key))) {
    return Fail(absl::StrCat("V8: value ", message.value, " arrives under another name"));
  }
  const auto index = static_cast<size_t>(message.key);
  Value& value = values_[static_cast<size_t>(message.value)];
  if (is_over_here_[static_cast<size_t>(message.step)]) {
    value.fate = Fate::kDropped;
    return SendEnd(message.step, receiver_->OnDropped());
  }
  const auto arrival = receiver_->OnArrival(record, receiver_->last_sequence());
  if (!arrival.ok()) return Fail(std::string(arrival.status().message()));
  value.fate = Fate::kArrived;
  if (waiting_[index].empty()) {
    arrived_[index].push_back({message.value, *arrival, epoch_});
    return;
  }
  Take(waiting_[index].front(), message.value, &*arrival);
}

void World::ToConsumer() {
  const Message message = to_consumer_.front();
  to_consumer_.pop_front();
  const auto request = std::find_if(requests_.begin(), requests_.end(),
                                    [&](const Request& each) { return each.id == message.id; });
  switch (message.kind) {
    case Message::Kind::kEager:
      return OnEager(message);
    case Message::Kind::kReadyToSend: {
      if (request == requests_.end()) return Fail("an RTS without a request");
      const Request answered = *request;
      requests_.erase(request);
      if (answered.is_cancelled) {
        values_[static_cast<size_t>(message.value)].fate = Fate::kDiscarded;
        return;
      }
      return Take(answered.receive, message.value, nullptr);
    }
    case Message::Kind::kError: {
      const auto watch = std::find_if(watches_.begin(), watches_.end(),
                                      [&](const Watcher& each) { return each.id == message.id; });
      if (watch != watches_.end()) {
        const int step = watch->step;
        watches_.erase(watch);
        receiver_->OnWatchEnded(step, absl::AbortedError("over"));
        for (int name = 0; name < options_->names; ++name) {
          Queue<int>& waiting = waiting_[static_cast<size_t>(KeyOf(step, name))];
          while (!waiting.empty()) EndReceive(waiting.front(), Wait::kFailed);
        }
        return;
      }
      if (request == requests_.end()) return Fail("an ERROR without a request");
      const Request answered = *request;
      requests_.erase(request);
      if (!answered.is_cancelled) EndReceive(answered.receive, Wait::kFailed);
      return;
    }
    case Message::Kind::kPull: {
      EagerPullMessage pull;
      pull.kind = message.pull;
      pull.scope = message.scope;
      if (message.has_definition) pull.definition = NameOf(message.key).text();
      const bool is_over = pull.scope.kind == EagerScopeKind::kStep &&
                           is_over_here_[static_cast<size_t>(pull.scope.step_id)];
      const auto converts = receiver_->OnPull(pull, is_over);
      if (!converts.ok()) return Fail(std::string(converts.status().message()));
      is_converting_ = *converts && options_->callers.converts && NextToConvert().has_value();
      return;
    }
    case Message::Kind::kAckNow:
      return receiver_->OnAckNow(message.step);
    default:
      return Fail("a message of the consumer at the consumer");
  }
}

void World::EndConsumerStep(int step) {
  is_over_here_[static_cast<size_t>(step)] = true;
  for (size_t i = 0; i < receives_.size(); ++i) {
    Receive& of = receives_[i];
    if (options_->receives[i].step != step) continue;
    if (of.wait != Wait::kWaiting && of.wait != Wait::kRequested && of.wait != Wait::kQueued) {
      continue;
    }
    Cancel(static_cast<int>(i));
  }
  for (int name = 0; name < options_->names; ++name) {
    Queue<Arrived>& arrived = arrived_[static_cast<size_t>(KeyOf(step, name))];
    for (const Arrived& each : arrived) {
      values_[static_cast<size_t>(each.value)].fate = Fate::kDropped;
    }
    arrived.clear();
  }
  if (receiver_.has_value()) SendEnd(step, receiver_->OnStepEnd(step));
  is_converting_ = is_converting_ && NextToConvert().has_value();
}

void World::Cancel(int receive) {
  const Receive of = receives_[static_cast<size_t>(receive)];
  EndReceive(receive, Wait::kFailed);
  is_converting_ = is_converting_ && NextToConvert().has_value();
  if (of.wait != Wait::kRequested) return;
  for (Request& request : requests_) {
    if (request.id == of.id) request.is_cancelled = true;
  }
  PutToProducer({.kind = Message::Kind::kCancel, .id = of.id});
}

// The invariants of every state, besides those that the events check.
std::string World::CheckState() const {
  if (!sender_.has_value() || !receiver_.has_value()) return "";
  for (size_t key = 0; key < queued_.size(); ++key) {
    const int index = static_cast<int>(key);
    const int step = StepOf(index);
    if (is_over(step) || is_over_here_[static_cast<size_t>(step)]) continue;
    if (receiver_->is_pulled(step, NameOf(index)) && !sender_->is_pulled(step, NameOf(index))) {
      return absl::StrCat("V3: values of step ", step, ", name ", index % options_->names,
                          " are requested here, and sent there");
    }
  }
  if (sender_->values_out() > options_->limits.peer_values) {
    return absl::StrCat("V5: ", sender_->values_out(), " values without a receive");
  }
  std::string wrong;
  sender_->ForEachRecord([&](uint64_t sequence, const EagerSender::Record& record) {
    if (!record.is_refused) return;
    if (values_[static_cast<size_t>(sent_[sequence])].fate == Fate::kTaken) {
      wrong = "V1: a value that was taken counts as refused";
    }
  });
  return wrong;
}

std::string World::CheckEnd() const {
  std::vector<std::string> wrong;
  const auto add = [&wrong](const auto&... parts) { wrong.push_back(absl::StrCat(parts...)); };
  const bool is_open = is_open_[0] && is_open_[1] && !is_broken_;
  for (size_t i = 0; i < receives_.size(); ++i) {
    const ReceiveOptions& mine = options_->receives[i];
    const Wait wait = receives_[i].wait;
    if (wait == Wait::kOk || wait == Wait::kFailed) continue;
    if (is_over(mine.step)) add("V9: receive ", i, " waits for a step that is over");
    if (is_over_here_[static_cast<size_t>(mine.step)]) add("V10: receive ", i, " has not ended");
    for (size_t value = 0; value < values_.size(); ++value) {
      const ValueOptions& other = options_->values[value];
      if (other.step != mine.step || other.name != mine.name) continue;
      const Fate fate = values_[value].fate;
      if (fate == Fate::kQueued || fate == Fate::kSent || fate == Fate::kArrived) {
        add("V6: receive ", i, " waits, and value ", value, " is there");
      }
    }
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    const Value& value = values_[i];
    if (value.fate == Fate::kSent || value.fate == Fate::kReplied) {
      add("V1: value ", i, " is neither here nor there");
    }
    const bool is_gone =
        value.fate == Fate::kLost || value.fate == Fate::kRejected || value.fate == Fate::kDropped;
    if (is_gone && value.was_eager && value.is_confirmed) {
      add("V1: value ", i, " was lost, and counts as received");
    }
    if (value.fate == Fate::kRejected && value.was_eager && !value.is_reported && !had_mischief_) {
      add("V1: value ", i, " was rejected, and its sender has not been told");
    }
    if (value.fate == Fate::kLost && value.was_eager && !value.is_reported) {
      add("V1: value ", i, " was lost, and its sender has not been told");
    }
    if (!had_mischief_ && (value.fate == Fate::kLost || value.fate == Fate::kDropped ||
                           value.fate == Fate::kDiscarded)) {
      add("V1: value ", i, " was lost for no reason");
    }
    if (value.fate == Fate::kTaken && value.is_reported && !had_mischief_) {
      add("V1: value ", i, " was received, and counts as lost");
    }
  }
  for (int step = 0; step < options_->steps; ++step) {
    if (phases_[static_cast<size_t>(step)] != Phase::kClosing) continue;
    bool is_received = true;
    for (size_t i = 0; i < values_.size(); ++i) {
      if (options_->values[i].step != step) continue;
      is_received &= values_[i].fate == Fate::kTaken || values_[i].fate == Fate::kUnsent ||
                     values_[i].fate == Fate::kCleared;
    }
    // A loss that was reported ends it with its reason.
    if (is_received && !had_break_) add("V7: step ", step, " is not closed, and all was received");
  }
  if (is_open) {
    if (sender_->values_out() != receiver_->values_unacknowledged()) {
      add("V9: the producer counts ", sender_->values_out(), " values, the consumer ",
          receiver_->values_unacknowledged());
    }
    size_t held = 0;
    for (const Queue<Arrived>& arrived : arrived_) {
      for (const Arrived& each : arrived) held += each.epoch == epoch_ ? 1 : 0;
    }
    if (receiver_->values_held() != held) {
      add("V9: the consumer counts ", receiver_->values_held(), " values, and has ", held);
    }
    size_t live[2] = {0, 0};
    for (int step = 0; step < options_->steps; ++step) {
      live[0] += is_over(step) ? 0 : 1;
      live[1] += is_over_here_[static_cast<size_t>(step)] ? 0 : 1;
    }
    if (sender_->InnerTableSizes().at("eager_sender.steps") > live[0]) {
      add("V9: the producer keeps a step that is over");
    }
    if (receiver_->InnerTableSizes().at("eager_receiver.steps") > live[1]) {
      add("V9: the consumer keeps a step that is over");
    }
    for (const Watcher& each : watchers_) {
      if (is_over_here_[static_cast<size_t>(each.step)]) add("V9: a step that is over is watched");
    }
  }
  return absl::StrJoin(wrong, "; ");
}

std::string World::Describe(const Event& event) const {
  using Kind = Event::Kind;
  const auto text = [](const Message& message) {
    switch (message.kind) {
      case Message::Kind::kRequest:
        return absl::StrCat("REQUEST ", message.id, " of key ", message.key);
      case Message::Kind::kCancel:
        return absl::StrCat("CANCEL ", message.id);
      case Message::Kind::kWatch:
        return absl::StrCat("WATCH ", message.id, " of step ", message.step);
      case Message::Kind::kAck:
        return absl::StrCat("EAGER_ACK ", message.range.first, " x ", message.range.count);
      case Message::Kind::kPush:
        return absl::StrCat("PUSH of ", ToString(message.scope));
      case Message::Kind::kStepRefused:
        return absl::StrCat("STEP_REFUSED ", message.step);
      case Message::Kind::kRejected:
        return absl::StrCat("REJECTED ", message.id & ~kEagerRejectedBit);
      case Message::Kind::kEager:
        return absl::StrCat("EAGER ", message.sequence, ", value ", message.value);
      case Message::Kind::kReadyToSend:
        return absl::StrCat("RTS ", message.id, ", value ", message.value);
      case Message::Kind::kError:
        return absl::StrCat("ERROR ", message.id);
      case Message::Kind::kPull:
        return absl::StrCat(message.pull == EagerPullKind::kMayPush ? "MAY_PUSH of " : "PULL of ",
                            ToString(message.scope));
      case Message::Kind::kAckNow:
        return absl::StrCat("ACK_NOW ", message.step);
    }
    return std::string();
  };
  switch (event.kind) {
    case Kind::kOpen:
      return "the control channel opens";
    case Kind::kSend:
      return absl::StrCat("send value ", next_value_);
    case Kind::kStart:
      return absl::StrCat("step ", event.index, " goes on to start at the producer");
    case Kind::kDrain:
      return "the producer drains a key";
    case Kind::kToProducer:
      return absl::StrCat("to the producer: ", text(to_producer_.front()));
    case Kind::kToConsumer:
      return absl::StrCat("to the consumer: ", text(to_consumer_.front()));
    case Kind::kReceive:
      return absl::StrCat("post receive ", next_receive_);
    case Kind::kRequest:
      return absl::StrCat("request for receive ", event.index);
    case Kind::kConvert:
      return "the consumer requests what waits";
    case Kind::kOutput:
      return "the consumer answers";
    case Kind::kClosed:
      return absl::StrCat("step ", event.index, " is closed at the producer");
    case Kind::kProducerHears:
      return "the producer hears of the end of the control channel";
    case Kind::kConsumerHears:
      return "the consumer hears of the end of the control channel";
    case Kind::kCancel:
      return absl::StrCat("cancel receive ", event.index);
    case Kind::kClose:
      return absl::StrCat("close step ", event.index, " at the producer");
    case Kind::kCloseFails:
      return absl::StrCat("closing step ", event.index, " takes too long");
    case Kind::kAbort:
      return absl::StrCat("abort step ", event.index, " at the producer");
    case Kind::kEndConsumer:
      return absl::StrCat("step ", event.index, " ends at the consumer");
    case Kind::kBreak:
      return "the control channel breaks";
  }
  return "";
}

uint64_t World::Hash() const {
  std::string state;
  state.reserve(2048);
  const auto add = [&state](auto... values) {
    (state.append(reinterpret_cast<const char*>(&values), sizeof(values)), ...);
  };
  const auto add_message = [&](const Message& message) {
    add(message.kind, message.id, message.step, message.key, message.name, message.has_definition,
        message.value, message.sequence, message.scope.kind, message.scope.step_id,
        message.scope.name, message.pull, message.range.first, message.range.count);
  };
  add(is_open_[0], is_open_[1], is_broken_, epoch_, breaks_left_, cancels_left_, had_mischief_,
      had_break_, next_value_, next_receive_, last_id_, is_converting_, to_producer_.size(),
      to_consumer_.size(), deferred_.size(), watchers_.size(), watches_.size(), requests_.size());
  for (const Message& message : to_producer_) add_message(message);
  for (const Message& message : to_consumer_) add_message(message);
  for (const Value& value : values_) {
    add(value.fate, value.was_eager, value.is_confirmed, value.is_reported);
  }
  for (const Receive& receive : receives_) {
    add(receive.wait, receive.id, receive.value, receive.number);
  }
  if (sender_.has_value()) state += sender_->State();
  state += '|';
  if (receiver_.has_value()) state += receiver_->State();
  state += '|';
  for (size_t step = 0; step < phases_.size(); ++step) {
    add(phases_[step], static_cast<bool>(has_loss_[step]), static_cast<bool>(is_over_here_[step]));
  }
  for (const int value : sent_) add(value);
  for (size_t key = 0; key < queued_.size(); ++key) {
    add(queued_[key].size(), requested_[key].size(), arrived_[key].size(), waiting_[key].size());
    for (const int value : queued_[key]) add(value);
    for (const uint64_t id : requested_[key]) add(id);
    for (const Arrived& each : arrived_[key]) add(each.value, each.arrival.sequence, each.epoch);
    for (const int receive : waiting_[key]) add(receive);
  }
  for (const Deferred& each : deferred_) add(each.id, each.key);
  for (const Watcher& each : watchers_) add(each.id, each.step);
  for (const Watcher& each : watches_) add(each.id, each.step);
  for (const Request& each : requests_) add(each.id, each.receive, each.is_cancelled);
  return RendezvousKey::HashOf(state);
}

}  // namespace ferry::eager_test

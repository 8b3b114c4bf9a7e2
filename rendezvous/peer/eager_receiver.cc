// SPDX-License-Identifier: Apache-2.0
// Scopes, watches, names, credit and acknowledgements of a consumer.
#include "rendezvous/peer/eager_receiver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "rendezvous/peer/peer_protocol.h"

namespace ferry {
namespace {

// Acknowledgements that wait for others.
constexpr uint64_t kMostAcks = 256;

absl::Status Violation(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("eager protocol: ", what));
}

}  // namespace

EagerReceiver::EagerReceiver(const EagerLimits& limits, const EagerRules& rules, uint64_t first)
    : limits_(limits),
      rules_(rules),
      most_unacked_values_(
          std::min<uint64_t>({kMostAcks, limits.step_values / 2, limits.peer_values / 2})),
      most_unacked_bytes_(std::min(limits.step_bytes, limits.peer_bytes) / 2),
      next_sequence_(first) {}

void EagerReceiver::Start() {
  all_.answer = Answer::kNow;
  answers_.push_back(EagerScope::All());
}

const EagerReceiver::Name* EagerReceiver::Find(const RendezvousKey& key) const {
  const auto found = numbers_.find(key);
  return found == numbers_.end() ? nullptr : &*names_[found->second - 1];
}

const RendezvousKey* EagerReceiver::FindName(uint32_t name) const {
  if (name == 0 || name > names_.size() || !names_[name - 1].has_value()) return nullptr;
  return &names_[name - 1]->key;
}

bool EagerReceiver::is_pulled(int64_t step_id, const RendezvousKey& key) const {
  const auto found = steps_.find(step_id);
  return IsPulled(found == steps_.end() ? nullptr : &found->second, key);
}

bool EagerReceiver::IsPulled(const Step* step, const RendezvousKey& key) const {
  if (all_.is_pulled || (step != nullptr && step->scope.is_pulled)) return true;
  if (pulled_names_ == 0) return false;
  const Name* const name = Find(key);
  return name != nullptr && name->scope.is_pulled;
}

bool EagerReceiver::is_pulled(const EagerScope& scope) const {
  switch (scope.kind) {
    case EagerScopeKind::kAll:
      return all_.is_pulled;
    case EagerScopeKind::kStep: {
      const auto found = steps_.find(scope.step_id);
      return found != steps_.end() && found->second.scope.is_pulled;
    }
    case EagerScopeKind::kName:
      return FindName(scope.name) != nullptr && names_[scope.name - 1]->scope.is_pulled;
  }
  return false;
}

uint32_t EagerReceiver::NumberForRequest(const RendezvousKey& key) const {
  if (pulled_names_ == 0 && rules_.numbers_only_requested_names) return 0;
  const auto found = numbers_.find(key);
  if (found == numbers_.end()) return 0;
  // The producer keeps the number as long as the name is pulled; another one it may give away
  // before the request arrives.
  if (rules_.numbers_only_requested_names && !names_[found->second - 1]->scope.is_pulled) return 0;
  return found->second;
}

EagerReceiver::Decision EagerReceiver::OnReceive(int64_t step_id, const RendezvousKey& key) {
  Decision decision;
  const auto found = steps_.find(step_id);
  if (found != steps_.end() && found->second.watch == Watch::kEnded) {
    decision.route = Route::kFail;
    decision.status = found->second.ended;
    return decision;
  }
  // REQUEST rejects longer keys.
  if (IsPulled(found == steps_.end() ? nullptr : &found->second, key) ||
      key.text().size() > kMaxKeyBytes) {
    decision.route = Route::kRequest;
    decision.name = Convert(key);
    return decision;
  }
  decision.is_new_step = found == steps_.end();
  Step& step = decision.is_new_step ? steps_[step_id] : found->second;
  if (step.watch == Watch::kNone && rules_.watches) {
    step.watch = Watch::kSent;
    decision.needs_watch = true;
  }
  return decision;
}

bool EagerReceiver::MayWait(int64_t step_id, size_t key_bytes, Decision& decision) {
  if (all_.is_pulled || pulled_names_ != 0 || key_bytes > kMaxKeyBytes) return false;
  const auto [found, is_new_step] = steps_.try_emplace(step_id);
  Step& step = found->second;
  decision.is_new_step = is_new_step;
  if (step.scope.is_pulled || step.watch == Watch::kEnded) return false;
  if (step.watch == Watch::kNone && rules_.watches) {
    step.watch = Watch::kSent;
    decision.needs_watch = true;
  }
  return true;
}

bool EagerReceiver::StartWatch(int64_t step_id) {
  Step& step = steps_[step_id];
  if (step.watch != Watch::kNone) return false;
  step.watch = Watch::kSent;
  return true;
}

uint32_t EagerReceiver::Convert(const RendezvousKey& key) {
  ++requests_being_sent_;
  return NumberForRequest(key);
}

void EagerReceiver::OnWatchEnded(int64_t step_id, const absl::Status& status) {
  const auto found = steps_.find(step_id);
  if (found == steps_.end()) return;
  found->second.watch = Watch::kEnded;
  found->second.ended = status;
}

absl::Status EagerReceiver::OnEager(const EagerHead& head) {
  if (head.sequence != static_cast<uint32_t>(next_sequence_)) {
    return Violation(absl::StrCat("sequence number ", head.sequence, ", expected ",
                                  static_cast<uint32_t>(next_sequence_)));
  }
  step_id_ = head.step_id;
  return absl::OkStatus();
}

absl::Status EagerReceiver::Define(uint32_t name, absl::string_view text,
                                   std::optional<RendezvousKey> known) {
  if (name > limits_.names) {
    return Violation(absl::StrCat("name ", name, " is above ", limits_.names));
  }
  const RendezvousKey* const before = FindName(name);
  if (before != nullptr && names_[name - 1]->scope.is_pulled) {
    return Violation(absl::StrCat("name ", name, " is defined again, and was pulled"));
  }
  const uint64_t bytes =
      name_bytes_ - (before == nullptr ? 0 : before->text().size()) + text.size();
  if (bytes > limits_.name_bytes) {
    return Violation(absl::StrCat("names of ", bytes, " bytes; the limit is ", limits_.name_bytes));
  }
  if (!known.has_value()) {
    FERRY_ASSIGN_OR_RETURN(known, RendezvousKey::Parse(text));
  }
  RendezvousKey& key = *known;
  if (before != nullptr) numbers_.erase(*before);
  if (!numbers_.emplace(key, name).second) {
    return Violation(absl::StrCat("the key defined as number ", name, " has another number"));
  }
  name_bytes_ = bytes;
  if (name > names_.size()) names_.resize(name);
  names_[name - 1] = Name{std::move(key), {}};
  return absl::OkStatus();
}

absl::StatusOr<RendezvousKey> EagerReceiver::OnRecord(const EagerRecord& record,
                                                      std::optional<RendezvousKey> known) {
  ++next_sequence_;
  if (record.name == 0) {
    return known.has_value() ? *std::move(known) : RendezvousKey::Parse(record.text);
  }
  if (!record.text.empty()) {
    FERRY_RETURN_IF_ERROR(Define(record.name, record.text, std::move(known)));
  }
  const RendezvousKey* const key = FindName(record.name);
  if (key == nullptr) return Violation(absl::StrCat("name ", record.name, " is not defined"));
  return *key;
}

void EagerReceiver::AdoptKey(uint32_t name, const RendezvousKey& key) {
  // A later record of the frame may have given the number to another name.
  if (name != 0 && names_[name - 1]->key == key) names_[name - 1]->key = key;
}

absl::Status EagerReceiver::CheckArrival(const EagerRecord& record, Step*& step,
                                         bool& is_new_step) {
  const auto added = steps_.try_emplace(step_id_);
  step = &added.first->second;
  is_new_step = added.second;
  const bool is_named = record.name != 0 && names_[record.name - 1]->scope.is_pulled;
  if (all_.is_pulled || step->scope.is_pulled || is_named) {
    return Violation(
        absl::StrCat("a value of step ", step_id_, ", which is to be requested, was sent"));
  }
  // Values that were taken count until they are acknowledged, but the steps' shares of those are
  // not known.
  if (step->values >= limits_.step_values || step->bytes >= limits_.step_bytes ||
      values_ + unacked_values_ >= limits_.peer_values ||
      bytes_ + unacked_bytes_ >= limits_.peer_bytes) {
    return Violation(absl::StrCat("a value of step ", step_id_, " exceeds the credit"));
  }
  return absl::OkStatus();
}

absl::StatusOr<EagerReceiver::Arrival> EagerReceiver::OnArrival(const EagerRecord& record,
                                                                uint64_t sequence) {
  Step* step = nullptr;
  bool is_new_step = false;
  FERRY_RETURN_IF_ERROR(CheckArrival(record, step, is_new_step));
  const size_t bytes = record.payload.size();
  ++step->values;
  step->bytes += bytes;
  ++values_;
  bytes_ += bytes;
  return Arrival{step_id_, sequence, bytes, is_new_step};
}

absl::StatusOr<EagerReceiver::Arrival> EagerReceiver::OnArrivalTaken(const EagerRecord& record,
                                                                     uint64_t sequence) {
  Step* step = nullptr;
  bool is_new_step = false;
  FERRY_RETURN_IF_ERROR(CheckArrival(record, step, is_new_step));
  const Arrival arrival = {step_id_, sequence, record.payload.size(), is_new_step};
  AddTaken(arrival, step);
  return arrival;
}

void EagerReceiver::AddAck(uint64_t sequence) {
  const auto low = static_cast<uint32_t>(sequence);
  if (!acks_.empty()) {
    EagerRange& last = acks_.back();
    if (last.first + last.count == low && last.count != UINT16_MAX) {
      ++last.count;
      return;
    }
  }
  acks_.push_back({low, 1});
}

void EagerReceiver::AddAcks(uint64_t first, uint64_t count) {
  for (; count > 0 && (acks_.empty() || acks_.back().count > UINT16_MAX / 2); --count) {
    AddAck(first++);
  }
  if (count == 0) return;
  EagerRange& last = acks_.back();
  const auto low = static_cast<uint32_t>(first);
  // A frame has fewer values than the other half.
  if (last.first + last.count == low) {
    last.count = static_cast<uint16_t>(last.count + count);
  } else {
    acks_.push_back({low, static_cast<uint16_t>(count)});
  }
}

bool EagerReceiver::StartTaking() const {
  if (all_.is_pulled) return false;
  const auto found = steps_.find(step_id_);
  if (found == steps_.end()) return false;
  const Step& step = found->second;
  return !step.scope.is_pulled && step.values < limits_.step_values &&
         step.bytes < limits_.step_bytes;
}

void EagerReceiver::OnTaken(uint64_t count, uint64_t bytes) {
  const uint64_t first = next_sequence_;
  next_sequence_ += count;
  AddAcks(first, count);
  unacked_values_ += count;
  unacked_bytes_ += bytes;
  const auto found = steps_.find(step_id_);
  is_ack_due_ |= found != steps_.end() && first < found->second.acked_at_once_below;
}

EagerReceiver::Step* EagerReceiver::Release(const Arrival& arrival) {
  --values_;
  bytes_ -= arrival.bytes;
  const auto found = steps_.find(arrival.step_id);
  if (found == steps_.end()) return nullptr;
  --found->second.values;
  found->second.bytes -= arrival.bytes;
  return &found->second;
}

void EagerReceiver::AddTaken(const Arrival& arrival, const Step* step) {
  AddAck(arrival.sequence);
  ++unacked_values_;
  unacked_bytes_ += arrival.bytes;
  is_ack_due_ |= step != nullptr && arrival.sequence < step->acked_at_once_below;
}

void EagerReceiver::OnTaken(const Arrival& arrival) { AddTaken(arrival, Release(arrival)); }

uint64_t EagerReceiver::OnRejected(const Arrival& arrival) {
  Release(arrival);
  return kEagerRejectedBit | arrival.sequence;
}

EagerReceiver::StepEnd EagerReceiver::OnDropped() {
  StepEnd end;
  if (!rules_.refuses_steps) return end;
  // After a STEP_REFUSED the producer sends nothing more in that step, and what was under way needs
  // no second one.
  for (const std::optional<int64_t>& each : refused_) {
    if (each == step_id_) return end;
  }
  refused_[next_refused_] = step_id_;
  next_refused_ = (next_refused_ + 1) % refused_.size();
  end.is_refused = true;
  if (rules_.acks_before_refusal) end.acks = TakeAcks();
  return end;
}

EagerReceiver::StepEnd EagerReceiver::OnStepEnd(int64_t step_id, bool may_begin_again) {
  StepEnd end;
  const auto found = steps_.find(step_id);
  if (found == steps_.end()) return end;
  const Step step = std::move(found->second);
  steps_.erase(found);
  answers_.erase(std::remove(answers_.begin(), answers_.end(), EagerScope::Step(step_id)),
                 answers_.end());
  end.has_watch = step.watch == Watch::kSent;
  values_ -= step.values;
  bytes_ -= step.bytes;
  end.is_pushed = may_begin_again && step.scope.is_pulled;
  if (step.values == 0 || !rules_.refuses_steps) return end;
  end.is_refused = true;
  refused_[next_refused_] = step_id;
  next_refused_ = (next_refused_ + 1) % refused_.size();
  if (rules_.acks_before_refusal) end.acks = TakeAcks();
  return end;
}

absl::StatusOr<bool> EagerReceiver::OnPull(const EagerPullMessage& pull, bool is_step_over) {
  if (!pull.definition.empty()) FERRY_RETURN_IF_ERROR(Define(pull.scope.name, pull.definition));
  Scope* scope = nullptr;
  switch (pull.scope.kind) {
    case EagerScopeKind::kAll:
      scope = &all_;
      break;
    case EagerScopeKind::kStep:
      if (is_step_over) return false;
      scope = &steps_[pull.scope.step_id].scope;
      break;
    case EagerScopeKind::kName:
      if (FindName(pull.scope.name) == nullptr) {
        return Violation(absl::StrCat("name ", pull.scope.name, " is not defined"));
      }
      scope = &names_[pull.scope.name - 1]->scope;
      break;
  }
  const bool is_again = pull.kind == EagerPullKind::kMayPush;
  if (scope->is_pulled != is_again || (is_again && scope->answer != Answer::kNever)) {
    return Violation(absl::StrCat("a PULL of ", ToString(pull.scope), ", which was",
                                  scope->is_pulled ? "" : " not", " pulled"));
  }
  pulled_names_ += pull.scope.kind == EagerScopeKind::kName && !scope->is_pulled ? 1 : 0;
  scope->is_pulled = true;
  scope->answer = is_again                                 ? Answer::kNow
                  : pull.kind == EagerPullKind::kUntilFree ? Answer::kWhenFree
                                                           : Answer::kNever;
  if (scope->answer != Answer::kNever) answers_.push_back(pull.scope);
  return !is_again;
}

void EagerReceiver::OnAckNow(int64_t step_id) {
  // Also if the step is over here: what it took may not be acknowledged yet.
  is_ack_due_ |= !acks_.empty();
  if (const auto found = steps_.find(step_id); found != steps_.end()) {
    found->second.acked_at_once_below = next_sequence_;
  }
}

bool EagerReceiver::IsHalfFree() const {
  return values_ <= limits_.peer_values / 2 && bytes_ <= limits_.peer_bytes / 2;
}

bool EagerReceiver::IsHalfFree(const Step& step) const {
  return step.values <= limits_.step_values / 2 && step.bytes <= limits_.step_bytes / 2;
}

bool EagerReceiver::AreAcksDue() const {
  if (acks_.empty()) return false;
  return is_ack_due_ || unacked_values_ >= most_unacked_values_ ||
         unacked_bytes_ >= most_unacked_bytes_;
}

bool EagerReceiver::IsAnswerDue(const EagerScope& scope) const {
  const auto is_due = [](const Scope& of, bool is_half_free) {
    return of.answer == Answer::kNow || (of.answer == Answer::kWhenFree && is_half_free);
  };
  switch (scope.kind) {
    case EagerScopeKind::kAll:
      return is_due(all_, IsHalfFree());
    case EagerScopeKind::kStep: {
      const Step& step = steps_.find(scope.step_id)->second;
      return is_due(step.scope, IsHalfFree(step));
    }
    case EagerScopeKind::kName:
      return is_due(names_[scope.name - 1]->scope, false);
  }
  return false;
}

bool EagerReceiver::has_output() const {
  if (AreAcksDue()) return true;
  if (answers_.empty()) return false;
  if (rules_.pushes_after_requests && requests_being_sent_ != 0) return false;
  for (const EagerScope& scope : answers_) {
    if (IsAnswerDue(scope)) return true;
  }
  return false;
}

EagerRanges EagerReceiver::TakeAcks() {
  unacked_values_ = 0;
  unacked_bytes_ = 0;
  is_ack_due_ = false;
  return std::exchange(acks_, {});
}

EagerReceiver::Output EagerReceiver::TakeOutput(bool all) {
  Output output;
  if (!rules_.pushes_after_requests || requests_being_sent_ == 0) {
    for (size_t i = 0; i < answers_.size();) {
      const EagerScope scope = answers_[i];
      if (!IsAnswerDue(scope)) {
        ++i;
        continue;
      }
      answers_.erase(answers_.begin() + static_cast<std::ptrdiff_t>(i));
      Scope& of = scope.kind == EagerScopeKind::kAll    ? all_
                  : scope.kind == EagerScopeKind::kStep ? steps_.find(scope.step_id)->second.scope
                                                        : names_[scope.name - 1]->scope;
      of = {};
      pulled_names_ -= scope.kind == EagerScopeKind::kName ? 1 : 0;
      output.pushes.push_back(scope);
    }
  }
  if (all || !output.pushes.empty() || AreAcksDue()) output.acks = TakeAcks();
  return output;
}

EagerRange EagerReceiver::TakeOneAck() {
  if (acks_.size() != 1) return {};
  return TakeAcks().front();
}

TableSizes EagerReceiver::InnerTableSizes() const {
  return {{"eager_receiver.steps", steps_.size()},
          {"eager_receiver.names", numbers_.size()},
          {"eager_receiver.acks", acks_.size()},
          {"eager_receiver.answers", answers_.size()}};
}

std::string EagerReceiver::State() const {
  std::string state;
  const auto add = [&state](auto... values) {
    (state.append(reinterpret_cast<const char*>(&values), sizeof(values)), ...);
  };
  add(all_.is_pulled, all_.answer, next_sequence_, requests_being_sent_, values_, bytes_,
      unacked_values_, unacked_bytes_, is_ack_due_, name_bytes_, next_refused_, acks_.size(),
      steps_.size(), answers_.size(), names_.size());
  for (const EagerRange& range : acks_) add(range.first, range.count);
  for (const EagerScope& scope : answers_) add(scope.kind, scope.step_id, scope.name);
  for (const std::optional<int64_t>& step_id : refused_) {
    add(step_id.has_value(), step_id.value_or(0));
  }
  for (const auto& [step_id, step] : steps_) {
    add(step_id, step.scope.is_pulled, step.scope.answer, step.watch, step.values, step.bytes,
        step.acked_at_once_below);
  }
  for (const std::optional<Name>& name : names_) {
    add(name.has_value());
    if (name.has_value()) add(name->key.hash(), name->scope.is_pulled, name->scope.answer);
  }
  return state;
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// Scopes, credit, numbers of names, and values that are not acknowledged.
#include "rendezvous/peer/eager_sender.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "rendezvous/peer/peer_protocol.h"

namespace ferry {

EagerSender::EagerSender(const EagerLimits& limits, const EagerRules& rules, uint64_t first)
    : limits_(limits), rules_(rules), next_sequence_(first), seen_(limits.names) {}

EagerSender::Decision EagerSender::Send(int64_t step_id, const RendezvousKey& key,
                                        const Value& value) {
  Decision decision;
  // No receive can ask for a longer key either.
  if (!has_started_ || key.text().size() > kMaxKeyBytes) return decision;
  const uint32_t number = NumberOf(key);
  Slot* const slot = number == 0 ? nullptr : &*slots_[number - 1];
  if (slot != nullptr) slot->is_recent = true;
  if (slot != nullptr && slot->is_pulled) {
    // The scan after its PUSH finds the value.
    slot->streak = value.is_eager ? static_cast<uint8_t>(std::min(slot->streak + 1, 255)) : 0;
    if (slot->streak >= kStreak && !slot->has_asked) {
      slot->has_asked = true;
      decision.pulls.push_back({EagerPullKind::kMayPush, EagerScope::Name(number), {}});
    }
    return decision;
  }
  const auto [at_step, is_new_step] = steps_.try_emplace(step_id);
  Step& step = at_step->second;
  decision.is_new_step = is_new_step;
  const auto keep = [&] {
    if (rules_.drains && (value.is_eager || rules_.drains_large_values)) step.Add(key);
    decision.needs_drain = IsDrainable(step, key) && step.is_listed.contains(key);
  };
  if (!value.is_step_serving && rules_.waits_for_step_to_serve) {
    step.is_starting = true;
    keep();
    return decision;
  }
  if (lacks_names_) {
    if (HasFreeNames()) {
      lacks_names_ = false;
      decision.pulls.push_back({EagerPullKind::kMayPush, EagerScope::All(), {}});
    } else if (!value.is_drained) {
      AskForPushOfName(decision);
    }
  }
  if (is_all_pulled_ || step.is_pulled || step.is_refused ||
      (value.is_behind_another && rules_.sends_in_order)) {
    keep();
    return decision;
  }
  if (!value.is_eager) {
    bool is_new = false;
    const uint32_t name = NameOf(key, is_new);
    if (name == 0) {
      // No other message can say that this value is to be requested.
      PullAll(decision, EagerPullKind::kUntilMayPush);
      lacks_names_ = true;
      keep();
      return decision;
    }
    Slot& pulled = *slots_[name - 1];
    if (!rules_.pulls) return decision;
    pulled.is_pulled = true;
    pulled.has_asked = false;
    pulled.streak = 0;
    ++pulled_names_;
    pulled_bytes_ += key.text().size();
    decision.pulls.push_back({EagerPullKind::kUntilMayPush, EagerScope::Name(name),
                              is_new ? absl::string_view(key.text()) : absl::string_view()});
    // At most once for each value: the name whose PUSH comes may be pulled again at once.
    if (!value.is_drained &&
        (pulled_names_ > limits_.names / 2 || pulled_bytes_ > limits_.name_bytes / 2)) {
      AskForPushOfName(decision);
    }
    return decision;
  }
  const bool has_credit =
      !rules_.keeps_to_credit || (values_ < limits_.peer_values && bytes_ < limits_.peer_bytes);
  // The consumer answers when it has read what is queued.
  if (!has_credit || value.is_channel_full) {
    PullAll(decision, EagerPullKind::kUntilFree);
    keep();
    return decision;
  }
  if (rules_.keeps_to_credit &&
      (step.values >= limits_.step_values || step.bytes >= limits_.step_bytes)) {
    step.is_pulled = true;
    decision.pulls.push_back({EagerPullKind::kUntilFree, EagerScope::Step(step_id), {}});
    keep();
    return decision;
  }
  decision.is_sent = true;
  decision.sequence = next_sequence_++;
  decision.name = slot != nullptr ? number : NameToSend(key, decision.defines_name);
  if (decision.name != 0) ++slots_[decision.name - 1]->records;
  Sent& sent = records_.Add(decision.sequence);
  sent.step_id = step_id;
  sent.since = value.since;
  sent.bytes = static_cast<uint32_t>(value.bytes);
  sent.name = decision.name;
  if (decision.name == 0) sent.key = key;
  decision.is_first_unacknowledged = step.values + step.refused == 0;
  ++step.values;
  step.bytes += value.bytes;
  ++values_;
  bytes_ += value.bytes;
  decision.asks_for_acks = step.is_flushing;
  if (step.is_flushing) step.asked_below = next_sequence_;
  return decision;
}

bool EagerSender::StartBurst(int64_t step_id, Decision& decision) {
  if (!has_started_ || lacks_names_ || is_all_pulled_) return false;
  const auto [found, is_new_step] = steps_.try_emplace(step_id);
  Step& step = found->second;
  decision.is_new_step = is_new_step;
  if (step.is_pulled || step.is_refused || step.is_starting || step.is_flushing) return false;
  decision.is_first_unacknowledged = step.values + step.refused == 0;
  burst_step_id_ = step_id;
  burst_step_ = &step;
  return true;
}

bool EagerSender::SendInBurst(const RendezvousKey& key, size_t bytes, int64_t since,
                              Decision& decision) {
  Step& step = *burst_step_;
  if (values_ >= limits_.peer_values || bytes_ >= limits_.peer_bytes ||
      step.values >= limits_.step_values || step.bytes >= limits_.step_bytes) {
    return false;
  }
  uint32_t number = NumberOf(key);
  decision.defines_name = false;
  if (number == 0) {
    if (key.text().size() > kMaxKeyBytes) return false;
    number = NameToSend(key, decision.defines_name);
  }
  if (number != 0) {
    Slot& slot = *slots_[number - 1];
    if (slot.is_pulled) return false;
    slot.is_recent = true;
    ++slot.records;
  }
  decision.name = number;
  decision.sequence = next_sequence_++;
  Sent& sent = records_.Add(decision.sequence);
  sent.step_id = burst_step_id_;
  sent.since = since;
  sent.bytes = static_cast<uint32_t>(bytes);
  sent.name = number;
  if (number == 0) sent.key = key;
  ++step.values;
  step.bytes += bytes;
  ++values_;
  bytes_ += bytes;
  return true;
}

void EagerSender::PullAll(Decision& decision, EagerPullKind kind) {
  is_all_pulled_ = true;
  decision.pulls.push_back({kind, EagerScope::All(), {}});
}

void EagerSender::AskForPushOfName(Decision& decision) {
  const size_t most = std::min(slots_.size(), kMaxPulledSearch);
  for (size_t i = 0; i < most; ++i) {
    const size_t at = pulled_hand_;
    pulled_hand_ = (pulled_hand_ + 1) % slots_.size();
    Slot& slot = *slots_[at];
    if (!slot.is_pulled || slot.has_asked) continue;
    slot.has_asked = true;
    decision.pulls.push_back(
        {EagerPullKind::kMayPush, EagerScope::Name(static_cast<uint32_t>(at + 1)), {}});
    return;
  }
}

bool EagerSender::HasFreeNames() const {
  return 2 * (pulled_names_ + records_.size()) < limits_.names &&
         2 * pulled_bytes_ < limits_.name_bytes;
}

uint32_t EagerSender::NumberOf(const RendezvousKey& key) {
  const bool has_last = last_name_ != 0 && slots_[last_name_ - 1].has_value();
  if (has_last) {
    const uint32_t next = slots_[last_name_ - 1]->next;
    if (next != 0 && slots_[next - 1].has_value() && slots_[next - 1]->key.IsSameObject(key)) {
      return last_name_ = next;
    }
  }
  const auto found = names_.find(key);
  if (found == names_.end()) return 0;
  if (has_last) slots_[last_name_ - 1]->next = found->second;
  return last_name_ = found->second;
}

uint32_t EagerSender::NameOf(const RendezvousKey& key, bool& is_new) {
  is_new = false;
  if (const auto found = names_.find(key); found != names_.end()) return found->second;
  const size_t bytes = key.text().size();
  const uint32_t name = FreeName(bytes);
  if (name == 0) return 0;
  slots_[name - 1] = Slot{key};
  names_.emplace(key, name);
  name_bytes_ += bytes;
  is_new = true;
  return name;
}

uint32_t EagerSender::NameToSend(const RendezvousKey& key, bool& is_new) {
  if (rules_.numbers_at_second_use && !seen_.Add(key.hash())) return 0;
  return NameOf(key, is_new);
}

uint32_t EagerSender::FreeName(size_t bytes) {
  if (slots_.size() < limits_.names && name_bytes_ + bytes <= limits_.name_bytes) {
    slots_.emplace_back();
    return static_cast<uint32_t>(slots_.size());
  }
  // The clock: a name that was used since the hand passed it stays for another turn. One name makes
  // way for one, since the consumer forgets a text only when its number is defined again.
  for (size_t i = 0; i < 2 * slots_.size(); ++i) {
    const size_t at = hand_;
    hand_ = (hand_ + 1) % slots_.size();
    Slot& slot = *slots_[at];
    if (rules_.pins_names && (slot.is_pulled || slot.records != 0)) continue;
    const size_t freed = slot.key.text().size();
    if (name_bytes_ - freed + bytes > limits_.name_bytes) continue;
    if (slot.is_recent) {
      slot.is_recent = false;
      continue;
    }
    name_bytes_ -= freed;
    names_.erase(slot.key);
    slots_[at].reset();
    return static_cast<uint32_t>(at + 1);
  }
  return 0;
}

absl::StatusOr<EagerSender::Scan> EagerSender::OnPush(const EagerScope& scope) {
  Scan scan;
  const auto violation = [&scope] {
    return absl::InvalidArgumentError(
        absl::StrCat("a PUSH of ", ToString(scope), ", which was not pulled"));
  };
  switch (scope.kind) {
    case EagerScopeKind::kAll:
      if (!is_all_pulled_ || lacks_names_) return violation();
      is_all_pulled_ = false;
      scan.is_needed = !has_started_ && rules_.drains;
      has_started_ = true;
      return scan;
    case EagerScopeKind::kStep: {
      const auto found = steps_.find(scope.step_id);
      if (found == steps_.end() && rules_.ignores_push_of_ended_steps) return scan;
      if (found == steps_.end() || !found->second.is_pulled) return violation();
      found->second.is_pulled = false;
      return scan;
    }
    case EagerScopeKind::kName: {
      Slot* const slot =
          scope.name == 0 || scope.name > slots_.size() || !slots_[scope.name - 1].has_value()
              ? nullptr
              : &*slots_[scope.name - 1];
      if (slot == nullptr || !slot->is_pulled || !slot->has_asked) return violation();
      slot->is_pulled = false;
      --pulled_names_;
      pulled_bytes_ -= slot->key.text().size();
      scan.is_needed = rules_.drains;
      scan.key = slot->key;
      return scan;
    }
  }
  return violation();
}

bool EagerSender::AddToDrain(int64_t step_id, const RendezvousKey& key) {
  const auto [found, is_new_step] = steps_.try_emplace(step_id);
  found->second.Add(key);
  return is_new_step;
}

const EagerSender::Slot* EagerSender::FindName(const RendezvousKey& key) const {
  const auto found = names_.find(key);
  return found == names_.end() ? nullptr : &*slots_[found->second - 1];
}

const RendezvousKey* EagerSender::FindName(uint32_t name) const {
  if (name == 0 || name > slots_.size() || !slots_[name - 1].has_value()) return nullptr;
  return &slots_[name - 1]->key;
}

bool EagerSender::IsDrainable(const Step& step, const RendezvousKey& key) const {
  if (is_all_pulled_ || step.is_pulled || step.is_refused || step.is_starting) return false;
  const Slot* const slot = FindName(key);
  return slot == nullptr || !slot->is_pulled;
}

std::optional<std::pair<int64_t, RendezvousKey>> EagerSender::NextToDrain() {
  if (is_all_pulled_) return std::nullopt;
  for (auto& [step_id, step] : steps_) {
    if (step.is_pulled || step.is_refused || step.is_starting) continue;
    while (!step.backlog.empty()) {
      RendezvousKey key = std::move(step.backlog.front());
      step.backlog.pop_front();
      step.is_listed.erase(key);
      // A name that is pulled is scanned for after its PUSH.
      if (IsDrainable(step, key)) return std::make_pair(step_id, std::move(key));
    }
  }
  return std::nullopt;
}

bool EagerSender::needs_drain() const {
  if (is_all_pulled_) return false;
  for (const auto& [step_id, step] : steps_) {
    for (const RendezvousKey& key : step.backlog) {
      if (IsDrainable(step, key)) return true;
    }
  }
  return false;
}

void EagerSender::OnStepServing(int64_t step_id) {
  if (const auto found = steps_.find(step_id); found != steps_.end()) {
    found->second.is_starting = false;
  }
}

std::optional<uint64_t> EagerSender::Extend(uint32_t low) const {
  const uint32_t back = static_cast<uint32_t>(next_sequence_) - low;
  if (back == 0 || back > next_sequence_) return std::nullopt;
  return next_sequence_ - back;
}

EagerSender::Record EagerSender::RecordOf(const Sent& sent) const {
  return {.step_id = sent.step_id,
          .bytes = sent.bytes,
          .key = sent.key.has_value() ? *sent.key : slots_[sent.name - 1]->key,
          .name = sent.name,
          .since = sent.since,
          .is_refused = sent.is_refused};
}

EagerSender::Step* EagerSender::FindStep(int64_t step_id) {
  const auto found = steps_.find(step_id);
  return found == steps_.end() ? nullptr : &found->second;
}

void EagerSender::Release(const Sent& sent, Step* step) {
  if (sent.name != 0) --slots_[sent.name - 1]->records;
  if (sent.is_refused) {
    if (step != nullptr) --step->refused;
    return;
  }
  --values_;
  bytes_ -= sent.bytes;
  if (step == nullptr || sent.is_over) return;
  --step->values;
  step->bytes -= sent.bytes;
}

absl::Status EagerSender::OnAck(
    const EagerRange& range, absl::FunctionRef<void(uint64_t sequence, const Sent& sent)> visit) {
  const std::optional<uint64_t> first = Extend(range.first);
  if (range.count == 0 || !first.has_value() || *first + range.count > next_sequence_) {
    return absl::InvalidArgumentError(absl::StrCat("an EAGER_ACK of ", range.count, " values from ",
                                                   range.first, ", which have not all been sent"));
  }
  // Most are of one step.
  std::optional<int64_t> step_id;
  Step* step = nullptr;
  records_.EraseRange(*first, *first + range.count, [&](uint64_t sequence, const Sent& sent) {
    if (step_id != sent.step_id) {
      step_id = sent.step_id;
      step = FindStep(sent.step_id);
    }
    Release(sent, step);
    if (!sent.is_over) visit(sequence, sent);
  });
  return absl::OkStatus();
}

absl::StatusOr<std::optional<EagerSender::Record>> EagerSender::OnRejected(uint64_t id) {
  const uint64_t sequence = id & ~kEagerRejectedBit;
  if ((id & kEagerRejectedBit) == 0 || sequence >= next_sequence_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a REJECTED for value ", sequence, ", which was not sent"));
  }
  Sent* const sent = records_.Find(sequence);
  if (sent == nullptr) return std::optional<Record>();
  std::optional<Record> record;
  if (!sent->is_over) record = RecordOf(*sent);
  Release(*sent, FindStep(sent->step_id));
  records_.Erase(sequence);
  return record;
}

void EagerSender::OnStepRefused(int64_t step_id) {
  Step* const step = FindStep(step_id);
  if (step != nullptr) {
    step->is_refused = true;
    step->backlog.clear();
    step->is_listed.clear();
  }
  records_.EraseIf([&](uint64_t, Sent& sent) {
    if (sent.step_id != step_id || sent.is_refused) return false;
    Release(sent, step);
    if (step == nullptr || sent.is_over) return true;
    // The credit is returned, but the value was not received.
    if (sent.name != 0) ++slots_[sent.name - 1]->records;
    sent.is_refused = true;
    ++step->refused;
    return false;
  });
}

bool EagerSender::StartFlush(int64_t step_id) {
  if (!rules_.asks_for_acks) return false;
  Step& step = steps_[step_id];
  step.is_flushing = true;
  // After a value, so that the consumer knows the step, or that it is over.
  if (step.values == 0 || step.asked_below == next_sequence_) return false;
  step.asked_below = next_sequence_;
  return true;
}

void EagerSender::EndFlush(int64_t step_id) {
  const auto found = steps_.find(step_id);
  if (found != steps_.end()) found->second.is_flushing = false;
}

bool EagerSender::IsFlushed(int64_t step_id) const { return unacknowledged(step_id) == 0; }

size_t EagerSender::unacknowledged(int64_t step_id) const {
  const auto found = steps_.find(step_id);
  return found == steps_.end() ? 0 : found->second.values + found->second.refused;
}

void EagerSender::OnStepEnd(int64_t step_id, Visitor visit) {
  const auto found = steps_.find(step_id);
  if (found == steps_.end()) return;
  if (found->second.values + found->second.refused != 0) {
    records_.EraseIf([&](uint64_t sequence, Sent& sent) {
      if (sent.step_id != step_id || sent.is_over) return false;
      visit(sequence, RecordOf(sent));
      sent.is_over = true;
      if (!sent.is_refused) return false;
      Release(sent, &found->second);
      return true;
    });
  }
  steps_.erase(step_id);
}

void EagerSender::OnChannelEnd(Visitor visit) {
  ForEachRecord(visit);
  *this = EagerSender(limits_, rules_);
}

void EagerSender::ForEachRecord(Visitor visit) const {
  records_.ForEach([&](uint64_t sequence, const Sent& sent) {
    if (!sent.is_over) visit(sequence, RecordOf(sent));
  });
}

bool EagerSender::is_pulled(int64_t step_id, const RendezvousKey& key) const {
  if (is_all_pulled_) return true;
  const auto found = steps_.find(step_id);
  if (found != steps_.end() && (found->second.is_pulled || found->second.is_refused)) return true;
  const Slot* const slot = FindName(key);
  return slot != nullptr && slot->is_pulled;
}

TableSizes EagerSender::InnerTableSizes() const {
  size_t backlog = 0;
  for (const auto& [step_id, step] : steps_) backlog += step.backlog.size();
  return {{"eager_sender.records", records_.size()},
          {"eager_sender.steps", steps_.size()},
          {"eager_sender.backlog", backlog},
          {"eager_sender.names", names_.size()}};
}

std::string EagerSender::State() const {
  std::string state;
  const auto add = [&state](auto... values) {
    (state.append(reinterpret_cast<const char*>(&values), sizeof(values)), ...);
  };
  add(has_started_, is_all_pulled_, lacks_names_, next_sequence_, values_, bytes_, name_bytes_,
      pulled_names_, pulled_bytes_, hand_, pulled_hand_, records_.size(), steps_.size(),
      slots_.size());
  std::vector<std::pair<uint64_t, const Sent*>> records;
  records_.ForEach(
      [&records](uint64_t sequence, const Sent& sent) { records.emplace_back(sequence, &sent); });
  std::sort(records.begin(), records.end());
  for (const auto& [sequence, sent] : records) {
    add(sequence, sent->step_id, sent->bytes, RecordOf(*sent).key.hash(), sent->name,
        sent->is_refused, sent->is_over);
  }
  for (const auto& [step_id, step] : steps_) {
    add(step_id, step.is_pulled, step.is_refused, step.is_starting, step.is_flushing,
        step.asked_below, step.values, step.bytes, step.refused, step.backlog.size());
    for (const RendezvousKey& key : step.backlog) add(key.hash());
  }
  for (const std::optional<Slot>& slot : slots_) {
    add(slot->key.hash(), slot->records, slot->is_pulled, slot->has_asked, slot->streak,
        slot->is_recent);
  }
  if (rules_.numbers_at_second_use) state += seen_.State();
  return state;
}

}  // namespace ferry

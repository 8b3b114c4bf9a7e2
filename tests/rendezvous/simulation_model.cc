// SPDX-License-Identifier: Apache-2.0
// The contracts, as plainly as they can be written.
#include "tests/rendezvous/simulation_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ferry::simulation {

using absl::StatusCode;

Outcome Error(StatusCode code, std::string text) { return {code, std::move(text), {}}; }

Outcome AsConsequence(Outcome why) {
  why.text = absl::StrCat("[_Derived_]", why.text);
  return why;
}

std::string PendingLine(absl::string_view prefix, const RendezvousKey& key, absl::string_view side,
                        size_t bytes, absl::Duration age) {
  return absl::StrCat(prefix, " ", key.text(), " ", side, " ", bytes, " ",
                      absl::FormatDuration(age));
}

// --- A table

Outcome TableModel::Send(const RendezvousKey& key, const Value& value, absl::Time now) {
  if (aborted_.has_value()) return *aborted_;
  auto& [stored_key, queue] = queues_.try_emplace(key.text(), key, Queue()).first->second;
  if (!queue.empty() && queue.front().receive != nullptr) {
    const Item item = queue.front();
    queue.pop_front();
    Count(item, -1);
    ledger_.End(item.receive, {.value = value});
    return {};
  }
  if (waiting_count_ >= limits_.max_pending_ops) {
    return Error(StatusCode::kResourceExhausted, "--max-pending-ops");
  }
  if (queued_bytes_ + value.bytes > limits_.max_queued_bytes) {
    return Error(StatusCode::kResourceExhausted, "--max-queued-bytes");
  }
  queue.push_back({value, nullptr, now});
  Count(queue.back(), +1);
  return {};
}

void TableModel::Recv(const ReceivePtr& receive, absl::Time now) {
  if (aborted_.has_value()) return ledger_.End(receive, *aborted_);
  auto& [stored_key, queue] =
      queues_.try_emplace(receive->key.text(), receive->key, Queue()).first->second;
  if (!queue.empty() && queue.front().receive == nullptr) {
    const Item item = queue.front();
    queue.pop_front();
    Count(item, -1);
    return ledger_.End(receive, {.value = item.value});
  }
  if (receive->cancellation != nullptr && receive->cancellation->is_cancelled()) {
    return ledger_.End(receive,
                       Error(StatusCode::kCancelled, "[_Derived_]RecvAsync is cancelled."));
  }
  if (waiting_count_ >= limits_.max_pending_ops) {
    return ledger_.End(receive, Error(StatusCode::kResourceExhausted, "--max-pending-ops"));
  }
  receive->since = now;
  queue.push_back({{}, receive, now});
  Count(queue.back(), +1);
}

std::vector<TableModel::Item> TableModel::Take(
    const std::function<bool(const RendezvousKey&, const Item&)>& matches) {
  std::vector<Item> taken;
  for (auto& [text, entry] : queues_) {
    Queue kept;
    for (const Item& item : entry.second) {
      if (!matches(entry.first, item)) {
        kept.push_back(item);
        continue;
      }
      Count(item, -1);
      taken.push_back(item);
    }
    entry.second = std::move(kept);
  }
  return taken;
}

void TableModel::Cancel(const CancellationToken& cancellation) {
  const auto is_its = [&cancellation](const RendezvousKey&, const Item& item) {
    return item.receive != nullptr && item.receive->cancellation.get() == &cancellation;
  };
  for (const Item& item : Take(is_its)) {
    ledger_.End(item.receive, Error(StatusCode::kCancelled, "[_Derived_]RecvAsync is cancelled."));
  }
}

void TableModel::Expire(absl::Time now) {
  const auto is_late = [now](const RendezvousKey&, const Item& item) {
    return item.receive != nullptr && item.receive->deadline <= now;
  };
  for (const Item& item : Take(is_late)) {
    ledger_.End(item.receive, Error(StatusCode::kDeadlineExceeded, item.receive->key.text()));
  }
}

void TableModel::Abort(const Outcome& why) {
  if (aborted_.has_value()) return;
  aborted_ = why;
  for (const Item& item : Take([](const RendezvousKey&, const Item&) { return true; })) {
    if (item.receive != nullptr) ledger_.End(item.receive, why);
  }
}

size_t TableModel::Fail(
    const std::function<std::optional<Outcome>(const RendezvousKey&)>& verdict) {
  size_t count = 0;
  for (auto& [text, entry] : queues_) {
    const std::optional<Outcome> why = verdict(entry.first);
    if (!why.has_value()) continue;
    for (const Item& item : entry.second) {
      Count(item, -1);
      ++count;
      if (item.receive != nullptr) ledger_.End(item.receive, *why);
    }
    entry.second.clear();
  }
  return count;
}

void TableModel::Count(const Item& item, int sign) {
  waiting_count_ += sign > 0 ? 1 : -1;
  if (item.receive != nullptr) return;
  queued_bytes_ += sign > 0 ? item.value.bytes : -item.value.bytes;
  if (!item.value.is_dead) queued_tensors_ += sign;
}

absl::Time TableModel::FirstDeadline() const {
  absl::Time first = absl::InfiniteFuture();
  for (const auto& [text, entry] : queues_) {
    for (const Item& item : entry.second) {
      if (item.receive != nullptr) first = std::min(first, item.receive->deadline);
    }
  }
  return first;
}

void TableModel::AddPending(absl::string_view prefix, absl::Time now, PendingLines& lines) const {
  for (const auto& [text, entry] : queues_) {
    for (const Item& item : entry.second) {
      lines.push_back(PendingLine(prefix, entry.first, item.receive == nullptr ? "send" : "recv",
                                  item.value.bytes, now - item.since));
    }
  }
}

// --- A step of a worker

Outcome StepModel::Initialize(const TaskName& worker, absl::Time now) {
  if (worker_.has_value()) {
    return *worker_ == worker ? Outcome() : Error(StatusCode::kInternal, "Double init!");
  }
  worker_ = worker;
  std::vector<ReceivePtr> deferred;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (it->is_deferred) deferred.push_back(it->receive);
    it = it->is_deferred ? waiting_.erase(it) : std::next(it);
  }
  for (const ReceivePtr& receive : deferred) RecvLocal(receive, now);
  return {};
}

Outcome StepModel::Send(const RendezvousKey& key, const Value& value, absl::Time now) {
  if (!worker_.has_value()) return Error(StatusCode::kInternal, "before initialization");
  if (!(key.src().task == *worker_)) {
    return Error(StatusCode::kInvalidArgument, "Invalid rendezvous key (src)");
  }
  return table.Send(key, value, now);
}

void StepModel::Recv(const ReceivePtr& receive, absl::Time now) {
  if (table.aborted().has_value()) return ledger_.End(receive, *table.aborted());
  if (!worker_.has_value()) {
    return ledger_.End(receive, Error(StatusCode::kInternal, "before initialization"));
  }
  if (!(receive->key.dst().task == *worker_)) {
    return ledger_.End(receive,
                       Error(StatusCode::kInvalidArgument, "Invalid rendezvous key (dst)"));
  }
  if (receive->key.src().task == *worker_) return table.Recv(receive, now);
  Add(receive, /*is_deferred=*/false, now);
}

void StepModel::RecvLocal(const ReceivePtr& receive, absl::Time now) {
  if (!worker_.has_value()) return Add(receive, /*is_deferred=*/true, now);
  if (!(receive->key.src().task == *worker_)) {
    return ledger_.End(receive,
                       Error(StatusCode::kInvalidArgument, "Invalid rendezvous key (src)"));
  }
  table.Recv(receive, now);
}

void StepModel::Add(const ReceivePtr& receive, bool is_deferred, absl::Time now) {
  if (table.aborted().has_value()) return ledger_.End(receive, *table.aborted());
  if (receive->cancellation != nullptr && receive->cancellation->is_cancelled()) {
    return ledger_.End(receive, Error(StatusCode::kCancelled, "Async is cancelled."));
  }
  if (waiting_.size() >= limits_.max_pending_ops) {
    return ledger_.End(receive, Error(StatusCode::kResourceExhausted, "--max-pending-ops"));
  }
  receive->since = now;
  waiting_.push_back({receive, is_deferred});
}

size_t StepModel::EndSome(const std::function<std::optional<Outcome>(const Waiting&)>& verdict) {
  size_t count = 0;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (std::optional<Outcome> why = verdict(*it); why.has_value()) {
      ledger_.End(it->receive, *std::move(why));
      it = waiting_.erase(it);
      ++count;
    } else {
      ++it;
    }
  }
  return count;
}

void StepModel::Fetched(const ReceivePtr& receive, const Outcome& outcome) {
  EndSome([&](const Waiting& waiting) {
    return waiting.receive == receive ? std::optional<Outcome>(outcome) : std::nullopt;
  });
}

void StepModel::Cancel(const CancellationToken& cancellation) {
  table.Cancel(cancellation);
  EndSome([&cancellation](const Waiting& waiting) -> std::optional<Outcome> {
    if (waiting.receive->cancellation.get() != &cancellation) return std::nullopt;
    return Error(StatusCode::kCancelled, waiting.is_deferred
                                             ? "[_Derived_]RecvLocalAsync is cancelled."
                                             : "[_Derived_]RecvFromRemoteAsync is cancelled.");
  });
}

void StepModel::Expire(absl::Time now) {
  table.Expire(now);
  EndSome([now](const Waiting& waiting) -> std::optional<Outcome> {
    if (waiting.receive->deadline > now) return std::nullopt;
    return Error(StatusCode::kDeadlineExceeded, waiting.receive->key.text());
  });
}

void StepModel::Abort(const Outcome& why) {
  if (table.aborted().has_value()) return;
  const Outcome marked = AsConsequence(why);
  table.Abort(marked);
  EndSome([&marked](const Waiting&) { return marked; });
}

size_t StepModel::FailTask(const TaskName& task, const Outcome& why) {
  const auto verdict = [&](const RendezvousKey& key) -> std::optional<Outcome> {
    if (!(key.src().task == task) && !(key.dst().task == task)) return std::nullopt;
    return Error(why.code, absl::StrCat(why.text, "; step ", step_id, " needed ", key.text()));
  };
  return table.Fail(verdict) +
         EndSome([&verdict](const Waiting& waiting) { return verdict(waiting.receive->key); });
}

absl::Time StepModel::FirstDeadline() const {
  absl::Time first = table.FirstDeadline();
  for (const Waiting& waiting : waiting_) first = std::min(first, waiting.receive->deadline);
  return first;
}

void StepModel::AddPending(absl::Time now, PendingLines& lines) const {
  const std::string prefix = absl::StrCat(step_id);
  table.AddPending(prefix, now, lines);
  for (const Waiting& waiting : waiting_) {
    lines.push_back(PendingLine(prefix, waiting.receive->key,
                                waiting.is_deferred ? "deferred" : "fetch", 0,
                                now - waiting.receive->since));
  }
}

}  // namespace ferry::simulation

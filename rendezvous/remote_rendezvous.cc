// SPDX-License-Identifier: Apache-2.0
// Local or remote, and the list of what is under way.
#include "rendezvous/remote_rendezvous.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry {
namespace {

absl::Status NotHere(absl::string_view side, const RendezvousKey& key, const TaskName& worker) {
  return absl::InvalidArgumentError(absl::StrCat(
      "Invalid rendezvous key (", side, "): ", absl::CEscape(key.text()), " @ ", ToString(worker)));
}

// The cause is somewhere else: whoever sees several errors of a step is to report that one.
absl::Status AsConsequence(const absl::Status& why) {
  const bool is_consequence = absl::IsCancelled(why) || absl::IsAborted(why);
  return is_consequence ? MakeDerived(why) : why;
}

}  // namespace

RemoteRendezvous::RemoteRendezvous(int64_t step_id, const Clock& clock, RendezvousLimits limits,
                                   RemoteFetcher& fetcher)
    : step_id_(step_id), clock_(clock), limits_(limits), fetcher_(fetcher), local_(clock, limits) {}

// Fetches and cancellations hold weak references: whatever waits must be told here.
RemoteRendezvous::~RemoteRendezvous() {
  size_t count = 0;
  EndAll([](const Waiting&) { return absl::CancelledError("the step's rendezvous is deleted"); },
         count);
}

absl::Status RemoteRendezvous::Initialize(const TaskName& worker) {
  {
    SpinLockHolder lock(&mu_);
    if (worker_.has_value()) {
      if (*worker_ == worker) return absl::OkStatus();
      return absl::InternalError(absl::StrCat("Double init! Worker names would have changed!: ",
                                              ToString(*worker_), " -> ", ToString(worker)));
    }
    worker_ = worker;
    known_worker_.store(&*worker_, std::memory_order_release);
  }
  // By id: values of one key go to the first who asked. Whoever asks in the meantime, from another
  // thread or from a callback, is deferred too, behind those.
  for (;;) {
    std::vector<uint64_t> ids;
    {
      SpinLockHolder lock(&mu_);
      for (const auto& [id, waiting] : waiting_) {
        if (waiting.is_deferred) ids.push_back(id);
      }
      if (ids.empty()) {
        serving_worker_.store(&*worker_, std::memory_order_release);
        return absl::OkStatus();
      }
    }
    std::sort(ids.begin(), ids.end());
    for (const uint64_t id : ids) {
      std::optional<Waiting> each = Take(id);
      if (!each.has_value()) continue;
      if (each->token != Cancellation::kNoToken &&
          !each->args.cancellation->Deregister(each->token)) {
        // Cancelled in between; its callback found nothing any more.
        std::move(each->done)(MakeDerived(absl::CancelledError("RecvLocalAsync is cancelled.")),
                              {});
        continue;
      }
      RecvHere(each->key, worker, std::move(each->args), std::move(each->done));
    }
  }
}

absl::Status RemoteRendezvous::Send(const RendezvousKey& key, Tensor tensor, bool is_dead,
                                    SendArgs args) {
  const TaskName* const here = worker();
  if (here == nullptr) return absl::InternalError("Send called before initialization.");
  if (!(key.src().task == *here)) return NotHere("src", key, *here);
  return local_.Send(key, std::move(tensor), is_dead, std::move(args));
}

void RemoteRendezvous::RecvAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done) {
  absl::Status status = abort_status();
  const TaskName* const here = worker();
  if (status.ok() && here == nullptr) {
    status = absl::InternalError("ValidateDevices called before initialization.");
  }
  if (status.ok() && !(key.dst().task == *here)) status = NotHere("dst", key, *here);
  if (!status.ok()) return std::move(done)(std::move(status), {});
  if (key.src().task == *here) return local_.RecvAsync(key, std::move(args), std::move(done));
  FetchRemote(key, std::move(args), std::move(done));
}

void RemoteRendezvous::RecvHere(const RendezvousKey& key, const TaskName& here, RecvArgs args,
                                RecvCallback done) {
  if (!(key.src().task == here)) return std::move(done)(NotHere("src", key, here), {});
  local_.RecvAsync(key, std::move(args), std::move(done));
}

void RemoteRendezvous::RecvLocalAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done) {
  if (const TaskName* const here = ServingWorker(); here != nullptr) {
    return RecvHere(key, *here, std::move(args), std::move(done));
  }
  const uint64_t id =
      Add({.key = key, .args = std::move(args), .done = std::move(done), .is_deferred = true});
  if (id == 0) return;
  // Initialize may have come to its end in between, and not have seen it.
  const TaskName* const here = ServingWorker();
  if (here == nullptr) return;
  std::optional<Waiting> missed = Take(id);
  if (!missed.has_value()) return;
  if (missed->token != Cancellation::kNoToken) {
    missed->args.cancellation->Deregister(missed->token);
  }
  RecvHere(key, *here, std::move(missed->args), std::move(missed->done));
}

void RemoteRendezvous::FetchRemote(const RendezvousKey& key, RecvArgs args, RecvCallback done) {
  RecvArgs asked = args;
  asked.cancellation = nullptr;
  const uint64_t id = Add({.key = key, .args = std::move(args), .done = std::move(done)});
  if (id == 0) return;
  const std::shared_ptr<RemoteFetch> fetch = fetcher_.Fetch(
      step_id_, key, asked, [self = weak_from_this(), id](absl::Status status, Received received) {
        if (const auto rendezvous = self.lock(); rendezvous != nullptr) {
          rendezvous->End(id, std::move(status), std::move(received));
        }
      });
  {
    SpinLockHolder lock(&mu_);
    if (const auto found = waiting_.find(id); found != waiting_.end()) {
      found->second.fetch = fetch;
      return;
    }
  }
  // It is over: served already, or ended while it was being issued, when nobody could call it off.
  if (fetch != nullptr) fetch->Cancel();
}

uint64_t RemoteRendezvous::Add(Waiting&& waiting) {
  waiting.since = clock_.CoarseNow();
  absl::Status status;
  {
    SpinLockHolder lock(&mu_);
    status = abort_status_;
    const uint64_t id = last_id_ + 1;
    if (Cancellation* const cancellation = waiting.args.cancellation;
        status.ok() && cancellation != nullptr) {
      const char* const why = waiting.is_deferred ? "RecvLocalAsync is cancelled."
                                                  : "RecvFromRemoteAsync is cancelled.";
      waiting.token = cancellation->Register([self = weak_from_this(), id, why]() {
        if (const auto rendezvous = self.lock(); rendezvous != nullptr) {
          rendezvous->End(id, MakeDerived(absl::CancelledError(why)), {});
        }
      });
      if (waiting.token == Cancellation::kNoToken) {
        status = MakeDerived(absl::CancelledError(why));
      }
    }
    if (status.ok() && waiting_.size() >= limits_.max_waiting) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          limits_.max_waiting, " receives of step ", step_id_,
          waiting.is_deferred ? " wait for it to begin here" : " wait for other workers",
          ", the limit (raise --max-waiting, or in programs RendezvousLimits::max_waiting in "
          "ExchangeOptions::rendezvous)"));
    }
    if (status.ok()) {
      last_id_ = id;
      waiting_.emplace(id, std::move(waiting));
      return id;
    }
  }
  if (waiting.token != Cancellation::kNoToken) {
    waiting.args.cancellation->Deregister(waiting.token);
  }
  std::move(waiting.done)(std::move(status), {});
  return 0;
}

std::optional<RemoteRendezvous::Waiting> RemoteRendezvous::Take(uint64_t id) {
  std::optional<Waiting> waiting;
  SpinLockHolder lock(&mu_);
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return waiting;
  waiting.emplace(std::move(found->second));
  waiting_.erase(found);
  return waiting;
}

void RemoteRendezvous::End(uint64_t id, absl::Status&& status, Received&& received) {
  if (std::optional<Waiting> waiting = Take(id); waiting.has_value()) {
    Complete(*std::move(waiting), std::move(status), std::move(received));
  }
}

void RemoteRendezvous::Complete(Waiting&& waiting, absl::Status&& status, Received&& received) {
  if (waiting.token != Cancellation::kNoToken) {
    waiting.args.cancellation->Deregister(waiting.token);
  }
  if (!status.ok() && waiting.fetch != nullptr) waiting.fetch->Cancel();
  received.recv_args = std::move(waiting.args);
  std::move(waiting.done)(std::move(status), std::move(received));
}

void RemoteRendezvous::EndAll(absl::FunctionRef<absl::Status(const Waiting&)> verdict,
                              size_t& count, bool with_phase) {
  std::vector<std::pair<Waiting, absl::Status>> ended;
  {
    SpinLockHolder lock(&mu_);
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      absl::Status status = verdict(it->second);
      if (status.ok()) {
        ++it;
        continue;
      }
      ended.emplace_back(std::move(it->second), std::move(status));
      waiting_.erase(it++);
    }
  }
  count += ended.size();
  for (auto& [waiting, status] : ended) {
    if (with_phase && waiting.fetch != nullptr) {
      status =
          absl::Status(status.code(), absl::StrCat(status.message(), ": ", waiting.fetch->Phase()));
    }
    Complete(std::move(waiting), std::move(status), {});
  }
}

void RemoteRendezvous::StartAbort(const absl::Status& why) {
  FERRY_CHECK(!why.ok());
  const absl::Status status = AsConsequence(why);
  {
    SpinLockHolder lock(&mu_);
    if (!abort_status_.ok()) return;
    abort_status_ = status;
  }
  local_.StartAbort(status);
  size_t count = 0;
  EndAll([&status](const Waiting&) { return absl::Status(status); }, count);
}

size_t RemoteRendezvous::FailTask(const TaskName& task, const absl::Status& why) {
  const auto verdict = [&](const RendezvousKey& key) {
    if (!(key.src().task == task) && !(key.dst().task == task)) return absl::OkStatus();
    return absl::Status(why.code(), absl::StrCat(why.message(), "; step ", step_id_, " needed ",
                                                 absl::CEscape(key.text())));
  };
  absl::Status lost;
  local_.ForEachPending(absl::ZeroDuration(), [&](const PendingOp& op) {
    if (op.is_send && lost.ok()) lost = verdict(op.key);
  });
  if (!lost.ok()) {
    SpinLockHolder lock(&mu_);
    if (lost_.ok()) lost_ = std::move(lost);
  }
  size_t count = local_.Fail(verdict);
  EndAll([&verdict](const Waiting& waiting) { return verdict(waiting.key); }, count);
  return count;
}

void RemoteRendezvous::NoteLost(const RendezvousKey& key, const absl::Status& why) {
  absl::Status lost(why.code(), absl::StrCat(why.message(), "; step ", step_id_, " was sending ",
                                             absl::CEscape(key.text())));
  SpinLockHolder lock(&mu_);
  if (lost_.ok()) lost_ = std::move(lost);
}

absl::Status RemoteRendezvous::lost() const {
  SpinLockHolder lock(&mu_);
  return lost_;
}

void RemoteRendezvous::Expire() {
  local_.Expire();
  const absl::Time now = clock_.Now();
  size_t count = 0;
  EndAll(
      [&](const Waiting& waiting) {
        if (waiting.args.deadline > now) return absl::OkStatus();
        return absl::DeadlineExceededError(absl::StrCat(
            waiting.is_deferred
                ? "the step has not begun here in time to send "
                : absl::StrCat(ToString(waiting.key.src().task), " has not answered in time with "),
            absl::CEscape(waiting.key.text())));
      },
      count, /*with_phase=*/true);
}

absl::Time RemoteRendezvous::NextDeadline() const {
  absl::Time next = local_.NextDeadline();
  SpinLockHolder lock(&mu_);
  for (const auto& [id, waiting] : waiting_) next = std::min(next, waiting.args.deadline);
  return next;
}

void RemoteRendezvous::ForEachPending(absl::Duration min_age,
                                      absl::FunctionRef<void(const PendingStepOp&)> visit) const {
  using Side = PendingStepOp::Side;
  local_.ForEachPending(min_age, [&](const PendingOp& op) {
    visit({step_id_, op.key, op.is_send ? Side::kSend : Side::kRecv, op.bytes, op.age, ""});
  });
  const absl::Time now = clock_.Now();
  std::vector<PendingStepOp> pending;
  std::vector<std::shared_ptr<RemoteFetch>> fetches;
  {
    SpinLockHolder lock(&mu_);
    for (const auto& [id, waiting] : waiting_) {
      const absl::Duration age = now - waiting.since;
      if (age < min_age) continue;
      pending.push_back({step_id_, waiting.key,
                         waiting.is_deferred ? Side::kDeferred : Side::kFetch, 0, age, ""});
      fetches.push_back(waiting.fetch);
    }
  }
  for (size_t i = 0; i < pending.size(); ++i) {
    if (fetches[i] != nullptr) pending[i].phase = fetches[i]->Phase();
    visit(pending[i]);
  }
}

size_t RemoteRendezvous::fetch_count() const {
  SpinLockHolder lock(&mu_);
  return waiting_.size();
}

}  // namespace ferry

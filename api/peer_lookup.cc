// SPDX-License-Identifier: Apache-2.0
// One thread takes turns among the senders whose addresses are awaited.
#include "api/peer_lookup.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/text.h"

namespace ferry::v0 {
namespace {

// How long the thread waits for one sender while others may have published their addresses.
constexpr absl::Duration kSlice = absl::Milliseconds(200);
// Long enough for the store to say that an address is not there.
constexpr absl::Duration kLeastSlice = absl::Milliseconds(1);

// The store says NOT_FOUND to those that do not wait.
bool IsNotKnownYet(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) || absl::IsNotFound(status);
}

}  // namespace

void PeerLookup::Stop() {
  std::unique_ptr<Thread> thread;
  std::shared_ptr<ferry::CancellationToken> turn;
  {
    absl::MutexLock lock(&mu_);
    is_stopping_ = true;
    thread = std::move(thread_);
    turn = turn_;
  }
  if (turn != nullptr) turn->Cancel();
  thread.reset();
  std::vector<Waiting> left;
  {
    absl::MutexLock lock(&mu_);
    for (auto& [rank, waiting] : waiting_) {
      std::move(waiting.begin(), waiting.end(), std::back_inserter(left));
    }
    waiting_.clear();
  }
  for (Waiting& each : left) {
    std::move(each.done)(absl::CancelledError("the node was destroyed"));
  }
}

void PeerLookup::EndStep(int64_t step_id, const absl::Status& why) {
  std::vector<Waiting> over;
  {
    absl::MutexLock lock(&mu_);
    for (auto& [rank, waiting] : waiting_) {
      const auto first_over =
          std::stable_partition(waiting.begin(), waiting.end(),
                                [step_id](const Waiting& each) { return each.step_id != step_id; });
      std::move(first_over, waiting.end(), std::back_inserter(over));
      waiting.erase(first_over, waiting.end());
    }
  }
  for (Waiting& each : over) std::move(each.done)(why);
}

absl::StatusOr<RendezvousKey> PeerLookup::KeyOf(const TensorId& id, const AddressWait& wait) const {
  return node_.Key(id.name, id.source, id.destination, ToString(id.source_device),
                   ToString(id.destination_device), wait);
}

std::optional<absl::StatusOr<RendezvousKey>> PeerLookup::KeyIfKnown(const TensorId& id) {
  if (is_stopping_) return absl::CancelledError("the node was destroyed");
  const int rank = id.source;
  const bool is_known = rank == node_.node_id() || !HasRank(rank) ||
                        is_known_[static_cast<size_t>(rank)].load(std::memory_order_acquire);
  if (!is_known) return std::nullopt;
  absl::StatusOr<RendezvousKey> key = KeyOf(id, {.timeout = absl::ZeroDuration()});
  // The sender may have been restarted, and then has another address.
  if (IsNotKnownYet(key.status())) return std::nullopt;
  return key;
}

bool PeerLookup::MakeKey(int64_t step_id, const TensorId& id, std::shared_ptr<RequestImpl> request,
                         absl::Time deadline, Done done) {
  if (auto key = KeyIfKnown(id); key.has_value()) {
    std::move(done)(*std::move(key));
    return false;
  }
  const int rank = id.source;
  absl::Status refused;
  std::shared_ptr<ferry::CancellationToken> turn;
  {
    absl::MutexLock lock(&mu_);
    if (is_stopping_) {
      refused = absl::CancelledError("the node was destroyed");
    } else if (thread_ == nullptr) {
      try {
        thread_ = std::make_unique<Thread>("ferry-lookup", [this] { Run(); });
      } catch (const std::system_error& error) {
        refused = absl::ResourceExhaustedError(error.what());
      }
    }
    if (refused.ok()) {
      if (HasRank(rank)) is_known_[static_cast<size_t>(rank)].store(false);
      if (pending_.insert(rank).second) ranks_.push_back(rank);
      waiting_[rank].push_back(
          {step_id, id, std::move(request), SteadyClock().Now(), deadline, std::move(done)});
      if (deadline < turn_end_) turn = turn_;
    }
  }
  if (!refused.ok()) {
    std::move(done)(std::move(refused));
    return false;
  }
  if (turn != nullptr) turn->Cancel();
  return true;
}

void PeerLookup::Run() {
  while (true) {
    int rank = 0;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &PeerLookup::HasWork));
      if (is_stopping_) return;
      rank = NextRankLocked();
    }
    if (!LookUp(rank)) continue;
    absl::MutexLock lock(&mu_);
    ranks_.push_back(rank);
  }
}

int PeerLookup::NextRankLocked() {
  const absl::Time now = SteadyClock().Now();
  const auto is_over = [now](const Waiting& each) { return each.deadline <= now; };
  auto next =
      std::find_if(ranks_.begin(), ranks_.end(), [&](int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        const auto waiting = waiting_.find(rank);
        return waiting != waiting_.end() &&
               std::any_of(waiting->second.begin(), waiting->second.end(), is_over);
      });
  if (next == ranks_.end()) next = ranks_.begin();
  const int rank = *next;
  ranks_.erase(next);
  return rank;
}

bool PeerLookup::LookUp(int rank) {
  absl::Duration slice = kSlice;
  std::shared_ptr<ferry::CancellationToken> turn;
  {
    absl::MutexLock lock(&mu_);
    if (is_stopping_) return true;
    const absl::Time now = SteadyClock().Now();
    for (const auto& [each_rank, waiting] : waiting_) {
      for (const Waiting& each : waiting) slice = std::min(slice, each.deadline - now);
    }
    slice = std::max(slice, kLeastSlice);
    turn = turn_ = std::make_shared<ferry::CancellationToken>();
    turn_end_ = now + slice;
  }
  const TensorId probe = {.name = "address", .source = rank, .destination = node_.node_id()};
  const absl::Status status = KeyOf(probe, {.timeout = slice, .cancellation = turn.get()}).status();
  {
    absl::MutexLock lock(&mu_);
    turn_end_ = absl::InfinitePast();
  }
  if (!status.ok() && (IsNotKnownYet(status) || turn->is_cancelled())) {
    Expire(rank, status);
    absl::MutexLock lock(&mu_);
    if (!waiting_[rank].empty()) return true;
    waiting_.erase(rank);
    pending_.erase(rank);
    return false;
  }
  // Receives that arrive meanwhile queue behind those that are being started.
  while (true) {
    std::vector<Waiting> ready;
    {
      absl::MutexLock lock(&mu_);
      ready.swap(waiting_[rank]);
      if (ready.empty()) {
        waiting_.erase(rank);
        pending_.erase(rank);
        if (status.ok() && HasRank(rank)) is_known_[static_cast<size_t>(rank)].store(true);
        return false;
      }
    }
    for (Waiting& each : ready) {
      if (!status.ok()) {
        std::move(each.done)(status);
        continue;
      }
      std::move(each.done)(KeyOf(each.id, {.timeout = absl::ZeroDuration()}));
    }
  }
}

void PeerLookup::Expire(int rank, const absl::Status& why) {
  std::vector<Waiting> over;
  const absl::Time now = SteadyClock().Now();
  {
    absl::MutexLock lock(&mu_);
    std::vector<Waiting>& waiting = waiting_[rank];
    const auto first_over = std::stable_partition(
        waiting.begin(), waiting.end(),
        [now](const Waiting& each) { return each.deadline > now && !each.request->done(); });
    std::move(first_over, waiting.end(), std::back_inserter(over));
    waiting.erase(first_over, waiting.end());
  }
  for (Waiting& each : over) {
    std::move(each.done)(
        absl::DeadlineExceededError(absl::StrCat("waited ", ShortDuration(now - each.since), " in ",
                                                 each.request->what(), ": ", why.message())));
  }
}

}  // namespace ferry::v0

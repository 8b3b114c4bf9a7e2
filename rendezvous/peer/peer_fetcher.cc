// SPDX-License-Identifier: Apache-2.0
// Resolves a node's endpoint on first use.
#include "rendezvous/peer/peer_fetcher.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "rendezvous/peer/eager_peers.h"

namespace ferry {

// Requests that wait for a node's endpoint.
class PeerFetcher::Resolving final : public std::enable_shared_from_this<Resolving> {
 public:
  explicit Resolving(int32_t node_id) : node_id_(node_id) {}

  class Fetch final : public RemoteFetch {
   public:
    Fetch(std::shared_ptr<Resolving> resolving, uint64_t id)
        : resolving_(std::move(resolving)), id_(id) {}
    void Cancel() override { resolving_->Cancel(id_); }
    std::string Phase() const override { return resolving_->Phase(id_); }

   private:
    const std::shared_ptr<Resolving> resolving_;
    const uint64_t id_;
  };

  // Returns null, and takes nothing, once all requests have been passed on, or have failed.
  std::shared_ptr<RemoteFetch> Add(int64_t step_id, const RendezvousKey& key, const RecvArgs& args,
                                   RecvCallback& done) {
    absl::MutexLock lock(&mu_);
    if (is_over_) return nullptr;
    const uint64_t id = ++last_id_;
    waiting_.push_back({id, step_id, key, args, std::move(done), nullptr});
    return std::make_shared<Fetch>(shared_from_this(), id);
  }

  // Passes the requests on in the order of their calls. Those that are added meanwhile follow.
  void Resolve(const std::shared_ptr<TensorRequester>& requester) {
    while (true) {
      std::vector<Waiting> waiting;
      {
        absl::MutexLock lock(&mu_);
        waiting.swap(waiting_);
        if (waiting.empty()) {
          is_over_ = true;
          return;
        }
      }
      for (Waiting& each : waiting) {
        std::shared_ptr<RemoteFetch> fetch =
            requester->Request(each.step_id, each.key, each.args, std::move(each.done));
        bool is_cancelled = false;
        {
          absl::MutexLock lock(&mu_);
          is_cancelled = cancelled_.erase(each.id) > 0;
          last_passed_on_ = each.id;
          if (!is_cancelled && fetch != nullptr) passed_on_.emplace(each.id, fetch);
        }
        if (is_cancelled && fetch != nullptr) fetch->Cancel();
      }
    }
  }

  void Fail(const absl::Status& why) {
    std::vector<Waiting> waiting;
    {
      absl::MutexLock lock(&mu_);
      is_over_ = true;
      waiting.swap(waiting_);
    }
    for (Waiting& each : waiting) std::move(each.done)(why, {});
  }

 private:
  struct Waiting {
    uint64_t id;
    int64_t step_id;
    RendezvousKey key;
    RecvArgs args;
    RecvCallback done;
    std::shared_ptr<RemoteFetch> fetch;
  };

  void Cancel(uint64_t id) {
    std::shared_ptr<RemoteFetch> fetch;
    RecvCallback done;
    {
      absl::MutexLock lock(&mu_);
      if (const auto found = passed_on_.find(id); found != passed_on_.end()) {
        fetch = std::move(found->second);
        passed_on_.erase(found);
      } else {
        bool is_waiting = false;
        for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
          if (it->id != id) continue;
          done = std::move(it->done);
          waiting_.erase(it);
          is_waiting = true;
          break;
        }
        // It is being passed on right now.
        if (!is_waiting && !is_over_ && id > last_passed_on_) cancelled_.insert(id);
      }
    }
    if (fetch != nullptr) fetch->Cancel();
    if (done) std::move(done)(MakeDerived(absl::CancelledError("the fetch is cancelled")), {});
  }

  std::string Phase(uint64_t id) {
    std::shared_ptr<RemoteFetch> fetch;
    {
      absl::MutexLock lock(&mu_);
      if (const auto found = passed_on_.find(id); found != passed_on_.end()) fetch = found->second;
    }
    return fetch != nullptr ? fetch->Phase()
                            : absl::StrCat("looking for the address of node ", node_id_);
  }

  const int32_t node_id_;
  absl::Mutex mu_;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_passed_on_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<RemoteFetch>> passed_on_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<uint64_t> cancelled_ ABSL_GUARDED_BY(mu_);
};

PeerFetcher::Shared::Shared(const TransferContext& context)
    : context(context), pool(std::make_shared<PeerConnectionPool>(context)) {}

EagerInbox* PeerFetcher::Shared::InboxOf(const PeerId& producer) {
  return context.eager == nullptr ? nullptr : context.eager->InboxOf(producer);
}

void PeerFetcher::set_connector(Connector* connector) {
  shared_->pool->set_connector(connector);
  EagerPeers* const eager = shared_->context.eager;
  if (eager == nullptr) return;
  eager->set_run_after([connector](absl::Duration delay, absl::AnyInvocable<void()> call) {
    connector->RunAfter(delay, std::move(call));
  });
}

EagerLinks* PeerFetcher::eager_links() { return shared_->context.eager; }

void PeerFetcher::Close(const absl::Status& why) {
  if (shared_->context.eager != nullptr) shared_->context.eager->BeforeClose();
  shared_->pool->Close(why);
}

void PeerFetcher::ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const {
  if (shared_->context.eager != nullptr) shared_->context.eager->ForEachTransfer(min_age, visit);
  shared_->pool->ForEachTransfer(min_age, visit);
}

std::shared_ptr<PeerFetcher::Resolving> PeerFetcher::Shared::Find(const PeerId& producer) {
  if (resolving_count.load(std::memory_order_acquire) == 0) return nullptr;
  SpinLockHolder lock(&mu);
  const auto found = resolving.find(producer);
  return found == resolving.end() ? nullptr : found->second;
}

bool PeerFetcher::Shared::Begin(const PeerId& producer, std::shared_ptr<Resolving>& begun) {
  SpinLockHolder lock(&mu);
  std::shared_ptr<Resolving>& slot = resolving[producer];
  // One that has passed on all of its requests may still be listed; `begun` is that one.
  if (slot != nullptr && slot != begun) return false;
  slot = std::make_shared<Resolving>(producer.node_id);
  begun = slot;
  resolving_count.store(resolving.size(), std::memory_order_release);
  if (EagerInbox* const inbox = InboxOf(producer); inbox != nullptr) inbox->HoldRequests();
  return true;
}

void PeerFetcher::Shared::End(const PeerId& producer, const Resolving& ended) {
  {
    SpinLockHolder lock(&mu);
    // It may have been replaced.
    const auto found = resolving.find(producer);
    if (found != resolving.end() && found->second.get() == &ended) {
      resolving.erase(found);
      resolving_count.store(resolving.size(), std::memory_order_release);
    }
  }
  // Each one that was begun ends once.
  if (EagerInbox* const inbox = InboxOf(producer); inbox != nullptr) inbox->ReleaseRequests();
}

std::shared_ptr<RemoteFetch> PeerFetcher::Fetch(int64_t step_id, const RendezvousKey& key,
                                                const RecvArgs& args, RecvCallback done) {
  const TaskName& task = key.src().task;
  if (task.task < 0 || task.task > INT32_MAX || task.replica != 0) {
    std::move(done)(absl::InternalError(absl::StrCat("No worker known as ", ToString(task))), {});
    return nullptr;
  }
  const PeerId producer{static_cast<int32_t>(task.task), key.src_incarnation()};
  while (true) {
    // Values of one key go to its receives in the order of their calls, so that a request follows
    // those that still wait, also if the requester is known already.
    std::shared_ptr<Resolving> resolving = shared_->Find(producer);
    if (resolving != nullptr) {
      if (auto fetch = resolving->Add(step_id, key, args, done); fetch != nullptr) return fetch;
    }
    const absl::StatusOr<std::shared_ptr<TensorRequester>> requester =
        shared_->pool->Find(producer);
    if (!requester.ok()) {
      std::move(done)(requester.status(), {});
      return nullptr;
    }
    if (*requester != nullptr) return (*requester)->Request(step_id, key, args, std::move(done));
    // Another thread may resolve the same endpoint; the request then joins that one.
    if (!shared_->Begin(producer, resolving)) continue;
    std::shared_ptr<RemoteFetch> fetch = resolving->Add(step_id, key, args, done);
    resolver_(producer.node_id,
              [shared = shared_, resolving, producer](absl::StatusOr<Endpoint> endpoint) {
                const absl::StatusOr<std::shared_ptr<TensorRequester>> requester =
                    endpoint.ok() ? shared->pool->Open(*endpoint) : endpoint.status();
                if (requester.ok()) resolving->Resolve(*requester);
                shared->End(producer, *resolving);
                if (!requester.ok()) resolving->Fail(requester.status());
              });
    return fetch;
  }
}

std::shared_ptr<TensorRequester> PeerFetcher::RequesterOf(const PeerId& peer) const {
  return shared_->pool->Find(peer).value_or(nullptr);
}

}  // namespace ferry

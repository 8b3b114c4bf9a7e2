// SPDX-License-Identifier: Apache-2.0
// Resolves a node's endpoint on first use.
#include "rendezvous/peer/peer_fetcher.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

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

  // Returns null, and takes nothing, if the endpoint was resolved meanwhile.
  std::shared_ptr<RemoteFetch> Add(int64_t step_id, const RendezvousKey& key, const RecvArgs& args,
                                   RecvCallback& done) {
    absl::MutexLock lock(&mu_);
    if (is_over_) return nullptr;
    const uint64_t id = ++last_id_;
    waiting_.push_back({id, step_id, key, args, std::move(done), nullptr});
    return std::make_shared<Fetch>(shared_from_this(), id);
  }

  void Resolve(const std::shared_ptr<TensorRequester>& client) {
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
            client->Request(each.step_id, each.key, each.args, std::move(each.done));
        bool is_cancelled = false;
        {
          absl::MutexLock lock(&mu_);
          is_cancelled = cancelled_.erase(each.id) > 0;
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
        if (!is_waiting && !is_over_) cancelled_.insert(id);
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
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<RemoteFetch>> passed_on_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<uint64_t> cancelled_ ABSL_GUARDED_BY(mu_);
};

std::shared_ptr<RemoteFetch> PeerFetcher::Fetch(int64_t step_id, const RendezvousKey& key,
                                                const RecvArgs& args, RecvCallback done) {
  const TaskName& task = key.src().task;
  if (task.task < 0 || task.task > INT32_MAX || task.replica != 0) {
    std::move(done)(absl::InternalError(absl::StrCat("No worker known as ", ToString(task))), {});
    return nullptr;
  }
  const auto node = static_cast<int32_t>(task.task);
  absl::StatusOr<std::shared_ptr<TensorRequester>> client =
      shared_->table->Find({node, key.src_incarnation()});
  if (!client.ok()) {
    std::move(done)(client.status(), {});
    return nullptr;
  }
  if (*client != nullptr) return (*client)->Request(step_id, key, args, std::move(done));
  std::shared_ptr<Resolving> resolving;
  bool is_first = false;
  {
    SpinLockHolder lock(&shared_->mu);
    auto& slot = shared_->resolving[node];
    is_first = slot == nullptr;
    if (is_first) slot = std::make_shared<Resolving>(node);
    resolving = slot;
  }
  std::shared_ptr<RemoteFetch> fetch = resolving->Add(step_id, key, args, done);
  // Resolved between our two checks: the requester exists now.
  if (fetch == nullptr) return Fetch(step_id, key, args, std::move(done));
  if (is_first) {
    resolver_(node, [shared = shared_, resolving, node](absl::StatusOr<Endpoint> endpoint) {
      const absl::StatusOr<std::shared_ptr<TensorRequester>> found =
          endpoint.ok() ? shared->table->Open(*endpoint) : endpoint.status();
      {
        SpinLockHolder lock(&shared->mu);
        shared->resolving.erase(node);
      }
      if (!found.ok()) return resolving->Fail(found.status());
      resolving->Resolve(*found);
    });
  }
  return fetch;
}

std::shared_ptr<TensorRequester> PeerFetcher::ClientOf(const PeerId& peer) const {
  return shared_->table->Find(peer).value_or(nullptr);
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// PeerFetcher: fetches values from other nodes over control channels, opened on demand.
#ifndef FERRY_RENDEZVOUS_PEER_PEER_FETCHER_H_
#define FERRY_RENDEZVOUS_PEER_PEER_FETCHER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

#include "base/spin_lock.h"
#include "rendezvous/peer/peer_connection_pool.h"
#include "rendezvous/remote_rendezvous.h"

namespace ferry {

class EagerInbox;

// Looks up a node's current endpoint. Asynchronous: `done` is called once, on any thread, possibly
// inline.
using ResolveCallback = absl::AnyInvocable<void(absl::StatusOr<Endpoint>) &&>;
using EndpointResolver = std::function<void(int32_t node_id, ResolveCallback done)>;

// Thread-safe. Task N of a key's device is node N of the job.
class PeerFetcher final : public RemoteFetcher {
 public:
  // `context` must outlive it; call set_connector before the first Fetch.
  PeerFetcher(const TransferContext& context, EndpointResolver resolver)
      : resolver_(std::move(resolver)), shared_(std::make_shared<Shared>(context)) {}
  ~PeerFetcher() override { Close(absl::CancelledError("this process is leaving")); }
  // `connector` must outlive all control channels.
  void set_connector(Connector* connector);

  std::shared_ptr<RemoteFetch> Fetch(int64_t step_id, const RendezvousKey& key,
                                     const RecvArgs& args, RecvCallback done) override;
  EagerLinks* eager_links() override;

  // This side's end of a control channel that `peer` has opened.
  std::shared_ptr<ControlHandler> Serve(const PeerId& peer) { return shared_->pool->Accept(peer); }

  // As PeerConnectionPool::ControlPathTo.
  PeerConnectionPool::ControlPath ControlPathTo(const Endpoint& peer) const {
    return shared_->pool->ControlPathTo(peer);
  }
  // The requester of the control channel to that incarnation of a node, open or being opened; null:
  // there is none.
  std::shared_ptr<TensorRequester> RequesterOf(const PeerId& peer) const;
  // As PeerConnectionPool::Forget; a later fetch resolves the node again.
  void Forget(int32_t node_id, const absl::Status& why, uint64_t alive_incarnation = 0) {
    shared_->pool->Forget(node_id, why, alive_incarnation);
  }
  // Closes all control channels; later fetches fail at once.
  void Close(const absl::Status& why);
  size_t unfinished_sends() const { return shared_->pool->unfinished_sends(); }
  void ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const;
  // As PeerConnectionPool::Responders.
  std::vector<std::shared_ptr<TensorResponder>> Responders() const {
    return shared_->pool->Responders();
  }
  size_t connection_count() const { return shared_->pool->connection_count(); }

 private:
  class Resolving;
  struct Shared {
    explicit Shared(const TransferContext& context);

    // The resolution of that incarnation of a node that is under way; null: there is none.
    std::shared_ptr<Resolving> Find(const PeerId& producer) ABSL_LOCKS_EXCLUDED(mu);
    // Begins one in place of `begun`, which has ended or is null, and returns it there. False:
    // another thread has begun one.
    bool Begin(const PeerId& producer, std::shared_ptr<Resolving>& begun) ABSL_LOCKS_EXCLUDED(mu);
    void End(const PeerId& producer, const Resolving& ended) ABSL_LOCKS_EXCLUDED(mu);

    // Requests that are being resolved hold back PUSH.
    EagerInbox* InboxOf(const PeerId& producer);

    const TransferContext& context;
    const std::shared_ptr<PeerConnectionPool> pool;
    SpinLock mu;
    absl::flat_hash_map<PeerId, std::shared_ptr<Resolving>> resolving ABSL_GUARDED_BY(mu);
    // Its size: the common case, none, takes no lock.
    std::atomic<size_t> resolving_count{0};
  };

  const EndpointResolver resolver_;
  // Shared with resolver callbacks, which may outlive this.
  const std::shared_ptr<Shared> shared_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_PEER_FETCHER_H_

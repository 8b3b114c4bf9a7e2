// SPDX-License-Identifier: Apache-2.0
// LaneFetcher: gets values from other workers over lanes, which it opens when they are needed.
#ifndef FERRY_RENDEZVOUS_LANE_FETCHER_H_
#define FERRY_RENDEZVOUS_LANE_FETCHER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

#include "base/spin_lock.h"
#include "rendezvous/lane_client.h"
#include "rendezvous/lane_server.h"
#include "rendezvous/remote_rendezvous.h"

namespace ferry {

// Finds out where a node is now. Asynchronous: `done` is called once, on any thread, perhaps
// inside.
using ResolveCallback = absl::AnyInvocable<void(absl::StatusOr<Endpoint>) &&>;
using EndpointResolver = std::function<void(int32_t node_id, ResolveCallback done)>;

// Thread-safe. Task N of a key's device is node N of the job.
class LaneFetcher final : public RemoteFetcher {
 public:
  // `exchange` and `hub` outlive it; set_hub before the first Fetch.
  LaneFetcher(const LaneExchange& exchange, EndpointResolver resolver)
      : exchange_(exchange), resolver_(std::move(resolver)), shared_(std::make_shared<Shared>()) {}
  ~LaneFetcher() override { Close(absl::CancelledError("this process is leaving")); }
  void set_hub(LaneHub* hub) { hub_ = hub; }

  std::shared_ptr<RemoteFetch> Fetch(int64_t step_id, const RendezvousKey& key,
                                     const RecvArgs& args, RecvCallback done) override;

  // The server for a consumer that has connected; kept to be closed with the rest.
  std::shared_ptr<LaneHandler> Serve(const LanePeer& consumer);

  // The lane to a node that is open now, or being opened; null if there is none.
  std::shared_ptr<LaneClient> ClientOf(int32_t node_id) const;
  // The node has died: its lane ends with `why`, and a later fetch looks for it anew.
  void Forget(int32_t node_id, const absl::Status& why);
  // All lanes end; later fetches do at once.
  void Close(const absl::Status& why);
  // LaneServer::unfinished of all consumers.
  size_t unfinished_sends() const;
  // LaneServer::ForEachTransfer of all consumers.
  void ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const;
  // Lanes that have not ended, of both kinds.
  size_t lane_count() const;

 private:
  class Resolving;
  struct Shared {
    SpinLock mu;
    absl::Status closed ABSL_GUARDED_BY(mu);
    absl::flat_hash_map<int32_t, std::shared_ptr<LaneClient>> clients ABSL_GUARDED_BY(mu);
    absl::flat_hash_map<int32_t, std::shared_ptr<Resolving>> resolving ABSL_GUARDED_BY(mu);
    std::vector<std::weak_ptr<LaneServer>> servers ABSL_GUARDED_BY(mu);
  };

  const LaneExchange& exchange_;
  LaneHub* hub_ = nullptr;
  const EndpointResolver resolver_;
  // With callbacks of the resolver, which may come when this is gone.
  const std::shared_ptr<Shared> shared_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_LANE_FETCHER_H_

// SPDX-License-Identifier: Apache-2.0
// PeerCommunicators: the state of a GPU's communicators, one for each peer GPU.
#ifndef FERRY_TRANSPORT_NCCL_PEER_COMMUNICATORS_H_
#define FERRY_TRANSPORT_NCCL_PEER_COMMUNICATORS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "gpu/communicator/communicator.h"
#include "gpu/communicator/communicator_key.h"
#include "transport/nccl/batch_agreement_types.h"
#include "transport/nccl/communicator_lru.h"
#include "transport/nccl/nccl_context.h"
#include "transport/nccl/retry_backoff.h"

namespace ferry {

// An open communicator with a peer.
struct PeerCommunicator {
  CommunicatorName name;
  std::shared_ptr<NcclCommunicator> communicator;
  // Sent and received before the communicator's first batch.
  std::shared_ptr<Buffer> warmth;
  // Free bytes of GPU memory when creation started; 0: unknown.
  uint64_t free_before = 0;
};

// A communicator with a peer is created on demand, kept while transfers with the peer are pending
// and afterwards as long as its memory is not needed for another one, and retried with backoff
// after a failure. This decides which to create and which to evict; the owner creates, opens,
// breaks and frees them, and reports that here. Calls neither NCCL nor CUDA. Not thread-safe.
class PeerCommunicators final {
 public:
  enum class State { kIdle, kCreating, kOpen, kEnding };

  // One to be created.
  struct Creation {
    CommunicatorKey key;
    int rank = 0;
    // Set when it is no longer needed.
    std::shared_ptr<std::atomic<bool>> give_up;
    // To break first: their memory is needed.
    std::vector<CommunicatorName> evicted;
  };

  // `options` must outlive it.
  PeerCommunicators(DeviceId self, uint64_t incarnation, const NcclTransportOptions& options);

  // The peer is known from now on. The latest call determines its incarnation and name.
  void SetPeer(const PeerDevice& peer) { pairs_[peer.id].peer = peer; }
  std::vector<DeviceId> peers() const;
  // Counts transfers with the peer that are not over: its communicator is not evicted meanwhile.
  void AddUser(DeviceId peer);
  void DropUser(DeviceId peer);
  bool HasUsers(DeviceId peer) const;
  // Id of the communicator that messages of that process may refer to; 0: none.
  uint64_t CliqueIdWith(const PeerDevice& peer);

  // Starts creating the peer's communicator; nothing: there is one already.
  //   Errors: why none can be created now, to be reported with Fail.
  absl::StatusOr<std::optional<Creation>> StartCreating(DeviceId peer, absl::Time now);
  // The creation could not be started.
  void CancelCreating(DeviceId peer) { pairs_[peer].state = State::kIdle; }
  // A creation in progress is no longer needed.
  void GiveUp(DeviceId peer);
  // The connection to the peer has failed: its process has ended, or is ending, unless it is back.
  void SetGone(const PeerDevice& peer, absl::Time now);
  // There is another connection to it.
  void SetBack(const PeerDevice& peer);
  // Returns true if it ended long enough ago that no kernel of it runs any more.
  bool IsGone(const CommunicatorMember& member, absl::Time now) const;
  bool WasGivenUp(DeviceId peer) const;
  // The creation has ended, with or without success.
  void SetOpen(DeviceId peer, PeerCommunicator opened);
  void SetNotCreated(DeviceId peer);
  // The peer had ended it before it was opened. Returns true the first time in a row: the next
  // generation may be tried at once.
  bool MarkOvertaken(DeviceId peer);
  // Nothing is created until the retry time. Returns the error for the peer's transfers.
  absl::Status Fail(DeviceId peer, const absl::Status& why, absl::Time now);

  // The communicator is ending, for this reason.
  void SetEnding(const CommunicatorName& name, const absl::Status& why);
  // Nothing runs on it any more. Returns it, to be destroyed. REQUIRES: there is one of that name.
  std::shared_ptr<NcclCommunicator> Free(const CommunicatorName& name);
  // All of its connections are set up: derives the GPU memory that it uses.
  void Measure(const CommunicatorName& name, uint64_t free_bytes);

  // Null: there is none of that name.
  const PeerCommunicator* Find(const CommunicatorName& name) const;
  // Nothing: there is none of that name.
  std::optional<DeviceId> PeerOf(const CommunicatorName& name) const;
  // The peer's communicator, while it is open; null: none.
  const PeerCommunicator* OpenWith(DeviceId peer) const;
  // Nothing: it is not one of these.
  std::optional<CommunicatorName> NameOf(const NcclCommunicator& communicator) const;
  // Why it ended last.
  absl::Status FailureOf(const CommunicatorName& name) const;
  // The peer, as last told to SetPeer.
  const PeerDevice& PeerOfId(DeviceId peer) { return pairs_[peer].peer; }
  uint64_t PutBytesOfPeer(DeviceId peer) { return pairs_[peer].peer.put_bytes; }
  // Name of the peer, for messages.
  const std::string& NameOfPeer(DeviceId peer) { return pairs_[peer].peer.name; }
  // Why no communicator can be had now; OK: one is there, or can be tried.
  absl::Status Refusal(DeviceId peer, absl::Time now) const;

 private:
  struct Pair {
    State state = State::kIdle;
    PeerDevice peer;
    // Number of pending transfers.
    int users = 0;
    // Key in CommunicatorLru; empty: no communicator exists or is being created.
    std::string communicator;
    // True if CommunicatorLru counts it as in use.
    bool is_held = false;
    PeerCommunicator opened;
    // While being created; set when it is no longer needed.
    std::shared_ptr<std::atomic<bool>> give_up;
    // The last one was ended by the peer before it could be opened.
    bool was_overtaken = false;
    // The communicator that this peer's messages may refer to, for that incarnation.
    uint64_t clique_id = 0;
    uint64_t clique_incarnation = 0;
    // The last process of the peer that has ended, and when.
    uint64_t gone_incarnation = 0;
    absl::Time gone_since = absl::InfiniteFuture();
    // After a failure: the error, and when to retry.
    absl::Status failed;
    RetryBackoff retry;
  };

  absl::StatusOr<CommunicatorKey> KeyWith(const PeerDevice& peer) const;
  // Makes CommunicatorLru count it as in use while it is.
  void UpdateHold(Pair& pair);
  // Makes room for the pair's communicator. Returns those to break first.
  absl::StatusOr<std::vector<CommunicatorName>> Reserve(Pair& pair);
  void Forget(Pair& pair);

  // Constant after construction.
  const DeviceId self_;
  const uint64_t incarnation_;
  const NcclTransportOptions& options_;

  absl::btree_map<DeviceId, Pair> pairs_;
  CommunicatorLru cache_;
  // Estimated size of the next communicator, in bytes.
  uint64_t communicator_bytes_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_PEER_COMMUNICATORS_H_

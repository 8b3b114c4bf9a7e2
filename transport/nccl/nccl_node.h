// SPDX-License-Identifier: Apache-2.0
// NcclNode: this process's GPUs and the peer processes for transfers by NCCL.
#ifndef FERRY_TRANSPORT_NCCL_NCCL_NODE_H_
#define FERRY_TRANSPORT_NCCL_NCCL_NODE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

#include "transport/nccl/nccl_device.h"
#include "transport/transport.h"

namespace ferry {

class NcclNode;

// One incarnation of a peer process, for as long as a control channel to it is open. Shared by the
// channel's sender and receiver. Thread-safe.
class NcclPeer final : public std::enable_shared_from_this<NcclPeer> {
 public:
  NcclPeer(NcclNode& node, Endpoint endpoint);

  const Endpoint& endpoint() const { return endpoint_; }
  // Sets how messages are sent to it; the first call counts.
  void SetChannel(ControlMessageSender channel) ABSL_LOCKS_EXCLUDED(mu_);
  void Send(const BatchAgreementMessage& message) ABSL_LOCKS_EXCLUDED(mu_);
  void Send(const PutMessage& message) ABSL_LOCKS_EXCLUDED(mu_);
  // Handles a message from the peer; untrusted.
  absl::Status OnMessage(absl::string_view body);
  absl::Status OnMessage(const BatchAgreementMessage& message);
  absl::Status OnMessage(const PutMessage& message);
  // Its control channel has closed.
  void Fail(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  bool has_failed() const ABSL_LOCKS_EXCLUDED(mu_);
  // The peer's GPU by ordinal; nothing: the job knows no such GPU.
  std::optional<PeerDevice> device(int ordinal) const;
  // The peer's GPU by id; nothing: not one of its GPUs.
  std::optional<PeerDevice> device(DeviceId id) const;
  bool owns(DeviceId id) const { return device(id).has_value(); }

 private:
  void SendBytes(absl::string_view bytes) ABSL_LOCKS_EXCLUDED(mu_);

  NcclNode& node_;
  const Endpoint endpoint_;
  // As it has published.
  const uint64_t put_bytes_;
  mutable absl::Mutex mu_;
  ControlMessageSender channel_ ABSL_GUARDED_BY(mu_);
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
};

// Thread-safe.
class NcclNode final {
 public:
  NcclNode(const TransportEnvironment& environment, const NcclTransportOptions& options,
           const NcclJob& job, BatchRunner::LearnCallback learn);
  ~NcclNode();

  // OK: NCCL can be used in this process.
  const absl::Status& status() const { return status_; }
  const NcclDevice::Common& common() const { return common_; }

  // A control channel to it was opened: transfers started with its predecessor do not continue.
  std::shared_ptr<NcclPeer> NewPeer(const Endpoint& endpoint) ABSL_LOCKS_EXCLUDED(mu_);
  // The same for the other endpoint of the control channel.
  std::shared_ptr<NcclPeer> Peer(const Endpoint& endpoint) ABSL_LOCKS_EXCLUDED(mu_);

  // One of this process's GPUs.
  //   Errors: why NCCL cannot be used with it.
  absl::StatusOr<std::shared_ptr<NcclDevice>> Device(int ordinal) ABSL_LOCKS_EXCLUDED(mu_);
  // One of this process's GPUs, by job-wide id; null: not one of them, or unusable.
  std::shared_ptr<NcclDevice> DeviceById(DeviceId device) ABSL_LOCKS_EXCLUDED(mu_);
  // Only if it was requested before.
  std::shared_ptr<NcclDevice> Find(DeviceId device) const ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<NcclDevice> FindOrdinal(int ordinal) const ABSL_LOCKS_EXCLUDED(mu_);
  // Why no transfer between `own`, which is this process's GPU `ordinal`, and `peer` is possible
  // now; OK: possible, as far as known. A device being created by another thread is never mistaken
  // for another node's.
  absl::Status Refusal(DeviceId own, int ordinal, DeviceId peer) const ABSL_LOCKS_EXCLUDED(mu_);

  // For transfers requested by this process.
  uint64_t NewTransferId() { return last_transfer_id_.fetch_add(1, std::memory_order_relaxed) + 1; }
  // Ends all transfers and waits for them, before the GPUs and the loop are destroyed.
  //   Errors: as Transport::Stop.
  absl::Status Stop(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class NcclPeer;
  std::shared_ptr<NcclDevice> FindLocked(DeviceId device) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void OnPeerFailed(const NcclPeer& peer, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<NcclPeer> RouteTo(DeviceId device) const ABSL_LOCKS_EXCLUDED(mu_);

  NcclDevice::Common common_;
  const int32_t node_id_;
  absl::Status status_;
  std::atomic<uint64_t> last_transfer_id_{0};
  ThreadGroup threads_;

  // Acquired before a GPU's turns lock: the owner of the turns and the list below change together.
  mutable absl::Mutex mu_;
  absl::Status stopped_ ABSL_GUARDED_BY(mu_);
  absl::btree_map<int, std::shared_ptr<NcclDevice>> devices_ ABSL_GUARDED_BY(mu_);
  // By node: the latest incarnation known.
  absl::flat_hash_map<int32_t, std::shared_ptr<NcclPeer>> peers_ ABSL_GUARDED_BY(mu_);
  // The peer that owns each GPU.
  absl::flat_hash_map<DeviceId, std::shared_ptr<NcclPeer>> routes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_NCCL_NODE_H_

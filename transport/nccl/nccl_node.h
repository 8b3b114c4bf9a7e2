// SPDX-License-Identifier: Apache-2.0
// NcclNode: this process's GPUs and the processes that they exchange tensors with, by NCCL.
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

// One other process, in one of its lives, as long as a control channel to it is open. Both halves
// of the control channel share it. Thread-safe.
class NcclPeer final : public std::enable_shared_from_this<NcclPeer> {
 public:
  NcclPeer(NcclNode& node, Endpoint endpoint) : node_(node), endpoint_(std::move(endpoint)) {}

  const Endpoint& endpoint() const { return endpoint_; }
  // How messages get there; the first one stays.
  void SetChannel(Announce channel) ABSL_LOCKS_EXCLUDED(mu_);
  void Send(const BatchAgreementMessage& message) ABSL_LOCKS_EXCLUDED(mu_);
  // What came from there, of which nothing is trusted.
  absl::Status OnMessage(absl::string_view body);
  absl::Status OnMessage(const BatchAgreementMessage& message);
  // Its control channel has ended.
  void Fail(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  bool has_failed() const ABSL_LOCKS_EXCLUDED(mu_);
  // Of its GPUs; nothing: it has no such one that the job knows.
  std::optional<PeerDevice> device(int ordinal) const;
  // Nothing: it is not one of its.
  std::optional<PeerDevice> device(DeviceId id) const;
  bool owns(DeviceId id) const { return device(id).has_value(); }

 private:
  NcclNode& node_;
  const Endpoint endpoint_;
  mutable absl::Mutex mu_;
  Announce channel_ ABSL_GUARDED_BY(mu_);
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
};

// Thread-safe.
class NcclNode final {
 public:
  NcclNode(const TransportEnvironment& environment, const NcclTransportOptions& options,
           BatchRunner::LearnCallback learn);
  ~NcclNode();

  // OK: NCCL can be used here at all.
  const absl::Status& status() const { return status_; }
  const NcclDevice::Common& common() const { return common_; }

  // A control channel to it has been opened: what a former one has begun does not go on.
  std::shared_ptr<NcclPeer> NewPeer(const Endpoint& endpoint) ABSL_LOCKS_EXCLUDED(mu_);
  // The same for the control channel's other half.
  std::shared_ptr<NcclPeer> Peer(const Endpoint& endpoint) ABSL_LOCKS_EXCLUDED(mu_);

  // One of this process's.
  //   Errors: why NCCL cannot be used with it.
  absl::StatusOr<std::shared_ptr<NcclDevice>> Device(int ordinal) ABSL_LOCKS_EXCLUDED(mu_);
  // One of this process's, by the job's id; null: it is none, or cannot be used.
  std::shared_ptr<NcclDevice> DeviceById(DeviceId device) ABSL_LOCKS_EXCLUDED(mu_);
  // If it has been asked for.
  std::shared_ptr<NcclDevice> Find(DeviceId device) const ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<NcclDevice> FindOrdinal(int ordinal) const ABSL_LOCKS_EXCLUDED(mu_);
  // Why nothing can go between `own`, which is this process's GPU `ordinal`, and `peer` just now;
  // OK: it can, as far as is known. One that is being made by another thread is never taken for
  // another node's.
  absl::Status Refusal(DeviceId own, int ordinal, DeviceId peer) const ABSL_LOCKS_EXCLUDED(mu_);

  // For transfers from here.
  uint64_t NewTransferId() { return last_transfer_id_.fetch_add(1, std::memory_order_relaxed) + 1; }
  // Ends everything and waits for it, before GPUs and the loop go.
  //   Errors: as Transport::Stop.
  absl::Status Stop(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class NcclPeer;
  std::shared_ptr<NcclDevice> FindLocked(DeviceId device) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void OnPeerFailed(const NcclPeer& peer, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  void Send(const BatchAgreementMessage& message) ABSL_LOCKS_EXCLUDED(mu_);

  NcclDevice::Common common_;
  const int32_t node_id_;
  absl::Status status_;
  std::atomic<uint64_t> last_transfer_id_{0};
  ThreadGroup threads_;

  // Taken before that of a GPU's turns: whose they are and the list below change at once.
  mutable absl::Mutex mu_;
  absl::Status stopped_ ABSL_GUARDED_BY(mu_);
  absl::btree_map<int, std::shared_ptr<NcclDevice>> devices_ ABSL_GUARDED_BY(mu_);
  // By node: the one that was last heard of.
  absl::flat_hash_map<int32_t, std::shared_ptr<NcclPeer>> peers_ ABSL_GUARDED_BY(mu_);
  // Whose GPUs they are.
  absl::flat_hash_map<DeviceId, std::shared_ptr<NcclPeer>> routes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_NCCL_NODE_H_

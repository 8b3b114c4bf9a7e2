// SPDX-License-Identifier: Apache-2.0
// The sender and receiver of a pair that moves tensors by NCCL.
#ifndef FERRY_TRANSPORT_NCCL_NCCL_ENDPOINTS_H_
#define FERRY_TRANSPORT_NCCL_NCCL_ENDPOINTS_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

#include "transport/nccl/nccl_descriptor.h"
#include "transport/nccl/nccl_node.h"
#include "transport/transport.h"

namespace ferry {

// Exposes a tensor when its bytes are ready, so that one waiting on its stream delays no other.
// Thread-safe.
class NcclSender final : public TransportSender, public std::enable_shared_from_this<NcclSender> {
 public:
  // `node` must outlive it.
  NcclSender(NcclNode& node, std::shared_ptr<NcclPeer> peer)
      : node_(node), peer_(std::move(peer)) {}

  void SetControlChannel(ControlMessageSender channel) override {
    peer_->SetChannel(std::move(channel));
  }
  absl::Status OnControlMessage(absl::string_view body) override { return peer_->OnMessage(body); }
  void Expose(uint64_t id, const Tensor& tensor, const TensorLocation& to,
              ExposeCallback done) override ABSL_LOCKS_EXCLUDED(mu_);
  void Release(uint64_t id) override ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Exposed {
    // Null until its bytes are ready.
    std::shared_ptr<NcclDevice> device;
    TransferKey key;
  };
  void ExposeReady(uint64_t id, const Tensor& tensor, const TensorLocation& to, ExposeCallback done)
      ABSL_LOCKS_EXCLUDED(mu_);

  NcclNode& node_;
  const std::shared_ptr<NcclPeer> peer_;
  absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Exposed> exposed_ ABSL_GUARDED_BY(mu_);
};

// Receives into memory that is already mapped: mapping more may wait for NCCL's work to end, which
// may wait for this transfer. If there is none, it allocates some and requests a retry.
// Thread-safe.
class NcclReceiver final : public TransportReceiver,
                           public std::enable_shared_from_this<NcclReceiver> {
 public:
  NcclReceiver(NcclNode& node, std::shared_ptr<NcclPeer> peer)
      : node_(node), peer_(std::move(peer)) {}

  void SetControlChannel(ControlMessageSender channel) override {
    peer_->SetChannel(std::move(channel));
  }
  absl::Status OnControlMessage(absl::string_view body, absl::Span<UniqueFd> descriptors) override {
    return peer_->OnMessage(body);
  }
  void Fetch(uint64_t id, const TensorHeader& header, absl::string_view body,
             absl::Span<UniqueFd> descriptors, const Tensor& destination,
             FetchCallback done) override ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel(uint64_t id) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::string_view PathOf(const TensorHeader& header, absl::string_view body,
                           const Tensor& destination) const override;
  void Discard(uint64_t id, const TensorHeader& header, absl::string_view body,
               absl::Span<UniqueFd> descriptors) override;
  void Abort(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Fetching {
    // Null while memory is being allocated.
    std::shared_ptr<NcclDevice> device;
    TransferKey key;
    FetchCallback done;
  };
  // Decodes a transfer descriptor and checks it against the request.
  absl::StatusOr<NcclDescriptor> Check(const TensorHeader& header, absl::string_view body) const;
  // Leaves `memory` invalid if none is mapped: it must be allocated.
  absl::Status FindMemory(uint64_t id, const TensorHeader& header, Tensor& memory)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Answers the grant that the transfer descriptor carries; until then the source holds its
  // device's lock.
  void Answer(absl::string_view body);
  void GetMemory(uint64_t id, const TensorHeader& header);
  // Accepts the offer of a put, if there is room for it.
  bool FetchPut(uint64_t id, const TensorHeader& header, const NcclDescriptor& descriptor,
                const std::shared_ptr<NcclDevice>& device, FetchCallback& done)
      ABSL_LOCKS_EXCLUDED(mu_);
  void End(uint64_t id, absl::StatusOr<Tensor> tensor) ABSL_LOCKS_EXCLUDED(mu_);

  NcclNode& node_;
  const std::shared_ptr<NcclPeer> peer_;
  absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Fetching> fetching_ ABSL_GUARDED_BY(mu_);
  // Memory allocated for transfers that will be retried.
  absl::flat_hash_map<uint64_t, Tensor> allocated_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_NCCL_ENDPOINTS_H_

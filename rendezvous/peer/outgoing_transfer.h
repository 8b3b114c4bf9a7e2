// SPDX-License-Identifier: Apache-2.0
// OutgoingTransfer: a tensor on its way to a consumer, from its request until it was received.
#ifndef FERRY_RENDEZVOUS_PEER_OUTGOING_TRANSFER_H_
#define FERRY_RENDEZVOUS_PEER_OUTGOING_TRANSFER_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "base/cancellation_token.h"
#include "rendezvous/key.h"
#include "rendezvous/outstanding_operations.h"
#include "rendezvous/peer/path_selector.h"
#include "rendezvous/peer/peer_protocol.h"
#include "rendezvous/value.h"
#include "tensor/tensor.h"
#include "transport/transport.h"

namespace ferry {

class TensorResponder;

enum class OutgoingState : uint8_t {
  // Waits for its value.
  kRequested,
  // Has its value, for which a path is being selected.
  kMatched,
  // Being copied from GPU memory to host memory.
  kStaging,
  // A transport is preparing its transfer descriptor.
  kExposing,
  // The RTS has been sent, or is being sent. The tensor would be lost if this process exited.
  kExposed,
  // The RTS has been sent, and the tensor can be fetched even after this process has exited.
  kLent,
  // Sent inline, received, refused, cancelled or lost.
  kFinished,
};

// "exposed".
absl::string_view OutgoingStateName(OutgoingState state);
// True if a transfer may go from one state to the other. The only definition of the legal
// transitions.
bool IsLegal(OutgoingState from, OutgoingState to);

class OutgoingTransfer;
using OutgoingTransferPtr = std::shared_ptr<OutgoingTransfer>;

// Owned by the callback that it waits for, and by the responder's table while it is listed there.
// In kMatched, kStaging and kExposing it belongs to the thread that runs it; the other transitions
// are made under the responder's lock. `self` is a pointer to this, in all functions.
class OutgoingTransfer final {
 public:
  OutgoingTransfer(std::shared_ptr<TensorResponder> responder, const RequestMessage& message,
                   const RendezvousKey& key);

  uint64_t id() const { return id_; }
  int64_t step_id() const { return step_id_; }
  bool may_reject() const { return may_reject_; }
  const RendezvousKey& key() const { return key_; }
  OutgoingState state() const { return state_.load(std::memory_order_acquire); }
  // Changes the state and logs it. Returns false and changes nothing if that is illegal, which is
  // an error of this program, and is logged.
  bool Advance(OutgoingState to);

  // Waits for the value, and sends it.
  void Start(const OutgoingTransferPtr& self);
  // The request was withdrawn before there was a value.
  void Cancel() { cancellation_.Cancel(); }
  // The consumer could not fetch it, for that reason, and has it sent again.
  void Retry(const std::shared_ptr<TensorResponder>& responder, const OutgoingTransferPtr& self,
             const absl::Status& why);
  // The consumer has received it, or has rejected it.
  void Release(TensorResponder& responder, bool was_received);
  // The value cannot be delivered any more, and only this side is told.
  void RecordSendFailure(const TensorResponder& responder, const absl::Status& why) const;
  // Its step no longer waits for it.
  void EndOperation() { operation_.End(); }

  // Description for reports; guarded by the responder's lock.
  struct Listing {
    // Index in the list of transports; in kStaging without meaning.
    size_t transport = 0;
    size_t bytes = 0;
    absl::Time since;
  };
  Listing& listing() { return listing_; }
  const Listing& listing() const { return listing_; }

 private:
  void OnValue(const OutgoingTransferPtr& self, const absl::Status& status, Received received);
  // Selects a path and follows it, again.
  void SelectPath(const std::shared_ptr<TensorResponder>& responder,
                  const OutgoingTransferPtr& self, Tensor tensor);
  void FollowPath(const std::shared_ptr<TensorResponder>& responder,
                  const OutgoingTransferPtr& self, Tensor tensor, const SelectedPath& path);
  // For the zero-copy path, and a request that has just got its value: the transport sends the RTS
  // itself. If it cannot, the path is followed as any other.
  void SendZeroCopy(const std::shared_ptr<TensorResponder>& responder,
                    const OutgoingTransferPtr& self, Tensor tensor, const SelectedPath& path);
  void SendInline(TensorResponder& responder, const Tensor& tensor);
  // Copies it to host memory, and sends that.
  void Stage(const std::shared_ptr<TensorResponder>& responder, const OutgoingTransferPtr& self);
  void OnStaged(const OutgoingTransferPtr& self, absl::StatusOr<Tensor> tensor);
  void Expose(const std::shared_ptr<TensorResponder>& responder, const OutgoingTransferPtr& self,
              const SelectedPath& path);
  void OnExposed(const std::shared_ptr<TensorResponder>& responder, const OutgoingTransferPtr& self,
                 absl::StatusOr<TransferDescriptor> descriptor);
  void OnExposeFailed(const std::shared_ptr<TensorResponder>& responder,
                      const OutgoingTransferPtr& self, const absl::Status& why);
  // All but the body, the transport and a checksum.
  ReadyToSendMessage MakeRts(const Tensor& tensor) const;
  void SendRts(TensorResponder& responder, const ReadyToSendMessage& rts,
               absl::Span<const int> descriptors);
  // An RTS of a value that is not dead has been sent.
  void OnRtsSent(TensorResponder& responder, const ReadyToSendMessage& rts);
  // Its value exists but cannot be sent: reports the error to both sides.
  void FailSend(TensorResponder& responder, const absl::Status& why);
  void Finish(TensorResponder& responder);

  // The fields that every transfer uses come first, in few cache lines: many small tensors are
  // requested in advance.

  // Set while a callback is pending, which then needs to capture nothing else.
  std::shared_ptr<TensorResponder> responder_;
  const uint64_t id_;
  const int64_t step_id_;
  const RendezvousKey key_;
  // Memory in which it is requested.
  const TensorLocation location_;
  const bool may_reject_;
  std::atomic<OutgoingState> state_{OutgoingState::kRequested};
  bool is_serialized_ = false;
  // The tensor is a copy of one in GPU memory.
  bool is_staged_ = false;
  // A transport has turned out not to work for it.
  bool has_changed_path_ = false;
  // From taking the value until this transfer ends, since the value has arrived or is lost, or
  // until the value outlives this process.
  StepOperation operation_;
  CancellationToken cancellation_;

  // Number of times that a transport failed to bring it.
  int failed_tries_ = 0;
  uint64_t checksum_ = 0;
  // While it is being staged or exposed; and until it is received if it may have to be sent again.
  Tensor tensor_;
  // For transfers whose duration is a cost sample, and for those whose copy into the arena is.
  absl::Time start_ = absl::InfiniteFuture();
  absl::Time copy_start_ = absl::InfiniteFuture();
  Listing listing_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_OUTGOING_TRANSFER_H_

// SPDX-License-Identifier: Apache-2.0
// IncomingTransfer: a tensor requested from a producer, from the request until its caller has it.
#ifndef FERRY_RENDEZVOUS_PEER_INCOMING_TRANSFER_H_
#define FERRY_RENDEZVOUS_PEER_INCOMING_TRANSFER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "base/unique_fd.h"
#include "rendezvous/key.h"
#include "rendezvous/peer/peer_protocol.h"
#include "rendezvous/remote_rendezvous.h"
#include "rendezvous/value.h"
#include "tensor/tensor.h"
#include "transport/transport.h"

namespace ferry {

class TensorRequester;

enum class IncomingState : uint8_t {
  // Waits for a control channel.
  kQueued,
  // The REQUEST has been sent, or is being sent; no answer has arrived.
  kRequested,
  // The RTS has arrived, and a transport fetches the tensor.
  kFetching,
  // The transport could not fetch it; another RTS has been requested.
  kRetrying,
  // The caller has cancelled it. The producer's answer is still to come.
  kCancelled,
  // The caller has its value or an error, and no answer is expected.
  kFinished,
};

// "fetching".
absl::string_view IncomingStateName(IncomingState state);
// True if a transfer may go from one state to the other. The only definition of the legal
// transitions.
bool IsLegal(IncomingState from, IncomingState to);

class IncomingTransfer;
using IncomingTransferPtr = std::shared_ptr<IncomingTransfer>;

// Also the caller's handle of the request. Listed in the requester's table until it is finished;
// all transitions are made under the requester's lock. The callback and the destination belong to
// the thread that has removed it from the table.
class IncomingTransfer final : public RemoteFetch {
 public:
  // `needs_name`: errors name the step and the key.
  IncomingTransfer(std::weak_ptr<TensorRequester> requester, int64_t step_id,
                   const RendezvousKey& key, const RecvArgs& args, RecvCallback done,
                   bool needs_name);

  void Cancel() override;
  std::string Phase() const override;

  uint64_t id() const { return id_; }
  int64_t step_id() const { return step_id_; }
  // Empty unless it is logged.
  const std::string& logged_key() const { return logged_key_; }
  IncomingState state() const { return state_.load(std::memory_order_acquire); }
  // True if an RTS or an ERROR may arrive for it.
  bool awaits_answer() const {
    const IncomingState now = state();
    return now == IncomingState::kRequested || now == IncomingState::kRetrying ||
           now == IncomingState::kCancelled;
  }
  // Changes the state and logs it. Returns false and changes nothing if that is illegal, which is
  // an error of this program, and is logged.
  bool Advance(IncomingState to);

  // The following are called under the requester's lock.
  void set_id(uint64_t id) { id_ = id; }
  // Keeps the key until the request can be sent.
  void Queue(const RendezvousKey& key);
  const std::string& queued_key() const { return queued_key_; }
  std::string TakeQueuedKey() { return std::move(queued_key_); }
  // Its value may be rejected after the producer has forgotten it.
  void AllowRejection(const RendezvousKey& key) { rejected_key_ = key.text(); }
  bool may_reject() const { return !rejected_key_.empty(); }
  // Number of the transport that fetches it, from 1; 0: none.
  size_t transport() const { return transport_; }
  void set_transport(size_t number) { transport_ = number; }
  // The requested location. Transports and transfer descriptors deliver there if they can,
  // otherwise to host memory, from where the caller copies it.
  const TensorLocation& location() const { return location_; }
  const Destination& destination() const { return destination_; }

  // The following are called on the loop.
  // Fetches the tensor by the transport that the RTS names, into `destination` if that is valid.
  // Called in kFetching. `self`: a pointer to this.
  void Fetch(const std::shared_ptr<TensorRequester>& requester, const IncomingTransferPtr& self,
             const ReadyToSendMessage& rts, absl::Span<UniqueFd> descriptors, Tensor destination);
  // Receives an inline tensor, whose bytes are in the RTS. Called when it has been removed from the
  // table.
  //   tensor: the destination, if the elements are there already; invalid: they are in the RTS.
  //   error: why it cannot be accepted, or OK.
  void ReceiveInline(TensorRequester& requester, const ReadyToSendMessage& rts, Tensor tensor,
                     const absl::Status& error);
  // Calls the caller, once it has been removed from the table.
  void Complete(absl::Status status, Received received);
  // Logs the outcome. `path`: if it succeeded.
  void LogEnd(const TensorRequester& requester, absl::string_view path,
              const absl::Status& status) const;
  // "step 7, KEY"; empty unless it was asked for.
  const std::string& name() const { return name_; }
  const std::string& rejected_key() const { return rejected_key_; }

 private:
  // A fetch by a transport, for its callback.
  struct Fetching {
    // Without its body.
    ReadyToSendMessage rts;
    absl::string_view path;
    absl::Time start;
  };
  void OnFetched(TensorRequester& requester, const Fetching& fetching,
                 absl::StatusOr<Tensor> tensor, TransportReceiver::FetchInfo info);
  // Checks and decodes a fetched tensor. `name`: the request's, if it has one.
  //   has_checked_values: the transport has already called CheckValues.
  //   ends_connection: set to true if the peer cannot be used any more: close the channel after
  //   telling it that the tensor was rejected.
  static absl::Status Unpack(const TensorRequester& requester, const ReadyToSendMessage& rts,
                             absl::StatusOr<Tensor> tensor, bool has_checked_values,
                             absl::string_view path, absl::string_view name, Received& received,
                             bool& ends_connection);

  const std::weak_ptr<TensorRequester> requester_;
  // Node id of the producer.
  const int32_t peer_;
  uint64_t id_ = 0;
  const int64_t step_id_;
  RecvCallback done_;
  const TensorLocation location_;
  Destination destination_;
  std::string queued_key_;
  std::string name_;
  std::string logged_key_;
  // For one that may be rejected after its producer has forgotten it: with checksums, with a
  // destination buffer, or if it may arrive over a forbidden path.
  std::string rejected_key_;
  std::atomic<IncomingState> state_{IncomingState::kQueued};
  size_t transport_ = 0;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_INCOMING_TRANSFER_H_

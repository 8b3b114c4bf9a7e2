// SPDX-License-Identifier: Apache-2.0
// Messages between a consumer and a producer over a control channel.
#ifndef FERRY_RENDEZVOUS_PEER_PEER_PROTOCOL_H_
#define FERRY_RENDEZVOUS_PEER_PEER_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "rendezvous/peer/eager_protocol.h"
#include "tensor/check_values.h"
#include "transport/control/control_channel.h"
#include "transport/transport.h"

namespace ferry {

// Tensors flow in both directions of a control channel, and the message types distinguish the
// roles: either side sends requests, as a consumer, and answers, as a producer. The side that
// opened the channel sends HELLO first, and the other answers with HELLO; peer_connection_pool.h
// says which of two control channels is used if both sides opened one. The producer answers each
// REQUEST with exactly one RTS, once there is a value, or ERROR. Ids are chosen by the
// consumer and never reused. A protocol violation closes the control channel. An ERROR of 0, which
// is no request, gives the reason for closing. If a HELLO is checksummed (frame_checksum.h), so is
// everything that follows, on both sides.
//   both:      HELLO; PING, answered at once by a PONG with the same id
//   consumer:  REQUEST; CANCEL (the value is no longer needed: an ERROR confirms that it was in
//              time; unknown ids are ignored); ACK (for a transfer descriptor whose transport is
//              not 0: its memory may be reused); RECEIVER_CONTROL, from a transport's receiver to
//              its sender; RETRY, instead of ACK (the transport failed to bring the tensor, for
//              that reason: requests another RTS or an ERROR); REJECTED (the consumer got a
//              transfer descriptor but rejects its value, for that reason: wrong buffer, another
//              transport than required, corruption), instead of ACK, or of nothing if the tensor
//              was inline
//   producer:  RTS, ERROR; SENDER_CONTROL, from a transport's sender to its receiver
enum class PeerMessageType : uint16_t {
  kHello = 1,
  kRequest = 2,
  kReadyToSend = 3,
  kError = 4,
  kAck = 5,
  kCancel = 6,
  kSenderControl = 7,
  kReceiverControl = 8,
  kRetry = 9,
  kRejected = 10,
  kPing = 11,
  kPong = 12,
  // The eager protocol's (eager_protocol.h); only after a HELLO with limits.
  kEager = 13,
  kEagerPull = 14,
  kEagerPush = 15,
  kEagerAck = 16,
  kStepRefused = 17,
  kAckNow = 18,
  kNamedRequest = 19,
  kWatch = 20,
};

// Human-readable: "RTS", or "message of type 77".
std::string PeerMessageName(uint16_t type);

struct HelloMessage {
  std::string boot_id;
  std::string host_name;
  // PeerAddresses::tcp.
  std::vector<std::string> tcp;
  // UUIDs of its GPUs, by ordinal.
  std::vector<std::string> gpus;
  // Endpoint::transports.
  std::vector<TransportDescription> transports;
  // If values may be sent to it before it requests them.
  std::optional<EagerLimits> eager;
};

struct RequestMessage {
  uint64_t id = 0;
  int64_t step_id = 0;
  // The receive has a buffer, which may not fit, or a policy that forbids some paths: a transfer
  // descriptor may then be REJECTED even if its tensor is inline.
  bool may_reject = false;
  // Points into the frame.
  absl::string_view key;
};

struct ReadyToSendMessage {
  uint64_t id = 0;
  bool is_dead = false;
  // The bytes are a tensorflow.TensorProto, since the tensor's elements are not of fixed size.
  bool is_serialized = false;
  bool has_checksum = false;
  // It was in GPU memory, and was copied to host memory since no transport reads it from there.
  bool is_staged = false;
  uint64_t checksum = 0;
  // 0: the body is the tensor. Else the transport's number, from 1, in the HELLO of the message's
  // sender, and the body is its transfer descriptor.
  uint8_t transport = 0;
  TensorHeader header;
  // Points into the frame.
  absl::string_view body;

  // True if the complete value may still turn out to be invalid. Booleans in the frame are also
  // checked by the producer, so that the consumer need not report them.
  bool may_be_rejected() const {
    return has_checksum || is_serialized || (transport != 0 && HasIllegalBits(header.dtype));
  }
};

// The bytes of an RTS before its body.
class ReadyToSendHead final {
 public:
  explicit ReadyToSendHead(const ReadyToSendMessage& rts);

  absl::string_view view() const { return {room_, bytes_}; }

 private:
  size_t bytes_ = 0;
  char room_[24 + 8 * Shape::kMaxRank];
};

// Also used for RECEIVER_CONTROL.
struct TransportControlMessage {
  // From 1, in the HELLO of the message's sender.
  uint8_t transport = 0;
  // Points into the frame.
  absl::string_view body;
};

// Also used for RETRY.
struct ErrorMessage {
  uint64_t id = 0;
  absl::Status status;
};

struct RejectedMessage {
  uint64_t id = 0;
  absl::Status status;
  // For a transfer descriptor with its tensor inline, which the producer has already forgotten.
  int64_t step_id = 0;
  // Points into the frame. Empty: the consumer has forgotten it too.
  absl::string_view key;
};

// Longer keys are rejected before they are sent.
inline constexpr size_t kMaxKeyBytes = 32 * 1024;

absl::Status SendHello(ControlChannel& channel, const HelloMessage& hello);
//   Errors: also INVALID_ARGUMENT for a key above kMaxKeyBytes.
absl::Status SendRequest(ControlChannel& channel, const RequestMessage& request);
absl::Status SendReadyToSend(ControlChannel& channel, const ReadyToSendMessage& rts,
                             absl::Span<const int> descriptors);
absl::Status SendSenderControl(ControlChannel& channel, const TransportControlMessage& announcement,
                               absl::Span<const int> descriptors);
absl::Status SendReceiverControl(ControlChannel& channel, const TransportControlMessage& reply);
absl::Status SendError(ControlChannel& channel, const ErrorMessage& refusal);
absl::Status SendRetry(ControlChannel& channel, const ErrorMessage& again);
absl::Status SendRejected(ControlChannel& channel, const RejectedMessage& rejected);
// ACK, CANCEL, PING or PONG.
absl::Status SendId(ControlChannel& channel, PeerMessageType type, uint64_t id);

//   Errors, for all: INVALID_ARGUMENT.
absl::StatusOr<HelloMessage> DecodeHello(absl::string_view body);
absl::StatusOr<RequestMessage> DecodeRequest(absl::string_view body);
absl::StatusOr<ReadyToSendMessage> DecodeReadyToSend(absl::string_view body);
absl::StatusOr<TransportControlMessage> DecodeTransportControl(absl::string_view body);
absl::StatusOr<ErrorMessage> DecodeError(absl::string_view body);
absl::StatusOr<RejectedMessage> DecodeRejected(absl::string_view body);
absl::StatusOr<uint64_t> DecodeId(absl::string_view body);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_PEER_PROTOCOL_H_

// SPDX-License-Identifier: Apache-2.0
// What a consumer and a producer say to each other over a control channel.
#ifndef FERRY_RENDEZVOUS_PEER_PEER_PROTOCOL_H_
#define FERRY_RENDEZVOUS_PEER_PEER_PROTOCOL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "tensor/check_values.h"
#include "transport/control/control_channel.h"
#include "transport/transport.h"

namespace ferry {

// A control channel has two directions of need, and its messages are told apart by their types:
// either side asks the other, as a consumer, and answers, as a producer. Whoever has opened it says
// HELLO first, and the other answers with HELLO; which of two control channels there is to be, if
// both have opened one, is said in peer_connection_pool.h. The producer answers each REQUEST with a
// TICKET, as soon as there is a value, or with a REFUSAL: with exactly one of them. Ids are the
// consumer's, and none is used twice. Whoever hears something else ends the control channel. A
// REFUSAL of 0, which is no request, says why it is ended. If a HELLO is sealed (frame_checksum.h),
// so is everything that follows, on either side.
//   both:      HELLO; PING, which is answered at once with a PONG of the same id
//   consumer:  REQUEST, CANCEL (no value is wanted any more: a REFUSAL says that it was in time; of
//              an id that is not known: nothing), DONE (of a transfer descriptor whose transport is
//              not 0: its memory may be used again)
//   producer:  TICKET, REFUSAL; ANNOUNCEMENT, from a transport's sender to its receiver
//   consumer again: REPLY, from a transport's receiver to its sender; AGAIN (the transfer
//   descriptor's transport
//              could not bring the tensor, for that reason: another TICKET, or a REFUSAL, please),
//              instead of DONE; DECLINED (the consumer got a transfer descriptor and takes no value
//              from it, for that reason: wrong buffer, another transport than it requires, damage),
//              instead of DONE, or of nothing after a transfer descriptor that brought its tensor
//              along
enum class ControlMessage : uint16_t {
  kHello = 1,
  kRequest = 2,
  kTicket = 3,
  kRefusal = 4,
  kDone = 5,
  kCancel = 6,
  kAnnouncement = 7,
  kReply = 8,
  kAgain = 9,
  kDeclined = 10,
  kPing = 11,
  kPong = 12,
};

// "TICKET", or "message of type 17": for people.
std::string ControlMessageName(uint16_t type);

struct HelloMessage {
  std::string boot_id;
  std::string host_name;
  // PeerAddresses::tcp.
  std::vector<std::string> tcp;
  // UUIDs of its GPUs, by ordinal.
  std::vector<std::string> gpus;
  // Endpoint::nccl_version.
  int32_t nccl_version = 0;
};

struct RequestMessage {
  uint64_t id = 0;
  int64_t step_id = 0;
  // It has a buffer for the value, which may not fit, or a policy that forbids some ways: a
  // transfer descriptor may then be DECLINED though it brings its tensor along.
  bool may_decline = false;
  // In the frame.
  absl::string_view key;
};

struct ReadyToSendMessage {
  uint64_t id = 0;
  bool is_dead = false;
  // The bytes are a tensorflow.TensorProto, since elements of the tensor are not of fixed size.
  bool is_serialized = false;
  bool has_checksum = false;
  // It lay in a GPU's memory, and was copied to the host's since no transport takes it from there.
  bool is_staged = false;
  uint64_t checksum = 0;
  // 0: the body is the tensor. Else the transport's number, and the body is its transfer
  // descriptor.
  uint8_t transport = 0;
  TensorHeader header;
  // In the frame.
  absl::string_view body;

  // True if the complete value may still turn out to be invalid. Booleans in the frame are checked
  // by the producer as well, so that the consumer need not report them.
  bool may_be_declined() const {
    return has_checksum || is_serialized || (transport != 0 && HasIllegalBits(header.dtype));
  }
};

// Or a REPLY.
struct AnnouncementMessage {
  // From 1 on.
  uint8_t transport = 0;
  // In the frame.
  absl::string_view body;
};

// Or AGAIN.
struct RefusalMessage {
  uint64_t id = 0;
  absl::Status status;
};

struct DeclinedMessage {
  uint64_t id = 0;
  absl::Status status;
  // Of a transfer descriptor that brought its tensor along, which the producer has forgotten by
  // now.
  int64_t step_id = 0;
  // In the frame. Empty: the consumer does not remember either.
  absl::string_view key;
};

// Up to here a tensor may come with its transfer descriptor over TCP even where another transport
// is required.
inline constexpr size_t kInlineUnasked = 32 * 1024;
// Longer keys are refused before they are sent.
inline constexpr size_t kMaxKeyBytes = 32 * 1024;

absl::Status SendHello(ControlChannel& channel, const HelloMessage& hello);
//   Errors: also INVALID_ARGUMENT for a key above kMaxKeyBytes.
absl::Status SendRequest(ControlChannel& channel, const RequestMessage& request);
absl::Status SendTicket(ControlChannel& channel, const ReadyToSendMessage& ticket,
                        absl::Span<const int> descriptors);
absl::Status SendAnnouncement(ControlChannel& channel, const AnnouncementMessage& announcement,
                              absl::Span<const int> descriptors);
absl::Status SendReply(ControlChannel& channel, const AnnouncementMessage& reply);
absl::Status SendRefusal(ControlChannel& channel, const RefusalMessage& refusal);
absl::Status SendAgain(ControlChannel& channel, const RefusalMessage& again);
absl::Status SendDeclined(ControlChannel& channel, const DeclinedMessage& declined);
// DONE, CANCEL, PING or PONG.
absl::Status SendId(ControlChannel& channel, ControlMessage type, uint64_t id);

//   Errors, of all: INVALID_ARGUMENT.
absl::StatusOr<HelloMessage> DecodeHello(absl::string_view body);
absl::StatusOr<RequestMessage> DecodeRequest(absl::string_view body);
absl::StatusOr<ReadyToSendMessage> DecodeTicket(absl::string_view body);
absl::StatusOr<AnnouncementMessage> DecodeAnnouncement(absl::string_view body);
absl::StatusOr<RefusalMessage> DecodeRefusal(absl::string_view body);
absl::StatusOr<DeclinedMessage> DecodeDeclined(absl::string_view body);
absl::StatusOr<uint64_t> DecodeId(absl::string_view body);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_PEER_PROTOCOL_H_

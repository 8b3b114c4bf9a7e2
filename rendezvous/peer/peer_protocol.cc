// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding of messages.
#include "rendezvous/peer/peer_protocol.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

#include "base/byte_reader.h"
#include "base/status_macros.h"
#include "transport/transports.h"

namespace ferry {
namespace {

constexpr uint8_t kDead = 1;
constexpr uint8_t kSerialized = 2;
constexpr uint8_t kChecksum = 4;
constexpr uint8_t kStaged = 8;
// Flag of a REQUEST.
constexpr uint8_t kMayReject = 1;
// The fields of HELLO: a byte for which it is, two for its length, and its value. Unknown ones are
// skipped, so that a further field needs no new version. Fields 3 to 5 may be repeated.
enum class HelloField : uint8_t {
  kBootId = 1,
  kHostName = 2,
  kTcpAddress = 3,
  kGpu = 4,
  // A byte for the length of its name, the name, and its descriptor. In the order of its numbers.
  kTransport = 5,
  // EncodeEagerLimits, once.
  kEager = 6,
};

// More GPUs than any machine has; further ones are omitted.
constexpr size_t kMaxGpus = 64;
// Limit on a host's addresses.
constexpr size_t kMaxAddresses = 16;
// Limit on error texts; longer ones are cut.
constexpr size_t kMaxMessageBytes = 16 * 1024;

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a malformed ", what));
}

uint16_t Type(PeerMessageType message) { return static_cast<uint16_t>(message); }

absl::Status SendStatus(ControlChannel& channel, PeerMessageType type,
                        const ErrorMessage& message) {
  char room[12];
  ByteWriter writer(room, sizeof(room));
  writer.Put(message.id);
  writer.Put(static_cast<uint32_t>(message.status.code()));
  return channel.Send(Type(type),
                      {writer.view(), message.status.message().substr(0, kMaxMessageBytes)});
}

}  // namespace

std::string PeerMessageName(uint16_t type) {
  switch (static_cast<PeerMessageType>(type)) {
    case PeerMessageType::kHello:
      return "HELLO";
    case PeerMessageType::kRequest:
      return "REQUEST";
    case PeerMessageType::kReadyToSend:
      return "RTS";
    case PeerMessageType::kError:
      return "ERROR";
    case PeerMessageType::kAck:
      return "ACK";
    case PeerMessageType::kCancel:
      return "CANCEL";
    case PeerMessageType::kSenderControl:
      return "SENDER_CONTROL";
    case PeerMessageType::kReceiverControl:
      return "RECEIVER_CONTROL";
    case PeerMessageType::kRetry:
      return "RETRY";
    case PeerMessageType::kRejected:
      return "REJECTED";
    case PeerMessageType::kPing:
      return "PING";
    case PeerMessageType::kPong:
      return "PONG";
    case PeerMessageType::kEager:
      return "EAGER";
    case PeerMessageType::kEagerPull:
      return "PULL";
    case PeerMessageType::kEagerPush:
      return "PUSH";
    case PeerMessageType::kEagerAck:
      return "EAGER_ACK";
    case PeerMessageType::kStepRefused:
      return "STEP_REFUSED";
    case PeerMessageType::kAckNow:
      return "ACK_NOW";
    case PeerMessageType::kNamedRequest:
      return "NAMED_REQUEST";
    case PeerMessageType::kWatch:
      return "WATCH";
  }
  return absl::StrCat("message of type ", type);
}

absl::Status SendHello(ControlChannel& channel, const HelloMessage& hello) {
  std::string body;
  const auto put = [&body](HelloField field, absl::string_view value) {
    char room[3];
    ByteWriter writer(room, sizeof(room));
    writer.Put(static_cast<uint8_t>(field));
    writer.Put(static_cast<uint16_t>(value.size()));
    absl::StrAppend(&body, writer.view(), value);
  };
  const auto put_texts = [&put](HelloField field, const std::vector<std::string>& texts,
                                size_t most, size_t most_bytes) {
    for (size_t i = 0; i < std::min(texts.size(), most); ++i) {
      put(field, absl::string_view(texts[i]).substr(0, most_bytes));
    }
  };
  FERRY_RETURN_IF_ERROR(CheckDescriptions(hello.transports));
  put(HelloField::kBootId, absl::string_view(hello.boot_id).substr(0, 256));
  put(HelloField::kHostName, absl::string_view(hello.host_name).substr(0, 256));
  put_texts(HelloField::kTcpAddress, hello.tcp, kMaxAddresses, 256);
  put_texts(HelloField::kGpu, hello.gpus, kMaxGpus, 64);
  for (const TransportDescription& each : hello.transports) {
    const char name_bytes = static_cast<char>(each.name.size());
    put(HelloField::kTransport,
        absl::StrCat(absl::string_view(&name_bytes, 1), each.name, each.descriptor));
  }
  if (hello.eager.has_value()) put(HelloField::kEager, EncodeEagerLimits(*hello.eager));
  return channel.Send(Type(PeerMessageType::kHello), {body});
}

absl::StatusOr<HelloMessage> DecodeHello(absl::string_view body) {
  ByteReader reader(body);
  HelloMessage hello;
  absl::flat_hash_set<uint8_t> seen;
  while (!reader.rest().empty()) {
    const auto field = reader.Get<uint8_t>();
    const absl::string_view value = reader.GetText();
    if (reader.is_short()) return Malformed("HELLO");
    const bool is_first = seen.insert(field).second;
    switch (static_cast<HelloField>(field)) {
      case HelloField::kBootId:
        if (!is_first) return Malformed("HELLO: two boot ids");
        hello.boot_id = std::string(value);
        break;
      case HelloField::kHostName:
        if (!is_first) return Malformed("HELLO: two host names");
        hello.host_name = std::string(value);
        break;
      case HelloField::kTcpAddress:
        hello.tcp.emplace_back(value);
        break;
      case HelloField::kGpu:
        hello.gpus.emplace_back(value);
        break;
      case HelloField::kTransport: {
        ByteReader of_transport(value);
        const absl::string_view name = of_transport.GetBytes(of_transport.Get<uint8_t>());
        if (of_transport.is_short()) return Malformed("HELLO: a transport without its name");
        hello.transports.push_back({std::string(name), std::string(of_transport.rest())});
        break;
      }
      case HelloField::kEager: {
        if (!is_first) return Malformed("HELLO: two lists of eager limits");
        FERRY_ASSIGN_OR_RETURN(hello.eager, DecodeEagerLimits(value));
        break;
      }
      default:
        // A later version's.
        break;
    }
  }
  if (const absl::Status status = CheckDescriptions(hello.transports); !status.ok()) {
    return Malformed(absl::StrCat("HELLO: ", status.message()));
  }
  return hello;
}

absl::Status SendRequest(ControlChannel& channel, const RequestMessage& request) {
  if (request.key.size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a key of ", request.key.size(), " bytes; the most is ", kMaxKeyBytes));
  }
  char room[17];
  ByteWriter writer(room, sizeof(room));
  writer.Put(request.id);
  writer.Put(request.step_id);
  writer.Put(static_cast<uint8_t>(request.may_reject ? kMayReject : 0));
  return channel.Send(Type(PeerMessageType::kRequest), {writer.view(), request.key});
}

absl::StatusOr<RequestMessage> DecodeRequest(absl::string_view body) {
  ByteReader reader(body);
  RequestMessage request;
  request.id = reader.Get<uint64_t>();
  request.step_id = reader.Get<int64_t>();
  request.may_reject = (reader.Get<uint8_t>() & kMayReject) != 0;
  request.key = reader.rest();
  if (reader.is_short()) return Malformed("REQUEST");
  return request;
}

ReadyToSendHead::ReadyToSendHead(const ReadyToSendMessage& rts) {
  ByteWriter writer(room_, sizeof(room_));
  writer.Put(rts.id);
  writer.Put(rts.checksum);
  writer.Put(static_cast<uint8_t>(rts.header.dtype));
  writer.Put(static_cast<uint8_t>(rts.header.shape.rank()));
  writer.Put(
      static_cast<uint8_t>((rts.is_dead ? kDead : 0) | (rts.is_serialized ? kSerialized : 0) |
                           (rts.has_checksum ? kChecksum : 0) | (rts.is_staged ? kStaged : 0)));
  writer.Put(rts.transport);
  writer.Put(uint32_t{0});
  for (const int64_t dim : rts.header.shape.dims()) writer.Put(dim);
  bytes_ = writer.view().size();
}

absl::Status SendReadyToSend(ControlChannel& channel, const ReadyToSendMessage& rts,
                             absl::Span<const int> descriptors) {
  const ReadyToSendHead head(rts);
  return channel.Send(Type(PeerMessageType::kReadyToSend), {head.view(), rts.body}, descriptors);
}

absl::StatusOr<ReadyToSendMessage> DecodeReadyToSend(absl::string_view body) {
  ByteReader reader(body);
  ReadyToSendMessage rts;
  rts.id = reader.Get<uint64_t>();
  rts.checksum = reader.Get<uint64_t>();
  const auto dtype = reader.Get<uint8_t>();
  const auto rank = reader.Get<uint8_t>();
  const auto flags = reader.Get<uint8_t>();
  rts.transport = reader.Get<uint8_t>();
  reader.Get<uint32_t>();
  if (reader.is_short() || rank > Shape::kMaxRank) return Malformed("RTS");
  rts.is_dead = (flags & kDead) != 0;
  rts.is_serialized = (flags & kSerialized) != 0;
  rts.has_checksum = (flags & kChecksum) != 0;
  rts.is_staged = (flags & kStaged) != 0;
  absl::InlinedVector<int64_t, 8> dims;
  for (int i = 0; i < rank; ++i) dims.push_back(reader.Get<int64_t>());
  if (reader.is_short()) return Malformed("RTS");
  rts.body = reader.rest();
  if (rts.is_dead) {
    if (rts.transport != 0) return Malformed("RTS: a dead value by a transport");
    return rts;
  }
  const std::optional<DataType> type = DataTypeOfNumber(dtype);
  if (!type.has_value() || !IsFixedSize(*type)) return Malformed("RTS: no such type");
  rts.header.dtype = *type;
  FERRY_ASSIGN_OR_RETURN(rts.header.shape, Shape::Create(dims));
  FERRY_ASSIGN_OR_RETURN(rts.header.bytes, TensorBytes(*type, rts.header.shape));
  if (rts.transport == 0 && rts.body.size() != rts.header.bytes) {
    return Malformed("RTS: it does not hold as many bytes as its shape says");
  }
  return rts;
}

absl::Status SendSenderControl(ControlChannel& channel, const TransportControlMessage& announcement,
                               absl::Span<const int> descriptors) {
  const char transport = static_cast<char>(announcement.transport);
  return channel.Send(Type(PeerMessageType::kSenderControl),
                      {absl::string_view(&transport, 1), announcement.body}, descriptors);
}

absl::Status SendReceiverControl(ControlChannel& channel, const TransportControlMessage& reply) {
  const char transport = static_cast<char>(reply.transport);
  return channel.Send(Type(PeerMessageType::kReceiverControl),
                      {absl::string_view(&transport, 1), reply.body}, {});
}

absl::StatusOr<TransportControlMessage> DecodeTransportControl(absl::string_view body) {
  ByteReader reader(body);
  TransportControlMessage message;
  message.transport = reader.Get<uint8_t>();
  message.body = reader.rest();
  if (reader.is_short() || message.transport == 0) return Malformed("transport control");
  return message;
}

absl::Status SendError(ControlChannel& channel, const ErrorMessage& refusal) {
  return SendStatus(channel, PeerMessageType::kError, refusal);
}

absl::Status SendRetry(ControlChannel& channel, const ErrorMessage& again) {
  return SendStatus(channel, PeerMessageType::kRetry, again);
}

absl::Status SendRejected(ControlChannel& channel, const RejectedMessage& rejected) {
  char room[24];
  ByteWriter writer(room, sizeof(room));
  writer.Put(rejected.id);
  writer.Put(rejected.step_id);
  writer.Put(static_cast<uint32_t>(rejected.status.code()));
  writer.Put(static_cast<uint32_t>(rejected.key.size()));
  return channel.Send(
      Type(PeerMessageType::kRejected),
      {writer.view(), rejected.key, rejected.status.message().substr(0, kMaxMessageBytes)});
}

absl::StatusOr<RejectedMessage> DecodeRejected(absl::string_view body) {
  ByteReader reader(body);
  RejectedMessage rejected;
  rejected.id = reader.Get<uint64_t>();
  rejected.step_id = reader.Get<int64_t>();
  const auto code = reader.Get<uint32_t>();
  const auto key_bytes = reader.Get<uint32_t>();
  if (reader.is_short() || code == 0 || code > 16 || key_bytes > reader.rest().size()) {
    return Malformed("REJECTED");
  }
  rejected.key = reader.rest().substr(0, key_bytes);
  rejected.status =
      absl::Status(static_cast<absl::StatusCode>(code), reader.rest().substr(key_bytes));
  return rejected;
}

absl::StatusOr<ErrorMessage> DecodeError(absl::string_view body) {
  ByteReader reader(body);
  ErrorMessage refusal;
  refusal.id = reader.Get<uint64_t>();
  const auto code = reader.Get<uint32_t>();
  if (reader.is_short() || code == 0 || code > 16) return Malformed("ERROR");
  refusal.status = absl::Status(static_cast<absl::StatusCode>(code), reader.rest());
  return refusal;
}

absl::Status SendId(ControlChannel& channel, PeerMessageType type, uint64_t id) {
  char room[8];
  ByteWriter writer(room, sizeof(room));
  writer.Put(id);
  return channel.Send(Type(type), {writer.view()});
}

absl::StatusOr<uint64_t> DecodeId(absl::string_view body) {
  ByteReader reader(body);
  const auto id = reader.Get<uint64_t>();
  if (reader.is_short() || !reader.rest().empty()) return Malformed("message of one id");
  return id;
}

}  // namespace ferry

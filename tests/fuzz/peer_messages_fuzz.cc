// SPDX-License-Identifier: Apache-2.0
// Bodies of control channel frames and of zero-copy transfers, as any peer may write them. The
// first byte selects the decoder.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

#include "base/status_macros.h"
#include "rendezvous/peer/eager_receiver.h"
#include "rendezvous/peer/eager_sender.h"
#include "rendezvous/peer/peer_protocol.h"
#include "transport/shm/shm_endpoints.h"

namespace ferry {
namespace {

// Keeps the last body that was sent.
class CapturingChannel final : public ControlChannel {
 public:
  absl::Status Send(uint16_t type, absl::Span<const absl::string_view> parts,
                    absl::Span<const int> descriptors) override {
    FERRY_RETURN_IF_ERROR(CheckControlBody(parts));
    body.clear();
    for (const absl::string_view part : parts) body.append(part.data(), part.size());
    return absl::OkStatus();
  }
  void Close(const absl::Status& why) override {}
  const PeerId& peer() const override { return peer_; }
  bool passes_descriptors() const override { return false; }
  std::string Describe() const override { return "captured"; }

  std::string body;

 private:
  const PeerId peer_ = {};
};

bool IsWithin(absl::string_view inner, absl::string_view outer) {
  return inner.empty() || (inner.data() >= outer.data() &&
                           inner.data() + inner.size() <= outer.data() + outer.size());
}

void CheckHello(absl::string_view body, CapturingChannel& channel) {
  const absl::StatusOr<HelloMessage> hello = DecodeHello(body);
  if (!hello.ok()) return;
  FERRY_CHECK(hello->boot_id.size() + hello->host_name.size() <= body.size());
  FERRY_CHECK(hello->transports.size() <= kMaxTransports);
  FERRY_CHECK(SendHello(channel, *hello).ok());
  const absl::StatusOr<HelloMessage> again = DecodeHello(channel.body);
  FERRY_CHECK(again.ok());
  FERRY_CHECK(again->boot_id == hello->boot_id.substr(0, 256));
  FERRY_CHECK(again->host_name == hello->host_name.substr(0, 256));
  FERRY_CHECK(again->transports == hello->transports);
  FERRY_CHECK(again->eager == hello->eager);
}

void CheckRequest(absl::string_view body, CapturingChannel& channel) {
  const absl::StatusOr<RequestMessage> request = DecodeRequest(body);
  FERRY_CHECK(request.ok() == (body.size() >= 17));
  if (!request.ok() || request->key.size() > kMaxKeyBytes) return;
  FERRY_CHECK(IsWithin(request->key, body));
  FERRY_CHECK(SendRequest(channel, *request).ok());
  // But for flags of other versions.
  FERRY_CHECK(channel.body.substr(0, 16) == body.substr(0, 16));
  FERRY_CHECK(channel.body.substr(17) == body.substr(17));
  FERRY_CHECK(DecodeRequest(channel.body)->may_reject == request->may_reject);
}

void CheckReadyToSend(absl::string_view body, CapturingChannel& channel) {
  const absl::StatusOr<ReadyToSendMessage> rts = DecodeReadyToSend(body);
  if (!rts.ok()) return;
  FERRY_CHECK(IsWithin(rts->body, body));
  const TensorHeader& header = rts->header;
  if (!rts->is_dead) {
    FERRY_CHECK(IsFixedSize(header.dtype));
    FERRY_CHECK(*TensorBytes(header.dtype, header.shape) == header.bytes);
    // The source of an inline tensor.
    FERRY_CHECK(rts->transport != 0 || rts->body.size() == header.bytes);
  }
  if (!SendReadyToSend(channel, *rts, {}).ok()) return;
  const absl::StatusOr<ReadyToSendMessage> again = DecodeReadyToSend(channel.body);
  FERRY_CHECK(again.ok());
  FERRY_CHECK(again->id == rts->id && again->is_dead == rts->is_dead);
  FERRY_CHECK(again->is_serialized == rts->is_serialized);
  FERRY_CHECK(again->has_checksum == rts->has_checksum);
  FERRY_CHECK(again->checksum == rts->checksum && again->transport == rts->transport);
  if (rts->is_dead) return;
  FERRY_CHECK(again->header.dtype == header.dtype && again->header.shape == header.shape);
  FERRY_CHECK(again->body == rts->body);
}

void CheckError(absl::string_view body, CapturingChannel& channel) {
  const absl::StatusOr<ErrorMessage> refusal = DecodeError(body);
  if (!refusal.ok()) return;
  FERRY_CHECK(!refusal->status.ok());
  FERRY_CHECK(SendError(channel, *refusal).ok());
  const absl::StatusOr<ErrorMessage> again = DecodeError(channel.body);
  FERRY_CHECK(again.ok() && again->id == refusal->id);
  FERRY_CHECK(again->status.code() == refusal->status.code());
}

void CheckRejected(absl::string_view body, CapturingChannel& channel) {
  const absl::StatusOr<RejectedMessage> rejected = DecodeRejected(body);
  if (!rejected.ok()) return;
  FERRY_CHECK(!rejected->status.ok());
  FERRY_CHECK(IsWithin(rejected->key, body));
  FERRY_CHECK(SendRejected(channel, *rejected).ok());
  const absl::StatusOr<RejectedMessage> again = DecodeRejected(channel.body);
  FERRY_CHECK(again.ok() && again->id == rejected->id && again->step_id == rejected->step_id);
  FERRY_CHECK(again->key == rejected->key && again->status.code() == rejected->status.code());
}

void CheckId(absl::string_view body, CapturingChannel& channel) {
  const absl::StatusOr<uint64_t> id = DecodeId(body);
  FERRY_CHECK(id.ok() == (body.size() == 8));
  if (!id.ok()) return;
  FERRY_CHECK(SendId(channel, PeerMessageType::kAck, *id).ok());
  FERRY_CHECK(channel.body == body);
}

void CheckShmDescriptor(absl::string_view body) {
  const absl::StatusOr<ShmDescriptor> rts = DecodeShmDescriptor(body);
  FERRY_CHECK(rts.ok() == (body.size() == 16));
  if (rts.ok()) FERRY_CHECK(rts->bytes() == body);
}

void CheckTransportControl(absl::string_view body) {
  const absl::StatusOr<TransportControlMessage> announcement = DecodeTransportControl(body);
  if (!announcement.ok()) return;
  // The index of an receiver, plus one.
  FERRY_CHECK(announcement->transport > 0);
  FERRY_CHECK(IsWithin(announcement->body, body));
}

void CheckSegmentNotice(absl::string_view body) {
  const absl::StatusOr<ShmSegmentNotice> notice = DecodeShmSegmentNotice(body);
  if (notice.ok()) FERRY_CHECK(EncodeShmSegmentNotice(*notice) == body);
}

// ReadPlain reads what Read reads, or nothing.
void CheckPlainRecords(absl::string_view body) {
  EagerFrameReader reader;
  if (!reader.Start(body).ok()) return;
  while (!reader.is_at_end()) {
    EagerFrameReader other = reader;
    EagerRecord record;
    const bool is_legal = reader.Read(record).ok();
    EagerPlainRecord plain;
    const bool is_plain = other.ReadPlain(plain);
    FERRY_CHECK(is_legal || !is_plain);
    if (!is_legal) return;
    if (!is_plain) continue;
    FERRY_CHECK(other.remaining() == reader.remaining());
    FERRY_CHECK(plain.name == record.name && plain.text == record.text);
    FERRY_CHECK(plain.is_dead == record.is_dead && !record.is_serialized && !record.has_checksum);
    FERRY_CHECK(absl::string_view(plain.payload, plain.bytes) == record.payload);
    if (!plain.is_dead) {
      FERRY_CHECK(plain.dtype == record.header.dtype && *plain.shape() == record.header.shape);
    }
    other.PutBack(plain, 1);
    FERRY_CHECK(other.ReadPlain(plain) && other.remaining() == reader.remaining());
  }
}

// Any frame at a consumer that has just begun, with little credit.
void CheckEager(absl::string_view body) {
  CheckPlainRecords(body);
  EagerReceiver receiver({2, 100, 3, 1000, 4, 1000});
  receiver.Start();
  receiver.TakeOutput();
  EagerFrameWriter writer(0, 0);
  size_t records = 0;
  EagerHead head;
  const absl::Status status = DecodeEager(
      body,
      [&](const EagerHead& each) {
        head = each;
        writer = EagerFrameWriter(head.step_id, head.sequence);
        writer.Acknowledge({head.acked_first, head.acked_count});
        return absl::OkStatus();
      },
      [&](const EagerRecord& record) {
        FERRY_CHECK(IsWithin(record.text, body) && IsWithin(record.payload, body));
        FERRY_CHECK(record.payload.size() <= kMaxEagerBytes);
        FERRY_CHECK(record.is_dead || record.is_serialized ||
                    *TensorBytes(record.header.dtype, record.header.shape) ==
                        record.payload.size());
        FERRY_CHECK(writer.Append(record));
        ++records;
        return absl::OkStatus();
      });
  if (!status.ok()) return;
  FERRY_CHECK(records == head.count);
  // But for padding.
  FERRY_CHECK(writer.view().size() == body.size());
  if (!receiver.OnEager(head).ok()) return;
  DecodeEager(
      body, [](const EagerHead&) { return absl::OkStatus(); },
      [&](const EagerRecord& record) {
        FERRY_RETURN_IF_ERROR(receiver.OnRecord(record).status());
        return receiver.OnArrival(record, receiver.last_sequence()).status();
      })
      .IgnoreError();
  FERRY_CHECK(receiver.values_held() <= 3);
  FERRY_CHECK(receiver.InnerTableSizes().at("eager_receiver.names") <= 4);
}

// The other messages, at an end of a control channel that has just begun.
void CheckEagerMessages(absl::string_view body, CapturingChannel& channel) {
  EagerReceiver receiver({2, 100, 3, 1000, 4, 1000});
  receiver.Start();
  receiver.TakeOutput();
  EagerSender sender({2, 100, 3, 1000, 4, 1000});
  if (const auto pull = DecodeEagerPull(body); pull.ok()) {
    FERRY_CHECK(IsWithin(pull->definition, body));
    FERRY_CHECK(SendEagerPull(channel, *pull).ok());
    const auto again = DecodeEagerPull(channel.body);
    FERRY_CHECK(again.ok() && again->kind == pull->kind && again->scope == pull->scope &&
                again->definition == pull->definition);
    if (receiver.OnPull(*pull, false).ok()) FERRY_CHECK(receiver.is_pulled(pull->scope));
  }
  if (const auto push = DecodeEagerPush(body); push.ok()) {
    FERRY_CHECK(SendEagerPush(channel, *push).ok());
    FERRY_CHECK(*DecodeEagerPush(channel.body) == *push);
    sender.OnPush(*push).IgnoreError();
  }
  if (const auto acks = DecodeEagerAck(body); acks.ok()) {
    FERRY_CHECK(SendEagerAck(channel, *acks).ok());
    FERRY_CHECK(channel.body == body);
    for (const EagerRange& range : *acks) {
      FERRY_CHECK(!sender.OnAck(range, [](uint64_t, const EagerSender::Sent&) {}).ok());
    }
  }
  if (const auto step_id = DecodeStepRefused(body); step_id.ok()) {
    FERRY_CHECK(SendStepRefused(channel, *step_id).ok());
    FERRY_CHECK(channel.body == body);
    FERRY_CHECK(*DecodeAckNow(body) == *step_id);
    sender.OnStepRefused(*step_id);
    receiver.OnAckNow(*step_id);
  }
  if (const auto request = DecodeNamedRequest(body); request.ok()) {
    FERRY_CHECK(SendNamedRequest(channel, *request).ok());
    FERRY_CHECK(channel.body.substr(0, 20) == body.substr(0, 20));
  }
  if (const auto watch = DecodeWatch(body); watch.ok()) {
    FERRY_CHECK(SendWatch(channel, watch->id, watch->step_id).ok());
    FERRY_CHECK(channel.body == body);
  }
}

void Check(uint8_t decoder, absl::string_view body) {
  CapturingChannel channel;
  switch (decoder % 11) {
    case 0:
      return CheckHello(body, channel);
    case 1:
      return CheckRequest(body, channel);
    case 2:
      return CheckReadyToSend(body, channel);
    case 3:
      return CheckError(body, channel);
    case 4:
      return CheckId(body, channel);
    case 5:
      return CheckShmDescriptor(body);
    case 6:
      return CheckTransportControl(body);
    case 7:
      return CheckSegmentNotice(body);
    case 8:
      return CheckRejected(body, channel);
    case 9:
      return CheckEager(body);
    case 10:
      return CheckEagerMessages(body, channel);
  }
}

}  // namespace
}  // namespace ferry

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  ferry::Check(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}

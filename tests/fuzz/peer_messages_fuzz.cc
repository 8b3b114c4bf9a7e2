// SPDX-License-Identifier: Apache-2.0
// Bodies of control channel frames and of zero-copy transfers, as any peer may write them. The
// first byte selects the decoder.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

#include "base/status_macros.h"
#include "rendezvous/peer/peer_protocol.h"
#include "transport/shm/shm_descriptor.h"

namespace ferry {
namespace {

// Keeps the last body that was sent.
class CapturingChannel final : public ControlChannel {
 public:
  absl::Status Send(uint16_t type, absl::Span<const absl::string_view> parts,
                    absl::Span<const int> descriptors) override {
    FERRY_RETURN_IF_ERROR(CheckLaneBody(parts));
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
  FERRY_CHECK(hello->boot_id.size() + hello->host_name.size() + 4 <= body.size());
  FERRY_CHECK(SendHello(channel, *hello).ok());
  const absl::StatusOr<HelloMessage> again = DecodeHello(channel.body);
  FERRY_CHECK(again.ok());
  FERRY_CHECK(again->boot_id == hello->boot_id.substr(0, 256));
  FERRY_CHECK(again->host_name == hello->host_name.substr(0, 256));
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
  FERRY_CHECK(DecodeRequest(channel.body)->may_decline == request->may_decline);
}

void CheckTicket(absl::string_view body, CapturingChannel& channel) {
  const absl::StatusOr<ReadyToSendMessage> ticket = DecodeTicket(body);
  if (!ticket.ok()) return;
  FERRY_CHECK(IsWithin(ticket->body, body));
  const TensorHeader& header = ticket->header;
  if (!ticket->is_dead) {
    FERRY_CHECK(IsFixedSize(header.dtype));
    FERRY_CHECK(*TensorBytes(header.dtype, header.shape) == header.bytes);
    // The source of an inline tensor.
    FERRY_CHECK(ticket->transport != 0 || ticket->body.size() == header.bytes);
  }
  if (!SendTicket(channel, *ticket, {}).ok()) return;
  const absl::StatusOr<ReadyToSendMessage> again = DecodeTicket(channel.body);
  FERRY_CHECK(again.ok());
  FERRY_CHECK(again->id == ticket->id && again->is_dead == ticket->is_dead);
  FERRY_CHECK(again->is_serialized == ticket->is_serialized);
  FERRY_CHECK(again->has_checksum == ticket->has_checksum);
  FERRY_CHECK(again->checksum == ticket->checksum && again->transport == ticket->transport);
  if (ticket->is_dead) return;
  FERRY_CHECK(again->header.dtype == header.dtype && again->header.shape == header.shape);
  FERRY_CHECK(again->body == ticket->body);
}

void CheckRefusal(absl::string_view body, CapturingChannel& channel) {
  const absl::StatusOr<RefusalMessage> refusal = DecodeRefusal(body);
  if (!refusal.ok()) return;
  FERRY_CHECK(!refusal->status.ok());
  FERRY_CHECK(SendRefusal(channel, *refusal).ok());
  const absl::StatusOr<RefusalMessage> again = DecodeRefusal(channel.body);
  FERRY_CHECK(again.ok() && again->id == refusal->id);
  FERRY_CHECK(again->status.code() == refusal->status.code());
}

void CheckDeclined(absl::string_view body, CapturingChannel& channel) {
  const absl::StatusOr<DeclinedMessage> declined = DecodeDeclined(body);
  if (!declined.ok()) return;
  FERRY_CHECK(!declined->status.ok());
  FERRY_CHECK(IsWithin(declined->key, body));
  FERRY_CHECK(SendDeclined(channel, *declined).ok());
  const absl::StatusOr<DeclinedMessage> again = DecodeDeclined(channel.body);
  FERRY_CHECK(again.ok() && again->id == declined->id && again->step_id == declined->step_id);
  FERRY_CHECK(again->key == declined->key && again->status.code() == declined->status.code());
}

void CheckId(absl::string_view body, CapturingChannel& channel) {
  const absl::StatusOr<uint64_t> id = DecodeId(body);
  FERRY_CHECK(id.ok() == (body.size() == 8));
  if (!id.ok()) return;
  FERRY_CHECK(SendId(channel, ControlMessage::kDone, *id).ok());
  FERRY_CHECK(channel.body == body);
}

void CheckShmTicket(absl::string_view body) {
  const absl::StatusOr<ShmDescriptor> ticket = DecodeShmTicket(body);
  FERRY_CHECK(ticket.ok() == (body.size() == 16));
  if (ticket.ok()) FERRY_CHECK(EncodeShmTicket(*ticket) == body);
}

void CheckAnnouncement(absl::string_view body) {
  const absl::StatusOr<AnnouncementMessage> announcement = DecodeAnnouncement(body);
  if (!announcement.ok()) return;
  // The index of an receiver, plus one.
  FERRY_CHECK(announcement->transport > 0);
  FERRY_CHECK(IsWithin(announcement->body, body));
}

void CheckSegmentNotice(absl::string_view body) {
  const absl::StatusOr<ShmSegmentNotice> notice = DecodeShmSegmentNotice(body);
  if (notice.ok()) FERRY_CHECK(EncodeShmSegmentNotice(*notice) == body);
}

void Check(uint8_t decoder, absl::string_view body) {
  CapturingChannel channel;
  switch (decoder % 9) {
    case 0:
      return CheckHello(body, channel);
    case 1:
      return CheckRequest(body, channel);
    case 2:
      return CheckTicket(body, channel);
    case 3:
      return CheckRefusal(body, channel);
    case 4:
      return CheckId(body, channel);
    case 5:
      return CheckShmTicket(body);
    case 6:
      return CheckAnnouncement(body);
    case 7:
      return CheckSegmentNotice(body);
    case 8:
      return CheckDeclined(body, channel);
  }
}

}  // namespace
}  // namespace ferry

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  ferry::Check(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}

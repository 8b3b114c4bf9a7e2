// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding of messages about one-sided transfers.
#include "transport/nccl/put_message.h"

#include "absl/strings/str_cat.h"

#include "base/byte_reader.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

// Limit for error texts; longer ones are cut.
constexpr size_t kMaxTextBytes = 1024;
constexpr size_t kMaxMessageBytes = 2048;

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a malformed message about a put: ", what));
}

}  // namespace

std::string EncodePutMessage(const PutMessage& message) {
  char room[kMaxMessageBytes];
  ByteWriter writer(room, sizeof(room));
  writer.Put(static_cast<uint16_t>(message.kind));
  writer.Put(message.key.source.value());
  writer.Put(message.key.destination.value());
  writer.Put(message.key.id);
  if (message.kind != PutMessageKind::kNoRoom) {
    writer.Put(message.communicator.id);
    writer.Put(message.communicator.generation);
  }
  if (message.kind == PutMessageKind::kRoom) writer.Put(message.offset);
  if (message.kind == PutMessageKind::kWithdrawn) {
    writer.Put(static_cast<uint32_t>(message.why.code()));
    writer.PutText(message.why.message().substr(0, kMaxTextBytes));
  }
  FERRY_CHECK(!writer.has_overflown());
  return std::string(writer.view());
}

bool IsPutMessage(absl::string_view bytes) {
  const auto kind = ByteReader(bytes).Get<uint16_t>();
  return kind >= static_cast<uint16_t>(PutMessageKind::kRoom) &&
         kind <= static_cast<uint16_t>(PutMessageKind::kWithdrawn);
}

absl::StatusOr<PutMessage> DecodePutMessage(absl::string_view bytes) {
  if (!IsPutMessage(bytes)) return Malformed("its kind");
  ByteReader reader(bytes);
  PutMessage message;
  message.kind = static_cast<PutMessageKind>(reader.Get<uint16_t>());
  message.key.source = DeviceId(reader.Get<int32_t>());
  message.key.destination = DeviceId(reader.Get<int32_t>());
  message.key.id = reader.Get<uint64_t>();
  if (message.key.source.value() < 0 || message.key.destination.value() < 0 ||
      message.key.source == message.key.destination) {
    return Malformed("its devices");
  }
  if (message.kind != PutMessageKind::kNoRoom) {
    message.communicator.id = reader.Get<uint64_t>();
    message.communicator.generation = reader.Get<uint32_t>();
  }
  if (message.kind == PutMessageKind::kRoom) message.offset = reader.Get<uint64_t>();
  if (message.kind == PutMessageKind::kWithdrawn) {
    const auto code = reader.Get<uint32_t>();
    const absl::string_view text = reader.GetText();
    if (code == 0 || code > 16) return Malformed("a code");
    if (text.size() > kMaxTextBytes) return Malformed("a text");
    message.why = absl::Status(static_cast<absl::StatusCode>(code), text);
  }
  if (reader.is_short() || !reader.rest().empty()) return Malformed("its length");
  return message;
}

std::string Describe(const PutMessage& message) {
  static constexpr absl::string_view kNames[] = {"ROOM", "NOROOM", "PLACED", "WITHDRAWN"};
  std::string text =
      absl::StrCat(kNames[static_cast<int>(message.kind) - 0x101], " for ", Describe(message.key));
  if (message.kind == PutMessageKind::kRoom) absl::StrAppend(&text, " at ", message.offset);
  if (!message.why.ok()) absl::StrAppend(&text, " (", message.why.ToString(), ")");
  return text;
}

}  // namespace ferry

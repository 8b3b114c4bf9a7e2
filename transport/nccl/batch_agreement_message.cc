// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding of agreement messages.
#include "transport/nccl/batch_agreement_message.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/byte_reader.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

// Limit for error texts; longer ones are cut.
constexpr size_t kMaxTextBytes = 1024;
// Header and 32 operations need less than 1 KiB, the reason as much again.
constexpr size_t kMaxMessageBytes = 4096;

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a malformed message between devices: ", what));
}

// True if it refers to one communicator.
bool NamesCommunicator(BatchAgreementMessageKind kind) {
  return kind != BatchAgreementMessageKind::kCancel && kind != BatchAgreementMessageKind::kResumed;
}

// Mask of the operations that `from` sends.
uint32_t SendsOf(const BatchAgreementMessage& message) {
  uint32_t sends = 0;
  for (size_t i = 0; i < message.operations.size(); ++i) {
    if (message.operations[i].key.source == message.from) sends |= uint32_t{1} << i;
  }
  return sends;
}

void PutOperations(const BatchAgreementMessage& message, ByteWriter& writer) {
  FERRY_CHECK(!message.operations.empty() && message.operations.size() <= kMaxBatchOperations);
  writer.Put(static_cast<uint32_t>(message.operations.size()));
  writer.Put(SendsOf(message));
  for (const BatchAgreementOperation& operation : message.operations) {
    writer.Put(operation.key.id);
    if (message.kind == BatchAgreementMessageKind::kGrant) writer.Put(operation.bytes);
  }
}

absl::Status GetOperations(ByteReader& reader, BatchAgreementMessage& message) {
  const auto count = reader.Get<uint32_t>();
  const auto sends = reader.Get<uint32_t>();
  if (count == 0 || count > kMaxBatchOperations) return Malformed("a number of operations");
  if (count < 32 && (sends >> count) != 0) return Malformed("directions");
  for (uint32_t i = 0; i < count; ++i) {
    BatchAgreementOperation operation;
    operation.key.id = reader.Get<uint64_t>();
    const bool is_send = (sends >> i & 1) != 0;
    operation.key.source = is_send ? message.from : message.to;
    operation.key.destination = is_send ? message.to : message.from;
    if (message.kind == BatchAgreementMessageKind::kGrant) operation.bytes = reader.Get<uint64_t>();
    message.operations.push_back(operation);
  }
  return absl::OkStatus();
}

void PutReason(const absl::Status& why, ByteWriter& writer) {
  writer.Put(static_cast<uint32_t>(why.code()));
  writer.PutText(why.message().substr(0, kMaxTextBytes));
}

absl::StatusOr<absl::StatusCode> GetCode(ByteReader& reader) {
  const auto code = reader.Get<uint32_t>();
  if (code == 0 || code > 16) return Malformed("a code");
  return static_cast<absl::StatusCode>(code);
}

absl::Status GetReason(ByteReader& reader, BatchAgreementMessage& message) {
  FERRY_ASSIGN_OR_RETURN(const absl::StatusCode code, GetCode(reader));
  const absl::string_view text = reader.GetText();
  if (text.size() > kMaxTextBytes) return Malformed("a text");
  message.why = absl::Status(code, text);
  return absl::OkStatus();
}

absl::Status GetRefusals(ByteReader& reader, BatchAgreementMessage& message) {
  message.accepted = reader.Get<uint32_t>();
  message.digest = reader.Get<uint64_t>();
  const auto count = reader.Get<uint32_t>();
  if (count + std::popcount(message.accepted) > kMaxBatchOperations) return Malformed("refusals");
  for (uint32_t i = 0; i < count; ++i) {
    BatchAgreementRefusal refusal;
    FERRY_ASSIGN_OR_RETURN(refusal.code, GetCode(reader));
    refusal.bytes = reader.Get<uint64_t>();
    message.refusals.push_back(refusal);
  }
  return absl::OkStatus();
}

}  // namespace

BatchAgreementMessage NewAgreementMessage(BatchAgreementMessageKind kind, DeviceId from,
                                          DeviceId to, const CommunicatorName& communicator) {
  BatchAgreementMessage message;
  message.kind = kind;
  message.from = from;
  message.to = to;
  message.communicator = communicator;
  return message;
}

uint64_t DigestOf(absl::Span<const BatchAgreementOperation> operations) {
  // FNV-1a by words with a final mix: detects mistakes, not attacks.
  uint64_t digest = 0xcbf29ce484222325;
  const auto add = [&digest](uint64_t word) {
    digest = (digest ^ word) * 0x100000001b3;
    digest ^= digest >> 29;
  };
  for (const BatchAgreementOperation& operation : operations) {
    add(static_cast<uint32_t>(operation.key.source.value()));
    add(static_cast<uint32_t>(operation.key.destination.value()));
    add(operation.key.id);
    add(operation.bytes);
  }
  return digest;
}

std::string EncodeGrantMessage(const BatchAgreementMessage& message) {
  char room[kMaxMessageBytes];
  ByteWriter writer(room, sizeof(room));
  writer.Put(static_cast<uint16_t>(message.kind));
  writer.Put(message.from.value());
  writer.Put(message.to.value());
  if (NamesCommunicator(message.kind)) {
    writer.Put(message.communicator.id);
    writer.Put(message.communicator.generation);
  }
  switch (message.kind) {
    case BatchAgreementMessageKind::kGrant:
      writer.Put(message.serial);
      PutOperations(message, writer);
      break;
    case BatchAgreementMessageKind::kAcknowledge:
      writer.Put(message.serial);
      writer.Put(message.accepted);
      writer.Put(message.digest);
      FERRY_CHECK(message.refusals.size() <= kMaxBatchOperations);
      writer.Put(static_cast<uint32_t>(message.refusals.size()));
      for (const BatchAgreementRefusal& refusal : message.refusals) {
        writer.Put(static_cast<uint32_t>(refusal.code));
        writer.Put(refusal.bytes);
      }
      break;
    case BatchAgreementMessageKind::kDecline:
      writer.Put(message.serial);
      break;
    case BatchAgreementMessageKind::kDone:
      writer.Put(message.serial);
      writer.Put(message.granter.value());
      break;
    case BatchAgreementMessageKind::kCancel:
      PutOperations(message, writer);
      PutReason(message.why, writer);
      break;
    case BatchAgreementMessageKind::kBreak:
      writer.Put(message.died.value());
      PutReason(message.why, writer);
      break;
    case BatchAgreementMessageKind::kSettled:
    case BatchAgreementMessageKind::kResumed:
      break;
  }
  FERRY_CHECK(!writer.has_overflown());
  return std::string(writer.view());
}

absl::StatusOr<BatchAgreementMessage> DecodeGrantMessage(absl::string_view bytes) {
  ByteReader reader(bytes);
  BatchAgreementMessage message;
  const auto kind = reader.Get<uint16_t>();
  if (kind == 0 || kind > static_cast<uint16_t>(BatchAgreementMessageKind::kResumed)) {
    return Malformed("its kind");
  }
  message.kind = static_cast<BatchAgreementMessageKind>(kind);
  message.from = DeviceId(reader.Get<int32_t>());
  message.to = DeviceId(reader.Get<int32_t>());
  if (message.from.value() < 0 || message.to.value() < 0 || message.from == message.to) {
    return Malformed("its devices");
  }
  if (NamesCommunicator(message.kind)) {
    message.communicator.id = reader.Get<uint64_t>();
    message.communicator.generation = reader.Get<uint32_t>();
  }
  switch (message.kind) {
    case BatchAgreementMessageKind::kGrant:
      message.serial = reader.Get<uint64_t>();
      FERRY_RETURN_IF_ERROR(GetOperations(reader, message));
      break;
    case BatchAgreementMessageKind::kAcknowledge:
      message.serial = reader.Get<uint64_t>();
      FERRY_RETURN_IF_ERROR(GetRefusals(reader, message));
      break;
    case BatchAgreementMessageKind::kDecline:
      message.serial = reader.Get<uint64_t>();
      break;
    case BatchAgreementMessageKind::kDone:
      message.serial = reader.Get<uint64_t>();
      message.granter = DeviceId(reader.Get<int32_t>());
      if (message.granter != message.from && message.granter != message.to) {
        return Malformed("its granter");
      }
      break;
    case BatchAgreementMessageKind::kCancel:
      FERRY_RETURN_IF_ERROR(GetOperations(reader, message));
      FERRY_RETURN_IF_ERROR(GetReason(reader, message));
      break;
    case BatchAgreementMessageKind::kBreak:
      message.died = DeviceId(reader.Get<int32_t>());
      if (message.died < kNoDevice) return Malformed("its dead device");
      FERRY_RETURN_IF_ERROR(GetReason(reader, message));
      break;
    case BatchAgreementMessageKind::kSettled:
    case BatchAgreementMessageKind::kResumed:
      break;
  }
  if (reader.is_short() || !reader.rest().empty()) return Malformed("its length");
  return message;
}

std::string Describe(const BatchAgreementMessage& message) {
  static constexpr absl::string_view kNames[] = {
      "?", "GRANT", "ACKNOWLEDGE", "DECLINE", "DONE", "CANCEL", "BREAK", "SETTLED", "RESUMED"};
  std::string text = absl::StrCat(kNames[static_cast<int>(message.kind)], " ",
                                  message.serial == 0 ? "" : absl::StrCat(message.serial, " "),
                                  "from ", message.from.value(), " to ", message.to.value());
  if (NamesCommunicator(message.kind)) {
    absl::StrAppend(&text, " generation ", message.communicator.generation);
  }
  if (message.kind == BatchAgreementMessageKind::kAcknowledge) {
    absl::StrAppend(&text, " accepts ", absl::Hex(message.accepted), " refuses ",
                    message.refusals.size());
  }
  if (!message.operations.empty()) {
    absl::StrAppend(&text, " [",
                    absl::StrJoin(message.operations, " ",
                                  [](std::string* out, const BatchAgreementOperation& operation) {
                                    absl::StrAppend(out, operation.key.source.value(), ">",
                                                    operation.key.destination.value(), ":",
                                                    operation.key.id);
                                  }),
                    "]");
  }
  if (!message.why.ok()) absl::StrAppend(&text, " (", message.why.ToString(), ")");
  return text;
}

}  // namespace ferry

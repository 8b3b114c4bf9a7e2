// SPDX-License-Identifier: Apache-2.0
// Chooses the record's message by its key.
#include "cli/record_text_proto.h"

#include <memory>

#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include "absl/strings/numbers.h"

#include "launch/printable.h"
#include "node/endpoint_record.h"
#include "node/peer_record_proto.h"
#include "node/pending_report.h"
#include "node/transfer_report.h"

namespace ferry::cli {
namespace {

constexpr size_t kMaxShownRecordBytes = size_t{8} << 20;

// Returns an empty message of the record's type; null if no such record has this key.
std::unique_ptr<google::protobuf::Message> RecordAt(absl::string_view key) {
  const size_t number = key.find_last_not_of("0123456789") + 1;
  int node = 0;
  if (!absl::SimpleAtoi(key.substr(number), &node)) return nullptr;
  if (key == EndpointKey(node)) return std::make_unique<peer::v1::EndpointRecord>();
  if (key == ReportKey(node)) return std::make_unique<peer::v1::TransferReport>();
  if (key == PendingKey(node)) return std::make_unique<peer::v1::PendingReport>();
  return nullptr;
}

}  // namespace

std::string ValueText(absl::string_view key, absl::string_view value) {
  const std::unique_ptr<google::protobuf::Message> record = RecordAt(key);
  std::string text;
  if (record != nullptr && ParsePeerRecord(value, kMaxShownRecordBytes, {}, *record).ok() &&
      google::protobuf::TextFormat::PrintToString(*record, &text)) {
    return text;
  }
  return PrintableText(value);
}

}  // namespace ferry::cli

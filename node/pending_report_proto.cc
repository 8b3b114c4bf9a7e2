// SPDX-License-Identifier: Apache-2.0
// Pending reports to and from their wire form.
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "node/peer_record_proto.h"
#include "node/pending_report.h"

namespace ferry {
namespace {

// Room for kMaxPendingRows of the longest keys, which have 64 KiB.
constexpr size_t kMaxPendingBytes = size_t{8} << 20;

}  // namespace

std::string EncodePending(const PendingReport& report) {
  auto record = NewPeerRecord<peer::v1::PendingReport>();
  record.set_total(report.total);
  for (const PendingRow& row : report.rows) {
    peer::v1::PendingOperation& operation = *record.add_operations();
    operation.set_step_id(row.step_id);
    operation.set_side(row.side == "send" ? peer::v1::PENDING_SIDE_SEND
                                          : peer::v1::PENDING_SIDE_RECV);
    operation.set_peer(row.peer);
    operation.set_age_ms(absl::ToInt64Milliseconds(row.age));
    operation.set_bytes(row.bytes);
    operation.set_key(row.key);
    operation.set_phase(row.phase);
  }
  return record.SerializeAsString();
}

absl::StatusOr<PendingReport> DecodePending(absl::string_view bytes, int node) {
  const PeerRecordName name = {.kind = "pending report", .node = node, .key = PendingKey(node)};
  peer::v1::PendingReport record;
  FERRY_RETURN_IF_ERROR(ParsePeerRecord(bytes, kMaxPendingBytes, name, record));
  if (record.operations_size() > static_cast<int>(kMaxPendingRows)) {
    return InvalidPeerRecord(
        name, absl::StrCat("it has ", record.operations_size(), " operations, over the limit of ",
                           kMaxPendingRows));
  }
  PendingReport report;
  report.total = record.total();
  for (peer::v1::PendingOperation& operation : *record.mutable_operations()) {
    PendingRow row;
    row.step_id = operation.step_id();
    if (operation.side() == peer::v1::PENDING_SIDE_SEND) {
      row.side = "send";
    } else if (operation.side() == peer::v1::PENDING_SIDE_RECV) {
      row.side = "recv";
    } else {
      return InvalidPeerRecord(
          name, absl::StrCat("an operation is on side ", static_cast<int>(operation.side())));
    }
    row.peer = operation.peer();
    row.age = absl::Milliseconds(operation.age_ms());
    row.bytes = operation.bytes();
    row.key = std::move(*operation.mutable_key());
    row.phase = std::move(*operation.mutable_phase());
    report.rows.push_back(std::move(row));
  }
  return report;
}

}  // namespace ferry

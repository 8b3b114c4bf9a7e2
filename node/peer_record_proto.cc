// SPDX-License-Identifier: Apache-2.0
// Checks a record's version before its content.
#include "node/peer_record_proto.h"

#include "absl/strings/str_cat.h"

namespace ferry {

absl::Status InvalidPeerRecord(const PeerRecordName& name, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("node ", name.node, " publishes no valid ",
                                                 name.kind, " at ", name.key, ": ", why));
}

absl::Status ParsePeerRecord(absl::string_view bytes, size_t max_bytes, const PeerRecordName& name,
                             google::protobuf::MessageLite& record) {
  if (bytes.size() > max_bytes) {
    return InvalidPeerRecord(
        name, absl::StrCat("it has ", bytes.size(), " bytes, over the limit of ", max_bytes));
  }
  const auto unreadable = [&] {
    return InvalidPeerRecord(name,
                             absl::StrCat("its ", bytes.size(), " bytes are no protocol buffer"));
  };
  // The limits of all records fit in an int.
  const int size = static_cast<int>(bytes.size());
  peer::v1::RecordHead head;
  if (!head.ParseFromArray(bytes.data(), size)) return unreadable();
  if (head.version().major_version() == 0) return InvalidPeerRecord(name, "it names no version");
  if (head.version().major_version() != kPeerRecordMajor) {
    return absl::FailedPreconditionError(
        absl::StrCat("the ", name.kind, " of node ", name.node, " at ", name.key, " is of version ",
                     head.version().major_version(), ".", head.version().minor_version(),
                     ", and this process reads version ", kPeerRecordMajor, ".", kPeerRecordMinor,
                     ": run the same version of Ferry on all nodes"));
  }
  if (!record.ParseFromArray(bytes.data(), size)) return unreadable();
  return absl::OkStatus();
}

}  // namespace ferry

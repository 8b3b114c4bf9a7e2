// SPDX-License-Identifier: Apache-2.0
// The common part of the records of proto/ferry_peer.proto: their version, and named errors.
#ifndef FERRY_NODE_PEER_RECORD_PROTO_H_
#define FERRY_NODE_PEER_RECORD_PROTO_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include <google/protobuf/message_lite.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "proto/ferry_peer.pb.h"

namespace ferry {

// A record, as errors name it.
struct PeerRecordName {
  // "endpoint record".
  absl::string_view kind;
  // The node that published it, and its key in the store.
  int64_t node = 0;
  std::string key;
};

// The version that this process writes; it reads all of the same major version.
inline constexpr uint32_t kPeerRecordMajor = 1;
inline constexpr uint32_t kPeerRecordMinor = 0;

template <typename Record>
Record NewPeerRecord() {
  Record record;
  record.mutable_version()->set_major_version(kPeerRecordMajor);
  record.mutable_version()->set_minor_version(kPeerRecordMinor);
  return record;
}

// Parses a record, which may have fields that this process does not know. The content is untrusted.
//   Errors: INVALID_ARGUMENT as InvalidPeerRecord, if it has more than `max_bytes` bytes, no
//   version, or no valid encoding; FAILED_PRECONDITION naming both versions and the node, if it is
//   of another major version.
absl::Status ParsePeerRecord(absl::string_view bytes, size_t max_bytes, const PeerRecordName& name,
                             google::protobuf::MessageLite& record);

// INVALID_ARGUMENT: "node 3 publishes no valid endpoint record at ferry/exchange/3: <why>".
absl::Status InvalidPeerRecord(const PeerRecordName& name, absl::string_view why);

}  // namespace ferry

#endif  // FERRY_NODE_PEER_RECORD_PROTO_H_

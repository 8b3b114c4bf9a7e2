// SPDX-License-Identifier: Apache-2.0
// The rules that every record of proto/ferry_peer.proto follows, checked of one decoder.
#ifndef FERRY_TESTS_SUPPORT_PEER_RECORD_RULES_H_
#define FERRY_TESTS_SUPPORT_PEER_RECORD_RULES_H_

#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "proto/ferry_peer.pb.h"

namespace ferry {

// Merged into the version of a record to which it is appended, as the parts of messages are.
inline std::string VersionOf(uint32_t major, uint32_t minor) {
  peer::v1::RecordHead head;
  head.mutable_version()->set_major_version(major);
  head.mutable_version()->set_minor_version(minor);
  return head.SerializeAsString();
}

// Field 1000, which no version has, of `size` bytes.
inline std::string UnknownField(size_t size) {
  std::string field = "\xc2\x3e";
  size_t rest = size;
  for (; rest >= 0x80; rest >>= 7) field.push_back(static_cast<char>(0x80 | (rest & 0x7f)));
  field.push_back(static_cast<char>(rest));
  return field + std::string(size, 'x');
}

struct PeerRecordRules {
  // "endpoint record", and its key in the store.
  std::string kind;
  std::string key;
  // A record of node 3 that ends with a text or a message.
  std::string bytes;
  std::function<absl::Status(absl::string_view bytes)> decode;
};

inline void ExpectRules(const PeerRecordRules& rules) {
  using ::testing::HasSubstr;
  using ::testing::StartsWith;
  const auto expect_invalid = [&rules](absl::string_view bytes, absl::string_view why) {
    const absl::Status status = rules.decode(bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                StartsWith(absl::StrCat("node 3 publishes no valid ", rules.kind, " at ", rules.key,
                                        ": ")));
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(why)));
  };
  EXPECT_TRUE(rules.decode(rules.bytes).ok()) << rules.decode(rules.bytes);

  // A later minor version, with a field of its own.
  const std::string later = rules.bytes + VersionOf(1, 7) + UnknownField(5);
  EXPECT_TRUE(rules.decode(later).ok()) << rules.decode(later);

  // Another major version, alone, and with fields that are no longer the same.
  for (const std::string& other :
       {rules.bytes + VersionOf(2, 5), VersionOf(2, 5) + "\x52\x02\xff\xff\x1a\x02\xff\xff"}) {
    const absl::Status status = rules.decode(other);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("the ", rules.kind, " of node 3 at ", rules.key,
                                       " is of version 2.5, and this process reads version 1.0")));
  }

  expect_invalid("", "it names no version");
  expect_invalid(VersionOf(0, 3), "it names no version");
  for (const absl::string_view garbage :
       {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "node 3\nincarnation 1\n",
        "{\"node\":3}", "\n\x02\x08"}) {
    expect_invalid(garbage, "no protocol buffer");
  }
  expect_invalid(rules.bytes + UnknownField(size_t{9} << 20), "over the limit of ");

  // A cut between two fields leaves a record with fewer of them.
  expect_invalid(absl::string_view(rules.bytes).substr(0, rules.bytes.size() - 1),
                 "no protocol buffer");
  for (size_t size = 0; size < rules.bytes.size(); ++size) {
    const absl::string_view cut = absl::string_view(rules.bytes).substr(0, size);
    if (!rules.decode(cut).ok()) expect_invalid(cut, "");
  }
}

}  // namespace ferry

#endif  // FERRY_TESTS_SUPPORT_PEER_RECORD_RULES_H_

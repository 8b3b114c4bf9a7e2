// SPDX-License-Identifier: Apache-2.0
// Frames that are small as bytes and large as anything else.
#include "coord/wire/control_limits.h"

#include <cstdint>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace ferry::coord {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMaxFrameBytes = size_t{64} << 20;
// Fields: number, and that bytes with a length follow.
constexpr char kHello = 1 << 3 | 2;
constexpr char kRequest = 3 << 3 | 2;
constexpr char kPut = 4 << 3 | 2;
constexpr char kGet = 5 << 3 | 2;
constexpr char kBarrier = 11 << 3 | 2;
constexpr char kEnumerate = 14 << 3 | 2;

std::string Field(char tag, const std::string& bytes) {
  std::string length;
  for (size_t left = bytes.size();; left >>= 7) {
    if (left < 128) return absl::StrCat(std::string(1, tag), length, std::string(1, left), bytes);
    length.push_back(static_cast<char>((left & 127) | 128));
  }
}

std::string Repeated(const std::string& bytes, size_t count) {
  std::string all;
  all.reserve(bytes.size() * count);
  for (size_t i = 0; i < count; ++i) all += bytes;
  return all;
}

// Expects that it is refused, and has not been parsed.
void ExpectRefused(const std::string& bytes, const std::string& why) {
  v1::ClientFrame frame;
  const absl::Status status = ParseFrame(bytes, kMaxFrameBytes, frame);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  EXPECT_LT(frame.SpaceUsedLong(), size_t{1} << 16);
}

// Each would take half a gigabyte: some 100 bytes for two.
TEST(ControlLimits, MillionsOfEmptyFieldsAreRefusedUnparsed) {
  constexpr size_t kMany = 5'000'000;
  ExpectRefused(Repeated(std::string{kRequest, 0}, kMany), "requests");
  const std::string entries = Repeated(std::string{1 << 3 | 2, 0}, kMany);
  ExpectRefused(Field(kRequest, Field(kPut, entries)), "fields");
  ExpectRefused(Field(kRequest, Field(kGet, entries)), "fields");
  // One entry that has them, of a number that no field has.
  const std::string unknown = Repeated(std::string{9 << 3, 1}, kMany);
  ExpectRefused(Field(kRequest, Field(kPut, Field(1 << 3 | 2, unknown))), "fields");
  ExpectRefused(Field(kRequest, unknown), "fields");
  ExpectRefused(unknown, "fields");
  // A topology, which is a message in a field of bytes: devices, and links.
  for (const char tag : {6 << 3 | 2, 7 << 3 | 2}) {
    ExpectRefused(
        Field(kRequest, Field(kEnumerate, Field(1 << 3 | 2, Repeated(std::string{tag, 0}, kMany)))),
        "fields");
  }
  // A group of them, and lists of numbers.
  ExpectRefused(absl::StrCat(std::string{9 << 3 | 3}, unknown, std::string{9 << 3 | 4}), "group");
  ExpectRefused(Field(kRequest, Field(kBarrier, Field(3 << 3 | 2, std::string(kMany, 1)))),
                "bytes");
  ExpectRefused(Field(kHello, Field(3 << 3 | 2, Repeated(std::string{6 << 3 | 2, 0}, kMany))),
                "bytes");
}

TEST(ControlLimits, LargestRequestsOfAnAgentAreAccepted) {
  v1::ClientFrame sent;
  for (int i = 0; i < kMaxRequests - 1; ++i) sent.add_requests()->mutable_heartbeat();
  v1::Put& put = *sent.add_requests()->mutable_put();
  for (int i = 0; i < kMaxKeys; ++i) put.add_entries()->set_key(absl::StrCat("key", i));
  constexpr size_t kManyBytes = 10'000'000;
  put.mutable_entries(0)->mutable_value()->assign(kManyBytes, '\x0a');
  v1::ClientFrame read;
  EXPECT_TRUE(ParseFrame(sent.SerializeAsString(), kMaxFrameBytes, read).ok());
  EXPECT_EQ(read.requests_size(), kMaxRequests);
  EXPECT_EQ(read.requests(kMaxRequests - 1).put().entries_size(), kMaxKeys);
}

TEST(ControlLimits, FrameOverTheLimitIsRefusedNamingTheOption) {
  v1::ClientFrame frame;
  const absl::Status status = ParseFrame(std::string(1001, 'x'), 1000, frame);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1001"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--max-frame-bytes"));
}

TEST(ControlLimits, MalformedFrameIsRefused) {
  for (const std::string& bytes : {std::string(20'000, '\xff'), std::string(20'000, '\x0a'),
                                   Field(kRequest, std::string(20'000, '\x22'))}) {
    v1::ClientFrame frame;
    EXPECT_EQ(ParseFrame(bytes, kMaxFrameBytes, frame).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(ControlLimits, FrameOfExactlyTheLimitIsAccepted) {
  v1::ClientFrame sent;
  sent.add_requests()->mutable_put()->add_entries()->set_value(std::string(50'000, 'v'));
  const std::string bytes = sent.SerializeAsString();
  v1::ClientFrame read;
  EXPECT_TRUE(ParseFrame(bytes, bytes.size(), read).ok());
  EXPECT_EQ(read.requests_size(), 1);
  EXPECT_EQ(ParseFrame(bytes, bytes.size() - 1, read).code(), absl::StatusCode::kResourceExhausted);
}

TEST(ControlLimits, OneRequestTooManyIsRefusedUnparsed) {
  const std::string most = Repeated(std::string{kRequest, 0}, kMaxRequests);
  v1::ClientFrame read;
  EXPECT_TRUE(ParseFrame(most, kMaxFrameBytes, read).ok());
  EXPECT_EQ(read.requests_size(), kMaxRequests);
  ExpectRefused(absl::StrCat(most, std::string{kRequest, 0}), "requests");
}

// Requests without values are limited to 4 MiB.
TEST(ControlLimits, OneByteTooManyWithoutValuesIsRefusedUnparsed) {
  constexpr size_t kMost = size_t{4} << 20;
  v1::ClientFrame sent;
  v1::Barrier& barrier = *sent.add_requests()->mutable_barrier();
  barrier.set_id(std::string(kMost - 5, 'x'));
  ASSERT_EQ(barrier.ByteSizeLong(), kMost);
  v1::ClientFrame read;
  EXPECT_TRUE(ParseFrame(sent.SerializeAsString(), kMaxFrameBytes, read).ok());
  barrier.mutable_id()->push_back('x');
  ExpectRefused(sent.SerializeAsString(), "bytes");
}

TEST(ControlLimits, WaitIsNeitherNegativeNorEndless) {
  constexpr int64_t kWeekMs = 7 * 24 * 3600 * int64_t{1000};
  EXPECT_EQ(WaitTime(std::numeric_limits<int64_t>::min()), absl::ZeroDuration());
  EXPECT_EQ(WaitTime(-1), absl::ZeroDuration());
  EXPECT_EQ(WaitTime(0), absl::ZeroDuration());
  EXPECT_EQ(WaitTime(1), absl::Milliseconds(1));
  EXPECT_EQ(WaitTime(kWeekMs - 1), absl::Milliseconds(kWeekMs - 1));
  EXPECT_EQ(WaitTime(kWeekMs + 1), absl::Milliseconds(kWeekMs));
  EXPECT_EQ(WaitTime(std::numeric_limits<int64_t>::max()), absl::Milliseconds(kWeekMs));
}

}  // namespace
}  // namespace ferry::coord

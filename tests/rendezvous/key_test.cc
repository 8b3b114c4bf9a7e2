// SPDX-License-Identifier: Apache-2.0
// Keys and device names, and names that look alike.
#include "rendezvous/key.h"

#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

constexpr char kSrc[] = "/job:mnist/replica:1/task:2/CPU:0";
constexpr char kDst[] = "/job:mnist/replica:1/task:2/device:GPU:0";
constexpr char kText[] =
    "/job:mnist/replica:1/task:2/CPU:0;0000000000001ed2;/job:mnist/replica:1/task:2/device:GPU:0;"
    "var0;0:0";

TEST(Key, IsWrittenAsTensorFlowWritesIt) {
  EXPECT_EQ(RendezvousKey::Text(kSrc, 7890, kDst, "var0"), kText);
  EXPECT_THAT(RendezvousKey::Text(kSrc, ~uint64_t{0}, kDst, "e", 3, 4),
              HasSubstr(";ffffffffffffffff;"));
}

TEST(Key, RoundTrips) {
  const RendezvousKey key = *RendezvousKey::Parse(kText);
  EXPECT_EQ(key.src_incarnation(), 7890u);
  EXPECT_EQ(key.src().type, "CPU");
  EXPECT_EQ(key.dst().type, "GPU");
  EXPECT_EQ(key.src_device(), kSrc);
  EXPECT_EQ(key.edge(), "var0");
  EXPECT_EQ(key.src().task, (TaskName{"mnist", 1, 2}));
  EXPECT_EQ(key.text(), kText);
  const RendezvousKey copy = key;  // NOLINT(performance-unnecessary-copy-initialization)
  EXPECT_EQ(copy, *RendezvousKey::Parse(kText));
  EXPECT_EQ(copy.hash(), key.hash());
}

void ExpectInvalid(const std::string& text) {
  const absl::Status status = RendezvousKey::Parse(text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  EXPECT_THAT(status.message(), HasSubstr("Invalid  rendezvous key: "));
}

TEST(Key, HasFiveParts) {
  ExpectInvalid("foo;bar;baz");
  ExpectInvalid(absl::StrCat(kSrc, ";", kDst, ";"));
  ExpectInvalid(absl::StrCat(kText, ";", kText));
  ExpectInvalid("");
  ExpectInvalid(";;;;");
}

TEST(Key, RefusesInvalidParts) {
  for (const char* incarnation : {"", "xyz", "0x12", "-1", "00000000000000001", "12 "}) {
    ExpectInvalid(absl::StrCat(kSrc, ";", incarnation, ";", kDst, ";e;0:0"));
  }
  ExpectInvalid(absl::StrCat(kSrc, ";1;", kDst, ";;0:0"));
  ExpectInvalid(absl::StrCat(kSrc, ";1;", kDst, ";e;"));
  ExpectInvalid(absl::StrCat("/cpu:0;1;", kDst, ";e;0:0"));
  ExpectInvalid(absl::StrCat(kSrc, ";1;/job:a/task:0;e;0:0"));
  const std::string short_one = absl::StrCat(kSrc, ";1;", kDst, ";e;0:0");
  constexpr size_t kLongest = 64 << 10;
  const std::string more(kLongest - short_one.size(), 'e');
  EXPECT_TRUE(RendezvousKey::Parse(absl::StrCat(kSrc, ";1;", kDst, ";e", more, ";0:0")).ok());
  ExpectInvalid(absl::StrCat(kSrc, ";1;", kDst, ";ee", more, ";0:0"));
  // A message stays one short line for any key.
  const absl::Status status =
      RendezvousKey::Parse(absl::StrCat("\n\x1b", std::string(5000, 'k'))).status();
  EXPECT_EQ(status.message().find('\n'), status.message().npos);
  EXPECT_LT(status.message().size(), 1000u);
}

TEST(TaskDevice, IsParsedInBothForms) {
  const TaskDevice gpu = *ParseDeviceName("/job:worker/replica:0/task:3/device:GPU:1");
  EXPECT_EQ(*ParseDeviceName("/job:worker/task:3/gpu:1"), gpu);
  EXPECT_EQ(ToString(gpu), "/job:worker/replica:0/task:3/device:GPU:1");
  EXPECT_EQ(*ParseTaskName("/job:worker/replica:0/task:3"), gpu.task);
}

// A comparison of texts would take task 1 for a prefix of task 10.
TEST(TaskDevice, TasksAreComparedByTheirNumbers) {
  EXPECT_FALSE(ParseDeviceName("/job:w/task:10/cpu:0")->task == *ParseTaskName("/job:w/task:1"));
}

TEST(TaskDevice, MustBeComplete) {
  for (const char* name :
       {"", "/", "cpu:0", "/job:w", "/job:w/task:0", "/job:w/task:0/cpu", "/job:w/task:0/cpu:",
        "/job:w/task:0/cpu:-1", "/job:w/task:+0/cpu:0", "/job:w/task:0/cpu:0/gpu:0",
        "/job:w/job:w/task:0/cpu:0", "/job:w/task:*/cpu:0", "/job:w/task:0/device:cpu",
        "/job:w/task:0/device:cpu:0:1", "/job:w//task:0/cpu:0", "/job:w/task:0/cpu:0/",
        "/job:/task:0/cpu:0", "/job:w/task:4294967296/cpu:0", "/job:1/task:0/cpu:0"}) {
    EXPECT_EQ(ParseDeviceName(name), std::nullopt) << name;
  }
  EXPECT_EQ(ParseTaskName("/job:w/task:0/cpu:0"), std::nullopt);
}

TEST(Key, NameIsNotEmptyNotLongAndHasNoSemicolon) {
  EXPECT_TRUE(RendezvousKey::CheckEdge("var0").ok());
  EXPECT_TRUE(RendezvousKey::CheckEdge(std::string(RendezvousKey::kMaxEdgeBytes, 'x')).ok());
  for (const auto& [edge, why] :
       {std::pair<std::string, const char*>("", "not empty"),
        {"a;b", "no ';'"},
        {std::string(RendezvousKey::kMaxEdgeBytes + 1, 'x'), "at most 31744 bytes"}}) {
    const absl::Status status = RendezvousKey::CheckEdge(edge);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_LT(status.message().size(), 300u);
  }
}

}  // namespace
}  // namespace ferry

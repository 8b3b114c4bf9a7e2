// SPDX-License-Identifier: Apache-2.0
// The key-value store: gets that time out, are cancelled, or read several keys; bytes and sizes.
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/coord/coordinator_fixture.h"
#include "tests/coord/store_reads.h"

namespace ferry::coord {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A reader with a deadline of its own.
TEST(Store, GetThatTimesOutNamesItsKey) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("gone", "1"), IsOk());
  ASSERT_THAT(job.Put("other", "1"), IsOk());
  job.Delete("gone", true);
  const GetCall call = job.Get({"gone"}, absl::Seconds(5));
  job.Advance(absl::Seconds(5) - absl::Milliseconds(1));
  EXPECT_FALSE(call.done());
  job.Advance(absl::Milliseconds(1));
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded, HasSubstr("gone")));
  EXPECT_EQ(ValueOf(job, "other"), "1");
}

// It is over: the key's arrival must not answer it again.
TEST(Store, TimedOutGetIsNotAnsweredAgain) {
  TestJob job(PlainOptions(1));
  const GetCall call = job.Get({"a"}, absl::Seconds(5));
  job.Advance(absl::Seconds(6));
  ASSERT_TRUE(call.done());
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  EXPECT_EQ(call.count(), 1);
  EXPECT_FALSE(job.Cancel(call.wait()));
}

// A key that is set at the last moment.
TEST(Store, AnsweredGetDoesNotTimeOut) {
  TestJob job(PlainOptions(1));
  const GetCall call = job.Get({"a"}, absl::Seconds(5));
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  job.Advance(absl::Seconds(10));
  EXPECT_EQ(call.count(), 1);
  EXPECT_THAT(call.result(), IsOk());
}

// A caller checks for a key through the waiting call.
TEST(Store, GetWithZeroTimeoutIsAnsweredWithoutWaiting) {
  TestJob job(PlainOptions(1));
  const GetCall call = job.Get({"a"}, absl::ZeroDuration());
  EXPECT_EQ(call.wait(), kNoWait);
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded));
}

// The coordinator stops while gets are pending.
TEST(Store, WaitingGetEndsCancelledWithTheStore) {
  TestJob job(PlainOptions(1));
  const GetCall call = job.Get({"a"});
  job.Stop();
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_THAT(job.Get({"a"}).result(), Fails(absl::StatusCode::kInternal));
}

// The reader went away.
TEST(Store, WaitingGetCanBeCancelled) {
  TestJob job(PlainOptions(1));
  const GetCall gone = job.Get({"a"});
  const GetCall other = job.Get({"a"});
  EXPECT_TRUE(job.Cancel(gone.wait()));
  EXPECT_THAT(gone.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_FALSE(job.Cancel(gone.wait()));
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  EXPECT_EQ(gone.count(), 1);
  EXPECT_THAT(other.result(), IsOk());
}

// A directory of checkpoints' metadata.
TEST(Store, ListsTenMebibytes) {
  TestJob job(PlainOptions(1));
  for (int i = 0; i < 10; ++i) {
    ASSERT_THAT(job.Put(absl::StrCat("dir/", i), std::string(1 << 20, 'x')), IsOk());
  }
  size_t bytes = 0;
  for (const StoreEntry& entry : job.store().List("dir/")) bytes += entry.value->size();
  EXPECT_EQ(bytes, size_t{10} << 20);
}

// NCCL's ids are 128 arbitrary bytes.
TEST(Store, ValuesAndKeysAreBytes) {
  TestJob job(PlainOptions(1));
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  const std::string key("a\0b", 3);
  ASSERT_THAT(job.Put(key, bytes), IsOk());
  EXPECT_EQ(ValueOf(job, key), bytes);
  EXPECT_EQ(job.store().Find("a"), std::nullopt);
}

// The preemption manager reads before any task has registered.
TEST(Store, WorksForCallersThatNeverRegistered) {
  TestJob job(PlainOptions(2));
  const GetCall call = job.Get({"RECEIVED_PREEMPTION_NOTICE"}, absl::InfiniteDuration(), TaskId(1));
  ASSERT_THAT(job.Put("RECEIVED_PREEMPTION_NOTICE", "task 0"), IsOk());
  EXPECT_THAT(call.result(), IsOk());
}

// Node 0 reads the topology of all nodes: one call, not a thousand.
TEST(Store, MultiGetWaitsForEveryKeyAndKeepsTheirOrder) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("b", "2"), IsOk());
  const GetCall call = job.Get({"c", "b", "a", "c"});
  ASSERT_THAT(job.Put("c", "3"), IsOk());
  EXPECT_FALSE(call.done());
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  ASSERT_THAT(call.result(), IsOk());
  EXPECT_THAT(KeysOf(*call.result()), ElementsAre("c", "b", "a", "c"));
}

// A key that existed when the wait began may be deleted when the last one is set.
TEST(Store, MultiGetHasAllItsKeysAtOneMoment) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  const GetCall call = job.Get({"a", "b"});
  job.Delete("a", false);
  ASSERT_THAT(job.Put("b", "2"), IsOk());
  EXPECT_FALSE(call.done());
  ASSERT_THAT(job.Put("a", "3"), IsOk());
  ASSERT_THAT(call.result(), IsOk());
  EXPECT_EQ(*(*call.result())[0].value, "3");
}

// The message must name the missing keys, not the existing ones.
TEST(Store, MultiGetThatTimesOutNamesTheMissingKeys) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("topology/0", "x"), IsOk());
  const GetCall call = job.Get({"topology/0", "topology/1", "topology/2"}, absl::Seconds(1));
  job.Advance(absl::Seconds(1));
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded,
                                   AllOf(HasSubstr("topology/1"), Not(HasSubstr("topology/0")))));
}

// A trailer of an RPC holds a few kilobytes.
TEST(Store, TheTimeoutOfManyLongKeysHasAShortMessage) {
  TestJob job(PlainOptions(1));
  std::vector<std::string> keys;
  for (int i = 0; i < 10'000; ++i) keys.push_back(absl::StrCat(std::string(500, 'k'), i));
  const GetCall call = job.Get(keys, absl::Seconds(1));
  job.Advance(absl::Seconds(1));
  ASSERT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded));
  EXPECT_LT(call.result().status().message().size(), 2048u);
}

// Asking for nothing is answered with nothing.
TEST(Store, AGetOfNoKeysDoesNotWait) {
  TestJob job(PlainOptions(1));
  const GetCall call = job.Get({});
  ASSERT_THAT(call.result(), IsOk());
  EXPECT_THAT(*call.result(), IsEmpty());
}

// Eight are named; of more, how many there are.
TEST(Store, AGetThatTimesOut_NamesEightOfTheMissingKeys) {
  for (const size_t count : {size_t{8}, size_t{9}}) {
    TestJob job(PlainOptions(1));
    std::vector<std::string> keys;
    for (size_t i = 0; i < count; ++i) keys.push_back(absl::StrCat("key", i));
    const GetCall call = job.Get(keys, absl::ZeroDuration());
    EXPECT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded, HasSubstr("\"key7\"")));
    EXPECT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded, Not(HasSubstr("key8"))));
    EXPECT_THAT(call.result(),
                Fails(absl::StatusCode::kDeadlineExceeded,
                      count == 9 ? ::testing::Matcher<std::string>(HasSubstr(" and 1 more"))
                                 : ::testing::Matcher<std::string>(Not(HasSubstr("more")))));
  }
}

}  // namespace
}  // namespace ferry::coord

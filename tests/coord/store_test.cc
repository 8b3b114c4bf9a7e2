// SPDX-License-Identifier: Apache-2.0
// The key-value store: values, gets that wait, subtrees, counters.
#include <cstdint>
#include <limits>
#include <optional>
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

// No task has registered here.
TEST(Store, NewKeyCanBeFound) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  const std::optional<StoreEntry> entry = job.store().Find("a");
  ASSERT_TRUE(entry.has_value());
  EXPECT_EQ(entry->key, "a");
  EXPECT_EQ(*entry->value, "1");
  EXPECT_EQ(entry->revision, job.store().revision());
}

// Two roots publish an id under one key: the second must be notified.
TEST(Store, ExistingKeyIsNotReplaced) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("a/b", "1"), IsOk());
  EXPECT_THAT(job.Put("a/b", "2"),
              Fails(absl::StatusCode::kAlreadyExists, HasSubstr("key a/b already exists.")));
  EXPECT_EQ(ValueOf(job, "a/b"), "1");
}

// A status that is published repeatedly.
TEST(Store, OverwriteReplaces) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  EXPECT_THAT(job.Put("a", "22", /*overwrite=*/true), IsOk());
  EXPECT_EQ(ValueOf(job, "a"), "22");
  EXPECT_EQ(job.store().key_count(), 1u);
}

TEST(Store, OverwriteOfAMissingKeyInserts) {
  TestJob job(PlainOptions(1));
  EXPECT_THAT(job.Put("a", "1", /*overwrite=*/true), IsOk());
  EXPECT_EQ(ValueOf(job, "a"), "1");
}

// The usual order: the reader comes first.
TEST(Store, GetWaitsForItsKey) {
  TestJob job(PlainOptions(1));
  const GetCall call = job.Get({"a"});
  EXPECT_FALSE(call.done());
  ASSERT_THAT(job.Put("b", "0"), IsOk());
  EXPECT_FALSE(call.done());
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  ASSERT_THAT(call.result(), IsOk());
  EXPECT_EQ((*call.result())[0].key, "a");
  EXPECT_EQ(*(*call.result())[0].value, "1");
}

// A reader that is late must not wait.
TEST(Store, GetOfAnExistingKeyIsAnsweredAtOnce) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  const GetCall call = job.Get({"a"});
  EXPECT_EQ(call.wait(), kNoWait);
  EXPECT_EQ(*(*call.result())[0].value, "1");
}

// An empty value is a value.
TEST(Store, EmptyValueWakesTheWaiter) {
  TestJob job(PlainOptions(1));
  const GetCall call = job.Get({"a"});
  ASSERT_THAT(job.Put("a", ""), IsOk());
  ASSERT_THAT(call.result(), IsOk());
  EXPECT_EQ(*(*call.result())[0].value, "");
}

// A thousand ranks wait for one id.
TEST(Store, OneInsertWakesEveryWaiter) {
  TestJob job(PlainOptions(1));
  std::vector<GetCall> calls;
  for (int i = 0; i < 1000; ++i) calls.push_back(job.Get({"id"}));
  ASSERT_THAT(job.Put("id", "1"), IsOk());
  for (const GetCall& call : calls) ASSERT_EQ(call.count(), 1);
  EXPECT_EQ(job.coordinator().wait_count(), 0u);
}

// A key that is deleted and set again, as for the next step.
TEST(Store, GetAfterADeleteWaitsForTheNextValue) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("key0", "1"), IsOk());
  EXPECT_EQ(job.Delete("key0", true), 1);
  const GetCall call = job.Get({"key0"});
  EXPECT_FALSE(call.done());
  ASSERT_THAT(job.Put("key0", "2"), IsOk());
  EXPECT_EQ(*(*call.result())[0].value, "2");
}

// A waiter that a delete wakes would read a value that is not there.
TEST(Store, DeleteDoesNotWakeWaiters) {
  TestJob job(PlainOptions(1));
  const GetCall call = job.Get({"a"});
  job.Delete("a", true);
  EXPECT_FALSE(call.done());
}

// A directory is deleted by its name.
TEST(Store, DeletingASubtreeRemovesTheKeysUnderIt) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("path/to/key1", "1"), IsOk());
  ASSERT_THAT(job.Put("path", "0"), IsOk());
  ASSERT_THAT(job.Put("path_x", "2"), IsOk());
  ASSERT_THAT(job.Put("path-x", "2"), IsOk());
  EXPECT_EQ(job.Delete(NormalizeKey("/path"), true), 2);
  EXPECT_FALSE(job.Get({"path/to/key1"}).done());
  EXPECT_THAT(KeysOf(job.store().List("")), ElementsAre("path-x", "path_x"));
}

// The seed's clients delete one key and mean it.
TEST(Store, DeletingWithoutTheSubtreeKeepsTheKeysUnderIt) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("path", "0"), IsOk());
  ASSERT_THAT(job.Put("path/a", "1"), IsOk());
  EXPECT_EQ(job.Delete("path", false), 1);
  EXPECT_THAT(KeysOf(job.store().List("")), ElementsAre("path/a"));
}

// The key has never been set, or has been deleted.
TEST(Store, MissingKeyIsNotFound) {
  TestJob job(PlainOptions(1));
  EXPECT_EQ(job.store().Find("a"), std::nullopt);
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  EXPECT_EQ(job.store().Find("a/"), std::nullopt);
  job.Delete("a", true);
  EXPECT_EQ(job.store().Find("a"), std::nullopt);
}

// A second cleanup is no error, and changes nothing.
TEST(Store, DeletingAMissingKeyIsOk) {
  TestJob job(PlainOptions(1));
  const int64_t revision = job.store().revision();
  EXPECT_EQ(job.Delete("a", true), 0);
  EXPECT_EQ(job.store().revision(), revision);
}

// A directory holds the keys under it at any depth, and no others.
TEST(Store, ListingHoldsNestedKeysOnly) {
  TestJob job(PlainOptions(1));
  for (const char* key : {"dir/b", "dir/sub_dir/path", "dir", "dir_x", "other/dir/a", "dir/a"}) {
    ASSERT_THAT(job.Put(key, key), IsOk());
  }
  EXPECT_THAT(KeysOf(job.store().List("dir/")), ElementsAre("dir/a", "dir/b", "dir/sub_dir/path"));
  EXPECT_THAT(KeysOf(job.store().List("dir/sub_dir/")), ElementsAre("dir/sub_dir/path"));
  EXPECT_EQ(*job.store().List("dir/sub_dir/")[0].value, "dir/sub_dir/path");
}

TEST(Store, ListingAnEmptyStoreIsEmpty) {
  TestJob job(PlainOptions(1));
  EXPECT_THAT(job.store().List("dir/"), IsEmpty());
}

// Clients write directories with and without a slash.
TEST(Store, KeysAreNormalisedAtBothEndsAndWithin) {
  EXPECT_EQ(NormalizeKey("dir"), "dir");
  EXPECT_EQ(NormalizeKey("dir/"), "dir");
  EXPECT_EQ(NormalizeKey("/dir///"), "dir");
  EXPECT_EQ(NormalizeKey("//a//b///c/"), "a/b/c");
  EXPECT_EQ(NormalizeKey("/"), "");
  EXPECT_EQ(NormalizeKey(""), "");
  EXPECT_EQ(NormalizeKey("a b;[c]:d"), "a b;[c]:d");
}

// The next run starts in an empty directory.
TEST(Store, DeletedDirectoryIsEmpty) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("test_dir/a", "1"), IsOk());
  ASSERT_THAT(job.Put("test_dir/b/c", "1"), IsOk());
  EXPECT_EQ(job.Delete(NormalizeKey("test_dir/"), true), 2);
  EXPECT_THAT(job.store().List("test_dir/"), IsEmpty());
}

// A page of a million keys must be possible to read in parts.
TEST(Store, AListIsCutAtItsLimit) {
  TestJob job(PlainOptions(1));
  for (const char* key : {"c", "a", "b"}) ASSERT_THAT(job.Put(key, ""), IsOk());
  EXPECT_THAT(KeysOf(job.store().List("", 2)), ElementsAre("a", "b"));
  EXPECT_THAT(KeysOf(job.store().List("", 3)), ElementsAre("a", "b", "c"));
}

// Prefixes at the end of the byte range: an upper bound computed by "+1" would overflow.
// Long lists are read in parts, between which the store changes.
TEST(Store, EntriesBehindAKey_AreVisitedUntilThatEnds) {
  TestJob job(PlainOptions(1));
  for (const char* key : {"a", "b/1", "b/2", "b/3", "c"}) ASSERT_THAT(job.Put(key, ""), IsOk());
  const auto visited = [&job](absl::string_view prefix, std::optional<absl::string_view> after,
                              size_t most) {
    std::vector<std::string> keys;
    job.store().ForEachAfter(prefix, after, [&](absl::string_view key, const StoreValue&) {
      keys.emplace_back(key);
      return keys.size() < most;
    });
    return keys;
  };
  EXPECT_THAT(visited("b/", std::nullopt, 9), ElementsAre("b/1", "b/2", "b/3"));
  EXPECT_THAT(visited("b/", std::nullopt, 2), ElementsAre("b/1", "b/2"));
  EXPECT_THAT(visited("b/", "b/2", 9), ElementsAre("b/3"));
  EXPECT_THAT(visited("b/", "b/25", 9), ElementsAre("b/3")) << "it was deleted meanwhile";
  EXPECT_THAT(visited("b/", "a", 9), ElementsAre("b/1", "b/2", "b/3"));
  EXPECT_THAT(visited("b/", "b/3", 9), IsEmpty());
  EXPECT_THAT(visited("", "b/3", 9), ElementsAre("c"));
}

TEST(Store, AListEndsRightAfterBytesOfAllOnes) {
  TestJob job(PlainOptions(1));
  for (const char* key : {"\xff", "\xff\xff", "\xff/a", "\xfe", "z"}) {
    ASSERT_THAT(job.Put(key, ""), IsOk());
  }
  EXPECT_THAT(KeysOf(job.store().List("\xff")), ElementsAre("\xff", "\xff/a", "\xff\xff"));
}

std::string Counted(absl::StatusOr<StoreEntry> entry) {
  return entry.ok() ? *entry->value : entry.status().ToString();
}

// Ranks draw numbers.
TEST(Store, IncrementAddsToDecimalText) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  EXPECT_EQ(Counted(job.store().Increment("a", 3)), "4");
  EXPECT_EQ(Counted(job.store().Increment("b", 10)), "10");
  ASSERT_THAT(job.Put("c", "3"), IsOk());
  EXPECT_EQ(Counted(job.store().Increment("c", -5)), "-2");
  EXPECT_EQ(ValueOf(job, "c"), "-2");
}

// A counter's first value is a value like any other.
TEST(Store, IncrementWakesWaiters) {
  TestJob job(PlainOptions(1));
  const GetCall call = job.Get({"a"});
  ASSERT_THAT(job.store().Increment("a", 7), IsOk());
  job.Drain();
  ASSERT_THAT(call.result(), IsOk());
  EXPECT_EQ(*(*call.result())[0].value, "7");
}

// The key belongs to another client.
TEST(Store, IncrementOfOtherTextIsRefused) {
  TestJob job(PlainOptions(1));
  for (const char* text : {"x", "", "1x", "1.5", "99999999999999999999"}) {
    ASSERT_THAT(job.Put("a", text, /*overwrite=*/true), IsOk());
    EXPECT_THAT(job.store().Increment("a", 1), Fails(absl::StatusCode::kFailedPrecondition))
        << text;
    EXPECT_EQ(ValueOf(job, "a"), text);
  }
}

// Upstream parses 32 bits; a byte counter is past them in a second.
TEST(Store, IncrementCountsIn64BitsAndRefusesToOverflow) {
  TestJob job(PlainOptions(1));
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  ASSERT_THAT(job.Put("a", "2147483647"), IsOk());
  EXPECT_EQ(Counted(job.store().Increment("a", 1)), "2147483648");
  EXPECT_EQ(Counted(job.store().Increment("max", kMax)), absl::StrCat(kMax));
  EXPECT_THAT(job.store().Increment("max", 1), Fails(absl::StatusCode::kOutOfRange));
  EXPECT_EQ(ValueOf(job, "max"), absl::StrCat(kMax));
  EXPECT_EQ(Counted(job.store().Increment("min", kMin)), absl::StrCat(kMin));
  EXPECT_THAT(job.store().Increment("min", -1), Fails(absl::StatusCode::kOutOfRange));
}

TEST(StoreLimits, BytesThatFillTheStore_AreAccepted) {
  CoordinatorOptions options = PlainOptions(1);
  options.max_store_bytes = 10;
  TestJob job(options);
  // Keys count too.
  EXPECT_THAT(job.Put("key", "1234567"), IsOk());
  EXPECT_EQ(job.store().stored_bytes(), 10u);
  EXPECT_THAT(job.Put("key", "12345678", true), Fails(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(job.store().Put({{"key", "7654321"}}, true), IsOk());
  EXPECT_THAT(job.store().Put({{"key", "87654321"}}, true),
              Fails(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(job.Delete("key", false), 1);
  EXPECT_EQ(job.store().stored_bytes(), 0u);
}

// The limit itself is allowed, in a batch as one by one.
TEST(StoreLimits, BatchThatFillsTheStore_IsAccepted) {
  CoordinatorOptions options = PlainOptions(1);
  options.max_keys = 2;
  TestJob job(options);
  EXPECT_THAT(job.store().Put({{"a", "1"}, {"b", "2"}}, false), IsOk());
  EXPECT_THAT(job.store().Put({{"c", "3"}, {"a", "2"}}, true),
              Fails(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace ferry::coord

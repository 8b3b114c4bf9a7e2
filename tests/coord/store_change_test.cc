// SPDX-License-Identifier: Apache-2.0
// The key-value store: changes of several keys, conditional ones, watches, limits.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/coord/coordinator_fixture.h"
#include "tests/coord/store_reads.h"

namespace ferry::coord {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Pairs = std::vector<std::pair<std::string, std::string>>;

// Half a set of keys would be read as a whole one.
TEST(Store, ABatchIsSetAsAWholeOrNotAtAll) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("b", "old"), IsOk());
  const int64_t revision = job.store().revision();
  EXPECT_THAT(job.store().Put(Pairs{{"a", "1"}, {"b", "2"}, {"c", "3"}}, false),
              Fails(absl::StatusCode::kAlreadyExists, HasSubstr("key b already exists.")));
  EXPECT_EQ(ValueOf(job, "a"), "(absent)");
  EXPECT_EQ(ValueOf(job, "c"), "(absent)");
  EXPECT_EQ(job.store().revision(), revision);
  EXPECT_THAT(job.store().Put(Pairs{{"a", "1"}, {"b", "2"}, {"c", "3"}}, true), IsOk());
  EXPECT_EQ(ValueOf(job, "a") + ValueOf(job, "b") + ValueOf(job, "c"), "123");
}

// One call with a hundred keys answers the waiters of any of them.
TEST(Store, ABatchWakesTheWaitersOfAllItsKeys) {
  TestJob job(PlainOptions(1));
  const GetCall a = job.Get({"a"});
  const GetCall b = job.Get({"b"});
  const GetCall both = job.Get({"b", "a"});
  ASSERT_THAT(job.store().Put(Pairs{{"a", "1"}, {"b", "2"}}, false), IsOk());
  job.Drain();
  for (const GetCall& call : {a, b, both}) EXPECT_THAT(call.result(), IsOk());
}

// A reader that gets the new address with the old port cannot connect.
TEST(Store, ABatchIsSeenAsAWhole) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("port", "old"), IsOk());
  const GetCall call = job.Get({"address", "port"});
  ASSERT_THAT(job.store().Put(Pairs{{"address", "new"}, {"port", "new"}}, true), IsOk());
  job.Drain();
  ASSERT_THAT(call.result(), IsOk());
  EXPECT_EQ(*(*call.result())[0].value, "new");
  EXPECT_EQ(*(*call.result())[1].value, "new");
}

// Revisions must never decrease.
TEST(Store, TheRevisionGrowsWithEveryChange) {
  TestJob job(PlainOptions(1));
  int64_t last = job.store().revision();
  const auto grows = [&job, &last] {
    const int64_t now = job.store().revision();
    const bool grew = now > last;
    last = now;
    return grew;
  };
  const absl::StatusOr<int64_t> put = job.Put("a", "1");
  EXPECT_TRUE(grows());
  EXPECT_EQ(*put, last);
  ASSERT_THAT(job.Put("a", "1", true), IsOk());
  EXPECT_TRUE(grows());
  ASSERT_THAT(job.store().Increment("a", 1), IsOk());
  EXPECT_TRUE(grows());
  ASSERT_THAT(job.store().CompareAndSet("a", "2", "x"), IsOk());
  EXPECT_TRUE(grows());
  ASSERT_THAT(job.store().CompareAndSet("a", "not it", "y"), IsOk());
  EXPECT_FALSE(grows());
  job.Delete("a", false);
  EXPECT_TRUE(grows());
}

// Readers that know the last revision see whether the key moved on.
TEST(Store, AnEntryKeepsTheRevisionOfItsLastChange) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  const int64_t revision = job.store().Find("a")->revision;
  ASSERT_THAT(job.Put("b", "1"), IsOk());
  EXPECT_EQ(job.store().Find("a")->revision, revision);
  ASSERT_THAT(job.Put("a", "2", true), IsOk());
  EXPECT_GT(job.store().Find("a")->revision, revision);
}

// An answer in flight must not change under its reader.
TEST(Store, ValueThatWasReadDoesNotChange) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("a", "old"), IsOk());
  const StoreEntry read = *job.store().Find("a");
  ASSERT_THAT(job.Put("a", "new", true), IsOk());
  job.Delete("a", false);
  EXPECT_EQ(*read.value, "old");
}

// A lock: one of two must win.
TEST(Store, CompareAndSetOfAnAbsentKeySucceedsOnce) {
  TestJob job(PlainOptions(1));
  auto first = job.store().CompareAndSet("lock", std::nullopt, "task 0");
  ASSERT_THAT(first, IsOk());
  EXPECT_TRUE(first->first);
  EXPECT_EQ(*first->second.value, "task 0");
  auto second = job.store().CompareAndSet("lock", std::nullopt, "task 1");
  ASSERT_THAT(second, IsOk());
  EXPECT_FALSE(second->first);
  EXPECT_EQ(*second->second.value, "task 0");
  EXPECT_EQ(ValueOf(job, "lock"), "task 0");
}

// The holder hands over; a caller with an older value fails.
TEST(Store, CompareAndSetReplacesOnlyTheExpectedValue) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  auto changed = job.store().CompareAndSet("a", "1", "2");
  ASSERT_THAT(changed, IsOk());
  EXPECT_TRUE(changed->first);
  auto stale = job.store().CompareAndSet("a", "1", "3");
  ASSERT_THAT(stale, IsOk());
  EXPECT_FALSE(stale->first);
  EXPECT_EQ(ValueOf(job, "a"), "2");
}

// An empty value is not an absent one.
TEST(Store, CompareAndSetDistinguishesEmptyFromAbsent) {
  TestJob job(PlainOptions(1));
  auto absent = job.store().CompareAndSet("a", "", "1");
  ASSERT_THAT(absent, IsOk());
  EXPECT_FALSE(absent->first);
  EXPECT_EQ(absent->second.value, nullptr);
  EXPECT_EQ(job.store().key_count(), 0u);
  ASSERT_THAT(job.Put("a", ""), IsOk());
  auto empty = job.store().CompareAndSet("a", std::nullopt, "1");
  ASSERT_THAT(empty, IsOk());
  EXPECT_FALSE(empty->first);
}

TEST(Store, CompareAndSetWakesWaiters) {
  TestJob job(PlainOptions(1));
  const GetCall call = job.Get({"a"});
  ASSERT_THAT(job.store().CompareAndSet("a", std::nullopt, "1"), IsOk());
  job.Drain();
  EXPECT_THAT(call.result(), IsOk());
}

// The events of a watcher, as text: "+a=1", "-a".
class Heard {
 public:
  Heard(TestJob& job, std::string prefix, bool with_existing = false) : job_(job) {
    watch_ =
        job.store().AddWatch(std::move(prefix), with_existing, [this](const StoreEvent& event) {
          lines_.push_back(event.deleted
                               ? absl::StrCat("-", event.entry.key)
                               : absl::StrCat("+", event.entry.key, "=", *event.entry.value));
          revisions_.push_back(event.entry.revision);
        });
  }
  ~Heard() { job_.store().RemoveWatch(watch_); }
  Heard(const Heard&) = delete;
  Heard& operator=(const Heard&) = delete;

  const std::vector<std::string>& lines() {
    job_.Drain();
    return lines_;
  }
  const std::vector<int64_t>& revisions() const { return revisions_; }

 private:
  TestJob& job_;
  Store::Watch watch_;
  std::vector<std::string> lines_;
  std::vector<int64_t> revisions_;
};

// A mirror of the store that receives changes out of order stays wrong.
TEST(StoreWatch, ReceivesEveryChangeUnderItsPrefixInOrder) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("a/0", "before"), IsOk());
  Heard heard(job, "a/");
  ASSERT_THAT(job.store().Put(Pairs{{"a/1", "x"}, {"b", "no"}, {"a/2", "y"}}, false), IsOk());
  ASSERT_THAT(job.store().Put("a/1", "z", true), IsOk());
  ASSERT_THAT(job.store().Increment("a/n", 5), IsOk());
  ASSERT_THAT(job.store().CompareAndSet("a/n", "5", "6"), IsOk());
  ASSERT_THAT(job.store().CompareAndSet("a/n", "5", "7"), IsOk());
  job.store().Delete("a/1", false);
  job.store().Delete("a/1", false);
  EXPECT_THAT(heard.lines(), ElementsAre("+a/1=x", "+a/2=y", "+a/1=z", "+a/n=5", "+a/n=6", "-a/1"));
  EXPECT_TRUE(std::is_sorted(heard.revisions().begin(), heard.revisions().end()));
}

// A mirror that lists first and watches then would miss the changes in between.
TEST(StoreWatch, MayBeginWithTheExistingEntries) {
  TestJob job(PlainOptions(1));
  for (const char* key : {"a/2", "b", "a/1"}) ASSERT_THAT(job.Put(key, "old"), IsOk());
  Heard heard(job, "a/", /*with_existing=*/true);
  ASSERT_THAT(job.store().Put("a/1", "new", true), IsOk());
  EXPECT_THAT(heard.lines(), ElementsAre("+a/1=old", "+a/2=old", "+a/1=new"));
}

TEST(StoreWatch, ReceivesEachKeyOfADeletedSubtree) {
  TestJob job(PlainOptions(1));
  for (const char* key : {"a", "a/1", "a/2/3", "ab"}) ASSERT_THAT(job.Put(key, "1"), IsOk());
  Heard heard(job, "");
  job.store().Delete("a", true);
  EXPECT_THAT(heard.lines(), ElementsAre("-a", "-a/1", "-a/2/3"));
}

// A failed change changes nothing.
TEST(StoreWatch, ReceivesNothingOfARefusedBatch) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("b", "1"), IsOk());
  Heard heard(job, "");
  (void)job.store().Put(Pairs{{"a", "1"}, {"b", "2"}}, false);
  EXPECT_THAT(heard.lines(), IsEmpty());
}

// The watcher and its memory are gone.
TEST(StoreWatch, IsSilentAfterItsRemoval) {
  TestJob job(PlainOptions(1));
  std::vector<std::string> keys;
  const Store::Watch watch = job.store().AddWatch(
      "", false, [&keys](const StoreEvent& event) { keys.push_back(event.entry.key); });
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  EXPECT_EQ(job.coordinator().InnerTableSizes()["store.watches"], 1u);
  // The second removal finds nothing.
  for (int i = 0; i < 2; ++i) {
    job.store().RemoveWatch(watch);
    EXPECT_EQ(job.coordinator().InnerTableSizes()["store.watches"], 0u);
    EXPECT_EQ(job.coordinator().InnerTableSizes()["store.watched_prefixes"], 0u);
  }
  ASSERT_THAT(job.Put("b", "1"), IsOk());
  EXPECT_THAT(keys, ElementsAre("a"));
}

TEST(StoreWatch, SeveralWatchersReceiveTheSame) {
  TestJob job(PlainOptions(1));
  Heard all(job, "");
  Heard some(job, "a");
  ASSERT_THAT(job.Put("b", "1"), IsOk());
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  EXPECT_THAT(all.lines(), ElementsAre("+b=1", "+a=1"));
  EXPECT_THAT(some.lines(), ElementsAre("+a=1"));
}

// Prefixes of prefixes, and others that lie between them in order.
TEST(StoreWatch, EveryPrefixOfAKeyIsNotifiedAndNoOther) {
  TestJob job(PlainOptions(1));
  const std::vector<std::string> prefixes = {"", "a", "a/b", "a/b/c", "a/bb", "a0", "ab", "b", "a"};
  std::vector<std::unique_ptr<Heard>> heard;
  for (const std::string& prefix : prefixes) heard.push_back(std::make_unique<Heard>(job, prefix));
  const std::vector<std::string> keys = {"",        "a",    "a/", "a/b", "a/b/",
                                         "a/b/c/d", "a/bc", "aa", "c"};
  for (const std::string& key : keys) ASSERT_THAT(job.Put(key, "1"), IsOk());
  for (size_t i = 0; i < prefixes.size(); ++i) {
    std::vector<std::string> expected;
    for (const std::string& key : keys) {
      if (key.rfind(prefixes[i], 0) == 0) expected.push_back(absl::StrCat("+", key, "=1"));
    }
    EXPECT_EQ(heard[i]->lines(), expected) << prefixes[i];
  }
  heard[1] = nullptr;
  ASSERT_THAT(job.Put("a", "2", true), IsOk());
  EXPECT_EQ(heard[8]->lines().back(), "+a=2");
  EXPECT_EQ(heard[0]->lines().back(), "+a=2");
}

// The list of a prefix's watches is cached: it must be invalidated when they change.
TEST(StoreWatch, RemovedNextToOthersOfItsPrefix_ReceivesNothingMore) {
  TestJob job(PlainOptions(1));
  Heard stays(job, "a");
  auto goes = std::make_unique<Heard>(job, "a");
  ASSERT_THAT(job.Put("a/1", "x"), IsOk());
  EXPECT_EQ(goes->lines().size(), 1u);
  int after = 0;
  const Store::Watch counted =
      job.store().AddWatch("a", false, [&after](const StoreEvent&) { ++after; });
  ASSERT_THAT(job.Put("a/2", "x"), IsOk());
  EXPECT_EQ(after, 1);
  job.store().RemoveWatch(counted);
  ASSERT_THAT(job.Put("a/3", "x"), IsOk());
  EXPECT_EQ(after, 1);
  EXPECT_EQ(stays.lines().size(), 3u);
  EXPECT_EQ(goes->lines().size(), 3u);
}

// Thousands of ranks watch, each its own: a change must not be a walk past all of them.
TEST(StoreWatch, CostOfAChangeDependsOnItsWatchersOnly) {
  TestJob job(PlainOptions(1));
  size_t heard = 0;
  for (int i = 0; i < 100'000; ++i) {
    job.store().AddWatch(absl::StrCat("rank/", i, "/"), false,
                         [&heard](const StoreEvent&) { ++heard; });
  }
  Pairs pairs;
  for (int i = 0; i < 20'000; ++i) pairs.emplace_back(absl::StrCat("other/", i), "1");
  pairs.emplace_back("rank/7/state", "1");
  const size_t changes = pairs.size();
  const uint64_t before = job.store().watch_lookups();
  ASSERT_THAT(job.store().Put(std::move(pairs), false), IsOk());
  job.Drain();
  // Past all of them it would be 100,000 for each change.
  EXPECT_LE(job.store().watch_lookups() - before, 8 * changes);
  EXPECT_GE(job.store().watch_lookups() - before, changes);
  EXPECT_EQ(heard, 1u);
}

// Each watcher could be notified, but not all at once.
TEST(StoreWatch, PutWithTooManyWatchersIsRefused) {
  TestJob job(PlainOptions(1));
  size_t heard = 0;
  for (int i = 0; i < 3000; ++i) {
    job.store().AddWatch("a", false, [&heard](const StoreEvent&) { ++heard; });
  }
  Pairs few;
  Pairs many;
  Pairs elsewhere;
  for (int i = 0; i < 2000; ++i) {
    if (i < 100) few.emplace_back(absl::StrCat("a", i), "1");
    many.emplace_back(absl::StrCat("a", i), "2");
    elsewhere.emplace_back(absl::StrCat("b", i), "1");
  }
  ASSERT_THAT(job.store().Put(std::move(few), false), IsOk());
  EXPECT_THAT(job.store().Put(std::move(many), true),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("6000000 changes")));
  ASSERT_THAT(job.store().Put(std::move(elsewhere), false), IsOk());
  job.Drain();
  EXPECT_EQ(heard, 300'000u);
  EXPECT_EQ(ValueOf(job, "a7"), "1");
}

// A client that loops over growing keys must not fill the machine.
TEST(StoreLimits, AKeyOverItsLimitIsRefused) {
  CoordinatorOptions options = PlainOptions(1);
  options.max_key_bytes = 8;
  TestJob job(options);
  EXPECT_THAT(job.Put("12345678", "1"), IsOk());
  EXPECT_THAT(job.Put("123456789", "1"),
              Fails(absl::StatusCode::kInvalidArgument, ContainsRegex("max[-_]key[-_]bytes")));
  EXPECT_THAT(job.store().Increment("123456789", 1), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(job.store().CompareAndSet("123456789", std::nullopt, "1"),
              Fails(absl::StatusCode::kInvalidArgument));
  // It can never be set, and so is not waited for.
  EXPECT_THAT(job.Get({"absent", "123456789"}).result(),
              Fails(absl::StatusCode::kInvalidArgument, ContainsRegex("max[-_]key[-_]bytes")));
  EXPECT_EQ(job.store().key_count(), 1u);
}

// Cliques of thousands of processes have keys of tens of kilobytes.
TEST(StoreLimits, KeysOfTensOfKilobytesWork) {
  TestJob job(PlainOptions(1));
  const std::string key(100'000, 'k');
  ASSERT_THAT(job.Put(key, "1"), IsOk());
  EXPECT_EQ(ValueOf(job, key), "1");
}

TEST(StoreLimits, AValueOverItsLimitIsRefused) {
  CoordinatorOptions options = PlainOptions(1);
  options.max_value_bytes = 4;
  TestJob job(options);
  EXPECT_THAT(job.Put("a", "1234"), IsOk());
  EXPECT_THAT(job.Put("b", "12345"),
              Fails(absl::StatusCode::kInvalidArgument, ContainsRegex("max[-_]value[-_]bytes")));
  EXPECT_THAT(job.store().CompareAndSet("a", "1234", "12345"),
              Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(ValueOf(job, "a"), "1234");
}

// The limits apply to each entry of a batch, of which none is set.
TEST(StoreLimits, BatchWithAnEntryOverItsLimit_IsRefused) {
  CoordinatorOptions options = PlainOptions(1);
  options.max_key_bytes = 8;
  options.max_value_bytes = 4;
  TestJob job(options);
  EXPECT_THAT(job.store().Put(Pairs{{"a", "1"}, {"123456789", "1"}}, false),
              Fails(absl::StatusCode::kInvalidArgument, ContainsRegex("max[-_]key[-_]bytes")));
  EXPECT_THAT(job.store().Put(Pairs{{"a", "1"}, {"b", "12345"}}, false),
              Fails(absl::StatusCode::kInvalidArgument, ContainsRegex("max[-_]value[-_]bytes")));
  EXPECT_EQ(job.store().key_count(), 0u);
  EXPECT_THAT(job.store().Put(Pairs{{"12345678", "1234"}}, false), IsOk());
}

// The error must name the option to raise.
TEST(StoreLimits, AFullStoreRefusesAndRecovers) {
  CoordinatorOptions options = PlainOptions(1);
  options.max_store_bytes = 1000;
  TestJob job(options);
  ASSERT_THAT(job.Put("a", std::string(600, 'x')), IsOk());
  EXPECT_THAT(job.Put("b", std::string(600, 'x')),
              Fails(absl::StatusCode::kResourceExhausted, ContainsRegex("max[-_]store[-_]bytes")));
  EXPECT_EQ(ValueOf(job, "b"), "(absent)");
  job.Delete("a", false);
  EXPECT_THAT(job.Put("b", std::string(600, 'x')), IsOk());
}

// Replacing a value accounts for the old bytes as well as the new ones.
TEST(StoreLimits, FullStoreAllowsReplacingByLess) {
  CoordinatorOptions options = PlainOptions(1);
  options.max_store_bytes = 1000;
  TestJob job(options);
  ASSERT_THAT(job.Put("a", std::string(900, 'x')), IsOk());
  EXPECT_THAT(job.Put("a", std::string(800, 'y'), true), IsOk());
  EXPECT_THAT(job.Put("a", std::string(5000, 'z'), true),
              Fails(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(ValueOf(job, "a"), std::string(800, 'y'));
}

// Counting wrongly would lock the store after some millions of changes.
TEST(StoreLimits, BytesOfRemovedValuesAreFree) {
  CoordinatorOptions options = PlainOptions(1);
  options.max_store_bytes = 10'000;
  TestJob job(options);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_THAT(job.Put("a/b", std::string(i % 977, 'x'), true), IsOk());
    ASSERT_THAT(job.store().Increment("a/n", i), IsOk());
    if (i % 7 == 0) {
      ASSERT_EQ(job.Delete("a", true), 2);
    }
  }
  job.Delete("a", true);
  EXPECT_EQ(job.store().stored_bytes(), 0u);
}

TEST(StoreLimits, TooManyKeysAreRefused) {
  CoordinatorOptions options = PlainOptions(1);
  options.max_keys = 2;
  TestJob job(options);
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  ASSERT_THAT(job.Put("b", "1"), IsOk());
  EXPECT_THAT(job.Put("c", "1"),
              Fails(absl::StatusCode::kResourceExhausted, ContainsRegex("max[-_]keys")));
  EXPECT_THAT(job.Put("b", "2", true), IsOk());
  EXPECT_THAT(job.store().Increment("d", 1), Fails(absl::StatusCode::kResourceExhausted));
}

// Each key of a batch fits, all of them do not.
TEST(StoreLimits, ABatchIsMeasuredAsAWhole) {
  CoordinatorOptions options = PlainOptions(1);
  options.max_keys = 2;
  options.max_store_bytes = 1000;
  TestJob job(options);
  EXPECT_THAT(job.store().Put(Pairs{{"a", "1"}, {"b", "1"}, {"c", "1"}}, false),
              Fails(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(
      job.store().Put(Pairs{{"a", std::string(600, 'x')}, {"b", std::string(600, 'x')}}, false),
      Fails(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(job.store().key_count(), 0u);
  EXPECT_EQ(job.store().stored_bytes(), 0u);
}

// Gets of clients that time out locally stay behind on the server.
TEST(StoreLimits, TooManyWaitsAreRefused) {
  CoordinatorOptions options = PlainOptions(1);
  options.max_pending_gets = 3;
  TestJob job(options);
  std::vector<GetCall> parked;
  for (int i = 0; i < 3; ++i) parked.push_back(job.Get({"a"}));
  EXPECT_THAT(job.Get({"b"}).result(),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("--max-pending-gets")));
  for (const GetCall& call : parked) EXPECT_FALSE(call.done());
  ASSERT_TRUE(job.Cancel(parked[0].wait()));
  EXPECT_FALSE(job.Get({"b"}).done());
}

// A full table of waits must not refuse calls that need not wait.
TEST(StoreLimits, GetThatNeedNotWaitIsAnsweredWhenTheTableOfWaitsIsFull) {
  CoordinatorOptions options = PlainOptions(1);
  options.max_pending_gets = 1;
  TestJob job(options);
  ASSERT_THAT(job.Put("there", "1"), IsOk());
  const GetCall parked = job.Get({"a"});
  EXPECT_THAT(job.Get({"there"}).result(), IsOk());
}

// The status must show the key that a task waits for.
TEST(StoreWaits, AreListedWithTheirTaskAndKey) {
  TestJob job(PlainOptions(2));
  const absl::Time start = job.clock().Now();
  const GetCall call = job.Get({"topology/7"}, absl::InfiniteDuration(), TaskId(1));
  job.Advance(absl::Seconds(3));
  const std::vector<WaitInfo> waits = job.coordinator().Waits();
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].task, TaskId(1));
  EXPECT_THAT(waits[0].what, HasSubstr("topology/7"));
  EXPECT_EQ(waits[0].since, start);
  EXPECT_EQ(job.coordinator().wait_count(), 1u);
}

// Its bytes are freed once, however often the batch names it.
TEST(StoreLimits, KeyTwiceInABatch_IsCountedOnce) {
  CoordinatorOptions options = PlainOptions(1);
  options.max_store_bytes = 200;
  TestJob job(options);
  ASSERT_THAT(job.Put("k", std::string(100, 'x')), IsOk());
  EXPECT_THAT(job.store().Put(Pairs{{"k", "a"}, {"k", "bc"}}, true), IsOk());
  job.Drain();
  EXPECT_EQ(ValueOf(job, "k"), "bc");
  EXPECT_EQ(job.store().stored_bytes(), 3u);
}

// The cached list of a prefix's watches must not be used for later changes.
TEST(StoreWatch, AddedAfterAChangeOfItsPrefix_ReceivesTheNext) {
  TestJob job(PlainOptions(1));
  Heard first(job, "a");
  ASSERT_THAT(job.Put("a/1", "x"), IsOk());
  Heard second(job, "a");
  ASSERT_THAT(job.Put("a/2", "y"), IsOk());
  EXPECT_THAT(first.lines(), ElementsAre("+a/1=x", "+a/2=y"));
  EXPECT_THAT(second.lines(), ElementsAre("+a/2=y"));
}

// Counts that its answer is bounded by.
TEST(Store, ListBytes_CountsTheKeysUnderThePrefixOnly) {
  TestJob job(PlainOptions(1));
  ASSERT_THAT(job.Put("a/1", "12345"), IsOk());
  ASSERT_THAT(job.Put("a/2", ""), IsOk());
  ASSERT_THAT(job.Put("b", "123"), IsOk());
  EXPECT_EQ(job.store().ListBytes("a/"), 3u + 5 + 3 + 2 * Store::kEntryBytes);
  EXPECT_EQ(job.store().ListBytes("c"), 0u);
}

}  // namespace
}  // namespace ferry::coord

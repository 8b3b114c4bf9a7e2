// SPDX-License-Identifier: Apache-2.0
// Cached answers, and their limits.
#include "rendezvous/response_cache.h"

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous_fixture.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kStep = 1;

// "v" for the value v, "v+" if it is to be acknowledged, else the status.
ServedCallback Into(std::vector<std::string>& out) {
  return [&out](absl::Status status, ServedValue value) {
    if (!status.ok()) return out.push_back(status.ToString());
    const std::string text =
        value.tensor.dtype() == DataType::kString ? value.tensor.strings()[0] : "bytes";
    out.push_back(text + (value.require_ack ? "+" : ""));
  };
}

ServedValue Served(absl::string_view text) { return {.tensor = Value(text)}; }
ServedValue ServedBytes(int64_t count) { return {.tensor = Bytes(count)}; }

TEST(ResponseCache, RepeatedRequestGetsTheSameValueBeforeAndAfterItExists) {
  std::vector<std::string> out;
  ResponseCache cache;
  EXPECT_TRUE(cache.Attach(7, kStep, nullptr, Into(out)));
  EXPECT_FALSE(cache.Attach(7, kStep, nullptr, Into(out)));
  EXPECT_TRUE(out.empty());
  cache.Complete(7, absl::OkStatus(), Served("v"));
  EXPECT_FALSE(cache.Attach(7, kStep, nullptr, Into(out)));
  EXPECT_THAT(out, ElementsAre("v+", "v+", "v+"));
  EXPECT_EQ(cache.entry_count(), 1u);
}

TEST(ResponseCache, ValueIsRemovedWhenItIsFinished) {
  std::vector<std::string> out;
  ResponseCache cache;
  cache.Attach(7, kStep, nullptr, Into(out));
  cache.MarkFinished(7);  // not there yet
  cache.Complete(7, absl::OkStatus(), ServedBytes(100));
  EXPECT_EQ(cache.bytes(), 100u);
  cache.MarkFinished(7);
  cache.MarkFinished(7);
  cache.MarkFinished(8);
  EXPECT_EQ(cache.entry_count(), 0u);
  EXPECT_EQ(cache.bytes(), 0u);
  // Its value has been removed: a wait for it would never end.
  EXPECT_FALSE(cache.Attach(7, kStep, nullptr, Into(out)));
  EXPECT_THAT(out[1], HasSubstr("ABORTED: The same RecvTensor (GrpcWorker) request was received"));
}

TEST(ResponseCache, StepsValuesAreRemovedWithItAndLateOnesAreNotKept) {
  std::vector<std::string> out;
  ResponseCache cache;
  cache.Attach(1, kStep, nullptr, Into(out));
  cache.Attach(2, kStep, nullptr, Into(out));
  cache.Attach(3, kStep + 1, nullptr, Into(out));
  cache.Complete(1, absl::OkStatus(), Served("a"));
  cache.Complete(3, absl::OkStatus(), Served("c"));
  cache.CleanupStep(kStep);
  EXPECT_EQ(cache.entry_count(), 2u);
  cache.Complete(2, absl::OkStatus(), Served("b"));
  EXPECT_EQ(cache.entry_count(), 1u);
  EXPECT_THAT(out, ElementsAre("a+", "c+", "b"));
}

TEST(ResponseCache, ErrorsAreNotKept) {
  std::vector<std::string> out;
  ResponseCache cache;
  cache.Attach(7, kStep, nullptr, Into(out));
  cache.Complete(7, absl::InternalError("no"), {});
  EXPECT_TRUE(cache.Attach(7, kStep, nullptr, Into(out)));
  EXPECT_THAT(out, ElementsAre("INTERNAL: no"));
}

TEST(ResponseCache, CancelledWaitLeavesTheValueToARetry) {
  std::vector<std::string> out;
  ResponseCache cache;
  CancellationToken gone;
  EXPECT_TRUE(cache.Attach(7, kStep, &gone, Into(out)));
  gone.Cancel();
  cache.Complete(7, absl::OkStatus(), Served("v"));
  EXPECT_FALSE(cache.Attach(7, kStep, nullptr, Into(out)));
  EXPECT_FALSE(cache.Attach(7, kStep, &gone, Into(out)));
  EXPECT_THAT(out, ElementsAre("CANCELLED: [_Derived_]RecvTensor is cancelled.", "v+", "v+"));
}

TEST(ResponseCache, OldestValueIsEvicted) {
  std::vector<std::string> out;
  ResponseCache cache({.max_entries = 3, .max_bytes = 100});
  for (int64_t id = 1; id <= 3; ++id) {
    cache.Attach(id, kStep, nullptr, Into(out));
    cache.Complete(id, absl::OkStatus(), ServedBytes(40));
  }
  EXPECT_EQ(cache.bytes(), 80u);
  // Too large to be kept at all.
  cache.Attach(4, kStep, nullptr, Into(out));
  cache.Complete(4, absl::OkStatus(), ServedBytes(101));
  EXPECT_EQ(cache.bytes(), 80u);
  EXPECT_THAT(out, ElementsAre("bytes+", "bytes+", "bytes+", "bytes"));
  cache.Attach(1, kStep, nullptr, Into(out));
  EXPECT_THAT(out[4], HasSubstr("ResponseCacheLimits"));
}

TEST(ResponseCache, PendingEntriesAreNotEvicted) {
  std::vector<std::string> out;
  ResponseCache cache({.max_entries = 2});
  cache.Attach(1, kStep, nullptr, Into(out));
  cache.Attach(2, kStep, nullptr, Into(out));
  EXPECT_FALSE(cache.Attach(3, kStep, nullptr, Into(out)));
  EXPECT_THAT(out[0], HasSubstr("RESOURCE_EXHAUSTED: 2 requests for tensors wait"));
  cache.Complete(1, absl::OkStatus(), Served("v"));
  EXPECT_TRUE(cache.Attach(3, kStep, nullptr, Into(out)));
}

TEST(ResponseCache, WaitersAreNotifiedOfTheEnd) {
  std::vector<std::string> out;
  {
    ResponseCache cache;
    cache.Attach(1, kStep, nullptr, Into(out));
  }
  EXPECT_THAT(out, ElementsAre("CANCELLED: the worker's response cache is deleted"));
}

// One eviction is enough only where all values have one size.
TEST(ResponseCache, LargeValue_EvictsSeveralSmallOnes) {
  std::vector<std::string> out;
  ResponseCache cache({.max_bytes = 100});
  for (int64_t id = 1; id <= 10; ++id) {
    cache.Attach(id, kStep, nullptr, Into(out));
    cache.Complete(id, absl::OkStatus(), ServedBytes(10));
  }
  cache.Attach(11, kStep, nullptr, Into(out));
  cache.Complete(11, absl::OkStatus(), ServedBytes(95));
  EXPECT_EQ(cache.bytes(), 95u);
}

// Every call in any order, from a fixed seed: the tables agree, the limits hold, and every waiter
// is called once.
TEST(ResponseCache, RandomCalls_TablesAgreeAndStayBounded) {
  constexpr size_t kMaxEntries = 6;
  constexpr size_t kMaxBytes = 200;
  std::mt19937 random(20261125);
  int attached = 0;
  int answered = 0;
  std::vector<std::unique_ptr<CancellationToken>> cancellations;
  {
    ResponseCache cache({.max_entries = kMaxEntries, .max_bytes = kMaxBytes, .max_forgotten = 5});
    for (int i = 0; i < 20'000; ++i) {
      const int64_t id = 1 + random() % 12;
      const int64_t step = 1 + id % 3;
      switch (random() % 8) {
        case 0:
        case 1:
        case 2: {
          CancellationToken* gone = nullptr;
          if (random() % 2 == 0) {
            cancellations.push_back(std::make_unique<CancellationToken>());
            gone = cancellations.back().get();
          }
          ++attached;
          cache.Attach(id, step, gone, [&answered](absl::Status, ServedValue) { ++answered; });
          break;
        }
        case 3:
          cache.Complete(id, absl::InternalError("no"), {});
          break;
        case 4:
          cache.MarkFinished(id);
          break;
        case 5:
          if (random() % 4 == 0) cache.CleanupStep(step);
          if (!cancellations.empty()) cancellations[random() % cancellations.size()]->Cancel();
          break;
        default:
          cache.Complete(id, absl::OkStatus(), ServedBytes(static_cast<int64_t>(random() % 250)));
      }
      TableSizes sizes = cache.InnerTableSizes();
      ASSERT_EQ(sizes["cache.kept"], sizes["cache.ready"]) << "after call " << i;
      ASSERT_EQ(sizes["cache.bytes"], sizes["cache.ready_bytes"]) << "after call " << i;
      ASSERT_LE(sizes["cache.bytes"], kMaxBytes) << "after call " << i;
      ASSERT_LE(sizes["cache.entries"], kMaxEntries) << "after call " << i;
      ASSERT_EQ(static_cast<size_t>(attached - answered), sizes["cache.waiters"])
          << "after call " << i;
    }
  }
  EXPECT_EQ(answered, attached);
  for (const auto& each : cancellations) EXPECT_EQ(each->registered_count(), 0u);
}

// The limit is the most that is kept, and not the first that is too much.
TEST(ResponseCache, ValuesOfExactlyTheLimit_AreKept) {
  std::vector<std::string> out;
  ResponseCache cache({.max_bytes = 100});
  const auto serve = [&](int64_t id, int64_t bytes) {
    EXPECT_TRUE(cache.Attach(id, kStep, nullptr, Into(out)));
    cache.Complete(id, absl::OkStatus(), ServedBytes(bytes));
  };
  serve(1, 100);
  EXPECT_EQ(cache.bytes(), 100u);
  EXPECT_THAT(out, ElementsAre("bytes+"));
  serve(2, 60);
  serve(3, 40);
  EXPECT_EQ(cache.bytes(), 100u);
  EXPECT_EQ(cache.entry_count(), 2u);
}

// Its value has been delivered: a repeated request would wait for another one's.
TEST(ResponseCache, ValueThatWasNotKept_IsRefusedWhenRequestedAgain) {
  std::vector<std::string> out;
  ResponseCache cache({.max_bytes = 100});
  cache.Attach(1, kStep, nullptr, Into(out));
  cache.Complete(1, absl::OkStatus(), ServedBytes(101));
  cache.Attach(2, kStep, nullptr, Into(out));
  cache.CleanupStep(kStep);
  cache.Complete(2, absl::OkStatus(), ServedBytes(1));
  EXPECT_THAT(out, ElementsAre("bytes", "bytes"));
  for (const int64_t id : {1, 2}) {
    EXPECT_FALSE(cache.Attach(id, kStep, nullptr, Into(out)));
    EXPECT_THAT(out.back(), HasSubstr("ABORTED: The same RecvTensor")) << id;
  }
  EXPECT_EQ(cache.entry_count(), 0u);
}

TEST(ResponseCache, EntriesAreFull_TheOldestKeptValueIsEvictedAndRefusedLater) {
  std::vector<std::string> out;
  ResponseCache cache({.max_entries = 2});
  for (const int64_t id : {1, 2}) {
    cache.Attach(id, kStep, nullptr, Into(out));
    cache.Complete(id, absl::OkStatus(), Served("v"));
  }
  EXPECT_TRUE(cache.Attach(3, kStep, nullptr, Into(out)));
  EXPECT_EQ(cache.entry_count(), 2u);
  EXPECT_FALSE(cache.Attach(2, kStep, nullptr, Into(out)));
  EXPECT_FALSE(cache.Attach(1, kStep, nullptr, Into(out)));
  ASSERT_EQ(out.size(), 4u);
  EXPECT_EQ(out[2], "v+");
  EXPECT_THAT(out[3], HasSubstr("ABORTED: The same RecvTensor"));
}

TEST(ResponseCache, RefusedIds_AreRememberedWithinBounds) {
  std::vector<std::string> out;
  ResponseCache cache({.max_forgotten = 2});
  for (const int64_t id : {1, 2, 3}) {
    cache.Attach(id, kStep, nullptr, Into(out));
    cache.Complete(id, absl::OkStatus(), Served("v"));
    cache.MarkFinished(id);
  }
  EXPECT_FALSE(cache.Attach(2, kStep, nullptr, Into(out)));
  EXPECT_FALSE(cache.Attach(3, kStep, nullptr, Into(out)));
  EXPECT_TRUE(cache.Attach(1, kStep, nullptr, Into(out)));
}

// An entry whose value no caller provides would make every later request wait forever.
TEST(ResponseCache, FirstRequestIsCancelledAlready_LeavesNoEntry) {
  std::vector<std::string> out;
  ResponseCache cache;
  CancellationToken gone;
  gone.Cancel();
  EXPECT_FALSE(cache.Attach(7, kStep, &gone, Into(out)));
  EXPECT_THAT(out, ElementsAre("CANCELLED: [_Derived_]RecvTensor is cancelled."));
  EXPECT_EQ(NonEmptyTables(cache.InnerTableSizes()), "");
  EXPECT_TRUE(cache.Attach(7, kStep, nullptr, Into(out)));
}

}  // namespace
}  // namespace ferry

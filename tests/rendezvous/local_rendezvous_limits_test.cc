// SPDX-License-Identifier: Apache-2.0
// Limits, failures of a part of a step, and the list of pending operations.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "rendezvous/local_rendezvous.h"
#include "rendezvous/rendezvous_shard.h"
#include "rendezvous_fixture.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

TEST(LocalLimits, QueuedBytesAreBoundedAndTheOptionIsNamed) {
  FakeClock clock;
  LocalRendezvous rendezvous(clock, {.max_queued_bytes = 100});
  ASSERT_TRUE(rendezvous.Send(Key("a"), Bytes(60)).ok());
  const absl::Status status = rendezvous.Send(Key("b"), Bytes(60));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("raise --max-queued-bytes"));
  EXPECT_EQ(rendezvous.queued_bytes(), 60u);
  EXPECT_EQ(rendezvous.waiting_count(), 1u);
  // To a receiver that waits it need not be queued.
  Results results;
  rendezvous.RecvAsync(Key("c"), {}, [](absl::Status, Received) {});
  EXPECT_TRUE(rendezvous.Send(Key("c"), Bytes(1000)).ok());
  EXPECT_TRUE(rendezvous.Recv(Key("a"), absl::Seconds(1)).ok());
  EXPECT_TRUE(rendezvous.Send(Key("b"), Bytes(60)).ok());
}

// A name may have 31744 bytes, more than logs and the metadata of a gRPC error have room for.
TEST(LocalLimits, TimeoutOfAVeryLongKey_NamesBothItsEnds) {
  FakeClock clock;
  LocalRendezvous rendezvous(clock, {});
  Results results;
  rendezvous.RecvAsync(Key(std::string(RendezvousKey::kMaxEdgeBytes - 3, 'x') + "end"),
                       {.deadline = clock.Now() + absl::Seconds(1)}, results.Writer());
  clock.Advance(absl::Seconds(2));
  rendezvous.Expire();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_LT(results.all()[0].size(), 600u);
  EXPECT_THAT(results.all()[0], HasSubstr("/job:"));
  EXPECT_THAT(results.all()[0], HasSubstr("xxx..."));
  EXPECT_THAT(results.all()[0], HasSubstr("xend;0:0 ("));
}

TEST(LocalLimits, PendingOperationsAreBoundedOnBothSides) {
  FakeClock clock;
  LocalRendezvous rendezvous(clock, {.max_pending_ops = 2});
  Results results;
  rendezvous.RecvAsync(Key("a"), {}, results.Writer());
  ASSERT_TRUE(rendezvous.Send(Key("b"), Value("b")).ok());
  EXPECT_EQ(rendezvous.Send(Key("c"), Value("c")).code(), absl::StatusCode::kResourceExhausted);
  CancellationToken cancellation;
  rendezvous.RecvAsync(Key("d"), {.cancellation = &cancellation}, results.Writer());
  ASSERT_EQ(results.size(), 1u);
  EXPECT_THAT(results.all()[0], HasSubstr("raise --max-pending-ops"));
  EXPECT_EQ(cancellation.registered_count(), 0u) << "the refused receive stays registered";
  cancellation.Cancel();
  EXPECT_EQ(results.size(), 1u);
  // The receiver gets its arguments back, as at any end of a receive.
  const absl::Time deadline = clock.Now() + absl::Seconds(7);
  for (CancellationToken* const token : {static_cast<CancellationToken*>(nullptr), &cancellation}) {
    absl::Time returned;
    rendezvous.RecvAsync(Key("d"), {.cancellation = token, .deadline = deadline},
                         [&returned](const absl::Status& status, const Received& received) {
                           EXPECT_FALSE(status.ok());
                           returned = received.recv_args.deadline;
                         });
    EXPECT_EQ(returned, deadline) << (token == nullptr ? "full" : "cancelled");
  }
  ASSERT_TRUE(rendezvous.Send(Key("a"), Value("v")).ok());
  EXPECT_TRUE(rendezvous.Send(Key("c"), Value("c")).ok());
}

// One shard that holds all that the table may: the others must not add their share to it.
TEST(LocalLimits, CrowdedShard_IsCountedByTheOthers) {
  FakeClock clock;
  LocalRendezvous rendezvous(clock, {.max_queued_bytes = 6400, .max_pending_ops = 64});
  for (int i = 0; i < 64; ++i) {
    ASSERT_TRUE(rendezvous.Send(Key("crowded"), Bytes(i < 32 ? 0 : 200)).ok());
  }
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(rendezvous.Send(Key(absl::StrCat("other", i)), Bytes(0)).ok());
  }
  EXPECT_EQ(rendezvous.waiting_count(), 64u);
  // Entries to spare, but no bytes.
  ASSERT_TRUE(rendezvous.Recv(Key("crowded"), absl::Seconds(1)).ok());
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(rendezvous.Send(Key(absl::StrCat("other", i)), Bytes(1)).ok());
  }
  EXPECT_EQ(rendezvous.queued_bytes(), 6400u);
}

// A task that dies fails the operations that depend on it, and only those.
TEST(LocalFail, EndsMatchingOperationsOnly) {
  FakeClock clock;
  LocalRendezvous rendezvous(clock);
  Results results;
  const TaskName dead = *ParseTaskName("/job:worker/task:3");
  for (const int task : {0, 3}) {
    rendezvous.RecvAsync(Key("r", task), {}, results.Writer());
    rendezvous.RecvAsync(Key("r", task), {}, results.Writer());
    ASSERT_TRUE(rendezvous.Send(Key("s", task), Bytes(10)).ok());
  }
  EXPECT_EQ(rendezvous.Fail([&dead](const RendezvousKey& key) {
    return key.dst().task == dead ? absl::UnavailableError("task 3 has died") : absl::OkStatus();
  }),
            3u);
  EXPECT_THAT(results.all(),
              ElementsAre("UNAVAILABLE: task 3 has died", "UNAVAILABLE: task 3 has died"));
  EXPECT_EQ(rendezvous.queued_bytes(), 10u);
  EXPECT_EQ(rendezvous.waiting_count(), 3u);
  for (const char* value : {"a", "b"}) {
    ASSERT_TRUE(rendezvous.Send(Key("r", 0), Value(value)).ok());
  }
  EXPECT_THAT(results.all(), ElementsAre("UNAVAILABLE: task 3 has died",
                                         "UNAVAILABLE: task 3 has died", "a", "b"));
}

TEST(LocalPending, ListsOperationsWithTheirAge) {
  FakeClock clock;
  LocalRendezvous rendezvous(clock);
  ASSERT_TRUE(rendezvous.Send(Key("old"), Bytes(7)).ok());
  clock.Advance(absl::Seconds(3));
  rendezvous.RecvAsync(Key("mid"), {}, [](absl::Status, Received) {});
  clock.Advance(absl::Seconds(2));
  rendezvous.RecvAsync(Key("new"), {}, [](absl::Status, Received) {});
  std::vector<std::string> lines;
  rendezvous.ForEachPending(absl::Seconds(1), [&lines](const PendingOp& op) {
    lines.push_back(absl::StrCat(op.key.edge(), op.is_send ? " send " : " recv ", op.bytes, " ",
                                 absl::FormatDuration(op.age)));
  });
  EXPECT_THAT(lines, UnorderedElementsAre("old send 7 5s", "mid recv 0 2s"));
}

// Thousands of keys at once: the table grows, and every one is found again.
TEST(LocalLimits, GrowsWithItsKeys) {
  FakeClock clock;
  LocalRendezvous rendezvous(clock);
  constexpr int kKeys = 20'000;
  for (int i = 0; i < kKeys; ++i) {
    ASSERT_TRUE(rendezvous.Send(Key(absl::StrCat("edge", i)), Value(absl::StrCat(i))).ok());
  }
  EXPECT_EQ(rendezvous.waiting_count(), static_cast<size_t>(kKeys));
  for (int i = kKeys - 1; i >= 0; --i) {
    const auto received = rendezvous.Recv(Key(absl::StrCat("edge", i)), absl::Seconds(1));
    ASSERT_TRUE(received.ok());
    ASSERT_EQ(received->tensor.strings()[0], absl::StrCat(i));
  }
  EXPECT_EQ(rendezvous.waiting_count(), 0u);
}

// A cancellation is one for a whole step, with thousands of receives: each that is over, however it
// ended, must have been taken off.
TEST(LocalLimits, ReceiveIsOver_ItsCancellationIsWatchedNoMore) {
  FakeClock clock;
  LocalRendezvous rendezvous(clock);
  CancellationToken cancellation;
  Results results;
  const absl::Time deadline = clock.Now() + absl::Seconds(1);
  for (const char* key : {"value", "late", "failed", "aborted"}) {
    rendezvous.RecvAsync(Key(key),
                         {.cancellation = &cancellation,
                          .deadline = key[0] == 'l' ? deadline : absl::InfiniteFuture()},
                         results.Writer());
  }
  EXPECT_EQ(cancellation.registered_count(), 4u);
  ASSERT_TRUE(rendezvous.Send(Key("value"), Value("v")).ok());
  EXPECT_EQ(cancellation.registered_count(), 3u);
  clock.Advance(absl::Seconds(1));
  rendezvous.Expire();
  EXPECT_EQ(cancellation.registered_count(), 2u);
  rendezvous.Fail([](const RendezvousKey& key) {
    return key.edge() == "failed" ? absl::UnavailableError("gone") : absl::OkStatus();
  });
  EXPECT_EQ(cancellation.registered_count(), 1u);
  rendezvous.StartAbort(absl::AbortedError("enough"));
  EXPECT_EQ(cancellation.registered_count(), 0u);
  EXPECT_EQ(results.size(), 4u);
}

// An aborted step may be held by a slow kernel for long.
TEST(LocalLimits, Aborted_NothingIsLeftInTheTable) {
  FakeClock clock;
  LocalRendezvous rendezvous(clock, {.max_queued_bytes = 3200, .max_pending_ops = 64});
  for (int i = 0; i < 30; ++i) {
    rendezvous.RecvAsync(Key(absl::StrCat("r", i)), {.deadline = clock.Now() + absl::Hours(1)},
                         [](absl::Status, Received) {});
    ASSERT_TRUE(rendezvous.Send(Key("s"), Bytes(100)).ok());
  }
  EXPECT_NE(NonEmptyTables(rendezvous.InnerTableSizes()), "");
  rendezvous.StartAbort(absl::AbortedError("enough"));
  EXPECT_EQ(NonEmptyTables(rendezvous.InnerTableSizes()), "");
}

// Each shard holds no more than its share, so none asks the others; and yet all are full.
TEST(LocalLimits, EveryShardHoldsItsShare_OneMoreIsRefused) {
  constexpr size_t kParts = size_t{1} << RendezvousShard::kShardBits;
  FakeClock clock;
  LocalRendezvous by_count(clock, {.max_pending_ops = 2 * kParts});
  LocalRendezvous by_bytes(clock, {.max_queued_bytes = 20 * kParts});
  std::map<uint64_t, int> of_shard;
  std::vector<RendezvousKey> keys;
  for (int i = 0; keys.size() < 2 * kParts; ++i) {
    const RendezvousKey key = Key(absl::StrCat("edge", i));
    if (of_shard[key.hash() % kParts] == 2) continue;
    ++of_shard[key.hash() % kParts];
    keys.push_back(key);
  }
  ASSERT_EQ(of_shard.size(), kParts);
  for (const RendezvousKey& key : keys) {
    ASSERT_TRUE(by_count.Send(key, Tensor()).ok());
    ASSERT_TRUE(by_bytes.Send(key, Bytes(10)).ok());
  }
  EXPECT_EQ(by_count.InnerTableSizes()["table.shards_over_share"], 0u);
  EXPECT_EQ(by_bytes.InnerTableSizes()["table.shards_over_share"], 0u);
  for (int i = 0; i < 100; ++i) {
    const RendezvousKey other = Key(absl::StrCat("other", i));
    EXPECT_EQ(by_count.Send(other, Tensor()).code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(by_bytes.Send(other, Bytes(1)).code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(by_count.waiting_count(), 2 * kParts);
  EXPECT_EQ(by_bytes.queued_bytes(), 20 * kParts);
  // One more of zero bytes is accepted.
  EXPECT_TRUE(by_bytes.Send(Key("empty"), Bytes(0)).ok());
}

// The minimal age is inclusive.
TEST(LocalPending, MinimalAge_IsIncluded) {
  FakeClock clock;
  LocalRendezvous rendezvous(clock);
  ASSERT_TRUE(rendezvous.Send(Key("e"), Value("v")).ok());
  clock.Advance(absl::Seconds(5));
  int told = 0;
  rendezvous.ForEachPending(absl::Seconds(5), [&told](const PendingOp&) { ++told; });
  EXPECT_EQ(told, 1);
  rendezvous.ForEachPending(absl::Seconds(5) + absl::Nanoseconds(1),
                            [&told](const PendingOp&) { ++told; });
  EXPECT_EQ(told, 1);
}

// Callbacks within callbacks end in the order in which their values came, at any depth; those
// deferred for the depth of the stack are called before the outermost send returns.
TEST(LocalDepth, CallbacksBeyondTheDepth_RunInOrderBeforeTheSendReturns) {
  FakeClock clock;
  LocalRendezvous rendezvous(clock);
  constexpr int kCount = 40;
  int depth = 0;
  int deepest = 0;
  std::vector<int> order;
  for (int i = 0; i < kCount; ++i) {
    rendezvous.RecvAsync(Key(absl::StrCat(i)), {}, [&, i](absl::Status status, Received) {
      ASSERT_TRUE(status.ok());
      order.push_back(i);
      deepest = std::max(deepest, ++depth);
      if (i + 1 < kCount) {
        ASSERT_TRUE(rendezvous.Send(Key(absl::StrCat(i + 1)), Value("v")).ok());
      }
      --depth;
    });
  }
  ASSERT_TRUE(rendezvous.Send(Key("0"), Value("v")).ok());
  EXPECT_EQ(order.size(), static_cast<size_t>(kCount));
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(deepest, 16);
  // Nothing of that is left on this thread.
  int called = 0;
  rendezvous.RecvAsync(Key("again"), {}, [&called](absl::Status, Received) { ++called; });
  ASSERT_TRUE(rendezvous.Send(Key("again"), Value("v")).ok());
  EXPECT_EQ(called, 1);
}

}  // namespace
}  // namespace ferry

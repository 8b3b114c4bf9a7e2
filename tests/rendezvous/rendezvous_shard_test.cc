// SPDX-License-Identifier: Apache-2.0
// RendezvousShard: what it keeps of completed receives.
#include "rendezvous/rendezvous_shard.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "rendezvous_fixture.h"

namespace ferry {
namespace {

std::atomic<int> over_share{0};
const RendezvousShares kShares = {.items = 1000000, .bytes = 1000000, .over_share = &over_share};

// Deadlines of steps are hours away: an entry for each receive until then is a leak.
TEST(RendezvousShard, ReceivesMetBeforeTheirDeadline_DeadlinesAreDropped) {
  RendezvousShard shard;
  shard.shares = &kShares;
  for (uint64_t id = 1; id <= 10000; ++id) {
    RecvArgs args;
    args.deadline = absl::UnixEpoch() + absl::Seconds(static_cast<int64_t>(id));
    auto item = std::make_unique<RendezvousItem>(
        Key("e"), /*since=*/0, id, std::move(args), [](absl::Status, Received) {},
        CancellationToken::kNoCallback);
    RendezvousItem** const link = shard.Find(item->key);
    shard.AddDeadline(*item);
    shard.Append(link, std::move(item));
    shard.PopFirst(shard.Find(Key("e")));
  }
  EXPECT_LT(shard.deadlines.size(), 200u);
}

// The heap is pruned while other receives wait, whose deadlines must still fire; for one key not
// only the first.
TEST(RendezvousShard, DeadlinesAreDropped_ThoseOfWaitingReceivesStay) {
  RendezvousShard shard;
  shard.shares = &kShares;
  const auto wait = [&shard](absl::string_view key, uint64_t id) {
    RecvArgs args;
    args.deadline = absl::UnixEpoch() + absl::Hours(1);
    auto item = std::make_unique<RendezvousItem>(
        Key(key), /*since=*/0, id, std::move(args), [](absl::Status, Received) {},
        CancellationToken::kNoCallback);
    RendezvousItem** const link = shard.Find(item->key);
    shard.AddDeadline(*item);
    shard.Append(link, std::move(item));
  };
  for (const uint64_t id : {1, 2, 3}) wait("waits", id);
  for (uint64_t id = 4; id < 1000; ++id) {
    wait("met", id);
    shard.PopFirst(shard.Find(Key("met")));
  }
  ASSERT_LT(shard.deadlines.size(), 200u);
  std::vector<RendezvousShard::Deadline> due;
  shard.TakeDue(absl::UnixEpoch() + absl::Hours(1) - absl::Nanoseconds(1), due);
  EXPECT_TRUE(due.empty());
  shard.TakeDue(absl::UnixEpoch() + absl::Hours(1), due);
  EXPECT_EQ(std::count_if(due.begin(), due.end(), [](const auto& each) { return each.id <= 3; }),
            3);
}

// Receives end in any order, and the next is queued behind the last of the rest.
TEST(RendezvousShard, LastReceiveOfAKeyIsRemoved_TheNextIsQueuedBehindTheOthers) {
  RendezvousShard shard;
  shard.shares = &kShares;
  const auto append = [&shard](uint64_t id) {
    shard.Append(shard.Find(Key("e")),
                 std::make_unique<RendezvousItem>(
                     Key("e"), /*since=*/0, id, RecvArgs(), [](absl::Status, Received) {},
                     CancellationToken::kNoCallback));
  };
  for (const uint64_t id : {1, 2, 3}) append(id);
  EXPECT_NE(shard.TakeReceive(Key("e"), 3), nullptr);
  EXPECT_EQ(shard.TakeReceive(Key("e"), 3), nullptr) << "it is out";
  append(4);
  EXPECT_NE(shard.TakeReceive(Key("e"), 2), nullptr);
  append(5);
  std::vector<uint64_t> order;
  while (*shard.Find(Key("e")) != nullptr)
    order.push_back(shard.PopFirst(shard.Find(Key("e")))->id);
  EXPECT_EQ(order, (std::vector<uint64_t>{1, 4, 5}));
  EXPECT_EQ(shard.item_count.load(), 0u);
}

}  // namespace
}  // namespace ferry

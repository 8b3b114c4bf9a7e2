// SPDX-License-Identifier: Apache-2.0
// RendezvousShard: what remains in it of completed receives.
#include "rendezvous/rendezvous_shard.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "rendezvous_fixture.h"

namespace ferry {
namespace {

// Deadlines of steps are hours away: an entry for each receive until then is a leak.
TEST(RendezvousShard, ReceivesMetBeforeTheirDeadline_DeadlinesAreDropped) {
  std::atomic<int> over{0};
  RendezvousShard shard;
  shard.item_share = shard.byte_share = 1000000;
  shard.over_share = &over;
  for (uint64_t id = 1; id <= 10000; ++id) {
    RecvArgs args;
    args.deadline = absl::UnixEpoch() + absl::Seconds(static_cast<int64_t>(id));
    auto item = std::make_unique<RendezvousItem>(
        Key("e"), absl::UnixEpoch(), id, std::move(args), [](absl::Status, Received) {},
        CancellationToken::kNoCallback);
    RendezvousItem** const link = shard.Find(item->key);
    shard.AddDeadline(*item);
    shard.Append(link, std::move(item));
    shard.PopFirst(shard.Find(Key("e")));
  }
  EXPECT_LT(shard.deadlines.size(), 200u);
}

}  // namespace
}  // namespace ferry

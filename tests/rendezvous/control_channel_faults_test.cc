// SPDX-License-Identifier: Apache-2.0
// A producer and a consumer over faulty control channels and transports. Replay one seed:
// FERRY_SIM_SEED=<seed> control_channel_faults_test.
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"

#include "tests/rendezvous/peer_world.h"

namespace ferry {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSeeds = 100;
#else
constexpr int kSeeds = 1500;
#endif

// The same seeds every time and a fresh one, or as many as FERRY_SIM_SEEDS says.
//   needs_losses: some checksum does not match, if there is more than one seed.
void RunSeeds(const Faults& faults, bool needs_losses = false) {
  std::vector<uint64_t> seeds;
  uint64_t replayed = 0;
  if (const char* text = std::getenv("FERRY_SIM_SEED");
      text != nullptr && absl::SimpleAtoi(text, &replayed)) {
    seeds = {replayed};
  } else {
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) seeds.push_back(seed);
    uint64_t fresh = 1;
    if (const char* count = std::getenv("FERRY_SIM_SEEDS");
        count == nullptr || !absl::SimpleAtoi(count, &fresh)) {
      fresh = 1;
    }
    const auto first = static_cast<uint64_t>(absl::GetCurrentTimeNanos());
    for (uint64_t i = 0; i < fresh; ++i) seeds.push_back(first + i);
  }
  int64_t receives = 0;
  int64_t values = 0;
  int64_t damaged = 0;
  int64_t data_losses = 0;
  int64_t pushed = 0;
  int64_t pulled = 0;
  int64_t refused = 0;
  int64_t converted = 0;
  for (const uint64_t seed : seeds) {
    World world(seed, faults);
    world.Run();
    receives += world.receives();
    values += world.values();
    damaged += world.damaged();
    data_losses += world.data_losses();
    pushed += world.pushed();
    pulled += world.pulled();
    refused += world.refused();
    converted += world.converted();
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "replay: FERRY_SIM_SEED=" << seed << " --gtest_filter="
                    << ::testing::UnitTest::GetInstance()->current_test_info()->name();
      break;
    }
  }
  std::cout << seeds.size() << " seeds, the last " << seeds.back() << ": " << receives
            << " receives, " << values << " values, " << damaged << " damaged frames, "
            << data_losses << " checksums that did not match\n";
  if (faults.eager && seeds.size() > 1) {
    std::cout << pushed << " values were sent before their requests, " << pulled << " requested; "
              << converted << " requests by PULL, " << refused << " steps refused\n";
    // In each profile at least these; a schedule without them proves nothing.
    EXPECT_GT(pushed, static_cast<int64_t>(seeds.size()));
    EXPECT_GT(pulled, static_cast<int64_t>(seeds.size()));
    EXPECT_GT(converted, static_cast<int64_t>(seeds.size()));
    EXPECT_GT(refused, static_cast<int64_t>(seeds.size()) / 10);
  }
  if (needs_losses && seeds.size() > 1) {
    EXPECT_GT(data_losses, 0);
  }
}

TEST(ControlChannelFaults, DelaysAndCancellationsOnly) { RunSeeds({.transport = {.later = 300}}); }

TEST(ControlChannelFaults, WiresBreakAtAnyFrame) {
  RunSeeds({.wire = {.close = 20}, .transport = {.later = 300, .never = 50}});
}

TEST(ControlChannelFaults, TransportsFail) {
  RunSeeds({.transport = {.later = 300, .never = 20, .fail = 50}, .checksum = true});
}

// The producer keeps such a tensor until it is fetched, and exposes it again under the same id: the
// first attempt's export must be released before.
TEST(ControlChannelFaults, FetchesThatRetry_LeaveNothingOfTheFirstAttempt) {
  RunSeeds({.transport = {.later = 300, .again = 300}});
}

TEST(ControlChannelFaults, PeersRefuseFrames) {
  RunSeeds({.wire = {.refuse = 15}, .transport = {.later = 200}});
}

TEST(ControlChannelFaults, ChecksumsFindChangedElements) {
  RunSeeds({.wire = {.corrupt_body = 100},
            .transport = {.later = 200, .corrupt = 100},
            .checksum = true},
           /*needs_losses=*/true);
}

// No bit of an id, a key, a type, a shape or a transport's message may be trusted.
TEST(ControlChannelFaults, ChecksumsFindChangedMessages) {
  RunSeeds({.wire = {.corrupt = 30}, .transport = {.later = 200}, .checksum = true},
           /*needs_losses=*/true);
}

TEST(ControlChannelFaults, FramesAreLost) {
  RunSeeds({.wire = {.drop = 20}, .transport = {.later = 200}, .checksum = true});
}

TEST(ControlChannelFaults, FramesAreDuplicated) {
  RunSeeds({.wire = {.duplicate = 30}, .transport = {.later = 500}, .checksum = true});
}

TEST(ControlChannelFaults, FramesAreCutMixedAndChanged) {
  for (const bool checksum : {true, false}) {
    RunSeeds({.wire = {.truncate = 10, .corrupt = 30, .duplicate = 10, .drop = 5, .reorder = 20},
              .transport = {.later = 300, .never = 10, .fail = 10, .corrupt = 10},
              .checksum = checksum});
  }
}

// Values that are sent before they are requested, without checksums: what they detect goes another
// way.
TEST(ControlChannelFaults, EagerValues_DelaysAndCancellationsOnly) {
  RunSeeds({.transport = {.later = 300}, .eager = true});
}

TEST(ControlChannelFaults, EagerValues_WiresBreakAtAnyFrame) {
  RunSeeds({.wire = {.close = 20}, .transport = {.later = 300, .never = 50}, .eager = true});
}

TEST(ControlChannelFaults, EagerValues_PeersRefuseFrames) {
  RunSeeds({.wire = {.refuse = 15}, .transport = {.later = 200}, .eager = true});
}

TEST(ControlChannelFaults, EagerValues_FramesAreLost) {
  RunSeeds({.wire = {.drop = 20}, .transport = {.later = 200}, .eager = true});
}

TEST(ControlChannelFaults, EagerValues_FramesAreDuplicated) {
  RunSeeds({.wire = {.duplicate = 30}, .transport = {.later = 500}, .eager = true});
}

TEST(ControlChannelFaults, EagerValues_FramesAreReordered) {
  RunSeeds({.wire = {.reorder = 30}, .transport = {.later = 200}, .eager = true});
}

TEST(ControlChannelFaults, EagerValues_FramesAreCutMixedAndChanged) {
  RunSeeds({.wire = {.truncate = 10, .corrupt = 30, .duplicate = 10, .drop = 5, .reorder = 20},
            .transport = {.later = 300, .never = 10, .fail = 10, .corrupt = 10},
            .eager = true});
}

}  // namespace
}  // namespace ferry

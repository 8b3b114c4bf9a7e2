// SPDX-License-Identifier: Apache-2.0
// Larger worlds than a search can visit, by dice: 8 devices, 200 transfers, peers that die.
#include <cstdio>
#include <random>

#include <gmock/gmock.h>

#include "absl/hash/hash.h"
#include "absl/strings/str_join.h"

#include "tests/transport/nccl/grant_world.h"

namespace ferry::grant_test {
namespace {

struct Totals {
  int64_t events = 0;
  int64_t launches = 0;
  int64_t ok = 0;
  int64_t bad = 0;
};

void Play(uint64_t seed, WorldOptions options, Totals& totals) {
  std::mt19937_64 dice(seed);
  FakeClock clock;
  options.device_count = 8;
  options.endpoint.max_batch_operations = 1 + dice() % 5;
  options.endpoint.max_batches = 1 + dice() % 4;
  options.endpoint.max_launched = 1 + dice() % 3;
  for (uint64_t id = 1; id <= 200; ++id) {
    const int source = static_cast<int>(dice() % 8);
    const int destination = static_cast<int>((source + 1 + dice() % 7) % 8);
    options.transfers.push_back({{DeviceId(source), DeviceId(destination), id}, dice() % 1000});
  }
  World world(options, clock);
  std::vector<std::string> last;
  const double mischief =
      options.deaths + options.errors + options.cancels + options.pauses + options.failed_opens == 0
          ? 0
          : 0.02;
  for (;;) {
    const std::vector<Event> events = world.Enabled();
    std::vector<const Event*> usual;
    std::vector<const Event*> unusual;
    for (const Event& event : events) {
      (IsMischief(event) ? unusual : usual).push_back(&event);
    }
    if (usual.empty()) break;
    const bool is_mischief =
        !unusual.empty() && std::uniform_real_distribution<>(0, 1)(dice) < mischief;
    const auto& choices = is_mischief ? unusual : usual;
    const Event event = *choices[dice() % choices.size()];
    last.push_back(world.Describe(event));
    if (last.size() > 40) last.erase(last.begin());
    world.Apply(event);
    ++totals.events;
    ASSERT_EQ(world.violation(), "") << "seed " << seed << "\n" << absl::StrJoin(last, "\n");
  }
  ASSERT_EQ(world.CheckEnd(), "") << "seed " << seed << "\n" << absl::StrJoin(last, "\n");
  totals.launches += world.launches();
  totals.ok += world.finished_ok();
  totals.bad += world.finished_badly();
}

void PlayMany(const WorldOptions& options, Totals& totals) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    ASSERT_NO_FATAL_FAILURE(Play(seed, options, totals));
  }
  std::printf("%lld events, %lld launches, %lld ended well, %lld did not\n",
              static_cast<long long>(totals.events), static_cast<long long>(totals.launches),
              static_cast<long long>(totals.ok), static_cast<long long>(totals.bad));
}

TEST(GrantSimulation, AllArriveWithoutFailures) {
  Totals totals;
  PlayMany({}, totals);
  EXPECT_EQ(totals.ok, 20 * 200 * 2);
  EXPECT_EQ(totals.bad, 0);
}

TEST(GrantSimulation, AllArriveWhileDevicesBecomeQuiet) {
  WorldOptions options;
  options.pauses = 40;
  Totals totals;
  PlayMany(options, totals);
  EXPECT_EQ(totals.ok, 20 * 200 * 2);
  EXPECT_EQ(totals.bad, 0);
}

TEST(GrantSimulation, AllArriveWhileAllTakePartInACollective) {
  WorldOptions options;
  options.collective = 0xff;
  options.pauses = 10;
  Totals totals;
  PlayMany(options, totals);
  EXPECT_EQ(totals.ok, 20 * 200 * 2);
  EXPECT_EQ(totals.bad, 0);
}

TEST(GrantSimulation, PeersDieAndNcclFails) {
  for (const bool has_pair_communicators : {false, true}) {
    WorldOptions options;
    options.deaths = 2;
    options.errors = 3;
    options.cancels = 10;
    options.failed_opens = 5;
    options.pauses = 10;
    options.collective = 0x3f;
    options.runs_again = true;
    options.has_pair_communicators = has_pair_communicators;
    Totals totals;
    PlayMany(options, totals);
    EXPECT_GT(totals.ok, 2000);
    EXPECT_GT(totals.bad, 200);
  }
}

}  // namespace
}  // namespace ferry::grant_test

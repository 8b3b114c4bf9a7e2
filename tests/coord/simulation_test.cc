// SPDX-License-Identifier: Apache-2.0
// Random schedules of a whole job. Replay one: FERRY_SIM_SEED=<seed> coordinator_simulation_test
// FERRY_SIM_EVENTS sets how many events run in total.
#include "tests/coord/simulation.h"

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include <gtest/gtest.h>

namespace ferry::coord {
namespace {

constexpr int64_t kEventsPerSeed = 5000;
constexpr int64_t kDefaultEvents = 1'000'000;
constexpr uint64_t kFirstFixedSeed = 1;
// A wait for all that outlived its task's next registration restored the previous incarnation.
constexpr uint64_t kSeedThatFoundABug = 1795206819945780618u;

std::optional<uint64_t> NumberFromEnvironment(const char* name) {
  const char* const text = std::getenv(name);
  uint64_t number = 0;
  if (text == nullptr || !absl::SimpleAtoi(text, &number)) return std::nullopt;
  return number;
}

void AddTo(SimulationReport& total, const SimulationReport& report) {
  total.events += report.events;
  total.calls += report.calls;
  total.barriers_passed += report.barriers_passed;
  total.jobs += report.jobs;
  total.deaths += report.deaths;
}

// Half of the seeds are fixed; the other half are new, so that runs on many days see many
// schedules. This is the only use of the real clock here.
TEST(Simulation, KeepsItsInvariantsUnderRandomSchedules) {
  const std::optional<uint64_t> replayed = NumberFromEnvironment("FERRY_SIM_SEED");
  const int64_t events =
      static_cast<int64_t>(NumberFromEnvironment("FERRY_SIM_EVENTS")
                               .value_or(replayed ? kEventsPerSeed : kDefaultEvents));
  const uint64_t fresh = static_cast<uint64_t>(absl::GetCurrentTimeNanos());
  std::cout << "fresh seeds from " << fresh << "\n";
  SimulationReport total;
  const int64_t events_per_seed = replayed ? events : kEventsPerSeed;
  for (uint64_t i = 0; total.events < events; ++i) {
    const uint64_t seed = replayed.value_or(i % 2 == 0 ? kFirstFixedSeed + i / 2 : fresh + i / 2);
    const SimulationReport report = RunSimulation(seed, events_per_seed);
    AddTo(total, report);
    ASSERT_EQ(report.violation, "")
        << "replay: FERRY_SIM_SEED=" << seed << " FERRY_SIM_EVENTS=" << events_per_seed
        << " build/release/tests/coord/coordinator_simulation_test";
  }
  std::cout << total.events << " events, " << total.calls << " calls, " << total.barriers_passed
            << " barriers passed, " << total.jobs << " jobs, " << total.deaths << " deaths\n";
  if (events < kDefaultEvents) return;
  // A schedule without events proves nothing.
  EXPECT_GT(total.barriers_passed, events / 1000);
  EXPECT_GT(total.deaths, events / 10'000);
  EXPECT_GT(total.jobs, events / 5000);
}

// Rare schedules that once failed are run every time.
TEST(Simulation, KeepsItsInvariantsUnderSchedulesThatOnceFailed) {
  EXPECT_EQ(RunSimulation(kSeedThatFoundABug, kEventsPerSeed).violation, "");
}

// A seed that does not replay is of no use.
TEST(Simulation, IsAFunctionOfItsSeed) {
  const SimulationReport first = RunSimulation(42, 3000);
  const SimulationReport second = RunSimulation(42, 3000);
  EXPECT_EQ(first.violation, second.violation);
  EXPECT_EQ(first.calls, second.calls);
  EXPECT_EQ(first.barriers_passed, second.barriers_passed);
  EXPECT_EQ(first.events, second.events);
  EXPECT_EQ(first.jobs, second.jobs);
  EXPECT_EQ(first.deaths, second.deaths);
}

}  // namespace
}  // namespace ferry::coord

// SPDX-License-Identifier: Apache-2.0
// Random schedules of tables and of workers. Replay one: FERRY_SIM_SEED=<seed>
// rendezvous_simulation_test. FERRY_SIM_EVENTS sets how many events run in total.
#include "tests/rendezvous/simulation.h"

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>

#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"

namespace ferry::simulation {
namespace {

constexpr int64_t kEventsPerSeed = 5000;
#ifdef __SANITIZE_THREAD__
// Each of these takes a hundred times as long, and all run on one thread.
constexpr int64_t kDefaultEvents = 50'000;
#else
constexpr int64_t kDefaultEvents = 1'000'000;
#endif
constexpr uint64_t kFirstFixedSeed = 1;

std::optional<uint64_t> NumberFromEnvironment(const char* name) {
  const char* const text = std::getenv(name);
  uint64_t number = 0;
  if (text == nullptr || !absl::SimpleAtoi(text, &number)) return std::nullopt;
  return number;
}

void AddTo(Report& total, const Report& report) {
  total.events += report.events;
  total.receives += report.receives;
  total.values += report.values;
  total.errors += report.errors;
  total.refusals += report.refusals;
  total.fetches += report.fetches;
  total.deaths += report.deaths;
  total.pushed += report.pushed;
  total.pulled += report.pulled;
  total.converted += report.converted;
  total.refused_steps += report.refused_steps;
  total.breaks += report.breaks;
  total.flushes += report.flushes;
  total.quiet += report.quiet;
}

// The same seeds every time for as many events as the daily tests run, and then new ones: at least
// one. This is the only use of the real clock here.
Report RunSeeds(Report (*run)(uint64_t, int64_t)) {
  const std::optional<uint64_t> replayed = NumberFromEnvironment("FERRY_SIM_SEED");
  const int64_t events =
      static_cast<int64_t>(NumberFromEnvironment("FERRY_SIM_EVENTS")
                               .value_or(replayed ? kEventsPerSeed : kDefaultEvents));
  const int64_t events_per_seed = replayed ? events : kEventsPerSeed;
  const uint64_t fresh = static_cast<uint64_t>(absl::GetCurrentTimeNanos());
  std::cout << "fresh seeds from " << fresh << "\n";
  Report total;
  uint64_t fixed_count = 0;
  uint64_t fresh_count = 0;
  while (total.events < events || (fresh_count == 0 && !replayed.has_value())) {
    const bool is_fixed = total.events < std::min(events, kDefaultEvents);
    const uint64_t next = is_fixed ? kFirstFixedSeed + fixed_count++ : fresh + fresh_count++;
    const uint64_t seed = replayed.value_or(next);
    const Report report = run(seed, events_per_seed);
    AddTo(total, report);
    if (report.violation.empty()) continue;
    ADD_FAILURE() << report.violation << "\nreplay: FERRY_SIM_SEED=" << seed
                  << " FERRY_SIM_EVENTS=" << events_per_seed
                  << " build/release/tests/rendezvous/rendezvous_simulation_test --gtest_filter="
                  << ::testing::UnitTest::GetInstance()->current_test_info()->test_suite_name()
                  << "." << ::testing::UnitTest::GetInstance()->current_test_info()->name();
    break;
  }
  std::cout << total.events << " events, " << total.receives << " receives, " << total.values
            << " values, " << total.errors << " errors, " << total.refusals << " refusals, "
            << total.fetches << " fetches, " << total.deaths << " deaths, " << total.pushed
            << " pushed, " << total.pulled << " pulled, " << total.converted << " converted, "
            << total.refused_steps << " steps refused, " << total.breaks << " breaks, "
            << total.flushes << " flushes, " << total.quiet << " times quiet\n";
  return total;
}

TEST(Simulation, TableKeepsItsInvariantsUnderRandomSchedules) {
  const Report total = RunSeeds(RunTable);
  // A schedule without events proves nothing.
  if (total.events < kDefaultEvents) return;
  EXPECT_GT(total.values, total.events / 10);
  EXPECT_GT(total.errors, total.events / 100);
  EXPECT_GT(total.refusals, total.events / 1000);
}

TEST(Simulation, WorkersKeepTheirInvariantsUnderRandomSchedules) {
  const Report total = RunSeeds(RunWorkers);
  if (total.events < kDefaultEvents) return;
  EXPECT_GT(total.values, total.events / 20);
  EXPECT_GT(total.fetches, total.events / 50);
  EXPECT_GT(total.deaths, total.events / 1000);
}

TEST(Simulation, EagerWorkersKeepTheirContractUnderRandomSchedules) {
  const Report total = RunSeeds(RunEagerWorkers);
  if (total.events < kDefaultEvents) return;
  EXPECT_GT(total.pushed, total.events / 100);
  EXPECT_GT(total.pulled, total.events / 100);
  EXPECT_GT(total.converted, total.events / 500);
  EXPECT_GT(total.refused_steps, total.events / 1000);
  EXPECT_GT(total.breaks, total.events / 1000);
  EXPECT_GT(total.flushes, total.events / 1000);
  EXPECT_GT(total.quiet, total.events / 1000);
  EXPECT_GT(total.deaths, total.events / 5000);
}

// A seed that does not replay is of no use.
TEST(Simulation, IsAFunctionOfItsSeed) {
  for (const auto run : {RunTable, RunWorkers}) {
    const Report first = run(42, 3000);
    const Report second = run(42, 3000);
    EXPECT_EQ(first.violation, second.violation);
    EXPECT_EQ(first.receives, second.receives);
    EXPECT_EQ(first.values, second.values);
    EXPECT_EQ(first.errors, second.errors);
  }
}

}  // namespace
}  // namespace ferry::simulation

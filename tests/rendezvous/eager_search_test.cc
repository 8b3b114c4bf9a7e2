// SPDX-License-Identifier: Apache-2.0
// Every execution of small worlds of the eager protocol.
#include <algorithm>
#include <cstdio>
#include <random>

#include <gmock/gmock.h>

#include "tests/rendezvous/eager_world.h"

namespace ferry::eager_test {
namespace {

constexpr ValueOptions Small(int name = 0, int step = 0) {
  return {step, name, ValueOptions::Kind::kSmall};
}
constexpr ValueOptions Large(int name = 0, int step = 0) {
  return {step, name, ValueOptions::Kind::kLarge};
}
constexpr ValueOptions Dead(int name = 0, int step = 0) {
  return {step, name, ValueOptions::Kind::kDead};
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
// Each takes many times as long; the release build searches everything.
constexpr int64_t kMostStates = 20'000;
constexpr uint64_t kSeeds = 1000;
#else
constexpr int64_t kMostStates = 20'000'000;
constexpr uint64_t kSeeds = 20'000;
#endif

// With names that have a number from their first use on, which so few values need, and without.
void ExpectAllIsWell(const char* what, WorldOptions options) {
  for (const bool at_second_use : {false, true}) {
    options.rules.numbers_at_second_use = at_second_use;
    const SearchResult result = Search(options, kMostStates);
    std::printf("%s, names numbered at the %s use: %lld states\n", what,
                at_second_use ? "second" : "first", static_cast<long long>(result.states));
    EXPECT_EQ(result.violation, "");
    EXPECT_TRUE(result.is_complete || kMostStates < 20'000'000);
    for (const std::string& line : result.trace) std::printf("    %s\n", line.c_str());
  }
}

TEST(EagerSearch, OneKeyWithOneValueOfCredit) {
  WorldOptions options;
  options.values = {Small(), Small(), Dead()};
  options.receives = {{}, {}, {}};
  options.cancels = 1;
  ExpectAllIsWell("one key, credit of one value", options);
}

TEST(EagerSearch, OneKeyWithLargeAndSmallValues) {
  WorldOptions options;
  options.values = {Small(), Large(), Small(), Small()};
  options.receives = {{}, {}, {}, {}};
  options.limits.step_values = 2;
  ExpectAllIsWell("one key, large and small values", options);
  options.values = {Large(), Small(), Small()};
  options.cancels = 1;
  ExpectAllIsWell("one key, large first, a cancelled receive", options);
}

TEST(EagerSearch, TwoKeysShareTheCredit) {
  WorldOptions options;
  options.names = 2;
  options.values = {Small(0), Small(1), Small(0)};
  options.receives = {{0, 1}, {0, 0}, {0, 0}};
  ExpectAllIsWell("two keys, credit of one value", options);
  options.limits.step_values = 100;
  options.limits.peer_bytes = 10;
  options.cancels = 1;
  ExpectAllIsWell("two keys, credit of ten bytes for the peer", options);
}

TEST(EagerSearch, TwoStepsShareThePeersCredit) {
  WorldOptions options;
  options.steps = 2;
  options.limits.peer_values = 1;
  options.values = {Small(0, 0), Small(0, 1), Small(0, 1)};
  options.receives = {{1, 0}, {1, 0}, {0, 0}};
  options.consumer_ends = 1;
  ExpectAllIsWell("two steps, credit of one value for the peer", options);
}

TEST(EagerSearch, StepsEndOnEitherSide) {
  WorldOptions options;
  options.limits.step_values = 4;
  options.values = {Small(), Small(), Dead()};
  options.receives = {{}, {}};
  options.aborts = 1;
  options.consumer_ends = 1;
  ExpectAllIsWell("aborts on either side", options);
  options.aborts = 0;
  options.closes = 1;
  options.receives = {{}, {}, {}};
  ExpectAllIsWell("closed at any time", options);
  options.consumer_ends = 0;
  options.limits.step_values = 1;
  options.cancels = 1;
  ExpectAllIsWell("closed at any time, credit of one value, a cancelled receive", options);
}

TEST(EagerSearch, StepsBeginLate) {
  WorldOptions options;
  options.late_steps = 1;
  options.limits.step_values = 2;
  options.values = {Small(), Small(), Large()};
  options.receives = {{}, {}, {}};
  ExpectAllIsWell("begun late", options);
  options.aborts = 1;
  options.cancels = 1;
  options.values = {Small(), Small()};
  ExpectAllIsWell("begun late, aborted, a cancelled receive", options);
}

TEST(EagerSearch, ControlChannelsBreak) {
  WorldOptions options;
  options.limits.step_values = 2;
  options.values = {Small(), Small(), Small()};
  options.receives = {{}, {}, {}};
  options.breaks = 1;
  ExpectAllIsWell("one break", options);
  options.names = 2;
  options.values = {Small(), Small(1)};
  options.receives = {{0, 1}, {0, 0}, {0, 1}};
  options.breaks = 2;
  options.limits.step_values = 1;
  ExpectAllIsWell("two breaks", options);
  options.breaks = 1;
  options.closes = 1;
  options.consumer_ends = 1;
  ExpectAllIsWell("a break, steps end", options);
}

TEST(EagerSearch, ReceivesRejectValues) {
  WorldOptions options;
  options.values = {Small(), {0, 0, ValueOptions::Kind::kWrong}, Small()};
  options.receives = {{}, {}, {}};
  options.closes = 1;
  ExpectAllIsWell("a rejected value", options);
  options.limits.step_values = 3;
  options.breaks = 1;
  ExpectAllIsWell("a rejected value, a break", options);
}

TEST(EagerSearch, ControlChannelsAreFull) {
  WorldOptions options;
  options.names = 2;
  options.limits.step_values = 100;
  options.channel_room = 1;
  options.values = {Small(0), Small(1), Large(0), Small(1)};
  options.receives = {{0, 0}, {0, 1}, {0, 1}, {0, 0}};
  ExpectAllIsWell("a control channel with room for one message", options);
}

TEST(EagerSearch, NumbersOfNamesAreUsedAgain) {
  WorldOptions options;
  options.names = 2;
  options.limits = {4, 100, 100, 1000, 1, 1000};
  options.values = {Small(0), Small(1), Small(0)};
  options.receives = {{0, 0}, {0, 1}, {0, 0}};
  ExpectAllIsWell("two names, one number", options);
  options.values = {Large(0), Large(1), Small(0)};
  ExpectAllIsWell("two large names, one number", options);
}

// Two steps and two names, of which one is large, with one event of most kinds.
TEST(EagerSearch, EventsOfAllKinds) {
  WorldOptions options;
  options.steps = 2;
  options.names = 2;
  options.limits = {2, 100, 2, 1000, 2, 1000};
  options.values = {Small(0, 0), Large(1, 0), Small(0, 1)};
  options.receives = {{0, 0}, {0, 1}, {1, 0}};
  options.cancels = 1;
  options.aborts = 1;
  options.consumer_ends = 2;
  options.late_steps = 2;
  ExpectAllIsWell("two steps and names, most events", options);
  options.values = {Small(0, 0), Small(0, 1)};
  options.receives = {{0, 0}, {1, 0}};
  options.names = 1;
  options.limits = {1, 100, 1, 1000, 2, 1000};
  options.cancels = 0;
  options.breaks = 1;
  options.aborts = 0;
  options.closes = 1;
  ExpectAllIsWell("two steps, a break, steps end", options);
}

TEST(EagerSearch, AnOldPeerSendsNothingByItself) {
  WorldOptions options;
  options.names = 2;
  options.is_old_peer = true;
  options.values = {Small(0), Large(1), Small(0)};
  options.receives = {{0, 0}, {0, 1}, {0, 0}};
  options.closes = 1;
  options.breaks = 1;
  options.cancels = 1;
  ExpectAllIsWell("an old peer", options);
}

// Executions of larger worlds, one each.
TEST(EagerSearch, LargerWorldsAtRandom) {
  int64_t events = 0;
  for (uint64_t seed = 1; seed <= kSeeds && !HasFailure(); ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&random](int limit) {
      return static_cast<int>(random() % static_cast<uint64_t>(limit));
    };
    WorldOptions options;
    options.steps = 1 + below(3);
    options.names = 1 + below(5);
    const int large = below(4);
    const auto count = [&] { return static_cast<uint32_t>(1 + below(5)); };
    options.limits = {count(), 10 * count(), 2 * count(), 10 * count(), count(), 1000};
    options.channel_room = below(4) == 0 ? count() : 100;
    for (int i = 2 + below(25); i > 0; --i) {
      ValueOptions value = {below(options.steps), below(options.names)};
      const int kind = below(16);
      if (kind < 2 || value.name < large - 1) value.kind = ValueOptions::Kind::kLarge;
      if (kind == 2) value.kind = ValueOptions::Kind::kDead;
      if (kind == 3 && below(8) == 0) value.kind = ValueOptions::Kind::kWrong;
      options.values.push_back(value);
      if (below(16) != 0) options.receives.push_back({value.step, value.name});
    }
    std::shuffle(options.receives.begin(), options.receives.end(), random);
    // Half of the worlds without any fault, where everything must be received.
    if (below(2) == 0) {
      options.cancels = below(4);
      options.breaks = below(3);
      options.closes = static_cast<uint32_t>(below(8));
      options.aborts = static_cast<uint32_t>(below(8));
      options.consumer_ends = static_cast<uint32_t>(below(8));
    }
    options.late_steps = static_cast<uint32_t>(below(8));
    options.is_old_peer = below(16) == 0;
    options.rules.numbers_at_second_use = below(2) == 0;
    const SearchResult result = RunAtRandom(options, seed);
    events += result.states;
    EXPECT_EQ(result.violation, "") << "seed " << seed;
    if (result.violation.empty()) continue;
    for (const std::string& line : result.trace) std::printf("    %s\n", line.c_str());
  }
  std::printf("%lld events at random\n", static_cast<long long>(events));
}

}  // namespace
}  // namespace ferry::eager_test

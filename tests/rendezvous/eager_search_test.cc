// SPDX-License-Identifier: Apache-2.0
// Every execution of small worlds of the eager protocol.
#include <cstdio>

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

void ExpectAllIsWell(const char* what, const WorldOptions& options) {
  const SearchResult result = Search(options);
  std::printf("%s: %lld states\n", what, static_cast<long long>(result.states));
  EXPECT_EQ(result.violation, "");
  EXPECT_TRUE(result.is_complete);
  for (const std::string& line : result.trace) std::printf("    %s\n", line.c_str());
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

}  // namespace
}  // namespace ferry::eager_test

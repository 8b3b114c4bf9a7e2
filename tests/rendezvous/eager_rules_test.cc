// SPDX-License-Identifier: Apache-2.0
// The failure that each rule of the eager protocol prevents: without it the search finds the
// failure, and prints the shortest trace to it.
#include <cstdio>

#include <gmock/gmock.h>

#include "tests/rendezvous/eager_world.h"

namespace ferry::eager_test {
namespace {

using testing::HasSubstr;

constexpr ValueOptions SmallValue(int name = 0, int step = 0) {
  return {step, name, ValueOptions::Kind::kSmall};
}
constexpr ValueOptions LargeValue(int name = 0, int step = 0) {
  return {step, name, ValueOptions::Kind::kLarge};
}

// Searches the same world with all rules too, so that it is the rule that makes the difference.
void ExpectFailureWithout(bool EagerRules::*rule, WorldOptions options, const char* what) {
  options.rules.*rule = false;
  const SearchResult without = Search(options);
  std::printf("after %lld states: %s\n", static_cast<long long>(without.states),
              without.violation.c_str());
  for (const std::string& line : without.trace) std::printf("    %s\n", line.c_str());
  EXPECT_THAT(without.violation, HasSubstr(what));
  options.rules.*rule = true;
  const SearchResult with = Search(options);
  EXPECT_EQ(with.violation, "");
  EXPECT_TRUE(with.is_complete);
}

void ExpectFailureWithout(bool CallerRules::*rule, WorldOptions options, const char* what) {
  options.callers.*rule = false;
  const SearchResult without = Search(options);
  std::printf("after %lld states: %s\n", static_cast<long long>(without.states),
              without.violation.c_str());
  for (const std::string& line : without.trace) std::printf("    %s\n", line.c_str());
  EXPECT_THAT(without.violation, HasSubstr(what));
  options.callers.*rule = true;
  const SearchResult with = Search(options);
  EXPECT_EQ(with.violation, "");
  EXPECT_TRUE(with.is_complete);
}

WorldOptions OneKey() {
  WorldOptions options;
  options.values = {SmallValue(), SmallValue(), SmallValue()};
  options.receives = {{}, {}, {}};
  return options;
}

WorldOptions ManyValues() {
  WorldOptions options = OneKey();
  options.limits.step_values = 100;
  return options;
}

TEST(EagerRules, WithoutOrderASmallValueOvertakesALargeOne) {
  WorldOptions options = OneKey();
  ExpectFailureWithout(&EagerRules::sends_in_order, options, "V2");
}

TEST(EagerRules, WithoutWaitingForTheStepAValueOvertakesADeferredRequest) {
  WorldOptions options = ManyValues();
  options.late_steps = 1;
  ExpectFailureWithout(&EagerRules::waits_for_step_to_serve, options, "V2");
}

TEST(EagerRules, WithoutADrainQueuedValuesStay) {
  ExpectFailureWithout(&EagerRules::drains, OneKey(), "V6");
}

TEST(EagerRules, WithoutADrainOfLargeValuesTheyAreNeverAnnounced) {
  WorldOptions options = OneKey();
  options.names = 2;
  options.values = {SmallValue(), SmallValue(), LargeValue(1)};
  options.receives = {{0, 0}, {0, 0}, {0, 1}};
  ExpectFailureWithout(&EagerRules::drains_large_values, options, "V6");
}

TEST(EagerRules, WithoutPinsANumberThatIsUsedNamesSomethingElse) {
  WorldOptions options = ManyValues();
  options.rules.numbers_at_second_use = false;
  options.names = 2;
  options.limits.names = 1;
  options.values = {LargeValue(0), SmallValue(1)};
  options.receives = {{0, 0}, {0, 1}};
  ExpectFailureWithout(&EagerRules::pins_names, options, "V3");
}

TEST(EagerRules, WithoutIgnoringThePushOfAStepThatIsOverTheControlChannelEnds) {
  WorldOptions options = OneKey();
  options.aborts = 1;
  ExpectFailureWithout(&EagerRules::ignores_push_of_ended_steps, options,
                       "a PUSH of step 0, which was not pulled");
}

TEST(EagerRules, WithoutAckNowAClosingStepWaitsForAnAcknowledgement) {
  WorldOptions options = ManyValues();
  options.closes = 1;
  options.closes_last = true;
  ExpectFailureWithout(&EagerRules::asks_for_acks, options, "V7");
}

TEST(EagerRules, WithoutWaitingForRequestsTheyMeetAPushedScope) {
  ExpectFailureWithout(&EagerRules::pushes_after_requests, OneKey(), "V4");
}

TEST(EagerRules, WithTheNumberOfANameThatIsNotPulledARequestIsForAnother) {
  WorldOptions options = ManyValues();
  options.rules.numbers_at_second_use = false;
  options.steps = 2;
  options.names = 3;
  options.limits = {3, 100, 100, 1000, 2, 1000};
  options.values = {SmallValue(0), SmallValue(1), SmallValue(1), SmallValue(0), SmallValue(2, 1)};
  options.receives = {{0, 0}, {0, 0}};
  ExpectFailureWithout(&EagerRules::numbers_only_requested_names, options, "V8");
}

TEST(EagerRules, WithoutAWatchAReceiveOutlivesItsStep) {
  WorldOptions options = OneKey();
  options.aborts = 1;
  ExpectFailureWithout(&EagerRules::watches, options, "V9: receive 0 waits");
}

TEST(EagerRules, WithoutRefusalCreditIsLost) {
  WorldOptions options = OneKey();
  options.consumer_ends = 1;
  ExpectFailureWithout(&EagerRules::refuses_steps, options, "V9: the producer counts");
}

TEST(EagerRules, WithoutAcknowledgingFirstWhatWasTakenIsRefused) {
  WorldOptions options = ManyValues();
  options.consumer_ends = 1;
  ExpectFailureWithout(&EagerRules::acks_before_refusal, options, "V1");
}

TEST(EagerRules, WithoutCreditTheConsumerHoldsTooMuch) {
  ExpectFailureWithout(&EagerRules::keeps_to_credit, OneKey(), "exceeds the credit");
}

TEST(EagerRules, WithoutAPullWhatIsNotSentIsNotRequested) {
  WorldOptions options = ManyValues();
  options.values = {LargeValue()};
  ExpectFailureWithout(&EagerRules::pulls, options, "V6");
}

TEST(EagerRules, WithoutConversionReceivesWaitForWhatIsNotSent) {
  WorldOptions options = OneKey();
  options.values = {LargeValue()};
  ExpectFailureWithout(&CallerRules::converts, options, "V6");
}

TEST(EagerRules, WithoutAFlushOnTheNextControlChannelAClosingStepWaits) {
  WorldOptions options = ManyValues();
  options.closes = 1;
  ExpectFailureWithout(&CallerRules::flushes_again, options, "V7");
}

TEST(EagerRules, WithoutTheOrderOfConversionReceivesAreSwapped) {
  WorldOptions options = OneKey();
  options.values = {LargeValue(), LargeValue()};
  ExpectFailureWithout(&CallerRules::converts_in_order, options, "V2");
}

TEST(EagerRules, WithoutConvertingItsKeyFirstALaterReceiveIsRequestedBefore) {
  WorldOptions options = OneKey();
  options.values = {LargeValue(), LargeValue()};
  ExpectFailureWithout(&CallerRules::converts_own_key_first, options, "V2");
}

TEST(EagerRules, WithoutADrainOfAStartedStepItsValuesStay) {
  WorldOptions options = ManyValues();
  options.late_steps = 1;
  ExpectFailureWithout(&CallerRules::drains_started_steps, options, "V6");
}

TEST(EagerRules, WithoutTakingArrivalsFirstARequestOvertakesThem) {
  ExpectFailureWithout(&CallerRules::takes_arrivals_first, OneKey(), "V");
}

TEST(EagerRules, WithoutServingRequestsFirstALaterReceiveGetsTheValue) {
  ExpectFailureWithout(&CallerRules::serves_requests_first, OneKey(), "V");
}

TEST(EagerRules, WithoutAScanValuesFromBeforeTheFirstPushStay) {
  ExpectFailureWithout(&CallerRules::scans, OneKey(), "V6");
}

TEST(EagerRules, WithAnAcknowledgementOfAnotherControlChannelSomethingElseCountsAsReceived) {
  WorldOptions options = ManyValues();
  options.breaks = 1;
  ExpectFailureWithout(&CallerRules::acks_on_same_channel, options, "");
}

}  // namespace
}  // namespace ferry::eager_test

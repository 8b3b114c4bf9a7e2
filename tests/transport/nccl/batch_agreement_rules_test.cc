// SPDX-License-Identifier: Apache-2.0
// The failure that each rule of the protocol prevents: without it the search finds the failure, and
// prints the shortest trace to it.
#include <cstdio>

#include <gmock/gmock.h>

#include "tests/transport/nccl/grant_world.h"

namespace ferry::grant_test {
namespace {

using testing::HasSubstr;

BatchAgreementTransfer Transfer(int source, int destination, uint64_t id) {
  return {{DeviceId(source), DeviceId(destination), id}, 100};
}

SearchResult SearchAndPrint(const char* without, const WorldOptions& options) {
  const SearchResult result = Search(options, 4'000'000);
  std::printf("without %s, after %lld states: %s\n", without, static_cast<long long>(result.states),
              result.violation.c_str());
  for (const std::string& line : result.trace) std::printf("    %s\n", line.c_str());
  // So does the search without reductions.
  WorldOptions all = options;
  all.reductions = {false, false, false};
  EXPECT_NE(Search(all, 4'000'000).violation, "");
  return result;
}

// The same world with all rules is searched as well, so that it is the rule that makes the
// difference.
void ExpectAllIsWellWithIt(WorldOptions options) {
  options.endpoint.rules = {};
  const SearchResult result = Search(options, 4'000'000);
  EXPECT_EQ(result.violation, "");
  EXPECT_TRUE(result.is_complete);
}

TEST(BatchAgreementRules, WithoutTheOrderOfLocksTwoDevicesWaitForEachOther) {
  WorldOptions options;
  options.transfers = {Transfer(0, 1, 1), Transfer(1, 0, 2)};
  options.endpoint.rules.locks_in_id_order = false;
  const SearchResult result = SearchAndPrint("the order of locks", options);
  EXPECT_THAT(result.violation, HasSubstr("which waits for"));
  EXPECT_THAT(result.violation, HasSubstr("device 0 waits; "));
  EXPECT_THAT(result.violation, HasSubstr("device 1 waits; "));
  ExpectAllIsWellWithIt(options);
}

TEST(BatchAgreementRules, WithoutKeepingTheLockTwoDevicesRunDifferentBatches) {
  WorldOptions options;
  options.transfers = {Transfer(0, 1, 1), Transfer(1, 0, 2)};
  options.endpoint.rules.holds_lock_until_answer = false;
  const SearchResult result = SearchAndPrint("keeping the lock until the answer", options);
  EXPECT_THAT(result.violation, HasSubstr("run different batches"));
  ExpectAllIsWellWithIt(options);
}

// With one batch at a time on the stream it is a cycle of three streams: each runs the batch that
// its neighbour runs next.
TEST(BatchAgreementRules, WithoutKeepingTheLockThreeStreamsDeadlock) {
  WorldOptions options;
  options.transfers = {Transfer(0, 1, 1), Transfer(1, 2, 2), Transfer(0, 2, 3)};
  options.endpoint.rules.holds_lock_until_answer = false;
  const SearchResult result = SearchAndPrint("keeping the lock until the answer", options);
  EXPECT_THAT(result.violation, HasSubstr("device 0 runs batch"));
  EXPECT_THAT(result.violation, HasSubstr("device 1 runs batch"));
  EXPECT_THAT(result.violation, HasSubstr("device 2 runs batch"));
  ExpectAllIsWellWithIt(options);
}

TEST(BatchAgreementRules, WithoutTheAcknowledgementADeviceRunsABatchThatItsPeerDoesNot) {
  WorldOptions options;
  options.transfers = {Transfer(0, 1, 1), Transfer(1, 2, 2)};
  options.cancels = 1;
  options.endpoint.rules.acknowledges_before_launch = false;
  const SearchResult result = SearchAndPrint("the acknowledgement before the launch", options);
  EXPECT_NE(result.violation, "");
  ExpectAllIsWellWithIt(options);
}

TEST(BatchAgreementRules, WithoutTheGenerationALateGrantIsRunByOneSide) {
  WorldOptions options;
  options.transfers = {Transfer(0, 1, 1), Transfer(1, 2, 2)};
  options.errors = 1;
  options.endpoint.rules.checks_generation = false;
  const SearchResult result = SearchAndPrint("the check of the generation", options);
  EXPECT_NE(result.violation, "");
  ExpectAllIsWellWithIt(options);
}

TEST(BatchAgreementRules, WithoutTheReceiversDecisionAnArrivedTransferIsReturned) {
  WorldOptions options;
  options.transfers = {Transfer(0, 1, 1)};
  options.errors = 1;
  options.endpoint.rules.waits_for_verdict = false;
  const SearchResult result = SearchAndPrint("the verdict of the receiver", options);
  EXPECT_THAT(result.violation, HasSubstr("is ABORTED at the source, OK at the destination"));
  ExpectAllIsWellWithIt(options);
}

// Device 0 has sent a proposal to device 1, which defers it until the collective is over for which
// device 0 must first become quiet.
TEST(BatchAgreementRules, WithoutRejectionACollectiveAndAGrantWaitForEachOther) {
  WorldOptions options;
  options.transfers = {Transfer(0, 1, 1)};
  options.collective = 0b011;
  options.endpoint.rules.declines_while_paused = false;
  const SearchResult result = SearchAndPrint("declining while paused", options);
  EXPECT_THAT(result.violation, HasSubstr("device 0 waits for the collective"));
  EXPECT_THAT(result.violation, HasSubstr("device 1 to answer the grant"));
  ExpectAllIsWellWithIt(options);
}

// Device 0 has its communicator open, device 1 could not make it, and waits for it to come to the
// next one.
TEST(BatchAgreementRules, WithoutNotificationOfAFailedOpenBothWaitForEachOther) {
  WorldOptions options;
  options.transfers = {Transfer(0, 1, 1)};
  options.has_pair_communicators = true;
  options.failed_opens = 1;
  options.hears_of_failed_opens = false;
  const SearchResult result = SearchAndPrint("hearing of a failed open", options);
  EXPECT_THAT(result.violation, HasSubstr("device 0 waits"));
  options.hears_of_failed_opens = true;
  ExpectAllIsWellWithIt(options);
}

}  // namespace
}  // namespace ferry::grant_test

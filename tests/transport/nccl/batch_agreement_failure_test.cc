// SPDX-License-Identifier: Apache-2.0
// How batch agreement endpoints end communicators, and the outcome of the transfers on them.
#include "tests/transport/nccl/grant_pair.h"
#include "transport/nccl/batch_agreement_endpoint.h"

namespace ferry::grant_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class GrantFailureTest : public GrantTest {
 protected:
  void StartOne(int source, int destination, uint64_t id) {
    devices_[destination].Add(Transfer(source, destination, id));
    devices_[source].Add(Transfer(source, destination, id));
    Settle();
  }
  void Fail(int at, int dead) {
    devices_[at].Do([dead](BatchAgreementEndpoint& e, BatchAgreementActions& actions) {
      e.PeerFailed(DeviceId(dead), absl::UnavailableError("no heartbeat for 10s"), actions);
    });
  }
};

// Memory of a transfer is not given back while NCCL may still write to it, and nothing is freed
// while an aborted communicator runs.
TEST_F(GrantFailureTest, AllAreFlaggedThenAbortedThenFreed) {
  devices_[0].Open({3, 1}, {DeviceId(0), DeviceId(2)});
  devices_[2].Open({3, 1}, {DeviceId(0), DeviceId(2)});
  StartOne(0, 2, 5);
  devices_[0].log.clear();
  Fail(0, 2);
  EXPECT_THAT(devices_[0].log,
              ElementsAre("flag 3", "flag 7", "abort 3", "abort 7", "BREAK", "SETTLED"));
  EXPECT_THAT(devices_[0].finished[5], IsEmpty());
  devices_[0].log.clear();
  devices_[0].Complete(absl::InternalError("aborted"));
  EXPECT_THAT(devices_[0].log, ElementsAre("finish", "free 3", "free 7"));
  EXPECT_EQ(devices_[0].finished[5][0],
            absl::UnavailableError("device 2 has failed: no heartbeat for 10s"));
}

TEST_F(GrantFailureTest, AllOthersReceiveTheNameOfTheDead) {
  Fail(0, 2);
  const BatchAgreementMessage message = devices_[0].Take();
  EXPECT_EQ(message.kind, BatchAgreementMessageKind::kBreak);
  EXPECT_EQ(message.to, DeviceId(1));
  devices_[1].Hear(message);
  EXPECT_EQ(devices_[1].died, DeviceId(2));
  EXPECT_THAT(devices_[1].log, testing::IsSupersetOf({"flag 7", "abort 7", "free 7"}));
}

// Between two live devices the receiver decides: it may have received the data before the abort.
TEST_F(GrantFailureTest, TransferThatArrivedBeforeTheAbort_IsOkOnBothSides) {
  StartOne(0, 1, 5);
  StartOne(0, 1, 6);
  Fail(0, 2);
  devices_[0].Complete(absl::InternalError("aborted"));
  devices_[0].Complete(absl::InternalError("aborted"));
  EXPECT_THAT(devices_[0].finished[5], IsEmpty());
  devices_[1].Hear(devices_[0].Take());
  devices_[1].Complete();
  devices_[1].Complete(absl::InternalError("aborted"));
  Settle();
  for (const int side : {0, 1}) {
    EXPECT_THAT(devices_[side].finished[5], ElementsAre(absl::OkStatus()));
    ASSERT_THAT(devices_[side].finished[6], SizeIs(1));
    EXPECT_EQ(devices_[side].finished[6][0].code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(devices_[side].finished[6][0].message()),
                HasSubstr("device 2 has failed: no heartbeat for 10s"));
    EXPECT_TRUE(devices_[side].endpoint.is_idle());
  }
}

TEST_F(GrantFailureTest, TransfersToTheDeadEndAndOthersContinue) {
  devices_[0].Add(Transfer(0, 2, 5));
  devices_[0].Add(Transfer(0, 2, 6));
  devices_[0].Add(Transfer(0, 1, 7));
  devices_[1].Add(Transfer(0, 1, 7));
  Fail(0, 2);
  Fail(1, 2);
  devices_[0].outbox.pop_front();
  Settle();
  EXPECT_EQ(devices_[0].finished[5][0].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(devices_[0].finished[6][0].code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(devices_[0].finished[7], IsEmpty());
  devices_[0].Add(Transfer(0, 2, 8));
  EXPECT_EQ(devices_[0].finished[8][0].code(), absl::StatusCode::kUnavailable);
  for (const int side : {0, 1}) devices_[side].Open({3, 1}, {DeviceId(0), DeviceId(1)});
  Settle();
  EXPECT_THAT(devices_[0].launched, SizeIs(1));
  EXPECT_THAT(devices_[1].launched, SizeIs(1));
}

TEST_F(GrantFailureTest, GenerationThatIsOver_IsNotOpenedAgain) {
  BatchAgreementActions actions;
  const std::vector<DeviceId> all = {DeviceId(0), DeviceId(1), DeviceId(2)};
  BatchAgreementEndpoint& endpoint = devices_[0].endpoint;
  EXPECT_EQ(endpoint.Open({7, 2}, all, actions).code(), absl::StatusCode::kFailedPrecondition);
  endpoint.Break(kAll, absl::ResourceExhaustedError("it makes room for another"), actions);
  const absl::Status again = endpoint.Open(kAll, all, actions);
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(again.message()), HasSubstr("makes room for another"));
  EXPECT_TRUE(endpoint.Open({7, 2}, all, actions).ok());
  EXPECT_FALSE(endpoint.Open({8, 1}, {DeviceId(1), DeviceId(2)}, actions).ok());
  EXPECT_FALSE(endpoint.Open({8, 1}, {DeviceId(0)}, actions).ok());
  EXPECT_FALSE(endpoint.Open({8, 1}, {DeviceId(0), DeviceId(0)}, actions).ok());
}

// The third device's news was quicker than the grant.
TEST_F(GrantFailureTest, LateGrantOfAnEarlierGeneration_IsNotAnswered) {
  devices_[0].Add(Transfer(0, 1, 5));
  devices_[1].Add(Transfer(0, 1, 5));
  const BatchAgreementMessage grant = devices_[0].Take();
  BatchAgreementMessage broken;
  broken.kind = BatchAgreementMessageKind::kBreak;
  broken.from = DeviceId(2);
  broken.to = DeviceId(1);
  broken.communicator = kAll;
  broken.why = absl::InternalError("unhandled cuda error");
  devices_[1].Hear(broken);
  devices_[1].Open({7, 2}, {DeviceId(0), DeviceId(1), DeviceId(2)});
  devices_[1].log.clear();
  devices_[1].Hear(grant);
  EXPECT_THAT(devices_[1].log, IsEmpty());
}

// An answer to another grant than the one that was sent: neither side can know which batch the
// other runs.
TEST_F(GrantFailureTest, DifferentDigest_EndsTheCommunicator) {
  devices_[1].Add(Transfer(0, 1, 5));
  devices_[0].Add(Transfer(0, 1, 5));
  devices_[1].Hear(devices_[0].Take());
  BatchAgreementMessage answer = devices_[1].Take();
  answer.digest ^= 1;
  devices_[0].Hear(answer);
  EXPECT_THAT(devices_[0].launched, IsEmpty());
  EXPECT_THAT(devices_[0].log, testing::Contains("abort 7"));
  EXPECT_EQ(devices_[0].finished[5][0].code(), absl::StatusCode::kAborted);
}

// A kernel that waits for a peer that never joins spins forever: only an abort ends it.
TEST_F(GrantFailureTest, DeadlineAfterTheGrant_AbortsAfterTheGracePeriod) {
  StartOne(0, 1, 5);
  clock_.Advance(absl::Seconds(31));
  devices_[0].Do(
      [](BatchAgreementEndpoint& e, BatchAgreementActions& actions) { e.Expire(actions); });
  EXPECT_THAT(devices_[0].log, testing::Not(testing::Contains("flag 7")));
  EXPECT_EQ(devices_[0].endpoint.NextDeadline(),
            clock_.Now() + BatchAgreementOptions().abort_grace);
  clock_.Advance(BatchAgreementOptions().abort_grace);
  devices_[0].Do(
      [](BatchAgreementEndpoint& e, BatchAgreementActions& actions) { e.Expire(actions); });
  EXPECT_THAT(devices_[0].log, testing::Contains("abort 7"));
  devices_[0].Complete(absl::InternalError("aborted"));
  EXPECT_THAT(devices_[0].finished[5], IsEmpty()) << "device 1 may have got it";
  // Device 1 sends nothing for as long again.
  clock_.Advance(BatchAgreementOptions().abort_grace);
  devices_[0].Do(
      [](BatchAgreementEndpoint& e, BatchAgreementActions& actions) { e.Expire(actions); });
  ASSERT_THAT(devices_[0].finished[5], SizeIs(1));
  EXPECT_THAT(std::string(devices_[0].finished[5][0].message()),
              HasSubstr("waited 41s for device 1 to say whether it has arrived"));
  EXPECT_TRUE(devices_[0].endpoint.is_idle());
}

// Its answer comes from outside: without any grace it would be looked at all the time.
TEST(GrantGraceTest, NoGracePeriod_IsStillNotLookedAtAllTheTime) {
  FakeClock clock;
  BatchAgreementOptions options;
  options.abort_grace = absl::ZeroDuration();
  BatchAgreementEndpoint endpoint(DeviceId(0), options, clock);
  BatchAgreementActions actions;
  ASSERT_TRUE(endpoint.Open({7, 1}, {DeviceId(0), DeviceId(1)}, actions).ok());
  ASSERT_TRUE(endpoint
                  .Add({.key = {DeviceId(0), DeviceId(1), 5},
                        .bytes = 64,
                        .deadline = clock.Now() + absl::Seconds(1)},
                       actions)
                  .ok());
  clock.Advance(absl::Seconds(1));
  endpoint.Expire(actions);
  ASSERT_FALSE(endpoint.is_idle());
  EXPECT_GT(endpoint.NextDeadline(), clock.Now());
}

// Each grant has a serial of its own: a duplicate would leave a batch that never ends.
TEST(GrantSerials, DuplicateGrant_IsRefused) {
  FakeClock clock;
  BatchAgreementEndpoint endpoint(DeviceId(1), {}, clock);
  const CommunicatorName name = {7, 1};
  BatchAgreementActions actions;
  ASSERT_TRUE(endpoint.Open(name, {DeviceId(0), DeviceId(1)}, actions).ok());
  const TransferKey key = {DeviceId(0), DeviceId(1), 5};
  ASSERT_TRUE(endpoint.Add({.key = key, .bytes = 10}, actions).ok());
  BatchAgreementMessage grant;
  grant.from = DeviceId(0);
  grant.to = DeviceId(1);
  grant.communicator = name;
  grant.serial = 3;
  grant.operations = {{key, 10}};
  EXPECT_TRUE(endpoint.OnMessage(grant, actions).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(endpoint.OnMessage(grant, actions)));
  grant.serial = 2;
  EXPECT_TRUE(absl::IsInvalidArgument(endpoint.OnMessage(grant, actions)));
  // A process that replaces it counts from one.
  endpoint.PeerFailed(DeviceId(0), absl::UnavailableError("gone"), actions);
  endpoint.PeerJoined(DeviceId(0));
  grant.serial = 1;
  grant.communicator.generation = 2;
  EXPECT_TRUE(endpoint.OnMessage(grant, actions).ok());
}

}  // namespace
}  // namespace ferry::grant_test

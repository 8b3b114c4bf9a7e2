// SPDX-License-Identifier: Apache-2.0
// A consumer's decisions between requesting and waiting, and the frames that it does not accept.
#include "rendezvous/peer/eager_receiver.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "tests/rendezvous/rendezvous_fixture.h"

namespace ferry {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr EagerLimits kConsumersLimits = {4, 100, 6, 1000, 2, 1000};

class EagerReceiverTest : public testing::Test {
 protected:
  void Start() {
    receiver_.Start();
    EXPECT_THAT(receiver_.TakeOutput().pushes, ElementsAre(EagerScope::All()));
  }
  // One record in a frame, which defines name 1 if `text` is not empty.
  absl::StatusOr<EagerReceiver::Arrival> Arrive(int64_t step_id, absl::string_view text = "",
                                                uint32_t name = 1) {
    EagerHead head;
    head.step_id = step_id;
    head.sequence = sequence_++;
    EagerRecord record;
    record.name = name;
    record.text = text;
    record.payload = "payload";
    absl::Status status = receiver_.OnEager(head);
    if (!status.ok()) return status;
    const auto key = receiver_.OnRecord(record);
    if (!key.ok()) return key.status();
    return receiver_.OnArrival(record, receiver_.last_sequence());
  }
  absl::StatusOr<bool> Pull(EagerScope scope, EagerPullKind kind = EagerPullKind::kUntilFree,
                            absl::string_view definition = "") {
    return receiver_.OnPull({kind, scope, definition}, /*is_step_over=*/false);
  }
  EagerReceiver::Route Receive(int64_t step_id, absl::string_view name) {
    return receiver_.OnReceive(step_id, Key(name)).route;
  }

  uint32_t sequence_ = 0;
  EagerReceiver receiver_{kConsumersLimits};
};

using Route = EagerReceiver::Route;

// Values that receives take as they come count until they are acknowledged.
TEST(EagerReceiver, ARunOfValues_KeepsToTheCredit) {
  EagerReceiver receiver({.peer_values = 4, .peer_bytes = 100});
  receiver.Start();
  receiver.TakeOutput();
  EXPECT_TRUE(receiver.HasRoom(3, 99));
  EXPECT_FALSE(receiver.HasRoom(4, 0));
  EXPECT_FALSE(receiver.HasRoom(0, 100));
  EXPECT_EQ(receiver.CanTake(1, 0, 0), nullptr) << "it is not defined";
  receiver.OnTaken(1, 60);
  EXPECT_TRUE(receiver.HasRoom(2, 39));
  EXPECT_FALSE(receiver.HasRoom(3, 0));
  EXPECT_FALSE(receiver.HasRoom(0, 40));
  receiver.TakeOutput(/*all=*/true);
  EXPECT_TRUE(receiver.HasRoom(3, 99));
}

TEST_F(EagerReceiverTest, BeforeThePush_EverythingIsRequested) {
  EXPECT_EQ(Receive(1, "a"), Route::kRequest);
  receiver_.Start();
  // Not before it has been sent.
  EXPECT_FALSE(receiver_.has_output());
  receiver_.OnRequestSent();
  EXPECT_TRUE(receiver_.has_output());
  EXPECT_THAT(receiver_.TakeOutput().pushes, ElementsAre(EagerScope::All()));
  EXPECT_EQ(Receive(1, "a"), Route::kWait);
}

TEST_F(EagerReceiverTest, WithoutStart_NothingIsPushed) {
  EXPECT_FALSE(receiver_.has_output());
  EXPECT_TRUE(receiver_.TakeOutput(/*all=*/true).empty());
}

TEST_F(EagerReceiverTest, AStepIsWatchedOnce) {
  Start();
  EXPECT_TRUE(receiver_.OnReceive(1, Key("a")).needs_watch);
  EXPECT_FALSE(receiver_.OnReceive(1, Key("b")).needs_watch);
  EXPECT_TRUE(receiver_.OnReceive(2, Key("a")).needs_watch);
  receiver_.OnWatchEnded(1, absl::AbortedError("over"));
  const EagerReceiver::Decision late = receiver_.OnReceive(1, Key("a"));
  EXPECT_EQ(late.route, Route::kFail);
  EXPECT_EQ(late.status, absl::AbortedError("over"));
  EXPECT_FALSE(receiver_.OnStepEnd(1).has_watch);
  EXPECT_TRUE(receiver_.OnStepEnd(2).has_watch);
  EXPECT_EQ(receiver_.InnerTableSizes().at("eager_receiver.steps"), 0u);
}

TEST_F(EagerReceiverTest, ValuesAreInSequence) {
  Start();
  ASSERT_TRUE(Arrive(1, Key("a").text()).ok());
  ++sequence_;
  EXPECT_THAT(Arrive(1).status().message(), HasSubstr("sequence number 2, expected 1"));
}

TEST_F(EagerReceiverTest, SequenceNumbersWrap) {
  receiver_ = EagerReceiver(kConsumersLimits, {}, UINT32_MAX);
  sequence_ = UINT32_MAX;
  Start();
  const auto first = Arrive(1, Key("a").text());
  const auto second = Arrive(1);
  ASSERT_TRUE(first.ok() && second.ok());
  receiver_.OnTaken(*first);
  receiver_.OnTaken(*second);
  EXPECT_THAT(receiver_.TakeOutput().acks, ElementsAre(EagerRange{UINT32_MAX, 2}));
}

TEST_F(EagerReceiverTest, Names) {
  Start();
  EXPECT_FALSE(Arrive(1, "no key").ok());
  EXPECT_THAT(Arrive(1, "", 2).status().message(), HasSubstr("name 2 is not defined"));
  EXPECT_THAT(Arrive(1, Key("a").text(), 3).status().message(), HasSubstr("name 3 is above 2"));
  EXPECT_TRUE(Arrive(1, Key("a").text(), 0).ok());
  EXPECT_TRUE(Arrive(1, Key("a").text(), 1).ok());
  // Another text replaces it.
  EXPECT_TRUE(Arrive(1, Key("b").text(), 1).ok());
  EXPECT_EQ(*receiver_.FindName(1), Key("b"));
  EXPECT_THAT(Arrive(1, Key("b").text(), 2).status().message(), HasSubstr("another number"));
}

TEST_F(EagerReceiverTest, TextsOfNamesAreBounded) {
  const size_t bytes = Key("a").text().size();
  receiver_ = EagerReceiver({4, 100, 6, 1000, 9, static_cast<uint32_t>(2 * bytes)});
  Start();
  EXPECT_TRUE(Arrive(1, Key("a").text(), 1).ok());
  EXPECT_TRUE(Arrive(1, Key("b").text(), 2).ok());
  EXPECT_TRUE(Arrive(1, Key("c").text(), 2).ok());
  EXPECT_THAT(Arrive(1, Key("d").text(), 3).status().message(), HasSubstr("the limit is"));
}

TEST_F(EagerReceiverTest, PulledNames_AreRequestedByNumberAndKeepIt) {
  Start();
  ASSERT_TRUE(*Pull(EagerScope::Name(1), EagerPullKind::kUntilMayPush, Key("a").text()));
  const EagerReceiver::Decision decision = receiver_.OnReceive(1, Key("a"));
  EXPECT_EQ(decision.route, Route::kRequest);
  EXPECT_EQ(decision.name, 1u);
  receiver_.OnRequestSent();
  EXPECT_EQ(Receive(1, "b"), Route::kWait);
  EXPECT_THAT(Arrive(1, Key("b").text()).status().message(), HasSubstr("was pulled"));
  EXPECT_FALSE(receiver_.has_output());
  EXPECT_FALSE(*Pull(EagerScope::Name(1), EagerPullKind::kMayPush));
  EXPECT_THAT(receiver_.TakeOutput().pushes, ElementsAre(EagerScope::Name(1)));
  EXPECT_EQ(Receive(1, "a"), Route::kWait);
}

// Its number may be another's when the request arrives.
TEST_F(EagerReceiverTest, NamesInAPulledStep_AreRequestedByText) {
  Start();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Arrive(1, i == 0 ? Key("a").text() : "").ok());
  ASSERT_TRUE(*Pull(EagerScope::Step(1)));
  const EagerReceiver::Decision decision = receiver_.OnReceive(1, Key("a"));
  EXPECT_EQ(decision.route, Route::kRequest);
  EXPECT_EQ(decision.name, 0u);
}

TEST_F(EagerReceiverTest, PulledSteps_ArePushedWhenHalfIsFree) {
  Start();
  std::vector<EagerReceiver::Arrival> arrivals;
  for (int i = 0; i < 4; ++i) arrivals.push_back(*Arrive(1, i == 0 ? Key("a").text() : ""));
  ASSERT_TRUE(*Pull(EagerScope::Step(1)));
  EXPECT_THAT(Arrive(1).status().message(), HasSubstr("to be requested"));
  receiver_.OnTaken(arrivals[0]);
  EXPECT_FALSE(receiver_.has_output());
  receiver_.OnTaken(arrivals[1]);
  const EagerReceiver::Output output = receiver_.TakeOutput();
  EXPECT_THAT(output.acks, ElementsAre(EagerRange{0, 2}));
  EXPECT_THAT(output.pushes, ElementsAre(EagerScope::Step(1)));
}

TEST_F(EagerReceiverTest, CreditIsEnforced) {
  Start();
  std::vector<EagerReceiver::Arrival> arrivals;
  for (int i = 0; i < 4; ++i) arrivals.push_back(*Arrive(1, i == 0 ? Key("a").text() : ""));
  EXPECT_THAT(Arrive(1).status().message(), HasSubstr("exceeds the credit"));
  EXPECT_TRUE(Arrive(2).ok());
  EXPECT_TRUE(Arrive(2).ok());
  EXPECT_THAT(Arrive(3).status().message(), HasSubstr("exceeds the credit"));
  // A value that was taken counts until it is acknowledged.
  receiver_.OnTaken(arrivals[0]);
  EXPECT_THAT(Arrive(3).status().message(), HasSubstr("exceeds the credit"));
  receiver_.TakeOutput(/*all=*/true);
  EXPECT_TRUE(Arrive(3).ok());
}

TEST_F(EagerReceiverTest, PullsAndPushesAlternate) {
  EXPECT_FALSE(Pull(EagerScope::All()).ok());
  Start();
  EXPECT_FALSE(Pull(EagerScope::All(), EagerPullKind::kMayPush).ok());
  EXPECT_FALSE(Pull(EagerScope::Name(1), EagerPullKind::kUntilMayPush).ok());
  ASSERT_TRUE(*Pull(EagerScope::Step(1)));
  EXPECT_FALSE(Pull(EagerScope::Step(1)).ok());
  ASSERT_TRUE(*Pull(EagerScope::All(), EagerPullKind::kUntilMayPush));
  ASSERT_TRUE(Pull(EagerScope::All(), EagerPullKind::kMayPush).ok());
  EXPECT_FALSE(Pull(EagerScope::All(), EagerPullKind::kMayPush).ok());
  // A step that is over here is not opened again.
  EXPECT_FALSE(*receiver_.OnPull({EagerPullKind::kUntilFree, EagerScope::Step(2), {}}, true));
  EXPECT_FALSE(receiver_.is_pulled(EagerScope::Step(2)));
}

TEST_F(EagerReceiverTest, AcksWait_UntilTheyAreDueOrAskedFor) {
  Start();
  std::vector<EagerReceiver::Arrival> arrivals;
  for (int i = 0; i < 4; ++i) arrivals.push_back(*Arrive(1, i == 0 ? Key("a").text() : ""));
  receiver_.OnTaken(arrivals[1]);
  EXPECT_FALSE(receiver_.has_output());
  EXPECT_EQ(receiver_.TakeOneAck(), (EagerRange{1, 1}));
  EXPECT_EQ(receiver_.TakeOneAck().count, 0);
  receiver_.OnTaken(arrivals[0]);
  receiver_.OnAckNow(1);
  EXPECT_THAT(receiver_.TakeOutput().acks, ElementsAre(EagerRange{0, 1}));
  receiver_.OnTaken(arrivals[3]);
  EXPECT_THAT(receiver_.TakeOutput().acks, ElementsAre(EagerRange{3, 1}));
  EXPECT_EQ(receiver_.values_unacknowledged(), 1u);
  // It was not asked for those that are sent later.
  const auto later = Arrive(1);
  receiver_.OnTaken(*later);
  EXPECT_FALSE(receiver_.has_output());
}

TEST_F(EagerReceiverTest, RejectedValues_AreNotAcknowledgedToo) {
  Start();
  const auto arrival = Arrive(1, Key("a").text());
  EXPECT_EQ(receiver_.OnRejected(*arrival), kEagerRejectedBit | 0);
  EXPECT_EQ(receiver_.values_unacknowledged(), 0u);
  EXPECT_TRUE(receiver_.TakeOutput(/*all=*/true).empty());
}

TEST_F(EagerReceiverTest, AcksAreDue_AlsoOfAStepThatIsOver) {
  Start();
  const auto arrival = Arrive(1, Key("a").text());
  receiver_.OnTaken(*arrival);
  EXPECT_FALSE(receiver_.OnStepEnd(1).is_refused);
  receiver_.OnAckNow(1);
  EXPECT_THAT(receiver_.TakeOutput().acks, ElementsAre(EagerRange{0, 1}));
}

TEST_F(EagerReceiverTest, StepsThatEndWithValues_AreRefusedOnce) {
  Start();
  const auto first = Arrive(1, Key("a").text());
  ASSERT_TRUE(Arrive(1).ok());
  receiver_.OnTaken(*first);
  const EagerReceiver::StepEnd end = receiver_.OnStepEnd(1);
  EXPECT_TRUE(end.is_refused);
  EXPECT_THAT(end.acks, ElementsAre(EagerRange{0, 1}));
  EXPECT_EQ(receiver_.values_held(), 0u);
  // For a value that was under way.
  EagerHead head;
  head.step_id = 1;
  head.sequence = sequence_++;
  ASSERT_TRUE(receiver_.OnEager(head).ok());
  EagerRecord record;
  record.name = 1;
  ASSERT_TRUE(receiver_.OnRecord(record).ok());
  EXPECT_FALSE(receiver_.OnDropped().is_refused);
  // A step that was over before anything arrived.
  head.step_id = 2;
  head.sequence = sequence_++;
  ASSERT_TRUE(receiver_.OnEager(head).ok());
  ASSERT_TRUE(receiver_.OnRecord(record).ok());
  EXPECT_TRUE(receiver_.OnDropped().is_refused);
  EXPECT_EQ(receiver_.InnerTableSizes().at("eager_receiver.steps"), 0u);
}

}  // namespace
}  // namespace ferry

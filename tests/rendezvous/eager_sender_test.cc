// SPDX-License-Identifier: Apache-2.0
// A producer's decisions to send or to queue, and its reactions to the answers.
#include "rendezvous/peer/eager_sender.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "tests/rendezvous/rendezvous_fixture.h"

namespace ferry {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr EagerLimits kProducersLimits = {2, 100, 3, 1000, 2, 1000};

EagerSender::Value SmallValue(size_t bytes = 8) { return {.bytes = bytes, .is_eager = true}; }
EagerSender::Value LargeValue() { return {.bytes = 1u << 20, .is_eager = false}; }

class EagerSenderTest : public testing::Test {
 protected:
  void Start() { ASSERT_TRUE(sender_.OnPush(EagerScope::All()).ok()); }
  // The sequence numbers that are visited.
  auto Visit() {
    return [this](uint64_t sequence, const EagerSender::Record& record) {
      visited_.push_back(sequence);
    };
  }
  std::vector<uint64_t> Visited() {
    std::sort(visited_.begin(), visited_.end());
    return std::exchange(visited_, {});
  }

  EagerSender sender_{kProducersLimits};
  std::vector<uint64_t> visited_;
};

TEST_F(EagerSenderTest, BeforeTheFirstPush_NothingIsSentOrKept) {
  const EagerSender::Decision decision = sender_.Send(1, Key("a"), SmallValue());
  EXPECT_FALSE(decision.is_sent);
  EXPECT_THAT(decision.pulls, IsEmpty());
  EXPECT_TRUE(sender_.is_pulled(1, Key("a")));
  EXPECT_EQ(NonEmptyTables(sender_.InnerTableSizes()), "");
  const auto scan = sender_.OnPush(EagerScope::All());
  ASSERT_TRUE(scan.ok());
  EXPECT_TRUE(scan->is_needed);
  EXPECT_FALSE(scan->key.has_value());
}

TEST_F(EagerSenderTest, NamesAreDefinedOnce) {
  Start();
  const EagerSender::Decision first = sender_.Send(1, Key("a"), SmallValue());
  EXPECT_TRUE(first.is_sent);
  EXPECT_TRUE(first.defines_name);
  EXPECT_EQ(first.name, 1u);
  const EagerSender::Decision second = sender_.Send(2, Key("a"), SmallValue());
  EXPECT_TRUE(second.is_sent);
  EXPECT_FALSE(second.defines_name);
  EXPECT_EQ(second.name, 1u);
  EXPECT_EQ(second.sequence, first.sequence + 1);
  EXPECT_EQ(*sender_.FindName(1), Key("a"));
  EXPECT_EQ(sender_.FindName(0), nullptr);
  EXPECT_EQ(sender_.FindName(2), nullptr);
}

TEST_F(EagerSenderTest, NumbersThatAreInUse_AreNotGivenAway) {
  Start();
  sender_.Send(1, Key("a"), SmallValue());
  sender_.Send(1, Key("b"), SmallValue());
  // Both have records that are not acknowledged: the third goes with its text.
  const EagerSender::Decision text = sender_.Send(2, Key("c"), SmallValue());
  EXPECT_TRUE(text.is_sent);
  EXPECT_EQ(text.name, 0u);
  EXPECT_FALSE(text.defines_name);
  ASSERT_TRUE(sender_.OnAck({0, 3}, Visit()).ok());
  EXPECT_THAT(Visited(), ElementsAre(0, 1, 2));
  // The clock passes each once.
  const EagerSender::Decision again = sender_.Send(2, Key("c"), SmallValue());
  EXPECT_EQ(again.name, 1u);
  EXPECT_TRUE(again.defines_name);
  EXPECT_EQ(*sender_.FindName(1), Key("c"));
}

TEST_F(EagerSenderTest, WhenAllNumbersArePulled_EverythingIsRequestedForEver) {
  Start();
  for (const char* const name : {"a", "b"}) {
    const EagerSender::Decision decision = sender_.Send(1, Key(name), LargeValue());
    ASSERT_THAT(decision.pulls, SizeIs(1));
    EXPECT_EQ(decision.pulls[0].kind, EagerPullKind::kUntilMayPush);
    EXPECT_EQ(decision.pulls[0].scope.kind, EagerScopeKind::kName);
    EXPECT_EQ(decision.pulls[0].definition, Key(name).text());
  }
  const EagerSender::Decision last = sender_.Send(1, Key("c"), LargeValue());
  ASSERT_THAT(last.pulls, SizeIs(1));
  EXPECT_EQ(last.pulls[0].scope, EagerScope::All());
  EXPECT_EQ(last.pulls[0].kind, EagerPullKind::kUntilMayPush);
  EXPECT_FALSE(sender_.Send(1, Key("d"), SmallValue()).is_sent);
  EXPECT_FALSE(sender_.OnPush(EagerScope::All()).ok());
}

TEST_F(EagerSenderTest, TextsOfNamesAreBounded) {
  const size_t bytes = Key("a").text().size();
  EagerSender sender({10, 1000, 10, 1000, 10, static_cast<uint32_t>(2 * bytes)});
  ASSERT_TRUE(sender.OnPush(EagerScope::All()).ok());
  EXPECT_EQ(sender.Send(1, Key("a"), SmallValue()).name, 1u);
  EXPECT_EQ(sender.Send(1, Key("b"), SmallValue()).name, 2u);
  EXPECT_EQ(sender.Send(1, Key("c"), SmallValue()).name, 0u);
}

TEST_F(EagerSenderTest, TheCreditOfAStep_IsPulledOnce) {
  Start();
  const RendezvousKey key = Key("a");
  EXPECT_TRUE(sender_.Send(1, key, SmallValue()).is_sent);
  EXPECT_TRUE(sender_.Send(1, key, SmallValue()).is_sent);
  const EagerSender::Decision third = sender_.Send(1, key, SmallValue());
  EXPECT_FALSE(third.is_sent);
  ASSERT_THAT(third.pulls, SizeIs(1));
  EXPECT_EQ(third.pulls[0].scope, EagerScope::Step(1));
  EXPECT_EQ(third.pulls[0].kind, EagerPullKind::kUntilFree);
  EXPECT_THAT(sender_.Send(1, Key("b"), SmallValue()).pulls, IsEmpty());
  // Other steps have their own.
  EXPECT_TRUE(sender_.Send(2, key, SmallValue()).is_sent);
  EXPECT_EQ(sender_.NextToDrain(), std::nullopt);
  ASSERT_TRUE(sender_.OnAck({0, 2}, Visit()).ok());
  ASSERT_TRUE(sender_.OnPush(EagerScope::Step(1)).ok());
  EXPECT_TRUE(sender_.needs_drain());
  EXPECT_EQ(sender_.NextToDrain()->second, key);
  EXPECT_EQ(sender_.NextToDrain()->second, Key("b"));
  EXPECT_EQ(sender_.NextToDrain(), std::nullopt);
}

TEST_F(EagerSenderTest, TheCreditInBytes_IsExceededByOneValue) {
  Start();
  EXPECT_TRUE(sender_.Send(1, Key("a"), SmallValue(99)).is_sent);
  EXPECT_TRUE(sender_.Send(1, Key("a"), SmallValue(99)).is_sent);
  EXPECT_FALSE(sender_.Send(1, Key("a"), SmallValue(1)).is_sent);
}

TEST_F(EagerSenderTest, TheCreditOfThePeer_PullsEverything) {
  Start();
  for (const int64_t step : {1, 2, 3})
    EXPECT_TRUE(sender_.Send(step, Key("a"), SmallValue()).is_sent);
  const EagerSender::Decision last = sender_.Send(4, Key("a"), SmallValue());
  EXPECT_FALSE(last.is_sent);
  ASSERT_THAT(last.pulls, SizeIs(1));
  EXPECT_EQ(last.pulls[0].scope, EagerScope::All());
  ASSERT_TRUE(sender_.OnAck({1, 1}, Visit()).ok());
  const auto scan = sender_.OnPush(EagerScope::All());
  ASSERT_TRUE(scan.ok());
  // Values kept since the first PUSH are known.
  EXPECT_FALSE(scan->is_needed);
  EXPECT_EQ(sender_.NextToDrain()->first, 4);
}

TEST_F(EagerSenderTest, AFullControlChannel_PullsEverything) {
  Start();
  EagerSender::Value value = SmallValue();
  value.is_channel_full = true;
  const EagerSender::Decision decision = sender_.Send(1, Key("a"), value);
  EXPECT_FALSE(decision.is_sent);
  ASSERT_THAT(decision.pulls, SizeIs(1));
  EXPECT_EQ(decision.pulls[0].scope, EagerScope::All());
  EXPECT_EQ(decision.pulls[0].kind, EagerPullKind::kUntilFree);
}

TEST_F(EagerSenderTest, LargeNames_AreOfferedAgainAfterTwoSmallValues) {
  Start();
  EXPECT_FALSE(sender_.Send(1, Key("a"), LargeValue()).is_sent);
  EXPECT_TRUE(sender_.is_pulled(2, Key("a")));
  EXPECT_FALSE(sender_.OnPush(EagerScope::Name(1)).ok());
  EXPECT_THAT(sender_.Send(1, Key("a"), SmallValue()).pulls, IsEmpty());
  EXPECT_THAT(sender_.Send(1, Key("a"), LargeValue()).pulls, IsEmpty());
  EXPECT_THAT(sender_.Send(1, Key("a"), SmallValue()).pulls, IsEmpty());
  const EagerSender::Decision decision = sender_.Send(1, Key("a"), SmallValue());
  ASSERT_THAT(decision.pulls, SizeIs(1));
  EXPECT_EQ(decision.pulls[0].kind, EagerPullKind::kMayPush);
  EXPECT_EQ(decision.pulls[0].scope, EagerScope::Name(1));
  EXPECT_THAT(sender_.Send(1, Key("a"), SmallValue()).pulls, IsEmpty());
  const auto scan = sender_.OnPush(EagerScope::Name(1));
  ASSERT_TRUE(scan.ok());
  EXPECT_TRUE(scan->is_needed);
  EXPECT_EQ(scan->key, Key("a"));
  sender_.AddToDrain(1, Key("a"));
  EXPECT_EQ(sender_.NextToDrain()->second, Key("a"));
}

TEST_F(EagerSenderTest, ValuesBehindOthersAndOfStartingSteps_Wait) {
  Start();
  EagerSender::Value behind = SmallValue();
  behind.is_behind_another = true;
  const EagerSender::Decision kept = sender_.Send(1, Key("a"), behind);
  EXPECT_FALSE(kept.is_sent);
  EXPECT_TRUE(kept.needs_drain);
  EagerSender::Value early = SmallValue();
  early.is_step_serving = false;
  EXPECT_FALSE(sender_.Send(2, Key("a"), early).needs_drain);
  EXPECT_EQ(sender_.NextToDrain()->first, 1);
  EXPECT_EQ(sender_.NextToDrain(), std::nullopt);
  sender_.OnStepServing(2);
  EXPECT_EQ(sender_.NextToDrain()->first, 2);
}

TEST_F(EagerSenderTest, PushesOfWhatWasNotPulled_AreViolations) {
  Start();
  sender_.Send(1, Key("a"), SmallValue());
  EXPECT_FALSE(sender_.OnPush(EagerScope::All()).ok());
  EXPECT_FALSE(sender_.OnPush(EagerScope::Step(1)).ok());
  EXPECT_FALSE(sender_.OnPush(EagerScope::Name(1)).ok());
  EXPECT_FALSE(sender_.OnPush(EagerScope::Name(2)).ok());
  // A step that is over here, or never was.
  EXPECT_TRUE(sender_.OnPush(EagerScope::Step(7)).ok());
}

TEST_F(EagerSenderTest, AcksOfWhatWasNotSent_AreViolations) {
  Start();
  EXPECT_FALSE(sender_.OnAck({0, 1}, Visit()).ok());
  sender_.Send(1, Key("a"), SmallValue());
  EXPECT_FALSE(sender_.OnAck({0, 2}, Visit()).ok());
  EXPECT_FALSE(sender_.OnAck({1, 1}, Visit()).ok());
  EXPECT_FALSE(sender_.OnAck({0, 0}, Visit()).ok());
  EXPECT_FALSE(sender_.OnAck({UINT32_MAX, 1}, Visit()).ok());
  EXPECT_TRUE(sender_.OnAck({0, 1}, Visit()).ok());
  // Once is enough, twice does nothing.
  EXPECT_TRUE(sender_.OnAck({0, 1}, Visit()).ok());
  EXPECT_THAT(Visited(), ElementsAre(0));
  EXPECT_EQ(sender_.values_out(), 0u);
}

TEST_F(EagerSenderTest, SequenceNumbersWrap) {
  const uint64_t first = UINT32_MAX;
  EagerSender sender(kProducersLimits, {}, first);
  ASSERT_TRUE(sender.OnPush(EagerScope::All()).ok());
  EXPECT_EQ(sender.Send(1, Key("a"), SmallValue()).sequence, first);
  EXPECT_EQ(sender.Send(1, Key("a"), SmallValue()).sequence, first + 1);
  ASSERT_TRUE(sender.OnAck({UINT32_MAX, 2}, Visit()).ok());
  EXPECT_THAT(Visited(), ElementsAre(first, first + 1));
  EXPECT_TRUE(sender.IsFlushed(1));
}

TEST_F(EagerSenderTest, RefusedValues_GiveTheirCreditBackAndAreNotReceived) {
  Start();
  sender_.Send(1, Key("a"), SmallValue());
  sender_.Send(2, Key("a"), SmallValue());
  sender_.OnStepRefused(1);
  EXPECT_EQ(sender_.values_out(), 1u);
  EXPECT_FALSE(sender_.IsFlushed(1));
  EXPECT_TRUE(sender_.is_pulled(1, Key("a")));
  EXPECT_FALSE(sender_.Send(1, Key("a"), SmallValue()).is_sent);
  sender_.OnStepRefused(1);
  EXPECT_EQ(sender_.values_out(), 1u);
  sender_.OnStepEnd(1, Visit());
  EXPECT_THAT(Visited(), ElementsAre(0));
  EXPECT_EQ(sender_.InnerTableSizes().at("eager_sender.records"), 1u);
}

TEST_F(EagerSenderTest, ValuesOfAStepThatIsOver_HoldCreditUntilTheyAreAnswered) {
  Start();
  sender_.Send(1, Key("a"), SmallValue());
  sender_.Send(1, Key("a"), SmallValue());
  sender_.OnStepEnd(1, Visit());
  EXPECT_THAT(Visited(), ElementsAre(0, 1));
  EXPECT_EQ(sender_.values_out(), 2u);
  ASSERT_TRUE(sender_.OnAck({0, 1}, Visit()).ok());
  sender_.OnStepRefused(1);
  EXPECT_THAT(Visited(), IsEmpty());
  EXPECT_EQ(sender_.values_out(), 0u);
  EXPECT_EQ(sender_.InnerTableSizes().at("eager_sender.records"), 0u);
  EXPECT_EQ(sender_.InnerTableSizes().at("eager_sender.steps"), 0u);
}

TEST_F(EagerSenderTest, RejectedValues_AreAcknowledgedOnce) {
  Start();
  sender_.Send(1, Key("a"), SmallValue());
  EXPECT_FALSE(sender_.OnRejected(0).ok());
  EXPECT_FALSE(sender_.OnRejected(kEagerRejectedBit | 1).ok());
  const auto rejected = sender_.OnRejected(kEagerRejectedBit | 0);
  ASSERT_TRUE(rejected.ok());
  ASSERT_TRUE(rejected->has_value());
  EXPECT_EQ((*rejected)->key, Key("a"));
  EXPECT_TRUE(sender_.IsFlushed(1));
  EXPECT_FALSE(sender_.OnRejected(kEagerRejectedBit | 0)->has_value());
}

TEST_F(EagerSenderTest, AStepThatIsClosed_AsksForAcksAfterTheNextValue) {
  Start();
  EXPECT_FALSE(sender_.StartFlush(1));
  const EagerSender::Decision drained = sender_.Send(1, Key("a"), SmallValue());
  EXPECT_TRUE(drained.asks_for_acks);
  EXPECT_FALSE(sender_.Send(1, Key("a"), SmallValue()).asks_for_acks);
  sender_.Send(2, Key("a"), SmallValue());
  EXPECT_TRUE(sender_.StartFlush(2));
  EXPECT_FALSE(sender_.StartFlush(2));
}

TEST_F(EagerSenderTest, AtTheEndOfTheControlChannel_EverythingIsLostAndForgotten) {
  Start();
  sender_.Send(1, Key("a"), SmallValue());
  sender_.Send(2, Key("b"), SmallValue());
  sender_.OnStepEnd(2, Visit());
  EXPECT_THAT(Visited(), ElementsAre(1));
  sender_.OnChannelEnd(Visit());
  EXPECT_THAT(Visited(), ElementsAre(0));
  EXPECT_EQ(NonEmptyTables(sender_.InnerTableSizes()), "");
  EXPECT_FALSE(sender_.Send(1, Key("a"), SmallValue()).is_sent);
}

}  // namespace
}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// A producer's decisions to send or to queue, and its reactions to the answers.
#include "rendezvous/peer/eager_sender.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"

#include "tests/rendezvous/rendezvous_fixture.h"

namespace ferry {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr EagerLimits kProducersLimits = {2, 100, 3, 1000, 2, 1000};
constexpr EagerLimits kFourNames = {.names = 4};

EagerSender::Value SmallValue(size_t bytes = 8) { return {.bytes = bytes, .is_eager = true}; }
EagerSender::Value LargeValue() { return {.bytes = 1u << 20, .is_eager = false}; }

class EagerSenderTest : public testing::Test {
 protected:
  void Start() { ASSERT_TRUE(sender_.OnPush(EagerScope::All()).ok()); }
  // The sequence numbers that are visited.
  auto Visit() {
    return [this](uint64_t sequence, const auto& record) { visited_.push_back(sequence); };
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
  const EagerSender::Decision text = sender_.Send(1, Key("a"), SmallValue());
  EXPECT_TRUE(text.is_sent);
  EXPECT_FALSE(text.defines_name);
  EXPECT_EQ(text.name, 0u);
  EXPECT_EQ(sender_.FindName(1), nullptr);
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
  // The key of a value without a number is kept until it is acknowledged.
  ASSERT_TRUE(sender_.OnAck({0, 2}, Visit()).ok());
  EXPECT_THAT(Visited(), ElementsAre(0, 1));
}

// Values of names that are used once take no number from those that are used again.
TEST_F(EagerSenderTest, NamesThatAreUsedOnce_HaveNoNumber) {
  EagerSender sender(EagerLimits{});
  ASSERT_TRUE(sender.OnPush(EagerScope::All()).ok());
  for (int use = 0; use < 2; ++use) sender.Send(1, Key("often"), SmallValue());
  int numbered = 0;
  for (int i = 0; i < 1000; ++i) {
    numbered += sender.Send(1, Key(absl::StrCat("once ", i)), SmallValue()).name == 0 ? 0 : 1;
    EXPECT_EQ(sender.Send(1, Key("often"), SmallValue()).name, 1u);
  }
  // The filter takes a few for names that it has seen.
  EXPECT_LE(numbered, 30);
}

TEST_F(EagerSenderTest, ABurst_TakesNamesWithAndWithoutNumbers) {
  EagerSender sender(kFourNames);
  ASSERT_TRUE(sender.OnPush(EagerScope::All()).ok());
  EagerSender::Decision decision;
  ASSERT_TRUE(sender.StartBurst(1, decision));
  std::vector<std::pair<uint32_t, bool>> names;
  for (const char* const name : {"a", "b", "a", "a"}) {
    ASSERT_TRUE(sender.SendInBurst(Key(name), 8, 0, decision));
    names.emplace_back(decision.name, decision.defines_name);
  }
  using Name = std::pair<uint32_t, bool>;
  EXPECT_THAT(names, ElementsAre(Name(0, false), Name(0, false), Name(1, true), Name(1, false)));
  std::vector<std::string> keys;
  sender.OnStepEnd(1, [&](uint64_t, const EagerSender::Record& record) {
    keys.push_back(std::string(record.key.edge()));
  });
  EXPECT_THAT(keys, UnorderedElementsAre("a", "b", "a", "a"));
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

TEST_F(EagerSenderTest, TextsOfNamesAreBounded) {
  const size_t bytes = Key("a").text().size();
  EagerSender sender({10, 1000, 10, 1000, 10, static_cast<uint32_t>(2 * bytes)});
  ASSERT_TRUE(sender.OnPush(EagerScope::All()).ok());
  for (const char* const name : {"a", "b", "c"}) sender.Send(1, Key(name), SmallValue());
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

TEST_F(EagerSenderTest, NamesThatArePulled_AreGivenBack) {
  EagerSender sender(kFourNames);
  ASSERT_TRUE(sender.OnPush(EagerScope::All()).ok());
  const auto pull = [&](absl::string_view name) {
    return sender.Send(1, Key(name), LargeValue()).pulls;
  };
  EXPECT_EQ(pull("a").size(), 1u);
  EXPECT_EQ(pull("b").size(), 1u);
  const auto third = pull("c");
  ASSERT_EQ(third.size(), 2u);
  EXPECT_EQ(third[1].kind, EagerPullKind::kMayPush);
  EXPECT_EQ(third[1].scope, EagerScope::Name(1));
  const auto fourth = pull("d");
  ASSERT_EQ(fourth.size(), 2u);
  EXPECT_EQ(fourth[1].scope, EagerScope::Name(2));
  EXPECT_TRUE(sender.OnPush(EagerScope::Name(1)).ok());
  // The number of "a".
  const auto fifth = pull("e");
  ASSERT_GE(fifth.size(), 1u);
  EXPECT_EQ(fifth[0].scope, EagerScope::Name(1));
}

TEST_F(EagerSenderTest, WithoutANumberEverythingIsPulled_UntilNumbersAreFree) {
  EagerSender sender(kFourNames);
  ASSERT_TRUE(sender.OnPush(EagerScope::All()).ok());
  for (const absl::string_view name : {"a", "b", "c", "d"}) {
    sender.Send(1, Key(name), LargeValue());
  }
  const auto all = sender.Send(1, Key("e"), LargeValue());
  ASSERT_EQ(all.pulls.size(), 1u);
  EXPECT_EQ(all.pulls[0].scope, EagerScope::All());
  EXPECT_EQ(all.pulls[0].kind, EagerPullKind::kUntilMayPush);
  // Not asked for yet.
  EXPECT_FALSE(sender.OnPush(EagerScope::All()).ok());
  // "a" and "b" have been asked for, and the rest is by the next values.
  for (int i = 0; i < 2; ++i) {
    const auto more = sender.Send(2, Key("f"), SmallValue());
    EXPECT_FALSE(more.is_sent);
    ASSERT_EQ(more.pulls.size(), 1u);
    EXPECT_EQ(more.pulls[0].kind, EagerPullKind::kMayPush);
  }
  for (uint32_t name = 1; name <= 3; ++name) {
    EXPECT_TRUE(sender.OnPush(EagerScope::Name(name)).ok()) << name;
  }
  const auto ready = sender.Send(2, Key("f"), SmallValue());
  EXPECT_FALSE(ready.is_sent);
  ASSERT_EQ(ready.pulls.size(), 1u);
  EXPECT_EQ(ready.pulls[0].scope, EagerScope::All());
  EXPECT_TRUE(sender.OnPush(EagerScope::All()).ok());
  EXPECT_TRUE(sender.needs_drain());
  EXPECT_TRUE(sender.Send(3, Key("f"), SmallValue()).is_sent);
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

TEST_F(EagerSenderTest, AStepThatIsFlushed_AsksForAcksAfterEachValueUntilTheEnd) {
  EagerSender sender(kFourNames);
  ASSERT_TRUE(sender.OnPush(EagerScope::All()).ok());
  EXPECT_FALSE(sender.StartFlush(1));
  const EagerSender::Decision drained = sender.Send(1, Key("a"), SmallValue());
  EXPECT_TRUE(drained.asks_for_acks);
  EXPECT_TRUE(sender.Send(1, Key("a"), SmallValue()).asks_for_acks);
  sender.EndFlush(1);
  EXPECT_FALSE(sender.Send(1, Key("a"), SmallValue()).asks_for_acks);
  sender.Send(2, Key("a"), SmallValue());
  EXPECT_TRUE(sender.StartFlush(2));
  EXPECT_FALSE(sender.StartFlush(2));
  sender.EndFlush(2);
  // The next flush asks again, for what was sent since.
  EXPECT_FALSE(sender.StartFlush(2));
  sender.EndFlush(2);
  sender.Send(2, Key("a"), SmallValue());
  EXPECT_TRUE(sender.StartFlush(2));
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

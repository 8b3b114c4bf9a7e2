// SPDX-License-Identifier: Apache-2.0
// Lending buffers in place: scenarios 107 to 111; and requests that come twice: 56 and 57.
#include "rendezvous/buf_rendezvous.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/recent_request_ids.h"
#include "rendezvous_fixture.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kIncarnation = 7;

class Buf : public ::testing::Test {
 protected:
  void Provide(const std::string& key, Tensor tensor) {
    buf_->Provide(key, std::move(tensor),
                  [this](absl::Status status) { log_.push_back("producer " + status.ToString()); });
  }
  void Consume(const std::string& key, uint64_t incarnation = kIncarnation) {
    buf_->Consume(key, incarnation, [this](absl::Status status, LentBuffer lent) {
      log_.push_back("consumer " + status.ToString());
      lent_ = std::move(lent);
    });
  }

  std::vector<std::string> log_;
  std::unique_ptr<BufRendezvous> buf_ = std::make_unique<BufRendezvous>(kIncarnation);
  // Last: giving it back is logged.
  LentBuffer lent_;
};

// Scenario 107.
TEST_F(Buf, TheProducerHearsWhenTheConsumerIsDone) {
  for (const bool provides_first : {true, false}) {
    log_.clear();
    const Tensor tensor = Bytes(8);
    if (provides_first) Provide("k", tensor);
    Consume("k");
    if (!provides_first) Provide("k", tensor);
    EXPECT_THAT(log_, ElementsAre("consumer OK"));
    EXPECT_EQ(lent_.tensor().data(), tensor.data());
    lent_.Release();
    EXPECT_THAT(log_, ElementsAre("consumer OK", "producer OK"));
    lent_.Release();
    EXPECT_EQ(log_.size(), 2u);
  }
}

TEST_F(Buf, ABufferIsGivenBackByWhoeverDropsIt) {
  Provide("k", Bytes(8));
  buf_->Consume("k", kIncarnation, [](absl::Status, LentBuffer) {});
  EXPECT_THAT(log_, ElementsAre("producer OK"));
}

TEST_F(Buf, TakesOneProducerAndOneConsumer) {
  Provide("p", Bytes(8));
  Provide("p", Bytes(8));
  Consume("c");
  Consume("c");
  EXPECT_THAT(log_,
              ElementsAre("producer INTERNAL: BufRendezvous::ProvideBuf already called for key p",
                          "consumer INTERNAL: Second consumer arrived for key c"));
}

// Scenario 109.
TEST_F(Buf, DestructionEndsWhoWaits) {
  Consume("c");
  Provide("p", Bytes(8));
  buf_ = nullptr;
  ASSERT_EQ(log_.size(), 2u);
  for (const std::string& line : log_) {
    EXPECT_THAT(line, HasSubstr("INTERNAL: Delete called on non-empty BufRendezvous"));
  }
}

// Scenario 110.
TEST_F(Buf, AbortReachesBothSidesAndThoseWhoComeLater) {
  Consume("c");
  Provide("p", Bytes(8));
  buf_->StartAbort(absl::AbortedError("over"));
  buf_->StartAbort(absl::InternalError("later"));
  Consume("x");
  Provide("y", Bytes(8));
  ASSERT_EQ(log_.size(), 4u);
  for (const std::string& line : log_) EXPECT_THAT(line, HasSubstr("ABORTED: over"));
}

// Scenario 111.
TEST_F(Buf, AConsumerOfAnotherLifeIsRefused) {
  Provide("k", Bytes(8));
  Consume("k", kIncarnation + 1);
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_THAT(log_[0], StartsWith("consumer FAILED_PRECONDITION: RecvBuf expects a different"));
  // The buffer is still there for the right one.
  Consume("k");
  EXPECT_EQ(log_.back(), "consumer OK");
}

// Scenarios 56 and 57.
TEST(RecentRequestIds, NoticesTheSameIdWithinItsWindow) {
  RecentRequestIds ids(3);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(ids.TrackUnique(0, "RecvTensor").ok());
  for (const int64_t id : {10, -11, 12}) EXPECT_TRUE(ids.TrackUnique(id, "RecvTensor").ok());
  const absl::Status twice = ids.TrackUnique(-11, "RecvTensor");
  EXPECT_EQ(twice.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(twice.message()),
              StartsWith("The same RecvTensor request was received twice."));
  // Pushed out by the fourth.
  EXPECT_TRUE(ids.TrackUnique(13, "RecvTensor").ok());
  EXPECT_TRUE(ids.TrackUnique(10, "RecvTensor").ok());
}

// Keys of collectives are used again in every step.
TEST_F(Buf, UsedKey_CanBeUsedAgain) {
  for (int round = 0; round < 2; ++round) {
    Consume("k");
    Provide("k", Bytes(8));
    lent_.Release();
    Provide("q", Bytes(8));
    Consume("q");
    lent_.Release();
  }
  std::vector<std::string> expected;
  for (int i = 0; i < 4; ++i) {
    expected.emplace_back("consumer OK");
    expected.emplace_back("producer OK");
  }
  EXPECT_EQ(log_, expected);
}

// A request that was cancelled, and that its client repeats with the same id.
TEST(RecentRequestIds, AForgottenIdThatComesAgain_IsRememberedForItsWholeTime) {
  for (const int before : {0, 1, 2}) {
    RecentRequestIds ids(4);
    uint64_t turn = 0;
    ASSERT_TRUE(ids.TrackUnique(7, "RecvTensor", &turn).ok());
    ids.Forget(7, turn);
    EXPECT_FALSE(ids.Contains(7));
    int64_t next = 100;
    for (int i = 0; i < before; ++i) ASSERT_TRUE(ids.TrackUnique(++next, "RecvTensor").ok());
    ASSERT_TRUE(ids.TrackUnique(7, "RecvTensor").ok());
    // The window is of four: with three after it, it is still there, whatever its first place was.
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(ids.TrackUnique(++next, "RecvTensor").ok());
      EXPECT_TRUE(ids.Contains(7)) << before << ", " << i;
    }
    ASSERT_TRUE(ids.TrackUnique(++next, "RecvTensor").ok());
    EXPECT_FALSE(ids.Contains(7)) << before;
  }
}

// Forgetting a request that has left the window does not affect a later one with its id.
TEST(RecentRequestIds, AForgottenFirstGeneration_LeavesTheSecond) {
  RecentRequestIds ids(2);
  uint64_t first = 0;
  uint64_t second = 0;
  ASSERT_TRUE(ids.TrackUnique(7, "RecvTensor", &first).ok());
  ASSERT_TRUE(ids.TrackUnique(8, "RecvTensor").ok());
  ASSERT_TRUE(ids.TrackUnique(9, "RecvTensor").ok());
  ASSERT_TRUE(ids.TrackUnique(7, "RecvTensor", &second).ok());
  ids.Forget(7, first);
  EXPECT_TRUE(ids.Contains(7));
  ids.Forget(7, second);
  EXPECT_FALSE(ids.Contains(7));
  // Forgetting it again has no effect.
  ids.Forget(7, second);
  ASSERT_TRUE(ids.TrackUnique(7, "RecvTensor").ok());
  ids.Forget(7, second);
  EXPECT_TRUE(ids.Contains(7));
}

// Against a plain list of what was asked.
TEST(RecentRequestIds, AnyOrderOfCalls_AgreesWithAPlainWindow) {
  constexpr size_t kWindow = 5;
  RecentRequestIds ids(kWindow);
  // Ids by turn; 0 once they are forgotten.
  std::vector<int64_t> turns;
  uint64_t state = 3;
  for (int i = 0; i < 20'000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto id = static_cast<int64_t>(1 + (state >> 33) % 8);
    const size_t oldest = turns.size() > kWindow ? turns.size() - kWindow : 0;
    if ((state >> 60) < 5 && !turns.empty()) {
      const size_t turn = (state >> 40) % turns.size();
      const int64_t forgotten = turns[turn];
      if (forgotten == 0) continue;
      ids.Forget(forgotten, turn);
      if (turn >= oldest) turns[turn] = 0;
    } else {
      const bool is_known =
          std::find(turns.begin() + static_cast<long>(oldest), turns.end(), id) != turns.end();
      uint64_t turn = 0;
      ASSERT_EQ(ids.TrackUnique(id, "RecvTensor", &turn).ok(), !is_known) << i;
      if (is_known) continue;
      ASSERT_EQ(turn, turns.size());
      turns.push_back(id);
    }
  }
}

}  // namespace
}  // namespace ferry

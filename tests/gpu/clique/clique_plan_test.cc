// SPDX-License-Identifier: Apache-2.0
// Ranks find together through a store, and whatever goes wrong is said with a name.
#include "gpu/clique/clique_plan.h"

#include <deque>
#include <functional>
#include <memory>

#include <gmock/gmock.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// One store for all ranks; each hears of it when the test says so.
class FakeStore final {
 public:
  class View final : public CliqueStore {
   public:
    explicit View(FakeStore& store) : store_(store) {}
    void Watch(absl::string_view prefix) override {
      prefix_ = std::string(prefix);
      for (const auto& [key, value] : store_.entries) Tell(key, value);
      news.emplace_back();
    }
    void Set(absl::string_view key, std::string value) override { store_.Put(key, value); }
    void CompareAndSet(absl::string_view key, std::optional<std::string> expected,
                       std::string desired) override {
      const auto found = store_.entries.find(std::string(key));
      const bool holds =
          found == store_.entries.end() ? !expected.has_value() : expected == found->second;
      if (holds) store_.Put(key, desired);
    }
    void DeletePrefix(absl::string_view prefix) override {
      std::erase_if(store_.entries,
                    [&](const auto& entry) { return absl::StartsWith(entry.first, prefix); });
    }
    void Tell(const std::string& key, const std::string& value) {
      if (!prefix_.empty() && absl::StartsWith(key, prefix_)) news.push_back({key, value});
    }

    // Without a key: that is all that was there.
    std::deque<std::pair<std::string, std::string>> news;

   private:
    FakeStore& store_;
    std::string prefix_;
  };

  void Put(absl::string_view key, const std::string& value) {
    entries[std::string(key)] = value;
    for (View* view : views) view->Tell(std::string(key), value);
  }

  std::map<std::string, std::string> entries;
  std::vector<View*> views;
};

class FakeSteps final : public CliqueSteps {
 public:
  absl::StatusOr<std::vector<std::string>> Mint(int count) override {
    if (!mint_error.ok()) return std::exchange(mint_error, absl::OkStatus());
    std::vector<std::string> ids;
    for (int i = 0; i < count; ++i) {
      ids.emplace_back(kNcclUniqueIdBytes, static_cast<char>('a' + minted++));
    }
    return ids;
  }
  void Initialise(uint32_t generation, const std::vector<std::string>& ids) override {
    initialised.emplace_back(generation, ids);
  }
  void WarmUp(uint32_t generation) override { warmed.push_back(generation); }
  void GivenUp(uint32_t generation, const absl::Status& why) override {
    given_up.push_back(generation);
  }
  void Discard(uint32_t generation, const absl::Status& why) override {
    discarded.push_back(generation);
  }
  void Ended(const absl::Status& status) override { ended.push_back(status); }

  absl::Status mint_error;
  int minted = 0;
  std::vector<std::pair<uint32_t, std::vector<std::string>>> initialised;
  std::vector<uint32_t> warmed;
  std::vector<uint32_t> given_up;
  std::vector<uint32_t> discarded;
  std::vector<absl::Status> ended;
};

struct Rank {
  std::unique_ptr<FakeStore::View> view;
  FakeSteps steps;
  std::unique_ptr<CliquePlan> plan;

  void Hear() {
    while (!view->news.empty()) {
      const auto [key, value] = view->news.front();
      view->news.pop_front();
      key.empty() ? plan->OnWatching() : plan->OnEntry(key, value);
    }
  }
};

class CliquePlanTest : public testing::Test {
 protected:
  CliquePlanTest() { Make(3); }

  void Make(int count, std::map<int, int> versions = {}) {
    std::vector<CliqueMember> members;
    for (int rank = 0; rank < count; ++rank) {
      members.push_back({10 + rank, 0x1000 + static_cast<uint64_t>(rank)});
    }
    key_ = *CliqueKey::Create(members);
    ranks_.clear();
    store_.views.clear();
    for (int rank = 0; rank < count; ++rank) {
      CliquePlanOptions options;
      options.nccl_version = versions.contains(rank) ? versions[rank] : 22809;
      auto made = std::make_unique<Rank>();
      made->view = std::make_unique<FakeStore::View>(store_);
      made->plan =
          std::make_unique<CliquePlan>(*key_, rank, options, *made->view, made->steps, clock_);
      store_.views.push_back(made->view.get());
      ranks_.push_back(std::move(made));
    }
  }
  void Start(const std::vector<int>& which) {
    for (const int rank : which) ranks_[rank]->plan->Start();
    Hear();
  }
  void Hear() {
    for (bool is_any = true; is_any;) {
      is_any = false;
      for (auto& rank : ranks_) {
        is_any |= !rank->view->news.empty();
        rank->Hear();
      }
    }
  }
  void FinishAll(uint32_t generation) {
    for (auto& rank : ranks_) {
      rank->plan->OnInitialised(generation, absl::OkStatus());
      EXPECT_EQ(rank->plan->state(), CliqueState::kWarmingUp);
      rank->plan->OnWarmedUp(generation, absl::OkStatus());
      EXPECT_EQ(rank->plan->state(), CliqueState::kReady);
    }
    Hear();
  }

  FakeClock clock_;
  FakeStore store_;
  std::optional<CliqueKey> key_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_F(CliquePlanTest, TheFirstRankMintsWhenAllAreThere) {
  EXPECT_EQ(ranks_[0]->plan->state(), CliqueState::kIdle);
  Start({0, 2});
  EXPECT_EQ(ranks_[0]->steps.minted, 0) << "an id costs a thread until all ranks have come";
  EXPECT_EQ(ranks_[0]->plan->state(), CliqueState::kWaiting);
  Start({1});
  EXPECT_EQ(ranks_[0]->steps.minted, 1);
  for (auto& rank : ranks_) {
    ASSERT_THAT(rank->steps.initialised, SizeIs(1));
    EXPECT_EQ(rank->steps.initialised[0], ranks_[0]->steps.initialised[0]);
    EXPECT_EQ(rank->plan->state(), CliqueState::kInitialising);
  }
  FinishAll(1);
  for (auto& rank : ranks_) EXPECT_THAT(rank->steps.ended, ElementsAre(absl::OkStatus()));
  EXPECT_THAT(store_.entries, IsEmpty()) << "nobody needs them any more";
}

TEST_F(CliquePlanTest, OneIdForEvery128Ranks) {
  EXPECT_EQ(UniqueIdCount(128), 1);
  EXPECT_EQ(UniqueIdCount(129), 2);
  Make(300);
  std::vector<int> all;
  for (int rank = 0; rank < 300; ++rank) all.push_back(rank);
  Start(all);
  for (auto& rank : ranks_) {
    ASSERT_THAT(rank->steps.initialised, SizeIs(1));
    EXPECT_THAT(rank->steps.initialised[0].second, SizeIs(3));
  }
}

TEST_F(CliquePlanTest, AMissingRankIsNamed) {
  Start({0, 1});
  clock_.Advance(absl::Seconds(59));
  ranks_[1]->plan->Expire();
  EXPECT_EQ(ranks_[1]->plan->state(), CliqueState::kWaiting);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(ranks_[1]->plan->NextDeadline(), clock_.Now());
  ranks_[1]->plan->Expire();
  EXPECT_THAT(ranks_[1]->steps.ended,
              ElementsAre(absl::DeadlineExceededError(
                  "the clique of devices 10-12, generation 1, rank 1 (device 11): waited 60s for "
                  "1 of 3: rank 2 (device 12) has not come")));
  EXPECT_EQ(ranks_[1]->plan->state(), CliqueState::kFailed);
  EXPECT_EQ(ranks_[0]->steps.minted, 0);
}

// Its presence is there, its id never comes; its death is known by the coordinator.
TEST_F(CliquePlanTest, TheMinterDiesBeforeItPublishes) {
  for (const int rank : {0, 1, 2}) ranks_[rank]->plan->Start();
  for (const int rank : {0, 1, 2}) {
    while (!ranks_[rank]->view->news.empty() && ranks_[rank]->view->news.front().first.empty()) {
      ranks_[rank]->plan->OnWatching();
      ranks_[rank]->view->news.pop_front();
    }
  }
  for (const int rank : {1, 2}) ranks_[rank]->Hear();
  EXPECT_EQ(ranks_[1]->plan->state(), CliqueState::kWaiting);
  ranks_[1]->plan->PeerFailed(0, absl::UnavailableError("no heartbeat for 10s"));
  EXPECT_THAT(ranks_[1]->steps.ended,
              ElementsAre(absl::UnavailableError(
                  "the clique of devices 10-12, generation 1, rank 1 (device 11): rank 0 (device "
                  "10) has failed: no heartbeat for 10s")));
  clock_.Advance(absl::Minutes(2));
  ranks_[2]->Hear();
  ranks_[2]->plan->Expire();
  EXPECT_THAT(ranks_[2]->steps.ended, SizeIs(1));
}

// The ids are there, but their root is not: initialising would wait for ever.
TEST_F(CliquePlanTest, TheMinterDiesAfterItPublished) {
  Start({0, 1, 2});
  EXPECT_EQ(ranks_[1]->plan->state(), CliqueState::kInitialising);
  ranks_[1]->plan->PeerFailed(0, absl::UnavailableError("no heartbeat for 10s"));
  EXPECT_EQ(ranks_[1]->plan->state(), CliqueState::kFailed);
  EXPECT_THAT(ranks_[1]->steps.discarded, ElementsAre(1));
  // A late answer changes nothing.
  ranks_[1]->plan->OnInitialised(1, absl::OkStatus());
  EXPECT_EQ(ranks_[1]->plan->state(), CliqueState::kFailed);
  // Its next life is of another clique.
  const CliqueKey reborn = *CliqueKey::Create({{10, 0x9999}, {11, 0x1001}, {12, 0x1002}});
  EXPECT_NE(reborn.prefix(), key_->prefix());
}

TEST_F(CliquePlanTest, AFailedAttemptIsMadeAgainUnderANewGenerationWithANewId) {
  Start({0, 1, 2});
  const auto first = ranks_[2]->steps.initialised[0].second;
  ranks_[2]->plan->OnInitialised(1, absl::InternalError("connection refused"));
  Hear();
  for (auto& rank : ranks_) {
    EXPECT_THAT(rank->steps.discarded, ElementsAre(1));
    ASSERT_THAT(rank->steps.initialised, SizeIs(2));
    EXPECT_EQ(rank->steps.initialised[1].first, 2);
    EXPECT_NE(rank->steps.initialised[1].second, first);
  }
  ranks_[0]->plan->OnInitialised(1, absl::OkStatus());
  EXPECT_EQ(ranks_[0]->plan->state(), CliqueState::kInitialising) << "that was generation 1's";
  FinishAll(2);
}

TEST_F(CliquePlanTest, AttemptsHaveAnEnd) {
  Start({0, 1, 2});
  for (uint32_t generation = 1; generation <= 4; ++generation) {
    ranks_[2]->plan->OnInitialised(generation, absl::InternalError("connection refused"));
    Hear();
  }
  EXPECT_EQ(ranks_[2]->plan->state(), CliqueState::kFailed);
  EXPECT_EQ(ranks_[2]->plan->status(),
            absl::InternalError("connection refused (the last of 4 attempts)"));
}

// A process that begins anew in the same life: the id of before has been used.
TEST_F(CliquePlanTest, AStaleIdIsNeverUsed) {
  Start({0, 1, 2});
  const auto stale = ranks_[0]->steps.initialised[0].second;
  Make(3);
  for (auto& rank : ranks_) rank->steps.minted = 7;
  Start({0, 1, 2});
  for (auto& rank : ranks_) {
    ASSERT_THAT(rank->steps.initialised, SizeIs(1));
    EXPECT_EQ(rank->steps.initialised[0].first, 2);
    EXPECT_NE(rank->steps.initialised[0].second, stale);
  }
}

TEST_F(CliquePlanTest, AnIdOfAnotherLifeOfTheMinterIsNotUsed) {
  store_.Put(key_->UniqueIdKey(1),
             EncodeCliqueIds({22809, 0xdead, {std::string(kNcclUniqueIdBytes, 'x')}}));
  Start({0, 1, 2});
  for (auto& rank : ranks_) {
    ASSERT_THAT(rank->steps.initialised, SizeIs(1));
    EXPECT_EQ(rank->steps.initialised[0].first, 2);
    EXPECT_NE(rank->steps.initialised[0].second[0][0], 'x');
  }
}

TEST_F(CliquePlanTest, DifferentVersionsOfNcclAreBothNamed) {
  Make(3, {{2, 22703}});
  Start({0, 1, 2});
  EXPECT_EQ(ranks_[0]->steps.minted, 0);
  for (auto& rank : ranks_) {
    EXPECT_EQ(rank->plan->state(), CliqueState::kFailed);
    ASSERT_THAT(rank->steps.ended, SizeIs(1));
    EXPECT_EQ(rank->steps.ended[0].code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(rank->steps.ended[0].message()), HasSubstr("2.28.9"));
    EXPECT_THAT(std::string(rank->steps.ended[0].message()), HasSubstr("2.27.3"));
    EXPECT_THAT(std::string(rank->steps.ended[0].message()), HasSubstr("rank 2 (device 12)"));
  }
}

// What is there belongs to whoever has it: calls on it may be under way.
TEST_F(CliquePlanTest, WhenOneRetiresAllHearOfItAndMoveOn) {
  Start({0, 1, 2});
  FinishAll(1);
  ranks_[1]->plan->Retire(absl::AbortedError("device 12 was slow"));
  store_.Put(key_->GenerationKey(), "2");
  Hear();
  for (const int rank : {0, 2}) {
    EXPECT_THAT(ranks_[rank]->steps.given_up, ElementsAre(1)) << "once";
    EXPECT_THAT(ranks_[rank]->steps.discarded, IsEmpty());
    EXPECT_EQ(ranks_[rank]->plan->state(), CliqueState::kReady);
    ranks_[rank]->plan->Retire(absl::AbortedError("given up"));
  }
  Hear();
  EXPECT_EQ(store_.entries[key_->GenerationKey()], "2") << "it has been moved on already";
  for (auto& rank : ranks_) {
    EXPECT_EQ(rank->plan->state(), CliqueState::kIdle);
    EXPECT_THAT(rank->steps.discarded, ElementsAre(1));
    EXPECT_THAT(rank->steps.ended, SizeIs(1));
  }
  EXPECT_THAT(ranks_[1]->steps.given_up, IsEmpty()) << "it has done so itself";
  Start({0, 1, 2});
  FinishAll(2);
}

// A clique that has no first exchange: some are through when another one's attempt fails.
TEST_F(CliquePlanTest, WhoIsReadyHearsThatAnotherRankHasFailed) {
  Start({0, 1, 2});
  for (const int rank : {0, 1}) {
    ranks_[rank]->plan->OnInitialised(1, absl::OkStatus());
    ranks_[rank]->plan->OnWarmedUp(1, absl::OkStatus());
  }
  ranks_[2]->plan->OnInitialised(1, absl::InternalError("connection refused"));
  Hear();
  EXPECT_EQ(ranks_[2]->plan->state(), CliqueState::kWaiting);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(ranks_[rank]->steps.given_up, ElementsAre(1));
    ranks_[rank]->plan->Retire(absl::AbortedError("given up"));
    ranks_[rank]->plan->Start();
  }
  Hear();
  FinishAll(2);
}

// The owner knows from its peers what the store does not say yet.
TEST_F(CliquePlanTest, StartsNoGenerationThatTheOwnerKnowsToBeOver) {
  for (auto& rank : ranks_) rank->plan->Start(5);
  Hear();
  FinishAll(5);
}

TEST_F(CliquePlanTest, MintingThatFailsIsTriedAgain) {
  ranks_[0]->steps.mint_error = absl::InternalError("no interface found");
  Start({0, 1, 2});
  FinishAll(2);
}

TEST_F(CliquePlanTest, AStoreThatIsGoneEndsIt) {
  Start({0});
  ranks_[0]->plan->OnStoreFailed(absl::UnavailableError("the coordinator is out of reach"));
  EXPECT_THAT(ranks_[0]->steps.ended, SizeIs(1));
  EXPECT_EQ(ranks_[0]->plan->NextDeadline(), absl::InfiniteFuture());
}

TEST(CliqueKeyTest, DependsOnOrderIncarnationAndEveryDevice) {
  std::vector<CliqueMember> many;
  for (int i = 0; i < 20; ++i) many.push_back({i, 1});
  const std::string all = CliqueKey::Create(many)->prefix();
  EXPECT_THAT(all, testing::MatchesRegex("nccl/[0-9a-f]{32}/"));
  for (int i = 0; i < 20; ++i) {
    std::vector<CliqueMember> other = many;
    other[i].incarnation = 2;
    EXPECT_NE(CliqueKey::Create(other)->prefix(), all);
    other[i] = {100, 1};
    EXPECT_NE(CliqueKey::Create(other)->prefix(), all);
  }
  std::swap(many[3], many[4]);
  EXPECT_NE(CliqueKey::Create(many)->prefix(), all);
  EXPECT_TRUE(CliqueKey::Create({{1, 1}}).ok());
  EXPECT_FALSE(CliqueKey::Create({}).ok());
  EXPECT_FALSE(CliqueKey::Create({{1, 1}, {1, 2}}).ok());
}

TEST(CliqueIdsTest, AnyChangedByteIsNoticed) {
  const CliqueIds ids{22809, 77, {std::string(128, 'a'), std::string(128, 'b')}};
  const std::string value = EncodeCliqueIds(ids);
  EXPECT_EQ(*DecodeCliqueIds(value), ids);
  for (size_t i = 0; i < value.size(); ++i) {
    std::string other = value;
    other[i] ^= 1;
    EXPECT_FALSE(DecodeCliqueIds(other).ok()) << i;
    EXPECT_FALSE(DecodeCliqueIds(value.substr(0, i)).ok()) << i;
  }
  EXPECT_FALSE(DecodeCliqueIds(value + "x").ok());
  EXPECT_EQ(NcclVersionText(22809), "2.28.9");
  EXPECT_EQ(NcclVersionText(2708), "2.7.8");
}

}  // namespace
}  // namespace ferry

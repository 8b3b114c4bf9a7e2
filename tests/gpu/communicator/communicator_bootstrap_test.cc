// SPDX-License-Identifier: Apache-2.0
// Ranks find each other through a store, and every failure names the rank.
#include "tests/gpu/communicator/bootstrap_ranks.h"

namespace ferry {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

TEST_F(CommunicatorBootstrapTest, FirstRankCreatesTheIdsWhenAllHaveArrived) {
  EXPECT_EQ(ranks_[0]->bootstrap->state(), BootstrapState::kIdle);
  Start({0, 2});
  EXPECT_EQ(ranks_[0]->actions.id_sets_created, 0)
      << "an id costs a thread until all ranks have come";
  EXPECT_EQ(ranks_[0]->bootstrap->state(), BootstrapState::kWaiting);
  Start({1});
  EXPECT_EQ(ranks_[0]->actions.id_sets_created, 1);
  for (auto& rank : ranks_) {
    ASSERT_THAT(rank->actions.initialised, SizeIs(1));
    EXPECT_EQ(rank->actions.initialised[0], ranks_[0]->actions.initialised[0]);
    EXPECT_EQ(rank->bootstrap->state(), BootstrapState::kInitialising);
  }
  FinishAll(1);
  for (auto& rank : ranks_) EXPECT_THAT(rank->actions.ended, ElementsAre(absl::OkStatus()));
  EXPECT_THAT(store_.entries, IsEmpty()) << "no rank needs them any more";
}

RankOrigin HeldOne(int rank, int size) {
  return {.id = 0xabc, .generation = 1, .rank = rank, .size = size};
}

TEST_F(CommunicatorBootstrapTest, AllOfferTheSameOrigin_ItIsShrunk) {
  Make(2, {}, {{0, HeldOne(0, 3)}, {1, HeldOne(2, 3)}});
  Start({0, 1});
  for (auto& rank : ranks_) {
    EXPECT_THAT(rank->actions.ways, ElementsAre(CommunicatorWay::kShrink));
    EXPECT_THAT(rank->actions.initialised[0].second, IsEmpty());
  }
  EXPECT_EQ(ranks_[0]->actions.id_sets_created, 0);
  FinishAll(1);
}

TEST_F(CommunicatorBootstrapTest, NewRankJoins_TheFirstOneCreatesTheIdOfTheOrigin) {
  Make(3, {{0, 23203}, {1, 23203}, {2, 23203}},
       {{0, HeldOne(0, 2)}, {1, HeldOne(1, 2)}, {2, RankOrigin{}}});
  Start({0, 1, 2});
  for (auto& rank : ranks_) {
    EXPECT_THAT(rank->actions.ways, ElementsAre(CommunicatorWay::kGrow));
    EXPECT_THAT(rank->actions.initialised[0].second,
                ElementsAre(std::string(kNcclUniqueIdBytes, 'g')));
  }
  FinishAll(1);
}

// Its library cannot, or it does not hold the origin any more.
TEST_F(CommunicatorBootstrapTest, OneRankOffersNothing_AllCreate) {
  Make(2, {}, {{0, HeldOne(0, 3)}});
  Start({0, 1});
  for (auto& rank : ranks_) {
    EXPECT_THAT(rank->actions.ways, ElementsAre(CommunicatorWay::kCreate));
    EXPECT_THAT(rank->actions.initialised[0].second, SizeIs(1));
  }
}

TEST_F(CommunicatorBootstrapTest, ShrinkFailsOnOneRank_AllCreate) {
  Make(2, {}, {{0, HeldOne(0, 3)}, {1, HeldOne(2, 3)}});
  Start({0, 1});
  ranks_[1]->bootstrap->OnInitialised(1, absl::InternalError("a remote error"));
  Hear();
  for (auto& rank : ranks_) {
    EXPECT_THAT(rank->actions.discarded, ElementsAre(1));
    EXPECT_THAT(rank->actions.ways,
                ElementsAre(CommunicatorWay::kShrink, CommunicatorWay::kCreate));
  }
  FinishAll(2);
}

TEST_F(CommunicatorBootstrapTest, IdOfTheOriginCannotBeCreated_AllCreate) {
  Make(2, {{0, 23203}, {1, 23203}}, {{0, HeldOne(0, 1)}, {1, RankOrigin{}}});
  ranks_[0]->actions.create_ids_error = absl::InternalError("NCCL_COMM_ID is set");
  Start({0, 1});
  for (auto& rank : ranks_) {
    EXPECT_THAT(rank->actions.ways, ElementsAre(CommunicatorWay::kCreate));
    EXPECT_EQ(rank->bootstrap->generation(), 2u);
  }
}

// It has begun later, with nothing to offer: the others cannot know that it takes their way.
TEST_F(CommunicatorBootstrapTest, WayThatThisRankHasNotOffered_IsGivenUp) {
  Make(2, {}, {{0, HeldOne(0, 3)}});
  ranks_[1]->bootstrap->Start();
  store_.Put(key_->UniqueIdKey(1),
             EncodeCommunicatorUniqueIds({22809, 0x1000, {}, CommunicatorWay::kShrink}));
  ranks_[1]->Hear();
  EXPECT_THAT(ranks_[1]->actions.ways, IsEmpty());
  EXPECT_EQ(store_.entries[key_->GenerationKey()], "2");
  EXPECT_TRUE(store_.entries.contains(key_->StoppedKey(1, 1)))
      << "a rank that has begun waits for that";
}

// It has stopped the operations of what was to shrink: NCCL would refuse to grow that.
TEST_F(CommunicatorBootstrapTest, WayThatDoesNotFitTheOffer_IsGivenUp) {
  for (const bool prepares_to_shrink : {true, false}) {
    SCOPED_TRACE(prepares_to_shrink);
    store_.entries.clear();
    max_attempts_ = 1;
    const RankOrigin offer = prepares_to_shrink ? HeldOne(2, 3) : RankOrigin{};
    Make(2, {{0, 23203}, {1, 23203}}, {{1, offer}});
    ranks_[1]->bootstrap->Start();
    const std::vector<std::string> ids(prepares_to_shrink ? 1 : 0,
                                       std::string(kNcclUniqueIdBytes, 'g'));
    store_.Put(key_->UniqueIdKey(1),
               EncodeCommunicatorUniqueIds(
                   {23203, 0x1000, ids,
                    prepares_to_shrink ? CommunicatorWay::kGrow : CommunicatorWay::kShrink}));
    ranks_[1]->Hear();
    EXPECT_THAT(ranks_[1]->actions.ways, IsEmpty());
    ASSERT_THAT(ranks_[1]->actions.ended, SizeIs(1));
    const absl::Status& why = ranks_[1]->actions.ended[0];
    EXPECT_EQ(why.code(), absl::StatusCode::kFailedPrecondition) << why;
    EXPECT_THAT(std::string(why.message()),
                HasSubstr(prepares_to_shrink
                              ? "has published ids to grow a communicator, and this rank has "
                                "prepared to shrink one"
                              : "has published ids to shrink a communicator, and this rank has "
                                "prepared to grow one"));
    EXPECT_EQ(store_.entries[key_->GenerationKey()], "2") << "the others are told";
  }
}

// It knows its own offer better than the store does.
TEST_F(CommunicatorBootstrapTest, StoreSaysAnotherOfferOfTheFirstRank_ItsOwnCounts) {
  Make(2, {}, {{1, HeldOne(2, 3)}});
  Start({0});
  store_.Put(key_->PresenceKey(1, 0), EncodeRankPresence({22809, 0x1000, HeldOne(0, 3)}));
  Start({1});
  for (auto& rank : ranks_) {
    EXPECT_THAT(rank->actions.ways, ElementsAre(CommunicatorWay::kCreate));
    EXPECT_EQ(rank->bootstrap->generation(), 1u);
  }
}

TEST_F(CommunicatorBootstrapTest, OneIdForEvery128Ranks) {
  EXPECT_EQ(UniqueIdCount(128), 1);
  EXPECT_EQ(UniqueIdCount(129), 2);
  Make(300);
  std::vector<int> all;
  for (int rank = 0; rank < 300; ++rank) all.push_back(rank);
  Start(all);
  for (auto& rank : ranks_) {
    ASSERT_THAT(rank->actions.initialised, SizeIs(1));
    EXPECT_THAT(rank->actions.initialised[0].second, SizeIs(3));
  }
}

TEST_F(CommunicatorBootstrapTest, MissingRankIsNamed) {
  Start({0, 1});
  clock_.Advance(absl::Seconds(59));
  ranks_[1]->bootstrap->Expire();
  EXPECT_EQ(ranks_[1]->bootstrap->state(), BootstrapState::kWaiting);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(ranks_[1]->bootstrap->NextDeadline(), clock_.Now());
  ranks_[1]->bootstrap->Expire();
  EXPECT_THAT(
      ranks_[1]->actions.ended,
      ElementsAre(absl::DeadlineExceededError(
          "the communicator of devices 10-12, generation 1, rank 1 (device 11): waited 60s for "
          "1 of 3: rank 2 (device 12) has not come")));
  EXPECT_EQ(ranks_[1]->bootstrap->state(), BootstrapState::kFailed);
  EXPECT_EQ(ranks_[0]->actions.id_sets_created, 0);
}

// Its presence is stored, its id never is; the coordinator reports its death.
TEST_F(CommunicatorBootstrapTest, RootDiesBeforeItPublishes) {
  for (const int rank : {0, 1, 2}) ranks_[rank]->bootstrap->Start();
  for (const int rank : {0, 1, 2}) {
    while (!ranks_[rank]->view->news.empty() && ranks_[rank]->view->news.front().first.empty()) {
      ranks_[rank]->bootstrap->OnWatching();
      ranks_[rank]->view->news.pop_front();
    }
  }
  for (const int rank : {1, 2}) ranks_[rank]->Hear();
  EXPECT_EQ(ranks_[1]->bootstrap->state(), BootstrapState::kWaiting);
  const absl::Status dead = absl::UnavailableError("device 10 has sent no heartbeat for 10s");
  ranks_[1]->bootstrap->Retire(dead);
  EXPECT_THAT(ranks_[1]->actions.ended, ElementsAre(dead));
  clock_.Advance(absl::Minutes(2));
  ranks_[2]->Hear();
  ranks_[2]->bootstrap->Expire();
  EXPECT_THAT(ranks_[2]->actions.ended, SizeIs(1));
}

// The ids exist, but their root does not: initialisation would wait forever.
TEST_F(CommunicatorBootstrapTest, RootDiesAfterItPublished) {
  Start({0, 1, 2});
  EXPECT_EQ(ranks_[1]->bootstrap->state(), BootstrapState::kInitialising);
  ranks_[1]->bootstrap->Retire(absl::UnavailableError("device 10 has sent no heartbeat for 10s"));
  EXPECT_EQ(ranks_[1]->bootstrap->state(), BootstrapState::kFailed);
  EXPECT_THAT(ranks_[1]->actions.discarded, ElementsAre(1));
  // A late answer changes nothing.
  ranks_[1]->bootstrap->OnInitialised(1, absl::OkStatus());
  EXPECT_EQ(ranks_[1]->bootstrap->state(), BootstrapState::kFailed);
  // Its next incarnation belongs to another communicator.
  const CommunicatorKey reborn =
      *CommunicatorKey::Create({{10, 0x9999}, {11, 0x1001}, {12, 0x1002}});
  EXPECT_NE(reborn.prefix(), key_->prefix());
}

TEST_F(CommunicatorBootstrapTest, FailedAttemptIsRepeatedUnderANewGenerationWithANewId) {
  Start({0, 1, 2});
  const auto first = ranks_[2]->actions.initialised[0].second;
  ranks_[2]->bootstrap->OnInitialised(1, absl::InternalError("connection refused"));
  Hear();
  for (auto& rank : ranks_) {
    EXPECT_THAT(rank->actions.discarded, ElementsAre(1));
    ASSERT_THAT(rank->actions.initialised, SizeIs(2));
    EXPECT_EQ(rank->actions.initialised[1].first, 2);
    EXPECT_NE(rank->actions.initialised[1].second, first);
  }
  ranks_[0]->bootstrap->OnInitialised(1, absl::OkStatus());
  EXPECT_EQ(ranks_[0]->bootstrap->state(), BootstrapState::kInitialising)
      << "that was generation 1's";
  // By the owner of what was discarded.
  for (int rank = 0; rank < 3; ++rank) store_.Put(key_->StoppedKey(1, rank), "1");
  FinishAll(2);
  EXPECT_THAT(store_.entries, ElementsAre(Pair(key_->GenerationKey(), "2")))
      << "keys of a generation that is over";
}

TEST_F(CommunicatorBootstrapTest, ReportsOfACommunicatorThatHasEnded_AreDeletedByTheNext) {
  Start({0, 1, 2});
  FinishAll(1);
  for (auto& rank : ranks_) rank->bootstrap->Retire(absl::CancelledError("not used any more"));
  for (int rank = 0; rank < 3; ++rank) store_.Put(key_->StoppedKey(1, rank), "1");
  Hear();
  Make(3);
  Start({0, 1, 2});
  FinishAll(2);
  EXPECT_THAT(store_.entries, ElementsAre(Pair(key_->GenerationKey(), "2")));
}

TEST_F(CommunicatorBootstrapTest, AttemptsAreLimited) {
  Start({0, 1, 2});
  for (uint32_t generation = 1; generation <= 4; ++generation) {
    ranks_[2]->bootstrap->OnInitialised(generation, absl::InternalError("connection refused"));
    Hear();
  }
  EXPECT_EQ(ranks_[2]->bootstrap->state(), BootstrapState::kFailed);
  EXPECT_EQ(ranks_[2]->bootstrap->status(),
            absl::InternalError("connection refused (the last of 4 attempts)"));
}

// A process that starts again in the same incarnation: the previous id has been used.
TEST_F(CommunicatorBootstrapTest, StaleIdIsNeverUsed) {
  Start({0, 1, 2});
  const auto stale = ranks_[0]->actions.initialised[0].second;
  Make(3);
  for (auto& rank : ranks_) rank->actions.id_sets_created = 7;
  Start({0, 1, 2});
  for (auto& rank : ranks_) {
    ASSERT_THAT(rank->actions.initialised, SizeIs(1));
    EXPECT_EQ(rank->actions.initialised[0].first, 2);
    EXPECT_NE(rank->actions.initialised[0].second, stale);
  }
}

TEST_F(CommunicatorBootstrapTest, IdOfAnotherIncarnationOfTheRootIsNotUsed) {
  store_.Put(key_->UniqueIdKey(1),
             EncodeCommunicatorUniqueIds({22809, 0xdead, {std::string(kNcclUniqueIdBytes, 'x')}}));
  Start({0, 1, 2});
  for (auto& rank : ranks_) {
    ASSERT_THAT(rank->actions.initialised, SizeIs(1));
    EXPECT_EQ(rank->actions.initialised[0].first, 2);
    EXPECT_NE(rank->actions.initialised[0].second[0][0], 'x');
  }
}

TEST_F(CommunicatorBootstrapTest, DifferentVersionsOfNcclAreBothNamed) {
  Make(3, {{2, 22703}});
  Start({0, 1, 2});
  EXPECT_EQ(ranks_[0]->actions.id_sets_created, 0);
  for (auto& rank : ranks_) {
    EXPECT_EQ(rank->bootstrap->state(), BootstrapState::kFailed);
    ASSERT_THAT(rank->actions.ended, SizeIs(1));
    EXPECT_EQ(rank->actions.ended[0].code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(rank->actions.ended[0].message()), HasSubstr("2.28.9"));
    EXPECT_THAT(std::string(rank->actions.ended[0].message()), HasSubstr("2.27.3"));
    EXPECT_THAT(std::string(rank->actions.ended[0].message()), HasSubstr("rank 2 (device 12)"));
  }
}

// The communicator still belongs to its user: calls on it may be in progress.
TEST_F(CommunicatorBootstrapTest, WhenOneRetiresAllAreNotifiedAndContinue) {
  Start({0, 1, 2});
  FinishAll(1);
  ranks_[1]->bootstrap->Retire(absl::AbortedError("device 12 was slow"));
  store_.Put(key_->GenerationKey(), "2");
  Hear();
  for (const int rank : {0, 2}) {
    EXPECT_THAT(ranks_[rank]->actions.given_up, ElementsAre(1)) << "once";
    EXPECT_THAT(ranks_[rank]->actions.discarded, IsEmpty());
    EXPECT_EQ(ranks_[rank]->bootstrap->state(), BootstrapState::kReady);
    ranks_[rank]->bootstrap->Retire(absl::AbortedError("given up"));
  }
  Hear();
  EXPECT_EQ(store_.entries[key_->GenerationKey()], "2") << "it has been moved on already";
  for (auto& rank : ranks_) {
    EXPECT_EQ(rank->bootstrap->state(), BootstrapState::kIdle);
    EXPECT_THAT(rank->actions.discarded, ElementsAre(1));
    EXPECT_THAT(rank->actions.ended, SizeIs(1));
  }
  EXPECT_THAT(ranks_[1]->actions.given_up, IsEmpty()) << "it has done so itself";
  Start({0, 1, 2});
  FinishAll(2);
}

// A communicator that has no warm-up: some are through when another one's attempt fails.
TEST_F(CommunicatorBootstrapTest, ReadyRankIsNotifiedThatAnotherHasFailed) {
  Start({0, 1, 2});
  for (const int rank : {0, 1}) {
    ranks_[rank]->bootstrap->OnInitialised(1, absl::OkStatus());
    ranks_[rank]->bootstrap->OnWarmedUp(1, absl::OkStatus());
  }
  ranks_[2]->bootstrap->OnInitialised(1, absl::InternalError("connection refused"));
  Hear();
  EXPECT_EQ(ranks_[2]->bootstrap->state(), BootstrapState::kWaiting);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(ranks_[rank]->actions.given_up, ElementsAre(1));
    ranks_[rank]->bootstrap->Retire(absl::AbortedError("given up"));
    ranks_[rank]->bootstrap->Start();
  }
  Hear();
  FinishAll(2);
}

// Their warm-ups have one order: that of the largest number, which all know.
TEST_F(CommunicatorBootstrapTest, WarmsUpWhenAllHavePublishedTheirNumbers) {
  for (const int rank : {0, 1, 2}) ranks_[rank]->actions.number = 10 - rank;
  Start({0, 1, 2});
  for (const int rank : {2, 0}) ranks_[rank]->bootstrap->OnInitialised(1, absl::OkStatus());
  Hear();
  for (const int rank : {2, 0}) {
    EXPECT_EQ(ranks_[rank]->bootstrap->state(), BootstrapState::kAgreeingOnOrder);
    EXPECT_THAT(ranks_[rank]->actions.warmed, IsEmpty());
  }
  ranks_[1]->bootstrap->OnInitialised(1, absl::OkStatus());
  Hear();
  for (auto& rank : ranks_) {
    EXPECT_EQ(rank->bootstrap->state(), BootstrapState::kWarmingUp);
    EXPECT_THAT(rank->actions.agreed_on, ElementsAre(10));
    rank->bootstrap->OnWarmedUp(1, absl::OkStatus());
  }
  Hear();
  EXPECT_THAT(store_.entries, IsEmpty());
}

TEST_F(CommunicatorBootstrapTest, RankThatDoesNotInitialiseIsNamed) {
  for (auto& rank : ranks_) rank->actions.number = 1;
  Start({0, 1, 2});
  for (const int rank : {0, 2}) ranks_[rank]->bootstrap->OnInitialised(1, absl::OkStatus());
  Hear();
  clock_.Advance(absl::Minutes(1));
  ranks_[2]->bootstrap->Expire();
  EXPECT_THAT(
      ranks_[2]->actions.ended,
      ElementsAre(absl::DeadlineExceededError(
          "the communicator of devices 10-12, generation 1, rank 2 (device 12): waited 60s for "
          "1 of 3: rank 1 (device 11) has not initialised it")));
}

// For each step, what has not come in time.
TEST_F(CommunicatorBootstrapTest, TimeoutNamesTheStep) {
  const auto expire = [this](int rank) {
    clock_.Advance(absl::Minutes(1));
    ranks_[rank]->bootstrap->Expire();
    EXPECT_THAT(ranks_[rank]->actions.ended, SizeIs(1));
    return std::string(ranks_[rank]->bootstrap->status().message());
  };
  ranks_[1]->bootstrap->Start();
  EXPECT_THAT(expire(1), HasSubstr("waited 60s for the store to say what is there"));
  Make(3);
  ranks_[1]->bootstrap->Start(5);
  ranks_[1]->bootstrap->OnWatching();
  EXPECT_THAT(expire(1), HasSubstr("waited 60s for the store to move on to generation 5"));
  store_.entries.clear();
  Make(3);
  for (auto& rank : ranks_) rank->actions.number = 1;
  Start({0, 1, 2});
  EXPECT_THAT(expire(1), HasSubstr("waited 60s for NCCL to initialise"));
  store_.entries.clear();
  Make(3);
  for (auto& rank : ranks_) rank->actions.number = 1;
  Start({0, 1, 2});
  for (auto& rank : ranks_) rank->bootstrap->OnInitialised(1, absl::OkStatus());
  Hear();
  EXPECT_THAT(expire(1), HasSubstr("waited 60s for the warm-up"));
}

// The next attempt, for which there was no time, is not reported.
TEST_F(CommunicatorBootstrapTest, TimeoutNamesTheSlowOperation) {
  Start({0, 1, 2});
  clock_.Advance(absl::Minutes(1));
  ranks_[1]->bootstrap->OnInitialised(1, absl::DeadlineExceededError("gpu:0 has not got to it"));
  EXPECT_THAT(
      ranks_[1]->actions.ended,
      ElementsAre(absl::DeadlineExceededError(
          "the communicator of devices 10-12, generation 1, rank 1 (device 11): gpu:0 has not "
          "got to it")));
}

// The owner learns from its peers before the store.
TEST_F(CommunicatorBootstrapTest, StartsNoGenerationThatTheOwnerReportedAsOver) {
  for (auto& rank : ranks_) rank->bootstrap->Start(5);
  Hear();
  FinishAll(5);
}

TEST_F(CommunicatorBootstrapTest, FailedIdCreationIsRetried) {
  ranks_[0]->actions.create_ids_error = absl::InternalError("no interface found");
  Start({0, 1, 2});
  FinishAll(2);
}

TEST_F(CommunicatorBootstrapTest, LostStoreEndsIt) {
  Start({0});
  ranks_[0]->bootstrap->OnStoreFailed(absl::UnavailableError("the coordinator is out of reach"));
  EXPECT_THAT(ranks_[0]->actions.ended, SizeIs(1));
  EXPECT_EQ(ranks_[0]->bootstrap->NextDeadline(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace ferry

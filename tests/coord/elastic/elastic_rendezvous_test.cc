// SPDX-License-Identifier: Apache-2.0
// ElasticRendezvous: rounds, ranks, deaths, deadlines, with a clock that moves when told to.
#include "coord/elastic/elastic_rendezvous.h"

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/logging.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class FakeStores final : public ElasticStores {
 public:
  absl::StatusOr<int> Open(const std::string& scope) override {
    if (!error.ok()) return error;
    EXPECT_TRUE(ever.insert(scope).second) << scope << " was used before";
    open[scope] = next_port;
    return next_port++;
  }
  void Close(const std::string& scope) override { EXPECT_EQ(open.erase(scope), 1u) << scope; }

  absl::Status error;
  int next_port = 1000;
  std::map<std::string, int> open;
  std::set<std::string> ever;
};

// An answer that may not have come yet.
struct Pending {
  std::optional<absl::StatusOr<ElasticAssignment>> answer;

  bool is_done() const { return answer.has_value(); }
  absl::Status status() const {
    return is_done() ? answer->status() : absl::UnknownError("Join has not completed");
  }
  ElasticAssignment assignment() const {
    EXPECT_TRUE(status().ok()) << status();
    return status().ok() ? **answer : ElasticAssignment{-1, -1, -1, -1};
  }
  int rank() const { return assignment().rank; }
};
using PendingPtr = std::shared_ptr<Pending>;

// Runs of nodes "a", "b", ..., each an agent on a host of that name and on a connection of its own.
class Rendezvous : public ::testing::Test {
 protected:
  ElasticJoin MakeJoin(const std::string& agent, int min_nodes, int max_nodes) {
    return {.run = {"job"},
            .agent = agent,
            .host = absl::StrCat("host-", agent),
            .attempt = ++attempts_[agent],
            .min_nodes = min_nodes,
            .max_nodes = max_nodes};
  }
  ElasticJoin MakeRankJoin(const std::string& agent, int rank, int size) {
    ElasticJoin join = MakeJoin(agent, size, size);
    join.run.is_group = true;
    join.rank = rank;
    return join;
  }
  PendingPtr Join(ElasticJoin join, uint64_t connection = 0) {
    if (connection == 0) connection = Connection(join.agent);
    auto pending = std::make_shared<Pending>();
    rendezvous_.Join(std::move(join), connection,
                     [pending](absl::StatusOr<ElasticAssignment> assignment) {
                       EXPECT_FALSE(pending->is_done()) << "answered twice";
                       pending->answer = std::move(assignment);
                     });
    Run();
    return pending;
  }
  PendingPtr Join(const std::string& agent, int min_nodes, int max_nodes) {
    return Join(MakeJoin(agent, min_nodes, max_nodes));
  }
  static uint64_t Connection(const std::string& agent) {
    return 100 + static_cast<unsigned char>(agent[0]);
  }
  ElasticRunState Beat(const std::string& agent) {
    return rendezvous_.KeepAlive({"job"}, agent, Connection(agent));
  }
  void Detach(const std::string& agent) {
    rendezvous_.Detach({"job"}, agent, Connection(agent));
    Run();
  }
  void Leave(const std::string& agent, bool is_group = false) {
    rendezvous_.Leave({"job", is_group}, agent);
    Run();
  }
  void Close(const std::string& agent) {
    rendezvous_.Close({"job"}, agent);
    Run();
  }
  void Run() {
    while (!completions_.empty()) {
      for (Completion& completion : completions_.Take()) std::move(completion)();
    }
  }
  void AdvanceOnce() {
    rendezvous_.Advance();
    Run();
  }
  // In steps like those of the server, with heartbeats from `alive` in each.
  void Pass(absl::Duration time, const std::vector<std::string>& alive) {
    for (absl::Duration left = time; left > absl::ZeroDuration(); left -= absl::Seconds(1)) {
      clock_.Advance(std::min(left, absl::Seconds(1)));
      for (const std::string& agent : alive) Beat(agent);
      AdvanceOnce();
    }
  }
  // The agent dies: its connection ends, and it does not come back.
  void Kill(const std::string& agent, const std::vector<std::string>& alive) {
    Detach(agent);
    Pass(options_.reconnect_grace, alive);
  }

  ElasticOptions options_;
  FakeClock clock_;
  Completions completions_;
  FakeStores stores_;
  ElasticRendezvous rendezvous_{options_, clock_, completions_, stores_};
  std::map<std::string, int64_t> attempts_;
};

TEST_F(Rendezvous, MaximumIsThere_RoundBeginsAtOnceWithAStore) {
  const PendingPtr b = Join("b", 1, 2);
  EXPECT_FALSE(b->is_done());
  const PendingPtr a = Join("a", 1, 2);
  EXPECT_EQ(a->assignment().round, 0);
  EXPECT_EQ(a->assignment().nodes, 2);
  EXPECT_EQ(a->assignment().port, 1000);
  EXPECT_EQ(b->assignment().port, 1000);
  // In the order of the hosts, not of the arrivals.
  EXPECT_THAT((std::vector<int>{a->rank(), b->rank()}), ElementsAre(0, 1));
  EXPECT_THAT(stores_.open, SizeIs(1));
}

TEST_F(Rendezvous, MinimumIsThere_RoundBeginsAfterTheLastCall) {
  const PendingPtr a = Join("a", 2, 3);
  Pass(absl::Seconds(40), {"a"});
  const PendingPtr b = Join("b", 2, 3);
  Pass(absl::Seconds(29), {"a", "b"});
  EXPECT_FALSE(a->is_done());
  Pass(absl::Seconds(1), {"a", "b"});
  EXPECT_EQ(a->assignment().nodes, 2);
  EXPECT_EQ(b->rank(), 1);
}

TEST_F(Rendezvous, OneBelowTheMinimum_RoundDoesNotBegin) {
  const PendingPtr a = Join("a", 2, 3);
  Pass(absl::Seconds(599), {"a"});
  EXPECT_FALSE(a->is_done());
}

TEST_F(Rendezvous, NodeDiesDuringTheLastCall_LastCallBeginsAnew) {
  const PendingPtr a = Join("a", 2, 3);
  Join("b", 2, 3);
  Pass(absl::Seconds(20), {"a", "b"});
  Kill("b", {"a"});
  Pass(absl::Seconds(20), {"a"});
  EXPECT_FALSE(a->is_done());
  const PendingPtr c = Join("c", 2, 3);
  Pass(absl::Seconds(29), {"a", "c"});
  EXPECT_FALSE(a->is_done());
  Pass(absl::Seconds(1), {"a", "c"});
  EXPECT_EQ(a->assignment().nodes, 2);
}

TEST_F(Rendezvous, LastCallIsLongerThanAJoin_RoundBeginsInsteadOfAnError) {
  ElasticJoin join = MakeJoin("a", 1, 2);
  join.join_timeout = absl::Seconds(5);
  const PendingPtr a = Join(join);
  Pass(absl::Seconds(5), {"a"});
  EXPECT_EQ(a->assignment().nodes, 1);
}

TEST_F(Rendezvous, NodeIsMissing_ErrorSaysWhoJoinedAndHowManyAreMissing) {
  const PendingPtr a = Join("a", 3, 4);
  const PendingPtr b = Join("b", 3, 4);
  Pass(absl::Seconds(599), {"a", "b"});
  EXPECT_FALSE(a->is_done());
  Pass(absl::Seconds(1), {"a", "b"});
  EXPECT_EQ(a->status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(a->status().message()),
              AllOf(HasSubstr("\"job\""), HasSubstr("10m"), HasSubstr("2 of at least 3 nodes"),
                    HasSubstr("host-a"), HasSubstr("host-b"), HasSubstr("1 node is missing")));
  EXPECT_EQ(b->status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(stores_.ever, IsEmpty());
}

TEST_F(Rendezvous, MemberDoesNotLeaveItsRound_ErrorNamesIt) {
  Join("a", 2, 2);
  Join("b", 2, 2);
  const PendingPtr again = Join("a", 2, 2);
  Pass(absl::Seconds(600), {"a", "b"});
  EXPECT_EQ(again->status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(again->status().message()),
              AllOf(HasSubstr("still in round 0: rank 1 on"), HasSubstr("host-b")));
}

TEST_F(Rendezvous, MembersJoinAgain_NextRoundHasTheirRanksAndAnotherStore) {
  // A worker of b has failed.
  Join("b", 2, 2);
  Join("a", 2, 2);
  const PendingPtr b = Join("b", 2, 2);
  EXPECT_FALSE(b->is_done());
  EXPECT_EQ(Beat("a").waiting, 1);
  EXPECT_EQ(Beat("a").round, 0);
  const PendingPtr a = Join("a", 2, 2);
  EXPECT_EQ(a->assignment().round, 1);
  EXPECT_THAT((std::vector<int>{a->rank(), b->rank()}), ElementsAre(0, 1));
  EXPECT_EQ(a->assignment().port, 1001);
  EXPECT_EQ(Beat("a").waiting, 0);
  // The former one is closed.
  EXPECT_THAT(stores_.open, SizeIs(1));
  EXPECT_THAT(stores_.ever, SizeIs(2));
}

TEST_F(Rendezvous, NodeComesLate_IsCountedAndInTheNextRound) {
  Join("b", 1, 3);
  Join("c", 1, 3);
  Pass(absl::Seconds(30), {"b", "c"});
  const PendingPtr a = Join("a", 1, 3);
  EXPECT_EQ(Beat("b").waiting, 1);
  EXPECT_EQ(Beat("c").waiting, 1);
  Pass(absl::Seconds(100), {"a", "b", "c"});
  EXPECT_FALSE(a->is_done());
  const PendingPtr b = Join("b", 1, 3);
  const PendingPtr c = Join("c", 1, 3);
  // Those that stay keep their ranks, though the host of the new one is the first.
  EXPECT_THAT((std::vector<int>{b->rank(), c->rank(), a->rank()}), ElementsAre(0, 1, 2));
}

TEST_F(Rendezvous, RoundIsFull_SpareIsNotCountedAndWaitsWithoutLimit) {
  Join("a", 1, 2);
  Join("b", 1, 2);
  const PendingPtr spare = Join("c", 1, 2);
  EXPECT_EQ(Beat("a").waiting, 0);
  Pass(absl::Seconds(1500), {"a", "b", "c"});
  EXPECT_FALSE(spare->is_done());
  Kill("b", {"a", "c"});
  EXPECT_EQ(Beat("a").waiting, 1);
  // Its time begins now.
  Pass(absl::Seconds(500), {"a", "c"});
  EXPECT_FALSE(spare->is_done());
  const PendingPtr a = Join("a", 1, 2);
  EXPECT_EQ(a->rank(), 0);
  EXPECT_EQ(spare->rank(), 1);
}

TEST_F(Rendezvous, MembersAndSparesJoin_MembersComeFirst) {
  Join("b", 2, 2);
  Join("c", 2, 2);
  const PendingPtr spare = Join("a", 2, 2);
  const PendingPtr c = Join("c", 2, 2);
  const PendingPtr b = Join("b", 2, 2);
  EXPECT_THAT((std::vector<int>{b->rank(), c->rank()}), ElementsAre(0, 1));
  EXPECT_FALSE(spare->is_done());
}

TEST_F(Rendezvous, FirstNodeDies_OthersKeepTheirRanksAsFarAsTheyFit) {
  for (const char* agent : {"a", "b", "c"}) Join(agent, 1, 3);
  Kill("a", {"b", "c"});
  EXPECT_EQ(Beat("b").waiting, 1);
  const PendingPtr b = Join("b", 1, 3);
  const PendingPtr c = Join("c", 1, 3);
  Pass(absl::Seconds(30), {"b", "c"});
  // There is no rank 2 any more.
  EXPECT_THAT((std::vector<int>{c->rank(), b->rank()}), ElementsAre(0, 1));
  EXPECT_EQ(b->assignment().nodes, 2);
}

TEST_F(Rendezvous, HalfOfTheNodesDie_OthersKeepTheirOrder) {
  for (const char* agent : {"a", "b", "c", "d"}) Join(agent, 1, 4);
  Detach("a");
  Kill("b", {"c", "d"});
  const PendingPtr d = Join("d", 1, 4);
  const PendingPtr c = Join("c", 1, 4);
  Pass(absl::Seconds(30), {"c", "d"});
  EXPECT_THAT((std::vector<int>{c->rank(), d->rank()}), ElementsAre(0, 1));
}

TEST_F(Rendezvous, NodeIsReplaced_NewOneGetsTheRankThatIsLeft) {
  for (const char* agent : {"a", "b", "c"}) Join(agent, 3, 3);
  Kill("b", {"a", "c"});
  const PendingPtr d = Join("d", 3, 3);
  const PendingPtr c = Join("c", 3, 3);
  const PendingPtr a = Join("a", 3, 3);
  EXPECT_THAT((std::vector<int>{a->rank(), d->rank(), c->rank()}), ElementsAre(0, 1, 2));
}

TEST_F(Rendezvous, ConnectionEndsAndComesBack_NothingIsLost) {
  Join("a", 2, 2);
  Join("b", 2, 2);
  Detach("b");
  Pass(absl::Milliseconds(1900), {"a"});
  EXPECT_TRUE(Beat("b").is_known);
  Pass(absl::Seconds(10), {"a", "b"});
  EXPECT_EQ(Beat("a").waiting, 0);
}

TEST_F(Rendezvous, FormerConnectionEndsLate_AgentStays) {
  Join("a", 1, 1);
  rendezvous_.KeepAlive({"job"}, "a", 7);
  Detach("a");
  clock_.Advance(absl::Seconds(10));
  AdvanceOnce();
  EXPECT_TRUE(rendezvous_.KeepAlive({"job"}, "a", 7).is_known);
}

TEST_F(Rendezvous, AgentIsSilent_DiesAfterItsTimeout) {
  Join("a", 2, 2);
  Join("b", 2, 2);
  Pass(absl::Seconds(14), {"a"});
  EXPECT_EQ(Beat("a").waiting, 0);
  Pass(absl::Seconds(1), {"a"});
  EXPECT_EQ(Beat("a").waiting, 1);
  EXPECT_FALSE(Beat("b").is_known);
}

TEST_F(Rendezvous, AgentDiesWhileItWaits_IsNotInTheRound) {
  const PendingPtr a = Join("a", 2, 2);
  Kill("a", {});
  EXPECT_EQ(a->status().code(), StatusCode::kUnavailable);
  const PendingPtr b = Join("b", 2, 2);
  EXPECT_FALSE(b->is_done());
  const PendingPtr c = Join("c", 2, 2);
  EXPECT_THAT((std::vector<int>{b->rank(), c->rank()}), ElementsAre(0, 1));
}

TEST_F(Rendezvous, MemberDiesWhileTheOthersWaitForIt_RoundBegins) {
  for (const char* agent : {"a", "b", "c"}) Join(agent, 1, 3);
  const PendingPtr a = Join("a", 1, 3);
  const PendingPtr b = Join("b", 1, 3);
  Kill("c", {"a", "b"});
  Pass(absl::Seconds(30), {"a", "b"});
  EXPECT_EQ(a->assignment().nodes, 2);
  EXPECT_THAT((std::vector<int>{a->rank(), b->rank()}), ElementsAre(0, 1));
}

TEST_F(Rendezvous, MemberLeaves_OthersLearnIt) {
  Join("a", 1, 2);
  Join("b", 1, 2);
  Leave("a");
  EXPECT_EQ(Beat("b").waiting, 1);
  EXPECT_FALSE(Beat("a").is_known);
}

TEST_F(Rendezvous, AllNodesDie_RunIsForgottenWithItsStore) {
  Join("a", 1, 2);
  Join("b", 1, 2);
  Detach("a");
  Kill("b", {});
  EXPECT_TRUE(rendezvous_.empty());
  EXPECT_THAT(stores_.open, IsEmpty());
  // Another run may have the id, and other sizes.
  EXPECT_EQ(Join("c", 1, 1)->assignment().round, 0);
}

TEST_F(Rendezvous, AnswerIsLost_SameAttemptGetsItAgain) {
  const ElasticJoin join = MakeJoin("a", 1, 1);
  const ElasticAssignment assignment = Join(join)->assignment();
  const ElasticAssignment again = Join(join, 7)->assignment();
  EXPECT_EQ(again.round, assignment.round);
  EXPECT_EQ(again.port, assignment.port);
  EXPECT_THAT(stores_.ever, SizeIs(1));
}

TEST_F(Rendezvous, WaitIsSentAgain_GoesOnWithItsFirstDeadline) {
  const ElasticJoin join = MakeJoin("a", 2, 2);
  const PendingPtr first = Join(join);
  Pass(absl::Seconds(500), {"a"});
  const PendingPtr second = Join(join, 7);
  EXPECT_EQ(first->status().code(), StatusCode::kAborted);
  Pass(absl::Seconds(99), {"a"});
  EXPECT_FALSE(second->is_done());
  Pass(absl::Seconds(1), {"a"});
  EXPECT_EQ(second->status().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(Rendezvous, EarlierAttemptComesLate_IsRejected) {
  const ElasticJoin first = MakeJoin("a", 1, 2);
  const PendingPtr second = Join("a", 1, 2);
  EXPECT_EQ(Join(first)->status().code(), StatusCode::kAborted);
  EXPECT_FALSE(second->is_done());
}

TEST_F(Rendezvous, RunIsClosed_WaitsEndAndLaterNodesAreRefused) {
  Join("a", 1, 3);
  Pass(absl::Seconds(30), {"a"});
  const PendingPtr late = Join("b", 1, 3);
  Close("a");
  EXPECT_EQ(late->status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(late->status().message()), HasSubstr("host-a"));
  EXPECT_TRUE(Beat("a").is_closed);
  EXPECT_EQ(Beat("a").waiting, 0);
  const PendingPtr later = Join("c", 1, 3);
  EXPECT_EQ(later->status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(later->status().message()),
              AllOf(HasSubstr("host-a"), HasSubstr("still there: ")));
  // Its members may still be in their exit barrier.
  EXPECT_THAT(stores_.open, SizeIs(1));
}

TEST_F(Rendezvous, RunIsClosed_SpareLearnsThatItWasNotNeeded) {
  Join("a", 1, 1);
  const PendingPtr spare = Join("b", 1, 1);
  Close("a");
  EXPECT_EQ(spare->status().code(), StatusCode::kCancelled);
}

TEST_F(Rendezvous, MemberDiesAfterTheClose_IsNotMissed) {
  Join("a", 2, 2);
  Join("b", 2, 2);
  Close("a");
  Leave("a");
  EXPECT_EQ(Beat("b").waiting, 0);
}

TEST_F(Rendezvous, ClosedRunIsLeftByAll_ItsIdIsFreeAfterAMoment) {
  Join("a", 2, 2);
  Join("b", 2, 2);
  Close("a");
  Leave("a");
  Pass(absl::Seconds(10), {"b"});
  EXPECT_EQ(Join("c", 1, 1)->status().code(), StatusCode::kFailedPrecondition);
  Leave("b");
  EXPECT_EQ(Join("c", 1, 1)->status().code(), StatusCode::kFailedPrecondition);
  clock_.Advance(options_.closed_linger);
  AdvanceOnce();
  EXPECT_THAT(stores_.open, IsEmpty());
  EXPECT_EQ(Join("c", 1, 1)->assignment().round, 0);
}

TEST_F(Rendezvous, UnknownRunIsClosed_NothingHappens) {
  Close("a");
  EXPECT_TRUE(rendezvous_.empty());
  EXPECT_FALSE(Beat("a").is_known);
  Leave("a");
}

TEST_F(Rendezvous, OtherSizes_AreRefusedByName) {
  Join("a", 2, 3);
  const absl::Status status = Join("b", 1, 4)->status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("2 to 3"), HasSubstr("host-a"),
                                                   HasSubstr("1 to 4"), HasSubstr("host-b")));
}

TEST_F(Rendezvous, StoreCannotBeOpened_NodesLearnWhyAndMayTryAgain) {
  stores_.error = absl::ResourceExhaustedError("no descriptors");
  const PendingPtr a = Join("a", 1, 1);
  EXPECT_EQ(a->status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(a->status().message()), HasSubstr("no descriptors"));
  stores_.error = absl::OkStatus();
  EXPECT_EQ(Join("a", 1, 1)->assignment().round, 0);
}

TEST_F(Rendezvous, ValuesAreOutOfRange_AreRefused) {
  std::vector<ElasticJoin> wrong(15, MakeJoin("a", 1, 2));
  wrong[0].run.name = "";
  wrong[1].run.name = std::string(225, 'x');
  wrong[2].agent = "";
  wrong[3].host = std::string(257, 'x');
  wrong[4].min_nodes = 0;
  wrong[5].max_nodes = 0;
  wrong[6].max_nodes = ElasticRendezvous::kMaxNodes + 1;
  wrong[7].join_timeout = absl::ZeroDuration();
  wrong[8].join_timeout = absl::Hours(24 * 8);
  wrong[9].last_call_timeout = absl::Seconds(-1);
  wrong[10].heartbeat_timeout = absl::Milliseconds(999);
  wrong[11].heartbeat_timeout = absl::InfiniteDuration();
  wrong[12] = MakeRankJoin("a", -1, 2);
  wrong[13] = MakeRankJoin("a", 2, 2);
  wrong[14] = MakeRankJoin("a", 0, 2);
  wrong[14].min_nodes = 1;
  for (size_t i = 0; i < wrong.size(); ++i) {
    EXPECT_EQ(Join(wrong[i])->status().code(), StatusCode::kInvalidArgument) << i;
  }
  EXPECT_TRUE(rendezvous_.empty());
  ElasticJoin right = MakeJoin("a", 1, 1);
  right.run.name = std::string(224, 'x');
  right.join_timeout = absl::Milliseconds(1);
  right.last_call_timeout = absl::ZeroDuration();
  right.heartbeat_timeout = absl::Seconds(1);
  EXPECT_EQ(Join(right)->rank(), 0);
}

// The names of stores contain those of runs, and have limits of their own.
TEST_F(Rendezvous, RunCannotHaveAStore_IsRefusedBeforeItWaits) {
  for (const std::string& name : {std::string(225, 'x'), std::string("a\nb"), std::string(1, 0)}) {
    ElasticJoin join = MakeJoin("a", 2, 2);
    join.run.name = name;
    EXPECT_EQ(Join(join)->status().code(), StatusCode::kInvalidArgument) << name;
  }
  ElasticJoin join = MakeJoin("a", 1, 1);
  join.run.name = std::string(224, 'x');
  EXPECT_EQ(Join(join)->rank(), 0);
  // After 2^64 rounds.
  EXPECT_LE(stores_.open.begin()->first.size() + 19, 256u);
}

TEST_F(Rendezvous, ManyNodesTimeOutOrDie_FewLinesAreLogged) {
  constexpr int kNodes = 64;
  int timed_out = 0;
  int dead = 0;
  SetLogOutput([&](absl::string_view line) {
    if (absl::StrContains(line, "timed out in rendezvous")) ++timed_out;
    if (absl::StrContains(line, "lost a PyTorch node")) ++dead;
  });
  for (int i = 0; i < kNodes; ++i)
    Join(MakeJoin(absl::StrCat("a", i), kNodes + 1, kNodes + 1), 1000);
  clock_.Advance(absl::Minutes(10));
  for (int i = 0; i < kNodes; ++i) {
    rendezvous_.KeepAlive({"job"}, absl::StrCat("a", i), 1000);
  }
  AdvanceOnce();
  EXPECT_EQ(timed_out, 1);
  EXPECT_EQ(dead, 0);
  clock_.Advance(absl::Seconds(15));
  AdvanceOnce();
  SetLogOutput(nullptr);
  EXPECT_TRUE(rendezvous_.empty());
  EXPECT_EQ(dead, 20);
}

TEST_F(Rendezvous, ClosedRunHasManyNodes_ErrorCountsThoseThatItDoesNotName) {
  for (int i = 0; i < 64; ++i) Join(MakeJoin(absl::StrCat("a", i), 65, 65), 1000);
  Close("a0");
  EXPECT_THAT(std::string(Join("b", 65, 65)->status().message()),
              AllOf(HasSubstr(R"("host-a0" ("a0"))"), HasSubstr(" and 48 more")));
}

TEST_F(Rendezvous, TooManyRunsOrAgents_AreRefused) {
  ElasticOptions few{.max_runs = 2, .max_agents = 3};
  ElasticRendezvous rendezvous(few, clock_, completions_, stores_);
  std::vector<StatusCode> codes;
  for (const auto& [run, agent] : std::vector<std::pair<std::string, std::string>>{
           {"one", "a"}, {"two", "a"}, {"three", "a"}, {"one", "b"}, {"two", "b"}}) {
    ElasticJoin join = MakeJoin(agent, 1, 1);
    join.run.name = run;
    rendezvous.Join(join, 1, [&codes](absl::StatusOr<ElasticAssignment> assignment) {
      codes.push_back(assignment.status().code());
    });
    Run();
  }
  // The second agent of "one" is a spare.
  EXPECT_THAT(codes, ElementsAre(StatusCode::kOk, StatusCode::kOk, StatusCode::kResourceExhausted,
                                 StatusCode::kResourceExhausted));
  rendezvous.Leave({"one"}, "b");
  Run();
  ElasticJoin join = MakeJoin("c", 1, 1);
  join.run.name = "one";
  rendezvous.Join(join, 1, [](absl::StatusOr<ElasticAssignment>) {});
  rendezvous.Leave({"one"}, "c");
  rendezvous.Stop();
  Run();
}

TEST_F(Rendezvous, CoordinatorStops_WaitsEnd) {
  Join("a", 1, 1);
  const PendingPtr b = Join("b", 1, 1);
  rendezvous_.Stop();
  Run();
  EXPECT_EQ(b->status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(rendezvous_.empty());
  EXPECT_THAT(stores_.open, IsEmpty());
}

TEST_F(Rendezvous, Report_HasMembersAndWaits) {
  Join("a", 1, 2);
  Pass(absl::Seconds(30), {"a"});
  Join("b", 1, 2);
  Pass(absl::Seconds(3), {"a", "b"});
  Detach("b");
  const std::vector<ElasticRunReport> reports = rendezvous_.Report();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].id.name, "job");
  EXPECT_EQ(reports[0].round, 0);
  EXPECT_EQ(reports[0].port, 1000);
  ASSERT_THAT(reports[0].agents, SizeIs(2));
  EXPECT_EQ(reports[0].agents[0].rank, 0);
  EXPECT_FALSE(reports[0].agents[0].is_waiting);
  EXPECT_EQ(reports[0].agents[1].host, "host-b");
  EXPECT_TRUE(reports[0].agents[1].is_waiting);
  EXPECT_TRUE(reports[0].agents[1].is_detached);
  EXPECT_EQ(reports[0].agents[1].age, absl::Seconds(3));
}

TEST_F(Rendezvous, RanksOfAGroup_AreThoseThatTheyAskFor) {
  const PendingPtr a = Join(MakeRankJoin("a", 2, 3));
  const PendingPtr b = Join(MakeRankJoin("b", 0, 3));
  EXPECT_FALSE(b->is_done());
  const PendingPtr c = Join(MakeRankJoin("c", 1, 3));
  EXPECT_THAT((std::vector<int>{a->rank(), b->rank(), c->rank()}), ElementsAre(2, 0, 1));
  // The ids of groups and of runs are unrelated.
  EXPECT_EQ(Join("a", 1, 1)->assignment().nodes, 1);
}

TEST_F(Rendezvous, RankOfAGroupIsMissing_ErrorNamesIt) {
  Join(MakeRankJoin("a", 0, 4));
  Join(MakeRankJoin("b", 1, 4));
  ElasticJoin join = MakeRankJoin("d", 3, 4);
  join.join_timeout = absl::Seconds(10);
  const PendingPtr d = Join(join);
  clock_.Advance(absl::Seconds(10));
  AdvanceOnce();
  EXPECT_EQ(d->status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(d->status().message()), HasSubstr("rank 2 is missing"));
}

// All have the same timeout, but not the same deadline.
TEST_F(Rendezvous, OtherRanksGaveUpBefore_AreNotMissing) {
  Join(MakeRankJoin("a", 0, 3));
  clock_.Advance(absl::Seconds(1));
  const PendingPtr b = Join(MakeRankJoin("b", 1, 3));
  clock_.Advance(absl::Seconds(14));
  for (const char* agent : {"a", "b"}) {
    rendezvous_.KeepAlive({"job", true}, agent, Connection(agent));
  }
  ElasticJoin short_wait = MakeRankJoin("a", 0, 3);
  short_wait.join_timeout = absl::Seconds(1);
  const PendingPtr a = Join(short_wait);
  clock_.Advance(absl::Seconds(1));
  AdvanceOnce();
  EXPECT_THAT(std::string(a->status().message()), HasSubstr("rank 2 is missing"));
  Leave("a", true);
  for (int i = 0; i < 60; ++i) {
    clock_.Advance(absl::Seconds(10));
    rendezvous_.KeepAlive({"job", true}, "b", Connection("b"));
    AdvanceOnce();
  }
  EXPECT_THAT(
      std::string(b->status().message()),
      AllOf(HasSubstr("timed out before: rank 0 on \"host-a\""), HasSubstr("rank 2 is missing")));
}

TEST_F(Rendezvous, ManyJoinsTimeOut_AsManyAsThereMayBeAgentsAreKept) {
  const ElasticOptions few{.max_agents = 2};
  ElasticRendezvous rendezvous(few, clock_, completions_, stores_);
  std::string error;
  const auto time_out = [&](const std::string& agent) {
    ElasticJoin join = MakeJoin(agent, 9, 9);
    join.join_timeout = absl::Seconds(1);
    rendezvous.Join(join, 1, [&error](const absl::StatusOr<ElasticAssignment>& assignment) {
      error = std::string(assignment.status().message());
    });
    clock_.Advance(absl::Seconds(1));
    rendezvous.KeepAlive({"job"}, "waiting", 2);
    rendezvous.Advance();
    Run();
    rendezvous.Leave({"job"}, agent);
  };
  for (int run = 0; run < 2; ++run) {
    rendezvous.Join(MakeJoin("waiting", 9, 9), 2, [](const absl::StatusOr<ElasticAssignment>&) {});
    for (const char* agent : {"a", "b", "c", "d"}) time_out(agent);
    EXPECT_THAT(error, AllOf(HasSubstr("timed out before: \"host-a\" (\"a\"), \"host-b\" (\"b\")"),
                             Not(HasSubstr("host-c"))));
    // The next run may keep as many again.
    rendezvous.Leave({"job"}, "waiting");
    rendezvous.Advance();
    EXPECT_TRUE(rendezvous.empty());
  }
}

TEST_F(Rendezvous, NodeGaveUpAndComesBack_IsCountedOnce) {
  ElasticJoin join = MakeJoin("a", 3, 3);
  join.join_timeout = absl::Seconds(5);
  Join(join);
  Pass(absl::Seconds(5), {"a"});
  const PendingPtr b = Join("b", 3, 3);
  Pass(absl::Seconds(300), {"a", "b"});
  Join("a", 3, 3);
  Pass(absl::Seconds(300), {"a", "b"});
  EXPECT_THAT(std::string(b->status().message()),
              AllOf(HasSubstr("2 of 3 nodes"), HasSubstr("1 node is missing"),
                    Not(HasSubstr("timed out before"))));
}

TEST_F(Rendezvous, RankOfAGroupComesTwice_SecondIsRefusedByName) {
  Join(MakeRankJoin("a", 0, 2));
  const absl::Status status = Join(MakeRankJoin("b", 0, 2))->status();
  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("host-a"), HasSubstr("host-b")));
}

TEST_F(Rendezvous, RankOfAGroupIsStartedAgain_TakesThePlaceOfTheDeadOne) {
  const PendingPtr dead = Join(MakeRankJoin("a", 0, 2));
  rendezvous_.Detach({"job", true}, "a", Connection("a"));
  const PendingPtr again = Join(MakeRankJoin("b", 0, 2));
  EXPECT_EQ(dead->status().code(), StatusCode::kUnavailable);
  const PendingPtr other = Join(MakeRankJoin("c", 1, 2));
  EXPECT_EQ(again->rank(), 0);
  EXPECT_EQ(other->rank(), 1);
}

TEST_F(Rendezvous, GroupMeetsAgain_HasAnotherStore) {
  Join(MakeRankJoin("a", 0, 2));
  Join(MakeRankJoin("b", 1, 2));
  const PendingPtr a = Join(MakeRankJoin("a", 0, 2));
  EXPECT_FALSE(a->is_done());
  const PendingPtr b = Join(MakeRankJoin("b", 1, 2));
  EXPECT_EQ(a->assignment().round, 1);
  EXPECT_EQ(b->assignment().port, 1001);
}

TEST_F(Rendezvous, GroupShrinks_RankThatIsNotInItDoesNotDelayIt) {
  for (int rank = 0; rank < 3; ++rank) Join(MakeRankJoin(std::string(1, "abc"[rank]), rank, 3));
  const PendingPtr a = Join(MakeRankJoin("a", 0, 2));
  const PendingPtr b = Join(MakeRankJoin("b", 1, 2));
  EXPECT_EQ(a->assignment().nodes, 2);
  EXPECT_EQ(b->rank(), 1);
}

TEST_F(Rendezvous, AnotherJobHasTheRunIdOfAGroup_WaitsUntilTheFirstHasEnded) {
  Join(MakeRankJoin("a", 0, 2));
  Join(MakeRankJoin("b", 1, 2));
  const PendingPtr c = Join(MakeRankJoin("c", 0, 2));
  const PendingPtr d = Join(MakeRankJoin("d", 1, 2));
  EXPECT_FALSE(c->is_done());
  Leave("a", true);
  EXPECT_FALSE(c->is_done());
  Leave("b", true);
  EXPECT_THAT((std::vector<int>{c->rank(), d->rank()}), ElementsAre(0, 1));
}

// Any order of joins, deaths, silences, closes and time: assignments agree with each other, and
// nothing is left in the end.
TEST_F(Rendezvous, AnyOrderOfEvents_RoundsAreConsistent) {
  constexpr uint32_t kSeed = 20261126;
  std::mt19937 random(kSeed);
  const auto draw = [&random](int count) { return static_cast<int>(random() % count); };
  std::vector<PendingPtr> pending;
  const std::vector<std::string> agents = {"a", "b", "c", "d", "e"};
  for (int step = 0; step < 20000; ++step) {
    const std::string& agent = agents[static_cast<size_t>(draw(5))];
    switch (draw(8)) {
      case 0:
      case 1:
      case 2:
        pending.push_back(Join(agent, 2, 4));
        break;
      case 3:
        Detach(agent);
        break;
      case 4:
        if (draw(4) == 0) Leave(agent);
        break;
      case 5:
        if (draw(20) == 0) Close(agent);
        break;
      default:
        Pass(absl::Milliseconds(draw(20) == 0 ? 40000 : draw(2000)),
             draw(3) == 0 ? std::vector<std::string>{} : agents);
        break;
    }
    ASSERT_LE(stores_.open.size(), 1u);
    std::set<int> ranks;
    for (const ElasticRunReport& run : rendezvous_.Report()) {
      for (const ElasticAgentReport& report : run.agents) {
        ASSERT_FALSE(report.rank >= 0 && report.is_waiting);
        if (report.rank < 0) continue;
        ASSERT_LT(report.rank, 4);
        ASSERT_TRUE(ranks.insert(report.rank).second) << "two agents have one rank; seed " << kSeed;
      }
    }
  }
  // (round, port) -> ranks.
  std::map<int, std::set<int>> assignments;
  std::map<int, int> nodes;
  for (const PendingPtr& one : pending) {
    if (!one->status().ok()) continue;
    const ElasticAssignment assignment = one->assignment();
    EXPECT_TRUE(assignments[assignment.port].insert(assignment.rank).second);
    nodes.try_emplace(assignment.port, assignment.nodes);
    EXPECT_EQ(nodes[assignment.port], assignment.nodes);
  }
  EXPECT_GT(assignments.size(), 50u);
  for (const auto& [port, ranks] : assignments) {
    EXPECT_EQ(static_cast<int>(ranks.size()), nodes[port]);
    EXPECT_EQ(*ranks.rbegin(), nodes[port] - 1);
  }
  Pass(absl::Seconds(1000), {});
  EXPECT_TRUE(rendezvous_.empty());
  EXPECT_THAT(stores_.open, IsEmpty());
  for (const PendingPtr& one : pending) EXPECT_TRUE(one->is_done());
}

}  // namespace
}  // namespace ferry::coord

// SPDX-License-Identifier: Apache-2.0
// Limits of a worker's step, and the order in which its deferred receives are served.
#include <memory>
#include <utility>
#include <vector>

#include "rendezvous/rendezvous_manager.h"
#include "rendezvous_fixture.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RendezvousKey From(int src, absl::string_view edge = "e") {
  return *RendezvousKey::Parse(
      RendezvousKey::Text(absl::StrCat("/job:worker/replica:0/task:", src, "/device:CPU:0"), 1,
                          "/job:worker/replica:0/task:0/device:CPU:0", edge));
}

// Never answers.
class SilentFetcher final : public RemoteFetcher {
 public:
  std::shared_ptr<RemoteFetch> Fetch(int64_t, const RendezvousKey&, const RecvArgs& args,
                                     RecvCallback done) override {
    cancellations.push_back(args.cancellation);
    done_.push_back(std::move(done));
    return nullptr;
  }

  std::vector<CancellationToken*> cancellations;

 private:
  std::vector<RecvCallback> done_;
};

class Bounds : public ::testing::Test {
 protected:
  const TaskName here_{"worker", 0, 0};
  FakeClock clock_;
  SilentFetcher fetcher_;
  Results results_;
  RendezvousManager manager_{clock_, fetcher_, {.limits = {.max_pending_ops = 2}}};
};

// A peer may request a step that never begins any number of times.
TEST_F(Bounds, ReceivesBeforeTheStepAreLimited) {
  CancellationToken cancellation;
  for (int i = 0; i < 3; ++i) {
    manager_.RecvLocalAsync(1, From(0), {.cancellation = &cancellation}, results_.Writer());
  }
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_THAT(results_.all()[0], HasSubstr("RESOURCE_EXHAUSTED: 2 receives of step 1 wait for it"));
  EXPECT_THAT(results_.all()[0], HasSubstr("raise --max-pending-ops"));
  cancellation.Cancel();
  EXPECT_EQ(results_.size(), 3u);
}

TEST_F(Bounds, FetchesAreLimited) {
  const auto step = *manager_.Find(1);
  ASSERT_TRUE(step->Initialize(here_).ok());
  for (int i = 0; i < 3; ++i) step->RecvAsync(From(1), {}, results_.Writer());
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_THAT(results_.all()[0], HasSubstr("wait for other workers, the limit"));
  EXPECT_EQ(step->fetch_count(), 2u);
}

// The receive may be over, and its cancellation destroyed, before a fetcher on another thread looks
// at it.
TEST_F(Bounds, FetcherDoesNotGetTheReceiversCancellation) {
  const auto step = *manager_.Find(1);
  ASSERT_TRUE(step->Initialize(here_).ok());
  CancellationToken cancellation;
  step->RecvAsync(From(1), {.cancellation = &cancellation}, results_.Writer());
  EXPECT_THAT(fetcher_.cancellations, ElementsAre(nullptr));
  cancellation.Cancel();
  EXPECT_EQ(results_.size(), 1u);
}

// A callback that runs while deferred receives are handed over requests the same value again: the
// receives that were pending before it come first.
TEST_F(Bounds, DeferredReceives_AreServedFirst) {
  RendezvousManager manager(clock_, fetcher_);
  const auto step = *manager.Find(1);
  CancellationToken cancellation;
  const auto again = [&](absl::Status status, Received) {
    ASSERT_EQ(status.code(), absl::StatusCode::kCancelled);
    // The first of the two that are cancelled begins the step, in whose course the other ends.
    ASSERT_TRUE(step->Initialize(here_).ok());
    manager.RecvLocalAsync(1, From(0), {}, [this](absl::Status, Received received) {
      results_.Writer()(absl::OkStatus(), {.tensor = Value("again")});
    });
  };
  manager.RecvLocalAsync(1, From(0), {.cancellation = &cancellation}, again);
  manager.RecvLocalAsync(1, From(0), {.cancellation = &cancellation}, again);
  manager.RecvLocalAsync(1, From(0), {}, results_.Writer());
  cancellation.Cancel();
  for (const char* value : {"a", "b", "c"}) {
    ASSERT_TRUE(step->Send(From(0), Value(value)).ok());
  }
  EXPECT_THAT(results_.all(), ElementsAre("a", "again", "again"));
}

// A cancellation outlives many receives: a completed one must not stay registered with it.
TEST(RendezvousManagerRecvLocal, IsOver_ItsCancellationIsWatchedNoMore) {
  FakeClock clock;
  SilentFetcher fetcher;
  RendezvousManager manager(clock, fetcher);
  const auto step = *manager.Find(1);
  ASSERT_TRUE(step->Initialize(*ParseTaskName("/job:worker/replica:0/task:0")).ok());
  CancellationToken cancellation;
  ASSERT_TRUE(step->Send(Key("a"), Value("v")).ok());
  EXPECT_TRUE(
      manager.RecvLocal(1, Key("a"), absl::Seconds(10), {.cancellation = &cancellation}).ok());
  EXPECT_EQ(cancellation.registered_count(), 0u);
  EXPECT_EQ(manager.RecvLocal(1, Key("b"), absl::ZeroDuration(), {.cancellation = &cancellation})
                .status()
                .code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(cancellation.registered_count(), 0u);
  EXPECT_EQ(step->InnerTableSizes()["table.items"], 0u);
}

TEST_F(Bounds, FetchIsOver_ItsCancellationIsWatchedNoMore) {
  FakeClock clock;
  SilentFetcher fetcher;
  RendezvousManager manager(clock, fetcher);
  const auto step = *manager.Find(1);
  ASSERT_TRUE(step->Initialize(here_).ok());
  CancellationToken cancellation;
  Results results;
  for (const char* edge : {"failed", "aborted"}) {
    step->RecvAsync(From(edge[0] == 'f' ? 1 : 2, edge), {.cancellation = &cancellation},
                    results.Writer());
  }
  EXPECT_EQ(cancellation.registered_count(), 2u);
  EXPECT_EQ(step->InnerTableSizes()["fetches.listed"], 2u);
  step->FailTask({"worker", 0, 1}, absl::UnavailableError("task 1 has died"));
  EXPECT_EQ(cancellation.registered_count(), 1u);
  step->StartAbort(absl::AbortedError("enough"));
  EXPECT_EQ(cancellation.registered_count(), 0u);
  EXPECT_EQ(NonEmptyTables(step->InnerTableSizes()), "");
  EXPECT_EQ(results.size(), 2u);
}

// Only pending operations count: a step of many small values reaches the limit repeatedly.
TEST_F(Bounds, OneOfThemEnds_AnotherIsAccepted) {
  CancellationToken first;
  CancellationToken others;
  manager_.RecvLocalAsync(1, From(0), {.cancellation = &first}, results_.Writer());
  for (int i = 0; i < 2; ++i) {
    manager_.RecvLocalAsync(1, From(0), {.cancellation = &others}, results_.Writer());
  }
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_EQ(others.registered_count(), 1u) << "the refused receive stays registered";
  first.Cancel();
  ASSERT_EQ(results_.size(), 2u);
  manager_.RecvLocalAsync(1, From(0), {.cancellation = &others}, results_.Writer());
  EXPECT_EQ(results_.size(), 2u);
  EXPECT_EQ(others.registered_count(), 2u);
  others.Cancel();
  EXPECT_EQ(results_.size(), 4u);
}

// Handed over to the table, which watches the cancellation itself.
TEST_F(Bounds, DeferredReceiveIsHandedOver_ItsCancellationIsWatchedOnce) {
  CancellationToken cancellation;
  manager_.RecvLocalAsync(1, From(0), {.cancellation = &cancellation}, results_.Writer());
  EXPECT_EQ(cancellation.registered_count(), 1u);
  const auto step = *manager_.Find(1);
  ASSERT_TRUE(step->Initialize(here_).ok());
  EXPECT_EQ(cancellation.registered_count(), 1u);
  EXPECT_EQ(step->fetch_count(), 0u);
  ASSERT_TRUE(step->Send(From(0), Value("v")).ok());
  EXPECT_EQ(cancellation.registered_count(), 0u);
  EXPECT_THAT(results_.all(), ElementsAre("v"));
}

// Without a manager that would have aborted it before.
TEST_F(Bounds, StepIsDeleted_PendingReceivesEnd) {
  CancellationToken cancellation;
  {
    const auto step = std::make_shared<RemoteRendezvous>(1, clock_, RendezvousLimits(), fetcher_);
    step->RecvLocalAsync(From(0), {.cancellation = &cancellation}, results_.Writer());
  }
  EXPECT_THAT(results_.all(), ElementsAre("CANCELLED: the step's rendezvous is deleted"));
  EXPECT_EQ(cancellation.registered_count(), 0u);
}

// Closing the step reports the first reason for a loss, as the cause and not as a derived error.
TEST_F(Bounds, SeveralValuesAreLost_TheFirstReasonIsKept) {
  const auto begin = [this](int64_t step_id) {
    auto step = *manager_.Find(step_id);
    EXPECT_TRUE(step->Initialize(here_).ok());
    return step;
  };
  const auto aborted = begin(1);
  ASSERT_TRUE(aborted->Send(From(0), Value("untaken")).ok());
  aborted->StartAbort(absl::InternalError("first"));
  aborted->StartAbort(absl::AbortedError("second"));
  EXPECT_EQ(aborted->send_status(), absl::InternalError("first")) << "it is the cause, and no copy";
  const auto failed = begin(2);
  ASSERT_TRUE(failed->Send(From(0), Value("untaken")).ok());
  failed->RecordSendFailure(absl::UnavailableError("first"));
  failed->FailTask(here_, absl::AbortedError("second"));
  ASSERT_TRUE(failed->Send(From(0), Value("untaken")).ok());
  failed->StartAbort(absl::AbortedError("third"));
  EXPECT_EQ(failed->send_status(), absl::UnavailableError("first"));
  // Nothing was sent here: nothing is lost.
  const auto waiting = begin(3);
  waiting->RecvLocalAsync(From(0), {}, results_.Writer());
  waiting->StartAbort(absl::AbortedError("first"));
  EXPECT_TRUE(waiting->send_status().ok()) << waiting->send_status();
}

// A step may be closed by several callers, and is listed once among those that are over.
TEST_F(Bounds, StepsThatAreClosedAgain_AreRememberedOnce) {
  RendezvousManager manager(clock_, fetcher_, {.max_finished_steps = 2});
  for (int i = 0; i < 5; ++i) manager.Cleanup(1);
  manager.Cleanup(2);
  EXPECT_EQ(manager.Find(1).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(manager.Find(2).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(manager.InnerTableSizes()["manager.finished_order"], 2u);
  // All of them at once are over too.
  ASSERT_TRUE(manager.Find(3).ok());
  manager.CleanupAll();
  EXPECT_EQ(manager.step_count(), 0u);
  EXPECT_EQ(manager.Find(3).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(manager.InnerTableSizes()["manager.finished"], 2u);
  EXPECT_EQ(manager.InnerTableSizes()["manager.finished_order"], 2u);
}

// A transfer that ends late must not make a closed step again.
TEST_F(Bounds, StepIsOver_NothingBegins) {
  const auto step = *manager_.Find(1);
  manager_.Cleanup(1);
  {
    const StepOperation none = manager_.BeginOperation(1);
    EXPECT_EQ(step->operations().count(), 0u);
  }
  manager_.RecordSendFailure(1, From(0), absl::UnavailableError("late"));
  EXPECT_TRUE(step->send_status().ok()) << step->send_status();
  EXPECT_EQ(manager_.step_count(), 0u);
}

}  // namespace
}  // namespace ferry

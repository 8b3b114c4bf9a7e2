// SPDX-License-Identifier: Apache-2.0
// What may wait in a step of a worker, and in which order what waited for the step is served.
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
  RendezvousManager manager_{clock_, fetcher_, {.limits = {.max_waiting = 2}}};
};

// A peer may ask for a step that never begins as often as it likes.
TEST_F(Bounds, ReceivesThatComeBeforeTheStepAreLimited) {
  CancellationToken cancellation;
  for (int i = 0; i < 3; ++i) {
    manager_.RecvLocalAsync(1, From(0), {.cancellation = &cancellation}, results_.Writer());
  }
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_THAT(results_.all()[0], HasSubstr("RESOURCE_EXHAUSTED: 2 receives of step 1 wait for it"));
  EXPECT_THAT(results_.all()[0], HasSubstr("raise --max-waiting"));
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

// The receive may be over, and its cancellation gone, before a fetcher on another thread looks.
TEST_F(Bounds, AFetcherIsNotGivenTheReceiversCancellation) {
  const auto step = *manager_.Find(1);
  ASSERT_TRUE(step->Initialize(here_).ok());
  CancellationToken cancellation;
  step->RecvAsync(From(1), {.cancellation = &cancellation}, results_.Writer());
  EXPECT_THAT(fetcher_.cancellations, ElementsAre(nullptr));
  cancellation.Cancel();
  EXPECT_EQ(results_.size(), 1u);
}

// A callback that runs while deferred receives are handed over asks for the same value again: those
// that were there before it come first.
TEST_F(Bounds, NobodyOvertakesDeferredReceives) {
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

}  // namespace
}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// Sessions, steps, deaths of workers and of clients, in any order: every call is answered once, and
// nothing stays at any worker.
#include <algorithm>

#include "tests/tensorflow/master/master_fixture.h"

namespace ferry::master {
namespace {

class SimulationTest : public MasterTest, public ::testing::WithParamInterface<int> {
 protected:
  SimulationTest() : MasterTest(3, 0, Options()), dice_(static_cast<unsigned>(GetParam())) {}

  static MasterOptions Options() {
    MasterOptions options;
    options.worker_timeout = absl::Seconds(5);
    options.session_idle_timeout = absl::Seconds(40);
    options.max_step_graphs = 3;
    return options;
  }

  int Roll(int sides) { return static_cast<int>(dice_() % static_cast<unsigned>(sides)); }

  struct Pending {
    std::string what;
    std::function<int()> count;
  };
  template <typename Request, typename Response>
  std::shared_ptr<Answer<Response>> Begin(const std::string& what, Method<Request, Response> method,
                                          Request request,
                                          std::shared_ptr<CancellationToken> gone = nullptr) {
    auto answer = Start(method, std::move(request), std::move(gone));
    pending_.push_back({what, [answer] { return answer->count; }});
    return answer;
  }

  // A chain over the workers, of the nodes that exist by then.
  tensorflow::GraphDef MoreNodes(int round) {
    GraphWriter graph;
    for (int i = 0; i < 3; ++i) {
      const std::string name = absl::StrCat("n", round, "_", i);
      graph.AddFloat(name, "AddV2", {"a", i == 0 ? "x" : absl::StrCat("n", round, "_", i - 1)},
                     absl::StrCat("/job:worker/task:", Roll(3)));
    }
    return graph.def();
  }

  void Act() {
    if (sessions_.empty() || Roll(12) == 0) {
      tensorflow::CreateSessionRequest request;
      *request.mutable_graph_def() = TwoWorkerGraph().def();
      request.mutable_config()->set_operation_timeout_in_ms(Roll(2) == 0 ? 0 : 300);
      creations_.push_back(Begin("CreateSession", &Master::CreateSession, request));
      return;
    }
    const std::string session =
        sessions_[static_cast<size_t>(Roll(static_cast<int>(sessions_.size())))];
    switch (Roll(10)) {
      case 0: {
        tensorflow::ExtendSessionRequest request;
        request.set_session_handle(session);
        *request.mutable_graph_def() = MoreNodes(++round_);
        request.set_current_graph_version(Roll(3));
        Begin("ExtendSession", &Master::ExtendSession, request);
        return;
      }
      case 1: {
        if (Roll(4) != 0) return;
        tensorflow::CloseSessionRequest request;
        request.set_session_handle(session);
        Begin("CloseSession", &Master::CloseSession, request);
        return;
      }
      case 2: {
        tensorflow::PartialRunSetupRequest request;
        request.set_session_handle(session);
        request.add_feed("x:0");
        request.add_fetch("b:0");
        request.add_fetch("a:0");
        Begin("PartialRunSetup", &Master::PartialRunSetup, request);
        return;
      }
      case 3: {
        tensorflow::RunStepRequest request = Run(session, {"b:0"}, {{"x:0", 1}});
        request.set_partial_run_handle(absl::StrCat(Roll(4)));
        Begin("RunStep of a part", &Master::RunStep, request);
        return;
      }
      case 4: {
        if (Roll(20) == 0) {
          Begin("Reset", &Master::Reset, tensorflow::ResetRequest());
          return;
        }
        tensorflow::MakeCallableRequest request;
        request.set_session_handle(session);
        request.mutable_options()->add_fetch("a:0");
        Begin("MakeCallable", &Master::MakeCallable, request);
        return;
      }
      case 5: {
        tensorflow::RunCallableRequest request;
        request.set_session_handle(session);
        request.set_handle(Roll(4));
        Begin("RunCallable", &Master::RunCallable, request);
        tensorflow::ReleaseCallableRequest release;
        release.set_session_handle(session);
        release.set_handle(Roll(4));
        Begin("ReleaseCallable", &Master::ReleaseCallable, release);
        return;
      }
      default: {
        const std::string name = Roll(2) == 0 ? "b:0" : absl::StrCat("n", Roll(round_ + 1), "_2:0");
        tensorflow::RunStepRequest request = Run(session, {name}, {{"x:0", 1}});
        if (Roll(3) == 0) request.mutable_options()->set_timeout_in_ms(1 + Roll(500));
        auto gone = std::make_shared<CancellationToken>();
        if (Roll(4) == 0) clients_.push_back(gone);
        Begin("RunStep", &Master::RunStep, request, gone);
        return;
      }
    }
  }

  void Disturb() {
    switch (Roll(40)) {
      case 0:
        cluster_.Restart(Roll(3));
        if (Roll(2) == 0) master_.ClusterChanged();
        return;
      case 1: {
        const int task = Roll(3);
        cluster_.SetListed(task, Roll(3) != 0);
        master_.ClusterChanged();
        return;
      }
      case 2:
        cluster_.worker(Roll(3)).hangs = Roll(2) == 0;
        return;
      case 3:
        cluster_.worker(Roll(3)).on_run = [this](const auto&) {
          return Roll(3) == 0 ? absl::InternalError("fantasia!") : absl::OkStatus();
        };
        return;
      case 4:
        if (!clients_.empty()) {
          clients_.back()->Cancel();
          clients_.pop_back();
        }
        return;
      case 6: {
        FakeWorker& worker = cluster_.worker(Roll(3));
        worker.deaf_times = Roll(5);
        worker.deaf_error = Roll(2) == 0 ? absl::UnavailableError("Socket closed")
                                         : absl::DeadlineExceededError("late");
        return;
      }
      case 5:
        clock_.Advance(absl::Milliseconds(Roll(2000)));
        timers_.RunDue();
        return;
      default:
        return;
    }
  }

  void NoteSessions() {
    for (const auto& creation : creations_) {
      if (creation->is_there() && creation->result->ok()) {
        sessions_.push_back(creation->value().session_handle());
      }
    }
    creations_.erase(std::remove_if(creations_.begin(), creations_.end(),
                                    [](const auto& creation) { return creation->is_there(); }),
                     creations_.end());
    if (sessions_.size() > 6) sessions_.erase(sessions_.begin());
  }

  std::mt19937 dice_;
  std::vector<Pending> pending_;
  std::vector<std::shared_ptr<Answer<tensorflow::CreateSessionResponse>>> creations_;
  std::vector<std::string> sessions_;
  std::vector<std::shared_ptr<CancellationToken>> clients_;
  int round_ = 0;
};

TEST_P(SimulationTest, AnswersEverythingAndLeavesNothing) {
  for (int i = 0; i < 3000; ++i) {
    if (Roll(6) == 0) Act();
    Disturb();
    NoteSessions();
    // Events overtake each other.
    const auto events = static_cast<int>(cluster_.event_count());
    if (events > 0) cluster_.Step(static_cast<size_t>(Roll(std::min(events, 8))));
  }
  // The world comes to rest: every wait has a deadline or ends with its session.
  for (int task = 0; task < 3; ++task) {
    cluster_.SetListed(task, true);
    cluster_.worker(task).hangs = false;
    cluster_.worker(task).on_run = nullptr;
    cluster_.worker(task).deaf_times = 0;
  }
  master_.ClusterChanged();
  cluster_.Pump();
  for (int i = 0; i < 10; ++i) Pass(absl::Seconds(20));
  bool is_told = false;
  master_.Stop([&is_told] { is_told = true; });
  cluster_.Pump();
  for (int i = 0; i < 10; ++i) Pass(absl::Seconds(20));
  EXPECT_TRUE(is_told);
  EXPECT_EQ(cluster_.Leftovers(), "");
  EXPECT_EQ(master_.session_count(), 0u);
  for (const Pending& call : pending_) EXPECT_EQ(call.count(), 1) << call.what;
  EXPECT_GT(pending_.size(), 300u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SimulationTest, ::testing::Range(1, 41));

}  // namespace
}  // namespace ferry::master

// SPDX-License-Identifier: Apache-2.0
// A master over fake workers, with time and chance in the test's hands.
#ifndef FERRY_TESTS_TENSORFLOW_MASTER_MASTER_FIXTURE_H_
#define FERRY_TESTS_TENSORFLOW_MASTER_MASTER_FIXTURE_H_

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/table_sizes.h"
#include "tensorflow/master/master.h"
#include "tests/tensorflow/graph/graph_fixture.h"
#include "tests/tensorflow/master/fake_cluster.h"

namespace ferry::master {

using ::ferry::graph::Fails;
using ::ferry::graph::GraphWriter;
using ::testing::AllOf;
using ::testing::HasSubstr;

inline constexpr char kCpu0[] = "/job:worker/task:0/device:CPU:0";
inline constexpr char kCpu1[] = "/job:worker/task:1/device:CPU:0";

// The result of one call.
template <typename Response>
struct Answer {
  int count = 0;
  std::optional<absl::StatusOr<Response>> result;

  bool is_there() const { return result.has_value(); }
  const absl::Status& status() const { return result->status(); }
  const Response& value() const { return result->value(); }
};

class MasterTest : public ::testing::Test {
 protected:
  explicit MasterTest(int workers = 2, int gpus = 0, MasterOptions options = {})
      : cluster_(workers, gpus), timers_(clock_), master_(std::move(options), MakeParts()) {}

  ~MasterTest() override {
    bool is_told = false;
    for (int i = 0; i < cluster_.size(); ++i) cluster_.worker(i).hangs = false;
    CheckTables();
    master_.Stop([&is_told] { is_told = true; });
    cluster_.Pump();
    EXPECT_TRUE(is_told);
    EXPECT_EQ(NonEmptyTables(master_.InnerTableSizes()), "");
    for (const auto& gone : gone_) {
      EXPECT_EQ(gone->registered_count(), 0u) << "a client that may go is still watched";
    }
    EXPECT_EQ(cluster_.Leftovers(), "");
  }

  template <typename Request, typename Response>
  using Method = void (Master::*)(std::shared_ptr<Request>, std::shared_ptr<CancellationToken>,
                                  Master::Done<Response>);

  // Calls, and does nothing more: the answer may come later.
  template <typename Request, typename Response>
  std::shared_ptr<Answer<Response>> Start(Method<Request, Response> method, Request request,
                                          std::shared_ptr<CancellationToken> gone = nullptr) {
    auto answer = std::make_shared<Answer<Response>>();
    ++*unanswered_;
    if (gone != nullptr) gone_.push_back(gone);
    (master_.*method)(std::make_shared<Request>(std::move(request)), std::move(gone),
                      [answer, unanswered = unanswered_](absl::StatusOr<Response> result) {
                        if (answer->count == 0) --*unanswered;
                        ++answer->count;
                        answer->result = std::move(result);
                      });
    return answer;
  }
  // Calls, and lets everything run that can.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(Method<Request, Response> method, Request request) {
    const auto answer = Start(method, std::move(request));
    cluster_.Pump();
    EXPECT_EQ(answer->count, 1);
    if (!answer->is_there()) return absl::UnknownError("no answer");
    return *std::move(answer->result);
  }
  void Pass(absl::Duration time) {
    clock_.Advance(time);
    timers_.RunDue();
    cluster_.Pump();
  }

  absl::StatusOr<std::string> Create(const tensorflow::GraphDef& graph,
                                     tensorflow::ConfigProto config = {}) {
    tensorflow::CreateSessionRequest request;
    *request.mutable_graph_def() = graph;
    *request.mutable_config() = std::move(config);
    auto response = Call(&Master::CreateSession, std::move(request));
    if (!response.ok()) return response.status();
    return response->session_handle();
  }
  absl::StatusOr<int64_t> Extend(const std::string& session, const tensorflow::GraphDef& graph,
                                 int64_t version) {
    tensorflow::ExtendSessionRequest request;
    request.set_session_handle(session);
    *request.mutable_graph_def() = graph;
    request.set_current_graph_version(version);
    auto response = Call(&Master::ExtendSession, std::move(request));
    if (!response.ok()) return response.status();
    return response->new_graph_version();
  }
  absl::Status Close(const std::string& session) {
    tensorflow::CloseSessionRequest request;
    request.set_session_handle(session);
    return Call(&Master::CloseSession, std::move(request)).status();
  }
  static tensorflow::TensorProto Scalar(float value) {
    tensorflow::TensorProto tensor;
    tensor.set_dtype(tensorflow::DT_FLOAT);
    tensor.mutable_tensor_shape();
    tensor.add_float_val(value);
    return tensor;
  }
  using Feeds = std::vector<std::pair<std::string, float>>;
  static tensorflow::RunStepRequest Run(const std::string& session,
                                        std::vector<std::string> fetches, const Feeds& feeds = {},
                                        std::vector<std::string> targets = {}) {
    tensorflow::RunStepRequest request;
    request.set_session_handle(session);
    for (std::string& fetch : fetches) request.add_fetch(std::move(fetch));
    for (std::string& target : targets) request.add_target(std::move(target));
    for (const auto& [name, value] : feeds) {
      tensorflow::NamedTensorProto& feed = *request.add_feed();
      feed.set_name(name);
      *feed.mutable_tensor() = Scalar(value);
    }
    return request;
  }
  static std::vector<float> Values(const tensorflow::RunStepResponse& response) {
    std::vector<float> values;
    for (const auto& tensor : response.tensor()) values.push_back(tensor.tensor().float_val(0));
    return values;
  }
  // Values of the fetches.
  absl::StatusOr<std::vector<float>> Fetch(const std::string& session,
                                           std::vector<std::string> fetches,
                                           const Feeds& feeds = {}) {
    auto response = Call(&Master::RunStep, Run(session, std::move(fetches), feeds));
    if (!response.ok()) return response.status();
    return Values(*response);
  }

  // The threads that read graphs are at something long, or are done with it.
  void HoldWork() { is_work_held_ = true; }
  void ReleaseWork() {
    is_work_held_ = false;
    for (auto& work : std::exchange(held_work_, {})) cluster_.Post(std::move(work));
    cluster_.Pump();
  }

  // When every call has been answered, and everything has run that can, sessions have nothing in
  // progress.
  void CheckTables() const {
    if (*unanswered_ > 0 || is_work_held_ || cluster_.event_count() > 0) return;
    EXPECT_EQ(NonEmptyTables(master_.InnerTableSizes(),
                             {"master.sessions", "master.session_count", "master.graph_bytes",
                              "session.callables", "session.partials"}),
              "");
  }

  // Calls of Start without an answer so far.
  const std::shared_ptr<std::atomic<int>> unanswered_ = std::make_shared<std::atomic<int>>(0);
  std::vector<std::shared_ptr<CancellationToken>> gone_;
  bool is_work_held_ = false;
  std::vector<absl::AnyInvocable<void() &&>> held_work_;
  FakeClock clock_;
  FakeCluster cluster_;
  Timers timers_;
  std::mt19937_64 random_{17};
  Master master_;

 private:
  Master::Parts MakeParts() {
    return {cluster_, timers_,
            [this](absl::AnyInvocable<void() &&> work) {
              if (is_work_held_) return held_work_.push_back(std::move(work));
              cluster_.Post(std::move(work));
            },
            [this](absl::AnyInvocable<void() &&> look) { cluster_.Post(std::move(look)); },
            [this] { return random_(); }};
  }
};

// a (a constant, 2) on one worker, b = a + x on the other, x a placeholder.
inline GraphWriter TwoWorkerGraph() {
  GraphWriter graph;
  graph.Const("a", kCpu0, 2);
  graph.Placeholder("x", kCpu0);
  graph.AddFloat("b", "AddV2", {"a", "x"}, kCpu1);
  return graph;
}

// A session with that graph.
class StepTest : public MasterTest {
 protected:
  StepTest() { session_ = *Create(TwoWorkerGraph().def()); }
  tensorflow::RunStepRequest RunB(float x = 1) { return Run(session_, {"b:0"}, {{"x:0", x}}); }
  bool HasNoSteps() { return cluster_.worker(0).steps.empty() && cluster_.worker(1).steps.empty(); }

  std::string session_;
};

}  // namespace ferry::master

#endif  // FERRY_TESTS_TENSORFLOW_MASTER_MASTER_FIXTURE_H_

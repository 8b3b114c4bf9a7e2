// SPDX-License-Identifier: Apache-2.0
// Steps: values, errors, deadlines, ends.
#include "tests/tensorflow/master/master_fixture.h"

namespace ferry::master {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

// In small: the value crosses, each worker registers one graph once, and every step is cleaned
// up everywhere.
TEST_F(StepTest, CrossesWorkers) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(*Fetch(session_, {"b:0"}, {{"x:0", static_cast<float>(i)}}), ElementsAre(2 + i));
    EXPECT_TRUE(HasNoSteps());
  }
  EXPECT_EQ(cluster_.worker(0).register_count, 1);
  EXPECT_EQ(cluster_.worker(1).register_count, 1);
  // Feeds and fetches go through the first worker alone.
  EXPECT_THAT(cluster_.worker(0).runs[0].send(), SizeIs(1));
  EXPECT_THAT(cluster_.worker(0).runs[0].recv_key(), SizeIs(1));
  EXPECT_THAT(cluster_.worker(1).runs[0].send(), IsEmpty());
  EXPECT_THAT(cluster_.worker(1).runs[0].recv_key(), IsEmpty());
  EXPECT_TRUE(cluster_.worker(1).last_registered.create_worker_session_called());
}

// Step ids are fresh and have 57 bits; requests have ids of their own.
TEST_F(StepTest, NumbersSteps) {
  std::set<int64_t> ids;
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(Call(&Master::RunStep, RunB()).ok());
  for (const auto& run : cluster_.worker(0).runs) {
    EXPECT_GE(run.step_id(), 0);
    EXPECT_LT(run.step_id(), int64_t{1} << 57);
    ids.insert(run.step_id());
  }
  EXPECT_EQ(ids.size(), 200u);
  // It is the same step at both workers.
  EXPECT_EQ(cluster_.worker(0).runs[5].step_id(), cluster_.worker(1).runs[5].step_id());
}

// A step of one worker is sent only to that one.
TEST_F(StepTest, CallsOnlyTheWorkersItNeeds) {
  EXPECT_THAT(*Fetch(session_, {"a:0"}), ElementsAre(2));
  EXPECT_THAT(cluster_.worker(1).runs, IsEmpty());
  EXPECT_TRUE(Call(&Master::RunStep, Run(session_, {}, {{"x:0", 1}}, {"b"})).ok());
  EXPECT_THAT(cluster_.worker(1).runs, SizeIs(1));
}

// The order of names does not make another step.
TEST_F(StepTest, RecognisesARepeatedStep) {
  EXPECT_THAT(*Fetch(session_, {"a:0", "b:0"}, {{"x:0", 1}}), ElementsAre(2, 3));
  EXPECT_THAT(*Fetch(session_, {"b:0", "a:0"}, {{"x:0", 1}}), ElementsAre(3, 2));
  EXPECT_EQ(cluster_.worker(0).register_count, 1);
}

// Each fetch is answered, in any spelling and any number of times.
TEST_F(StepTest, RepeatsAFetch) {
  EXPECT_THAT(*Fetch(session_, {"a:0", "a", "a:0"}), ElementsAre(2, 2, 2));
}

// A step that many clients request at once is registered once.
TEST_F(StepTest, RegistersOnce) {
  std::vector<std::shared_ptr<Answer<tensorflow::RunStepResponse>>> answers;
  for (int i = 0; i < 50; ++i) answers.push_back(Start(&Master::RunStep, RunB(1.0f * i)));
  cluster_.Pump();
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(answers[i]->count, 1);
    EXPECT_THAT(Values(answers[i]->value()), ElementsAre(2 + i));
  }
  EXPECT_EQ(cluster_.worker(0).register_count, 1);
}

TEST_F(StepTest, RefusesInvalidRequests) {
  EXPECT_THAT(Fetch(session_, {}), Fails(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("Must specify at least one target")));
  EXPECT_THAT(Fetch(session_, {"b:0"}, {{"x:0", 1}, {"x:0", 2}}),
              Fails(absl::StatusCode::kInvalidArgument, "Duplicated feeds: x:0"));
  EXPECT_THAT(Fetch(session_, {"b:0"}, {{"x:0", 1}, {"x", 2}}),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("fed more than once")));
  EXPECT_THAT(Fetch(session_, {"x:0"}, {{"x:0", 1}}),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("both fed and fetched")));
  EXPECT_THAT(Fetch(session_, {"none:0"}),
              Fails(absl::StatusCode::kNotFound, HasSubstr("none:0: not found")));
  EXPECT_THAT(Fetch(session_, {"b:0"}, {{"none:0", 1}}),
              Fails(absl::StatusCode::kNotFound, HasSubstr("unable to find feed output none:0")));
  EXPECT_THAT(Fetch(session_, {"a:1"}),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("output index too large")));
  EXPECT_THAT(Call(&Master::RunStep, Run(session_, {}, {}, {"none"})),
              Fails(absl::StatusCode::kNotFound, HasSubstr("Some target nodes not found")));
  EXPECT_THAT(Fetch("none", {"a:0"}),
              Fails(absl::StatusCode::kAborted, "Session none is not found."));
  EXPECT_THAT(cluster_.worker(0).graphs, IsEmpty());
}

// A duplicate request, from a client that lost the answer.
TEST_F(StepTest, RefusesADuplicateRequest) {
  tensorflow::RunStepRequest request = RunB();
  EXPECT_TRUE(Call(&Master::RunStep, request).ok());
  EXPECT_TRUE(Call(&Master::RunStep, request).ok());
  request.set_request_id(7);
  EXPECT_TRUE(Call(&Master::RunStep, request).ok());
  EXPECT_THAT(Call(&Master::RunStep, request),
              Fails(absl::StatusCode::kAborted,
                    HasSubstr("The same RunStep (Master) request was received twice.")));
  EXPECT_THAT(cluster_.worker(0).runs, SizeIs(3));
}

// The error is returned at once, although the other worker still runs.
TEST_F(StepTest, ReportsTheRootOfAnErrorPromptly) {
  cluster_.worker(0).hangs = true;
  cluster_.worker(1).on_run = [](const auto&) { return absl::InternalError("fantasia!"); };
  EXPECT_THAT(Call(&Master::RunStep, RunB()),
              Fails(absl::StatusCode::kInternal,
                    AllOf(StartsWith("From /job:worker/replica:0/task:1:\n"),
                          HasSubstr("fantasia!"), Not(HasSubstr("ancelled")))));
  EXPECT_TRUE(HasNoSteps());
  cluster_.worker(0).hangs = false;
  cluster_.worker(1).on_run = nullptr;
  EXPECT_THAT(*Fetch(session_, {"b:0"}, {{"x:0", 1}}), ElementsAre(3));
}

// Derived errors may arrive before their cause.
TEST_F(StepTest, ReportsTheRootWhenDerivedErrorsArriveFirst) {
  cluster_.worker(0).on_run = [](const auto&) {
    return absl::AbortedError("[_Derived_]RecvAsync is cancelled.");
  };
  cluster_.worker(1).on_run = [](const auto&) { return absl::InternalError("fantasia!"); };
  EXPECT_THAT(Call(&Master::RunStep, RunB()),
              Fails(absl::StatusCode::kInternal,
                    AllOf(HasSubstr("fantasia!"), Not(HasSubstr("RecvAsync")))));
}

// TensorFlow's words, from the master, before any worker is called.
TEST_F(StepTest, InvalidFeeds_AreRefusedByTheirIndex) {
  const auto with = [&](auto change) {
    tensorflow::RunStepRequest request = RunB();
    change(*request.mutable_feed(0)->mutable_tensor());
    return Call(&Master::RunStep, request).status();
  };
  const auto refused =
      Fails(absl::StatusCode::kInvalidArgument, StartsWith("Invalid TensorProto for feed value 0"));
  EXPECT_THAT(with([](auto& tensor) {
                tensor.Clear();
                tensor.set_dtype(tensorflow::DT_BOOL);
                tensor.mutable_tensor_shape()->add_dim()->set_size(2);
                tensor.set_tensor_content(std::string("\1\7", 2));
              }),
              refused);
  EXPECT_THAT(with([](auto& tensor) { tensor.set_tensor_content("abc"); }), refused);
  EXPECT_THAT(with([](auto& tensor) { tensor.mutable_tensor_shape()->add_dim()->set_size(-1); }),
              refused);
  EXPECT_THAT(with([](auto& tensor) { tensor.clear_dtype(); }), refused);
  EXPECT_THAT(cluster_.worker(0).runs, SizeIs(0));
  // Its rank is unknown, which does not matter.
  EXPECT_TRUE(
      with([](auto& tensor) { tensor.mutable_tensor_shape()->set_unknown_rank(true); }).ok());
  EXPECT_THAT(cluster_.worker(0).runs, SizeIs(1));
}

TEST_F(StepTest, ReportsADerivedErrorIfThereIsNoOther) {
  for (int i = 0; i < 2; ++i) {
    cluster_.worker(i).on_run = [](const auto&) {
      return absl::AbortedError("[_Derived_]RecvAsync is cancelled.");
    };
  }
  EXPECT_THAT(Call(&Master::RunStep, RunB()),
              Fails(absl::StatusCode::kAborted,
                    AllOf(HasSubstr("RecvAsync is cancelled."), Not(HasSubstr("_Derived_")))));
}

// 86
TEST_F(StepTest, ReportsSeveralRoots) {
  for (int i = 0; i < 2; ++i) {
    cluster_.worker(i).on_run = [i](const auto&) {
      return absl::InternalError(absl::StrCat("fantasia ", i));
    };
  }
  EXPECT_THAT(
      Call(&Master::RunStep, RunB()),
      Fails(absl::StatusCode::kInternal, AllOf(HasSubstr("fantasia 0"), HasSubstr("fantasia 1"))));
}

// An error of any length.
TEST_F(StepTest, PutsErrorsIntoTheResponse) {
  const std::string text = std::string(1 << 20, 'x') + "fantasia!";
  cluster_.worker(1).on_run = [&text](const auto&) { return absl::InternalError(text); };
  tensorflow::RunStepRequest request = RunB();
  request.set_store_errors_in_response_body(true);
  const auto response = Call(&Master::RunStep, request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->status_code(), tensorflow::error::INTERNAL);
  EXPECT_THAT(response->status_error_message(), HasSubstr(text));
  // Also those that no worker has seen.
  request.set_session_handle("none");
  EXPECT_EQ(Call(&Master::RunStep, request)->status_code(), tensorflow::error::ABORTED);
}

// 89
TEST_F(StepTest, EndsAStepThatTakesTooLong) {
  cluster_.worker(1).hangs = true;
  tensorflow::RunStepRequest request = RunB();
  request.mutable_options()->set_timeout_in_ms(100);
  const auto answer = Start(&Master::RunStep, request);
  cluster_.Pump();
  Pass(absl::Milliseconds(99));
  EXPECT_FALSE(answer->is_there());
  Pass(absl::Milliseconds(1));
  ASSERT_EQ(answer->count, 1);
  EXPECT_THAT(answer->status(), Fails(absl::StatusCode::kDeadlineExceeded,
                                      AllOf(HasSubstr("100ms"), HasSubstr("task:1"))));
  EXPECT_TRUE(HasNoSteps());
}

// The session's timeout applies to steps that have none.
TEST_F(MasterTest, HasATimeoutForAllSteps) {
  tensorflow::ConfigProto config;
  config.set_operation_timeout_in_ms(50);
  const auto session = Create(TwoWorkerGraph().def(), config);
  cluster_.worker(0).hangs = true;
  const auto answer = Start(&Master::RunStep, Run(*session, {"a:0"}));
  cluster_.Pump();
  Pass(absl::Milliseconds(50));
  EXPECT_THAT(answer->status(), Fails(absl::StatusCode::kDeadlineExceeded, HasSubstr("50ms")));
}

// The deadline holds while graphs are being registered, too.
TEST_F(StepTest, EndsAStepThatIsNotRegisteredInTime) {
  tensorflow::RunStepRequest request = RunB();
  request.mutable_options()->set_timeout_in_ms(100);
  const auto answer = Start(&Master::RunStep, request);
  clock_.Advance(absl::Milliseconds(100));
  timers_.RunDue();
  EXPECT_THAT(answer->status(),
              Fails(absl::StatusCode::kDeadlineExceeded, HasSubstr("registered")));
  cluster_.Pump();
  EXPECT_EQ(answer->count, 1);
  // It did not run, and is there for the next one.
  EXPECT_THAT(cluster_.worker(0).runs, IsEmpty());
  EXPECT_TRUE(Call(&Master::RunStep, RunB()).ok());
  EXPECT_EQ(cluster_.worker(0).register_count, 1);
}

TEST_F(StepTest, EndsWhenTheClientDisconnects) {
  cluster_.worker(1).hangs = true;
  const auto gone = std::make_shared<CancellationToken>();
  const auto answer = Start(&Master::RunStep, RunB(), gone);
  cluster_.Pump();
  gone->Cancel();
  cluster_.Pump();
  ASSERT_EQ(answer->count, 1);
  EXPECT_THAT(answer->status(), Fails(absl::StatusCode::kCancelled, HasSubstr("client")));
  EXPECT_TRUE(HasNoSteps());
  // One that had disconnected before.
  EXPECT_THAT(Start(&Master::RunStep, RunB(), gone)->status(),
              Fails(absl::StatusCode::kCancelled, HasSubstr("Step was cancelled")));
  cluster_.Pump();
}

// A close ends running steps, and is over after them.
TEST_F(StepTest, ClosesDuringAStep) {
  cluster_.worker(1).hangs = true;
  const auto step = Start(&Master::RunStep, RunB());
  cluster_.Pump();
  tensorflow::CloseSessionRequest request;
  request.set_session_handle(session_);
  const auto close = Start(&Master::CloseSession, request);
  EXPECT_FALSE(close->is_there());
  while (!close->is_there()) {
    ASSERT_GT(cluster_.event_count(), 0u);
    EXPECT_FALSE(close->is_there() && !step->is_there());
    cluster_.Step();
  }
  EXPECT_THAT(step->status(),
              Fails(absl::StatusCode::kCancelled,
                    HasSubstr("Step was cancelled by an explicit call to `Session::Close()`.")));
  EXPECT_TRUE(close->result->ok());
  cluster_.Pump();
  EXPECT_EQ(cluster_.Leftovers(), "");
  // A step that arrives too late.
  EXPECT_THAT(Fetch(session_, {"a:0"}),
              Fails(absl::StatusCode::kAborted, HasSubstr("is not found")));
}

// Graphs are registered everywhere or nowhere.
TEST_F(StepTest, DropsStepsThatCouldNotBeRegisteredEverywhere) {
  cluster_.worker(1).register_error = absl::InvalidArgumentError("no such kernel");
  EXPECT_THAT(Call(&Master::RunStep, RunB()),
              Fails(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("task:1"), HasSubstr("no such kernel"))));
  EXPECT_THAT(cluster_.worker(0).graphs, IsEmpty());
  cluster_.worker(1).register_error = absl::OkStatus();
  EXPECT_TRUE(Call(&Master::RunStep, RunB()).ok());
}

// A worker that does not answer is notified repeatedly that a step is over, with pauses: its
// channel is being made again.
TEST_F(StepTest, CleansUpAgainAfterPauses) {
  FakeWorker& deaf = cluster_.worker(1);
  deaf.deaf_times = 5;
  EXPECT_TRUE(Call(&Master::RunStep, RunB()).ok());
  EXPECT_EQ(deaf.told_count, 1);
  EXPECT_FALSE(HasNoSteps());
  Pass(absl::Milliseconds(99));
  EXPECT_EQ(deaf.told_count, 1);
  Pass(absl::Milliseconds(1));
  EXPECT_EQ(deaf.told_count, 2);
  for (int i = 0; i < 4; ++i) Pass(absl::Seconds(5));
  EXPECT_EQ(deaf.told_count, 6);
  EXPECT_TRUE(HasNoSteps());
}

// No caller waits for that, and a session that is closed continues with it.
TEST_F(StepTest, EndsASessionAtAWorkerThatDoesNotAnswerAtFirst) {
  cluster_.worker(1).deaf_times = 4;
  EXPECT_TRUE(Close(session_).ok());
  EXPECT_THAT(cluster_.Leftovers(), HasSubstr("task:1 has sessions"));
  for (int i = 0; i < 5; ++i) Pass(absl::Seconds(1));
  EXPECT_EQ(cluster_.Leftovers(), "");
}

// Not forever, and not when the worker is lost.
TEST_F(StepTest, GivesUpOnAWorkerThatNeverAnswers) {
  FakeWorker& deaf = cluster_.worker(1);
  deaf.deaf_times = 1000;
  EXPECT_TRUE(Call(&Master::RunStep, RunB()).ok());
  for (int i = 0; i < 200; ++i) Pass(absl::Seconds(1));
  EXPECT_GT(deaf.told_count, 20);
  EXPECT_LT(deaf.told_count, 60);
  const int told = deaf.told_count;
  for (int i = 0; i < 10; ++i) Pass(absl::Minutes(1));
  EXPECT_EQ(deaf.told_count, told);
  deaf.deaf_times = 0;
  deaf.steps.clear();
}

// A worker that answers wrongly.
TEST_F(StepTest, DetectsAMissingTensor) {
  cluster_.worker(0).on_run = [this](const auto& request) {
    // As if the graph had no such node.
    auto& graph = cluster_.worker(0).graphs.at(request.graph_handle());
    for (auto& node : *graph.mutable_node()) {
      if (node.op() == "_Send") node.set_op("NoOp");
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(Fetch(session_, {"a:0"}),
              Fails(absl::StatusCode::kInternal,
                    HasSubstr("Worker did not return a value for fetch: a:0")));
}

TEST_F(StepTest, ReturnsMetadataOnRequest) {
  tensorflow::RunStepRequest request = RunB();
  auto response = Call(&Master::RunStep, request);
  EXPECT_EQ(response->metadata().step_stats().dev_stats_size(), 0);
  EXPECT_EQ(response->metadata().partition_graphs_size(), 0);
  request.mutable_options()->set_trace_level(tensorflow::RunOptions::FULL_TRACE);
  request.mutable_options()->set_output_partition_graphs(true);
  response = Call(&Master::RunStep, request);
  EXPECT_EQ(response->metadata().step_stats().dev_stats_size(), 2);
  EXPECT_EQ(response->metadata().partition_graphs_size(), 2);
}

// 93
TEST_F(MasterTest, RefusesPartitionGraphsThatWereDisabled) {
  tensorflow::ConfigProto config;
  config.mutable_experimental()->set_disable_output_partition_graphs(true);
  const auto session = Create(TwoWorkerGraph().def(), config);
  tensorflow::RunStepRequest request = Run(*session, {"a:0"});
  request.mutable_options()->set_output_partition_graphs(true);
  EXPECT_THAT(Call(&Master::RunStep, request),
              Fails(absl::StatusCode::kInvalidArgument,
                    HasSubstr("disable_output_partition_graphs is true")));
}

TEST_F(StepTest, RefusesUnknownOptions) {
  tensorflow::RunStepRequest request = RunB();
  request.mutable_options()->mutable_debug_options()->add_debug_tensor_watch_opts();
  EXPECT_THAT(Call(&Master::RunStep, request),
              Fails(absl::StatusCode::kUnimplemented, HasSubstr("debug")));
}

TEST_F(StepTest, StepsOfOneMasterNeedNoGraphKey) {
  tensorflow::RunStepRequest request = RunB();
  request.mutable_options()->mutable_experimental()->set_collective_graph_key(5);
  EXPECT_TRUE(Call(&Master::RunStep, request).ok());
}

// A worker sends each key once: a second receive of it would wait forever.
TEST_F(StepTest, TensorFetchedTwice_IsRequestedFromTheWorkerOnce) {
  EXPECT_THAT(*Fetch(session_, {"a:0", "a:0"}), ElementsAre(2, 2));
  EXPECT_THAT(cluster_.worker(0).runs[0].recv_key(), SizeIs(1));
}

}  // namespace
}  // namespace ferry::master

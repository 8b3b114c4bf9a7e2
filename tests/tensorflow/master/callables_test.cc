// SPDX-License-Identifier: Apache-2.0
// Callables, and steps that are fed and fetched in pieces.
#include "tests/tensorflow/master/master_fixture.h"

namespace ferry::master {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CallableTest : public MasterTest {
 protected:
  CallableTest() { session_ = *Create(TwoWorkerGraph().def()); }

  absl::StatusOr<int64_t> Make(tensorflow::CallableOptions options, int64_t request_id = 0) {
    tensorflow::MakeCallableRequest request;
    request.set_session_handle(session_);
    *request.mutable_options() = std::move(options);
    request.set_request_id(request_id);
    auto response = Call(&Master::MakeCallable, request);
    if (!response.ok()) return response.status();
    return response->handle();
  }
  static tensorflow::CallableOptions Options() {
    tensorflow::CallableOptions options;
    options.add_feed("x:0");
    for (const char* fetch : {"b:0", "a:0", "b:0"}) options.add_fetch(fetch);
    return options;
  }
  absl::StatusOr<std::vector<float>> RunIt(int64_t handle, std::vector<float> feeds,
                                           int64_t request_id = 0) {
    tensorflow::RunCallableRequest request;
    request.set_session_handle(session_);
    request.set_handle(handle);
    request.set_request_id(request_id);
    for (const float feed : feeds) *request.add_feed() = Scalar(feed);
    auto response = Call(&Master::RunCallable, request);
    if (!response.ok()) return response.status();
    std::vector<float> values;
    for (const auto& fetch : response->fetch()) values.push_back(fetch.float_val(0));
    return values;
  }
  absl::Status Release(int64_t handle) {
    tensorflow::ReleaseCallableRequest request;
    request.set_session_handle(session_);
    request.set_handle(handle);
    return Call(&Master::ReleaseCallable, request).status();
  }

  std::string session_;
};

// Answers come in the order of the fetches, and its graphs are released with it.
TEST_F(CallableTest, RunsAndIsReleased) {
  const auto handle = Make(Options());
  ASSERT_TRUE(handle.ok()) << handle.status();
  for (int i = 0; i < 25; ++i) {
    EXPECT_THAT(*RunIt(*handle, {static_cast<float>(i)}), ElementsAre(2 + i, 2, 2 + i));
  }
  EXPECT_EQ(cluster_.worker(1).register_count, 1);
  EXPECT_TRUE(Release(*handle).ok());
  cluster_.Pump();
  EXPECT_THAT(cluster_.worker(0).graphs, IsEmpty());
  EXPECT_THAT(cluster_.worker(1).graphs, IsEmpty());
  EXPECT_THAT(RunIt(*handle, {1}), Fails(absl::StatusCode::kInvalidArgument,
                                         "Attempted to run callable after handle was released: 0"));
  EXPECT_THAT(RunIt(77, {1}),
              Fails(absl::StatusCode::kInvalidArgument, "No such callable handle: 77"));
  EXPECT_THAT(RunIt(-1, {1}),
              Fails(absl::StatusCode::kInvalidArgument, "No such callable handle: -1"));
  // Again and again.
  EXPECT_TRUE(Release(*handle).ok());
  EXPECT_TRUE(Release(77).ok());
}

TEST_F(CallableTest, RefusesInvalidOptions) {
  EXPECT_THAT(Make({}), Fails(absl::StatusCode::kInvalidArgument,
                              HasSubstr("Must specify at least one target")));
  tensorflow::CallableOptions options = Options();
  options.add_feed("x:0");
  EXPECT_THAT(Make(options),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("fed more than once")));
  const auto handle = Make(Options());
  EXPECT_THAT(RunIt(*handle, {}),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("takes 1 tensors, and 0 came")));
}

// 76
TEST_F(CallableTest, RefusesDevicesOfFeeds) {
  tensorflow::CallableOptions options = Options();
  (*options.mutable_feed_devices())["x:0"] = kCpu1;
  EXPECT_THAT(Make(options), Fails(absl::StatusCode::kUnimplemented, HasSubstr("feed_devices")));
  options = Options();
  (*options.mutable_fetch_devices())["b:0"] = kCpu1;
  EXPECT_THAT(Make(options), Fails(absl::StatusCode::kUnimplemented, HasSubstr("fetch_devices")));
  options = Options();
  options.add_tensor_connection()->set_from_tensor("a:0");
  EXPECT_THAT(Make(options),
              Fails(absl::StatusCode::kUnimplemented, HasSubstr("tensor_connection")));
}

TEST_F(CallableTest, RefusesRepeatedRequests) {
  const auto handle = Make(Options(), 5);
  EXPECT_THAT(Make(Options(), 5),
              Fails(absl::StatusCode::kAborted, HasSubstr("MakeCallable (Master)")));
  EXPECT_TRUE(RunIt(*handle, {1}, 6).ok());
  EXPECT_THAT(RunIt(*handle, {1}, 6),
              Fails(absl::StatusCode::kAborted, HasSubstr("RunCallable (Master)")));
}

// Its own deadline, and a release while it runs.
TEST_F(CallableTest, MayBeReleasedWhileItRuns) {
  tensorflow::CallableOptions options = Options();
  options.mutable_run_options()->set_timeout_in_ms(70);
  const auto handle = Make(options);
  cluster_.worker(1).hangs = true;
  tensorflow::RunCallableRequest request;
  request.set_session_handle(session_);
  request.set_handle(*handle);
  *request.add_feed() = Scalar(1);
  const auto answer = Start(&Master::RunCallable, request);
  cluster_.Pump();
  EXPECT_TRUE(Release(*handle).ok());
  EXPECT_THAT(cluster_.worker(0).graphs, SizeIs(1));
  Pass(absl::Milliseconds(70));
  EXPECT_THAT(answer->status(), Fails(absl::StatusCode::kDeadlineExceeded, HasSubstr("70ms")));
  EXPECT_THAT(cluster_.worker(0).graphs, IsEmpty());
}

// c = a + x, d = c + y.
class PartialTest : public MasterTest {
 protected:
  PartialTest() {
    GraphWriter graph;
    graph.Const("a", kCpu0, 2);
    graph.Placeholder("x", kCpu0);
    graph.Placeholder("y", kCpu0);
    graph.AddFloat("c", "AddV2", {"a", "x"}, kCpu1);
    graph.AddFloat("d", "AddV2", {"c", "y"}, kCpu1);
    session_ = *Create(graph.def());
  }
  absl::StatusOr<std::string> SetUpRun(std::vector<std::string> feeds,
                                       std::vector<std::string> fetches) {
    tensorflow::PartialRunSetupRequest request;
    request.set_session_handle(session_);
    for (auto& feed : feeds) request.add_feed(std::move(feed));
    for (auto& fetch : fetches) request.add_fetch(std::move(fetch));
    auto response = Call(&Master::PartialRunSetup, request);
    if (!response.ok()) return response.status();
    return response->partial_run_handle();
  }
  tensorflow::RunStepRequest Piece(const std::string& handle, std::vector<std::string> fetches,
                                   const Feeds& feeds) {
    tensorflow::RunStepRequest request = Run(session_, std::move(fetches), feeds);
    request.set_partial_run_handle(handle);
    return request;
  }
  absl::StatusOr<std::vector<float>> RunPiece(const std::string& handle,
                                              std::vector<std::string> fetches,
                                              const Feeds& feeds) {
    auto response = Call(&Master::RunStep, Piece(handle, std::move(fetches), feeds));
    if (!response.ok()) return response.status();
    return Values(*response);
  }

  std::string session_;
};

// 96
TEST_F(PartialTest, IsFedInParts) {
  const auto handle = SetUpRun({"x:0", "y:0"}, {"c:0", "d:0"});
  ASSERT_TRUE(handle.ok()) << handle.status();
  EXPECT_THAT(RunPiece(*handle, {"d:0"}, {{"x:0", 1}}),
              Fails(absl::StatusCode::kInvalidArgument,
                    HasSubstr("can't be computed from the feeds that have been fed so far")));
  EXPECT_THAT(*RunPiece(*handle, {"c:0"}, {{"x:0", 1}}), ElementsAre(3));
  EXPECT_THAT(RunPiece(*handle, {}, {{"x:0", 1}}),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("has already been fed")));
  EXPECT_THAT(RunPiece(*handle, {"a:0"}, {}),
              Fails(absl::StatusCode::kInvalidArgument,
                    HasSubstr("was not specified in partial_run_setup")));
  EXPECT_THAT(cluster_.worker(0).steps, SizeIs(1));
  EXPECT_THAT(*RunPiece(*handle, {"d:0"}, {{"y:0", 10}}), ElementsAre(13));
  // One step in two parts, of which the workers know which is the last; then it is removed.
  const auto& runs = cluster_.worker(0).runs;
  ASSERT_THAT(runs, SizeIs(2));
  EXPECT_EQ(runs[0].step_id(), runs[1].step_id());
  EXPECT_TRUE(runs[0].is_partial() && !runs[0].is_last_partial_run());
  EXPECT_TRUE(runs[1].is_partial() && runs[1].is_last_partial_run());
  EXPECT_THAT(cluster_.worker(0).steps, IsEmpty());
  EXPECT_THAT(RunPiece(*handle, {}, {}),
              Fails(absl::StatusCode::kInvalidArgument,
                    "Must run PartialRunSetup before performing partial runs"));
}

TEST_F(PartialTest, PartMayNameAFetchTwice) {
  const auto handle = SetUpRun({"x:0", "y:0"}, {"c:0", "c", "d:0"});
  EXPECT_THAT(*RunPiece(*handle, {"c:0", "c:0", "c"}, {{"x:0", 1}}), ElementsAre(3, 3, 3));
  EXPECT_THAT(RunPiece(*handle, {"c:0"}, {}),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("already been fetched")));
  EXPECT_THAT(*RunPiece(*handle, {"d:0", "d:0"}, {{"y:0", 10}}), ElementsAre(13, 13));
  EXPECT_THAT(cluster_.worker(0).steps, IsEmpty());
}

// Otherwise the worker would wait for a feed whose name is not part of the step.
TEST_F(PartialTest, PartUsesTheSpellingOfTheSetup) {
  const auto handle = SetUpRun({"x:0", "y:0"}, {"c:0", "d:0"});
  EXPECT_THAT(RunPiece(*handle, {"c:0"}, {{"x", 1}}),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("The feed x was not specified")));
  EXPECT_THAT(
      RunPiece(*handle, {"c"}, {{"x:0", 1}}),
      Fails(absl::StatusCode::kInvalidArgument, HasSubstr("The fetch c was not specified")));
  EXPECT_THAT(*RunPiece(*handle, {"c:0"}, {{"x:0", 1}}), ElementsAre(3));
}

// An error of a worker ends the whole step.
TEST_F(PartialTest, EndsWithAnError) {
  const auto handle = SetUpRun({"x:0", "y:0"}, {"c:0", "d:0"});
  cluster_.worker(1).on_run = [](const auto&) { return absl::InternalError("fantasia!"); };
  EXPECT_THAT(RunPiece(*handle, {"c:0"}, {{"x:0", 1}}),
              Fails(absl::StatusCode::kInternal, HasSubstr("fantasia!")));
  EXPECT_THAT(cluster_.worker(0).steps, IsEmpty());
  EXPECT_THAT(RunPiece(*handle, {"d:0"}, {{"y:0", 1}}),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("Must run PartialRunSetup")));
}

// One of two parts fails: the other does not wait forever.
TEST_F(PartialTest, EndsAllParts) {
  const auto handle = SetUpRun({"x:0", "y:0"}, {"c:0", "d:0", "a:0"});
  cluster_.worker(1).hangs = true;
  const auto waiting = Start(&Master::RunStep, Piece(*handle, {"c:0"}, {{"x:0", 1}}));
  tensorflow::RunStepRequest piece = Piece(*handle, {"d:0"}, {{"y:0", 1}});
  piece.mutable_options()->set_timeout_in_ms(10);
  const auto late = Start(&Master::RunStep, piece);
  cluster_.Pump();
  EXPECT_THAT(cluster_.worker(0).steps, SizeIs(1));
  Pass(absl::Milliseconds(10));
  EXPECT_THAT(late->status(), Fails(absl::StatusCode::kDeadlineExceeded, HasSubstr("10ms")));
  ASSERT_EQ(waiting->count, 1);
  EXPECT_FALSE(waiting->result->ok());
  EXPECT_THAT(cluster_.worker(0).steps, IsEmpty());
}

// The worker would drop the values that another part, which still runs there, waits for.
TEST_F(PartialTest, OneOfTwoPartsFails_StepIsCleanedUpBehindBoth) {
  const auto handle = SetUpRun({"x:0", "y:0"}, {"c:0", "d:0", "a:0"});
  cluster_.worker(0).hangs = true;
  cluster_.worker(1).hangs = true;
  tensorflow::RunStepRequest first = Piece(*handle, {"c:0"}, {{"x:0", 1}});
  first.mutable_options()->set_timeout_in_ms(10);
  const auto failed = Start(&Master::RunStep, first);
  const auto other = Start(&Master::RunStep, Piece(*handle, {"d:0"}, {{"y:0", 1}}));
  cluster_.Pump();
  Pass(absl::Milliseconds(10));
  EXPECT_THAT(failed->status(), Fails(absl::StatusCode::kDeadlineExceeded, HasSubstr("10ms")));
  EXPECT_EQ(other->count, 1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(cluster_.worker(i).told_count, 1) << "worker " << i;
    EXPECT_THAT(cluster_.worker(i).steps, IsEmpty());
  }
}

// A client that never returns to it.
TEST_F(PartialTest, EndsWithItsSession) {
  const auto handle = SetUpRun({"x:0", "y:0"}, {"c:0", "d:0"});
  EXPECT_THAT(*RunPiece(*handle, {"c:0"}, {{"x:0", 1}}), ElementsAre(3));
  ASSERT_TRUE(SetUpRun({"x:0"}, {"c:0"}).ok());
  EXPECT_TRUE(Close(session_).ok());
  EXPECT_EQ(cluster_.Leftovers(), "");
}

TEST_F(PartialTest, RefusesAnInvalidSetup) {
  EXPECT_THAT(SetUpRun({"none:0"}, {"c:0"}), Fails(absl::StatusCode::kNotFound, HasSubstr("none")));
  EXPECT_THAT(SetUpRun({"x:0"}, {}), Fails(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("Must specify at least one target")));
  EXPECT_THAT(RunPiece("5", {"c:0"}, {}),
              Fails(absl::StatusCode::kInvalidArgument, HasSubstr("Must run PartialRunSetup")));
}

}  // namespace
}  // namespace ferry::master

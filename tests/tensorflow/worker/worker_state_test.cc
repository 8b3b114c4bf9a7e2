// SPDX-License-Identifier: Apache-2.0
// State that outlives a step: variables, and the positions of random number generators.
#include <string>
#include <vector>

#include "worker_fixture.h"

namespace ferry {
namespace {

using absl::StatusCode;
using coord::Fails;
using coord::IsOk;
using graph::GraphWriter;
using ::testing::HasSubstr;

tensorflow::NodeDef& WithType(tensorflow::NodeDef& node) {
  (*node.mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
  return node;
}

class WorkerState : public ::testing::Test {
 protected:
  // Runs the nodes in a graph of their own, and returns the value of `fetch`; 0 if it is empty.
  absl::StatusOr<float> Run(const GraphWriter& writer, const std::string& fetch,
                            const std::string& target, const std::string& session) {
    graph::StepRequest request;
    if (!fetch.empty()) request.fetches.push_back(fetch);
    if (!target.empty()) request.targets.push_back(target);
    SmallMaster master({&a_}, writer, request, session);
    if (!master.status.ok()) return master.status;
    const auto fetched = master.Run(++step_);
    master.Deregister();
    if (!fetched.ok()) return fetched.status();
    return fetch.empty() ? 0 : fetched->at(0).elements<float>()[0];
  }
  absl::Status Assign(float value, const std::string& session = "",
                      const std::string& container = "") {
    GraphWriter writer;
    (*writer.Variable("v").mutable_attr())["container"].set_s(container);
    writer.Const("c", "", value);
    WithType(writer.Add("assign", "AssignVariableOp", {"v", "c"}));
    return Run(writer, "", "assign", session).status();
  }
  absl::StatusOr<float> Read(const std::string& session = "", const std::string& container = "") {
    GraphWriter writer;
    (*writer.Variable("v").mutable_attr())["container"].set_s(container);
    WithType(writer.Add("read", "ReadVariableOp", {"v"}));
    return Run(writer, "read", "", session);
  }
  void Clear(const std::vector<std::string>& containers) {
    tensorflow::CleanupAllRequest request;
    for (const std::string& container : containers) request.add_container(container);
    EXPECT_THAT(a_.Call<tensorflow::CleanupAllResponse>("CleanupAll", request), IsOk());
  }

  Directory directory_;
  WorkerEnd a_{directory_, 0};
  int64_t step_ = 0;
};

TEST_F(WorkerState, VariablesOutliveStepsGraphsAndSessions) {
  EXPECT_THAT(Read(), Fails(StatusCode::kFailedPrecondition, HasSubstr("v")));
  ASSERT_THAT(a_.CreateSession("s"), IsOk());
  EXPECT_THAT(Assign(5, "s"), IsOk());
  tensorflow::DeleteWorkerSessionRequest request;
  request.set_session_handle("s");
  ASSERT_THAT(a_.Call<tensorflow::DeleteWorkerSessionResponse>("DeleteWorkerSession", request),
              IsOk());
  EXPECT_EQ(*Read(), 5);
  EXPECT_EQ(a_.worker().variable_count(), 1);
}

TEST_F(WorkerState, ClearingAContainerRemovesItsVariablesOnly) {
  EXPECT_THAT(Assign(1), IsOk());
  EXPECT_THAT(Assign(2, "", "other"), IsOk());
  Clear({"other"});
  EXPECT_THAT(Read("", "other"), Fails(StatusCode::kFailedPrecondition));
  EXPECT_EQ(*Read(), 1);
  Clear({});
  EXPECT_THAT(Read(), Fails(StatusCode::kFailedPrecondition));
  EXPECT_EQ(a_.worker().variable_count(), 0);
}

TEST_F(WorkerState, IsolatedSessionsHaveSeparateVariables) {
  ASSERT_THAT(a_.CreateSession("s", "", 0, /*isolate=*/true), IsOk());
  ASSERT_THAT(a_.CreateSession("t", "", 0, /*isolate=*/true), IsOk());
  EXPECT_THAT(Assign(1), IsOk());
  EXPECT_THAT(Assign(2, "s"), IsOk());
  EXPECT_EQ(*Read(), 1);
  EXPECT_EQ(*Read("s"), 2);
  EXPECT_THAT(Read("t"), Fails(StatusCode::kFailedPrecondition));
  // A reset is for all of them.
  Clear({});
  EXPECT_THAT(Read("s"), Fails(StatusCode::kFailedPrecondition));
}

// A master registers another graph whenever a client fetches something else.
TEST_F(WorkerState, GeneratorsContinueInAnyGraph) {
  const auto draw = [&](const std::string& session, bool with_more) {
    GraphWriter writer;
    writer.Const("shape", "", 1, tensorflow::DT_INT32);
    auto& shape = *(*writer.def().mutable_node(0)->mutable_attr())["value"].mutable_tensor();
    shape.clear_float_val();
    shape.mutable_tensor_shape()->add_dim()->set_size(1);
    shape.add_int_val(1);
    tensorflow::NodeDef& random = WithType(writer.Add("random", "RandomUniform", {"shape"}));
    (*random.mutable_attr())["T"].set_type(tensorflow::DT_INT32);
    (*random.mutable_attr())["seed"].set_i(7);
    (*random.mutable_attr())["seed2"].set_i(7);
    if (with_more) writer.AddFloat("more", "Identity", {"random"});
    const auto drawn = Run(writer, with_more ? "more" : "random", "", session);
    EXPECT_THAT(drawn, IsOk());
    return drawn.value_or(-1);
  };
  ASSERT_THAT(a_.CreateSession("s"), IsOk());
  ASSERT_THAT(a_.CreateSession("t"), IsOk());
  const float first = draw("s", false);
  const float second = draw("s", true);
  EXPECT_NE(first, second);
  // Another session begins again.
  EXPECT_EQ(draw("t", true), first);
  EXPECT_EQ(draw("t", false), second);
}

}  // namespace
}  // namespace ferry

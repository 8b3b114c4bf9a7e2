// SPDX-License-Identifier: Apache-2.0
// Programs that join by themselves: a process that cannot join ends the wait of the others.
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coord/server/server.h"
#include "node/node.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Environment = std::map<std::string, std::string>;

// The wait lasts this long only if the test fails.
constexpr absl::Duration kTimeout = absl::Minutes(1);

class NodeRefused : public testing::Test {
 protected:
  void Serve(int nodes) {
    coord::ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.coordinator.jobs = {{"jax_worker", nodes}};
    auto server = coord::CoordinatorServer::Create(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  NodeOptions Options(int node, int nodes) {
    NodeOptions options;
    options.node_id = node;
    options.num_nodes = nodes;
    options.coordinator = server_->address();
    options.connect_timeout = kTimeout;
    options.enumerate_timeout = kTimeout;
    options.transfers_tensors = false;
    // All are on this machine.
    options.share_gpus = true;
    return options;
  }

  // Node::Join on a thread of its own.
  std::future<absl::Status> Join(int node, int nodes) {
    return std::async(std::launch::async,
                      [options = Options(node, nodes)] { return Node::Join(options).status(); });
  }

  absl::Status FindOrTell(const NodeOptions& options, const Environment& environment) {
    return ResolveIdentityOrReport(
               options,
               [&environment](const char* name) -> std::optional<std::string> {
                 const auto found = environment.find(name);
                 if (found == environment.end()) return std::nullopt;
                 return found->second;
               },
               kTimeout)
        .status();
  }

  void ExpectTold(std::future<absl::Status>& node, const std::string& why) {
    const absl::Status status = node.get();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr("the process on "), HasSubstr(" cannot take part: "), HasSubstr(why)));
  }

  std::unique_ptr<coord::CoordinatorServer> server_;
};

TEST_F(NodeRefused, ContradictoryVariables_AreReportedToJoiningNodes) {
  Serve(3);
  // Node 2 is not there at all, and need not be.
  std::future<absl::Status> first = Join(0, 3);
  const absl::Status refused = FindOrTell({}, {{"FERRY_COORDINATOR", server_->address()},
                                               {"RANK", "0"},
                                               {"WORLD_SIZE", "3"},
                                               {"SLURM_PROCID", "1"},
                                               {"SLURM_STEP_ID", "0"},
                                               {"SLURM_STEP_NUM_TASKS", "3"}});
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  ExpectTold(first, "RANK=0 and SLURM_PROCID=1 disagree");
}

TEST_F(NodeRefused, NumberOutOfRange_IsReportedToJoiningNodes) {
  Serve(2);
  std::future<absl::Status> first = Join(0, 2);
  const absl::Status refused = FindOrTell(Options(2, 2), {});
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  ExpectTold(first, "node id 2 is not below 2");
}

TEST_F(NodeRefused, VariablesWithoutANumber_AreReportedToJoiningNodes) {
  const std::pair<Environment, const char*> kCases[] = {
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK=2 must be below WORLD_SIZE=2"},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK=\"-1\" is not a number"},
      {{{"RANK", "one"}, {"WORLD_SIZE", "2"}}, "RANK=\"one\" is not a number"},
      {{{"SLURM_PROCID", "x"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}},
       "SLURM_PROCID=\"x\" is not a number"},
      {{{"TF_CONFIG",
         R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}})"}},
       "the index 2 is not below 2"},
      {{{"FERRY_NODE_ID", "2"}, {"FERRY_NUM_NODES", "2"}},
       "FERRY_NODE_ID=2 must be below FERRY_NUM_NODES=2"},
      {{{"JOB_COMPLETION_INDEX", "x"}, {"JOB_COMPLETIONS", "2"}},
       "JOB_COMPLETION_INDEX=\"x\" is not a number"},
  };
  for (const auto& [variables, why] : kCases) {
    SCOPED_TRACE(why);
    Serve(2);
    std::future<absl::Status> first = Join(0, 2);
    Environment environment = variables;
    environment["FERRY_COORDINATOR"] = server_->address();
    const absl::Status refused = FindOrTell({}, environment);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    ExpectTold(first, why);
  }
}

// Node::Join reports a refusal by the coordinator as well.
TEST_F(NodeRefused, AnotherNumberOfNodes_IsReportedToJoiningNodes) {
  Serve(2);
  std::future<absl::Status> first = Join(0, 2);
  const absl::Status refused = Node::Join(Options(1, 4)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  ExpectTold(first, "serves a job of 2 nodes, but this is node 1 of 4");
}

TEST_F(NodeRefused, NodeIdInUse_IsReportedToJoiningNodes) {
  Serve(3);
  // The second one is refused, and notifies the first.
  std::future<absl::Status> one = Join(0, 3);
  std::future<absl::Status> other = Join(0, 3);
  absl::Status refused = one.get();
  absl::Status told = other.get();
  if (!absl::IsAlreadyExists(refused)) std::swap(refused, told);
  EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
  EXPECT_EQ(told.code(), absl::StatusCode::kFailedPrecondition) << told;
  EXPECT_THAT(std::string(told.message()),
              AllOf(HasSubstr("cannot take part"), HasSubstr("node 0 has joined already")));
}

// The devices of a node that has failed are not waited for.
TEST_F(NodeRefused, ErrorBeforeAllDevicesAreKnown_EndsTheJoin) {
  Serve(2);
  std::future<absl::Status> first = Join(0, 2);
  coord::AgentOptions options;
  options.coordinator = server_->address();
  options.node_id = 1;
  options.connect_timeout = kTimeout;
  const auto failing = coord::Agent::Connect(std::move(options));
  ASSERT_TRUE(failing.ok()) << failing.status();
  ASSERT_TRUE((*failing)->ReportError(absl::InternalError("no memory")).ok());
  const absl::Status status = first.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no memory"));
}

// A process without a number may be no part of the job.
TEST_F(NodeRefused, CommandWithoutANumber_NotifiesNoNode) {
  Serve(2);
  std::future<absl::Status> first = Join(0, 2);
  NodeOptions options;
  options.coordinator = server_->address();
  EXPECT_EQ(FindOrTell(options, {}).code(), absl::StatusCode::kInvalidArgument);
  std::future<absl::Status> second = Join(1, 2);
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(second.get().ok());
}

}  // namespace
}  // namespace ferry

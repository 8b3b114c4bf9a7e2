// SPDX-License-Identifier: Apache-2.0
// ResolveNodeIdentity: options before the environment, and the default coordinator.
#include <map>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "node/node.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

using Environment = std::map<std::string, std::string>;

absl::StatusOr<NodeIdentity> Find(const NodeOptions& options, const Environment& environment) {
  return ResolveNodeIdentity(options,
                             [&environment](const char* name) -> std::optional<std::string> {
                               const auto found = environment.find(name);
                               if (found == environment.end()) return std::nullopt;
                               return found->second;
                             });
}

void ExpectRefused(const NodeOptions& options, const Environment& environment,
                   const std::string& complaint) {
  const absl::StatusOr<NodeIdentity> node_identity = Find(options, environment);
  EXPECT_EQ(node_identity.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(node_identity.status().message()), HasSubstr(complaint));
}

NodeOptions Complete() {
  NodeOptions options;
  options.node_id = 1;
  options.num_nodes = 4;
  options.coordinator = "a:1";
  return options;
}

TEST(ResolveNodeIdentity, OptionsPrecedeTheEnvironment) {
  const auto node_identity =
      Find(Complete(), {{"FERRY_NODE_ID", "3"}, {"FERRY_COORDINATOR", "b:2"}});
  ASSERT_TRUE(node_identity.ok()) << node_identity.status();
  EXPECT_EQ(node_identity->node_id, 1);
  EXPECT_EQ(node_identity->coordinator, "a:1");
  EXPECT_FALSE(node_identity->is_derived);
  EXPECT_EQ(node_identity->description, "node 1 of 4");
}

TEST(ResolveNodeIdentity, IgnoresAnEnvironmentThatItDoesNotNeed) {
  EXPECT_TRUE(Find(Complete(), {{"FERRY_NODE_ID", "garbage"}}).ok());
}

TEST(ResolveNodeIdentity, ReportsTheSourceOfTheIdentity) {
  const auto node_identity = Find(
      {},
      {{"FERRY_COORDINATOR", "b:2"}, {"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "8"}});
  ASSERT_TRUE(node_identity.ok()) << node_identity.status();
  EXPECT_EQ(node_identity->coordinator, "b:2");
  EXPECT_EQ(node_identity->description, "node 2 of 8 (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)");
}

TEST(ResolveNodeIdentity, PutsAnUnnamedCoordinatorOnTheFirstMachine) {
  const auto node_identity = Find({}, {{"SLURM_PROCID", "3"},
                                       {"SLURM_NTASKS", "4"},
                                       {"SLURM_STEP_ID", "0"},
                                       {"SLURM_JOB_ID", "1000"},
                                       {"SLURM_JOB_NODELIST", "gpu[007-008]"}});
  ASSERT_TRUE(node_identity.ok()) << node_identity.status();
  EXPECT_TRUE(node_identity->is_derived);
  // 61440 + (1000 + 2048) % 4096, by hand; see PortHint in first_host.cc.
  EXPECT_EQ(node_identity->coordinator, "gpu007:64488");
}

TEST(ResolveNodeIdentity, FallsBackToTheDefaultPortWithoutAJobId) {
  const auto node_identity =
      Find({}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "fe80::1"}});
  ASSERT_TRUE(node_identity.ok()) << node_identity.status();
  EXPECT_EQ(node_identity->coordinator, "[fe80::1]:9470");
}

TEST(ResolveNodeIdentity, NodeIdAndCoordinatorOfTheFlags_ResolveEveryContradiction) {
  const Environment kContradictions[] = {
      {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"SLURM_PROCID", "2"}, {"SLURM_STEP_NUM_TASKS", "4"}},
      {{"FERRY_NUM_NODES", "3"}, {"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
      {{"OMPI_COMM_WORLD_RANK", "x"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
      {{"TF_CONFIG", "{"}}};
  NodeOptions options;
  options.node_id = 1;
  for (Environment environment : kContradictions) {
    EXPECT_FALSE(Find({}, environment).ok());
    options.coordinator = "a:1";
    auto node_identity = Find(options, environment);
    ASSERT_TRUE(node_identity.ok()) << node_identity.status();
    EXPECT_EQ(node_identity->node_id, 1);
    EXPECT_EQ(node_identity->num_nodes, std::nullopt);
    // So does a coordinator in the environment; the count of nodes there is that coordinator's.
    options.coordinator = "";
    environment["FERRY_COORDINATOR"] = "b:2";
    node_identity = Find(options, environment);
    ASSERT_TRUE(node_identity.ok()) << node_identity.status();
    EXPECT_EQ(node_identity->coordinator, "b:2");
    EXPECT_FALSE(node_identity->is_derived);
  }
}

TEST(ResolveNodeIdentity, BatchScript_IsReportedAsNoTask) {
  ExpectRefused({}, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}},
                "not a task of srun");
}

TEST(ResolveNodeIdentity, RefusesMissingOrInvalidValues) {
  ExpectRefused({}, {}, "which node is this");
  NodeOptions options;
  options.node_id = 0;
  ExpectRefused(options, {}, "where is the coordinator");
  options = Complete();
  options.node_id = 4;
  ExpectRefused(options, {}, "node id 4 is not below 4");
  options.node_id = -1;
  ExpectRefused(options, {}, "node id -1");
}

std::optional<RefusedNode> FindRefused(const NodeOptions& options, const Environment& environment) {
  return FindRefusedNode(options,
                         [&environment](absl::string_view name) -> std::optional<std::string> {
                           const auto found = environment.find(std::string(name));
                           if (found == environment.end()) return std::nullopt;
                           return found->second;
                         });
}

TEST(FindRefusedNode, OptionsPrecedeTheEnvironment) {
  NodeOptions options;
  options.coordinator = "a:1";
  options.node_id = 3;
  options.num_nodes = 4;
  const Environment environment = {
      {"RANK", "0"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "c"}, {"FERRY_COORDINATOR", "b:2"}};
  const auto node_identity = FindRefused(options, environment);
  ASSERT_TRUE(node_identity.has_value());
  EXPECT_EQ(node_identity->coordinator, "a:1");
  EXPECT_EQ(node_identity->node_id, 3);
  EXPECT_EQ(node_identity->num_nodes, 4);
  EXPECT_FALSE(node_identity->is_derived);
  EXPECT_FALSE(node_identity->may_be_first);
  options.node_id = 0;
  EXPECT_TRUE(FindRefused(options, environment)->may_be_first);
  // The environment gives the rest.
  const auto rest = FindRefused({}, environment);
  ASSERT_TRUE(rest.has_value());
  EXPECT_EQ(rest->coordinator, "b:2");
  EXPECT_EQ(rest->node_id, 0);
  EXPECT_EQ(rest->num_nodes, 8);
  EXPECT_FALSE(rest->is_derived);
  EXPECT_TRUE(rest->may_be_first);
}

TEST(FindRefusedNode, UnnamedCoordinator_IsOnTheFirstMachine) {
  const auto node_identity =
      FindRefused({}, {{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "fe80::1"}});
  ASSERT_TRUE(node_identity.has_value());
  EXPECT_EQ(node_identity->coordinator, "[fe80::1]:9470");
  EXPECT_TRUE(node_identity->is_derived);
}

TEST(FindRefusedNode, NodeIdOfTheOptions_NeedsACoordinatorOfTheEnvironment) {
  NodeOptions options;
  options.node_id = 2;
  const auto node_identity = FindRefused(options, {{"FERRY_COORDINATOR", "b:2"}});
  ASSERT_TRUE(node_identity.has_value());
  EXPECT_EQ(node_identity->coordinator, "b:2");
  EXPECT_EQ(node_identity->node_id, 2);
  EXPECT_FALSE(node_identity->is_derived);
  EXPECT_FALSE(FindRefused(options, {}).has_value());
}

// A command typed by hand is no member that others wait for.
TEST(FindRefusedNode, WithoutANumber_ThereIsNone) {
  EXPECT_FALSE(FindRefused({}, {{"FERRY_COORDINATOR", "b:2"}}).has_value());
}

}  // namespace
}  // namespace ferry

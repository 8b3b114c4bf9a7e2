// SPDX-License-Identifier: Apache-2.0
// The environment of a launched process.
#include "launch/launch_environment.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

LaunchOptions Options() {
  LaunchOptions options;
  options.command = {"true"};
  options.local_count = 4;
  options.machine_count = 2;
  options.machine_index = 1;
  options.coordinator = "head:8476";
  return options;
}

std::vector<std::string> Compose(const LaunchOptions& options, int local_rank,
                                 const std::vector<std::string>& inherited = {}) {
  absl::StatusOr<std::vector<std::string>> environment =
      ComposeEnvironment(options, local_rank, inherited);
  EXPECT_TRUE(environment.ok()) << environment.status();
  return environment.ok() ? *std::move(environment) : std::vector<std::string>();
}

void ExpectRefused(const LaunchOptions& options, const std::string& complaint) {
  const absl::Status status = CheckLaunchOptions(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << complaint;
  EXPECT_THAT(std::string(status.message()), HasSubstr(complaint));
}

TEST(ComposeEnvironment, CountsRanksOverAllMachines) {
  const std::vector<std::string> environment = Compose(Options(), 2);
  for (const char* entry :
       {"FERRY_COORDINATOR=head:8476", "FERRY_NODE_ID=6", "FERRY_NUM_NODES=8", "FERRY_LOCAL_RANK=2",
        "FERRY_LOCAL_SIZE=4", "RANK=6", "WORLD_SIZE=8", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=4",
        "JAX_COORDINATOR_ADDRESS=head:8476", "JAX_COORDINATOR_BIND_ADDRESS=127.0.0.1:0",
        "JAX_NUM_PROCESSES=8", "JAX_PROCESS_ID=6"}) {
    EXPECT_THAT(environment, Contains(entry));
  }
}

// A program passes it on to a client that needs the setting.
TEST(ComposeEnvironment, HeartbeatTimeout_IsSetOnlyIfThereIsOne) {
  LaunchOptions options = Options();
  for (const std::string& entry : Compose(options, 0)) {
    EXPECT_THAT(entry, ::testing::Not(::testing::StartsWith("FERRY_HEARTBEAT_TIMEOUT")));
  }
  options.heartbeat_timeout = absl::Minutes(5);
  EXPECT_THAT(Compose(options, 0, {"FERRY_HEARTBEAT_TIMEOUT=1s"}),
              Contains("FERRY_HEARTBEAT_TIMEOUT=300s"));
  options.heartbeat_timeout = absl::Milliseconds(1500);
  EXPECT_THAT(Compose(options, 0), Contains("FERRY_HEARTBEAT_TIMEOUT=1.5s"));
}

TEST(ComposeEnvironment, KeepsOtherVariables) {
  EXPECT_THAT(Compose(Options(), 0, {"HOME=/root", "RANKING=1", "odd"}),
              ::testing::IsSupersetOf({"HOME=/root", "RANKING=1", "odd"}));
}

TEST(ComposeEnvironment, ReplacesVariablesOfAnOuterLauncher) {
  const std::vector<std::string> environment =
      Compose(Options(), 0, {"RANK=99", "FERRY_NODE_ID=99"});
  EXPECT_THAT(environment, Not(Contains("RANK=99")));
  EXPECT_THAT(environment, Not(Contains("FERRY_NODE_ID=99")));
  EXPECT_THAT(environment, Contains("RANK=4"));
}

TEST(ComposeEnvironment, WithoutAMaster_LeavesBothVariablesAsTheyAre) {
  // The coordinator's host need not be the machine of rank 0.
  EXPECT_THAT(Compose(Options(), 0), Not(Contains(StartsWith("MASTER_"))));
  EXPECT_THAT(Compose(Options(), 0, {"MASTER_ADDR=gpu1", "MASTER_PORT=29500"}),
              ::testing::IsSupersetOf({"MASTER_ADDR=gpu1", "MASTER_PORT=29500"}));
}

TEST(ComposeEnvironment, RankOfAnOuterTorchrun_LosesItsVariables) {
  const std::vector<std::string> environment =
      Compose(Options(), 0,
              {"TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RUN_ID=x", "GROUP_RANK=1",
               "ROLE_RANK=1", "ROLE_NAME=default", "GROUPS=kept"});
  EXPECT_THAT(environment, Not(Contains(StartsWith("TORCHELASTIC_"))));
  EXPECT_THAT(environment, Not(Contains(StartsWith("ROLE_"))));
  EXPECT_THAT(environment, Not(Contains("GROUP_RANK=1")));
  EXPECT_THAT(environment, Contains("GROUPS=kept"));
}

TEST(ComposeEnvironment, RankOfAnOuterFerryRun_IsMarkedAgain) {
  const std::vector<std::string> environment =
      Compose(Options(), 0, {"FERRY_RUN=outer:1 7 0", "FERRY_COORDINATOR=outer:1"});
  EXPECT_THAT(environment, Contains(StartsWith("FERRY_RUN=head:8476 4 ")));
  EXPECT_THAT(environment, Not(Contains(StartsWith("FERRY_RUN=outer"))));
}

TEST(ComposeEnvironment, UsesTheGivenMaster) {
  LaunchOptions options = Options();
  options.master = "[fe80::1]:29500";
  const std::vector<std::string> environment = Compose(options, 0, {"MASTER_ADDR=other"});
  EXPECT_THAT(environment, Contains("MASTER_ADDR=fe80::1"));
  EXPECT_THAT(environment, Contains("MASTER_PORT=29500"));
}

TEST(ComposeEnvironment, StoreOfTheCoordinator_MakesEachRankAClient) {
  LaunchOptions options = Options();
  options.master = "head:4001";
  EXPECT_THAT(Compose(options, 0), Not(Contains(StartsWith("TORCHELASTIC_"))));
  options.store_run_id = "c0ffee";
  EXPECT_THAT(Compose(options, 0, {"TORCHELASTIC_RUN_ID=outer", "TORCHELASTIC_RESTART_COUNT=3"}),
              ::testing::IsSupersetOf({"TORCHELASTIC_USE_AGENT_STORE=True",
                                       "TORCHELASTIC_RESTART_COUNT=0", "TORCHELASTIC_RUN_ID=c0ffee",
                                       "GROUP_RANK=1", "MASTER_ADDR=head", "MASTER_PORT=4001"}));
}

TEST(ComposeEnvironment, LeavesGpusAloneUnlessRequested) {
  EXPECT_THAT(Compose(Options(), 0), Not(Contains(StartsWith("CUDA_VISIBLE_DEVICES"))));
  EXPECT_THAT(Compose(Options(), 0, {"CUDA_VISIBLE_DEVICES=5"}),
              Contains("CUDA_VISIBLE_DEVICES=5"));
}

TEST(ComposeEnvironment, GivesEachProcessItsGpus) {
  LaunchOptions options = Options();
  options.gpus_per_process = 1;
  EXPECT_THAT(Compose(options, 3), Contains("CUDA_VISIBLE_DEVICES=3"));
  options.gpus_per_process = 2;
  EXPECT_THAT(Compose(options, 3), Contains("CUDA_VISIBLE_DEVICES=6,7"));
}

TEST(ComposeEnvironment, DividesTheInheritedGpus) {
  // A scheduler gave us these and not the others.
  LaunchOptions options = Options();
  options.gpus_per_process = 1;
  const std::vector<std::string> inherited = {"CUDA_VISIBLE_DEVICES=4,GPU-6d3f,6,7"};
  EXPECT_THAT(Compose(options, 1, inherited), Contains("CUDA_VISIBLE_DEVICES=GPU-6d3f"));
  EXPECT_THAT(Compose(options, 1, inherited), Not(Contains(inherited[0])));
}

TEST(ComposeEnvironment, RefusesTooFewInheritedGpus) {
  LaunchOptions options = Options();
  options.gpus_per_process = 1;
  const std::vector<std::string> inherited = {"CUDA_VISIBLE_DEVICES=0,1,2"};
  // Rank 0 as well, though there would be a device for it: half a job is useless.
  const absl::Status status = ComposeEnvironment(options, 0, inherited).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("CUDA_VISIBLE_DEVICES=0,1,2 has 3 devices"));
}

// Set and empty: the user wants no GPU to be used.
TEST(ComposeEnvironment, EmptyListIsNoGpu) {
  LaunchOptions options = Options();
  options.gpus_per_process = 1;
  const absl::Status status =
      ComposeEnvironment(options, 0, std::vector<std::string>{"CUDA_VISIBLE_DEVICES="}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("CUDA_VISIBLE_DEVICES= has 0 devices"));
}

TEST(CheckLaunchOptions, AcceptsSensibleOnes) {
  EXPECT_TRUE(CheckLaunchOptions(Options()).ok());
  LaunchOptions options = Options();
  options.grace = absl::ZeroDuration();
  EXPECT_TRUE(CheckLaunchOptions(options).ok());
}

TEST(CheckLaunchOptions, NamesTheWrongOption) {
  const LaunchOptions good = Options();
  LaunchOptions bad = good;
  bad.command = {};
  ExpectRefused(bad, "no command");
  bad = good;
  bad.local_count = 0;
  ExpectRefused(bad, "--nproc is 0");
  bad = good;
  bad.local_count = 1 << 20;
  ExpectRefused(bad, "--nproc is 1048576");
  bad = good;
  bad.machine_index = 2;
  ExpectRefused(bad, "--node-id is 2, not a number from 0 to 1");
  bad = good;
  bad.machine_index = -1;
  ExpectRefused(bad, "--node-id is -1");
  bad = good;
  bad.gpus_per_process = -1;
  ExpectRefused(bad, "gpus-per-proc is -1");
  bad = good;
  bad.coordinator = "head";
  ExpectRefused(bad, "coordinator \"head\" is not HOST:PORT");
  bad = good;
  bad.master = "head:70000";
  ExpectRefused(bad, "master \"head:70000\" is not HOST:PORT");
  bad = good;
  bad.stdin_rank = 8;
  ExpectRefused(bad, "--stdin is 8, not a number from 0 to 7");
  bad = good;
  bad.grace = absl::Seconds(-1);
  ExpectRefused(bad, "grace");
  bad = good;
  bad.grace = absl::InfiniteDuration();
  ExpectRefused(bad, "grace");
  bad = good;
  bad.max_line_bytes = 0;
  ExpectRefused(bad, "line");
}

TEST(CheckLaunchOptions, TakesNumbersUpToTheirLimits) {
  const LaunchOptions good = Options();
  LaunchOptions options = good;
  options.local_count = 4096;
  EXPECT_TRUE(CheckLaunchOptions(options).ok());
  options.local_count = 4097;
  ExpectRefused(options, "--nproc is 4097");
  options = good;
  options.machine_count = 65536;
  options.machine_index = 65535;
  EXPECT_TRUE(CheckLaunchOptions(options).ok());
  options.machine_count = 65537;
  ExpectRefused(options, "--nodes is 65537");
  options = good;
  options.gpus_per_process = 64;
  EXPECT_TRUE(CheckLaunchOptions(options).ok());
  options.gpus_per_process = 65;
  ExpectRefused(options, "gpus-per-proc is 65");
  options = good;
  options.stdin_rank = 7;
  options.coordinator = "head:65535";
  options.max_line_bytes = 1;
  EXPECT_TRUE(CheckLaunchOptions(options).ok());
  for (const char* const address : {"head:65536", "head:0", ":80", "head:"}) {
    options.coordinator = address;
    ExpectRefused(options, "is not HOST:PORT");
  }
}

// Variables whose names only begin like ours belong to others.
TEST(ComposeEnvironment, KeepsVariablesWithLongerNames) {
  const std::vector<std::string> inherited = {"RANK_FILE=a", "WORLD_SIZE_HINT=b", "FERRY_RUNNER=c",
                                              "GROUP_RANKING=d"};
  EXPECT_THAT(Compose(Options(), 0, inherited), ::testing::IsSupersetOf(inherited));
}

}  // namespace
}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// Identity: each launcher's variables, their precedence, and contradictions.
#include "node/identity.h"

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

using ::testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

absl::StatusOr<Identity> Read(const Environment& environment) {
  return ReadIdentity([&environment](const char* name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

// Reads an environment that has to be fine.
Identity Good(const Environment& environment) {
  absl::StatusOr<Identity> identity = Read(environment);
  EXPECT_TRUE(identity.ok()) << identity.status();
  return identity.ok() ? *std::move(identity) : Identity{};
}

void ExpectRefused(const Environment& environment, const std::string& complaint) {
  const absl::StatusOr<Identity> identity = Read(environment);
  ASSERT_FALSE(identity.ok()) << complaint;
  EXPECT_EQ(identity.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(identity.status().message()), HasSubstr(complaint));
}

Sourced<int> Number(int value, const std::string& source) { return {value, source}; }
Sourced<std::string> Text(const std::string& value, const std::string& source) {
  return {value, source};
}

const Environment kSlurm = {
    {"SLURM_PROCID", "5"},
    {"SLURM_NTASKS", "16"},
    {"SLURM_LOCALID", "1"},
    {"SLURM_JOB_ID", "1000"},
    {"SLURM_STEP_ID", "0"},
    {"SLURM_STEP_NUM_TASKS", "8"},
    {"SLURM_STEP_NODELIST", "gpu[003-004,9],login1"},
    {"SLURM_JOB_NODELIST", "gpu[001-009],login1"},
};

// A batch script of `sbatch --ntasks=4`, which is no task itself.
const Environment kBatch = {
    {"SLURM_PROCID", "0"},        {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"},
    {"SLURM_JOB_ID", "1000"},     {"SLURM_NODEID", "0"}, {"SLURM_JOB_NODELIST", "gpu[001-002]"},
    {"SLURM_JOB_NUM_NODES", "2"},
};

Environment With(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

TEST(Identity, IsEmptyInAnEmptyEnvironment) {
  const Identity identity = Good({});
  EXPECT_FALSE(identity.node_id || identity.num_nodes || identity.local_rank ||
               identity.coordinator || identity.first_host || identity.port_hint);
}

TEST(Identity, ReadsItsOwnVariables) {
  const Identity identity = Good({{"FERRY_NODE_ID", "3"},
                                  {"FERRY_NUM_NODES", "8"},
                                  {"FERRY_LOCAL_RANK", "1"},
                                  {"FERRY_COORDINATOR", "head:8476"}});
  EXPECT_EQ(identity.node_id, Number(3, "FERRY_NODE_ID"));
  EXPECT_EQ(identity.num_nodes, Number(8, "FERRY_NUM_NODES"));
  EXPECT_EQ(identity.local_rank, Number(1, "FERRY_LOCAL_RANK"));
  EXPECT_EQ(identity.coordinator, Text("head:8476", "FERRY_COORDINATOR"));
}

TEST(Identity, ReadsSlurm) {
  const Identity identity = Good(kSlurm);
  EXPECT_EQ(identity.node_id, Number(5, "SLURM_PROCID"));
  // The step's count: the allocation may be larger.
  EXPECT_EQ(identity.num_nodes, Number(8, "SLURM_STEP_NUM_TASKS"));
  EXPECT_EQ(identity.local_rank, Number(1, "SLURM_LOCALID"));
  EXPECT_EQ(identity.first_host, Text("gpu003", "SLURM_STEP_NODELIST"));
}

TEST(Identity, DerivesOnePortForAllProcessesOfASlurmStep) {
  const Identity one = Good(kSlurm);
  const Identity other = Good(With(kSlurm, {{"SLURM_PROCID", "6"}, {"SLURM_LOCALID", "0"}}));
  ASSERT_TRUE(one.port_hint.has_value());
  EXPECT_EQ(one.port_hint, other.port_hint);
  EXPECT_GE(one.port_hint->value, 61440);
  EXPECT_LE(one.port_hint->value, 65535);
  // JAX would take 61440 + 1000 % 4096 in the same job.
  EXPECT_NE(one.port_hint->value, 62440);
  EXPECT_NE(one.port_hint, Good(With(kSlurm, {{"SLURM_STEP_ID", "1"}})).port_hint);
}

TEST(Identity, OlderSlurmWithOnlyAStepId_IsRead) {
  const Identity identity = Good({{"SLURM_PROCID", "0"},
                                  {"SLURM_NTASKS", "2"},
                                  {"SLURM_STEPID", "0"},
                                  {"SLURM_JOB_NODELIST", "a,b"}});
  EXPECT_EQ(identity.num_nodes, Number(2, "SLURM_NTASKS"));
  EXPECT_EQ(identity.first_host, Text("a", "SLURM_JOB_NODELIST"));
}

TEST(Identity, ReadsOpenMpi) {
  const Identity identity =
      Good({{"OMPI_COMM_WORLD_RANK", "2"},
            {"OMPI_COMM_WORLD_SIZE", "4"},
            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
            {"OMPI_MCA_orte_hnp_uri", "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"}});
  EXPECT_EQ(identity.node_id, Number(2, "OMPI_COMM_WORLD_RANK"));
  EXPECT_EQ(identity.num_nodes, Number(4, "OMPI_COMM_WORLD_SIZE"));
  EXPECT_EQ(identity.local_rank, Number(0, "OMPI_COMM_WORLD_LOCAL_RANK"));
  EXPECT_EQ(identity.first_host, Text("10.96.0.1", "OMPI_MCA_orte_hnp_uri"));
}

TEST(Identity, MpiJobOfOneMachineIsLocal) {
  const Identity identity = Good({{"OMPI_COMM_WORLD_RANK", "2"},
                                  {"OMPI_COMM_WORLD_SIZE", "4"},
                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  EXPECT_EQ(identity.first_host->value, "localhost");
}

TEST(Identity, GivesAllProcessesOfOneMpirunOnePort) {
  const auto port = [](const char* rank, const char* job) {
    return Good({{"OMPI_COMM_WORLD_RANK", rank},
                 {"OMPI_COMM_WORLD_SIZE", "4"},
                 {"PMIX_NAMESPACE", job}})
        .port_hint;
  };
  ASSERT_TRUE(port("0", "prterun-a-17@1").has_value());
  EXPECT_EQ(port("0", "prterun-a-17@1"), port("3", "prterun-a-17@1"));
  EXPECT_NE(port("0", "prterun-a-17@1"), port("0", "prterun-a-18@1"));
  EXPECT_GE(port("0", "prterun-a-17@1")->value, 61440);
  EXPECT_LE(port("0", "prterun-a-17@1")->value, 65535);
}

TEST(Identity, ReadsMpich) {
  const Identity identity = Good({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}});
  EXPECT_EQ(identity.node_id, Number(1, "PMI_RANK"));
  EXPECT_EQ(identity.local_rank, Number(1, "MPI_LOCALRANKID"));
}

TEST(Identity, ReadsTorchrun) {
  const Identity identity = Good({{"RANK", "7"},
                                  {"WORLD_SIZE", "8"},
                                  {"LOCAL_RANK", "3"},
                                  {"MASTER_ADDR", "node0"},
                                  {"MASTER_PORT", "29500"}});
  EXPECT_EQ(identity.node_id, Number(7, "RANK"));
  EXPECT_EQ(identity.num_nodes, Number(8, "WORLD_SIZE"));
  EXPECT_EQ(identity.local_rank, Number(3, "LOCAL_RANK"));
  EXPECT_EQ(identity.first_host, Text("node0", "MASTER_ADDR"));
  // That port belongs to torch's own store.
  EXPECT_FALSE(identity.port_hint.has_value());
}

TEST(Identity, ReadsKubernetesWithACountWhereThereIsOne) {
  const Environment pod = {{"JOB_COMPLETION_INDEX", "12"}, {"HOSTNAME", "train-12"}};
  EXPECT_EQ(Good(pod).node_id, Number(12, "JOB_COMPLETION_INDEX"));
  EXPECT_FALSE(Good(pod).num_nodes.has_value());
  EXPECT_EQ(Good(pod).first_host, Text("train-0", "HOSTNAME"));
  EXPECT_EQ(Good(With(pod, {{"NUM_PROCESSES", "16"}})).num_nodes, Number(16, "NUM_PROCESSES"));
  EXPECT_EQ(Good(With(pod, {{"FERRY_NUM_NODES", "16"}})).num_nodes, Number(16, "FERRY_NUM_NODES"));
}

TEST(Identity, KeepsTheDomainOfAPod) {
  const Identity identity =
      Good({{"JOB_COMPLETION_INDEX", "1"}, {"HOSTNAME", "a-1.ring.ns.svc.cluster.local"}});
  EXPECT_EQ(identity.first_host->value, "a-0.ring.ns.svc.cluster.local");
}

TEST(Identity, DoesNotGuessAHostFromAnUnknownPodName) {
  EXPECT_FALSE(Good({{"JOB_COMPLETION_INDEX", "1"}, {"HOSTNAME", "box"}}).first_host.has_value());
  EXPECT_FALSE(Good({{"JOB_COMPLETION_INDEX", "1"}, {"HOSTNAME", "-1"}}).first_host.has_value());
}

TEST(Identity, PrefersItsOwnVariables) {
  // `ferry run` inside a Slurm step: the step's ranks are those of the launchers.
  const Identity identity =
      Good(With(kSlurm, {{"FERRY_NODE_ID", "9"}, {"FERRY_NUM_NODES", "32"}, {"RANK", "x"}}));
  EXPECT_EQ(identity.node_id, Number(9, "FERRY_NODE_ID"));
  EXPECT_EQ(identity.num_nodes, Number(32, "FERRY_NUM_NODES"));
  EXPECT_FALSE(identity.local_rank.has_value());
}

TEST(Identity, DoesNotMixItsOwnIdWithAnothersCount) {
  EXPECT_FALSE(Good(With(kSlurm, {{"FERRY_NODE_ID", "9"}})).num_nodes.has_value());
}

TEST(Identity, TakesTheCoordinatorFromItsOwnVariableAndTheRestFromSlurm) {
  const Identity identity = Good(With(kSlurm, {{"FERRY_COORDINATOR", "head:1"}}));
  EXPECT_EQ(identity.coordinator->value, "head:1");
  EXPECT_EQ(identity.node_id->source, "SLURM_PROCID");
}

TEST(Identity, PrefersTheInnerLauncher) {
  // mpirun inside a Slurm allocation: its daemons are the Slurm tasks.
  const Identity identity =
      Good(With(kSlurm, {{"OMPI_COMM_WORLD_RANK", "30"}, {"OMPI_COMM_WORLD_SIZE", "64"}}));
  EXPECT_EQ(identity.node_id, Number(30, "OMPI_COMM_WORLD_RANK"));
  // The step is that of mpirun's daemons, which need not run on the first machine.
  EXPECT_EQ(identity.first_host, Text("gpu001", "SLURM_JOB_NODELIST"));
}

TEST(Identity, IgnoresAnIncompleteLauncher) {
  // RANK alone means anything to anyone.
  EXPECT_EQ(Good(With(kSlurm, {{"RANK", "first"}})).node_id->source, "SLURM_PROCID");
  EXPECT_FALSE(Good({{"SLURM_PROCID", "0"}}).node_id.has_value());
}

TEST(Identity, TreatsAnEmptyVariableAsNotSet) {
  EXPECT_FALSE(Good({{"FERRY_NODE_ID", ""}, {"FERRY_COORDINATOR", ""}}).node_id.has_value());
  EXPECT_EQ(Good(With(kSlurm, {{"RANK", ""}, {"WORLD_SIZE", ""}})).node_id->value, 5);
}

TEST(Identity, RefusesContradictoryLaunchers) {
  // RANK=$SLURM_PROCID, evaluated in the batch script, is 0 everywhere.
  ExpectRefused(With(kSlurm, {{"RANK", "0"}, {"WORLD_SIZE", "8"}}),
                "RANK=0 and SLURM_PROCID=5 disagree");
}

TEST(Identity, LetsItsOwnVariableSettleAContradiction) {
  EXPECT_EQ(Good(With(kSlurm, {{"RANK", "0"}, {"WORLD_SIZE", "8"}, {"FERRY_NODE_ID", "5"}}))
                .node_id->value,
            5);
}

// A launcher that is started in a batch script or a step, what it sets for rank 2 of 4, and what it
// inherits there. The numbers of the tasks around it are equal in count and differ in rank, which
// is the case in which a comparison of the two would refuse the job.
struct NestedCase {
  const char* name;
  Environment variables;
  const char* source;
};

class NestedLauncher : public ::testing::TestWithParam<NestedCase> {};

TEST_P(NestedLauncher, InABatchScript_Decides) {
  const Identity identity = Good(With(kBatch, GetParam().variables));
  EXPECT_EQ(identity.node_id, Number(2, GetParam().source));
  EXPECT_TRUE(!identity.num_nodes || identity.num_nodes->value == 4);
}

TEST_P(NestedLauncher, InAStepOfEqualSize_Decides) {
  const Environment step =
      With(kSlurm, {{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_NTASKS", "4"}});
  EXPECT_EQ(Good(With(step, GetParam().variables)).node_id, Number(2, GetParam().source));
}

TEST_P(NestedLauncher, InAnInteractiveStep_Decides) {
  // salloc with LaunchParameters=use_interactive_step: one task, and a step id near 2^32.
  const Environment step =
      With(kSlurm,
           {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "4294967290"}, {"SLURM_STEP_NUM_TASKS", "1"}});
  EXPECT_EQ(Good(With(step, GetParam().variables)).node_id, Number(2, GetParam().source));
}

TEST_P(NestedLauncher, AllRanks_DeriveOneCoordinator) {
  // Ranks on the first machine are children of mpirun and in no step; those on the others descend
  // from a daemon that mpirun starts with srun.
  const Environment daemon = With(
      kBatch,
      {{"SLURM_STEP_ID", "3"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_NODELIST", "gpu002"}});
  if (std::string(GetParam().name) == "Torchrun") GTEST_SKIP() << "it starts nothing elsewhere";
  const Identity first = Good(With(kBatch, GetParam().variables));
  const Identity other = Good(With(daemon, GetParam().variables));
  EXPECT_EQ(first.first_host, other.first_host);
  EXPECT_EQ(first.port_hint, other.port_hint);
}

INSTANTIATE_TEST_SUITE_P(
    Each, NestedLauncher,
    ::testing::Values(
        NestedCase{
            "FerryRun",
            {{"FERRY_NODE_ID", "2"}, {"FERRY_NUM_NODES", "4"}, {"RANK", "2"}, {"WORLD_SIZE", "4"}},
            "FERRY_NODE_ID"},
        NestedCase{"Torchrun",
                   {{"RANK", "2"},
                    {"WORLD_SIZE", "4"},
                    {"TORCHELASTIC_RUN_ID", "none"},
                    {"MASTER_ADDR", "gpu001"}},
                   "RANK"},
        NestedCase{"OpenMpi",
                   {{"OMPI_COMM_WORLD_RANK", "2"},
                    {"OMPI_COMM_WORLD_SIZE", "4"},
                    {"PMIX_NAMESPACE", "prterun-gpu001-17@1"},
                    {"PMIX_RANK", "2"}},
                   "OMPI_COMM_WORLD_RANK"},
        NestedCase{"Mvapich",
                   {{"MV2_COMM_WORLD_RANK", "2"}, {"MV2_COMM_WORLD_SIZE", "4"}},
                   "MV2_COMM_WORLD_RANK"},
        NestedCase{"Mvapich3",
                   {{"MVP_COMM_WORLD_RANK", "2"}, {"MVP_COMM_WORLD_SIZE", "4"}},
                   "MVP_COMM_WORLD_RANK"},
        NestedCase{"Hydra",
                   {{"PMI_RANK", "2"},
                    {"PMI_SIZE", "4"},
                    {"MPI_LOCALRANKID", "0"},
                    {"MPI_LOCALNRANKS", "2"}},
                   "PMI_RANK"},
        NestedCase{
            "Prrte", {{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "prterun-gpu001-17@1"}}, "PMIX_RANK"}),
    [](const ::testing::TestParamInfo<NestedCase>& info) { return std::string(info.param.name); });

TEST(Identity, TorchrunUnderMpirunInABatchScript_Decides) {
  const Identity identity = Good(With(kBatch, {{"OMPI_COMM_WORLD_RANK", "1"},
                                               {"OMPI_COMM_WORLD_SIZE", "4"},
                                               {"RANK", "3"},
                                               {"WORLD_SIZE", "4"},
                                               {"TORCHELASTIC_RUN_ID", "x"}}));
  EXPECT_EQ(identity.node_id, Number(3, "RANK"));
}

TEST(Identity, BatchScriptOfSeveralTasks_IsNoTask) {
  EXPECT_FALSE(Good(kBatch).node_id.has_value());
  // The only task of its job may be run without srun.
  EXPECT_EQ(Good(With(kBatch, {{"SLURM_NTASKS", "1"}})).num_nodes, Number(1, "SLURM_NTASKS"));
}

TEST(Identity, SrunWithItsOwnPmi_IsReadAsSlurm) {
  // --mpi=pmi2 and --mpi=pmix.
  const Identity pmi = Good(With(kSlurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}}));
  EXPECT_EQ(pmi.node_id, Number(5, "SLURM_PROCID"));
  EXPECT_EQ(pmi.first_host, Text("gpu003", "SLURM_STEP_NODELIST"));
  const Identity pmix =
      Good(With(kSlurm, {{"PMIX_RANK", "5"}, {"PMIX_NAMESPACE", "slurm.pmix.1000.0"}}));
  EXPECT_EQ(pmix.num_nodes, Number(8, "SLURM_STEP_NUM_TASKS"));
}

TEST(Identity, MpiRankWithRankByHand_AgreesOrIsRefused) {
  const Environment mpi =
      With(kBatch, {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_EQ(Good(With(mpi, {{"RANK", "2"}, {"WORLD_SIZE", "4"}})).node_id, Number(2, "RANK"));
  ExpectRefused(With(mpi, {{"RANK", "0"}, {"WORLD_SIZE", "4"}}),
                "RANK=0 and OMPI_COMM_WORLD_RANK=2 disagree");
}

constexpr char kTfConfig[] =
    R"({"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "task": {"type": "worker", "index": 1}})";

TEST(Identity, TfConfigAlone_CountsTheChiefFirst) {
  const Identity identity = Good({{"TF_CONFIG", kTfConfig}});
  EXPECT_EQ(identity.node_id, Number(2, "TF_CONFIG"));
  EXPECT_EQ(identity.num_nodes, Number(3, "TF_CONFIG"));
  EXPECT_EQ(identity.first_host, Text("a", "TF_CONFIG"));
}

TEST(Identity, TfConfigInABatchScript_Decides) {
  EXPECT_EQ(Good(With(kBatch, {{"TF_CONFIG", kTfConfig}})).node_id, Number(2, "TF_CONFIG"));
}

TEST(Identity, TfConfigThatContradictsTheLauncher_IsRefused) {
  const Environment three = {
      {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "3"}, {"TF_CONFIG", kTfConfig}};
  ExpectRefused(three, "SLURM_PROCID=0 and TF_CONFIG=2 disagree");
  EXPECT_EQ(Good(With(three, {{"SLURM_PROCID", "2"}})).node_id, Number(2, "SLURM_PROCID"));
  EXPECT_EQ(Good(With(three, {{"FERRY_NODE_ID", "1"}})).node_id->value, 1);
}

TEST(Identity, TfConfigWithOtherTasks_DoesNotCount) {
  for (
      const char* config :
      {R"({"cluster": {"worker": ["b:1"], "ps": ["c:1"]}, "task": {"type": "worker", "index": 0}})",
       R"({"cluster": {"worker": ["b:1"]}, "task": {"type": "evaluator", "index": 0}})",
       R"({"task": {"type": "worker", "index": 0}})", R"({"cluster": {}})"}) {
    EXPECT_FALSE(Good({{"TF_CONFIG", config}}).node_id.has_value()) << config;
  }
}

TEST(Identity, TfConfigThatIsGarbled_IsRefused) {
  for (const char* config :
       {"{", "3", R"({"cluster": 1, "task": {}})", R"({"cluster": {"worker": 5}, "task": {}})",
        R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}})",
        R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}})",
        R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}})",
        R"({"cluster": {"worker": [7]}, "task": {"type": "worker", "index": 0}})"}) {
    ExpectRefused({{"TF_CONFIG", config}}, "TF_CONFIG: ");
  }
}

// The environment of a rank of `ferry run` in `around`.
Environment RankOfFerryRun(const Environment& around) {
  return With(around, {{"FERRY_NODE_ID", "0"},
                       {"FERRY_NUM_NODES", "2"},
                       {"FERRY_COORDINATOR", "head:1"},
                       {"RANK", "0"},
                       {"WORLD_SIZE", "2"},
                       {"FERRY_RUN", FerryRunMark(
                                         [&around](const char* name) -> std::optional<std::string> {
                                           const auto found = around.find(name);
                                           if (found == around.end()) return std::nullopt;
                                           return found->second;
                                         },
                                         "head:1", 0)}});
}

TEST(Identity, RankOfFerryRun_UsesFerryRunsNumber) {
  for (const Environment& around : {Environment(), kBatch, kSlurm}) {
    const Identity identity = Good(RankOfFerryRun(around));
    EXPECT_EQ(identity.node_id, Number(0, "FERRY_NODE_ID"));
    EXPECT_EQ(identity.coordinator, Text("head:1", "FERRY_COORDINATOR"));
  }
}

TEST(Identity, LauncherInsideARankOfFerryRun_Decides) {
  const Environment mpirun = {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
  for (const Environment& around : {Environment(), kBatch}) {
    const Identity identity = Good(With(RankOfFerryRun(around), mpirun));
    EXPECT_EQ(identity.node_id, Number(2, "OMPI_COMM_WORLD_RANK"));
    EXPECT_EQ(identity.num_nodes, Number(4, "OMPI_COMM_WORLD_SIZE"));
    // That coordinator counts the ranks of ferry run.
    EXPECT_FALSE(identity.coordinator.has_value());
  }
  const Identity torchrun = Good(With(
      RankOfFerryRun({}), {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"TORCHELASTIC_RUN_ID", "none"}}));
  EXPECT_EQ(torchrun.node_id, Number(1, "RANK"));
}

TEST(Identity, VariablesByHandInsideARankOfFerryRun_Decide) {
  const Identity identity = Good(With(RankOfFerryRun({}), {{"FERRY_COORDINATOR", "other:1"},
                                                           {"FERRY_NODE_ID", "3"},
                                                           {"FERRY_NUM_NODES", "4"},
                                                           {"OMPI_COMM_WORLD_RANK", "0"},
                                                           {"OMPI_COMM_WORLD_SIZE", "1"}}));
  EXPECT_EQ(identity.node_id, Number(3, "FERRY_NODE_ID"));
}

// A number of which the rank's own begins: the mark is compared whole.
TEST(Identity, RankOfFerryRun_IsOneOnlyWithItsOwnNumberAndCoordinator) {
  const auto is_rank = [](const Environment& environment) {
    return IsRankOfFerryRun([&environment](const char* name) -> std::optional<std::string> {
      const auto found = environment.find(name);
      if (found == environment.end()) return std::nullopt;
      return found->second;
    });
  };
  const auto no_variables = [](const char*) -> std::optional<std::string> { return std::nullopt; };
  const Environment rank = {{"FERRY_NODE_ID", "12"},
                            {"FERRY_COORDINATOR", "head:91"},
                            {"FERRY_RUN", FerryRunMark(no_variables, "head:91", 12)}};
  EXPECT_TRUE(is_rank(rank));
  EXPECT_FALSE(is_rank(With(rank, {{"FERRY_NODE_ID", "1"}})));
  EXPECT_FALSE(is_rank(With(rank, {{"FERRY_NODE_ID", "2"}})));
  EXPECT_FALSE(is_rank(With(rank, {{"FERRY_COORDINATOR", "head:9"}})));
  EXPECT_FALSE(is_rank(With(rank, {{"FERRY_COORDINATOR", "ad:91"}})));
  for (const char* const name : {"FERRY_NODE_ID", "FERRY_COORDINATOR", "FERRY_RUN"}) {
    Environment without = rank;
    without.erase(name);
    EXPECT_FALSE(is_rank(without)) << name;
  }
}

std::optional<RefusedIdentity> ReadRefused(const Environment& environment) {
  return ReadRefusedIdentity([&environment](const char* name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

TEST(RefusedIdentity, WithAGarbledNumberOfNodes_HasTheGivenCoordinator) {
  for (const char* const count : {"-3", "x", "0", ""}) {
    const std::optional<Identity> refused = ReadRefused(
        {{"FERRY_COORDINATOR", "head:9470"}, {"FERRY_NODE_ID", "1"}, {"FERRY_NUM_NODES", count}});
    ASSERT_TRUE(refused.has_value()) << count;
    ASSERT_TRUE(refused->coordinator.has_value()) << count;
    EXPECT_EQ(refused->coordinator->value, "head:9470") << count;
  }
}

TEST(RefusedIdentity, WithoutACertainNumber_HasTheCoordinatorThatTheOthersUse) {
  const Environment torch = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "head"}};
  const Environment mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                           {"OMPI_MCA_ess_base_jobid", "77"}};
  const Environment tf = {
      {"TF_CONFIG",
       R"({"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}})"}};
  const Environment pod = {
      {"JOB_COMPLETION_INDEX", "1"}, {"JOB_COMPLETIONS", "2"}, {"HOSTNAME", "job-1"}};
  const auto tf_task = [](const std::string& task) -> Environment {
    return {{"TF_CONFIG",
             R"({"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": )" + task + "}"}};
  };
  const std::pair<Environment, Environment> kCases[] = {
      {torch, {{"RANK", "2"}}},
      {torch, {{"RANK", "-1"}}},
      {torch, {{"RANK", "one"}}},
      {torch, {{"WORLD_SIZE", "two"}}},
      {torch, {{"WORLD_SIZE", "0"}}},
      {torch, {{"RANK", "2"}, {"TORCHELASTIC_RUN_ID", "x"}}},
      {mpi, {{"OMPI_COMM_WORLD_RANK", "2"}}},
      {mpi, {{"OMPI_COMM_WORLD_RANK", "x"}}},
      {kSlurm, {{"SLURM_PROCID", "x"}}},
      {kSlurm, {{"SLURM_PROCID", "8"}}},
      {tf, tf_task(R"({"type": "worker", "index": 1})")},
      {tf, tf_task(R"({"type": "worker", "index": -1})")},
      {tf, tf_task(R"({"type": "worker"})")},
      {pod, {{"JOB_COMPLETION_INDEX", "2"}, {"HOSTNAME", "job-2"}}},
  };
  for (const auto& [others, wrong] : kCases) {
    const Environment environment = With(others, wrong);
    SCOPED_TRACE(wrong.begin()->first + "=" + wrong.begin()->second);
    ASSERT_FALSE(Read(environment).ok());
    const std::optional<Identity> refused = ReadRefused(environment);
    ASSERT_TRUE(refused.has_value());
    const Identity accepted = Good(others);
    ASSERT_TRUE(accepted.first_host.has_value());
    ASSERT_TRUE(refused->first_host.has_value());
    EXPECT_EQ(refused->first_host->value, accepted.first_host->value);
    EXPECT_EQ(refused->port_hint, accepted.port_hint);
    // Its number is unknown: node 0 would run the coordinator.
    EXPECT_FALSE(refused->node_id.has_value());
  }
}

// As in one that is accepted: the batch may have more tasks than its steps.
TEST(RefusedIdentity, OfAStep_HasTheNumberOfTheStepsTasks) {
  const std::optional<Identity> refused = ReadRefused(With(kSlurm, {{"SLURM_PROCID", "x"}}));
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->num_nodes, Number(8, "SLURM_STEP_NUM_TASKS"));
}

TEST(RefusedIdentity, OnlyClaimIsRightWhereAnotherValueIsWrong) {
  for (const Environment& wrong :
       {Environment{{"LOCAL_RANK", "x"}}, Environment{{"FERRY_NUM_NODES", "3"}},
        Environment{{"FERRY_COORDINATOR", "nowhere"}}}) {
    const Environment environment =
        With({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "head"}}, wrong);
    SCOPED_TRACE(wrong.begin()->first);
    ASSERT_FALSE(Read(environment).ok());
    const std::optional<Identity> refused = ReadRefused(environment);
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->node_id, Number(0, "RANK"));
  }
}

// The process that was to run the coordinator runs it to report why it cannot join.
TEST(RefusedIdentity, MayBeThatOfProcess0IfAnyVariableAgrees) {
  const Environment torch = {{"RANK", "1"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "head"}};
  const std::string tf =
      R"({"cluster": {"worker": ["a:1", "b:1", "c:1", "d:1", "e:1", "f:1", "g:1", "h:1"]},
          "task": {"type": "worker", "index": )";
  const std::tuple<Environment, Environment, bool> kCases[] = {
      {torch, {{"RANK", "-1"}}, true},
      {torch, {{"RANK", "x"}}, true},
      {torch, {{"LOCAL_RANK", "x"}}, false},
      {torch, {{"LOCAL_RANK", "x"}, {"RANK", "0"}}, true},
      // SLURM_PROCID=5.
      {kSlurm, {{"RANK", "0"}, {"WORLD_SIZE", "8"}}, true},
      {kSlurm, {{"RANK", "1"}, {"WORLD_SIZE", "8"}}, false},
      {kSlurm, {{"TF_CONFIG", tf + "0}}"}}, true},
      {kSlurm, {{"TF_CONFIG", tf + "1}}"}}, false},
      {kSlurm, {{"SLURM_LOCALID", "x"}}, false},
      {kSlurm, {{"FERRY_LOCAL_RANK", "x"}, {"FERRY_NODE_ID", "0"}}, true},
      // The variables of the nearest launcher count; those inherited from an outer one do not.
      {{{"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "8"}},
       With(kSlurm, {{"SLURM_PROCID", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "x"}}),
       false},
  };
  for (const auto& [right, wrong, may_be] : kCases) {
    std::string name;
    for (const auto& [variable, value] : wrong) name += variable + "=" + value + " ";
    SCOPED_TRACE(name);
    ASSERT_FALSE(Read(With(right, wrong)).ok());
    const auto refused = ReadRefused(With(right, wrong));
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->may_be_first, may_be);
  }
}

TEST(RefusedIdentity, IsAbsentForACommandTypedByHand) {
  for (const Environment& environment :
       {Environment{}, Environment{{"FERRY_COORDINATOR", "head:1"}},
        Environment{{"FERRY_NUM_NODES", "x"}}, Environment{{"FERRY_LOCAL_RANK", "x"}}, kBatch}) {
    EXPECT_FALSE(ReadRefused(environment).has_value());
  }
  // Without a count it comes from no launcher.
  EXPECT_FALSE(ReadRefused({{"RANK", "x"}}).has_value());
}

TEST(RefusedIdentity, HasTheCoordinatorOfItsOwnVariables) {
  for (const char* node : {"2", "-1", "x"}) {
    const std::optional<Identity> refused = ReadRefused(
        {{"FERRY_NODE_ID", node}, {"FERRY_NUM_NODES", "2"}, {"FERRY_COORDINATOR", "head:1"}});
    ASSERT_TRUE(refused.has_value()) << node;
    EXPECT_EQ(refused->coordinator, Text("head:1", "FERRY_COORDINATOR"));
  }
}

TEST(RefusedIdentity, ContradictoryRankByHand_HasTheLaunchersNumberAndTheCoordinator) {
  const Environment environment =
      With(kSlurm, {{"RANK", "0"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "head"}});
  ASSERT_FALSE(Read(environment).ok());
  const std::optional<Identity> refused = ReadRefused(environment);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->node_id, Number(5, "SLURM_PROCID"));
  EXPECT_EQ(refused->num_nodes, Number(8, "SLURM_STEP_NUM_TASKS"));
  // Where rank 0, which is not refused, runs the coordinator.
  const Identity accepted = Good(With(environment, {{"SLURM_PROCID", "0"}}));
  EXPECT_EQ(refused->first_host, accepted.first_host);
  EXPECT_EQ(refused->port_hint, accepted.port_hint);
}

TEST(Identity, RefusesACountThatContradictsTheLauncher) {
  ExpectRefused(With(kSlurm, {{"FERRY_NUM_NODES", "4"}}),
                "FERRY_NUM_NODES=4 and SLURM_STEP_NUM_TASKS=8 disagree");
}

TEST(Identity, RefusesGarbledNumbersByName) {
  for (const char* value : {"x", "-1", "+1", " 1", "1 ", "1.0", "0x1", "99999999999999999999"}) {
    ExpectRefused({{"FERRY_NODE_ID", value}}, "FERRY_NODE_ID=\"" + std::string(value) + "\"");
  }
  ExpectRefused({{"FERRY_NUM_NODES", "0"}}, "FERRY_NUM_NODES=\"0\"");
  ExpectRefused(With(kSlurm, {{"SLURM_PROCID", "five"}}), "SLURM_PROCID=\"five\"");
  ExpectRefused(With(kSlurm, {{"SLURM_LOCALID", "?"}}), "SLURM_LOCALID=\"?\"");
}

TEST(Identity, RefusesARankBeyondItsSize) {
  ExpectRefused({{"FERRY_NODE_ID", "8"}, {"FERRY_NUM_NODES", "8"}},
                "FERRY_NODE_ID=8 must be below FERRY_NUM_NODES=8");
  ExpectRefused({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK=2 must be below WORLD_SIZE=2");
  ExpectRefused({{"FERRY_LOCAL_RANK", "4"}, {"FERRY_NUM_NODES", "4"}}, "FERRY_LOCAL_RANK=4");
}

TEST(Identity, RefusesInvalidAddresses) {
  for (const char* value : {"head", "head:", ":80", "head:0", "head:65536", "a b:1", "::1:80"}) {
    ExpectRefused({{"FERRY_COORDINATOR", value}}, std::string("FERRY_COORDINATOR=\"") + value);
  }
  EXPECT_EQ(Good({{"FERRY_COORDINATOR", "[::1]:80"}}).coordinator->value, "[::1]:80");
}

// mpirun lists all addresses of its machine, in the kernel's order.
TEST(Identity, OpenMpi_UsesAReachableAddressOfMpirun) {
  const std::pair<const char*, const char*> kCases[] = {
      {"7.0;tcp://10.96.0.1,10.148.0.1:34911", "10.96.0.1"},
      {"7.0;tcp://172.17.0.1,10.148.0.1:34911", "10.148.0.1"},
      {"7.0;tcp://169.254.1.1,172.17.0.1,10.148.0.1:34911", "10.148.0.1"},
      {"7.0;tcp6://[fd00::1]:34911", "fd00::1"},
      {"7.0;tcp6://[fe80::1,fd00::1]:34911", "fd00::1"},
      {"7.0;tcp://172.17.0.1:34911;tcp6://[fd00::1]:34912", "fd00::1"},
      {"7.0;tcp://172.17.0.1:34911", "172.17.0.1"},
      {"7.0; tcp://10.96.0.1, 10.148.0.1:34911", "10.96.0.1"},
  };
  for (const auto& [uri, host] : kCases) {
    const Identity identity = Good({{"OMPI_COMM_WORLD_RANK", "1"},
                                    {"OMPI_COMM_WORLD_SIZE", "2"},
                                    {"OMPI_MCA_orte_hnp_uri", uri}});
    ASSERT_TRUE(identity.first_host.has_value()) << uri;
    EXPECT_EQ(identity.first_host->value, host) << uri;
  }
}

TEST(Identity, RefusesAGarbledNodeList) {
  ExpectRefused(With(kSlurm, {{"SLURM_STEP_NODELIST", "gpu[1-"}}),
                "SLURM_STEP_NODELIST=\"gpu[1-\" is not a Slurm node list");
}

TEST(Identity, ReportsTheSourceOfEachPart) {
  EXPECT_EQ(Describe(Good(kSlurm)),
            "node 5 of 8 (SLURM_PROCID, SLURM_STEP_NUM_TASKS), first host gpu003 "
            "(SLURM_STEP_NODELIST)");
  EXPECT_THAT(Describe(Good({})), HasSubstr("names no node id"));
}

TEST(FirstSlurmHost, ExpandsTheFirstBracket) {
  EXPECT_EQ(*FirstSlurmHost("gpu7"), "gpu7");
  EXPECT_EQ(*FirstSlurmHost("a,b"), "a");
  EXPECT_EQ(*FirstSlurmHost("gpu[003-010,12],login1"), "gpu003");
  EXPECT_EQ(*FirstSlurmHost("gpu[12,14]"), "gpu12");
  EXPECT_EQ(*FirstSlurmHost("rack[1-2]node[01-04]"), "rack1node01");
  EXPECT_EQ(*FirstSlurmHost("gpu[1-2].cluster.example"), "gpu1.cluster.example");
}

// Lists that people write, or that scripts put together.
TEST(FirstSlurmHost, BlanksAroundHostsAndNumbers_AreSkipped) {
  EXPECT_EQ(*FirstSlurmHost(" n1,n2"), "n1");
  EXPECT_EQ(*FirstSlurmHost("\t n1 , n2 "), "n1");
  EXPECT_EQ(*FirstSlurmHost("n1 n2"), "n1");
  EXPECT_EQ(*FirstSlurmHost("n1\n"), "n1");
  EXPECT_EQ(*FirstSlurmHost("gpu[ 003 - 010 , 12 ], login1"), "gpu003");
  EXPECT_EQ(*FirstSlurmHost("  gpu[\t12,14]"), "gpu12");
  for (const char* nodelist : {" ", "\t", " ,a", "a[ ]", "a[ x]", "a[1 2]"}) {
    EXPECT_FALSE(FirstSlurmHost(nodelist).ok()) << nodelist;
  }
}

TEST(Identity, BlanksAroundAHost_AreIgnored) {
  EXPECT_EQ(Good(With(kSlurm, {{"SLURM_STEP_NODELIST", " gpu003, gpu004"}})).first_host->value,
            "gpu003");
  EXPECT_EQ(
      Good({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", " head\t"}}).first_host->value,
      "head");
  EXPECT_FALSE(
      Good({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", " "}}).first_host.has_value());
}

TEST(FirstSlurmHost, RefusesBracketsThatDoNotMatch) {
  for (const char* nodelist : {"", ",a", "a[", "a[]", "a[x]", "a]", "a[1-2", "[,2]"}) {
    EXPECT_FALSE(FirstSlurmHost(nodelist).ok()) << nodelist;
  }
}

// The first count that is set is used, and the others are not even parsed.
TEST(Identity, SeveralCountsOfAPod_TheFirstCounts) {
  const Environment pod = {{"JOB_COMPLETION_INDEX", "3"}, {"HOSTNAME", "train-3"}};
  const Environment all =
      With(pod, {{"JOB_COMPLETIONS", "16"}, {"NUM_PROCESSES", "32"}, {"WORLD_SIZE", "64"}});
  EXPECT_EQ(Good(all).num_nodes, Number(16, "JOB_COMPLETIONS"));
  EXPECT_EQ(Good(With(all, {{"NUM_PROCESSES", "x"}})).num_nodes, Number(16, "JOB_COMPLETIONS"));
  EXPECT_EQ(Good(With(all, {{"JOB_COMPLETIONS", ""}})).num_nodes, Number(32, "NUM_PROCESSES"));
  EXPECT_EQ(Good(With(pod, {{"WORLD_SIZE", "64"}})).num_nodes, Number(64, "WORLD_SIZE"));
}

TEST(RefusedIdentity, HasTheSecondCountOnlyWhereTheFirstIsNotSet) {
  const std::optional<Identity> older =
      ReadRefused({{"SLURM_PROCID", "x"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEPID", "0"}});
  ASSERT_TRUE(older.has_value());
  EXPECT_EQ(older->num_nodes, Number(2, "SLURM_NTASKS"));
  // The allocation's count is not the step's.
  const std::optional<Identity> garbled =
      ReadRefused(With(kSlurm, {{"SLURM_STEP_NUM_TASKS", "x"}}));
  ASSERT_TRUE(garbled.has_value());
  EXPECT_FALSE(garbled->num_nodes.has_value());
}

TEST(Identity, CountsUpToTheMostNodes) {
  const Identity last = Good({{"RANK", "1048575"}, {"WORLD_SIZE", "1048576"}});
  EXPECT_EQ(last.node_id, Number(1048575, "RANK"));
  EXPECT_EQ(last.num_nodes, Number(1048576, "WORLD_SIZE"));
  ExpectRefused({{"RANK", "0"}, {"WORLD_SIZE", "1048577"}}, "WORLD_SIZE=\"1048577\"");
  ExpectRefused({{"RANK", "1048576"}, {"WORLD_SIZE", "1048576"}}, "RANK=\"1048576\"");
  ExpectRefused({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE=\"0\"");
}

}  // namespace
}  // namespace ferry

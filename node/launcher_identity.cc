// SPDX-License-Identifier: Apache-2.0
// A table of launchers, and the rules between them.
#include "node/launcher_identity.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "node/tf_config.h"

namespace ferry::identity_internal {
namespace {

// Set for a step but not for a batch script (slurm/src/common/env.c, env_array_for_step and
// env_array_for_batch_job).
constexpr const char* kSlurmStepVariables[] = {"SLURM_STEP_ID", "SLURM_STEPID",
                                               "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"};

bool IsSlurmStep(const EnvReader& reader) {
  return std::any_of(std::begin(kSlurmStepVariables), std::end(kSlurmStepVariables),
                     [&reader](const char* name) { return reader.Has(name); });
}

// Returns true if the launcher itself has set the variables for this process.
bool MayCount(const EnvReader& reader, LauncherKind kind, const std::optional<Sourced<int>>& size) {
  if (kind == LauncherKind::kPmix) {
    const std::optional<Sourced<std::string>> space = reader.Text("PMIX_NAMESPACE");
    return !space || !absl::StartsWith(space->value, "slurm.");
  }
  // srun --mpi=pmi2 also sets PMI_RANK, beside the better SLURM_PROCID; Hydra sets its own local
  // rank.
  if (kind == LauncherKind::kPmi) {
    return !IsSlurmStep(reader) || reader.Has("MPI_LOCALRANKID") || reader.Has("MPI_LOCALNRANKS");
  }
  // In a batch script SLURM_NTASKS is the task limit of its steps; if it is 1, the script is the
  // job.
  if (kind == LauncherKind::kSlurm) return IsSlurmStep(reader) || (size && size->value == 1);
  return true;
}

absl::StatusOr<std::optional<LauncherIdentity>> ReadTfConfigIdentity(
    const EnvReader& reader, const LauncherVariables& variables) {
  const std::optional<Sourced<std::string>> text = reader.Text(variables.rank);
  if (!text) return std::nullopt;
  absl::StatusOr<std::optional<TfConfig>> config = ParseTfConfig(text->value);
  if (!config.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable TF_CONFIG: ", config.status().message()));
  }
  if (!*config) return std::nullopt;
  LauncherIdentity identity{.variables = &variables,
                            .rank = {(*config)->rank, text->source},
                            .size = Sourced<int>{(*config)->size, text->source},
                            .is_by_hand = true};
  identity.first_host = Sourced<std::string>{(*config)->first_host, text->source};
  return identity;
}

// Jobs of other sizes are the normal case of one launcher inside another.
bool Contradict(const LauncherIdentity& one, const LauncherIdentity& other) {
  return one.size && other.size && one.size->value == other.size->value &&
         one.rank.value != other.rank.value;
}

}  // namespace

// Nearest to the process first: mpirun inside a Slurm allocation, torchrun under srun, and so on.
// Sources: torch/distributed/elastic/agent (torchrun), ompi/orte and prrte "schizo/ompi" (Open
// MPI), MVAPICH's mpirun_rsh, hydra's pmiserv (MPICH, Intel MPI), slurm/src/common/env.c.
const std::vector<LauncherVariables>& Launchers() {
  static const auto* const launchers = new std::vector<LauncherVariables>{
      {LauncherKind::kTorch, "RANK", {"WORLD_SIZE"}, "LOCAL_RANK", true},
      {LauncherKind::kOpenMpi,
       "OMPI_COMM_WORLD_RANK",
       {"OMPI_COMM_WORLD_SIZE"},
       "OMPI_COMM_WORLD_LOCAL_RANK",
       true},
      {LauncherKind::kMvapich,
       "MV2_COMM_WORLD_RANK",
       {"MV2_COMM_WORLD_SIZE"},
       "MV2_COMM_WORLD_LOCAL_RANK",
       true},
      {LauncherKind::kMvapich,
       "MVP_COMM_WORLD_RANK",
       {"MVP_COMM_WORLD_SIZE"},
       "MVP_COMM_WORLD_LOCAL_RANK",
       true},
      {LauncherKind::kPmi, "PMI_RANK", {"PMI_SIZE"}, "MPI_LOCALRANKID", true},
      {LauncherKind::kPmix, "PMIX_RANK", {}, nullptr, false},
      {LauncherKind::kSlurm,
       "SLURM_PROCID",
       {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
       "SLURM_LOCALID",
       true},
      {LauncherKind::kTfConfig, "TF_CONFIG", {}, nullptr, true},
      {LauncherKind::kKubernetes,
       "JOB_COMPLETION_INDEX",
       {"JOB_COMPLETIONS", "NUM_PROCESSES", "WORLD_SIZE"},
       nullptr,
       false},
  };
  return *launchers;
}

absl::Status InvalidVariableError(absl::string_view name, absl::string_view value,
                                  absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("environment variable ", name, "=", Quoted(value), " is not ", wanted));
}

std::string NameAndValue(const Sourced<int>& number) {
  return absl::StrCat(number.source, "=", number.value);
}

absl::Status CheckBelow(const std::optional<Sourced<int>>& index,
                        const std::optional<Sourced<int>>& count) {
  if (!index || !count || index->value < count->value) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("environment variable ", NameAndValue(*index),
                                                 " must be below ", NameAndValue(*count)));
}

bool IsOfTorchrun(const EnvReader& reader) {
  const std::optional<Sourced<std::string>> id = reader.Text("TORCHELASTIC_RUN_ID");
  return id.has_value() && !absl::StartsWith(id->value, kFerryRunIdPrefix);
}

absl::StatusOr<std::optional<LauncherIdentity>> ReadLauncherIdentity(
    const EnvReader& reader, const LauncherVariables& variables) {
  if (variables.kind == LauncherKind::kTfConfig) return ReadTfConfigIdentity(reader, variables);
  std::optional<Sourced<int>> size;
  if (!reader.Has(variables.rank)) return std::nullopt;
  for (const char* name : variables.sizes) {
    if (size) break;
    FERRY_ASSIGN_OR_RETURN(size, reader.Number(name, 1, kMaxNodes));
  }
  if (!size && variables.needs_size) return std::nullopt;
  if (!MayCount(reader, variables.kind, size)) return std::nullopt;
  FERRY_ASSIGN_OR_RETURN(const std::optional<Sourced<int>> rank,
                         reader.Number(variables.rank, 0, kMaxNodes - 1));
  FERRY_RETURN_IF_ERROR(CheckBelow(rank, size));
  LauncherIdentity identity{.variables = &variables, .rank = *rank, .size = size};
  identity.is_by_hand = variables.kind == LauncherKind::kTorch && !IsOfTorchrun(reader);
  return identity;
}

std::optional<LauncherIdentity> ReadRefusedLauncherIdentity(const EnvReader& reader,
                                                            const LauncherVariables& variables) {
  if (ReadLauncherIdentity(reader, variables).ok()) return std::nullopt;
  LauncherIdentity identity{
      .variables = &variables, .rank = {-1, variables.rank}, .is_by_hand = true};
  if (variables.kind == LauncherKind::kTfConfig) {
    const std::optional<Sourced<std::string>> text = reader.Text(variables.rank);
    const std::optional<TfConfig> cluster = ParseTfCluster(text->value);
    if (!cluster) return identity;
    identity.size = Sourced<int>{cluster->size, text->source};
    identity.first_host = Sourced<std::string>{cluster->first_host, text->source};
    return identity;
  }
  for (const char* name : variables.sizes) {
    if (!reader.Has(name)) continue;
    if (const auto size = reader.Number(name, 1, kMaxNodes); size.ok()) identity.size = *size;
    break;
  }
  if (const auto rank = reader.Number(variables.rank, 0, kMaxNodes - 1); rank.ok()) {
    identity.rank = **rank;
  }
  return identity;
}

// The identity of the nearest launcher, unless variables set by hand contradict it. Outer launchers
// are not considered: ranks of mpirun in a batch script all inherit SLURM_PROCID=0.
absl::StatusOr<std::optional<LauncherIdentity>> NearestLauncherIdentity(const EnvReader& reader) {
  std::optional<LauncherIdentity> nearest;
  for (const LauncherVariables& variables : Launchers()) {
    // Variables of outer launchers are ignored, so they need not be valid.
    if (nearest && !nearest->is_by_hand && variables.kind != LauncherKind::kTfConfig) continue;
    absl::StatusOr<std::optional<LauncherIdentity>> identity =
        ReadLauncherIdentity(reader, variables);
    if (!nearest) {
      if (!identity.ok()) return identity.status();
      nearest = *std::move(identity);
      continue;
    }
    if (!identity.ok() || !*identity) continue;
    if (Contradict(*nearest, **identity)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "environment variables ", NameAndValue(nearest->rank), " and ",
          NameAndValue((*identity)->rank), " disagree about which of ", nearest->size->value,
          " processes this is; set FERRY_NODE_ID (or pass --node-id and --coordinator) to resolve "
          "it"));
    }
    // Comparing with one launcher is enough.
    if (!(*identity)->is_by_hand && nearest->is_by_hand) break;
  }
  return nearest;
}

}  // namespace ferry::identity_internal

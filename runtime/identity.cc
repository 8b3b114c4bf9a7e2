// SPDX-License-Identifier: Apache-2.0
// Identity: a table of launchers, and the rules between them.
#include "runtime/identity.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "runtime/tf_config.h"

namespace ferry {
namespace {

// More processes than any job has; beyond it a value is a mistake.
constexpr int kMaxNodes = 1 << 20;

enum class LauncherKind { kTorch, kOpenMpi, kMvapich, kPmi, kPmix, kSlurm, kTfConfig, kKubernetes };

struct LauncherVariables {
  LauncherKind kind;
  const char* rank;
  std::vector<const char*> sizes;  // the first that is set counts
  const char* local_rank;          // may be null
  bool needs_size;
};

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

// A step has these and a batch script has not (slurm/src/common/env.c, env_array_for_step and
// env_array_for_batch_job).
constexpr const char* kSlurmStepVariables[] = {"SLURM_STEP_ID", "SLURM_STEPID",
                                               "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"};

// These differ where another launcher was started; RANK is set by `ferry run` itself.
constexpr const char* kLaunchVariables[] = {"TORCHELASTIC_RUN_ID",
                                            "OMPI_COMM_WORLD_RANK",
                                            "OMPI_COMM_WORLD_SIZE",
                                            "OMPI_MCA_ess_base_jobid",
                                            "PMIX_NAMESPACE",
                                            "PMIX_RANK",
                                            "MV2_COMM_WORLD_RANK",
                                            "MVP_COMM_WORLD_RANK",
                                            "PMI_RANK",
                                            "PMI_SIZE",
                                            "PMI_FD",
                                            "PMI_PORT",
                                            "SLURM_JOB_ID",
                                            "SLURM_STEP_ID",
                                            "SLURM_PROCID"};

constexpr char kFerryRun[] = "FERRY_RUN";

absl::Status Garbled(absl::string_view name, absl::string_view value, absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("environment variable ", name, "=", Quoted(value), " is not ", wanted));
}

class Reader final {
 public:
  explicit Reader(GetEnv get_env) : get_env_(get_env) {}

  std::optional<Sourced<std::string>> Text(const char* name) const {
    std::optional<std::string> value = get_env_(name);
    if (!value || value->empty()) return std::nullopt;
    return Sourced<std::string>{*std::move(value), name};
  }

  // A host's name or address, without the blanks around it.
  std::optional<Sourced<std::string>> Host(const char* name) const {
    std::optional<Sourced<std::string>> host = Text(name);
    if (!host) return std::nullopt;
    host->value = std::string(absl::StripAsciiWhitespace(host->value));
    if (host->value.empty()) return std::nullopt;
    return host;
  }

  bool Has(const char* name) const { return Text(name).has_value(); }

  // A number in [low, high]; absent when the variable is.
  absl::StatusOr<std::optional<Sourced<int>>> Number(const char* name, int low, int high) const {
    const std::optional<Sourced<std::string>> text = Text(name);
    if (!text) return std::nullopt;
    int value = 0;
    // SimpleAtoi would also take "+3" and " 3".
    if (text->value.find_first_not_of("0123456789") != std::string::npos ||
        !absl::SimpleAtoi(text->value, &value) || value < low || value > high) {
      return Garbled(name, text->value, absl::StrCat("a number from ", low, " to ", high));
    }
    return Sourced<int>{value, name};
  }

 private:
  GetEnv get_env_;
};

// What one launcher says about this process.
struct Claim {
  const LauncherVariables* variables = nullptr;
  Sourced<int> rank;
  std::optional<Sourced<int>> size;
  // Not set by a launcher that started this very process.
  bool is_by_hand = false;
  // The machine of process 0, where the claim itself says it.
  std::optional<Sourced<std::string>> first_host;

  LauncherKind kind() const { return variables->kind; }
};

std::string Shown(const Sourced<int>& number) {
  return absl::StrCat(number.source, "=", number.value);
}

absl::Status CheckBelow(const std::optional<Sourced<int>>& index,
                        const std::optional<Sourced<int>>& count) {
  if (!index || !count || index->value < count->value) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("environment variable ", Shown(*index), " must be below ", Shown(*count)));
}

bool IsSlurmStep(const Reader& reader) {
  return std::any_of(std::begin(kSlurmStepVariables), std::end(kSlurmStepVariables),
                     [&reader](const char* name) { return reader.Has(name); });
}

// True if the launcher itself has set the variables for this process.
bool MayCount(const Reader& reader, LauncherKind kind, const std::optional<Sourced<int>>& size) {
  if (kind == LauncherKind::kPmix) {
    const std::optional<Sourced<std::string>> space = reader.Text("PMIX_NAMESPACE");
    return !space || !absl::StartsWith(space->value, "slurm.");
  }
  // srun --mpi=pmi2 sets PMI_RANK too, beside the better SLURM_PROCID; Hydra sets its own local
  // rank.
  if (kind == LauncherKind::kPmi) {
    return !IsSlurmStep(reader) || reader.Has("MPI_LOCALRANKID") || reader.Has("MPI_LOCALNRANKS");
  }
  // In a batch script SLURM_NTASKS is what its steps may have; alone in its job, it is the job.
  if (kind == LauncherKind::kSlurm) return IsSlurmStep(reader) || (size && size->value == 1);
  return true;
}

absl::StatusOr<std::optional<Claim>> ReadTfClaim(const Reader& reader,
                                                 const LauncherVariables& variables) {
  const std::optional<Sourced<std::string>> text = reader.Text(variables.rank);
  if (!text) return std::nullopt;
  absl::StatusOr<std::optional<TfConfig>> config = ParseTfConfig(text->value);
  if (!config.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable TF_CONFIG: ", config.status().message()));
  }
  if (!*config) return std::nullopt;
  Claim claim{.variables = &variables,
              .rank = {(*config)->rank, text->source},
              .size = Sourced<int>{(*config)->size, text->source},
              .is_by_hand = true};
  claim.first_host = Sourced<std::string>{(*config)->first_host, text->source};
  return claim;
}

absl::StatusOr<std::optional<Claim>> ReadClaim(const Reader& reader,
                                               const LauncherVariables& variables) {
  if (variables.kind == LauncherKind::kTfConfig) return ReadTfClaim(reader, variables);
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
  Claim claim{.variables = &variables, .rank = *rank, .size = size};
  claim.is_by_hand = variables.kind == LauncherKind::kTorch && !reader.Has("TORCHELASTIC_RUN_ID");
  return claim;
}

// Jobs of other sizes are the normal case of one launcher inside another.
bool Contradict(const Claim& one, const Claim& other) {
  return one.size && other.size && one.size->value == other.size->value &&
         one.rank.value != other.rank.value;
}

// The claim of the nearest launcher, unless what was set by hand contradicts it. Launchers further
// out are not asked: ranks of mpirun in a batch script all inherit SLURM_PROCID=0.
absl::StatusOr<std::optional<Claim>> NearestClaim(const Reader& reader) {
  std::optional<Claim> nearest;
  for (const LauncherVariables& variables : Launchers()) {
    // Variables of launchers further out are ignored, so they need not be valid.
    if (nearest && !nearest->is_by_hand && variables.kind != LauncherKind::kTfConfig) continue;
    absl::StatusOr<std::optional<Claim>> claim = ReadClaim(reader, variables);
    if (!nearest) {
      if (!claim.ok()) return claim.status();
      nearest = *std::move(claim);
      continue;
    }
    if (!claim.ok() || !*claim) continue;
    if (Contradict(*nearest, **claim)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "environment variables ", Shown(nearest->rank), " and ", Shown((*claim)->rank),
          " disagree about which of ", nearest->size->value,
          " processes this is; set FERRY_NODE_ID (or pass --node-id and --coordinator) to resolve "
          "it"));
    }
    // One launcher is enough to compare with.
    if (!(*claim)->is_by_hand && nearest->is_by_hand) break;
  }
  return nearest;
}

absl::Status CheckAddress(const Sourced<std::string>& address) {
  const size_t colon = address.value.rfind(':');
  const absl::string_view host = absl::string_view(address.value).substr(0, colon);
  int port = 0;
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (colon == std::string::npos || host.empty() ||
      (!bracketed && host.find_first_of("[]: \t/") != absl::string_view::npos) ||
      !absl::SimpleAtoi(address.value.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return Garbled(address.source, address.value, "HOST:PORT");
  }
  return absl::OkStatus();
}

// The steps of another launcher inside the allocation are those of its daemons, which need not run
// on all of its machines, and its processes on the first machine belong to no step.
absl::StatusOr<std::optional<Sourced<std::string>>> SlurmHost(const Reader& reader, bool is_step) {
  constexpr char kStep[] = "SLURM_STEP_NODELIST";
  constexpr char kJob[] = "SLURM_JOB_NODELIST";
  for (const char* name : {is_step ? kStep : kJob, is_step ? kJob : kStep}) {
    const std::optional<Sourced<std::string>> nodelist = reader.Text(name);
    if (!nodelist) continue;
    absl::StatusOr<std::string> host = FirstSlurmHost(nodelist->value);
    if (!host.ok()) return Garbled(name, nodelist->value, "a Slurm node list");
    return Sourced<std::string>{*std::move(host), name};
  }
  return std::nullopt;
}

// An address that does not lead other machines to that of mpirun: a loopback or link-local address,
// or that of the bridge that Docker creates on each machine.
bool IsOfEachMachine(absl::string_view address) {
  return absl::StartsWith(address, "127.") || address == "::1" ||
         absl::StartsWith(address, "169.254.") || absl::StartsWith(address, "fe80:") ||
         address == "172.17.0.1";
}

// Open MPI 4 names the machine of mpirun, which is also the first of the job unless the user says
// otherwise, by all of its addresses: "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911", also
// "...;tcp6://[fd00::1]:34911" or both. Source: oob_tcp_component.c of Open MPI 4 and PRRTE.
std::optional<Sourced<std::string>> MpirunHost(const Reader& reader) {
  const std::optional<Sourced<std::string>> uri = reader.Text("OMPI_MCA_orte_hnp_uri");
  if (!uri) return std::nullopt;
  std::vector<std::string> hosts;
  for (absl::string_view part : absl::StrSplit(uri->value, ';')) {
    part = absl::StripAsciiWhitespace(part);
    if (absl::ConsumePrefix(&part, "tcp6://[")) {
      part = part.substr(0, part.find(']'));
    } else if (absl::ConsumePrefix(&part, "tcp://")) {
      part = part.substr(0, part.find(':'));
    } else {
      continue;
    }
    for (const absl::string_view host : absl::StrSplit(part, ',', absl::SkipWhitespace())) {
      hosts.emplace_back(absl::StripAsciiWhitespace(host));
    }
  }
  if (hosts.empty()) return std::nullopt;
  const auto best = std::find_if_not(hosts.begin(), hosts.end(), IsOfEachMachine);
  return Sourced<std::string>{best == hosts.end() ? hosts.front() : *best, uri->source};
}

// A pod of an indexed job is called "<job>-<index>", and its name resolves when the job has a
// headless service: "<job>-0" is process 0, with the rest of the domain when the pod knows it.
std::optional<Sourced<std::string>> PodHost(const Reader& reader, int index) {
  const std::optional<Sourced<std::string>> name = reader.Host("HOSTNAME");
  if (!name) return std::nullopt;
  const size_t dot = std::min(name->value.find('.'), name->value.size());
  absl::string_view job = absl::string_view(name->value).substr(0, dot);
  if (!absl::ConsumeSuffix(&job, absl::StrCat("-", index)) || job.empty()) return std::nullopt;
  return Sourced<std::string>{absl::StrCat(job, "-0", name->value.substr(dot)), name->source};
}

bool AllOnOneMachine(const Reader& reader, const Claim& claim) {
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                           "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    const std::optional<Sourced<std::string>> text = reader.Text(name);
    if (text && claim.size && text->value == absl::StrCat(claim.size->value)) return true;
  }
  return false;
}

absl::StatusOr<std::optional<Sourced<std::string>>> FirstHost(const Reader& reader,
                                                              const Claim& claim) {
  switch (claim.kind()) {
    case LauncherKind::kTorch:
      return reader.Host("MASTER_ADDR");
    case LauncherKind::kTfConfig:
      return claim.first_host;
    case LauncherKind::kKubernetes:
      return PodHost(reader, claim.rank.value);
    case LauncherKind::kSlurm:
      return SlurmHost(reader, /*is_step=*/true);
    case LauncherKind::kOpenMpi:
    case LauncherKind::kMvapich:
    case LauncherKind::kPmi:
    case LauncherKind::kPmix:
      break;
  }
  if (AllOnOneMachine(reader, claim)) return Sourced<std::string>{"localhost", claim.size->source};
  FERRY_ASSIGN_OR_RETURN(std::optional<Sourced<std::string>> host,
                         SlurmHost(reader, /*is_step=*/false));
  if (!host && claim.kind() == LauncherKind::kOpenMpi) host = MpirunHost(reader);
  return host;
}

// FNV-1a, because the processes of a job may not all run the same build of the standard library.
uint64_t HashText(absl::string_view text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

Sourced<int> HashedPort(const Sourced<std::string>& launch) {
  return {static_cast<int>(61440 + HashText(launch.value) % 4096), launch.source};
}

// All processes of a Slurm step, or of one mpirun, derive one port, above the ephemeral range. JAX
// derives its own from the Slurm job id as 61440 + id % 4096 (jax/_src/clusters/slurm_cluster.py):
// stay off that one, because a JAX program may run in the same job.
std::optional<Sourced<int>> PortHint(const Reader& reader, LauncherKind kind) {
  const bool is_mpi = kind == LauncherKind::kOpenMpi || kind == LauncherKind::kPmix;
  // These are the same on all machines of one mpirun. Source: Open MPI 4 (orte ess) and 5 (PRRTE,
  // PMIx).
  constexpr const char* kLaunches[] = {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"};
  for (const char* name : kLaunches) {
    if (!is_mpi) break;
    if (const auto launch = reader.Text(name)) return HashedPort(*launch);
  }
  const std::optional<Sourced<std::string>> job = reader.Text("SLURM_JOB_ID");
  uint64_t job_id = 0;
  if (job && absl::SimpleAtoi(job->value, &job_id)) {
    uint64_t step_id = 0;
    // Processes of mpirun belong to the step of its daemons on some machines and to none on others.
    const bool has_step = kind == LauncherKind::kSlurm || kind == LauncherKind::kTorch;
    for (const char* name : {"SLURM_STEP_ID", "SLURM_STEPID"}) {
      const std::optional<Sourced<std::string>> step = reader.Text(name);
      if (has_step && step && absl::SimpleAtoi(step->value, &step_id)) break;
      step_id = 0;
    }
    return Sourced<int>{static_cast<int>(61440 + (job_id + 2048 + 97 * step_id) % 4096),
                        job->source};
  }
  for (const char* name : kLaunches) {
    if (const auto launch = reader.Text(name)) return HashedPort(*launch);
  }
  return std::nullopt;
}

// A hash that identifies the set of launchers around a process.
std::string LaunchesAround(const Reader& reader) {
  std::string all;
  for (const char* name : kLaunchVariables) {
    if (const auto text = reader.Text(name)) absl::StrAppend(&all, name, "=", text->value, "\n");
  }
  return absl::StrCat(absl::Hex(HashText(all)));
}

// The environment without what `ferry run` gave to the rank that another launcher was started in.
class WithoutOuterRun final {
 public:
  explicit WithoutOuterRun(GetEnv get_env) : get_env_(get_env) {
    const Reader reader(get_env);
    const std::optional<Sourced<std::string>> mark = reader.Text(kFerryRun);
    if (!mark || !IsRankOfFerryRun(get_env)) return;
    is_outer_ = !absl::EndsWith(mark->value, absl::StrCat(" ", LaunchesAround(reader)));
    // torchrun sets them anew.
    keeps_rank_ = reader.Has("TORCHELASTIC_RUN_ID");
  }

  std::optional<std::string> operator()(const char* name) const {
    const absl::string_view text = name;
    const bool is_rank = text == "RANK" || text == "WORLD_SIZE" || text == "LOCAL_RANK" ||
                         text == "LOCAL_WORLD_SIZE" || text == "MASTER_ADDR";
    if (is_outer_ && (absl::StartsWith(text, "FERRY_") || (is_rank && !keeps_rank_))) {
      return std::nullopt;
    }
    return get_env_(name);
  }

 private:
  GetEnv get_env_;
  bool is_outer_ = false;
  bool keeps_rank_ = false;
};

std::string DescribeSources(const Identity& identity) {
  std::vector<std::string> sources;
  if (identity.node_id) sources.push_back(identity.node_id->source);
  if (identity.num_nodes) sources.push_back(identity.num_nodes->source);
  return absl::StrJoin(sources, ", ");
}

}  // namespace

std::optional<std::string> ProcessEnv(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return value;
}

absl::StatusOr<std::string> FirstSlurmHost(absl::string_view nodelist) {
  std::string host;
  size_t at = 0;
  // People write such lists by hand, with blanks around what they name.
  nodelist = absl::StripAsciiWhitespace(nodelist);
  // Several brackets may follow each other: "rack[1-2]node[01-04]".
  while (at < nodelist.size() && nodelist[at] != ',' && !absl::ascii_isspace(nodelist[at])) {
    if (nodelist[at] == ']') return absl::InvalidArgumentError("a ] without its [");
    if (nodelist[at] != '[') {
      host += nodelist[at++];
      continue;
    }
    const size_t close = nodelist.find(']', at);
    if (close == absl::string_view::npos) return absl::InvalidArgumentError("a [ without its ]");
    const absl::string_view ranges = nodelist.substr(at + 1, close - at - 1);
    const absl::string_view first =
        absl::StripAsciiWhitespace(ranges.substr(0, ranges.find_first_of("-,")));
    if (first.empty() || first.find_first_not_of("0123456789") != absl::string_view::npos) {
      return absl::InvalidArgumentError("brackets without a number");
    }
    absl::StrAppend(&host, first);
    at = close + 1;
  }
  if (host.empty()) return absl::InvalidArgumentError("no host");
  return host;
}

std::string FerryRunMark(GetEnv get_env, absl::string_view coordinator, int node_id) {
  return absl::StrCat(coordinator, " ", node_id, " ", LaunchesAround(Reader(get_env)));
}

bool IsRankOfFerryRun(GetEnv get_env) {
  const Reader reader(get_env);
  const std::optional<Sourced<std::string>> mark = reader.Text(kFerryRun);
  const std::optional<Sourced<std::string>> coordinator = reader.Text("FERRY_COORDINATOR");
  const std::optional<Sourced<std::string>> node_id = reader.Text("FERRY_NODE_ID");
  return mark && coordinator && node_id &&
         absl::StartsWith(mark->value, absl::StrCat(coordinator->value, " ", node_id->value, " "));
}

absl::StatusOr<Identity> ReadCoordinatorVariables(GetEnv get_env) {
  const Reader reader(get_env);
  Identity identity;
  FERRY_ASSIGN_OR_RETURN(identity.num_nodes, reader.Number("FERRY_NUM_NODES", 1, kMaxNodes));
  identity.coordinator = reader.Text("FERRY_COORDINATOR");
  if (identity.coordinator) FERRY_RETURN_IF_ERROR(CheckAddress(*identity.coordinator));
  return identity;
}

absl::StatusOr<Identity> ReadIdentity(GetEnv given_env) {
  const WithoutOuterRun get_env(given_env);
  const Reader reader(get_env);
  FERRY_ASSIGN_OR_RETURN(Identity identity, ReadCoordinatorVariables(get_env));
  FERRY_ASSIGN_OR_RETURN(identity.node_id, reader.Number("FERRY_NODE_ID", 0, kMaxNodes - 1));
  FERRY_ASSIGN_OR_RETURN(identity.local_rank, reader.Number("FERRY_LOCAL_RANK", 0, kMaxNodes - 1));

  if (!identity.node_id) {
    FERRY_ASSIGN_OR_RETURN(const std::optional<Claim> claim, NearestClaim(reader));
    if (claim) {
      identity.node_id = claim->rank;
      if (identity.num_nodes && claim->size && identity.num_nodes->value != claim->size->value) {
        return absl::InvalidArgumentError(
            absl::StrCat("environment variables ", Shown(*identity.num_nodes), " and ",
                         Shown(*claim->size), " disagree about the count of processes"));
      }
      if (!identity.num_nodes) identity.num_nodes = claim->size;
      if (!identity.local_rank && claim->variables->local_rank != nullptr) {
        FERRY_ASSIGN_OR_RETURN(identity.local_rank,
                               reader.Number(claim->variables->local_rank, 0, kMaxNodes - 1));
      }
      FERRY_ASSIGN_OR_RETURN(identity.first_host, FirstHost(reader, *claim));
      identity.port_hint = PortHint(reader, claim->kind());
    }
  }
  FERRY_RETURN_IF_ERROR(CheckBelow(identity.node_id, identity.num_nodes));
  FERRY_RETURN_IF_ERROR(CheckBelow(identity.local_rank, identity.num_nodes));
  return identity;
}

std::optional<Identity> ReadRefusedIdentity(GetEnv given_env) {
  const WithoutOuterRun get_env(given_env);
  const Reader reader(get_env);
  Identity identity;
  if (const auto own = ReadCoordinatorVariables(get_env); own.ok()) identity = *own;
  for (const LauncherVariables& variables : Launchers()) {
    const absl::StatusOr<std::optional<Claim>> claim = ReadClaim(reader, variables);
    if (!claim.ok() || !*claim) continue;
    // Processes whose variables agree look for the coordinator where the first claim says.
    if (!identity.first_host) {
      if (auto host = FirstHost(reader, **claim); host.ok()) identity.first_host = *std::move(host);
      identity.port_hint = PortHint(reader, variables.kind);
    }
    if ((*claim)->is_by_hand) continue;
    // A launcher gives each process a number of its own.
    identity.node_id = (*claim)->rank;
    if ((*claim)->size) identity.num_nodes = (*claim)->size;
    return identity;
  }
  return std::nullopt;
}

std::string Describe(const Identity& identity) {
  if (!identity.node_id && !identity.num_nodes && !identity.coordinator) {
    return "the environment names no node id, no count of nodes and no coordinator";
  }
  std::string text = "node ";
  absl::StrAppend(&text, identity.node_id ? absl::StrCat(identity.node_id->value) : "?", " of ",
                  identity.num_nodes ? absl::StrCat(identity.num_nodes->value) : "?");
  const std::string sources = DescribeSources(identity);
  if (!sources.empty()) absl::StrAppend(&text, " (", sources, ")");
  if (identity.coordinator) {
    absl::StrAppend(&text, ", coordinator ", identity.coordinator->value, " (",
                    identity.coordinator->source, ")");
  } else if (identity.first_host) {
    absl::StrAppend(&text, ", first host ", identity.first_host->value, " (",
                    identity.first_host->source, ")");
  }
  return text;
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// First hosts and port hints, launcher by launcher.
#include "node/first_host.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/status_macros.h"

namespace ferry {
namespace identity_internal {
namespace {

// The steps of another launcher inside the allocation are those of its daemons, which need not run
// on all of its machines, and its processes on the first machine belong to no step.
absl::StatusOr<std::optional<Sourced<std::string>>> SlurmHost(const EnvReader& reader,
                                                              bool is_step) {
  constexpr char kStep[] = "SLURM_STEP_NODELIST";
  constexpr char kJob[] = "SLURM_JOB_NODELIST";
  for (const char* name : {is_step ? kStep : kJob, is_step ? kJob : kStep}) {
    const std::optional<Sourced<std::string>> nodelist = reader.Text(name);
    if (!nodelist) continue;
    absl::StatusOr<std::string> host = FirstSlurmHost(nodelist->value);
    if (!host.ok()) return InvalidVariableError(name, nodelist->value, "a Slurm node list");
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
std::optional<Sourced<std::string>> MpirunHost(const EnvReader& reader) {
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
std::optional<Sourced<std::string>> PodHost(const EnvReader& reader, int index) {
  const std::optional<Sourced<std::string>> name = reader.Host("HOSTNAME");
  if (!name) return std::nullopt;
  const size_t dot = std::min(name->value.find('.'), name->value.size());
  absl::string_view job = absl::string_view(name->value).substr(0, dot);
  if (!absl::ConsumeSuffix(&job, absl::StrCat("-", index)) || job.empty()) return std::nullopt;
  return Sourced<std::string>{absl::StrCat(job, "-0", name->value.substr(dot)), name->source};
}

bool AllOnOneMachine(const EnvReader& reader, const LauncherIdentity& identity) {
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                           "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    const std::optional<Sourced<std::string>> text = reader.Text(name);
    if (text && identity.size && text->value == absl::StrCat(identity.size->value)) return true;
  }
  return false;
}

Sourced<int> HashedPort(const Sourced<std::string>& launch) {
  return {static_cast<int>(61440 + HashText(launch.value) % 4096), launch.source};
}

}  // namespace

absl::StatusOr<std::optional<Sourced<std::string>>> FirstHost(const EnvReader& reader,
                                                              const LauncherIdentity& identity) {
  switch (identity.kind()) {
    case LauncherKind::kTorch:
      return reader.Host("MASTER_ADDR");
    case LauncherKind::kTfConfig:
      return identity.first_host;
    case LauncherKind::kKubernetes:
      return PodHost(reader, identity.rank.value);
    case LauncherKind::kSlurm:
      return SlurmHost(reader, /*is_step=*/true);
    case LauncherKind::kOpenMpi:
    case LauncherKind::kMvapich:
    case LauncherKind::kPmi:
    case LauncherKind::kPmix:
      break;
  }
  if (AllOnOneMachine(reader, identity))
    return Sourced<std::string>{"localhost", identity.size->source};
  FERRY_ASSIGN_OR_RETURN(std::optional<Sourced<std::string>> host,
                         SlurmHost(reader, /*is_step=*/false));
  if (!host && identity.kind() == LauncherKind::kOpenMpi) host = MpirunHost(reader);
  return host;
}

uint64_t HashText(absl::string_view text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

// All processes of a Slurm step, or of one mpirun, derive one port, above the ephemeral range. JAX
// derives its own from the Slurm job id as 61440 + id % 4096 (jax/_src/clusters/slurm_cluster.py):
// stay off that one, because a JAX program may run in the same job.
std::optional<Sourced<int>> PortHint(const EnvReader& reader, LauncherKind kind) {
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

}  // namespace identity_internal

absl::StatusOr<std::string> FirstSlurmHost(absl::string_view nodelist) {
  std::string host;
  size_t at = 0;
  // Lists written by hand may have blanks around the names.
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

}  // namespace ferry

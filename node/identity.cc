// SPDX-License-Identifier: Apache-2.0
// Identity: FERRY_ variables, the nearest launcher, and ranks of `ferry run`.
#include "node/identity.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "node/first_host.h"
#include "node/launcher_identity.h"

namespace ferry {
namespace {

using identity_internal::CheckBelow;
using identity_internal::EnvReader;
using identity_internal::FirstHost;
using identity_internal::HashText;
using identity_internal::InvalidVariableError;
using identity_internal::IsOfTorchrun;
using identity_internal::kMaxNodes;
using identity_internal::LauncherIdentity;
using identity_internal::LauncherKind;
using identity_internal::Launchers;
using identity_internal::LauncherVariables;
using identity_internal::NameAndValue;
using identity_internal::NearestLauncherIdentity;
using identity_internal::PortHint;
using identity_internal::ReadLauncherIdentity;
using identity_internal::ReadRefusedLauncherIdentity;

// These differ if another launcher was started; RANK is set by `ferry run` itself.
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

absl::Status CheckAddress(const Sourced<std::string>& address) {
  const size_t colon = address.value.rfind(':');
  const absl::string_view host = absl::string_view(address.value).substr(0, colon);
  int port = 0;
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (colon == std::string::npos || host.empty() ||
      (!bracketed && host.find_first_of("[]: \t/") != absl::string_view::npos) ||
      !absl::SimpleAtoi(address.value.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return InvalidVariableError(address.source, address.value, "HOST:PORT");
  }
  return absl::OkStatus();
}

// A hash that identifies the set of launchers around a process.
std::string LaunchesAround(const EnvReader& reader) {
  std::string all;
  for (const char* name : kLaunchVariables) {
    if (const auto text = reader.Text(name)) absl::StrAppend(&all, name, "=", text->value, "\n");
  }
  return absl::StrCat(absl::Hex(HashText(all)));
}

// The environment without the variables that `ferry run` gave to the rank in which another launcher
// was started.
class WithoutOuterRun final {
 public:
  explicit WithoutOuterRun(GetEnv get_env) : get_env_(get_env) {
    const EnvReader reader(get_env);
    const std::optional<Sourced<std::string>> mark = reader.Text(kFerryRun);
    if (!mark || !IsRankOfFerryRun(get_env)) return;
    is_outer_ = !absl::EndsWith(mark->value, absl::StrCat(" ", LaunchesAround(reader)));
    // torchrun overwrites them.
    keeps_rank_ = IsOfTorchrun(reader);
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

std::string FerryRunMark(GetEnv get_env, absl::string_view coordinator, int node_id) {
  return absl::StrCat(coordinator, " ", node_id, " ", LaunchesAround(EnvReader(get_env)));
}

bool IsRankOfFerryRun(GetEnv get_env) {
  const EnvReader reader(get_env);
  const std::optional<Sourced<std::string>> mark = reader.Text(kFerryRun);
  const std::optional<Sourced<std::string>> coordinator = reader.Text("FERRY_COORDINATOR");
  const std::optional<Sourced<std::string>> node_id = reader.Text("FERRY_NODE_ID");
  return mark && coordinator && node_id &&
         absl::StartsWith(mark->value, absl::StrCat(coordinator->value, " ", node_id->value, " "));
}

absl::StatusOr<Identity> ReadCoordinatorVariables(GetEnv get_env) {
  const EnvReader reader(get_env);
  Identity identity;
  FERRY_ASSIGN_OR_RETURN(identity.num_nodes, reader.Number("FERRY_NUM_NODES", 1, kMaxNodes));
  identity.coordinator = reader.Text("FERRY_COORDINATOR");
  if (identity.coordinator) FERRY_RETURN_IF_ERROR(CheckAddress(*identity.coordinator));
  return identity;
}

absl::StatusOr<Identity> ReadIdentity(GetEnv given_env) {
  const WithoutOuterRun get_env(given_env);
  const EnvReader reader(get_env);
  FERRY_ASSIGN_OR_RETURN(Identity identity, ReadCoordinatorVariables(get_env));
  FERRY_ASSIGN_OR_RETURN(identity.node_id, reader.Number("FERRY_NODE_ID", 0, kMaxNodes - 1));
  FERRY_ASSIGN_OR_RETURN(identity.local_rank, reader.Number("FERRY_LOCAL_RANK", 0, kMaxNodes - 1));

  if (!identity.node_id) {
    FERRY_ASSIGN_OR_RETURN(const std::optional<LauncherIdentity> launcher,
                           NearestLauncherIdentity(reader));
    if (launcher) {
      identity.node_id = launcher->rank;
      if (identity.num_nodes && launcher->size &&
          identity.num_nodes->value != launcher->size->value) {
        return absl::InvalidArgumentError(
            absl::StrCat("environment variables ", NameAndValue(*identity.num_nodes), " and ",
                         NameAndValue(*launcher->size), " disagree about the count of processes"));
      }
      if (!identity.num_nodes) identity.num_nodes = launcher->size;
      if (!identity.local_rank && launcher->variables->local_rank != nullptr) {
        FERRY_ASSIGN_OR_RETURN(identity.local_rank,
                               reader.Number(launcher->variables->local_rank, 0, kMaxNodes - 1));
      }
      FERRY_ASSIGN_OR_RETURN(identity.first_host, FirstHost(reader, *launcher));
      identity.port_hint = PortHint(reader, launcher->kind());
    }
  }
  FERRY_RETURN_IF_ERROR(CheckBelow(identity.node_id, identity.num_nodes));
  FERRY_RETURN_IF_ERROR(CheckBelow(identity.local_rank, identity.num_nodes));
  return identity;
}

std::optional<RefusedIdentity> ReadRefusedIdentity(GetEnv given_env) {
  const WithoutOuterRun get_env(given_env);
  const EnvReader reader(get_env);
  RefusedIdentity identity;
  if (const auto own = ReadCoordinatorVariables(get_env); own.ok()) {
    identity = RefusedIdentity{*own};
  } else if (auto coordinator = reader.Text("FERRY_COORDINATOR");
             coordinator && CheckAddress(*coordinator).ok()) {
    // FERRY_NUM_NODES is the invalid one.
    identity.coordinator = *std::move(coordinator);
  }
  std::vector<LauncherIdentity> by_hand;
  bool is_garbled = false;
  bool is_sure = false;
  for (const LauncherVariables& variables : Launchers()) {
    // Same comparison as in NearestLauncherIdentity.
    if (is_sure && variables.kind != LauncherKind::kTfConfig) continue;
    const absl::StatusOr<std::optional<LauncherIdentity>> read =
        ReadLauncherIdentity(reader, variables);
    std::optional<LauncherIdentity> launcher =
        read.ok() ? *read : ReadRefusedLauncherIdentity(reader, variables);
    if (!launcher) continue;
    if (launcher->rank.value <= 0) identity.may_be_first = true;
    if (is_sure) continue;
    is_garbled = is_garbled || !read.ok();
    // Processes whose variables agree look for the coordinator at the first launcher's host.
    if (!identity.first_host) {
      if (auto host = FirstHost(reader, *launcher); host.ok())
        identity.first_host = *std::move(host);
      identity.port_hint = PortHint(reader, variables.kind);
    }
    if (!read.ok() || launcher->is_by_hand) {
      by_hand.push_back(*std::move(launcher));
      continue;
    }
    // A launcher gives each process its own number.
    identity.node_id = launcher->rank;
    if (launcher->size) identity.num_nodes = launcher->size;
    is_sure = true;
  }
  const auto own = reader.Number("FERRY_NODE_ID", 0, kMaxNodes - 1);
  // Overrides the launchers, if set.
  if (!own.ok()) {
    identity.may_be_first = true;
  } else if (*own) {
    identity.may_be_first = (*own)->value == 0;
  }
  if (is_sure) return identity;
  if (by_hand.empty()) {
    if (!reader.Has("FERRY_NODE_ID")) return std::nullopt;
  } else if (by_hand.size() == 1 && !is_garbled) {
    identity.node_id = by_hand.front().rank;
  }
  for (const LauncherIdentity& launcher : by_hand) {
    if (!identity.num_nodes) identity.num_nodes = launcher.size;
  }
  if (own.ok() && *own) identity.node_id = *own;
  return identity;
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

// SPDX-License-Identifier: Apache-2.0
// The environment of a launched process, as a pure function of the options.
#include "launch/launch_environment.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "net/resolver.h"
#include "node/identity.h"

namespace ferry {
namespace {

constexpr int kMaxLocalCount = 4096;
constexpr int kMaxMachineCount = 1 << 16;
constexpr int kMaxGpusPerProcess = 64;

absl::StatusOr<HostPort> ParseHostPort(absl::string_view option, absl::string_view text) {
  const size_t colon = text.rfind(':');
  HostPort address;
  if (colon != absl::string_view::npos) address.host = std::string(text.substr(0, colon));
  if (address.host.empty() || !absl::SimpleAtoi(text.substr(colon + 1), &address.port) ||
      address.port < 1 || address.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(option, " ", Quoted(text), " is not HOST:PORT"));
  }
  // An IPv6 address needs brackets only if a port follows.
  absl::string_view host = address.host;
  if (absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]")) {
    address.host = std::string(host);
  }
  return address;
}

absl::Status CheckRange(absl::string_view name, int value, int low, int high) {
  if (value >= low && value <= high) return absl::OkStatus();
  if (low == high) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", value, "; here it can only be ", low));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ", not a number from ", low, " to ", high));
}

std::optional<absl::string_view> Find(absl::Span<const std::string> environment,
                                      absl::string_view name) {
  for (absl::string_view entry : environment) {
    if (absl::ConsumePrefix(&entry, name) && absl::ConsumePrefix(&entry, "=")) return entry;
  }
  return std::nullopt;
}

// Set by torchrun for its own processes. With TORCHELASTIC_USE_AGENT_STORE PyTorch's rank 0 would
// not even listen.
// Source: torch/distributed/elastic/agent/server/local_elastic_agent.
bool IsOfOuterTorchrun(absl::string_view entry) {
  constexpr absl::string_view kNames[] = {
      "GROUP_RANK=", "GROUP_WORLD_SIZE=", "ROLE_RANK=", "ROLE_NAME=", "ROLE_WORLD_SIZE="};
  return absl::StartsWith(entry, "TORCHELASTIC_") ||
         std::any_of(std::begin(kNames), std::end(kNames),
                     [entry](absl::string_view name) { return absl::StartsWith(entry, name); });
}

absl::StatusOr<std::string> VisibleGpus(const LaunchOptions& options, int local_rank,
                                        absl::Span<const std::string> inherited) {
  const int first = local_rank * options.gpus_per_process;
  const int needed = options.local_count * options.gpus_per_process;
  const std::optional<absl::string_view> list = Find(inherited, "CUDA_VISIBLE_DEVICES");
  std::vector<std::string> gpus;
  // Set but empty: no GPU is visible.
  if (list.has_value()) {
    gpus = absl::StrSplit(*list, ',', absl::SkipWhitespace());
    if (static_cast<int>(gpus.size()) < needed) {
      return absl::InvalidArgumentError(
          absl::StrCat("CUDA_VISIBLE_DEVICES=", *list, " has ", gpus.size(),
                       gpus.size() == 1 ? " device; " : " devices; ", options.local_count,
                       options.local_count == 1 ? " process with " : " processes with ",
                       options.gpus_per_process, " each need ", needed));
    }
  } else {
    for (int i = 0; i < needed; ++i) gpus.push_back(absl::StrCat(i));
  }
  return absl::StrJoin(gpus.begin() + first, gpus.begin() + first + options.gpus_per_process, ",");
}

}  // namespace

int GlobalRank(const LaunchOptions& options, int local_rank) {
  return options.machine_index * options.local_count + local_rank;
}

absl::Status CheckLaunchCounts(const LaunchOptions& options) {
  FERRY_RETURN_IF_ERROR(CheckRange("--nproc", options.local_count, 1, kMaxLocalCount));
  FERRY_RETURN_IF_ERROR(CheckRange("--nodes", options.machine_count, 1, kMaxMachineCount));
  FERRY_RETURN_IF_ERROR(
      CheckRange("--node-id", options.machine_index, 0, options.machine_count - 1));
  return CheckRange("--gpus-per-proc", options.gpus_per_process, 0, kMaxGpusPerProcess);
}

absl::Status CheckLaunchOptions(const LaunchOptions& options) {
  if (options.command.empty() || options.command[0].empty()) {
    return absl::InvalidArgumentError("there is no command to run");
  }
  FERRY_RETURN_IF_ERROR(CheckLaunchCounts(options));
  FERRY_RETURN_IF_ERROR(ParseHostPort("coordinator", options.coordinator).status());
  if (!options.master.empty()) {
    FERRY_RETURN_IF_ERROR(ParseHostPort("master", options.master).status());
  }
  if (options.stdin_rank) {
    FERRY_RETURN_IF_ERROR(CheckRange("--stdin", *options.stdin_rank, 0,
                                     options.machine_count * options.local_count - 1));
  }
  if (options.grace < absl::ZeroDuration() || options.grace == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError("the grace period must be finite and not negative");
  }
  if (options.max_line_bytes == 0) {
    return absl::InvalidArgumentError("a line of output needs room for a byte");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ComposeEnvironment(
    const LaunchOptions& options, int local_rank, absl::Span<const std::string> inherited) {
  const std::string rank = absl::StrCat(GlobalRank(options, local_rank));
  const std::string world_size = absl::StrCat(options.machine_count * options.local_count);
  const std::string local_size = absl::StrCat(options.local_count);
  const std::string local = absl::StrCat(local_rank);

  std::vector<std::pair<std::string, std::string>> ours = {
      {"FERRY_COORDINATOR", options.coordinator},
      {"FERRY_NODE_ID", rank},
      {"FERRY_NUM_NODES", world_size},
      {"FERRY_LOCAL_RANK", local},
      {"FERRY_LOCAL_SIZE", local_size},
      {"RANK", rank},
      {"WORLD_SIZE", world_size},
      {"LOCAL_RANK", local},
      {"LOCAL_WORLD_SIZE", local_size},
      {"JAX_COORDINATOR_ADDRESS", options.coordinator},
      // jax.distributed.initialize() always starts its own coordinator in process 0. It binds an
      // unused free port here, instead of failing to bind ours.
      {"JAX_COORDINATOR_BIND_ADDRESS", "127.0.0.1:0"},
      {"JAX_NUM_PROCESSES", world_size},
      {"JAX_PROCESS_ID", rank},
  };
  if (!options.master.empty()) {
    FERRY_ASSIGN_OR_RETURN(const HostPort master, ParseHostPort("master", options.master));
    ours.emplace_back("MASTER_ADDR", master.host);
    ours.emplace_back("MASTER_PORT", absl::StrCat(master.port));
  }
  if (!options.store_run_id.empty()) {
    // As torchrun sets them for its own store: init_process_group() of each version then connects
    // as a client in all ranks. Versions before 2.4 make the count a part of each key.
    ours.emplace_back("TORCHELASTIC_USE_AGENT_STORE", "True");
    ours.emplace_back("TORCHELASTIC_RESTART_COUNT", "0");
    ours.emplace_back("TORCHELASTIC_RUN_ID", options.store_run_id);
    ours.emplace_back("GROUP_RANK", absl::StrCat(options.machine_index));
  }
  if (options.gpus_per_process > 0) {
    FERRY_ASSIGN_OR_RETURN(std::string gpus, VisibleGpus(options, local_rank, inherited));
    ours.emplace_back("CUDA_VISIBLE_DEVICES", std::move(gpus));
  }

  if (options.heartbeat_timeout.has_value()) {
    // Whole seconds without a fraction, for programs that parse an integer.
    const absl::Duration timeout = *options.heartbeat_timeout;
    const int64_t seconds = absl::ToInt64Seconds(timeout);
    ours.emplace_back(kHeartbeatTimeoutVariable, absl::Seconds(seconds) == timeout
                                                     ? absl::StrCat(seconds, "s")
                                                     : absl::FormatDuration(timeout));
  }

  std::vector<std::string> environment;
  for (const std::string& entry : inherited) {
    bool replaced = IsOfOuterTorchrun(entry) || absl::StartsWith(entry, "FERRY_RUN=");
    for (const auto& [name, value] : ours) {
      replaced = replaced || absl::StartsWith(entry, absl::StrCat(name, "="));
    }
    if (!replaced) environment.push_back(entry);
  }
  for (const auto& [name, value] : ours) environment.push_back(absl::StrCat(name, "=", value));
  const std::string mark = FerryRunMark(
      [&environment](const char* name) -> std::optional<std::string> {
        const std::optional<absl::string_view> value = Find(environment, name);
        if (!value) return std::nullopt;
        return std::string(*value);
      },
      options.coordinator, GlobalRank(options, local_rank));
  environment.push_back(absl::StrCat("FERRY_RUN=", mark));
  return environment;
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// From flags to a plan.
#include "cli/bench_plan_flags.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "cli/exchange_flags.h"
#include "cli/verb.h"

namespace ferry::cli {

void AddBenchPlanFlags(CLI::App& verb, BenchPlanFlags& flags, BenchReads reads) {
  const bool can_read = reads == BenchReads::kToo;
  std::vector<std::string> modes = {"handoff", "into", "both"};
  if (can_read) {
    modes.insert(modes.end(), {"read", "all"});
    flags.mode = "all";
  }
  verb.add_option("--sizes", flags.sizes, "FIRST:LAST:xFACTOR, or a list such as 8,4K,1M")
      ->type_name("SIZES")
      ->capture_default_str();
  std::vector<std::string> transports = {"shm", "tcp", "auto"};
  if (can_read) transports.insert(transports.begin() + 2, {"cuda_ipc", "nccl"});
  verb.add_option("--transport", flags.transport, "which one; auto: the cheapest of each size")
      ->type_name(absl::StrJoin(transports, "|"))
      ->check(CLI::IsMember(transports).description(""))
      ->capture_default_str();
  verb.add_option("--mode", flags.mode,
                  can_read ? "handoff: the receiver takes it as it comes; read: and reads every "
                             "byte; into: into a buffer of its own"
                           : "handoff: the receiver takes it as it comes; into: into a buffer of "
                             "its own")
      ->type_name(can_read ? "handoff|read|into|both|all" : "handoff|into|both")
      ->check(CLI::IsMember(modes).description(""))
      ->capture_default_str();
  verb.add_flag("--poll", flags.plan.is_polling, "never sleep while waiting");
  verb.add_option("--iters", flags.plan.iterations, "of each size; else fewer of large ones")
      ->type_name("N")
      ->check(Within(1, 1000000));
  AddExchangeFlags(verb, flags.exchange);
}

absl::Status CompletePlan(BenchPlanFlags& flags, size_t streams, size_t depth) {
  BenchPlan& plan = flags.plan;
  FERRY_ASSIGN_OR_RETURN(plan.sizes, ParseSizesFlag(flags.sizes));
  const bool uses_gpus = plan.uses_gpus();
  if (uses_gpus && flags.mode == "read") {
    return absl::InvalidArgumentError(
        "--mode=read is of hosts: what a GPU has been handed, its kernels read; leave --devices "
        "out, "
        "or say --mode=both");
  }
  const bool is_all = flags.mode == "all";
  const bool is_both = is_all || flags.mode == "both";
  if (is_both || flags.mode == "handoff") plan.modes.push_back(BenchMode::kHandoff);
  if ((is_all && !uses_gpus) || flags.mode == "read") plan.modes.push_back(BenchMode::kRead);
  if (is_both || flags.mode == "into") plan.modes.push_back(BenchMode::kInto);
  if (flags.transport != "auto") flags.exchange.require_transport = flags.transport;
  flags.transport =
      flags.exchange.require_transport.empty() ? "auto" : flags.exchange.require_transport;
  plan.has_tcp_floor = flags.transport == "tcp" && !uses_gpus;
  plan.tcp_streams = flags.exchange.transports.tcp.connections;
  if (plan.is_polling) flags.exchange.spin = absl::InfiniteDuration();
  const size_t largest = *std::max_element(plan.sizes.begin(), plan.sizes.end());
  const size_t batch = std::max(largest, std::min(kMostBenchBytesAtOnce, largest * depth));
  flags.exchange.arena.budget_bytes =
      std::max(flags.exchange.arena.budget_bytes, 4 * streams * batch);
  if (uses_gpus) {
    size_t& of_gpu = flags.exchange.gpus.arena.budget_bytes;
    of_gpu = std::max(of_gpu, 4 * streams * batch);
  }
  size_t& waiting = flags.exchange.rendezvous.limits.max_waiting;
  waiting = std::max(waiting, 2 * streams * depth);
  return absl::OkStatus();
}

}  // namespace ferry::cli

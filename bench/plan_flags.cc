// SPDX-License-Identifier: Apache-2.0
// Converts flags to a plan.
#include "bench/plan_flags.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "bench/device.h"
#include "bench/paths.h"
#include "cli/transfer_flags.h"
#include "cli/verb.h"
#include "tensor/data_type.h"

namespace ferry::cli {

namespace {

// Checks the type, and that all sizes are multiples of its element size.
absl::Status FindType(BenchPlan& plan) {
  const std::optional<DataType> type = ParseDataType(plan.dtype);
  if (!type || !IsFixedSize(*type)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dtype: ", Quoted(plan.dtype),
                     " is no type of elements of one size, such as uint8, float or bfloat16"));
  }
  plan.element_bytes = ElementBytes(*type);
  for (const size_t bytes : plan.sizes) {
    if (bytes % plan.element_bytes == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("--sizes: ", bytes, " B are no whole number of ",
                                                   plan.dtype, " elements of ", plan.element_bytes,
                                                   " B each (--dtype)"));
  }
  return absl::OkStatus();
}

}  // namespace

void AddBenchPlanFlags(CLI::App& verb, BenchPlanFlags& flags) {
  verb.add_option("--sizes", flags.sizes, "FIRST:LAST:xFACTOR, or a list such as 8,4K,1M")
      ->type_name("SIZES")
      ->capture_default_str();
  std::vector<std::string> transports = TransportNames(AllTransports(flags.transfer));
  transports.insert(transports.end(), {"auto", kAllTransports});
  flags.names_transport = [&verb] { return verb.count("--transport") > 0; };
  verb.add_option("--transport", flags.transport,
                  "transport to measure; auto: the cheapest for each size; all: auto and each "
                  "transport that all nodes have")
      ->type_name(absl::StrJoin(transports, "|"))
      ->check(CLI::IsMember(transports).description(""))
      ->capture_default_str();
  const std::vector<std::string> modes = {"handoff", "read", "into", "both", "all"};
  verb.add_option("--mode", flags.mode,
                  "handoff: receive only; read: also read every byte; into: receive into a buffer; "
                  "both: handoff and into")
      ->type_name(absl::StrJoin(modes, "|"))
      ->check(CLI::IsMember(modes).description(""))
      ->capture_default_str();
  verb.add_option("--devices", flags.devices,
                  "where each process sends from and receives into, one after the other, and again "
                  "from the first: host:0,gpu:0")
      ->type_name("host:0|gpu:N,...")
      ->capture_default_str();
  verb.add_option("--dtype", flags.plan.dtype,
                  "element type of the tensors: uint8, float, bfloat16")
      ->type_name("TYPE")
      ->capture_default_str();
  verb.add_flag("--poll", flags.plan.is_polling, "never sleep while waiting");
  AddNumber(
      verb, "--iters", flags.plan.iterations,
      "of each row, after its warm-up; of several at a time whole rounds; else fewer of large "
      "ones",
      1, 1000000)
      ->default_str("");
  AddTransferFlags(verb, flags.transfer);
}

absl::Status CompletePlan(BenchPlanFlags& flags, size_t streams, size_t depth) {
  BenchPlan& plan = flags.plan;
  FERRY_ASSIGN_OR_RETURN(plan.sizes, ParseSizesFlag(flags.sizes));
  FERRY_RETURN_IF_ERROR(FindType(plan));
  FERRY_ASSIGN_OR_RETURN(plan.devices, ParseDevicesFlag(flags.devices, flags.most_devices));
  const bool uses_gpus = plan.uses_gpus();
  if (uses_gpus && flags.mode == "read") {
    return absl::InvalidArgumentError(
        "--mode=read is of hosts: what a GPU has been handed, its kernels read; leave --devices "
        "out, or say --mode=both");
  }
  // Exported GPU memory delays the end of a step until all of it is released.
  const bool keeps_views = plan.pattern == "steps" && plan.DeviceOf(0) != kHostDevice &&
                           plan.DeviceOf(0) == plan.DeviceOf(1);
  if (keeps_views && flags.mode == "handoff") {
    return absl::InvalidArgumentError(
        "--mode=handoff: a step between processes of one GPU does not end before what was handed "
        "over has been given back, and every byte of it is compared after that; say --mode=into, "
        "or other --devices");
  }
  const bool is_all = flags.mode == "all";
  const bool is_both = is_all || flags.mode == "both";
  if (!keeps_views && (is_both || flags.mode == "handoff")) {
    plan.modes.push_back(BenchMode::kHandoff);
  }
  if ((is_all && !uses_gpus) || flags.mode == "read") plan.modes.push_back(BenchMode::kRead);
  if (is_both || flags.mode == "into") plan.modes.push_back(BenchMode::kInto);
  const bool is_open = flags.transport == "auto" || flags.transport == kAllTransports;
  if (!is_open) flags.transfer.require_transport = flags.transport;
  if (!flags.transfer.require_transport.empty()) {
    flags.transport = flags.transfer.require_transport;
  }
  plan.has_tcp_floor = CapabilitiesOfPath(flags.transport).moves_over_tcp && !uses_gpus;
  plan.tcp_streams = flags.transfer.transports.tcp.connections;
  plan.is_sleeping = !plan.is_polling && flags.transfer.spin == absl::ZeroDuration();
  if (plan.is_polling) flags.transfer.spin = absl::InfiniteDuration();
  const size_t largest = *std::max_element(plan.sizes.begin(), plan.sizes.end());
  const size_t batch = std::max(largest, std::min(kMostBenchBytesAtOnce, largest * depth));
  flags.transfer.arena.budget_bytes =
      std::max(flags.transfer.arena.budget_bytes, 4 * streams * batch);
  if (uses_gpus) {
    size_t& of_gpu = flags.transfer.gpus.arena.budget_bytes;
    of_gpu = std::max(of_gpu, 4 * streams * batch);
  }
  size_t& waiting = flags.transfer.rendezvous.limits.max_pending_ops;
  waiting = std::max(waiting, 2 * streams * depth);
  return absl::OkStatus();
}

}  // namespace ferry::cli

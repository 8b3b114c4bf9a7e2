// SPDX-License-Identifier: Apache-2.0
// The flags of the benches that move tensors about what they move, and which way.
#ifndef FERRY_BENCH_PLAN_FLAGS_H_
#define FERRY_BENCH_PLAN_FLAGS_H_

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"

#include "bench/plan.h"
#include "node/transfer_engine.h"

namespace ferry::cli {

struct BenchPlanFlags {
  std::string sizes = "8:1G:x8";
  std::string transport = "auto";
  // Whether --transport says so.
  std::function<bool()> names_transport = [] { return false; };
  std::string mode = "all";
  std::string devices = kHostDevice;
  // As many as there are processes at most.
  int most_devices = 64;
  BenchPlan plan;
  TransferEngineOptions exchange;
};

// --sizes, --transport, --mode, --devices, --dtype, --poll, --iters, and those of AddExchangeFlags.
//   flags: outlives `verb`.
void AddBenchPlanFlags(CLI::App& verb, BenchPlanFlags& flags);

// Fills the plan and the options of the exchange from what was read, with memory for `streams`
// ways of `depth` tensors at a time, each sent, received, and not given back yet.
//   Errors: INVALID_ARGUMENT naming the flag.
absl::Status CompletePlan(BenchPlanFlags& flags, size_t streams, size_t depth);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_PLAN_FLAGS_H_

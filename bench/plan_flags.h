// SPDX-License-Identifier: Apache-2.0
// Flags of the benches that move tensors: what they move, and over which transport.
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
  // True if --transport was given.
  std::function<bool()> names_transport = [] { return false; };
  std::string mode = "all";
  std::string devices = kHostDevice;
  // At most the number of processes.
  int most_devices = 64;
  BenchPlan plan;
  TransferEngineOptions transfer;
};

// Adds --sizes, --transport, --mode, --devices, --dtype, --poll, --iters, and those of
// AddTransferFlags.
//   flags: must outlive `verb`.
void AddBenchPlanFlags(CLI::App& verb, BenchPlanFlags& flags);

// Fills in the plan and the engine's options from the flags, with memory for `depth` tensors in
// flight on each of `streams` streams, each sent, received and not yet released.
//   Errors: INVALID_ARGUMENT naming the flag.
absl::Status CompletePlan(BenchPlanFlags& flags, size_t streams, size_t depth);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_PLAN_FLAGS_H_

// SPDX-License-Identifier: Apache-2.0
// The verbs of `ferry bench`.
#ifndef FERRY_BENCH_VERBS_H_
#define FERRY_BENCH_VERBS_H_

#include <string>
#include <utility>
#include <vector>

#include "cli/verb.h"

namespace ferry::cli {

// Each adds its subcommand to `bench` and returns the function that runs it.
Verb AddSendRecvBench(CLI::App& bench);
// The benches of several processes, by name: bidir, ring and so on.
std::vector<std::pair<std::string, Verb>> AddPatternBenches(CLI::App& bench);
Verb AddColdBench(CLI::App& bench);
Verb AddKvBench(CLI::App& bench);
Verb AddBarrierBench(CLI::App& bench);
Verb AddBootstrapBench(CLI::App& bench);
Verb AddCompareBench(CLI::App& bench);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_VERBS_H_

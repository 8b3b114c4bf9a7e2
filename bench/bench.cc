// SPDX-License-Identifier: Apache-2.0
// ferry bench: dispatches to its verbs.
#include <string>
#include <utility>
#include <vector>

#include "bench/verbs.h"

namespace ferry::cli {

Verb AddBenchVerb(CLI::App& app) {
  CLI::App& bench = *app.add_subcommand("bench", "Measure this machine against its limits");
  bench.require_subcommand(1);
  std::vector<std::pair<std::string, Verb>> verbs = {{"sendrecv", AddSendRecvBench(bench)},
                                                     {"cold", AddColdBench(bench)},
                                                     {"kv", AddKvBench(bench)},
                                                     {"barrier", AddBarrierBench(bench)},
                                                     {"bootstrap", AddBootstrapBench(bench)},
                                                     {"compare", AddCompareBench(bench)}};
  for (auto& each : AddPatternBenches(bench)) verbs.push_back(std::move(each));
  return [&bench, verbs = std::move(verbs)]() -> absl::StatusOr<int> {
    for (const auto& [name, run] : verbs) {
      if (bench.got_subcommand(name)) return run();
    }
    return absl::InvalidArgumentError("say which bench; ferry bench --help lists them");
  };
}

}  // namespace ferry::cli

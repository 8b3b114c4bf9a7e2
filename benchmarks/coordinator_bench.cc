// SPDX-License-Identifier: Apache-2.0
// coordinator_bench [--quick] [--benchmark_filter=...]: the coordinator's cost beyond gRPC. Servers
// are processes of their own; measurements alternate with those of their baselines.
//   --deadlock-detection: keeps Abseil's search for lock cycles on, which Debian's build has by
//   default and which costs gRPC and the coordinator alike; see log/2026-11-22.md.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <grpcpp/grpcpp.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"

#include "base/file_limit.h"
#include "benchmarks/coordinator_bench.h"
#include "benchmarks/support/server_process.h"

namespace {

// The environment carries it to the servers.
constexpr char kDetectDeadlocks[] = "FERRY_BENCH_DEADLOCK_DETECTION";

}  // namespace

int main(int argc, char** argv) {
  ferry::bench::Plan plan;
  absl::string_view serve;
  int tasks = 1;
  std::vector<char*> others;
  for (int i = 0; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (argument == "--quick") {
      plan = {.is_quick = true, .rounds = 3, .slice_s = 0.08};
    } else if (absl::ConsumePrefix(&argument, "--serve=")) {
      serve = argument;
    } else if (absl::ConsumePrefix(&argument, "--tasks=")) {
      if (!absl::SimpleAtoi(argument, &tasks)) return 2;
    } else if (argument == "--deadlock-detection") {
      setenv(kDetectDeadlocks, "1", 1);
    } else {
      others.push_back(argv[i]);
    }
  }
  if (getenv(kDetectDeadlocks) == nullptr) {
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  }
  if (!serve.empty()) return ferry::bench::Serve(serve, tasks);

  int count = static_cast<int>(others.size());
  benchmark::Initialize(&count, others.data());
  if (benchmark::ReportUnrecognizedArguments(count, others.data())) return 2;
  std::printf("gRPC %s, %lld open files allowed%s\n", grpc::Version().c_str(),
              static_cast<long long>(ferry::RaiseFileLimit()), plan.is_quick ? ", quick" : "");

  ferry::bench::RegisterKvBenchmarks(plan);
  ferry::bench::RegisterStreamBenchmarks(plan);
  ferry::bench::RegisterBarrierBenchmarks(plan);
  ferry::bench::RegisterMemoryBenchmarks(plan);
  ferry::bench::RegisterBootstrapBenchmarks(plan);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  // Not a test: on a shared machine a gate can be missed for reasons of its neighbours.
  std::printf("\n%s", ferry::bench::GateTable().c_str());
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// kernel_cases_program FILE [SHOWN]: runs the cases of a file and prints those that differ from
// TensorFlow.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "tests/tensorflow/worker/kernel_case.h"

int main(int argc, char** argv) {
  using namespace ferry::worker;  // NOLINT
  if (argc < 2) {
    std::fprintf(stderr, "kernel_cases_program FILE [SHOWN]\n");
    return 2;
  }
  const int shown = argc > 2 ? std::atoi(argv[2]) : 3;
  const auto cases = ReadKernelCases(argv[1]);
  if (!cases.ok()) {
    std::fprintf(stderr, "%s\n", cases.status().ToString().c_str());
    return 2;
  }
  struct Count {
    int all = 0;
    int errors = 0;
    int differ = 0;
  };
  std::map<std::string, Count> counts;
  int differ = 0;
  Variables variables("/job:worker/replica:0/task:0/device:CPU:0");
  for (const KernelCase& one : *cases) {
    Count& count = counts[one.node.op()];
    ++count.all;
    if (!one.status.ok()) ++count.errors;
    const absl::Status status = CheckKernelCase(one, variables);
    if (status.ok()) continue;
    ++differ;
    if (++count.differ > shown) continue;
    std::printf("%s\n  %s\n", ToString(one).c_str(), std::string(status.message()).c_str());
  }
  for (const auto& [op, count] : counts) {
    std::printf("%-22s %5d cases, %4d of them errors, %d differ\n", op.c_str(), count.all,
                count.errors, count.differ);
  }
  std::printf("%zu cases, %d differ\n", cases->size(), differ);
  return differ == 0 && !cases->empty() ? 0 : 1;
}

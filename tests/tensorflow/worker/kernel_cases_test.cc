// SPDX-License-Identifier: Apache-2.0
// Our kernels against answers of TensorFlow 2.15.1 that are kept beside this file; interop tests
// make more of them. kernel_cases.py --count=1200 --seed=3 --max-bytes=900 wrote it.
#include <gtest/gtest.h>

#include "tests/tensorflow/worker/kernel_case.h"

namespace ferry::worker {
namespace {

constexpr char kDevice[] = "/job:worker/replica:0/task:0/device:CPU:0";

TEST(KernelCases, MatchTensorFlow) {
  const auto cases =
      ReadKernelCases(FERRY_SOURCE_DIR "/tests/tensorflow/worker/tensorflow_answers.bin");
  ASSERT_TRUE(cases.ok()) << cases.status();
  EXPECT_GT(cases->size(), 800u);
  Variables variables(kDevice);
  for (const KernelCase& one : *cases) {
    const absl::Status status = CheckKernelCase(one, variables);
    EXPECT_TRUE(status.ok()) << ToString(one) << "\n" << status.message();
  }
}

// A comparison that finds nothing must be one that could have.
TEST(KernelCases, DetectDifferences) {
  const auto cases =
      ReadKernelCases(FERRY_SOURCE_DIR "/tests/tensorflow/worker/tensorflow_answers.bin");
  ASSERT_TRUE(cases.ok()) << cases.status();
  int found = 0;
  Variables variables(kDevice);
  for (KernelCase one : *cases) {
    if (one.node.op() != "AddV2" || !one.status.ok()) continue;
    one.node.set_op("Sub");
    if (!CheckKernelCase(one, variables).ok()) ++found;
  }
  EXPECT_GT(found, 10);
}

// For variables the order matters: without an addition, later reads differ.
TEST(KernelCases, DetectMissingUpdatesOfAVariable) {
  const auto cases =
      ReadKernelCases(FERRY_SOURCE_DIR "/tests/tensorflow/worker/tensorflow_answers.bin");
  ASSERT_TRUE(cases.ok()) << cases.status();
  int found = 0;
  Variables variables(kDevice);
  for (const KernelCase& one : *cases) {
    if (!one.variable.has_value() || one.node.op() == "AssignAddVariableOp") continue;
    if (!CheckKernelCase(one, variables).ok()) ++found;
  }
  EXPECT_GT(found, 3);
}

}  // namespace
}  // namespace ferry::worker

// SPDX-License-Identifier: Apache-2.0
// Our kernels against answers of TensorFlow 2.15.1 that are kept beside this file; interop tests
// make more of them. kernel_cases.py --count=1050 --seed=3 --max-bytes=900 wrote it.
#include <gtest/gtest.h>

#include "tests/worker/kernel_case.h"

namespace ferry::worker {
namespace {

TEST(KernelCases, GiveTensorFlowsAnswers) {
  const auto cases = ReadKernelCases(FERRY_SOURCE_DIR "/tests/worker/tensorflow_answers.bin");
  ASSERT_TRUE(cases.ok()) << cases.status();
  EXPECT_GT(cases->size(), 800u);
  for (const KernelCase& one : *cases) {
    const absl::Status status = CheckKernelCase(one);
    EXPECT_TRUE(status.ok()) << ToString(one) << "\n" << status.message();
  }
}

// A comparison that finds nothing must be one that could have.
TEST(KernelCases, FindWhatDiffers) {
  const auto cases = ReadKernelCases(FERRY_SOURCE_DIR "/tests/worker/tensorflow_answers.bin");
  ASSERT_TRUE(cases.ok()) << cases.status();
  int found = 0;
  for (KernelCase one : *cases) {
    if (one.node.op() != "AddV2" || !one.status.ok()) continue;
    one.node.set_op("Sub");
    if (!CheckKernelCase(one).ok()) ++found;
  }
  EXPECT_GT(found, 10);
}

}  // namespace
}  // namespace ferry::worker

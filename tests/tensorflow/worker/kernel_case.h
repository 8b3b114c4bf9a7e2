// SPDX-License-Identifier: Apache-2.0
// Cases of tests/interop/kernel_cases.py: an op, its inputs, and TensorFlow's result.
#ifndef FERRY_TESTS_TENSORFLOW_WORKER_KERNEL_CASE_H_
#define FERRY_TESTS_TENSORFLOW_WORKER_KERNEL_CASE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/tf_node.pb.h"
#include "tensor/tensor.h"
#include "tensorflow/worker/variables.h"

namespace ferry::worker {

struct KernelCase {
  // Its attributes are complete.
  tensorflow::NodeDef node;
  // A VarHandleOp, whose output is the first input; then come the others.
  std::optional<tensorflow::NodeDef> variable;
  std::vector<Tensor> inputs;
  // TensorFlow's result.
  std::vector<Tensor> outputs;
  absl::Status status;
};

//   Errors: NOT_FOUND without such a file; INVALID_ARGUMENT for one that is not of that form.
absl::StatusOr<std::vector<KernelCase>> ReadKernelCases(const std::string& path);

// Runs our kernel. OK if its result matches TensorFlow's; else FAILED_PRECONDITION with the
// difference. Sums and products of many may differ in their last bits.
//   variables: the variables that the cases of a file have left, in their order.
absl::Status CheckKernelCase(const KernelCase& one, Variables& variables);

// "Slice(float[2,3], int32[2], int32[2])", with the elements of small inputs.
std::string ToString(const KernelCase& one);

}  // namespace ferry::worker

#endif  // FERRY_TESTS_TENSORFLOW_WORKER_KERNEL_CASE_H_

// SPDX-License-Identifier: Apache-2.0
// Helpers that make kernels and run them.
#ifndef FERRY_TESTS_TENSORFLOW_WORKER_KERNEL_FIXTURE_H_
#define FERRY_TESTS_TENSORFLOW_WORKER_KERNEL_FIXTURE_H_

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/statusor.h"

#include "tensorflow/graph/op_registry.h"
#include "tensorflow/graph/signature.h"
#include "tensorflow/worker/kernel.h"
#include "tensorflow/worker/kernels/element_types.h"

namespace ferry::worker {

inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// A status with that code and a message that matches.
MATCHER_P2(Fails, code, message, "") {
  const absl::Status& status = StatusOf(arg);
  *result_listener << status;
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(status.message()), result_listener);
}

template <typename T>
Tensor TensorOf(const std::vector<int64_t>& dims, const std::vector<T>& elements) {
  Tensor tensor = *Tensor::Allocate(kDataTypeOf<T>, *Shape::Create(dims));
  EXPECT_EQ(tensor.bytes(), elements.size() * sizeof(T));
  T* const out = static_cast<T*>(tensor.mutable_data());
  for (size_t i = 0; i < elements.size(); ++i) out[i] = elements[i];
  return tensor;
}

template <typename T>
Tensor ScalarOf(T value) {
  return TensorOf<T>({}, {value});
}

inline Tensor Ints(const std::vector<int32_t>& values) {
  return TensorOf<int32_t>({static_cast<int64_t>(values.size())}, values);
}

inline Tensor Strings(const std::vector<int64_t>& dims, std::vector<std::string> values) {
  return *Tensor::OfStrings(*Shape::Create(dims), std::move(values));
}

template <typename T>
std::vector<T> ElementsOf(const Tensor& tensor) {
  EXPECT_EQ(tensor.dtype(), kDataTypeOf<T>);
  const T* const elements = static_cast<const T*>(tensor.data());
  return {elements, elements + tensor.shape().element_count()};
}

// A node, attribute by attribute.
class NodeWriter {
 public:
  explicit NodeWriter(const std::string& op) {
    def_.set_name("node");
    def_.set_op(op);
  }

  NodeWriter& Type(const std::string& attr, DataType type) {
    (*def_.mutable_attr())[attr].set_type(static_cast<tensorflow::DataType>(type));
    return *this;
  }
  NodeWriter& Int(const std::string& attr, int64_t value) {
    (*def_.mutable_attr())[attr].set_i(value);
    return *this;
  }
  NodeWriter& Bool(const std::string& attr, bool value) {
    (*def_.mutable_attr())[attr].set_b(value);
    return *this;
  }
  NodeWriter& String(const std::string& attr, const std::string& value) {
    (*def_.mutable_attr())[attr].set_s(value);
    return *this;
  }
  tensorflow::AttrValue& operator[](const std::string& attr) {
    return (*def_.mutable_attr())[attr];
  }

  // With the op's defaults.
  tensorflow::NodeDef Complete() const {
    tensorflow::NodeDef node = def_;
    graph::FillDefaults(*graph::FindOp(node.op()), node);
    return node;
  }

 private:
  tensorflow::NodeDef def_;
};

inline absl::StatusOr<std::unique_ptr<Kernel>> MakeCpuKernel(const NodeWriter& node) {
  return MakeKernel(node.Complete(), "CPU");
}

// All outputs of one run.
inline absl::StatusOr<std::vector<Tensor>> ComputeAll(
    const NodeWriter& node, const std::vector<Tensor>& inputs,
    const KernelEnvironment& environment = KernelEnvironment()) {
  const tensorflow::NodeDef def = node.Complete();
  absl::StatusOr<std::unique_ptr<Kernel>> kernel = MakeKernel(def, "CPU");
  if (!kernel.ok()) return kernel.status();
  const auto signature = graph::SignatureOf(*graph::FindOp(def.op()), def);
  KernelContext context(environment, inputs, static_cast<int>(signature->outputs.size()));
  const absl::Status status = (*kernel)->Compute(context);
  if (!status.ok()) return status;
  return std::move(context.outputs());
}

// The only output; or none, for an op without.
inline absl::StatusOr<Tensor> Compute(const NodeWriter& node, const std::vector<Tensor>& inputs,
                                      const KernelEnvironment& environment = KernelEnvironment()) {
  absl::StatusOr<std::vector<Tensor>> outputs = ComputeAll(node, inputs, environment);
  if (!outputs.ok()) return outputs.status();
  return outputs->empty() ? Tensor() : outputs->at(0);
}

}  // namespace ferry::worker

#endif  // FERRY_TESTS_TENSORFLOW_WORKER_KERNEL_FIXTURE_H_

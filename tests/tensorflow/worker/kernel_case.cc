// SPDX-License-Identifier: Apache-2.0
// Reads cases and compares.
#include "tests/tensorflow/worker/kernel_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "proto/tf_graph.pb.h"
#include "tensor/tensor_proto.h"
#include "tensorflow/graph/op_registry.h"
#include "tensorflow/graph/signature.h"
#include "tensorflow/worker/kernel.h"
#include "tensorflow/worker/kernels/element_types.h"

namespace ferry::worker {
namespace {

absl::StatusOr<KernelCase> CaseOf(const tensorflow::GraphDef& graph) {
  if (graph.node_size() == 0) return absl::InvalidArgumentError("a case without a node");
  KernelCase result;
  result.node = graph.node(0);
  const graph::OpSchema* const op = graph::FindOp(result.node.op());
  if (op == nullptr) return absl::InvalidArgumentError(absl::StrCat("no op ", result.node.op()));
  graph::FillDefaults(*op, result.node);
  for (int i = 1; i < graph.node_size(); ++i) {
    const tensorflow::NodeDef& node = graph.node(i);
    if (node.name() == "error") {
      result.status = absl::Status(static_cast<absl::StatusCode>(node.attr().at("code").i()),
                                   node.attr().at("text").s());
      continue;
    }
    if (node.op() == "VarHandleOp") {
      result.variable = node;
      graph::FillDefaults(*graph::FindOp(node.op()), *result.variable);
      continue;
    }
    FERRY_ASSIGN_OR_RETURN(Tensor tensor, TensorFromProto(node.attr().at("value").tensor()));
    (node.name()[0] == 'i' ? result.inputs : result.outputs).push_back(std::move(tensor));
  }
  return result;
}

// The elements as numbers; of complex ones both parts.
std::vector<double> NumbersOf(const Tensor& tensor) {
  std::vector<double> numbers;
  WithType(NumberTypes() + TypeSet<bool>(), tensor.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const T* const elements = static_cast<const T*>(tensor.data());
    for (int64_t i = 0; i < tensor.shape().element_count(); ++i) {
      const T element = elements[i];
      if constexpr (kIsComplex<T>) {
        numbers.push_back(element.real());
        numbers.push_back(element.imag());
      } else {
        numbers.push_back(static_cast<double>(element));
      }
    }
  });
  return numbers;
}

// The distance from 1 to the next number of the type; 0 for integers.
double Epsilon(DataType dtype) {
  switch (dtype) {
    case DataType::kHalf:
      return std::ldexp(1, -10);
    case DataType::kBfloat16:
      return std::ldexp(1, -7);
    case DataType::kFloat:
    case DataType::kComplex64:
      return std::numeric_limits<float>::epsilon();
    case DataType::kDouble:
    case DataType::kComplex128:
      return std::numeric_limits<double>::epsilon();
    default:
      return 0;
  }
}

// How far a number may be from TensorFlow's.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
};

Tolerance ToleranceOf(const KernelCase& one, DataType dtype) {
  const std::string& op = one.node.op();
  const double epsilon = Epsilon(dtype);
  const auto largest = [&one](size_t input) {
    double result = 0;
    for (const double number : NumbersOf(one.inputs[input])) {
      if (std::isfinite(number)) result = std::max(result, std::abs(number));
    }
    return result;
  };
  if (op == "Sum" || op == "Mean") {
    const double count = static_cast<double>(one.inputs[0].shape().element_count());
    return {epsilon * largest(0) * (op == "Sum" ? count : std::sqrt(count)), epsilon};
  }
  if (op == "MatMul") {
    const double inner = static_cast<double>(
        one.inputs[0].shape().dim(one.node.attr().at("transpose_a").b() ? 0 : 1));
    return {epsilon * largest(0) * largest(1) * inner, epsilon};
  }
  if (op == "RandomStandardNormal") return {4 * epsilon, 4 * epsilon};
  const bool is_complex = dtype == DataType::kComplex64 || dtype == DataType::kComplex128;
  if (is_complex && (op == "Mul" || op == "RealDiv" || op == "Sqrt")) {
    double size = largest(0);
    if (op == "Mul") size *= largest(1);
    return {4 * epsilon * size, 4 * epsilon};
  }
  return {};
}

absl::Status Differ(const std::string& what) { return absl::FailedPreconditionError(what); }

// For floats that do not fit into a small or unsigned integer the result depends on TensorFlow's
// compiler, and differs between the end of an array and the rest.
bool IsUndefined(const KernelCase& one, const Tensor& output, size_t index) {
  if (one.node.op() != "Cast" || Epsilon(one.inputs[0].dtype()) == 0) return false;
  if (Epsilon(output.dtype()) != 0 || output.dtype() == DataType::kBool) return false;
  if (ElementBytes(output.dtype()) > 2 && output.dtype() != DataType::kUint32) return false;
  const bool is_complex = one.inputs[0].dtype() == DataType::kComplex64 ||
                          one.inputs[0].dtype() == DataType::kComplex128;
  const double number = std::trunc(NumbersOf(one.inputs[0])[is_complex ? 2 * index : index]);
  const bool is_signed = output.dtype() == DataType::kInt8 || output.dtype() == DataType::kInt16;
  const double count = std::ldexp(1, static_cast<int>(ElementBytes(output.dtype())) * 8);
  const double least = is_signed ? -count / 2 : 0;
  return !(number >= least && number < least + count);
}

absl::Status CheckNumbers(const KernelCase& one, const Tensor& ours, const Tensor& theirs) {
  const Tolerance tolerance = ToleranceOf(one, ours.dtype());
  const std::string& op = one.node.op();
  const std::vector<double> our_numbers = NumbersOf(ours);
  const std::vector<double> their_numbers = NumbersOf(theirs);
  for (size_t i = 0; i < our_numbers.size(); ++i) {
    const double a = our_numbers[i];
    const double b = their_numbers[i];
    if (std::isnan(a) && std::isnan(b)) continue;
    if (a == b && std::signbit(a) == std::signbit(b)) continue;
    if (IsUndefined(one, ours, i)) continue;
    // Which zero is the larger one depends on its position in the array.
    if (a == b && (op == "Maximum" || op == "Minimum" || op == "Max" || op == "Min")) continue;
    const double allowed =
        tolerance.absolute + tolerance.relative * std::max(std::abs(a), std::abs(b));
    if (allowed > 0 && std::abs(a - b) <= allowed) continue;
    return Differ(absl::StrCat("element ", i, " is ", a, ", TensorFlow's ", b));
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(const KernelCase& one, const Tensor& ours, const Tensor& theirs) {
  if (!ours.is_valid() || ours.dtype() != theirs.dtype() || !(ours.shape() == theirs.shape())) {
    return Differ(absl::StrCat("is ", ToString(ours), ", TensorFlow's ", ToString(theirs)));
  }
  const bool is_exact = Epsilon(ours.dtype()) == 0;
  if (is_exact && IsEqual(ours, theirs)) return absl::OkStatus();
  if (ours.dtype() == DataType::kString) return Differ("its strings are others");
  // The elements of 64 bits are not all doubles.
  FERRY_RETURN_IF_ERROR(CheckNumbers(one, ours, theirs));
  const bool may_differ = one.node.op() == "Cast" && ElementBytes(ours.dtype()) <= 4;
  return is_exact && !may_differ ? Differ("its integers are others") : absl::OkStatus();
}

absl::StatusOr<std::vector<Tensor>> Compute(const tensorflow::NodeDef& node,
                                            const KernelEnvironment& environment,
                                            const std::vector<Tensor>& inputs) {
  const graph::OpSchema& op = *graph::FindOp(node.op());
  FERRY_ASSIGN_OR_RETURN(const graph::Signature signature, graph::SignatureOf(op, node));
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Kernel> kernel, MakeKernel(node, "CPU"));
  KernelContext context(environment, inputs, static_cast<int>(signature.outputs.size()));
  FERRY_RETURN_IF_ERROR(kernel->Compute(context));
  return std::move(context.outputs());
}

}  // namespace

absl::StatusOr<std::vector<KernelCase>> ReadKernelCases(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<KernelCase> cases;
  for (size_t at = 0; at < bytes.size();) {
    uint32_t length = 0;
    if (bytes.size() - at < sizeof(length)) return absl::InvalidArgumentError("cut in a length");
    std::memcpy(&length, bytes.data() + at, sizeof(length));
    at += sizeof(length);
    tensorflow::GraphDef graph;
    if (bytes.size() - at < length ||
        !graph.ParseFromArray(bytes.data() + at, static_cast<int>(length))) {
      return absl::InvalidArgumentError(absl::StrCat("no GraphDef at ", at, " of ", path));
    }
    at += length;
    FERRY_ASSIGN_OR_RETURN(KernelCase one, CaseOf(graph));
    cases.push_back(std::move(one));
  }
  return cases;
}

absl::Status CheckKernelCase(const KernelCase& one, Variables& variables) {
  KernelEnvironment environment;
  environment.variables = &variables;
  std::vector<Tensor> inputs;
  if (one.variable.has_value()) {
    FERRY_ASSIGN_OR_RETURN(const std::vector<Tensor> handle,
                           Compute(*one.variable, environment, {}));
    inputs.push_back(handle[0]);
  }
  inputs.insert(inputs.end(), one.inputs.begin(), one.inputs.end());
  const absl::StatusOr<std::vector<Tensor>> outputs = Compute(one.node, environment, inputs);
  const absl::Status& status = outputs.status();
  if (status.code() != one.status.code() || status.message() != one.status.message()) {
    return Differ(absl::StrCat("says ", status.ToString(), ", TensorFlow ", one.status.ToString()));
  }
  if (!status.ok()) return absl::OkStatus();
  if (outputs->size() != one.outputs.size()) return Differ("another number of outputs");
  for (size_t i = 0; i < one.outputs.size(); ++i) {
    const absl::Status same = CheckTensor(one, (*outputs)[i], one.outputs[i]);
    if (!same.ok()) return Differ(absl::StrCat("output ", i, " ", same.message()));
  }
  return absl::OkStatus();
}

std::string ToString(const KernelCase& one) {
  std::string text = absl::StrCat(one.node.op(), "(");
  if (one.variable.has_value()) {
    absl::StrAppend(&text, one.variable->attr().at("shared_name").s(),
                    one.inputs.empty() ? "" : ", ");
  }
  for (size_t i = 0; i < one.inputs.size(); ++i) {
    absl::StrAppend(&text, i > 0 ? ", " : "", ToString(one.inputs[i]));
    const std::vector<double> numbers = NumbersOf(one.inputs[i]);
    if (numbers.empty() || numbers.size() > 12) continue;
    text += " {";
    for (const double number : numbers) absl::StrAppend(&text, number, " ");
    text.back() = '}';
  }
  return text + ")";
}

}  // namespace ferry::worker

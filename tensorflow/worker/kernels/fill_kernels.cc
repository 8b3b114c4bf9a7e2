// SPDX-License-Identifier: Apache-2.0
// Fill, ZerosLike, OnesLike, Range.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "tensorflow/worker/kernels/element_types.h"
#include "tensorflow/worker/kernels/families.h"
#include "tensorflow/worker/kernels/fill.h"
#include "tensorflow/worker/kernels/function_kernel.h"
#include "tensorflow/worker/kernels/run_writer.h"
#include "tensorflow/worker/kernels/shapes.h"

namespace ferry::worker {
namespace {

// Replicates the first element over the whole array.
void RepeatFirst(char* bytes, size_t count, size_t element_bytes) {
  const size_t all = count * element_bytes;
  // In blocks that stay in the cache while they are copied.
  constexpr size_t kPieceBytes = 16 << 10;
  size_t filled = element_bytes;
  while (filled < all) {
    const size_t piece =
        std::min({filled, all - filled, kPieceBytes / element_bytes * element_bytes});
    std::memcpy(bytes + filled, bytes, piece);
    filled += piece;
  }
}

// Returns a tensor with all elements set to these bytes.
absl::StatusOr<Tensor> Filled(const KernelContext& context, DataType dtype, const Shape& shape,
                              const void* element) {
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, context.Allocate(dtype, shape));
  if (tensor.bytes() == 0) return tensor;
  const size_t element_bytes = ElementBytes(dtype);
  const auto* const first = static_cast<const unsigned char*>(element);
  const bool is_one_byte = std::all_of(first, first + element_bytes,
                                       [first](unsigned char byte) { return byte == *first; });
  if (is_one_byte) {
    std::memset(tensor.mutable_data(), *first, tensor.bytes());
  } else {
    std::memcpy(tensor.mutable_data(), element, element_bytes);
    RepeatFirst(static_cast<char*>(tensor.mutable_data()), tensor.bytes() / element_bytes,
                element_bytes);
  }
  return tensor;
}

absl::StatusOr<Tensor> FilledWithString(const KernelContext& context, const Shape& shape,
                                        const std::string& value) {
  FERRY_RETURN_IF_ERROR(CheckStrings(context, shape));
  const size_t count = static_cast<size_t>(shape.element_count());
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, value.size(), &bytes)) {
    bytes = std::numeric_limits<size_t>::max();
  }
  FERRY_RETURN_IF_ERROR(context.CheckBytes(bytes));
  return Tensor::OfStrings(shape, std::vector<std::string>(count, value));
}

absl::Status Fill(KernelContext& context) {
  const Tensor& value = context.input(1);
  FERRY_ASSIGN_OR_RETURN(const Shape shape, FillShape(context.input(0), value));
  absl::StatusOr<Tensor> filled = value.dtype() == DataType::kString
                                      ? FilledWithString(context, shape, value.strings()[0])
                                      : Filled(context, value.dtype(), shape, value.data());
  if (!filled.ok()) return std::move(filled).status();
  context.set_output(0, *std::move(filled));
  return absl::OkStatus();
}

absl::Status ZerosLike(KernelContext& context) {
  const Tensor& input = context.input(0);
  constexpr uint64_t kZero[2] = {0, 0};
  absl::StatusOr<Tensor> zeros = input.dtype() == DataType::kString
                                     ? FilledWithString(context, input.shape(), "")
                                     : Filled(context, input.dtype(), input.shape(), kZero);
  if (!zeros.ok()) return std::move(zeros).status();
  context.set_output(0, *std::move(zeros));
  return absl::OkStatus();
}

template <typename T>
absl::Status OnesLike(KernelContext& context) {
  const T one = static_cast<T>(1);
  const Tensor& input = context.input(0);
  FERRY_ASSIGN_OR_RETURN(Tensor ones, Filled(context, input.dtype(), input.shape(), &one));
  context.set_output(0, std::move(ones));
  return absl::OkStatus();
}

// Formats a number as TensorFlow's errors do.
template <typename T>
std::string NumberText(T value) {
  if constexpr (std::is_integral_v<T>) return absl::StrCat(value);
  if (std::isnan(value)) return "nan";
  constexpr int kDigits = std::is_same_v<T, float> ? 9 : 17;
  // Uses fewer digits if they round-trip.
  std::string text = absl::StrFormat("%.*g", kDigits - (std::is_same_v<T, float> ? 3 : 2), value);
  if (std::isfinite(value) && static_cast<T>(std::strtod(text.c_str(), nullptr)) != value) {
    text = absl::StrFormat("%.*g", kDigits, value);
  }
  return text;
}

// Returns the number of elements from `start` up to, not including, `limit`.
template <typename T>
absl::StatusOr<int64_t> RangeCount(T start, T limit, T delta) {
  if (delta == T(0)) {
    return absl::InvalidArgumentError(absl::StrCat("Requires delta != 0: ", NumberText(delta)));
  }
  if (delta > T(0) && !(start <= limit)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Requires start <= limit when delta > 0: ", NumberText(start), "/", NumberText(limit)));
  }
  if (!(delta > T(0)) && !(start >= limit)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Requires start >= limit when delta < 0: ", NumberText(start), "/", NumberText(limit)));
  }
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    const Unsigned distance = delta > 0
                                  ? static_cast<Unsigned>(limit) - static_cast<Unsigned>(start)
                                  : static_cast<Unsigned>(start) - static_cast<Unsigned>(limit);
    const Unsigned step =
        delta > 0 ? static_cast<Unsigned>(delta) : Unsigned(0) - static_cast<Unsigned>(delta);
    const uint64_t count = distance == 0 ? 0 : (uint64_t{distance} - 1) / step + 1;
    if (count <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return static_cast<int64_t>(count);
    }
  } else {
    const T count = std::ceil(std::abs((limit - start) / delta));
    // The largest count, rounded to a float, is one too many.
    if (count < static_cast<T>(std::numeric_limits<int64_t>::max())) {
      return static_cast<int64_t>(count);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("Requires ((limit - start) / delta) <= ", std::numeric_limits<int64_t>::max()));
}

// Intermediate products of integers may overflow.
template <typename T>
struct RangeArithmetic {
  using Type = T;
};
template <>
struct RangeArithmetic<int32_t> {
  using Type = uint32_t;
};
template <>
struct RangeArithmetic<int64_t> {
  using Type = uint64_t;
};

template <typename T>
absl::Status Range(KernelContext& context) {
  constexpr absl::string_view kNames[] = {"start", "limit", "delta"};
  T values[3];
  for (int i = 0; i < 3; ++i) {
    const Shape& shape = context.input(i).shape();
    if (shape.rank() > 1 || shape.element_count() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(kNames[i], " must be a scalar, not shape ", ShapeText(shape)));
    }
    values[i] = context.input(i).elements<T>()[0];
  }
  FERRY_ASSIGN_OR_RETURN(const int64_t count, RangeCount(values[0], values[1], values[2]));
  FERRY_ASSIGN_OR_RETURN(const Shape shape, ShapeOf({count}));
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, context.Allocate(kDataTypeOf<T>, shape));
  T* const elements = static_cast<T*>(tensor.mutable_data());
  using Wide = typename RangeArithmetic<T>::Type;
  const Wide start = static_cast<Wide>(values[0]);
  const Wide delta = static_cast<Wide>(values[2]);
  Elements<T>(elements, count) =
      Eigen::Array<T, Eigen::Dynamic, 1>::NullaryExpr(count, [start, delta](Eigen::Index i) {
        return static_cast<T>(start + static_cast<Wide>(i) * delta);
      });
  context.set_output(0, std::move(tensor));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Shape> FillShape(const Tensor& dims, const Tensor& value) {
  // Legacy graphs write a one-element vector as a scalar.
  if (!IsVector(dims) && !IsScalar(dims)) {
    return absl::InvalidArgumentError(
        absl::StrCat("dims must represent a vector, got shape ", ShapeText(dims.shape())));
  }
  const bool is_scalar = IsScalar(value) || (IsVector(value) && value.shape().dim(0) == 1);
  if (!is_scalar) {
    return absl::InvalidArgumentError(
        absl::StrCat("value must represent a scalar, got shape ", ShapeText(value.shape())));
  }
  return ShapeOf(IntsOf(dims));
}

KernelOr MakeFill(const NodeAttrs&) { return MakeFunctionKernel(Fill); }

KernelOr MakeZerosLike(const NodeAttrs&) { return MakeFunctionKernel(ZerosLike); }

KernelOr MakeOnesLike(const NodeAttrs& node) {
  std::unique_ptr<Kernel> kernel;
  const bool is_known = WithType(
      NumberTypes() + TypeSet<bool>(), node.Type("T"),
      [&kernel](auto tag) { kernel = MakeFunctionKernel(OnesLike<typename decltype(tag)::Type>); });
  FERRY_CHECK(is_known);
  return kernel;
}

KernelOr MakeRange(const NodeAttrs& node) {
  std::unique_ptr<Kernel> kernel;
  const bool is_known = WithType(
      TypeSet<float, double, int32_t, int64_t>(), node.Type("Tidx"),
      [&kernel](auto tag) { kernel = MakeFunctionKernel(Range<typename decltype(tag)::Type>); });
  FERRY_CHECK(is_known);
  return kernel;
}

}  // namespace ferry::worker

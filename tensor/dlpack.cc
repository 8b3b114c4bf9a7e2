// SPDX-License-Identifier: Apache-2.0
// Translation of types and shapes.
#include "tensor/dlpack.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#include "base/status_macros.h"
#include "tensor/check_values.h"

namespace ferry::dlpack {
namespace {

struct Row {
  DataType type;
  uint8_t code;
  uint8_t bits;
};

// Codes: 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool, 9 to 13 and 17 the small floats.
constexpr Row kRows[] = {
    {DataType::kInt8, 0, 8},
    {DataType::kInt16, 0, 16},
    {DataType::kInt32, 0, 32},
    {DataType::kInt64, 0, 64},
    {DataType::kUint8, 1, 8},
    {DataType::kUint16, 1, 16},
    {DataType::kUint32, 1, 32},
    {DataType::kUint64, 1, 64},
    {DataType::kHalf, 2, 16},
    {DataType::kFloat, 2, 32},
    {DataType::kDouble, 2, 64},
    {DataType::kBfloat16, 4, 16},
    {DataType::kComplex64, 5, 64},
    {DataType::kComplex128, 5, 128},
    {DataType::kBool, 6, 8},
    {DataType::kFloat8E4m3b11fnuz, 9, 8},
    {DataType::kFloat8E4m3fn, 10, 8},
    {DataType::kFloat8E4m3fnuz, 11, 8},
    {DataType::kFloat8E5m2, 12, 8},
    {DataType::kFloat8E5m2fnuz, 13, 8},
    // Padded to a byte each.
    {DataType::kInt4, 0, 4},
    {DataType::kUint4, 1, 4},
    {DataType::kInt2, 0, 2},
    {DataType::kUint2, 1, 2},
    {DataType::kFloat4E2m1fn, 17, 4},
};

bool IsDense(const PlainTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  // The stride of a dimension of extent 1 is irrelevant, as are all strides of an empty tensor.
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] == 0) return true;
  }
  int64_t expected = 1;
  for (int32_t i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

std::optional<TensorLocation> LocationOf(const Device& device) {
  switch (device.device_type) {
    case kDeviceCpu:
    case kDeviceCudaHost:
      return TensorLocation();
    case kDeviceCuda:
    case kDeviceCudaManaged:
      if (device.device_id < 0) return std::nullopt;
      return TensorLocation{MemorySpace::kCuda, device.device_id};
    default:
      return std::nullopt;
  }
}

// The state that an exported tensor owns.
struct Exported {
  ManagedTensor managed;
  Tensor tensor;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

}  // namespace

absl::StatusOr<Tensor> Import(ManagedTensor* managed) {
  if (managed == nullptr) return absl::InvalidArgumentError("no DLPack tensor");
  if (managed->version.major != kMajorVersion) {
    return absl::InvalidArgumentError(absl::StrCat("DLPack version ", managed->version.major, ".",
                                                   managed->version.minor, "; Ferry reads ",
                                                   kMajorVersion, ".x"));
  }
  const PlainTensor& plain = managed->dl_tensor;
  const std::optional<TensorLocation> location = LocationOf(plain.device);
  if (!location.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the DLPack tensor is on device ", plain.device.device_id, " of type ",
                     plain.device.device_type,
                     "; only memory of the host (1 and 3) and of CUDA (2 and 13) can be taken"));
  }
  const Row* type = nullptr;
  for (const Row& row : kRows) {
    if (row.code == plain.dtype.code && row.bits == plain.dtype.bits) type = &row;
  }
  const bool is_packed = type != nullptr && type->bits < 8 && (managed->flags & kFlagPadded) == 0;
  if (type == nullptr || plain.dtype.lanes != 1 || is_packed) {
    return absl::UnimplementedError(absl::StrCat(
        "a DLPack type of code ", plain.dtype.code, ", ", plain.dtype.bits, " bits, ",
        plain.dtype.lanes, " lanes", is_packed ? ", packed" : "", " is none of Ferry's"));
  }
  if (plain.ndim < 0 || (plain.ndim > 0 && plain.shape == nullptr)) {
    return absl::InvalidArgumentError("the DLPack tensor has no shape");
  }
  FERRY_ASSIGN_OR_RETURN(Shape shape, Shape::Create(absl::MakeConstSpan(
                                          plain.shape, static_cast<size_t>(plain.ndim))));
  if (!IsDense(plain)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the DLPack tensor of shape ", ToString(shape),
                     " is not dense and row-major; make it contiguous first"));
  }
  FERRY_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(type->type, shape));
  if (plain.data == nullptr && bytes > 0) {
    return absl::InvalidArgumentError("the DLPack tensor has no data");
  }
  // Pointer differences, and thus objects, cannot be larger than that.
  if (plain.byte_offset > static_cast<uint64_t>(PTRDIFF_MAX) - bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the DLPack tensor's ", bytes,
                                                   " bytes from offset ", plain.byte_offset,
                                                   " on are more than any memory has"));
  }
  void* data = plain.data == nullptr ? nullptr : static_cast<char*>(plain.data) + plain.byte_offset;
  // C++ may only read aligned elements; those of complex types are two numbers.
  const bool is_complex = type->type == DataType::kComplex64 || type->type == DataType::kComplex128;
  const size_t alignment = ElementBytes(type->type) / (is_complex ? 2 : 1);
  if (bytes > 0 && reinterpret_cast<uintptr_t>(data) % alignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the DLPack tensor's elements are not aligned to ", alignment, " bytes; copy it first"));
  }
  // Checked before ownership is taken: on an error the caller keeps it.
  if (*location == TensorLocation()) {
    FERRY_RETURN_IF_ERROR(CheckValues(type->type, data, bytes, [&type, &shape] {
      return absl::StrCat("the DLPack tensor ", DataTypeName(type->type), ToString(shape));
    }));
  }
  const auto release = [managed] {
    if (managed->deleter != nullptr) managed->deleter(managed);
  };
  return Tensor::Create(type->type, std::move(shape),
                        WrapForeignBuffer(data, bytes, release, *location));
}

absl::StatusOr<ManagedTensor*> Export(const Tensor& tensor, bool writable) {
  if (!tensor.is_valid()) return absl::InvalidArgumentError("no tensor to export");
  const Row* type = nullptr;
  for (const Row& row : kRows) {
    if (row.type == tensor.dtype()) type = &row;
  }
  if (type == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("DLPack has no type for ", DataTypeName(tensor.dtype())));
  }
  auto exported = std::make_unique<Exported>();
  exported->tensor = tensor;
  const absl::Span<const int64_t> dims = tensor.shape().dims();
  exported->shape.assign(dims.begin(), dims.end());
  exported->strides.resize(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    exported->strides[i] = stride;
    // An empty tensor has no elements to stride over.
    if (dims[i] > 0) stride *= dims[i];
  }
  ManagedTensor& managed = exported->managed;
  managed.version = {kMajorVersion, kMinorVersion};
  managed.manager_ctx = exported.get();
  managed.deleter = [](ManagedTensor* self) { delete static_cast<Exported*>(self->manager_ctx); };
  managed.flags = (writable ? 0 : kFlagReadOnly) | (type->bits < 8 ? kFlagPadded : 0);
  managed.dl_tensor = {
      .data = exported->tensor.mutable_data(),
      .device = {tensor.is_on_host() ? kDeviceCpu : kDeviceCuda, tensor.location().ordinal},
      .ndim = static_cast<int32_t>(dims.size()),
      .dtype = {type->code, type->bits, 1},
      .shape = exported->shape.data(),
      .strides = exported->strides.data(),
      .byte_offset = 0,
  };
  return &exported.release()->managed;
}

}  // namespace ferry::dlpack

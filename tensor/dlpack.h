// SPDX-License-Identifier: Apache-2.0
// DLPack: zero-copy exchange of tensors with other frameworks.
#ifndef FERRY_TENSOR_DLPACK_H_
#define FERRY_TENSOR_DLPACK_H_

#include <cstdint>

#include "absl/status/statusor.h"

#include "tensor/tensor.h"

namespace ferry::dlpack {

// The C structs of DLPack 1.x, with its header's layout; a pointer to any framework's
// DLManagedTensorVersioned may be cast to ManagedTensor*. Source: DLPack's specification,
// dmlc.github.io/dlpack, "C API".
inline constexpr uint32_t kMajorVersion = 1;
inline constexpr uint32_t kMinorVersion = 1;

inline constexpr int32_t kDeviceCpu = 1;
inline constexpr int32_t kDeviceCuda = 2;
inline constexpr int32_t kDeviceCudaHost = 3;
inline constexpr int32_t kDeviceCudaManaged = 13;

inline constexpr uint64_t kFlagReadOnly = 1 << 0;
// Elements narrower than a byte take one byte each.
inline constexpr uint64_t kFlagPadded = 1 << 2;

extern "C" {

struct Version {
  uint32_t major;
  uint32_t minor;
};

struct Device {
  int32_t device_type;
  int32_t device_id;
};

struct ElementType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct PlainTensor {
  void* data;
  Device device;
  int32_t ndim;
  ElementType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null means dense and row-major
  uint64_t byte_offset;
};

struct ManagedTensor {
  Version version;
  void* manager_ctx;
  void (*deleter)(ManagedTensor* self);
  uint64_t flags;
  PlainTensor dl_tensor;
};

}  // extern "C"

// Returns a view of `managed`, whose deleter runs when the last tensor over it is released, on
// that thread. On an error the caller keeps ownership. Memory of a CUDA device (managed memory
// too) becomes a tensor on that device. The caller ensures that the bytes have been written before
// they are used: DLPack's stream protocol is not part of these structs.
//   Errors: INVALID_ARGUMENT for null, another major version, memory of other devices, elements
//   that are not dense, row-major and aligned, an invalid shape or offset, or booleans in host
//   memory that are neither 0 nor 1; UNIMPLEMENTED for types unknown to Ferry.
absl::StatusOr<Tensor> Import(ManagedTensor* managed);

// Exports `tensor`. The caller owns the result and calls its deleter. It is marked read-only
// unless `writable`: a tensor that has been sent must not be written any more.
//   Errors: INVALID_ARGUMENT for no tensor; UNIMPLEMENTED for strings and quantised types, which
//   DLPack does not support.
absl::StatusOr<ManagedTensor*> Export(const Tensor& tensor, bool writable = false);

}  // namespace ferry::dlpack

#endif  // FERRY_TENSOR_DLPACK_H_

// SPDX-License-Identifier: Apache-2.0
// The C structs of DLPack 1.3. Source: the specification, dmlc.github.io/dlpack, "C API" and
// "Python Specification", whose names they have.
#ifndef FERRY_PYTHON_SRC_DLPACK_ABI_H_
#define FERRY_PYTHON_SRC_DLPACK_ABI_H_

#include <cstdint>

extern "C" {

struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

// Before 1.0.
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};

struct DLPackExchangeAPIHeader {
  DLPackVersion version;
  DLPackExchangeAPIHeader* prev_api;
};

// Functions return 0, or -1 with a Python error set.
struct DLPackExchangeAPI {
  DLPackExchangeAPIHeader header;
  int (*managed_tensor_allocator)(DLTensor* prototype, DLManagedTensorVersioned** out,
                                  void* error_ctx,
                                  void (*SetError)(void* error_ctx, const char* kind,
                                                   const char* message));
  int (*managed_tensor_from_py_object_no_sync)(void* py_object, DLManagedTensorVersioned** out);
  int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned* tensor,
                                             void** out_py_object);
  // May be null.
  int (*dltensor_from_py_object_no_sync)(void* py_object, DLTensor* out);
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** out_current_stream);
};

}  // extern "C"

namespace ferry::python {

inline constexpr int32_t kDlCpu = 1;
inline constexpr int32_t kDlCuda = 2;
inline constexpr int32_t kDlCudaHost = 3;
inline constexpr int32_t kDlCudaManaged = 13;
inline constexpr uint64_t kDlReadOnly = 1;
inline constexpr uint64_t kDlIsCopied = 2;

}  // namespace ferry::python

#endif  // FERRY_PYTHON_SRC_DLPACK_ABI_H_

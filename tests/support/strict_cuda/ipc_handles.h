// SPDX-License-Identifier: Apache-2.0
// Handles of memory and events for tests of the fake driver.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_IPC_HANDLES_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_IPC_HANDLES_H_

#include "tests/support/strict_cuda/fake_driver_test.h"

namespace strict_cuda {

inline CUipcMemHandle Export(CUdeviceptr pointer) {
  CUipcMemHandle handle = {};
  OK(CU(cuIpcGetMemHandle)(&handle, pointer));
  return handle;
}

inline CUdeviceptr Open(const CUipcMemHandle& handle) {
  CUdeviceptr pointer = 0;
  OK(CU(cuIpcOpenMemHandle_v2)(&pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  return pointer;
}

inline CUevent NewIpcEvent() {
  CUevent event = nullptr;
  OK(CU(cuEventCreate)(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  return event;
}

inline CUipcEventHandle Export(CUevent event) {
  CUipcEventHandle handle = {};
  OK(CU(cuIpcGetEventHandle)(&handle, event));
  return handle;
}

// A pool of device 0 whose memory can be exported, and its descriptor.
inline CUmemoryPool NewExportablePool(int* fd) {
  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool = nullptr;
  OK(CU(cuMemPoolCreate)(&pool, &props));
  OK(CU(cuMemPoolExportToShareableHandle)(fd, pool, props.handleTypes, 0));
  return pool;
}

inline CUmemoryPool ImportPool(int fd) {
  CUmemoryPool pool = nullptr;
  OK(CU(cuMemPoolImportFromShareableHandle)(&pool,
                                            reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  return pool;
}

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_IPC_HANDLES_H_

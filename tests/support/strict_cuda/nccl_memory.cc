// SPDX-License-Identifier: Apache-2.0
// NCCL's own allocations, and buffers that are registered with it.
#include <map>
#include <mutex>

#include "tests/support/strict_cuda/memory.h"
#include "tests/support/strict_cuda/nccl_comm.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

std::map<void*, Comm*>& Registrations() {
  static auto* const registrations = new std::map<void*, Comm*>;
  return *registrations;
}

// Mapped memory of the current device, for all devices that reach it.
CUresult Map(CUdeviceptr base, size_t bytes, const Context& context) {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, context.ordinal};
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = cuMemCreate(&handle, bytes, &prop, 0);
  if (result != 0) return result;
  result = cuMemMap(base, bytes, 0, handle, 0);
  if (result == 0) result = cuMemRelease(handle);
  for (size_t i = 0; result == 0 && i < GetConfig().visible.size(); ++i) {
    const int ordinal = static_cast<int>(i);
    if (ordinal != context.ordinal && !GetConfig().peers[PhysicalOf(ordinal)][context.physical]) {
      continue;
    }
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, ordinal},
                                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    result = cuMemSetAccess(base, bytes, &access, 1);
  }
  return result;
}

}  // namespace

extern "C" {

STRICT_CUDA_EXPORT ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
  if (pointer == nullptr || bytes == 0) return ncclInvalidArgument;
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  Context* context = nullptr;
  if (RequireContext(&context) != CUDA_SUCCESS) return ncclUnhandledCudaError;
  const size_t rounded = RoundUp(bytes, kGranularity);
  CUdeviceptr base = 0;
  if (cuMemAddressReserve(&base, rounded, 0, 0, 0) != 0) return ncclUnhandledCudaError;
  if (Map(base, rounded, *context) != CUDA_SUCCESS) {
    cuMemAddressFree(base, rounded);
    return ncclUnhandledCudaError;
  }
  *pointer = reinterpret_cast<void*>(base);
  return ncclSuccess;
}

STRICT_CUDA_EXPORT ncclResult_t ncclMemFree(void* pointer) {
  if (pointer == nullptr) return ncclSuccess;
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  const auto base = reinterpret_cast<CUdeviceptr>(pointer);
  size_t bytes = 0;
  if (cuMemGetAddressRange_v2(nullptr, &bytes, base) != CUDA_SUCCESS) {
    Violation(Rule::kDoubleFree, __func__, "0x%llx is not allocated (any more)", base);
    return ncclInvalidArgument;
  }
  if (cuMemUnmap(base, bytes) != 0 || cuMemAddressFree(base, bytes) != 0) {
    return ncclUnhandledCudaError;
  }
  return ncclSuccess;
}

STRICT_CUDA_EXPORT ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, size_t bytes,
                                                 void** handle) {
  if (buffer == nullptr || bytes == 0 || handle == nullptr) return ncclInvalidArgument;
  if (const ncclResult_t result = CheckUsable(comm, __func__); result != 0) return result;
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  std::vector<Piece> pieces;
  if (Resolve(reinterpret_cast<CUdeviceptr>(buffer), bytes, comm->context->physical, true, __func__,
              &pieces) != CUDA_SUCCESS) {
    return ncclUnhandledCudaError;
  }
  *handle = new char;
  Registrations()[*handle] = comm;
  return ncclSuccess;
}

STRICT_CUDA_EXPORT ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  if (handle == nullptr) return ncclSuccess;
  if (const ncclResult_t result = CheckUsable(comm, __func__); result != 0) return result;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const auto found = Registrations().find(handle);
  if (found == Registrations().end() || found->second != comm) {
    Violation(Rule::kDoubleFree, __func__, "%p is not registered (any more)", handle);
    return ncclInvalidArgument;
  }
  Registrations().erase(found);
  delete static_cast<char*>(handle);
  return ncclSuccess;
}

}  // extern "C"

}  // namespace strict_cuda

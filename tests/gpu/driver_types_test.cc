// SPDX-License-Identifier: Apache-2.0
// Our declarations of the CUDA driver's interface against the toolkit's own cuda.h, at compile
// time. Built only where there is one, of CUDA 12.1 or newer; what a later version has named is
// compared from that version on.
#include <cuda.h>

#include <cstddef>

#include <gtest/gtest.h>

#include "gpu/cuda/cuda_api.h"
#include "tests/gpu/same_call.h"

namespace ferry::cuda {
namespace {

FERRY_SAME_CALL(CudaTable, cuInit, init);
FERRY_SAME_CALL(CudaTable, cuDriverGetVersion, driver_get_version);
FERRY_SAME_CALL(CudaTable, cuGetErrorName, get_error_name);
FERRY_SAME_CALL(CudaTable, cuGetErrorString, get_error_string);
FERRY_SAME_CALL(CudaTable, cuDeviceGetCount, device_get_count);
FERRY_SAME_CALL(CudaTable, cuDeviceGet, device_get);
FERRY_SAME_CALL(CudaTable, cuDeviceGetName, device_get_name);
FERRY_SAME_CALL(CudaTable, cuDeviceGetUuid_v2, device_get_uuid);
FERRY_SAME_CALL(CudaTable, cuDeviceGetPCIBusId, device_get_pci_bus_id);
FERRY_SAME_CALL(CudaTable, cuDeviceGetAttribute, device_get_attribute);
FERRY_SAME_CALL(CudaTable, cuDeviceTotalMem_v2, device_total_mem);
FERRY_SAME_CALL(CudaTable, cuDevicePrimaryCtxRetain, primary_context_retain);
FERRY_SAME_CALL(CudaTable, cuDevicePrimaryCtxRelease_v2, primary_context_release);
FERRY_SAME_CALL(CudaTable, cuCtxPushCurrent_v2, context_push);
FERRY_SAME_CALL(CudaTable, cuCtxPopCurrent_v2, context_pop);
FERRY_SAME_CALL(CudaTable, cuCtxGetCurrent, context_get_current);
FERRY_SAME_CALL(CudaTable, cuDeviceCanAccessPeer, device_can_access_peer);
FERRY_SAME_CALL(CudaTable, cuCtxEnablePeerAccess, context_enable_peer_access);
FERRY_SAME_CALL(CudaTable, cuStreamCreateWithPriority, stream_create_with_priority);
FERRY_SAME_CALL(CudaTable, cuStreamDestroy_v2, stream_destroy);
FERRY_SAME_CALL(CudaTable, cuStreamQuery, stream_query);
FERRY_SAME_CALL(CudaTable, cuStreamSynchronize, stream_synchronize);
FERRY_SAME_CALL(CudaTable, cuStreamWaitEvent, stream_wait_event);
FERRY_SAME_CALL(CudaTable, cuEventCreate, event_create);
FERRY_SAME_CALL(CudaTable, cuEventDestroy_v2, event_destroy);
FERRY_SAME_CALL(CudaTable, cuEventRecord, event_record);
FERRY_SAME_CALL(CudaTable, cuEventQuery, event_query);
FERRY_SAME_CALL(CudaTable, cuEventSynchronize, event_synchronize);
FERRY_SAME_CALL(CudaTable, cuEventElapsedTime, event_elapsed_time);
FERRY_SAME_CALL(CudaTable, cuMemGetInfo_v2, memory_get_info);
FERRY_SAME_CALL(CudaTable, cuMemAlloc_v2, memory_alloc);
FERRY_SAME_CALL(CudaTable, cuMemFree_v2, memory_free);
FERRY_SAME_CALL(CudaTable, cuMemGetAddressRange_v2, memory_get_address_range);
FERRY_SAME_CALL(CudaTable, cuMemHostAlloc, host_alloc);
FERRY_SAME_CALL(CudaTable, cuMemFreeHost, host_free);
FERRY_SAME_CALL(CudaTable, cuMemHostRegister_v2, host_register);
FERRY_SAME_CALL(CudaTable, cuMemHostUnregister, host_unregister);
FERRY_SAME_CALL(CudaTable, cuPointerGetAttributes, pointer_get_attributes);
FERRY_SAME_CALL(CudaTable, cuMemcpyAsync, copy_async);
FERRY_SAME_CALL(CudaTable, cuMemcpyPeerAsync, copy_peer_async);
FERRY_SAME_CALL(CudaTable, cuMemcpyHtoDAsync_v2, copy_to_device_async);
FERRY_SAME_CALL(CudaTable, cuMemcpyDtoHAsync_v2, copy_to_host_async);
FERRY_SAME_CALL(CudaTable, cuMemsetD8Async, set_bytes_async);
FERRY_SAME_CALL(CudaTable, cuIpcGetMemHandle, ipc_get_memory_handle);
FERRY_SAME_CALL(CudaTable, cuIpcOpenMemHandle_v2, ipc_open_memory_handle);
FERRY_SAME_CALL(CudaTable, cuIpcCloseMemHandle, ipc_close_memory_handle);
FERRY_SAME_CALL(CudaTable, cuIpcGetEventHandle, ipc_get_event_handle);
FERRY_SAME_CALL(CudaTable, cuIpcOpenEventHandle, ipc_open_event_handle);
FERRY_SAME_CALL(CudaTable, cuMemAddressReserve, address_reserve);
FERRY_SAME_CALL(CudaTable, cuMemAddressFree, address_free);
FERRY_SAME_CALL(CudaTable, cuMemCreate, memory_create);
FERRY_SAME_CALL(CudaTable, cuMemRelease, memory_release);
FERRY_SAME_CALL(CudaTable, cuMemMap, memory_map);
FERRY_SAME_CALL(CudaTable, cuMemUnmap, memory_unmap);
FERRY_SAME_CALL(CudaTable, cuMemSetAccess, memory_set_access);
FERRY_SAME_CALL(CudaTable, cuMemExportToShareableHandle, memory_export);
FERRY_SAME_CALL(CudaTable, cuMemImportFromShareableHandle, memory_import);
FERRY_SAME_CALL(CudaTable, cuMemGetAllocationGranularity, memory_granularity);
FERRY_SAME_CALL(CudaTable, cuMemRetainAllocationHandle, memory_retain_handle);
FERRY_SAME_CALL(CudaTable, cuDeviceGetDefaultMemPool, device_get_default_pool);
FERRY_SAME_CALL(CudaTable, cuMemPoolCreate, pool_create);
FERRY_SAME_CALL(CudaTable, cuMemPoolDestroy, pool_destroy);
FERRY_SAME_CALL(CudaTable, cuMemPoolSetAccess, pool_set_access);
FERRY_SAME_CALL(CudaTable, cuMemPoolSetAttribute, pool_set_attribute);
FERRY_SAME_CALL(CudaTable, cuMemAllocFromPoolAsync, pool_alloc_async);
FERRY_SAME_CALL(CudaTable, cuMemFreeAsync, memory_free_async);
FERRY_SAME_CALL(CudaTable, cuMemPoolExportToShareableHandle, pool_export);
FERRY_SAME_CALL(CudaTable, cuMemPoolImportFromShareableHandle, pool_import);
FERRY_SAME_CALL(CudaTable, cuMemPoolExportPointer, pool_export_pointer);
FERRY_SAME_CALL(CudaTable, cuMemPoolImportPointer, pool_import_pointer);
FERRY_SAME_CALL(CudaTable, cuModuleLoadData, module_load_data);
FERRY_SAME_CALL(CudaTable, cuModuleUnload, module_unload);
FERRY_SAME_CALL(CudaTable, cuModuleGetFunction, module_get_function);
FERRY_SAME_CALL(CudaTable, cuLaunchKernel, launch_kernel);
FERRY_SAME_CALL(CudaTable, cuLaunchHostFunc, launch_host_function);

FERRY_SAME_FIELD(AllocationProperties, type, CUmemAllocationProp, type);
FERRY_SAME_FIELD(AllocationProperties, requested_handle_types, CUmemAllocationProp,
                 requestedHandleTypes);
FERRY_SAME_FIELD(AllocationProperties, location, CUmemAllocationProp, location);
FERRY_SAME_FIELD(AllocationProperties, win32_handle_metadata, CUmemAllocationProp,
                 win32HandleMetaData);
FERRY_SAME_FIELD(AllocationProperties, compression_type, CUmemAllocationProp,
                 allocFlags.compressionType);
FERRY_SAME_FIELD(AllocationProperties, gpu_direct_rdma_capable, CUmemAllocationProp,
                 allocFlags.gpuDirectRDMACapable);
FERRY_SAME_FIELD(AllocationProperties, usage, CUmemAllocationProp, allocFlags.usage);
FERRY_SAME_FIELD(MemoryLocation, type, CUmemLocation, type);
FERRY_SAME_FIELD(MemoryLocation, id, CUmemLocation, id);
FERRY_SAME_FIELD(AccessDescription, location, CUmemAccessDesc, location);
FERRY_SAME_FIELD(AccessDescription, flags, CUmemAccessDesc, flags);
FERRY_SAME_FIELD(PoolProperties, allocation_type, CUmemPoolProps, allocType);
FERRY_SAME_FIELD(PoolProperties, handle_types, CUmemPoolProps, handleTypes);
FERRY_SAME_FIELD(PoolProperties, location, CUmemPoolProps, location);
FERRY_SAME_FIELD(PoolProperties, win32_security_attributes, CUmemPoolProps,
                 win32SecurityAttributes);
#if CUDA_VERSION >= 12020
FERRY_SAME_FIELD(PoolProperties, max_bytes, CUmemPoolProps, maxSize);
#endif
#if CUDA_VERSION >= 12060
FERRY_SAME_FIELD(PoolProperties, usage, CUmemPoolProps, usage);
#endif
static_assert(sizeof(AllocationProperties) == sizeof(CUmemAllocationProp));
static_assert(sizeof(PoolProperties) == sizeof(CUmemPoolProps));
static_assert(sizeof(AccessDescription) == sizeof(CUmemAccessDesc));
static_assert(sizeof(IpcMemoryHandle) == sizeof(CUipcMemHandle));

FERRY_SAME_NUMBER(kSuccess, CUDA_SUCCESS);
FERRY_SAME_NUMBER(kErrorInvalidValue, CUDA_ERROR_INVALID_VALUE);
FERRY_SAME_NUMBER(kErrorOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
FERRY_SAME_NUMBER(kErrorNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
FERRY_SAME_NUMBER(kErrorDeinitialized, CUDA_ERROR_DEINITIALIZED);
FERRY_SAME_NUMBER(kErrorDeviceUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE);
FERRY_SAME_NUMBER(kErrorNoDevice, CUDA_ERROR_NO_DEVICE);
FERRY_SAME_NUMBER(kErrorInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
FERRY_SAME_NUMBER(kErrorInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
FERRY_SAME_NUMBER(kErrorAlreadyMapped, CUDA_ERROR_ALREADY_MAPPED);
FERRY_SAME_NUMBER(kErrorPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
FERRY_SAME_NUMBER(kErrorInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
FERRY_SAME_NUMBER(kErrorNotFound, CUDA_ERROR_NOT_FOUND);
FERRY_SAME_NUMBER(kErrorNotReady, CUDA_ERROR_NOT_READY);
FERRY_SAME_NUMBER(kErrorPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
FERRY_SAME_NUMBER(kErrorNotPermitted, CUDA_ERROR_NOT_PERMITTED);
FERRY_SAME_NUMBER(kErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED);
FERRY_SAME_NUMBER(kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
FERRY_SAME_NUMBER(kComputeMode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
FERRY_SAME_NUMBER(kUnifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
FERRY_SAME_NUMBER(kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
FERRY_SAME_NUMBER(kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
FERRY_SAME_NUMBER(kVirtualMemoryManagementSupported,
                  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
FERRY_SAME_NUMBER(kPosixFileDescriptorSupported,
                  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
FERRY_SAME_NUMBER(kRdmaWithVirtualMemorySupported,
                  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
FERRY_SAME_NUMBER(kMemoryPoolsSupported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
FERRY_SAME_NUMBER(kPoolSupportedHandleTypes, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES);
FERRY_SAME_NUMBER(kIpcEventSupported, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
#if CUDA_VERSION >= 12030
FERRY_SAME_NUMBER(kMpsEnabled, CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
#endif
FERRY_SAME_NUMBER(kComputeModeDefault, CU_COMPUTEMODE_DEFAULT);
FERRY_SAME_NUMBER(kComputeModeProhibited, CU_COMPUTEMODE_PROHIBITED);
FERRY_SAME_NUMBER(kComputeModeExclusiveProcess, CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
FERRY_SAME_NUMBER(kPointerContext, CU_POINTER_ATTRIBUTE_CONTEXT);
FERRY_SAME_NUMBER(kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
FERRY_SAME_NUMBER(kPointerBufferId, CU_POINTER_ATTRIBUTE_BUFFER_ID);
FERRY_SAME_NUMBER(kPointerIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
FERRY_SAME_NUMBER(kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
FERRY_SAME_NUMBER(kPointerIsLegacyIpcCapable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
FERRY_SAME_NUMBER(kPointerMapped, CU_POINTER_ATTRIBUTE_MAPPED);
FERRY_SAME_NUMBER(kPointerAllowedHandleTypes, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
FERRY_SAME_NUMBER(kPointerIsRdmaCapable, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE);
FERRY_SAME_NUMBER(kPointerPool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
FERRY_SAME_NUMBER(kMemoryTypeHost, CU_MEMORYTYPE_HOST);
FERRY_SAME_NUMBER(kMemoryTypeDevice, CU_MEMORYTYPE_DEVICE);
FERRY_SAME_NUMBER(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
FERRY_SAME_NUMBER(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
FERRY_SAME_NUMBER(kEventInterprocess, CU_EVENT_INTERPROCESS);
FERRY_SAME_NUMBER(kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE);
FERRY_SAME_NUMBER(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
FERRY_SAME_NUMBER(kIpcLazyEnablePeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
FERRY_SAME_NUMBER(kHandleTypeNone, CU_MEM_HANDLE_TYPE_NONE);
FERRY_SAME_NUMBER(kHandleTypePosixFd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
#if CUDA_VERSION >= 12030
FERRY_SAME_NUMBER(kHandleTypeFabric, CU_MEM_HANDLE_TYPE_FABRIC);
#endif
FERRY_SAME_NUMBER(kAllocationTypePinned, CU_MEM_ALLOCATION_TYPE_PINNED);
FERRY_SAME_NUMBER(kLocationTypeDevice, CU_MEM_LOCATION_TYPE_DEVICE);
FERRY_SAME_NUMBER(kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
FERRY_SAME_NUMBER(kGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
FERRY_SAME_NUMBER(kGranularityRecommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
FERRY_SAME_NUMBER(kPoolReleaseThreshold, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);

// The test is that this file compiles.
TEST(DriverTypes, AreThoseOfTheToolkit) { EXPECT_GE(CUDA_VERSION, 11040); }

}  // namespace
}  // namespace ferry::cuda

// SPDX-License-Identifier: Apache-2.0
// The types and constants of the CUDA driver's ABI that Ferry uses, declared here so that no CUDA
// header is needed to build. They are part of the driver's stable interface; if a CUDA toolkit is
// installed, tests/gpu/driver_types_test compares each of them with its cuda.h.
#ifndef FERRY_GPU_CUDA_DRIVER_TYPES_H_
#define FERRY_GPU_CUDA_DRIVER_TYPES_H_

#include <cstddef>
#include <cstdint>

// The driver's own names for the targets of its handles, so that a stream of PyTorch, JAX or CuPy
// can be used without a cast.
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;
struct CUmemPoolHandle_st;

namespace ferry::cuda {

using Result = int;  // CUresult
using Device = int;  // CUdevice
using Context = ::CUctx_st*;
using Stream = ::CUstream_st*;
using Event = ::CUevent_st*;
using Module = ::CUmod_st*;
using Function = ::CUfunc_st*;
using MemoryPool = ::CUmemPoolHandle_st*;
using DevicePointer = unsigned long long;     // CUdeviceptr
using AllocationHandle = unsigned long long;  // CUmemGenericAllocationHandle
using HostFunction = void (*)(void* argument);

struct Uuid {  // CUuuid
  unsigned char bytes[16];
};

inline constexpr size_t kIpcHandleBytes = 64;

struct IpcMemoryHandle {  // CUipcMemHandle
  unsigned char bytes[kIpcHandleBytes];
};
struct IpcEventHandle {  // CUipcEventHandle
  unsigned char bytes[kIpcHandleBytes];
};
struct PoolPointerHandle {  // CUmemPoolPtrExportData
  unsigned char bytes[kIpcHandleBytes];
};

struct MemoryLocation {  // CUmemLocation
  int type;
  int id;
};

struct AllocationProperties {  // CUmemAllocationProp
  int type;
  int requested_handle_types;
  MemoryLocation location;
  void* win32_handle_metadata;
  unsigned char compression_type;
  unsigned char gpu_direct_rdma_capable;
  unsigned short usage;
  unsigned char reserved[4];
};

struct AccessDescription {  // CUmemAccessDesc
  MemoryLocation location;
  int flags;
};

struct PoolProperties {  // CUmemPoolProps
  int allocation_type;
  int handle_types;
  MemoryLocation location;
  void* win32_security_attributes;
  size_t max_bytes;
  unsigned short usage;
  unsigned char reserved[54];
};

static_assert(sizeof(Uuid) == 16);
static_assert(sizeof(AllocationProperties) == 32);
static_assert(sizeof(AccessDescription) == 12);
static_assert(sizeof(PoolProperties) == 88);

inline constexpr Result kSuccess = 0;
inline constexpr Result kErrorInvalidValue = 1;
inline constexpr Result kErrorOutOfMemory = 2;
inline constexpr Result kErrorNotInitialized = 3;
inline constexpr Result kErrorDeinitialized = 4;
inline constexpr Result kErrorDeviceUnavailable = 46;
inline constexpr Result kErrorNoDevice = 100;
inline constexpr Result kErrorInvalidDevice = 101;
inline constexpr Result kErrorInvalidContext = 201;
inline constexpr Result kErrorAlreadyMapped = 208;
inline constexpr Result kErrorPeerAccessUnsupported = 217;
inline constexpr Result kErrorInvalidHandle = 400;
inline constexpr Result kErrorNotFound = 500;
inline constexpr Result kErrorNotReady = 600;
inline constexpr Result kErrorPeerAccessAlreadyEnabled = 704;
inline constexpr Result kErrorNotPermitted = 800;
inline constexpr Result kErrorNotSupported = 801;

// CUdevice_attribute.
enum DeviceAttribute : int {
  kMultiprocessorCount = 16,
  kComputeMode = 20,
  kUnifiedAddressing = 41,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kVirtualMemoryManagementSupported = 102,
  kPosixFileDescriptorSupported = 103,
  kRdmaWithVirtualMemorySupported = 110,
  kMemoryPoolsSupported = 115,
  kPoolSupportedHandleTypes = 119,
  kIpcEventSupported = 125,
  // Named in cuda.h since CUDA 12.3; older drivers answer with an error.
  kMpsEnabled = 133,
};

// CUcomputemode.
inline constexpr int kComputeModeDefault = 0;
inline constexpr int kComputeModeProhibited = 2;
inline constexpr int kComputeModeExclusiveProcess = 3;

// CUpointer_attribute.
enum PointerAttribute : int {
  kPointerContext = 1,
  kPointerMemoryType = 2,
  kPointerBufferId = 7,
  kPointerIsManaged = 8,
  kPointerDeviceOrdinal = 9,
  kPointerIsLegacyIpcCapable = 10,
  kPointerMapped = 13,
  kPointerAllowedHandleTypes = 14,
  kPointerIsRdmaCapable = 15,
  kPointerPool = 17,
};

// CUmemorytype.
inline constexpr unsigned int kMemoryTypeHost = 1;
inline constexpr unsigned int kMemoryTypeDevice = 2;

// Flags of streams, events, host memory and IPC.
inline constexpr unsigned int kStreamNonBlocking = 1;
inline constexpr unsigned int kEventDisableTiming = 2;
inline constexpr unsigned int kEventInterprocess = 4;
inline constexpr unsigned int kHostAllocPortable = 1;
inline constexpr unsigned int kHostRegisterPortable = 1;
inline constexpr unsigned int kIpcLazyEnablePeerAccess = 1;

// CUmemAllocationHandleType, a set of bits.
inline constexpr int kHandleTypeNone = 0;
inline constexpr int kHandleTypePosixFd = 1;
inline constexpr int kHandleTypeFabric = 8;

inline constexpr int kAllocationTypePinned = 1;    // CUmemAllocationType
inline constexpr int kLocationTypeDevice = 1;      // CUmemLocationType
inline constexpr int kAccessReadWrite = 3;         // CUmemAccess_flags
inline constexpr int kGranularityMinimum = 0;      // CUmemAllocationGranularity_flags
inline constexpr int kGranularityRecommended = 1;  //
inline constexpr int kPoolReleaseThreshold = 4;    // CUmemPool_attribute, a uint64_t

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_DRIVER_TYPES_H_

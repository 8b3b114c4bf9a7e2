// SPDX-License-Identifier: Apache-2.0
// The driver functions that are recorded and replayed, each with its symbol, its member of
// CudaTable and its arguments: the one description from which the recorder exports and writes them,
// and from which cuda_replay reads, performs and compares them.
#ifndef FERRY_BENCHMARKS_GPU_CALLS_DRIVER_CALLS_H_
#define FERRY_BENCHMARKS_GPU_CALLS_DRIVER_CALLS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "gpu/cuda/cuda_api.h"

namespace ferry::calls {

// How an argument is written (docs/testing_gpu.md, "The record").
enum class Kind : uint8_t {
  kNone,
  kInt,    // also unsigned int and unsigned char
  kSize,   // 64 bits
  kFloat,  // outputs
  // Handles, which the replay replaces by its own.
  kContext,
  kStream,
  kEvent,
  kModule,
  kFunction,
  kPool,
  kAllocation,
  kMemory,                // an address, of a device or of pinned host memory
  kHost,                  // an address of host memory
  kText,                  // also outputs into a buffer of `bytes` bytes
  kTextPointer,           // outputs: the driver's own text
  kImage,                 // the format of a module alone
  kAllocationProperties,  // structs
  kPoolProperties,
  kAccess,            // a list of structs; the next argument is its length
  kAttributes,        // a list of numbers; the previous argument is its length
  kValues,            // of the attributes of the previous argument
  kPoolValue,         // 64 bits behind a pointer
  kBlob,              // 64 bytes that other processes can open
  kUuid,              // 16 bytes
  kShareable,         // a descriptor or 64 bytes, by the handle type of the call
  kKernelParameters,  // of the function of the call
  kIgnored,           // means nothing elsewhere: host functions and their arguments
};

// How a replay compares an output. Outputs of failed calls are not written.
enum class Compare : uint8_t {
  kExact,
  kHandle,  // the same null; the same handle if the record knows it
  kNever,   // depends on the machine or the time
};

struct Argument {
  const char* name = nullptr;
  Kind kind = Kind::kNone;
  bool is_output = false;
  Compare compare = Compare::kNever;
  bool creates = false;   // its value is a new handle, or memory of `bytes` bytes
  bool destroys = false;  // its value is a handle no more, if the call succeeds
  bool maps = false;      // an address at which the call puts memory, if it succeeds
  bool unmaps = false;
  bool may_be_foreign = false;  // an address that may be of memory that CUDA does not know
};

inline constexpr size_t kMaxArguments = 11;

struct DriverCall {
  const char* symbol = nullptr;
  bool is_poll = false;  // whether success or "not ready" is a matter of time
  size_t count = 0;
  std::array<Argument, kMaxArguments> arguments{};
};

constexpr Argument In(const char* name, Kind kind) { return {.name = name, .kind = kind}; }
constexpr Argument Ends(const char* name, Kind kind) {
  return {.name = name, .kind = kind, .destroys = true};
}
constexpr Argument Maps(const char* name) {
  return {.name = name, .kind = Kind::kMemory, .maps = true};
}
constexpr Argument Unmaps(const char* name) {
  return {.name = name, .kind = Kind::kMemory, .unmaps = true};
}
constexpr Argument AnyAddress(const char* name) {
  return {.name = name, .kind = Kind::kMemory, .may_be_foreign = true};
}
constexpr Argument Registers(const char* name) {
  return {.name = name, .kind = Kind::kHost, .creates = true};
}
constexpr Argument Out(const char* name, Kind kind, Compare compare) {
  return {.name = name, .kind = kind, .is_output = true, .compare = compare};
}
constexpr Argument Makes(const char* name, Kind kind) {
  return {
      .name = name, .kind = kind, .is_output = true, .compare = Compare::kHandle, .creates = true};
}

template <typename... Arguments>
constexpr DriverCall Describe(const char* symbol, Arguments... arguments) {
  static_assert(sizeof...(arguments) <= kMaxArguments);
  return {.symbol = symbol,
          .is_poll = std::string_view(symbol).find("Query") != std::string_view::npos ||
                     std::string_view(symbol) == "cuEventElapsedTime",
          .count = sizeof...(arguments),
          .arguments = {arguments...}};
}

// Used by gpu_check alone, and not in CudaTable.
using AllocManaged = cuda::Result (*)(cuda::DevicePointer*, size_t, unsigned int);

// CALL(symbol, member of CudaTable, arguments...), MORE(symbol, type, arguments...).
// clang-format off
#define FERRY_DRIVER_CALLS(CALL, MORE)                                                             \
  CALL(cuInit, init, In("flags", Kind::kInt))                                                      \
  CALL(cuDriverGetVersion, driver_get_version, Out("version", Kind::kInt, Compare::kExact))        \
  CALL(cuGetErrorName, get_error_name, In("error", Kind::kInt),                                    \
       Out("text", Kind::kTextPointer, Compare::kExact))                                                  \
  CALL(cuGetErrorString, get_error_string, In("error", Kind::kInt),                                \
       Out("text", Kind::kTextPointer, Compare::kNever))                                                  \
  CALL(cuDeviceGetCount, device_get_count, Out("count", Kind::kInt, Compare::kExact))              \
  CALL(cuDeviceGet, device_get, Out("device", Kind::kInt, Compare::kExact),                        \
       In("ordinal", Kind::kInt))                                                                  \
  CALL(cuDeviceGetName, device_get_name, Out("name", Kind::kText, Compare::kNever),                \
       In("bytes", Kind::kInt), In("device", Kind::kInt))                                          \
  CALL(cuDeviceGetUuid_v2, device_get_uuid, Out("uuid", Kind::kUuid, Compare::kNever),             \
       In("device", Kind::kInt))                                                                   \
  CALL(cuDeviceGetPCIBusId, device_get_pci_bus_id, Out("name", Kind::kText, Compare::kNever),      \
       In("bytes", Kind::kInt), In("device", Kind::kInt))                                          \
  CALL(cuDeviceGetAttribute, device_get_attribute, Out("value", Kind::kInt, Compare::kExact),      \
       In("attribute", Kind::kInt), In("device", Kind::kInt))                                      \
  CALL(cuDeviceTotalMem_v2, device_total_mem, Out("total", Kind::kSize, Compare::kNever),          \
       In("device", Kind::kInt))                                                                   \
  CALL(cuDevicePrimaryCtxRetain, primary_context_retain, Makes("context", Kind::kContext),         \
       In("device", Kind::kInt))                                                                   \
  CALL(cuDevicePrimaryCtxRelease_v2, primary_context_release, In("device", Kind::kInt))            \
  CALL(cuCtxPushCurrent_v2, context_push, In("context", Kind::kContext))                           \
  CALL(cuCtxPopCurrent_v2, context_pop, Out("context", Kind::kContext, Compare::kHandle))          \
  CALL(cuCtxGetCurrent, context_get_current, Out("context", Kind::kContext, Compare::kHandle))     \
  CALL(cuDeviceCanAccessPeer, device_can_access_peer, Out("can", Kind::kInt, Compare::kExact),     \
       In("device", Kind::kInt), In("peer", Kind::kInt))                                           \
  CALL(cuCtxEnablePeerAccess, context_enable_peer_access, In("peer", Kind::kContext),              \
       In("flags", Kind::kInt))                                                                    \
  CALL(cuStreamCreateWithPriority, stream_create_with_priority, Makes("stream", Kind::kStream),    \
       In("flags", Kind::kInt), In("priority", Kind::kInt))                                        \
  CALL(cuStreamDestroy_v2, stream_destroy, Ends("stream", Kind::kStream))                          \
  CALL(cuStreamQuery, stream_query, In("stream", Kind::kStream))                                   \
  CALL(cuStreamSynchronize, stream_synchronize, In("stream", Kind::kStream))                       \
  CALL(cuStreamWaitEvent, stream_wait_event, In("stream", Kind::kStream),                          \
       In("event", Kind::kEvent), In("flags", Kind::kInt))                                         \
  CALL(cuEventCreate, event_create, Makes("event", Kind::kEvent), In("flags", Kind::kInt))         \
  CALL(cuEventDestroy_v2, event_destroy, Ends("event", Kind::kEvent))                              \
  CALL(cuEventRecord, event_record, In("event", Kind::kEvent), In("stream", Kind::kStream))        \
  CALL(cuEventQuery, event_query, In("event", Kind::kEvent))                                       \
  CALL(cuEventSynchronize, event_synchronize, In("event", Kind::kEvent))                           \
  CALL(cuEventElapsedTime, event_elapsed_time,                                                     \
       Out("milliseconds", Kind::kFloat, Compare::kNever), In("start", Kind::kEvent),              \
       In("end", Kind::kEvent))                                                                    \
  CALL(cuMemGetInfo_v2, memory_get_info, Out("free", Kind::kSize, Compare::kNever),                \
       Out("total", Kind::kSize, Compare::kNever))                                                 \
  CALL(cuMemAlloc_v2, memory_alloc, Makes("pointer", Kind::kMemory), In("bytes", Kind::kSize))     \
  CALL(cuMemFree_v2, memory_free, Ends("pointer", Kind::kMemory))                                  \
  CALL(cuMemGetAddressRange_v2, memory_get_address_range,                                          \
       Out("base", Kind::kMemory, Compare::kHandle), Out("bytes", Kind::kSize, Compare::kExact),   \
       AnyAddress("pointer"))                                                                      \
  CALL(cuMemHostAlloc, host_alloc, Makes("pointer", Kind::kHost), In("bytes", Kind::kSize),        \
       In("flags", Kind::kInt))                                                                    \
  CALL(cuMemFreeHost, host_free, Ends("pointer", Kind::kHost))                                     \
  CALL(cuMemHostRegister_v2, host_register, Registers("pointer"), In("bytes", Kind::kSize),        \
       In("flags", Kind::kInt))                                                                    \
  CALL(cuMemHostUnregister, host_unregister, Ends("pointer", Kind::kHost))                         \
  CALL(cuPointerGetAttributes, pointer_get_attributes, In("count", Kind::kInt),                    \
       In("attributes", Kind::kAttributes), Out("values", Kind::kValues, Compare::kExact),         \
       AnyAddress("pointer"))                                                                      \
  CALL(cuMemcpyAsync, copy_async, In("to", Kind::kMemory), In("from", Kind::kMemory),              \
       In("bytes", Kind::kSize), In("stream", Kind::kStream))                                      \
  CALL(cuMemcpyPeerAsync, copy_peer_async, In("to", Kind::kMemory),                                \
       In("to_context", Kind::kContext), In("from", Kind::kMemory),                                \
       In("from_context", Kind::kContext), In("bytes", Kind::kSize), In("stream", Kind::kStream))  \
  CALL(cuMemcpyHtoDAsync_v2, copy_to_device_async, In("to", Kind::kMemory),                        \
       In("from", Kind::kHost), In("bytes", Kind::kSize), In("stream", Kind::kStream))             \
  CALL(cuMemcpyDtoHAsync_v2, copy_to_host_async, In("to", Kind::kHost),                            \
       In("from", Kind::kMemory), In("bytes", Kind::kSize), In("stream", Kind::kStream))           \
  CALL(cuMemsetD8Async, set_bytes_async, In("to", Kind::kMemory), In("value", Kind::kInt),         \
       In("bytes", Kind::kSize), In("stream", Kind::kStream))                                      \
  CALL(cuIpcGetMemHandle, ipc_get_memory_handle, Out("handle", Kind::kBlob, Compare::kNever),      \
       In("pointer", Kind::kMemory))                                                               \
  CALL(cuIpcOpenMemHandle_v2, ipc_open_memory_handle, Makes("pointer", Kind::kMemory),             \
       In("handle", Kind::kBlob), In("flags", Kind::kInt))                                         \
  CALL(cuIpcCloseMemHandle, ipc_close_memory_handle, Ends("pointer", Kind::kMemory))               \
  CALL(cuIpcGetEventHandle, ipc_get_event_handle, Out("handle", Kind::kBlob, Compare::kNever),     \
       In("event", Kind::kEvent))                                                                  \
  CALL(cuIpcOpenEventHandle, ipc_open_event_handle, Makes("event", Kind::kEvent),                  \
       In("handle", Kind::kBlob))                                                                  \
  CALL(cuMemAddressReserve, address_reserve, Makes("pointer", Kind::kMemory),                      \
       In("bytes", Kind::kSize), In("alignment", Kind::kSize), In("wanted", Kind::kMemory),        \
       In("flags", Kind::kSize))                                                                   \
  CALL(cuMemAddressFree, address_free, Ends("pointer", Kind::kMemory), In("bytes", Kind::kSize))   \
  CALL(cuMemCreate, memory_create, Makes("allocation", Kind::kAllocation),                         \
       In("bytes", Kind::kSize), In("properties", Kind::kAllocationProperties),                    \
       In("flags", Kind::kSize))                                                                   \
  CALL(cuMemRelease, memory_release, Ends("allocation", Kind::kAllocation))                        \
  CALL(cuMemMap, memory_map, Maps("pointer"), In("bytes", Kind::kSize),               \
       In("offset", Kind::kSize), In("allocation", Kind::kAllocation), In("flags", Kind::kSize))   \
  CALL(cuMemUnmap, memory_unmap, Unmaps("pointer"), In("bytes", Kind::kSize))           \
  CALL(cuMemSetAccess, memory_set_access, In("pointer", Kind::kMemory), In("bytes", Kind::kSize),  \
       In("access", Kind::kAccess), In("count", Kind::kSize))                                      \
  CALL(cuMemExportToShareableHandle, memory_export,                                                \
       Out("shareable", Kind::kShareable, Compare::kNever), In("allocation", Kind::kAllocation),   \
       In("handle_type", Kind::kInt), In("flags", Kind::kSize))                                    \
  CALL(cuMemImportFromShareableHandle, memory_import, Makes("allocation", Kind::kAllocation),      \
       In("shareable", Kind::kShareable), In("handle_type", Kind::kInt))                           \
  CALL(cuMemGetAllocationGranularity, memory_granularity,                                          \
       Out("granularity", Kind::kSize, Compare::kExact),                                           \
       In("properties", Kind::kAllocationProperties), In("option", Kind::kInt))                    \
  CALL(cuMemRetainAllocationHandle, memory_retain_handle,                                          \
       Makes("allocation", Kind::kAllocation), AnyAddress("address"))                              \
  CALL(cuDeviceGetDefaultMemPool, device_get_default_pool, Makes("pool", Kind::kPool),             \
       In("device", Kind::kInt))                                                                   \
  CALL(cuMemPoolCreate, pool_create, Makes("pool", Kind::kPool),                                   \
       In("properties", Kind::kPoolProperties))                                                    \
  CALL(cuMemPoolDestroy, pool_destroy, Ends("pool", Kind::kPool))                                  \
  CALL(cuMemPoolSetAccess, pool_set_access, In("pool", Kind::kPool), In("access", Kind::kAccess),  \
       In("count", Kind::kSize))                                                                   \
  CALL(cuMemPoolSetAttribute, pool_set_attribute, In("pool", Kind::kPool),                         \
       In("attribute", Kind::kInt), In("value", Kind::kPoolValue))                                 \
  CALL(cuMemAllocFromPoolAsync, pool_alloc_async, Makes("pointer", Kind::kMemory),                 \
       In("bytes", Kind::kSize), In("pool", Kind::kPool), In("stream", Kind::kStream))             \
  CALL(cuMemFreeAsync, memory_free_async, Ends("pointer", Kind::kMemory),                          \
       In("stream", Kind::kStream))                                                                \
  CALL(cuMemPoolExportToShareableHandle, pool_export,                                              \
       Out("shareable", Kind::kShareable, Compare::kNever), In("pool", Kind::kPool),               \
       In("handle_type", Kind::kInt), In("flags", Kind::kSize))                                    \
  CALL(cuMemPoolImportFromShareableHandle, pool_import, Makes("pool", Kind::kPool),                \
       In("shareable", Kind::kShareable), In("handle_type", Kind::kInt),                           \
       In("flags", Kind::kSize))                                                                   \
  CALL(cuMemPoolExportPointer, pool_export_pointer, Out("handle", Kind::kBlob, Compare::kNever),   \
       In("pointer", Kind::kMemory))                                                               \
  CALL(cuMemPoolImportPointer, pool_import_pointer, Makes("pointer", Kind::kMemory),               \
       In("pool", Kind::kPool), In("handle", Kind::kBlob))                                         \
  CALL(cuModuleLoadData, module_load_data, Makes("module", Kind::kModule),                         \
       In("image", Kind::kImage))                                                                  \
  CALL(cuModuleUnload, module_unload, Ends("module", Kind::kModule))                               \
  CALL(cuModuleGetFunction, module_get_function, Makes("function", Kind::kFunction),               \
       In("module", Kind::kModule), In("name", Kind::kText))                                       \
  CALL(cuLaunchKernel, launch_kernel, In("function", Kind::kFunction), In("grid_x", Kind::kInt),   \
       In("grid_y", Kind::kInt), In("grid_z", Kind::kInt), In("block_x", Kind::kInt),              \
       In("block_y", Kind::kInt), In("block_z", Kind::kInt), In("shared_bytes", Kind::kInt),       \
       In("stream", Kind::kStream), In("parameters", Kind::kKernelParameters),                     \
       In("extra", Kind::kIgnored))                                                                \
  CALL(cuLaunchHostFunc, launch_host_function, In("stream", Kind::kStream),                        \
       In("host_function", Kind::kIgnored), In("argument", Kind::kIgnored))                        \
  MORE(cuMemAllocManaged, AllocManaged, Makes("pointer", Kind::kMemory),                           \
       In("bytes", Kind::kSize), In("flags", Kind::kInt))
// clang-format on

#define FERRY_DESCRIBED(symbol, member, ...) Describe(#symbol, __VA_ARGS__),
inline constexpr DriverCall kDriverCalls[] = {FERRY_DRIVER_CALLS(FERRY_DESCRIBED, FERRY_DESCRIBED)};
#undef FERRY_DESCRIBED

// Returns the index in kDriverCalls, or -1.
constexpr int FindDriverCall(std::string_view symbol) {
  for (size_t i = 0; i < std::size(kDriverCalls); ++i) {
    if (symbol == kDriverCalls[i].symbol) return static_cast<int>(i);
  }
  return -1;
}

// Returns the index of the argument, or -1.
constexpr int FindArgument(const DriverCall& call, std::string_view name) {
  for (size_t i = 0; i < call.count; ++i) {
    if (name == call.arguments[i].name) return static_cast<int>(i);
  }
  return -1;
}

constexpr bool EndsSomething(const DriverCall& call) {
  for (size_t i = 0; i < call.count; ++i) {
    if (call.arguments[i].destroys || call.arguments[i].unmaps) return true;
  }
  return false;
}

// True for a call that opens something that another process has exported.
constexpr bool OpensSomething(const DriverCall& call) {
  for (size_t i = 0; i < call.count; ++i) {
    const Kind kind = call.arguments[i].kind;
    if (!call.arguments[i].is_output && (kind == Kind::kBlob || kind == Kind::kShareable)) {
      return true;
    }
  }
  return false;
}

constexpr bool IsHandle(Kind kind) { return kind >= Kind::kContext && kind <= Kind::kAllocation; }
constexpr bool IsAddress(Kind kind) { return kind == Kind::kMemory || kind == Kind::kHost; }

// The word before the number of a handle or an address.
constexpr const char* PrefixOf(Kind kind) {
  constexpr const char* kPrefixes[] = {"context", "stream",     "event",  "module", "function",
                                       "pool",    "allocation", "memory", "host"};
  return IsHandle(kind) || IsAddress(kind)
             ? kPrefixes[static_cast<size_t>(kind) - static_cast<size_t>(Kind::kContext)]
             : "";
}

// The type of a pointer attribute: kContext, kPool, kInt or kSize, or kNone if it is
// not known here. `bytes` are written by the driver.
struct AttributeShape {
  Kind kind = Kind::kNone;
  size_t bytes = 0;
  Compare compare = Compare::kExact;
};
constexpr AttributeShape ShapeOf(int64_t attribute) {
  switch (attribute) {
    case cuda::kPointerContext:
      return {Kind::kContext, 8, Compare::kHandle};
    case cuda::kPointerPool:
      return {Kind::kPool, 8, Compare::kHandle};
    case cuda::kPointerBufferId:
      return {Kind::kSize, 8, Compare::kNever};
    case cuda::kPointerMemoryType:
    case cuda::kPointerDeviceOrdinal:
    case cuda::kPointerAllowedHandleTypes:
      return {Kind::kInt, 4, Compare::kExact};
    case cuda::kPointerIsManaged:
    case cuda::kPointerIsLegacyIpcCapable:
    case cuda::kPointerMapped:
    case cuda::kPointerIsRdmaCapable:
      return {Kind::kInt, 1, Compare::kExact};
    default:
      return {};
  }
}

}  // namespace ferry::calls

#endif  // FERRY_BENCHMARKS_GPU_CALLS_DRIVER_CALLS_H_

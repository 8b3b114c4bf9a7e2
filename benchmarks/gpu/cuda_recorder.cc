// SPDX-License-Identifier: Apache-2.0
// libferry_cuda_recorder.so: forwards the CUDA driver functions that Ferry uses, and records each
// call with its arguments, outputs and result. It is loaded in place of the driver:
//   FERRY_CUDA_LIBRARY=libferry_cuda_recorder.so FERRY_CUDA_RECORD=FOLDER PROGRAM
// It forwards to FERRY_CUDA_RECORD_LIBRARY (default libcuda.so.1) and writes FOLDER/PID.calls, one
// line per call:
//   THREAD MICROSECONDS NANOSECONDS RESULT SYMBOL ARGUMENT...
// MICROSECONDS is the steady clock when the call began, NANOSECONDS the duration of the call, and
// RESULT a CUresult. An argument that points to an output is written as ADDRESS=VALUE, with the
// value after the call. A poll (cuEventQuery, cuStreamQuery) that repeats the previous line of its
// thread is counted: "THREAD repeated COUNT". After kMaxLines a process records nothing more. Calls
// that NCCL and other libraries make are not seen.
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>

#include "gpu/cuda/cuda_api.h"

namespace ferry::cuda {
namespace {

constexpr int kMaxLines = 200'000;
constexpr Result kErrorNotFound = 500;

std::atomic<int> line_count{0};
// The calling thread's buffer.
thread_local std::string last_call;
thread_local int repeat_count = 0;

void* Driver() {
  static void* const driver = [] {
    const char* const named = std::getenv("FERRY_CUDA_RECORD_LIBRARY");
    void* const handle = dlopen(named != nullptr ? named : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) std::fprintf(stderr, "libferry_cuda_recorder.so: %s\n", dlerror());
    return handle;
  }();
  return driver;
}

// Returns null if nothing is to be recorded. A forked child opens a file of its own.
FILE* Log() {
  static std::atomic<FILE*> file{nullptr};
  static std::atomic<pid_t> owner{0};
  const pid_t pid = getpid();
  if (owner.load(std::memory_order_acquire) == pid) return file.load(std::memory_order_relaxed);
  const char* const folder = std::getenv("FERRY_CUDA_RECORD");
  if (folder == nullptr) return nullptr;
  const std::string path = std::string(folder) + "/" + std::to_string(pid) + ".calls";
  FILE* const opened = std::fopen(path.c_str(), "ae");
  // A process that is killed leaves whole lines.
  if (opened != nullptr) setvbuf(opened, nullptr, _IOLBF, 1 << 12);
  file.store(opened, std::memory_order_relaxed);
  owner.store(pid, std::memory_order_release);
  return opened;
}

std::string Hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

template <typename T>
constexpr bool kIsOutput =
    std::is_same_v<T, int*> || std::is_same_v<T, size_t*> || std::is_same_v<T, float*> ||
    std::is_same_v<T, DevicePointer*> || std::is_same_v<T, Context*> ||
    std::is_same_v<T, Stream*> || std::is_same_v<T, Event*> || std::is_same_v<T, Module*> ||
    std::is_same_v<T, Function*> || std::is_same_v<T, MemoryPool*> || std::is_same_v<T, void**>;

template <typename T>
std::string Text(T value) {
  if constexpr (kIsOutput<T>) {
    const std::string text = Hex(reinterpret_cast<uint64_t>(value));
    return value == nullptr ? text : text + "=" + Text(*value);
  } else if constexpr (std::is_same_v<T, const char*>) {
    return value == nullptr ? "null" : value;
  } else if constexpr (std::is_pointer_v<T>) {
    return Hex(reinterpret_cast<uint64_t>(value));
  } else if constexpr (std::is_same_v<T, DevicePointer>) {
    return Hex(value);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(value);
  } else {
    // An IPC handle: its first bytes.
    uint64_t first = 0;
    std::memcpy(&first, &value, sizeof(first));
    return "handle:" + Hex(first);
  }
}

void Write(FILE* log, std::chrono::steady_clock::time_point began,
           std::chrono::steady_clock::duration taken, const std::string& call, bool is_poll) {
  if (is_poll && call == last_call) {
    ++repeat_count;
    return;
  }
  const long thread = syscall(SYS_gettid);
  if (repeat_count > 0) std::fprintf(log, "%ld repeated %d\n", thread, repeat_count);
  std::fprintf(
      log, "%ld %lld %lld %s\n", thread,
      static_cast<long long>(
          std::chrono::duration_cast<std::chrono::microseconds>(began.time_since_epoch()).count()),
      static_cast<long long>(std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count()),
      call.c_str());
  line_count.fetch_add(1, std::memory_order_relaxed);
  repeat_count = 0;
  last_call = call;
}

template <typename Function>
struct Signature;

template <typename... Arguments>
struct Signature<Result (*)(Arguments...)> {
  // One instance per symbol.
  template <const char* const& kSymbol>
  static Result Call(Arguments... arguments) {
    static const auto function = reinterpret_cast<Result (*)(Arguments...)>(
        Driver() == nullptr ? nullptr : dlsym(Driver(), kSymbol));
    static const bool is_poll = std::strstr(kSymbol, "Query") != nullptr;
    if (function == nullptr) return kErrorNotFound;
    const auto began = std::chrono::steady_clock::now();
    const Result result = function(arguments...);
    const auto taken = std::chrono::steady_clock::now() - began;
    FILE* const log = Log();
    if (log == nullptr || line_count.load(std::memory_order_relaxed) >= kMaxLines) return result;
    std::string call = std::to_string(result) + " " + kSymbol;
    (call.append(1, ' ').append(Text(arguments)), ...);
    Write(log, began, taken, call, is_poll);
    return result;
  }
};

}  // namespace
}  // namespace ferry::cuda

// Exports `symbol`: the loader binds it to an instance of Call when it loads this library.
#define FERRY_FORWARD_AS(symbol, type)                                                       \
  namespace {                                                                                \
  const char* const symbol##_name = #symbol;                                                 \
  }                                                                                          \
  extern "C" {                                                                               \
  __attribute__((used)) static auto symbol##_resolve() -> void (*)() {                       \
    return reinterpret_cast<void (*)()>(&ferry::cuda::Signature<type>::Call<symbol##_name>); \
  }                                                                                          \
  __attribute__((visibility("default"), ifunc(#symbol "_resolve"))) void symbol();           \
  }
#define FERRY_FORWARD(symbol, member) \
  FERRY_FORWARD_AS(symbol, decltype(ferry::cuda::CudaTable::member))

FERRY_FORWARD(cuInit, init)
FERRY_FORWARD(cuDriverGetVersion, driver_get_version)
FERRY_FORWARD(cuGetErrorName, get_error_name)
FERRY_FORWARD(cuGetErrorString, get_error_string)
FERRY_FORWARD(cuDeviceGetCount, device_get_count)
FERRY_FORWARD(cuDeviceGet, device_get)
FERRY_FORWARD(cuDeviceGetName, device_get_name)
FERRY_FORWARD(cuDeviceGetUuid_v2, device_get_uuid)
FERRY_FORWARD(cuDeviceGetPCIBusId, device_get_pci_bus_id)
FERRY_FORWARD(cuDeviceGetAttribute, device_get_attribute)
FERRY_FORWARD(cuDeviceTotalMem_v2, device_total_mem)
FERRY_FORWARD(cuDevicePrimaryCtxRetain, primary_context_retain)
FERRY_FORWARD(cuDevicePrimaryCtxRelease_v2, primary_context_release)
FERRY_FORWARD(cuCtxPushCurrent_v2, context_push)
FERRY_FORWARD(cuCtxPopCurrent_v2, context_pop)
FERRY_FORWARD(cuCtxGetCurrent, context_get_current)
FERRY_FORWARD(cuDeviceCanAccessPeer, device_can_access_peer)
FERRY_FORWARD(cuCtxEnablePeerAccess, context_enable_peer_access)
FERRY_FORWARD(cuStreamCreateWithPriority, stream_create_with_priority)
FERRY_FORWARD(cuStreamDestroy_v2, stream_destroy)
FERRY_FORWARD(cuStreamQuery, stream_query)
FERRY_FORWARD(cuStreamSynchronize, stream_synchronize)
FERRY_FORWARD(cuStreamWaitEvent, stream_wait_event)
FERRY_FORWARD(cuEventCreate, event_create)
FERRY_FORWARD(cuEventDestroy_v2, event_destroy)
FERRY_FORWARD(cuEventRecord, event_record)
FERRY_FORWARD(cuEventQuery, event_query)
FERRY_FORWARD(cuEventSynchronize, event_synchronize)
FERRY_FORWARD(cuEventElapsedTime, event_elapsed_time)
FERRY_FORWARD(cuMemGetInfo_v2, memory_get_info)
FERRY_FORWARD(cuMemAlloc_v2, memory_alloc)
FERRY_FORWARD(cuMemFree_v2, memory_free)
FERRY_FORWARD(cuMemGetAddressRange_v2, memory_get_address_range)
FERRY_FORWARD(cuMemHostAlloc, host_alloc)
FERRY_FORWARD(cuMemFreeHost, host_free)
FERRY_FORWARD(cuMemHostRegister_v2, host_register)
FERRY_FORWARD(cuMemHostUnregister, host_unregister)
FERRY_FORWARD(cuPointerGetAttributes, pointer_get_attributes)
FERRY_FORWARD(cuMemcpyAsync, copy_async)
FERRY_FORWARD(cuMemcpyPeerAsync, copy_peer_async)
FERRY_FORWARD(cuMemcpyHtoDAsync_v2, copy_to_device_async)
FERRY_FORWARD(cuMemcpyDtoHAsync_v2, copy_to_host_async)
FERRY_FORWARD(cuMemsetD8Async, set_bytes_async)
FERRY_FORWARD(cuIpcGetMemHandle, ipc_get_memory_handle)
FERRY_FORWARD(cuIpcOpenMemHandle_v2, ipc_open_memory_handle)
FERRY_FORWARD(cuIpcCloseMemHandle, ipc_close_memory_handle)
FERRY_FORWARD(cuIpcGetEventHandle, ipc_get_event_handle)
FERRY_FORWARD(cuIpcOpenEventHandle, ipc_open_event_handle)
FERRY_FORWARD(cuMemAddressReserve, address_reserve)
FERRY_FORWARD(cuMemAddressFree, address_free)
FERRY_FORWARD(cuMemCreate, memory_create)
FERRY_FORWARD(cuMemRelease, memory_release)
FERRY_FORWARD(cuMemMap, memory_map)
FERRY_FORWARD(cuMemUnmap, memory_unmap)
FERRY_FORWARD(cuMemSetAccess, memory_set_access)
FERRY_FORWARD(cuMemExportToShareableHandle, memory_export)
FERRY_FORWARD(cuMemImportFromShareableHandle, memory_import)
FERRY_FORWARD(cuMemGetAllocationGranularity, memory_granularity)
FERRY_FORWARD(cuMemRetainAllocationHandle, memory_retain_handle)
FERRY_FORWARD(cuDeviceGetDefaultMemPool, device_get_default_pool)
FERRY_FORWARD(cuMemPoolCreate, pool_create)
FERRY_FORWARD(cuMemPoolDestroy, pool_destroy)
FERRY_FORWARD(cuMemPoolSetAccess, pool_set_access)
FERRY_FORWARD(cuMemPoolSetAttribute, pool_set_attribute)
FERRY_FORWARD(cuMemAllocFromPoolAsync, pool_alloc_async)
FERRY_FORWARD(cuMemFreeAsync, memory_free_async)
FERRY_FORWARD(cuMemPoolExportToShareableHandle, pool_export)
FERRY_FORWARD(cuMemPoolImportFromShareableHandle, pool_import)
FERRY_FORWARD(cuMemPoolExportPointer, pool_export_pointer)
FERRY_FORWARD(cuMemPoolImportPointer, pool_import_pointer)
FERRY_FORWARD(cuModuleLoadData, module_load_data)
FERRY_FORWARD(cuModuleUnload, module_unload)
FERRY_FORWARD(cuModuleGetFunction, module_get_function)
FERRY_FORWARD(cuLaunchKernel, launch_kernel)
FERRY_FORWARD(cuLaunchHostFunc, launch_host_function)

// Not in CudaTable: gpu_check makes managed memory.
using AllocManaged = ferry::cuda::Result (*)(ferry::cuda::DevicePointer*, size_t, unsigned int);
FERRY_FORWARD_AS(cuMemAllocManaged, AllocManaged)

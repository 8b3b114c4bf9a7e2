// SPDX-License-Identifier: Apache-2.0
// Loading the CUDA driver and naming its errors.
#include "gpu/cuda/cuda_api.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "gpu/shared_library.h"

namespace ferry::cuda {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";
constexpr char kOverride[] = "FERRY_CUDA_LIBRARY";

// Resolves functions in order; status() reports the first one that is missing.
class Resolver final {
 public:
  explicit Resolver(const SharedLibrary& library) : library_(library) {}

  template <typename Function>
  void operator()(const char* symbol, Function*& function) {
    if (status_.ok()) status_ = library_.Resolve(symbol, function);
  }

  const absl::Status& status() const { return status_; }

 private:
  const SharedLibrary& library_;
  absl::Status status_;
};

// The names are those of the ABI: where cuda.h maps cuMemAlloc to cuMemAlloc_v2, the old name is a
// different function.
absl::Status ResolveBase(const SharedLibrary& library, CudaTable& table) {
  Resolver resolve(library);
  resolve("cuInit", table.init);
  resolve("cuDriverGetVersion", table.driver_get_version);
  resolve("cuGetErrorName", table.get_error_name);
  resolve("cuGetErrorString", table.get_error_string);
  resolve("cuDeviceGetCount", table.device_get_count);
  resolve("cuDeviceGet", table.device_get);
  resolve("cuDeviceGetName", table.device_get_name);
  resolve("cuDeviceGetUuid_v2", table.device_get_uuid);
  resolve("cuDeviceGetPCIBusId", table.device_get_pci_bus_id);
  resolve("cuDeviceGetAttribute", table.device_get_attribute);
  resolve("cuDeviceTotalMem_v2", table.device_total_mem);
  return resolve.status();
}

absl::Status ResolveExecution(const SharedLibrary& library, CudaTable& table) {
  Resolver resolve(library);
  resolve("cuDevicePrimaryCtxRetain", table.primary_context_retain);
  resolve("cuDevicePrimaryCtxRelease_v2", table.primary_context_release);
  resolve("cuCtxPushCurrent_v2", table.context_push);
  resolve("cuCtxPopCurrent_v2", table.context_pop);
  resolve("cuCtxGetCurrent", table.context_get_current);
  resolve("cuDeviceCanAccessPeer", table.device_can_access_peer);
  resolve("cuCtxEnablePeerAccess", table.context_enable_peer_access);
  resolve("cuStreamCreateWithPriority", table.stream_create_with_priority);
  resolve("cuStreamDestroy_v2", table.stream_destroy);
  resolve("cuStreamQuery", table.stream_query);
  resolve("cuStreamSynchronize", table.stream_synchronize);
  resolve("cuStreamWaitEvent", table.stream_wait_event);
  resolve("cuEventCreate", table.event_create);
  resolve("cuEventDestroy_v2", table.event_destroy);
  resolve("cuEventRecord", table.event_record);
  resolve("cuEventQuery", table.event_query);
  resolve("cuEventSynchronize", table.event_synchronize);
  resolve("cuEventElapsedTime", table.event_elapsed_time);
  resolve("cuMemGetInfo_v2", table.memory_get_info);
  resolve("cuMemAlloc_v2", table.memory_alloc);
  resolve("cuMemFree_v2", table.memory_free);
  resolve("cuMemGetAddressRange_v2", table.memory_get_address_range);
  resolve("cuMemHostAlloc", table.host_alloc);
  resolve("cuMemFreeHost", table.host_free);
  resolve("cuMemHostRegister_v2", table.host_register);
  resolve("cuMemHostUnregister", table.host_unregister);
  resolve("cuPointerGetAttributes", table.pointer_get_attributes);
  resolve("cuMemcpyAsync", table.copy_async);
  resolve("cuMemcpyPeerAsync", table.copy_peer_async);
  resolve("cuMemcpyHtoDAsync_v2", table.copy_to_device_async);
  resolve("cuMemcpyDtoHAsync_v2", table.copy_to_host_async);
  resolve("cuMemsetD8Async", table.set_bytes_async);
  return resolve.status();
}

absl::Status ResolveIpc(const SharedLibrary& library, CudaTable& table) {
  Resolver resolve(library);
  resolve("cuIpcGetMemHandle", table.ipc_get_memory_handle);
  resolve("cuIpcOpenMemHandle_v2", table.ipc_open_memory_handle);
  resolve("cuIpcCloseMemHandle", table.ipc_close_memory_handle);
  resolve("cuIpcGetEventHandle", table.ipc_get_event_handle);
  resolve("cuIpcOpenEventHandle", table.ipc_open_event_handle);
  return resolve.status();
}

absl::Status ResolveVirtualMemory(const SharedLibrary& library, CudaTable& table) {
  Resolver resolve(library);
  resolve("cuMemAddressReserve", table.address_reserve);
  resolve("cuMemAddressFree", table.address_free);
  resolve("cuMemCreate", table.memory_create);
  resolve("cuMemRelease", table.memory_release);
  resolve("cuMemMap", table.memory_map);
  resolve("cuMemUnmap", table.memory_unmap);
  resolve("cuMemSetAccess", table.memory_set_access);
  resolve("cuMemExportToShareableHandle", table.memory_export);
  resolve("cuMemImportFromShareableHandle", table.memory_import);
  resolve("cuMemGetAllocationGranularity", table.memory_granularity);
  resolve("cuMemRetainAllocationHandle", table.memory_retain_handle);
  return resolve.status();
}

absl::Status ResolvePools(const SharedLibrary& library, CudaTable& table) {
  Resolver resolve(library);
  resolve("cuDeviceGetDefaultMemPool", table.device_get_default_pool);
  resolve("cuMemPoolCreate", table.pool_create);
  resolve("cuMemPoolDestroy", table.pool_destroy);
  resolve("cuMemPoolSetAccess", table.pool_set_access);
  resolve("cuMemPoolSetAttribute", table.pool_set_attribute);
  resolve("cuMemAllocFromPoolAsync", table.pool_alloc_async);
  resolve("cuMemFreeAsync", table.memory_free_async);
  resolve("cuMemPoolExportToShareableHandle", table.pool_export);
  resolve("cuMemPoolImportFromShareableHandle", table.pool_import);
  resolve("cuMemPoolExportPointer", table.pool_export_pointer);
  resolve("cuMemPoolImportPointer", table.pool_import_pointer);
  return resolve.status();
}

absl::Status ResolveModules(const SharedLibrary& library, CudaTable& table) {
  Resolver resolve(library);
  resolve("cuModuleLoadData", table.module_load_data);
  resolve("cuModuleUnload", table.module_unload);
  resolve("cuModuleGetFunction", table.module_get_function);
  resolve("cuLaunchKernel", table.launch_kernel);
  resolve("cuLaunchHostFunc", table.launch_host_function);
  return resolve.status();
}

// Checked first: an old driver lacks functions, and "too old" explains more than their names.
absl::StatusOr<int> CheckedVersion(const SharedLibrary& library) {
  Result (*get_version)(int*) = nullptr;
  FERRY_RETURN_IF_ERROR(library.Resolve("cuDriverGetVersion", get_version));
  int version = 0;
  const Result result = get_version(&version);
  if (result != kSuccess) {
    return absl::InternalError(
        absl::StrCat("cuDriverGetVersion of ", library.path(), " failed with code ", result));
  }
  if (version < kMinDriverVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(library.path(), " is of CUDA ", VersionText(version), ", at least ",
                     VersionText(kMinDriverVersion), " is needed"));
  }
  return version;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaApi>> CudaApi::Load() {
  FERRY_ASSIGN_OR_RETURN(const SharedLibrary library, SharedLibrary::Open(kLibrary, kOverride));
  std::unique_ptr<CudaApi> api = absl::WrapUnique(new CudaApi);
  api->path_ = library.path();
  FERRY_ASSIGN_OR_RETURN(api->version_, CheckedVersion(library));
  FERRY_RETURN_IF_ERROR(ResolveBase(library, api->table_));
  // In the order of CudaGroup.
  api->groups_ = {ResolveExecution(library, api->table_), ResolveIpc(library, api->table_),
                  ResolveVirtualMemory(library, api->table_), ResolvePools(library, api->table_),
                  ResolveModules(library, api->table_)};
  FERRY_RETURN_IF_ERROR(api->Check(api->table_.init(0), "cuInit"));
  return api;
}

absl::Status CudaApi::Check(Result result, absl::string_view call) const {
  if (result == kSuccess) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  // Both leave null for codes they do not know.
  table_.get_error_name(result, &name);
  table_.get_error_string(result, &text);
  const std::string message =
      absl::StrCat(call, " failed with code ", result, " ", name == nullptr ? "(unknown)" : name,
                   text == nullptr ? "" : absl::StrCat(": ", text));
  switch (result) {
    case kErrorNoDevice:
      return absl::NotFoundError(message);
    case kErrorOutOfMemory:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

std::string UuidText(const Uuid& uuid) {
  std::string text = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(uuid.bytes), sizeof(uuid.bytes)));
  for (const size_t dash : {8, 13, 18, 23}) text.insert(dash, "-");
  return absl::StrCat("GPU-", text);
}

}  // namespace ferry::cuda

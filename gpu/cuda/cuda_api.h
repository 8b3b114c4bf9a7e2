// SPDX-License-Identifier: Apache-2.0
// CudaApi: the CUDA driver, loaded at run time, as a function table.
#ifndef FERRY_GPU_CUDA_CUDA_API_H_
#define FERRY_GPU_CUDA_CUDA_API_H_

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "gpu/cuda/driver_types.h"

namespace ferry::cuda {

// 11.4: the first driver with cuDeviceGetUuid_v2, which distinguishes MIG slices of one GPU.
inline constexpr int kMinDriverVersion = 11040;

// Functions of libcuda.so.1. Those of a group may be called only if CudaApi::Has returns OK.
struct CudaTable {
  // Always present; no context needed.
  Result (*init)(unsigned int flags) = nullptr;
  Result (*driver_get_version)(int* version) = nullptr;
  Result (*get_error_name)(Result error, const char** text) = nullptr;
  Result (*get_error_string)(Result error, const char** text) = nullptr;
  Result (*device_get_count)(int* count) = nullptr;
  Result (*device_get)(Device* device, int ordinal) = nullptr;
  Result (*device_get_name)(char* name, int bytes, Device device) = nullptr;
  Result (*device_get_uuid)(Uuid* uuid, Device device) = nullptr;
  Result (*device_get_pci_bus_id)(char* bus_id, int bytes, Device device) = nullptr;
  Result (*device_get_attribute)(int* value, int attribute, Device device) = nullptr;
  Result (*device_total_mem)(size_t* bytes, Device device) = nullptr;

  // CudaGroup::kExecution: contexts, streams, events, device memory and copies.
  Result (*primary_context_retain)(Context* context, Device device) = nullptr;
  Result (*primary_context_release)(Device device) = nullptr;
  Result (*context_push)(Context context) = nullptr;
  Result (*context_pop)(Context* context) = nullptr;
  Result (*context_get_current)(Context* context) = nullptr;
  Result (*device_can_access_peer)(int* can, Device device, Device peer) = nullptr;
  Result (*context_enable_peer_access)(Context peer, unsigned int flags) = nullptr;
  Result (*stream_create_with_priority)(Stream* stream, unsigned int flags, int priority) = nullptr;
  Result (*stream_destroy)(Stream stream) = nullptr;
  Result (*stream_query)(Stream stream) = nullptr;
  Result (*stream_synchronize)(Stream stream) = nullptr;
  Result (*stream_wait_event)(Stream stream, Event event, unsigned int flags) = nullptr;
  Result (*event_create)(Event* event, unsigned int flags) = nullptr;
  Result (*event_destroy)(Event event) = nullptr;
  Result (*event_record)(Event event, Stream stream) = nullptr;
  Result (*event_query)(Event event) = nullptr;
  Result (*event_synchronize)(Event event) = nullptr;
  Result (*event_elapsed_time)(float* milliseconds, Event start, Event end) = nullptr;
  Result (*memory_get_info)(size_t* free_bytes, size_t* total_bytes) = nullptr;
  Result (*memory_alloc)(DevicePointer* pointer, size_t bytes) = nullptr;
  Result (*memory_free)(DevicePointer pointer) = nullptr;
  Result (*memory_get_address_range)(DevicePointer* base, size_t* bytes,
                                     DevicePointer pointer) = nullptr;
  Result (*host_alloc)(void** pointer, size_t bytes, unsigned int flags) = nullptr;
  Result (*host_free)(void* pointer) = nullptr;
  Result (*host_register)(void* pointer, size_t bytes, unsigned int flags) = nullptr;
  Result (*host_unregister)(void* pointer) = nullptr;
  Result (*pointer_get_attributes)(unsigned int count, PointerAttribute* attributes, void** values,
                                   DevicePointer pointer) = nullptr;
  Result (*copy_async)(DevicePointer to, DevicePointer from, size_t bytes, Stream stream) = nullptr;
  Result (*copy_peer_async)(DevicePointer to, Context to_context, DevicePointer from,
                            Context from_context, size_t bytes, Stream stream) = nullptr;
  Result (*copy_to_device_async)(DevicePointer to, const void* from, size_t bytes,
                                 Stream stream) = nullptr;
  Result (*copy_to_host_async)(void* to, DevicePointer from, size_t bytes, Stream stream) = nullptr;
  Result (*set_bytes_async)(DevicePointer to, unsigned char value, size_t bytes,
                            Stream stream) = nullptr;

  // CudaGroup::kIpc: legacy memory handles, and interprocess events.
  Result (*ipc_get_memory_handle)(IpcMemoryHandle* handle, DevicePointer pointer) = nullptr;
  Result (*ipc_open_memory_handle)(DevicePointer* pointer, IpcMemoryHandle handle,
                                   unsigned int flags) = nullptr;
  Result (*ipc_close_memory_handle)(DevicePointer pointer) = nullptr;
  Result (*ipc_get_event_handle)(IpcEventHandle* handle, Event event) = nullptr;
  Result (*ipc_open_event_handle)(Event* event, IpcEventHandle handle) = nullptr;

  // CudaGroup::kVirtualMemory: separate physical memory and addresses, exported as descriptors.
  Result (*address_reserve)(DevicePointer* pointer, size_t bytes, size_t alignment,
                            DevicePointer wanted, unsigned long long flags) = nullptr;
  Result (*address_free)(DevicePointer pointer, size_t bytes) = nullptr;
  Result (*memory_create)(AllocationHandle* handle, size_t bytes,
                          const AllocationProperties* properties,
                          unsigned long long flags) = nullptr;
  Result (*memory_release)(AllocationHandle handle) = nullptr;
  Result (*memory_map)(DevicePointer pointer, size_t bytes, size_t offset, AllocationHandle handle,
                       unsigned long long flags) = nullptr;
  Result (*memory_unmap)(DevicePointer pointer, size_t bytes) = nullptr;
  Result (*memory_set_access)(DevicePointer pointer, size_t bytes,
                              const AccessDescription* descriptions, size_t count) = nullptr;
  Result (*memory_export)(void* shareable, AllocationHandle handle, int handle_type,
                          unsigned long long flags) = nullptr;
  Result (*memory_import)(AllocationHandle* handle, void* shareable, int handle_type) = nullptr;
  Result (*memory_granularity)(size_t* bytes, const AllocationProperties* properties,
                               int option) = nullptr;
  Result (*memory_retain_handle)(AllocationHandle* handle, void* address) = nullptr;

  // CudaGroup::kPools: stream-ordered allocation.
  Result (*device_get_default_pool)(MemoryPool* pool, Device device) = nullptr;
  Result (*pool_create)(MemoryPool* pool, const PoolProperties* properties) = nullptr;
  Result (*pool_destroy)(MemoryPool pool) = nullptr;
  Result (*pool_set_access)(MemoryPool pool, const AccessDescription* descriptions,
                            size_t count) = nullptr;
  Result (*pool_set_attribute)(MemoryPool pool, int attribute, void* value) = nullptr;
  Result (*pool_alloc_async)(DevicePointer* pointer, size_t bytes, MemoryPool pool,
                             Stream stream) = nullptr;
  Result (*memory_free_async)(DevicePointer pointer, Stream stream) = nullptr;
  Result (*pool_export)(void* shareable, MemoryPool pool, int handle_type,
                        unsigned long long flags) = nullptr;
  Result (*pool_import)(MemoryPool* pool, void* shareable, int handle_type,
                        unsigned long long flags) = nullptr;
  Result (*pool_export_pointer)(PoolPointerHandle* handle, DevicePointer pointer) = nullptr;
  Result (*pool_import_pointer)(DevicePointer* pointer, MemoryPool pool,
                                PoolPointerHandle* handle) = nullptr;

  // CudaGroup::kModules: kernels and host functions in streams.
  Result (*module_load_data)(Module* module, const void* image) = nullptr;
  Result (*module_unload)(Module module) = nullptr;
  Result (*module_get_function)(Function* function, Module module, const char* name) = nullptr;
  Result (*launch_kernel)(Function function, unsigned int grid_x, unsigned int grid_y,
                          unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                          unsigned int block_z, unsigned int shared_bytes, Stream stream,
                          void** parameters, void** extra) = nullptr;
  Result (*launch_host_function)(Stream stream, HostFunction function, void* argument) = nullptr;
};

// Function groups that an old or reduced driver (WSL, gVisor) may lack.
enum class CudaGroup { kExecution, kIpc, kVirtualMemory, kPools, kModules };
inline constexpr size_t kCudaGroupCount = 5;

// Loaded once per process by the owner of its GPUs; holds no context and no memory. Thread-safe. A
// process that has loaded it must not fork children that use CUDA: the driver does not survive
// fork.
class CudaApi final {
 public:
  // Loads libcuda.so.1, or the file named by FERRY_CUDA_LIBRARY, and calls cuInit. Creates no
  // context.
  // Errors: UNAVAILABLE if there is no library; UNIMPLEMENTED if it lacks a function that is in no
  // group; FAILED_PRECONDITION if it is older than kMinDriverVersion; NOT_FOUND if cuInit finds no
  // GPU; INTERNAL if it fails otherwise.
  static absl::StatusOr<std::unique_ptr<CudaApi>> Load();

  CudaApi(const CudaApi&) = delete;
  CudaApi& operator=(const CudaApi&) = delete;

  const CudaTable& table() const { return table_; }
  int version() const { return version_; }  // 12040 for 12.4
  const std::string& path() const { return path_; }

  // Returns OK if all functions of the group are present; else UNIMPLEMENTED naming the first
  // missing.
  const absl::Status& Has(CudaGroup group) const { return groups_[static_cast<size_t>(group)]; }

  // Returns OK, or the call, the code and the driver's own text: RESOURCE_EXHAUSTED for "out of
  // memory", NOT_FOUND for "no device", INTERNAL for all others.
  absl::Status Check(Result result, absl::string_view call) const;

 private:
  CudaApi() = default;

  CudaTable table_;
  std::array<absl::Status, kCudaGroupCount> groups_;
  int version_ = 0;
  std::string path_;
};

// "12.4" for 12040.
std::string VersionText(int version);

// "GPU-00112233-4455-6677-8899-aabbccddeeff", as nvidia-smi writes it.
std::string UuidText(const Uuid& uuid);

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_CUDA_API_H_

// SPDX-License-Identifier: Apache-2.0
// Driver: the CUDA driver, loaded at run time.
#ifndef FERRY_GPU_CUDA_DRIVER_H_
#define FERRY_GPU_CUDA_DRIVER_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "gpu/cuda/driver_types.h"

namespace ferry::cuda {

// 11.4: the first driver with cuDeviceGetUuid_v2, which tells the slices of one GPU apart.
inline constexpr int kMinDriverVersion = 11040;

// Functions of libcuda.so.1, none of them null. These need no context.
struct DriverTable {
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
};

// Loaded once per process by whoever owns its GPUs; holds no context and no memory. Thread-safe.
// A process that has loaded it must not fork children that use CUDA: the driver does not survive
// fork.
class Driver final {
 public:
  // Loads libcuda.so.1, or what FERRY_CUDA_LIBRARY names, and calls cuInit. Creates no context.
  // Errors: UNAVAILABLE if there is no library; UNIMPLEMENTED if it lacks a function;
  // FAILED_PRECONDITION if it is older than kMinDriverVersion; NOT_FOUND if cuInit sees no GPU;
  // INTERNAL if it fails otherwise.
  static absl::StatusOr<std::unique_ptr<Driver>> Load();

  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  const DriverTable& table() const { return table_; }
  int version() const { return version_; }  // 12040 for 12.4

  // OK, or INTERNAL (NOT_FOUND for "no device") with the call, the code and the driver's own text.
  absl::Status Check(Result result, absl::string_view call) const;

 private:
  Driver() = default;

  DriverTable table_;
  int version_ = 0;
};

// "12.4" for 12040.
std::string VersionText(int version);

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_DRIVER_H_

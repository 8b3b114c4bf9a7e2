// SPDX-License-Identifier: Apache-2.0
// Loading the CUDA driver and naming its errors.
#include "gpu/cuda/driver.h"

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "gpu/shared_library.h"

namespace ferry::cuda {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";
constexpr char kOverride[] = "FERRY_CUDA_LIBRARY";

absl::Status ResolveAll(const SharedLibrary& library, DriverTable& table) {
  FERRY_RETURN_IF_ERROR(library.Resolve("cuInit", table.init));
  FERRY_RETURN_IF_ERROR(library.Resolve("cuDriverGetVersion", table.driver_get_version));
  FERRY_RETURN_IF_ERROR(library.Resolve("cuGetErrorName", table.get_error_name));
  FERRY_RETURN_IF_ERROR(library.Resolve("cuGetErrorString", table.get_error_string));
  FERRY_RETURN_IF_ERROR(library.Resolve("cuDeviceGetCount", table.device_get_count));
  FERRY_RETURN_IF_ERROR(library.Resolve("cuDeviceGet", table.device_get));
  FERRY_RETURN_IF_ERROR(library.Resolve("cuDeviceGetName", table.device_get_name));
  FERRY_RETURN_IF_ERROR(library.Resolve("cuDeviceGetUuid_v2", table.device_get_uuid));
  FERRY_RETURN_IF_ERROR(library.Resolve("cuDeviceGetPCIBusId", table.device_get_pci_bus_id));
  FERRY_RETURN_IF_ERROR(library.Resolve("cuDeviceGetAttribute", table.device_get_attribute));
  return library.Resolve("cuDeviceTotalMem_v2", table.device_total_mem);
}

// The version comes first: an old driver lacks functions, and "too old" says more than which.
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

absl::StatusOr<std::unique_ptr<Driver>> Driver::Load() {
  FERRY_ASSIGN_OR_RETURN(const SharedLibrary library, SharedLibrary::Open(kLibrary, kOverride));
  std::unique_ptr<Driver> driver = absl::WrapUnique(new Driver);
  FERRY_ASSIGN_OR_RETURN(driver->version_, CheckedVersion(library));
  FERRY_RETURN_IF_ERROR(ResolveAll(library, driver->table_));
  FERRY_RETURN_IF_ERROR(driver->Check(driver->table_.init(0), "cuInit"));
  return driver;
}

absl::Status Driver::Check(Result result, absl::string_view call) const {
  if (result == kSuccess) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  // Both leave null for codes they do not know.
  table_.get_error_name(result, &name);
  table_.get_error_string(result, &text);
  const std::string message =
      absl::StrCat(call, " failed with code ", result, " ", name == nullptr ? "(unknown)" : name,
                   text == nullptr ? "" : absl::StrCat(": ", text));
  return result == kErrorNoDevice ? absl::NotFoundError(message) : absl::InternalError(message);
}

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

}  // namespace ferry::cuda

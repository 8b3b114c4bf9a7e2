// SPDX-License-Identifier: Apache-2.0
// Contexts, streams and peers.
#include "gpu/cuda/cuda_device.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry::cuda {
namespace {

// Returns 0 if the driver does not know the attribute: it is then older than the feature.
int Attribute(const CudaApi& api, DeviceAttribute attribute, Device device) {
  int value = 0;
  const Result result = api.table().device_get_attribute(&value, attribute, device);
  return result == kSuccess ? value : 0;
}

}  // namespace

DeviceTraits ReadTraits(const CudaApi& api, Device device) {
  DeviceTraits traits;
  traits.has_virtual_memory = api.Has(CudaGroup::kVirtualMemory).ok() &&
                              Attribute(api, kVirtualMemoryManagementSupported, device) != 0;
  traits.exports_posix_fd =
      traits.has_virtual_memory && Attribute(api, kPosixFileDescriptorSupported, device) != 0;
  traits.registers_with_nics =
      traits.has_virtual_memory && Attribute(api, kRdmaWithVirtualMemorySupported, device) != 0;
  traits.has_pools =
      api.Has(CudaGroup::kPools).ok() && Attribute(api, kMemoryPoolsSupported, device) != 0;
  traits.pools_export_posix_fd =
      traits.has_pools &&
      (Attribute(api, kPoolSupportedHandleTypes, device) & kHandleTypePosixFd) != 0;
  // The attribute is newer (CUDA 12.0) than the feature, which every Linux driver has.
  int has_events = 0;
  const Result known = api.table().device_get_attribute(&has_events, kIpcEventSupported, device);
  traits.has_ipc_events = api.Has(CudaGroup::kIpc).ok() && (known != kSuccess || has_events != 0);
  traits.compute_mode = Attribute(api, kComputeMode, device);
  traits.uses_mps = Attribute(api, kMpsEnabled, device) != 0;
  return traits;
}

CudaDevice::CudaDevice(std::shared_ptr<const CudaApi> api, int ordinal)
    : api_(std::move(api)), ordinal_(ordinal) {}

absl::StatusOr<std::shared_ptr<CudaDevice>> CudaDevice::Open(std::shared_ptr<const CudaApi> api,
                                                             int ordinal) {
  FERRY_RETURN_IF_ERROR(api->Has(CudaGroup::kExecution));
  const CudaTable& table = api->table();
  std::shared_ptr<CudaDevice> device(new CudaDevice(std::move(api), ordinal));
  FERRY_RETURN_IF_ERROR(device->Check(table.device_get(&device->handle_, ordinal), "cuDeviceGet"));
  FERRY_RETURN_IF_ERROR(
      device->Check(table.device_get_uuid(&device->uuid_, device->handle_), "cuDeviceGetUuid_v2"));
  device->traits_ = ReadTraits(device->api(), device->handle_);
  if (device->traits_.compute_mode == kComputeModeProhibited) {
    return absl::FailedPreconditionError(
        absl::StrCat(device->name(), ": its compute mode prohibits contexts (nvidia-smi -c)"));
  }
  const Result retained = table.primary_context_retain(&device->context_, device->handle_);
  if (retained == kErrorDeviceUnavailable) {
    return absl::FailedPreconditionError(absl::StrCat(
        device->name(), ": another process has it to itself, since its compute mode is ",
        device->traits_.compute_mode == kComputeModeExclusiveProcess ? "" : "perhaps ",
        "exclusive: `nvidia-smi -c DEFAULT` lets several share it"));
  }
  FERRY_RETURN_IF_ERROR(device->Check(retained, "cuDevicePrimaryCtxRetain"));
  return device;
}

CudaDevice::~CudaDevice() {
  // At process exit the driver may already be unloaded; then there is nothing to release.
  if (context_ != nullptr) table().primary_context_release(handle_);
}

std::string CudaDevice::name() const { return absl::StrCat("gpu:", ordinal_); }

absl::Status CudaDevice::Check(Result result, const char* call) const {
  if (result == kSuccess) return absl::OkStatus();
  return api_->Check(result, absl::StrCat(name(), ": ", call));
}

ScopedCurrent::ScopedCurrent(const CudaDevice& device) : table_(device.table()) {
  Context current = nullptr;
  // Most callers are inside another scope already.
  if (table_.context_get_current(&current) == kSuccess && current == device.context()) return;
  status_ = device.Check(table_.context_push(device.context()), "cuCtxPushCurrent");
  is_pushed_ = status_.ok();
}

ScopedCurrent::~ScopedCurrent() {
  Context popped = nullptr;
  if (is_pushed_) table_.context_pop(&popped);
}

CudaStream::CudaStream(std::shared_ptr<CudaDevice> device, Stream stream)
    : device_(std::move(device)), stream_(stream) {}

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create(std::shared_ptr<CudaDevice> device) {
  const ScopedCurrent current(*device);
  Stream stream = nullptr;
  FERRY_RETURN_IF_ERROR(
      device->Check(device->table().stream_create_with_priority(&stream, kStreamNonBlocking, 0),
                    "cuStreamCreateWithPriority"));
  return absl::WrapUnique(new CudaStream(std::move(device), stream));
}

CudaStream::~CudaStream() {
  const ScopedCurrent current(*device_);
  device_->table().stream_destroy(stream_);
}

absl::StatusOr<PeerMatrix> PeerMatrix::Query(const CudaApi& api) {
  FERRY_RETURN_IF_ERROR(api.Has(CudaGroup::kExecution));
  const CudaTable& table = api.table();
  PeerMatrix matrix;
  FERRY_RETURN_IF_ERROR(api.Check(table.device_get_count(&matrix.count_), "cuDeviceGetCount"));
  const auto can_access = [&table](int from, int to) {
    Device from_device = 0;
    Device to_device = 0;
    int can = 0;
    return table.device_get(&from_device, from) == kSuccess &&
           table.device_get(&to_device, to) == kSuccess &&
           table.device_can_access_peer(&can, from_device, to_device) == kSuccess && can != 0;
  };
  for (int from = 0; from < matrix.count_; ++from) {
    for (int to = 0; to < matrix.count_; ++to) {
      matrix.can_.push_back(from == to || can_access(from, to));
    }
  }
  return matrix;
}

absl::Status EnablePeerAccess(const CudaDevice& from, const CudaDevice& to) {
  if (from.ordinal() == to.ordinal()) return absl::OkStatus();
  const ScopedCurrent current(from);
  const Result result = from.table().context_enable_peer_access(to.context(), 0);
  if (result == kErrorPeerAccessAlreadyEnabled) return absl::OkStatus();
  if (result == kErrorPeerAccessUnsupported) {
    return absl::FailedPreconditionError(
        absl::StrCat(from.name(), " cannot reach memory of ", to.name(),
                     ": the machine has no peer access between them"));
  }
  return from.Check(result, "cuCtxEnablePeerAccess");
}

}  // namespace ferry::cuda

// SPDX-License-Identifier: Apache-2.0
// Legacy handles of memory, and handles of events.
#include <cstdio>
#include <cstring>

#include "tests/support/strict_cuda/entry.h"
#include "tests/support/strict_cuda/events.h"
#include "tests/support/strict_cuda/machine.h"
#include "tests/support/strict_cuda/memory.h"
#include "tests/support/strict_cuda/stream.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

// The first bytes of a handle. The rest keep the caller's values: callers that compare or hash
// whole handles must clear them first.
struct HandleBytes {
  uint64_t magic;
  uint64_t id;
  int32_t pid;
  int32_t unused;
  uint64_t bytes;
};
constexpr uint64_t kMemoryMagic = 0x4d454d5354524943;
constexpr uint64_t kEventMagic = 0x4556545354524943;

template <typename Handle>
HandleBytes Read(const Handle& handle) {
  HandleBytes bytes = {};
  std::memcpy(&bytes, handle.reserved, sizeof(bytes));
  return bytes;
}

void HintSession(int pid) {
  if (!GetConfig().session.empty()) return;
  std::fprintf(stderr,
               "strict_cuda: a handle of process %d: without STRICT_CUDA_SESSION processes do not "
               "share a machine\n",
               pid);
}

// The range that the context has open for `id` already, or null. REQUIRES: the process's lock.
std::shared_ptr<Range> FindOpen(uint64_t id, const Context* context) {
  for (const std::shared_ptr<Range>& range : RangesOf(context)) {
    if (range->kind == Kind::kImported && range->import_id == id) return range;
  }
  return nullptr;
}

CUresult OpenMemory(Context& context, const Export& entry, CUdeviceptr* pointer) {
  auto range = std::make_shared<Range>();
  range->backing = Backing::ImportFrom(entry.owner.pid, entry.fd);
  if (range->backing == nullptr || range->backing->inode() != entry.inode) {
    return CUDA_ERROR_MAP_FAILED;
  }
  const CUdeviceptr at = TakeAddresses(RoundUp(entry.backing_bytes, kGranularity), kGranularity, 0);
  if (at == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  range->base = at + entry.offset;
  range->bytes = entry.bytes;
  range->kind = Kind::kImported;
  range->physical = entry.device;
  range->context = &context;
  range->offset = entry.offset;
  range->host = range->backing->host() + entry.offset;
  range->buffer_id = NextBufferId();
  range->import_id = entry.id;
  range->open_count = 1;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  Insert(range);
  *pointer = range->base;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

STRICT_CUDA_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  STRICT_CUDA_ENTER();
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  const std::shared_ptr<Range> range = Find(pointer);
  if (range == nullptr) {
    if (IsDeviceAddress(pointer)) {
      Violation(Rule::kUseAfterFree, __func__, "0x%llx is not allocated", pointer);
    }
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (range->kind != Kind::kDevice) {
    Violation(Rule::kIpcMemoryKind, __func__, "0x%llx is other memory (kind %d)", pointer,
              static_cast<int>(range->kind));
    return CUDA_ERROR_INVALID_VALUE;
  }
  const MachineLock machine_lock;
  Export* entry = FindExport(range->export_id);
  if (entry == nullptr) {
    entry = NewExport();
    if (entry == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    entry->kind = ExportKind::kLegacy;
    entry->fd = range->backing->fd();
    entry->device = range->physical;
    entry->inode = range->backing->inode();
    entry->offset = range->offset;
    entry->bytes = range->bytes;
    entry->backing_bytes = range->backing->bytes();
    entry->buffer_id = range->buffer_id;
    range->export_id = entry->id;
  }
  const HandleBytes bytes = {kMemoryMagic, entry->id, entry->owner.pid, 0, entry->bytes};
  std::memcpy(handle->reserved, &bytes, sizeof(bytes));
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle handle,
                                                  unsigned int flags) {
  STRICT_CUDA_ENTER();
  if (pointer == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  CheckImplicitSync(__func__);
  const HandleBytes bytes = Read(handle);
  if (bytes.magic != kMemoryMagic) return CUDA_ERROR_INVALID_VALUE;
  if (bytes.pid == Self().pid) {
    Violation(Rule::kIpcSameProcess, __func__, "the handle is of this process");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  {
    const std::lock_guard<std::mutex> lock(ProcessMutex());
    if (const std::shared_ptr<Range> open = FindOpen(bytes.id, context); open != nullptr) {
      ++open->open_count;
      *pointer = open->base;
      return CUDA_SUCCESS;
    }
  }
  Export entry = {};
  {
    const MachineLock lock;
    Export* const found = FindExport(bytes.id);
    if (found == nullptr || found->gone || !IsAlive(found->owner)) {
      HintSession(bytes.pid);
      return CUDA_ERROR_MAP_FAILED;
    }
    if (found->device != context->physical &&
        !GetConfig().peers[context->physical][found->device]) {
      return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    if (!found->importers.Add(Self())) return CUDA_ERROR_OUT_OF_MEMORY;
    entry = *found;
  }
  const CUresult result = OpenMemory(*context, entry, pointer);
  if (result == CUDA_SUCCESS) return result;
  const MachineLock lock;
  if (Export* const found = FindExport(bytes.id); found != nullptr) {
    found->importers.Remove(Self());
  }
  return result;
}

STRICT_CUDA_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
  STRICT_CUDA_ENTER();
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  CheckImplicitSync(__func__);
  std::shared_ptr<Range> range;
  {
    const std::lock_guard<std::mutex> lock(ProcessMutex());
    range = Find(pointer);
    if (range == nullptr || range->kind != Kind::kImported || range->base != pointer) {
      Violation(Rule::kIpcDoubleClose, __func__, "0x%llx is %s", pointer,
                range == nullptr                 ? "not open (any more)"
                : range->kind != Kind::kImported ? "not imported memory"
                                                 : "inside an import, not its start");
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (--range->open_count > 0) return CUDA_SUCCESS;
  }
  SynchronizeContext(*range->context);
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  Release(range, __func__);
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  STRICT_CUDA_ENTER();
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = CheckEvent(event, __func__); result != 0) return result;
  if (event->shared == nullptr || event->is_imported) {
    Violation(Rule::kEventNotInterprocess, __func__, "the event's flags are %u%s", event->flags,
              event->is_imported ? ", and it is another process's" : "");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const HandleBytes bytes = {kEventMagic, event->shared->id, event->shared->owner.pid, 0, 0};
  std::memcpy(handle->reserved, &bytes, sizeof(bytes));
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  STRICT_CUDA_ENTER();
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  const HandleBytes bytes = Read(handle);
  if (bytes.magic != kEventMagic) return CUDA_ERROR_INVALID_VALUE;
  if (bytes.pid == Self().pid) {
    Violation(Rule::kEventSameProcess, __func__, "the handle is of this process");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  SharedEvent* shared = nullptr;
  {
    const MachineLock lock;
    shared = FindSharedEvent(bytes.id);
    if (shared == nullptr || shared->gone || !IsAlive(shared->owner)) {
      HintSession(bytes.pid);
      return CUDA_ERROR_MAP_FAILED;
    }
    if (!shared->importers.Add(Self())) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *event = NewEvent(*context, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  (*event)->shared = shared;
  (*event)->is_imported = true;
  return CUDA_SUCCESS;
}

}  // extern "C"

}  // namespace strict_cuda

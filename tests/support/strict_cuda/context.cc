// SPDX-License-Identifier: Apache-2.0
// Primary contexts, the stack of each thread, and peer access.
#include "tests/support/strict_cuda/context.h"

#include "tests/support/strict_cuda/entry.h"
#include "tests/support/strict_cuda/machine.h"
#include "tests/support/strict_cuda/memory.h"
#include "tests/support/strict_cuda/stream.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

std::vector<Context*>& Stack() {
  static thread_local std::vector<Context*> stack;
  return stack;
}

// By ordinal.
Context& ContextAt(int ordinal) {
  static std::vector<Context*>* const contexts = [] {
    auto* const made = new std::vector<Context*>;
    for (size_t i = 0; i < GetConfig().visible.size(); ++i) {
      auto* const context = new Context;
      context->ordinal = static_cast<int>(i);
      context->physical = GetConfig().visible[i];
      made->push_back(context);
    }
    return made;
  }();
  return *(*contexts)[static_cast<size_t>(ordinal)];
}

bool IsContext(const Context* context) {
  for (size_t i = 0; i < GetConfig().visible.size(); ++i) {
    if (&ContextAt(static_cast<int>(i)) == context) return true;
  }
  return false;
}

}  // namespace

std::mutex& ProcessMutex() {
  static std::mutex* const mutex = new std::mutex;
  return *mutex;
}

Context* CurrentContext() { return Stack().empty() ? nullptr : Stack().back(); }

CUresult RequireContext(Context** context) {
  *context = CurrentContext();
  if (*context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if ((*context)->references == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return (*context)->error;
}

Context* ActiveContextOf(int physical) {
  const int ordinal = OrdinalOf(physical);
  if (ordinal < 0) return nullptr;
  Context& context = ContextAt(ordinal);
  return context.references > 0 ? &context : nullptr;
}

bool IsDevice(CUdevice device) {
  return device >= 0 && static_cast<size_t>(device) < GetConfig().visible.size();
}

int PhysicalOf(CUdevice device) { return GetConfig().visible[static_cast<size_t>(device)]; }

int OrdinalOf(int physical) {
  for (size_t i = 0; i < GetConfig().visible.size(); ++i) {
    if (GetConfig().visible[i] == physical) return static_cast<int>(i);
  }
  return -1;
}

void FailContext(Context& context, CUresult error) {
  CUresult none = CUDA_SUCCESS;
  context.error.compare_exchange_strong(none, error);
  if (error == CUDA_ERROR_ILLEGAL_ADDRESS || error == CUDA_ERROR_MISALIGNED_ADDRESS) {
    SetProcessError(error);
  }
}

extern "C" {

STRICT_CUDA_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  STRICT_CUDA_ENTER();
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *context = &ContextAt(device);
  {
    const MachineLock lock;
    const auto mode = GetConfig().attributes.find(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
    const bool is_exclusive =
        mode != GetConfig().attributes.end() && mode->second == CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
    if (is_exclusive && HasOtherContext((*context)->physical)) {
      return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    NoteContext((*context)->physical, true);
  }
  ++(*context)->references;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  STRICT_CUDA_ENTER();
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  Context& context = ContextAt(device);
  if (context.references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (context.references == 1) {
    SynchronizeContext(context);
    FreeAllOf(context);
    context.error = CUDA_SUCCESS;
    for (size_t i = 0; i < GetConfig().visible.size(); ++i) {
      Context& other = ContextAt(static_cast<int>(i));
      other.peer_enabled[context.physical] = false;
      context.peer_enabled[other.physical] = false;
    }
    const MachineLock lock;
    NoteContext(context.physical, false);
  }
  --context.references;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags,
                                                       int* active) {
  STRICT_CUDA_ENTER();
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = 0;
  *active = ContextAt(device).references > 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  STRICT_CUDA_ENTER();
  if (context != nullptr && !IsContext(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr && context->references == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (!Stack().empty()) Stack().pop_back();
  if (context != nullptr) Stack().push_back(context);
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  STRICT_CUDA_ENTER();
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = CurrentContext();
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  STRICT_CUDA_ENTER();
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = CurrentContext()->ordinal;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
  STRICT_CUDA_ENTER();
  if (!IsContext(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (context->references == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  Stack().push_back(context);
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  STRICT_CUDA_ENTER();
  if (Stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = Stack().back();
  Stack().pop_back();
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuCtxSynchronize() {
  STRICT_CUDA_ENTER();
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  SynchronizeContext(*context);
  return context->error;
}

STRICT_CUDA_EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  STRICT_CUDA_ENTER();
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  STRICT_CUDA_ENTER();
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!IsContext(peer) || peer->references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (peer == context) return CUDA_ERROR_INVALID_CONTEXT;
  // All of the peer's memory is mapped.
  CheckImplicitSync(__func__);
  if (!GetConfig().peers[context->physical][peer->physical]) {
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  return context->peer_enabled[peer->physical].exchange(true)
             ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
             : CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  STRICT_CUDA_ENTER();
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  if (!IsContext(peer)) return CUDA_ERROR_INVALID_CONTEXT;
  return context->peer_enabled[peer->physical].exchange(false) ? CUDA_SUCCESS
                                                               : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

}  // extern "C"

}  // namespace strict_cuda

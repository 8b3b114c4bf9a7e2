// SPDX-License-Identifier: Apache-2.0
// Copies and fills, done by the stream's thread on the hidden mappings.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "tests/support/strict_cuda/entry.h"
#include "tests/support/strict_cuda/memory.h"
#include "tests/support/strict_cuda/stream.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

void CopyPieces(const Use& dst, const Use& src) {
  size_t to = 0;
  size_t to_skip = 0;
  for (const Piece& from : src.pieces()) {
    for (size_t done = 0; done < from.bytes;) {
      const Piece& into = dst.pieces()[to];
      const size_t bytes = std::min(from.bytes - done, into.bytes - to_skip);
      std::memmove(into.host + to_skip, from.host + done, bytes);
      done += bytes;
      to_skip += bytes;
      if (to_skip == into.bytes) {
        ++to;
        to_skip = 0;
      }
    }
  }
}

// By the copy engine of the stream's device. `staged`: the bytes read from pageable memory at the
// call, or null.
void RunCopy(Context& context, CUdeviceptr dst, CUdeviceptr src, size_t bytes,
             const std::string* staged, const char* call) {
  if (context.error != 0) return;
  std::unique_ptr<Use> to;
  std::unique_ptr<Use> from;
  CUresult result = Touch(dst, bytes, context.physical, true, call, &to);
  if (result == 0 && staged == nullptr) {
    result = Touch(src, bytes, context.physical, false, call, &from);
  }
  if (result != 0) {
    FailContext(context, result);
    return;
  }
  if (staged == nullptr) {
    CopyPieces(*to, *from);
    return;
  }
  size_t at = 0;
  for (const Piece& piece : to->pieces()) {
    if (bytes == sizeof(uint32_t) && reinterpret_cast<uintptr_t>(piece.host) % bytes == 0 &&
        piece.bytes == bytes) {
      // A kernel may be waiting for it.
      uint32_t word = 0;
      std::memcpy(&word, staged->data(), sizeof(word));
      reinterpret_cast<std::atomic<uint32_t>*>(piece.host)->store(word);
      return;
    }
    std::memcpy(piece.host, staged->data() + at, piece.bytes);
    at += piece.bytes;
  }
}

// Copies between devices of the process that a driver takes through host memory.
std::atomic<int> host_peer_copies = 0;

struct Found {
  bool is_pageable = false;  // memory unknown to the driver
  // Plain memory of a device to which the copying one has not been given access.
  bool is_beyond = false;
};

// Checks memory that is known to the driver.
CUresult Check(const Context& context, CUdeviceptr pointer, size_t bytes, bool is_write,
               const char* call, Found* found) {
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  std::vector<Piece> pieces;
  const CUresult result = Resolve(pointer, bytes, context.physical, is_write, call, &pieces);
  if (result != 0) return result;
  found->is_pageable = pieces.back().range == nullptr;
  for (const Piece& piece : pieces) {
    if (piece.range != nullptr && piece.range->kind == Kind::kDevice &&
        piece.range->physical != context.physical && !context.peer_enabled[piece.range->physical]) {
      found->is_beyond = true;
    }
    if (piece.range != nullptr && piece.range->free_pending) {
      Violation(Rule::kUseAfterFree, call, "0x%llx was given to cuMemFreeAsync", pointer);
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

enum class Wait { kNo, kYes };

// The driver copies small data during the call. It copies larger data when the stream gets there,
// and blocks the caller until then: this has been observed, and is permitted.
constexpr size_t kTakenAlong = size_t{64} << 10;

bool WaitsForPageable(size_t bytes) {
  static const bool waits = FromEnvironment("STRICT_CUDA_PAGEABLE", "reads") == "waits";
  return waits && bytes > kTakenAlong;
}

CUresult Copy(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream handle, Wait wait,
              const char* call) {
  StreamHandle* stream = nullptr;
  if (const CUresult result = FindStream(handle, call, &stream); result != 0) return result;
  if (bytes == 0) return CUDA_SUCCESS;
  if (dst == 0 || src == 0) return CUDA_ERROR_INVALID_VALUE;
  Context& context = *stream->context;
  Found to;
  Found from;
  CUresult result = Check(context, dst, bytes, true, call, &to);
  if (result != 0) return result;
  result = Check(context, src, bytes, false, call, &from);
  if (result != 0) return result;
  if (to.is_beyond || from.is_beyond) ++host_peer_copies;
  // The driver stages pageable memory: it has been read when the call returns, and a copy into it
  // has been made.
  std::shared_ptr<std::string> staged;
  if (from.is_pageable && !to.is_pageable) {
    staged = std::make_shared<std::string>(reinterpret_cast<const char*>(src), bytes);
  }
  const uint64_t place = Enqueue(*stream, Task::kCopy, [&context, dst, src, bytes, staged, call] {
    RunCopy(context, dst, src, bytes, staged.get(), call);
  });
  const bool waits =
      to.is_pageable || wait == Wait::kYes || (staged != nullptr && WaitsForPageable(bytes));
  if (waits) WaitFor(*stream, place);
  return waits ? context.error.load() : CUDA_SUCCESS;
}

CUresult Fill(CUdeviceptr dst, unsigned int value, size_t width, size_t count, CUstream handle,
              Wait wait, const char* call) {
  StreamHandle* stream = nullptr;
  if (const CUresult result = FindStream(handle, call, &stream); result != 0) return result;
  if (count == 0) return CUDA_SUCCESS;
  if (dst == 0 || dst % width != 0) return CUDA_ERROR_INVALID_VALUE;
  Context& context = *stream->context;
  Found to;
  const CUresult result = Check(context, dst, count * width, true, call, &to);
  if (result != 0) return result;
  if (to.is_pageable) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t place =
      Enqueue(*stream, Task::kKernel, [&context, dst, value, width, count, call] {
        if (context.error != 0) return;
        std::unique_ptr<Use> use;
        const CUresult touched = Touch(dst, count * width, context.physical, true, call, &use);
        if (touched != 0) return FailContext(context, touched);
        for (const Piece& piece : use->pieces()) {
          if (width == 1) {
            std::memset(piece.host, static_cast<int>(value), piece.bytes);
          } else {
            for (size_t at = 0; at < piece.bytes; at += width) {
              std::memcpy(piece.host + at, &value, width);
            }
          }
        }
      });
  if (wait == Wait::kYes) WaitFor(*stream, place);
  return CUDA_SUCCESS;
}

bool IsDevicePointer(CUdeviceptr pointer, size_t bytes) {
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  return bytes == 0 || IsDeviceAddress(pointer) || Find(pointer) != nullptr;
}

CUdeviceptr Address(const void* host) { return reinterpret_cast<CUdeviceptr>(host); }

}  // namespace

extern "C" {

STRICT_CUDA_EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes,
                                          CUstream stream) {
  STRICT_CUDA_ENTER();
  return Copy(dst, src, bytes, stream, Wait::kNo, __func__);
}

STRICT_CUDA_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes,
                                                 CUstream stream) {
  STRICT_CUDA_ENTER();
  if (!IsDevicePointer(dst, bytes) || !IsDevicePointer(src, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return Copy(dst, src, bytes, stream, Wait::kNo, __func__);
}

STRICT_CUDA_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t bytes,
                                                 CUstream stream) {
  STRICT_CUDA_ENTER();
  if (!IsDevicePointer(dst, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return Copy(dst, Address(src), bytes, stream, Wait::kNo, __func__);
}

STRICT_CUDA_EXPORT CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t bytes,
                                                 CUstream stream) {
  STRICT_CUDA_ENTER();
  if (!IsDevicePointer(src, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return Copy(Address(dst), src, bytes, stream, Wait::kNo, __func__);
}

STRICT_CUDA_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context,
                                              CUdeviceptr src, CUcontext src_context, size_t bytes,
                                              CUstream stream) {
  STRICT_CUDA_ENTER();
  if (dst_context == nullptr || src_context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!IsDevicePointer(dst, bytes) || !IsDevicePointer(src, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return Copy(dst, src, bytes, stream, Wait::kNo, __func__);
}

STRICT_CUDA_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void* src, size_t bytes) {
  STRICT_CUDA_ENTER();
  if (!IsDevicePointer(dst, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return Copy(dst, Address(src), bytes, nullptr, Wait::kYes, __func__);
}

STRICT_CUDA_EXPORT CUresult cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, size_t bytes) {
  STRICT_CUDA_ENTER();
  if (!IsDevicePointer(src, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return Copy(Address(dst), src, bytes, nullptr, Wait::kYes, __func__);
}

// For copies between devices the host does not wait, as the driver's page on synchronisation says.
STRICT_CUDA_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  STRICT_CUDA_ENTER();
  if (!IsDevicePointer(dst, bytes) || !IsDevicePointer(src, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return Copy(dst, src, bytes, nullptr, Wait::kNo, __func__);
}

STRICT_CUDA_EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  STRICT_CUDA_ENTER();
  return Copy(dst, src, bytes, nullptr, Wait::kYes, __func__);
}

STRICT_CUDA_EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count,
                                            CUstream stream) {
  STRICT_CUDA_ENTER();
  return Fill(dst, value, 1, count, stream, Wait::kNo, __func__);
}

STRICT_CUDA_EXPORT CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count,
                                             CUstream stream) {
  STRICT_CUDA_ENTER();
  return Fill(dst, value, 4, count, stream, Wait::kNo, __func__);
}

STRICT_CUDA_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t count) {
  STRICT_CUDA_ENTER();
  return Fill(dst, value, 1, count, nullptr, Wait::kYes, __func__);
}

STRICT_CUDA_EXPORT int strict_cuda_host_peer_copies() { return host_peer_copies; }

}  // extern "C"

}  // namespace strict_cuda

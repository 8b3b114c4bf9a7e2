// SPDX-License-Identifier: Apache-2.0
// Modules and kernels: a few are known by name and run on the CPU in the stream's thread. The
// parameters are 64-bit words except for a float, or one struct; docs/testing_gpu.md specifies each
// kernel.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/strict_cuda/kernels.h"

#include "gpu/kernels/elements.h"
#include "tests/support/strict_cuda/entry.h"
#include "tests/support/strict_cuda/memory.h"
#include "tests/support/strict_cuda/stream.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {

std::unique_ptr<Use> Access(Context& context, uint64_t pointer, size_t bytes, bool is_write) {
  std::unique_ptr<Use> use;
  CUresult result = Touch(pointer, bytes, context.physical, is_write, kLaunchCall, &use);
  if (result == CUDA_SUCCESS) {
    for (const Piece& piece : use->pieces()) {
      if (piece.range == nullptr) {
        Violation(Rule::kNoAccess, kLaunchCall, "0x%llx is pageable host memory",
                  static_cast<CUdeviceptr>(pointer));
        result = CUDA_ERROR_ILLEGAL_ADDRESS;
      } else if (piece.range->kind == Kind::kDevice && piece.range->physical != context.physical &&
                 !context.peer_enabled[piece.range->physical]) {
        Violation(Rule::kNoAccess, kLaunchCall,
                  "0x%llx is of device %d, to which device %d has no peer access enabled",
                  static_cast<CUdeviceptr>(pointer), piece.range->physical, context.physical);
        result = CUDA_ERROR_ILLEGAL_ADDRESS;
      }
    }
  }
  if (result == CUDA_SUCCESS) return use;
  FailContext(context, result);
  return nullptr;
}

bool IsAligned(Context& context, uint64_t pointer, uint64_t to) {
  if (pointer % to == 0) return true;
  FailContext(context, CUDA_ERROR_MISALIGNED_ADDRESS);
  return false;
}

std::string Gather(const Use& use) {
  std::string bytes;
  for (const Piece& piece : use.pieces()) bytes.append(piece.host, piece.bytes);
  return bytes;
}

void Scatter(const std::string& bytes, const Use& use) {
  size_t at = 0;
  for (const Piece& piece : use.pieces()) {
    std::memcpy(piece.host, bytes.data() + at, piece.bytes);
    at += piece.bytes;
  }
}

struct ModuleHandle {
  Context* context = nullptr;
  std::string text;  // of PTX, empty for binaries
  std::atomic<bool> unloaded = false;
};

struct FunctionHandle {
  ModuleHandle* module = nullptr;
  int kernel = 0;  // index in kKernels
};

namespace {

constexpr uint64_t kStride = 0x9E3779B97F4A7C15;

std::string Pattern(size_t bytes, uint64_t seed) {
  std::string text(RoundUp(bytes, 8), '\0');
  for (size_t i = 0; i < text.size() / 8; ++i) {
    const uint64_t word = seed + i * kStride;
    std::memcpy(text.data() + i * 8, &word, 8);
  }
  text.resize(bytes);
  return text;
}

void AddTo(Context& context, uint64_t pointer, uint64_t value) {
  const std::unique_ptr<Use> use = Access(context, pointer, 8, true);
  if (use == nullptr) return;
  uint64_t sum = 0;
  std::memcpy(&sum, use->pieces().front().host, 8);
  sum += value;
  std::memcpy(use->pieces().front().host, &sum, 8);
}

void PatternFill(Context& context, const std::vector<uint64_t>& parameters) {
  if (!IsAligned(context, parameters[0], 8)) return;
  const std::unique_ptr<Use> use = Access(context, parameters[0], parameters[1], true);
  if (use == nullptr) return;
  Scatter(Pattern(parameters[1], parameters[2]), *use);
}

void PatternCompare(Context& context, const std::vector<uint64_t>& parameters) {
  if (!IsAligned(context, parameters[0], 8)) return;
  std::string found;
  if (const auto use = Access(context, parameters[0], parameters[1], false); use != nullptr) {
    found = Gather(*use);
  } else {
    return;
  }
  const std::string pattern = Pattern(parameters[1], parameters[2]);
  uint64_t wrong = 0;
  for (size_t i = 0; i < pattern.size(); ++i) wrong += found[i] != pattern[i] ? 1 : 0;
  AddTo(context, parameters[3], wrong);
}

void Checksum(Context& context, const std::vector<uint64_t>& parameters) {
  if (!IsAligned(context, parameters[0], 8)) return;
  std::string found;
  if (const auto use = Access(context, parameters[0], parameters[1], false); use != nullptr) {
    found = Gather(*use);
  } else {
    return;
  }
  found.resize(RoundUp(found.size(), 8), '\0');
  uint64_t sum = 0;
  for (size_t i = 0; i < found.size() / 8; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, found.data() + i * 8, 8);
    sum += word * (2 * i + 1);
  }
  AddTo(context, parameters[2], sum);
}

void ScaleAdd(Context& context, const std::vector<uint64_t>& parameters) {
  const size_t bytes = parameters[2] * sizeof(float);
  if (!IsAligned(context, parameters[0] | parameters[1], sizeof(float))) return;
  float scale = 0;
  std::memcpy(&scale, &parameters[3], sizeof(scale));
  const std::unique_ptr<Use> to = Access(context, parameters[0], bytes, true);
  const std::unique_ptr<Use> from = Access(context, parameters[1], bytes, false);
  if (to == nullptr || from == nullptr) return;
  const std::string added = Gather(*from);
  std::string sum = Gather(*to);
  for (size_t at = 0; at < bytes; at += sizeof(float)) {
    float a = 0;
    float b = 0;
    std::memcpy(&a, sum.data() + at, sizeof(a));
    std::memcpy(&b, added.data() + at, sizeof(b));
    a = scale * a + b;
    std::memcpy(sum.data() + at, &a, sizeof(a));
  }
  Scatter(sum, *to);
}

void Spin(Context& context, const std::vector<uint64_t>& parameters) {
  while (true) {
    const std::unique_ptr<Use> use = Access(context, parameters[0], 4, false);
    if (use == nullptr) return;
    const auto* const flag = reinterpret_cast<const uint32_t*>(use->pieces().front().host);
    if (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != 0 || context.error != 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

struct Kernel {
  const char* name;
  size_t parameter_bytes[4];  // of each, up to the first 0
  void (*run)(Context& context, const std::vector<uint64_t>& parameters);
  bool is_nccl = false;  // waits for other processes, as a kernel of NCCL
};

constexpr Kernel kKernels[] = {
    {"ferry_pattern_fill", {8, 8, 8}, PatternFill},  // to, bytes, seed
    {"ferry_pattern_compare",
     {8, 8, 8, 8},
     PatternCompare},                             // from, bytes, seed, count of wrong bytes
    {"ferry_checksum", {8, 8, 8}, Checksum},      // from, bytes, sum
    {"ferry_scale_add", {8, 8, 8, 4}, ScaleAdd},  // to, from, count, scale
    {"spin", {8}, Spin},                          // flag
    {"nccl_spin", {8}, Spin, true},               // flag
    {"ferry_binary", {sizeof(ferry::cuda::BinaryCall)}, Binary},
    {"ferry_unary", {sizeof(ferry::cuda::UnaryCall)}, Unary},
    {"ferry_cast", {sizeof(ferry::cuda::CastCall)}, Cast},
    {"ferry_fill", {sizeof(ferry::cuda::FillCall)}, Fill},
};

std::set<const void*>& Handles() {
  static auto* const handles = new std::set<const void*>;
  return *handles;
}

bool IsHandle(const void* handle) {
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  return Handles().count(handle) != 0;
}

void AddHandle(const void* handle) {
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  Handles().insert(handle);
}

}  // namespace

extern "C" {

STRICT_CUDA_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  STRICT_CUDA_ENTER();
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  CheckImplicitSync(__func__);
  const char* const text = static_cast<const char*>(image);
  const bool is_binary = std::memcmp(text,
                                     "\x7f"
                                     "ELF",
                                     4) == 0 ||
                         std::memcmp(text, "\x50\xed\x55\xba", 4) == 0;
  if (!is_binary && std::strstr(text, ".version") == nullptr) return CUDA_ERROR_INVALID_IMAGE;
  auto* const made = new ModuleHandle;
  made->context = context;
  if (!is_binary) made->text = text;
  AddHandle(made);
  *module = made;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuModuleUnload(CUmodule module) {
  STRICT_CUDA_ENTER();
  if (!IsHandle(module)) return CUDA_ERROR_INVALID_HANDLE;
  CheckImplicitSync(__func__);
  if (module->unloaded.exchange(true)) {
    Violation(Rule::kDoubleFree, __func__, "the module was unloaded before");
  }
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module,
                                                const char* name) {
  STRICT_CUDA_ENTER();
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsHandle(module) || module->unloaded) return CUDA_ERROR_INVALID_HANDLE;
  if (!module->text.empty() && module->text.find(name) == std::string::npos) {
    return CUDA_ERROR_NOT_FOUND;
  }
  for (int i = 0; i < static_cast<int>(std::size(kKernels)); ++i) {
    if (std::strcmp(kKernels[i].name, name) != 0) continue;
    auto* const made = new FunctionHandle{module, i};
    AddHandle(made);
    *function = made;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

STRICT_CUDA_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x,
                                           unsigned int grid_y, unsigned int grid_z,
                                           unsigned int block_x, unsigned int block_y,
                                           unsigned int block_z, unsigned int shared_bytes,
                                           CUstream handle, void** parameters, void** extra) {
  STRICT_CUDA_ENTER();
  if (!IsHandle(function)) return CUDA_ERROR_INVALID_HANDLE;
  const uint64_t threads = uint64_t{block_x} * block_y * block_z;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || threads > 1024 ||
      shared_bytes > (227u << 10) || parameters == nullptr || extra != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  StreamHandle* stream = nullptr;
  if (const CUresult result = FindStream(handle, __func__, &stream); result != 0) return result;
  if (function->module->unloaded) {
    Violation(Rule::kUseAfterDestroy, __func__, "the kernel's module was unloaded");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (function->module->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  const Kernel& kernel = kKernels[function->kernel];
  std::vector<uint64_t> words;
  for (size_t i = 0; i < std::size(kernel.parameter_bytes); ++i) {
    if (kernel.parameter_bytes[i] == 0) break;
    const size_t at = words.size();
    words.resize(at + RoundUp(kernel.parameter_bytes[i], 8) / 8);
    std::memcpy(&words[at], parameters[i], kernel.parameter_bytes[i]);
  }
  if (kernel.is_nccl) ++nccl_in_flight;
  Enqueue(*stream, Task::kKernel, [context = stream->context, &kernel, words] {
    if (context->error == CUDA_SUCCESS) kernel.run(*context, words);
    if (kernel.is_nccl) --nccl_in_flight;
  });
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT int strict_cuda_implicit_syncs() { return implicit_syncs; }

}  // extern "C"

}  // namespace strict_cuda

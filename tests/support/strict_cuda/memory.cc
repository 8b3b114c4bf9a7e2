// SPDX-License-Identifier: Apache-2.0
// The address map, and access rights.
#include "tests/support/strict_cuda/memory.h"

#include <algorithm>
#include <utility>

#include "tests/support/strict_cuda/blocks.h"
#include "tests/support/strict_cuda/machine.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {

std::atomic<int> nccl_in_flight = 0;
std::atomic<int> implicit_syncs = 0;

namespace {

std::map<CUdeviceptr, std::shared_ptr<Range>>& Ranges() {
  static auto* const ranges = new std::map<CUdeviceptr, std::shared_ptr<Range>>;
  return *ranges;
}

bool IsHostKind(Kind kind) {
  return kind == Kind::kHost || kind == Kind::kRegistered || kind == Kind::kManaged;
}

// Whether the device `by` has been given access.
CUresult CheckAccess(const Range& range, int by, bool is_write, const char* call) {
  if (by < 0 || IsHostKind(range.kind)) return CUDA_SUCCESS;
  const bool by_table =
      range.kind == Kind::kVmm ||
      ((range.kind == Kind::kPool || range.kind == Kind::kImportedPool) && range.physical != by);
  if (!by_table) return CUDA_SUCCESS;
  const int needed = is_write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  if ((range.access[by] & needed) == needed) return CUDA_SUCCESS;
  Violation(Rule::kNoAccess, call, "device %d has no %s access to 0x%llx", by,
            is_write ? "write" : "read", range.base);
  return CUDA_ERROR_ILLEGAL_ADDRESS;
}

// Whether the allocation of stream-ordered memory, of this process or another, has run.
bool IsReady(const Range& range) {
  if (range.ready != nullptr) return *range.ready;
  if (range.kind != Kind::kImportedPool) return true;
  const MachineLock lock;
  const Export* const entry = FindExport(range.import_id);
  return entry == nullptr || entry->is_ready;
}

}  // namespace

Use::Use(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
  for (const Piece& piece : pieces_) {
    if (piece.range != nullptr) ++piece.range->uses;
  }
}

Use::~Use() {
  for (const Piece& piece : pieces_) {
    if (piece.range != nullptr) --piece.range->uses;
  }
}

size_t ToldBytes(const Range& range) {
  const bool is_in_units = range.kind == Kind::kDevice || range.kind == Kind::kImported ||
                           range.kind == Kind::kPool || range.kind == Kind::kImportedPool;
  return is_in_units ? RoundUp(range.bytes, GetConfig().size_unit) : range.bytes;
}

void Insert(const std::shared_ptr<Range>& range) { Ranges()[range->base] = range; }
void Erase(CUdeviceptr base) { Ranges().erase(base); }

std::shared_ptr<Range> Find(CUdeviceptr pointer) {
  auto after = Ranges().upper_bound(pointer);
  if (after == Ranges().begin()) return nullptr;
  const std::shared_ptr<Range>& range = std::prev(after)->second;
  return pointer < range->base + range->bytes ? range : nullptr;
}

std::vector<std::shared_ptr<Range>> RangesOf(const Context* context) {
  std::vector<std::shared_ptr<Range>> found;
  for (const auto& [base, range] : Ranges()) {
    if (context == nullptr || range->context == context) found.push_back(range);
  }
  return found;
}

CUresult Resolve(CUdeviceptr pointer, size_t bytes, int by, bool is_write, const char* call,
                 std::vector<Piece>* pieces) {
  while (bytes > 0) {
    std::shared_ptr<Range> range = Find(pointer);
    if (range == nullptr) {
      if (!IsDeviceAddress(pointer)) {
        pieces->push_back({reinterpret_cast<char*>(pointer), bytes, nullptr});
        return CUDA_SUCCESS;
      }
      Violation(Rule::kUseAfterFree, call,
                "0x%llx is no device memory of this process: freed, "
                "closed, past the end, or a pointer of another process",
                pointer);
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    if (const CUresult result = CheckAccess(*range, by, is_write, call); result != 0) {
      return result;
    }
    const size_t skip = pointer - range->base;
    const size_t here = std::min(bytes, range->bytes - skip);
    pieces->push_back({range->host + skip, here, range});
    // Only mappings may continue in their neighbour; an allocation ends where it ends.
    if (here < bytes && range->kind != Kind::kVmm) {
      Violation(Rule::kUseAfterFree, call, "%zu bytes at 0x%llx, which ends after %zu", bytes,
                pointer, here);
      return CUDA_ERROR_INVALID_VALUE;
    }
    pointer += here;
    bytes -= here;
  }
  return CUDA_SUCCESS;
}

CUresult Touch(CUdeviceptr pointer, size_t bytes, int by, bool is_write, const char* call,
               std::unique_ptr<Use>* use) {
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  std::vector<Piece> pieces;
  const CUresult result = Resolve(pointer, bytes, by, is_write, call, &pieces);
  if (result != 0) return result;
  for (const Piece& piece : pieces) {
    if (piece.range == nullptr || IsReady(*piece.range)) continue;
    Violation(Rule::kUseBeforeReady, call, "0x%llx has not been allocated yet on its stream",
              pointer);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  *use = std::make_unique<Use>(std::move(pieces));
  return CUDA_SUCCESS;
}

void CheckImplicitSync(const char* call) {
  ++implicit_syncs;
  const int in_flight = nccl_in_flight;
  if (in_flight == 0) return;
  Violation(Rule::kImplicitSync, call, "%d NCCL operations of this process are in flight",
            in_flight);
}

void Release(const std::shared_ptr<Range>& range, const char* call) {
  if (range->uses > 0) {
    Violation(Rule::kFreeInUse, call, "0x%llx is being used by another stream", range->base);
  }
  {
    const MachineLock lock;
    if (Export* const entry = FindExport(range->export_id); entry != nullptr) {
      const int32_t importer = entry->importers.OtherThan(ProcessId{});
      if (importer != 0) {
        Violation(Rule::kFreeWhileImported, call, "0x%llx (%zu bytes) is open in process %d",
                  range->base, range->bytes, importer);
      }
      entry->gone = true;
    }
    if (Export* const entry = FindExport(range->import_id); entry != nullptr) {
      entry->importers.Remove(Self());
    }
  }
  Erase(range->base);
  if (range->kind == Kind::kDevice && IsInBlock(*range)) {
    GiveToBlock(*range);
  } else if (range->backing != nullptr && range->kind != Kind::kVmm) {
    const size_t lead = range->base % kGranularity;
    GiveAddresses(range->base - lead, RoundUp(range->bytes + lead, kGranularity));
  }
}

void FreeAllOf(Context& context) {
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  for (const std::shared_ptr<Range>& range : RangesOf(&context)) {
    if (range->kind == Kind::kVmm || IsHostKind(range->kind)) continue;
    Release(range, "cuDevicePrimaryCtxRelease");
  }
}

}  // namespace strict_cuda

// SPDX-License-Identifier: Apache-2.0
// HostMemory: one mapping for each range.
#include "benchmarks/gpu/calls/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ferry::calls {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMaxBytes = uint64_t{8} << 30;
// Flags are small and at the beginning of what they were allocated in.
constexpr uint64_t kFilled = uint64_t{1} << 20;

}  // namespace

HostMemory::~HostMemory() {
  for (const Range& range : ranges_) munmap(range.begin, range.bytes);
}

absl::StatusOr<uint64_t> HostMemory::At(uint64_t recorded, uint64_t bytes) {
  const uint64_t offset = recorded % kPage;
  if (bytes > kMaxBytes || total_ + bytes > kMaxBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the record needs more than ", kMaxBytes >> 30, " GiB of host memory"));
  }
  const uint64_t needed = (offset + std::max(bytes, uint64_t{1}) + kPage - 1) / kPage * kPage;
  const auto known = places_.find(recorded - offset);
  if (known != places_.end() && known->second.bytes >= needed) {
    return reinterpret_cast<uint64_t>(known->second.begin) + offset;
  }
  void* const begin =
      mmap(nullptr, needed, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("no ", needed, " bytes of host memory"));
  }
  FillWithFlags(begin, needed);
  total_ += needed;
  ranges_.push_back({begin, needed});
  places_[recorded - offset] = ranges_.back();
  return reinterpret_cast<uint64_t>(begin) + offset;
}

void FillWithFlags(void* memory, uint64_t bytes) {
  std::memset(memory, 1, std::min(bytes, kFilled));
}

}  // namespace ferry::calls

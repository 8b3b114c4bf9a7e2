// SPDX-License-Identifier: Apache-2.0
// First fit in blocks; an empty block is released.
#include "tests/support/strict_cuda/blocks.h"

#include <list>

namespace strict_cuda {
namespace {

constexpr size_t kAlignment = 512;

struct Block {
  CUdeviceptr base = 0;
  std::shared_ptr<Backing> backing;
  std::map<size_t, size_t> used;  // bytes by offset
};

std::list<Block>& Blocks() {
  static auto* const blocks = new std::list<Block>;
  return *blocks;
}

// The first gap, or kGranularity.
size_t GapIn(const Block& block, size_t bytes) {
  size_t at = 0;
  for (const auto& [offset, size] : block.used) {
    if (offset - at >= bytes) return at;
    at = offset + size;
  }
  return kGranularity - at >= bytes ? at : kGranularity;
}

void Place(Block& block, size_t offset, size_t bytes, Range& range) {
  block.used[offset] = bytes;
  range.base = block.base + offset;
  range.backing = block.backing;
  range.offset = offset;
  range.host = block.backing->host() + offset;
}

}  // namespace

bool TakeFromBlock(Range& range) {
  const size_t bytes = RoundUp(range.bytes, kAlignment);
  for (Block& block : Blocks()) {
    if (block.backing->physical() != range.physical) continue;
    const size_t offset = GapIn(block, bytes);
    if (offset == kGranularity) continue;
    Place(block, offset, bytes, range);
    return true;
  }
  Block block;
  block.backing = Backing::Create(range.physical, kGranularity, "strict_cuda block");
  if (block.backing == nullptr) return false;
  block.base = TakeAddresses(kGranularity, kGranularity, 0);
  if (block.base == 0) return false;
  Blocks().push_back(std::move(block));
  Place(Blocks().back(), 0, bytes, range);
  return true;
}

bool IsInBlock(const Range& range) {
  for (const Block& block : Blocks()) {
    if (block.backing == range.backing) return true;
  }
  return false;
}

void GiveToBlock(const Range& range) {
  for (auto block = Blocks().begin(); block != Blocks().end(); ++block) {
    if (block->backing != range.backing) continue;
    block->used.erase(range.offset);
    if (block->used.empty()) {
      GiveAddresses(block->base, kGranularity);
      Blocks().erase(block);
    }
    return;
  }
}

}  // namespace strict_cuda

// SPDX-License-Identifier: Apache-2.0
// BlockTable: which blocks of which segments are free. Knows sizes only, touches no memory.
#ifndef FERRY_GPU_CUDA_BLOCK_TABLE_H_
#define FERRY_GPU_CUDA_BLOCK_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

namespace ferry::cuda {

struct BlockTableOptions {
  std::string name;              // "the arena of gpu:0", for messages
  std::string budget_option;     // "GpuArenaOptions::budget_bytes"
  size_t budget_bytes = 0;       // of all segments together
  size_t segment_bytes = 0;      // that small classes share
  size_t granularity_bytes = 1;  // segments are multiples of it
  size_t smallest_bytes = 512;   // the smallest class, and every block's alignment; a power of two
};

struct TakenBlock {
  uint32_t segment = 0;
  uint32_t index = 0;
  uint32_t generation = 0;  // how often the block has been out
  size_t offset = 0;        // in the segment
  size_t class_bytes = 0;
};

struct BlockTableStats {
  size_t mapped_bytes = 0;
  size_t used_bytes = 0;
  int segment_count = 0;
  int block_count = 0;
  int64_t made_blocks = 0;
  int64_t reused_blocks = 0;
};

// Each segment has blocks of one class. The owner makes segments when Take finds no room: Plan,
// make, then Add or Forget. Not thread-safe.
class BlockTable final {
 public:
  explicit BlockTable(BlockTableOptions options);

  // A free block of at least `bytes`; the one that was given back last, as it may be cached still.
  std::optional<TakenBlock> Take(size_t bytes);
  // One of a larger class, if there is none of its own: for when no segment can be made.
  std::optional<TakenBlock> TakeLarger(size_t bytes);
  void Give(uint32_t segment, uint32_t index);
  // A segment that is held is not given back though all its blocks are: a peer has it mapped.
  void Hold(uint32_t segment) { ++segments_.at(segment).holds; }
  void Unhold(uint32_t segment) { --segments_.at(segment).holds; }

  struct Plan {
    uint32_t segment = 0;
    size_t bytes = 0;
    // Idle segments that have been taken out to make room: the owner gives their memory back first.
    std::vector<uint32_t> dropped;
  };
  // Room in the budget for a segment with a block of at least `bytes`.
  //   Errors: RESOURCE_EXHAUSTED with what is in use and the option to raise.
  absl::StatusOr<Plan> MakePlan(size_t bytes);
  // The planned segment is there, with its first block out.
  TakenBlock Add(const Plan& plan, size_t bytes);
  // It could not be made.
  void Forget(const Plan& plan);

  // Takes every idle segment out; the owner gives their memory back.
  std::vector<uint32_t> DropIdle();

  // The least size that a block for `bytes` has.
  size_t ClassBytes(size_t bytes) const;
  const BlockTableStats& stats() const { return stats_; }

 private:
  struct Segment {
    size_t bytes = 0;
    size_t class_bytes = 0;
    uint32_t block_count = 0;
    uint32_t fresh = 0;  // blocks from here on were never out
    std::vector<uint32_t> free;
    std::vector<uint32_t> generations;
    uint32_t out = 0;
    uint32_t holds = 0;

    bool is_idle() const { return out == 0 && holds == 0; }
    bool has_room() const { return !free.empty() || fresh < block_count; }
  };

  TakenBlock TakeFrom(uint32_t id, Segment& segment);
  TakenBlock TakeLast(std::vector<uint32_t>& with_room);
  std::vector<uint32_t> DropIdle(size_t enough_bytes);

  const BlockTableOptions options_;
  uint32_t last_segment_ = 0;
  std::map<uint32_t, Segment> segments_;
  // By class; segments that have room.
  absl::flat_hash_map<size_t, std::vector<uint32_t>> with_room_;
  BlockTableStats stats_;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_BLOCK_TABLE_H_

// SPDX-License-Identifier: Apache-2.0
// BlockTable: bookkeeping of free blocks in segments; does not touch memory.
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
  size_t segment_bytes = 0;      // of the segments that small classes share
  size_t granularity_bytes = 1;  // segments are multiples of it
  size_t smallest_bytes = 512;   // the smallest class, and every block's alignment; a power of two
};

// To a multiple of `unit`.
inline size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

struct TakenBlock {
  uint32_t segment = 0;
  uint32_t index = 0;
  uint32_t generation = 0;  // how often the block has been allocated
  size_t offset = 0;        // within the segment
  size_t class_bytes = 0;
};

struct BlockTableStats {
  size_t mapped_bytes = 0;
  size_t reserved_bytes = 0;  // of those, in reserved segments
  size_t used_bytes = 0;
  int segment_count = 0;
  int block_count = 0;
  int64_t made_blocks = 0;
  int64_t reused_blocks = 0;
};

// Each segment has blocks of one class. If Take finds no free block, the owner creates a segment:
// MakePlan, create, then Add or Forget. Reserved segments are created before they are needed, and
// never dropped; while all blocks of one are free it may change its class. Not thread-safe.
class BlockTable final {
 public:
  explicit BlockTable(BlockTableOptions options);

  // Returns a free block of at least `bytes`; the most recently freed one, which may still be
  // cached; or one of a reserved segment.
  std::optional<TakenBlock> Take(size_t bytes);
  // Returns a block of a larger class if its own has none: for when no segment can be created.
  std::optional<TakenBlock> TakeLarger(size_t bytes);
  void Give(uint32_t segment, uint32_t index);
  // A held segment is not released even if all its blocks are free: a peer has it mapped.
  void Hold(uint32_t segment) { ++segments_.at(segment).holds; }
  void Unhold(uint32_t segment) { --segments_.at(segment).holds; }

  struct Plan {
    uint32_t segment = 0;
    size_t bytes = 0;
    // Idle segments that were removed to make room: the owner must release their memory first.
    std::vector<uint32_t> dropped;
  };
  // Reserves budget for a segment with a block of at least `bytes`.
  //   Errors: RESOURCE_EXHAUSTED with the memory in use and the option to raise.
  absl::StatusOr<Plan> MakePlan(size_t bytes);
  // The planned segment has been created; returns its first block.
  TakenBlock Add(const Plan& plan, size_t bytes);
  // The planned segment could not be created.
  void Forget(const Plan& plan);

  // Reserves budget for a reserved segment of `bytes`, rounded up; AddReserved or Forget follows.
  //   Errors: RESOURCE_EXHAUSTED it does not fit into the budget.
  absl::StatusOr<Plan> MakeReservedPlan(size_t bytes);
  void AddReserved(const Plan& plan);

  // Removes all idle segments that are not reserved; the owner must release their memory.
  std::vector<uint32_t> DropIdle();

  // Returns the size class of `bytes`, the minimum size of its block.
  size_t ClassBytes(size_t bytes) const;
  const BlockTableStats& stats() const { return stats_; }

 private:
  struct Segment {
    size_t bytes = 0;
    size_t class_bytes = 0;
    uint32_t block_count = 0;
    uint32_t fresh = 0;  // blocks from here on were never allocated
    std::vector<uint32_t> free;
    std::vector<uint32_t> generations;
    uint32_t out = 0;
    uint32_t holds = 0;
    bool is_reserved = false;

    bool is_idle() const { return out == 0 && holds == 0 && !is_reserved; }
    bool has_room() const { return !free.empty() || fresh < block_count; }
  };

  TakenBlock TakeFrom(uint32_t id, Segment& segment);
  TakenBlock TakeLast(std::vector<uint32_t>& with_room);
  // Gives the smallest reserved segment that is large enough, and has no block in use, this class.
  // Returns whether there was one.
  bool AssignReserved(size_t class_bytes);
  size_t LargestReserved() const;
  void ForgetRoom(uint32_t id, const Segment& segment);
  std::vector<uint32_t> DropIdle(size_t enough_bytes);

  const BlockTableOptions options_;
  uint32_t last_segment_ = 0;
  std::map<uint32_t, Segment> segments_;
  // Segments with free blocks, by class.
  absl::flat_hash_map<size_t, std::vector<uint32_t>> with_room_;
  BlockTableStats stats_;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_BLOCK_TABLE_H_

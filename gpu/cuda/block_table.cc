// SPDX-License-Identifier: Apache-2.0
// BlockTable: size classes and the budget.
#include "gpu/cuda/block_table.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ferry::cuda {
namespace {

// Larger than any address range.
constexpr size_t kLargestBytes = size_t{1} << 46;
// Minimum number of blocks per segment for a class to share segments.
constexpr size_t kBlocksWorthSharing = 8;

}  // namespace

BlockTable::BlockTable(BlockTableOptions options) : options_(std::move(options)) {}

// Small classes are a quarter of a power of two apart: at most a fifth of a block is unused.
// Classes with a segment per block are finer.
size_t BlockTable::ClassBytes(size_t bytes) const {
  if (bytes <= options_.smallest_bytes) return options_.smallest_bytes;
  const size_t octave = std::bit_floor(bytes - 1);
  const size_t class_bytes = RoundUp(bytes, std::max(octave / 4, options_.smallest_bytes));
  if (class_bytes * kBlocksWorthSharing <= options_.segment_bytes) return class_bytes;
  return RoundUp(bytes, std::max(octave / 16, options_.granularity_bytes));
}

TakenBlock BlockTable::TakeFrom(uint32_t id, Segment& segment) {
  TakenBlock block;
  block.segment = id;
  block.class_bytes = segment.class_bytes;
  if (segment.free.empty()) {
    block.index = segment.fresh++;
  } else {
    block.index = segment.free.back();
    segment.free.pop_back();
    ++stats_.reused_blocks;
  }
  block.offset = block.index * segment.class_bytes;
  block.generation = ++segment.generations[block.index];
  ++segment.out;
  ++stats_.made_blocks;
  ++stats_.block_count;
  stats_.used_bytes += segment.class_bytes;
  return block;
}

std::optional<TakenBlock> BlockTable::Take(size_t bytes) {
  if (bytes > kLargestBytes) return std::nullopt;
  const size_t class_bytes = ClassBytes(bytes);
  const auto has_room = [this, class_bytes] {
    const auto found = with_room_.find(class_bytes);
    return found != with_room_.end() && !found->second.empty();
  };
  if (!has_room() && !AssignReserved(class_bytes)) return std::nullopt;
  return TakeLast(with_room_[class_bytes]);
}

void BlockTable::ForgetRoom(uint32_t id, const Segment& segment) {
  const auto found = with_room_.find(segment.class_bytes);
  if (found == with_room_.end()) return;
  found->second.erase(std::remove(found->second.begin(), found->second.end(), id),
                      found->second.end());
}

bool BlockTable::AssignReserved(size_t class_bytes) {
  auto best = segments_.end();
  for (auto it = segments_.begin(); it != segments_.end(); ++it) {
    const Segment& segment = it->second;
    if (!segment.is_reserved || segment.out > 0 || segment.bytes < class_bytes) continue;
    if (best == segments_.end() || segment.bytes < best->second.bytes) best = it;
  }
  if (best == segments_.end()) return false;
  Segment& segment = best->second;
  ForgetRoom(best->first, segment);
  // No generation is used twice for a segment.
  uint32_t last = 0;
  for (const uint32_t each : segment.generations) last = std::max(last, each);
  segment.class_bytes = class_bytes;
  segment.block_count = static_cast<uint32_t>(segment.bytes / class_bytes);
  segment.fresh = 0;
  segment.free.clear();
  segment.generations.assign(segment.block_count, last);
  with_room_[class_bytes].push_back(best->first);
  return true;
}

std::optional<TakenBlock> BlockTable::TakeLarger(size_t bytes) {
  if (bytes > kLargestBytes) return std::nullopt;
  const size_t least = ClassBytes(bytes);
  auto best = with_room_.end();
  for (auto it = with_room_.begin(); it != with_room_.end(); ++it) {
    if (it->second.empty() || it->first < least) continue;
    if (best == with_room_.end() || it->first < best->first) best = it;
  }
  if (best == with_room_.end()) return std::nullopt;
  return TakeLast(best->second);
}

TakenBlock BlockTable::TakeLast(std::vector<uint32_t>& with_room) {
  const uint32_t id = with_room.back();
  Segment& segment = segments_.at(id);
  const TakenBlock block = TakeFrom(id, segment);
  if (!segment.has_room()) with_room.pop_back();
  return block;
}

void BlockTable::Give(uint32_t id, uint32_t index) {
  Segment& segment = segments_.at(id);
  if (!segment.has_room()) with_room_[segment.class_bytes].push_back(id);
  segment.free.push_back(index);
  --segment.out;
  --stats_.block_count;
  stats_.used_bytes -= segment.class_bytes;
}

std::vector<uint32_t> BlockTable::DropIdle(size_t enough_bytes) {
  std::vector<uint32_t> dropped;
  size_t bytes = 0;
  for (auto it = segments_.begin(); it != segments_.end() && bytes < enough_bytes;) {
    const Segment& segment = it->second;
    if (!segment.is_idle()) {
      ++it;
      continue;
    }
    ForgetRoom(it->first, segment);
    bytes += segment.bytes;
    dropped.push_back(it->first);
    it = segments_.erase(it);
  }
  stats_.mapped_bytes -= bytes;
  stats_.segment_count -= static_cast<int>(dropped.size());
  return dropped;
}

std::vector<uint32_t> BlockTable::DropIdle() { return DropIdle(~size_t{0}); }

absl::StatusOr<BlockTable::Plan> BlockTable::MakePlan(size_t bytes) {
  const size_t class_bytes = bytes > kLargestBytes ? bytes : ClassBytes(bytes);
  const bool is_shared =
      class_bytes <= kLargestBytes && class_bytes * kBlocksWorthSharing <= options_.segment_bytes;
  Plan plan;
  plan.bytes =
      is_shared ? RoundUp(options_.segment_bytes, options_.granularity_bytes) : class_bytes;
  size_t idle_bytes = 0;
  for (const auto& [id, segment] : segments_) {
    if (segment.is_idle()) idle_bytes += segment.bytes;
  }
  const size_t staying = stats_.mapped_bytes - idle_bytes;
  if (plan.bytes > options_.budget_bytes || staying > options_.budget_bytes - plan.bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        options_.name, " has no room for ", bytes, " bytes: it may have ", options_.budget_bytes,
        ", has ", stats_.mapped_bytes, ", and ", stats_.block_count, " tensors use ",
        stats_.used_bytes, " of them. ",
        stats_.reserved_bytes == 0
            ? "Free some, or raise "
            : absl::StrCat(stats_.reserved_bytes, " of them are reserved, in segments of up to ",
                           LargestReserved(), " bytes, each of which holds tensors of one size at ",
                           "a time. Free some, reserve less or in larger segments, or raise "),
        options_.budget_option));
  }
  const size_t room = options_.budget_bytes - std::min(options_.budget_bytes, stats_.mapped_bytes);
  if (plan.bytes > room) plan.dropped = DropIdle(plan.bytes - room);
  plan.segment = ++last_segment_;
  stats_.mapped_bytes += plan.bytes;
  ++stats_.segment_count;
  return plan;
}

TakenBlock BlockTable::Add(const Plan& plan, size_t bytes) {
  Segment segment;
  segment.bytes = plan.bytes;
  segment.class_bytes = ClassBytes(bytes);
  segment.block_count = static_cast<uint32_t>(plan.bytes / segment.class_bytes);
  segment.generations.resize(segment.block_count);
  const TakenBlock block = TakeFrom(plan.segment, segment);
  if (segment.has_room()) with_room_[segment.class_bytes].push_back(plan.segment);
  segments_.emplace(plan.segment, std::move(segment));
  return block;
}

size_t BlockTable::LargestReserved() const {
  size_t largest = 0;
  for (const auto& [id, segment] : segments_) {
    if (segment.is_reserved) largest = std::max(largest, segment.bytes);
  }
  return largest;
}

absl::StatusOr<BlockTable::Plan> BlockTable::MakeReservedPlan(size_t bytes) {
  Plan plan;
  plan.bytes = RoundUp(bytes, options_.granularity_bytes);
  if (plan.bytes > options_.budget_bytes - std::min(options_.budget_bytes, stats_.mapped_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options_.name, " has no room to reserve ", bytes, " bytes: it may have ",
                     options_.budget_bytes, " and has ", stats_.mapped_bytes,
                     ". Reserve less, or raise ", options_.budget_option));
  }
  plan.segment = ++last_segment_;
  stats_.mapped_bytes += plan.bytes;
  ++stats_.segment_count;
  return plan;
}

void BlockTable::AddReserved(const Plan& plan) {
  Segment segment;
  segment.bytes = plan.bytes;
  segment.is_reserved = true;
  stats_.reserved_bytes += plan.bytes;
  segments_.emplace(plan.segment, std::move(segment));
}

void BlockTable::Forget(const Plan& plan) {
  stats_.mapped_bytes -= plan.bytes;
  --stats_.segment_count;
}

}  // namespace ferry::cuda

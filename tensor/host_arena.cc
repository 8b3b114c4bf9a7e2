// SPDX-License-Identifier: Apache-2.0
// Size classes, recycling and the budget.
#include "tensor/host_arena.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"

#include "base/status_macros.h"

namespace ferry {
namespace {

constexpr size_t kSmallestClass = kBufferAlignment;
// Larger sizes exceed the address space.
constexpr size_t kLargestClass = size_t{1} << 46;
// A class shares a segment if at least this many of its blocks fit.
constexpr size_t kBlocksWorthSharing = 8;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

struct HostArena::Segment {
  uint32_t id = 0;
  MemorySegment memory;
  size_t class_bytes = 0;
  size_t block_count = 0;
  // Blocks from this one on have never been allocated.
  size_t fresh = 0;
  // Free blocks that are already faulted in, most recently used last: it may still be cached.
  std::vector<uint32_t> free;
  std::vector<uint32_t> generations;
  size_t out = 0;

  bool has_room() const { return !free.empty() || fresh < block_count; }
};

struct HostArena::State {
  // Unmaps idle segments until `enough` bytes are released. Returns the number of bytes released.
  size_t DropIdle(size_t enough) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    size_t dropped = 0;
    for (auto it = segments.begin(); it != segments.end() && dropped < enough;) {
      Segment& segment = *it->second;
      if (segment.out > 0) {
        ++it;
        continue;
      }
      std::vector<Segment*>& list = with_room[segment.class_bytes];
      list.erase(std::remove(list.begin(), list.end(), &segment), list.end());
      dropped += segment.memory.bytes();
      stats.page_bytes[static_cast<size_t>(segment.memory.pages())] -= segment.memory.bytes();
      --stats.segment_count;
      if (!listeners.empty()) retired.push_back(segment.id);
      it = segments.erase(it);
    }
    stats.mapped_bytes -= dropped;
    return dropped;
  }

  absl::Mutex mu;
  uint32_t last_id ABSL_GUARDED_BY(mu) = 0;
  std::map<uint32_t, std::unique_ptr<Segment>> segments ABSL_GUARDED_BY(mu);
  // Segments with free blocks, by class.
  std::map<size_t, std::vector<Segment*>> with_room ABSL_GUARDED_BY(mu);
  HostArenaStats stats ABSL_GUARDED_BY(mu);
  std::vector<std::weak_ptr<Listener>> listeners ABSL_GUARDED_BY(mu);
  // Retired segments that listeners have not been notified of.
  std::vector<uint32_t> retired ABSL_GUARDED_BY(mu);
};

// An allocated block of a segment.
class HostArena::Block final : public Buffer {
 public:
  Block(std::shared_ptr<HostArena> arena, Segment& segment, size_t index, uint32_t generation,
        size_t bytes)
      : Buffer(static_cast<char*>(segment.memory.base()) + index * segment.class_bytes, bytes),
        arena_(std::move(arena)),
        segment_(segment),
        index_(index),
        generation_(generation) {}
  ~Block() override { arena_->Release(segment_, index_); }

  const void* arena() const override { return arena_.get(); }
  ArenaOffset arena_offset() const override {
    return {
        .segment = segment_.id, .generation = generation_, .offset = index_ * segment_.class_bytes};
  }

 private:
  const std::shared_ptr<HostArena> arena_;
  // Stays mapped while one of its blocks is allocated.
  Segment& segment_;
  const size_t index_;
  const uint32_t generation_;
};

HostArena::HostArena(HostArenaOptions options)
    : options_(options), state_(std::make_unique<State>()) {}

// Every block holds a reference to the arena, so none is allocated here.
HostArena::~HostArena() = default;

absl::StatusOr<std::shared_ptr<HostArena>> HostArena::Create(HostArenaOptions options) {
  if (options.segment_bytes < kSmallestClass || options.segment_bytes > kLargestClass) {
    return absl::InvalidArgumentError(absl::StrCat("segment_bytes is ", options.segment_bytes,
                                                   "; it must be from ", kSmallestClass, " to ",
                                                   kLargestClass));
  }
  // Without shared memory tensors are sent over a connection instead, so this is not an error.
  options.memory.may_be_private = true;
  return std::shared_ptr<HostArena>(new HostArena(options));
}

size_t HostArena::ClassBytes(size_t bytes) {
  if (bytes <= kSmallestClass) return kSmallestClass;
  const size_t power = std::bit_floor(bytes - 1);  // power < bytes <= 2 * power
  return RoundUp(bytes, std::max(power / 4, kSmallestClass));
}

absl::StatusOr<HostArena::Segment*> HostArena::AddSegment(size_t class_bytes, size_t bytes) {
  State& state = *state_;
  state.mu.AssertHeld();
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const bool is_shared = class_bytes * kBlocksWorthSharing <= options_.segment_bytes;
  const size_t wanted = RoundUp(is_shared ? options_.segment_bytes : class_bytes, page);
  const size_t mapped = state.stats.mapped_bytes;
  if (mapped + wanted > options_.budget_bytes) {
    // Other classes may have idle segments.
    state.DropIdle(mapped + wanted - options_.budget_bytes);
  }
  if (state.stats.mapped_bytes + wanted > options_.budget_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a tensor of ", bytes, " bytes needs a segment of ", wanted, "; the arena has mapped ",
        state.stats.mapped_bytes, " of its budget of ", options_.budget_bytes, " bytes, and ",
        state.stats.block_count, " tensors use ", state.stats.used_bytes,
        " of them. Free some, or raise --arena-budget-bytes (in programs "
        "TransferOptions::max_host_bytes)"));
  }
  auto segment = std::make_unique<Segment>();
  FERRY_ASSIGN_OR_RETURN(segment->memory, MemorySegment::Create(wanted, options_.memory));
  segment->id = ++state.last_id;
  segment->class_bytes = class_bytes;
  segment->block_count = wanted / class_bytes;
  segment->generations.resize(segment->block_count);
  state.stats.mapped_bytes += wanted;
  ++state.stats.segment_count;
  state.stats.pages = segment->memory.pages();
  // Subtracted again by DropIdle.
  state.stats.page_bytes[static_cast<size_t>(segment->memory.pages())] += segment->memory.bytes();
  Segment* added = segment.get();
  state.with_room[class_bytes].push_back(added);
  state.segments.emplace(added->id, std::move(segment));
  return added;
}

absl::StatusOr<std::shared_ptr<Buffer>> HostArena::Allocate(size_t bytes) {
  if (bytes > kLargestClass) {
    return absl::ResourceExhaustedError(absl::StrCat("no arena has ", bytes, " bytes"));
  }
  absl::StatusOr<std::shared_ptr<Buffer>> buffer;
  bool is_new = false;
  bool has_retired = false;
  {
    absl::MutexLock lock(&state_->mu);
    buffer = AllocateLocked(bytes, is_new);
    has_retired = !state_->retired.empty();
  }
  // In this order: peers notified of the new segment have processed all earlier notifications.
  if (is_new && buffer.ok()) NotifyNewSegment((*buffer)->arena_offset());
  if (has_retired) NotifyRetiredSegments();
  return buffer;
}

absl::StatusOr<std::shared_ptr<Buffer>> HostArena::AllocateLocked(size_t bytes, bool& is_new) {
  const size_t class_bytes = ClassBytes(bytes);
  State& state = *state_;
  state.mu.AssertHeld();
  std::vector<Segment*>& with_room = state.with_room[class_bytes];
  is_new = with_room.empty();
  if (is_new) FERRY_RETURN_IF_ERROR(AddSegment(class_bytes, bytes).status());
  Segment& segment = *with_room.back();
  size_t index = segment.fresh;
  if (segment.free.empty()) {
    ++segment.fresh;
  } else {
    index = segment.free.back();
    segment.free.pop_back();
    ++state.stats.reused_blocks;
  }
  if (!segment.has_room()) with_room.pop_back();
  ++segment.out;
  ++state.stats.made_blocks;
  ++state.stats.block_count;
  state.stats.used_bytes += class_bytes;
  return std::shared_ptr<Buffer>(std::make_shared<Block>(shared_from_this(), segment, index,
                                                         ++segment.generations[index], bytes));
}

void HostArena::Release(Segment& segment, size_t index) {
  State& state = *state_;
  absl::MutexLock lock(&state.mu);
  if (!segment.has_room()) state.with_room[segment.class_bytes].push_back(&segment);
  segment.free.push_back(static_cast<uint32_t>(index));
  --segment.out;
  --state.stats.block_count;
  state.stats.used_bytes -= segment.class_bytes;
}

const MemorySegment& HostArena::memory(const ArenaOffset& at) const {
  absl::MutexLock lock(&state_->mu);
  const auto found = state_->segments.find(at.segment);
  FERRY_CHECK(found != state_->segments.end());
  return found->second->memory;
}

std::string DescribePages(const HostArenaStats& stats) {
  std::vector<std::string> kinds;
  const auto used = [&stats](PageKind kind) { return stats.page_bytes[static_cast<size_t>(kind)]; };
  for (const PageKind kind : {PageKind::kPool, PageKind::kTransparent, PageKind::kOrdinary}) {
    if (used(kind) == 0) continue;
    const bool is_all = used(kind) == stats.mapped_bytes;
    kinds.push_back(absl::StrCat(PageKindName(kind),
                                 is_all ? "" : absl::StrCat(" (", used(kind) >> 20, " MiB)")));
  }
  return kinds.empty() ? "none yet" : absl::StrJoin(kinds, " and ");
}

HostArenaStats HostArena::stats() const {
  absl::MutexLock lock(&state_->mu);
  return state_->stats;
}

TableSizes HostArena::InnerTableSizes() const {
  absl::MutexLock lock(&state_->mu);
  size_t with_room = 0;
  size_t listed_with_room = 0;
  size_t out = 0;
  for (const auto& [id, segment] : state_->segments) {
    with_room += segment->has_room() ? 1 : 0;
    out += segment->out;
  }
  for (const auto& [class_bytes, list] : state_->with_room) listed_with_room += list.size();
  return {{"arena.segments", state_->segments.size()},   {"arena.segments_with_room", with_room},
          {"arena.listed_with_room", listed_with_room},  {"arena.blocks", out},
          {"arena.listeners", state_->listeners.size()}, {"arena.retired", state_->retired.size()}};
}

size_t HostArena::Trim() {
  size_t dropped = 0;
  {
    absl::MutexLock lock(&state_->mu);
    dropped = state_->DropIdle(~size_t{0});
  }
  NotifyRetiredSegments();
  return dropped;
}

std::shared_ptr<void> HostArena::Listen(Listener listener) {
  auto shared = std::make_shared<Listener>(std::move(listener));
  absl::MutexLock lock(&state_->mu);
  std::erase_if(state_->listeners, [](const auto& each) { return each.expired(); });
  state_->listeners.push_back(shared);
  return shared;
}

std::vector<std::shared_ptr<HostArena::Listener>> HostArena::Listeners() const {
  std::vector<std::shared_ptr<Listener>> alive;
  absl::MutexLock lock(&state_->mu);
  for (const auto& each : state_->listeners) {
    if (auto listener = each.lock()) alive.push_back(std::move(listener));
  }
  return alive;
}

void HostArena::NotifyNewSegment(const ArenaOffset& at) {
  for (const auto& listener : Listeners()) {
    if (listener->on_new != nullptr) listener->on_new(at);
  }
}

void HostArena::NotifyRetiredSegments() {
  std::vector<uint32_t> retired;
  {
    absl::MutexLock lock(&state_->mu);
    retired.swap(state_->retired);
  }
  if (retired.empty()) return;
  for (const auto& listener : Listeners()) {
    if (listener->on_retired == nullptr) continue;
    for (const uint32_t segment : retired) listener->on_retired(segment);
  }
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// StagingRing: slots, and the callers that wait for one.
#include "gpu/cuda/staging_ring.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace ferry::cuda {
namespace {

constexpr size_t kSlotsOfSegment = 8;

}  // namespace

std::shared_ptr<StagingRing> StagingRing::Create(DeviceExecutor& executor,
                                                 std::shared_ptr<SyncGate> gate,
                                                 StagingRingOptions options) {
  options.slot_bytes = std::min(options.slot_bytes, options.budget_bytes);
  return std::shared_ptr<StagingRing>(new StagingRing(executor, std::move(gate), options));
}

absl::StatusOr<StagingRing::Slot> StagingRing::MakeSlot() {
  if (options_.slot_bytes == 0) {
    return absl::ResourceExhaustedError(
        "there is no staging ring: --gpu-staging-budget-bytes is 0");
  }
  std::shared_ptr<GpuArena> arena = this->arena();
  if (arena == nullptr) {
    GpuArenaOptions options;
    options.budget_bytes = options_.budget_bytes;
    options.budget_option = "--gpu-staging-budget-bytes";
    options.segment_bytes = std::min(options_.budget_bytes, kSlotsOfSegment * options_.slot_bytes);
    FERRY_ASSIGN_OR_RETURN(arena, GpuArena::Create(executor_.device(), gate_, options));
    absl::MutexLock lock(&mu_);
    arena_ = arena;
  }
  FERRY_ASSIGN_OR_RETURN(Slot slot, arena->Allocate(options_.slot_bytes));
  absl::MutexLock lock(&mu_);
  ++stats_.slot_count;
  return slot;
}

absl::Status StagingRing::Reserve() {
  if (options_.slot_bytes == 0) return absl::OkStatus();
  for (size_t made = 0; made + options_.slot_bytes <= options_.budget_bytes;
       made += options_.slot_bytes) {
    FERRY_ASSIGN_OR_RETURN(Slot slot, MakeSlot());
    absl::MutexLock lock(&mu_);
    free_.push_back(std::move(slot));
  }
  return absl::OkStatus();
}

void StagingRing::Take(TakeCallback done) {
  Slot slot;
  bool may_make = false;
  {
    absl::MutexLock lock(&mu_);
    ++stats_.taken;
    const auto made = static_cast<size_t>(stats_.slot_count);
    if (!free_.empty()) {
      slot = std::move(free_.back());
      free_.pop_back();
    } else {
      may_make = made == 0 || (made + 1) * options_.slot_bytes <= options_.budget_bytes;
    }
  }
  if (slot != nullptr) return std::move(done)(std::move(slot));
  absl::Status status;
  if (may_make) {
    absl::StatusOr<Slot> made = MakeSlot();
    if (made.ok()) return std::move(done)(*std::move(made));
    status = made.status();
  }
  {
    absl::MutexLock lock(&mu_);
    // A slot that was returned meanwhile would not wake this caller.
    if (!free_.empty()) {
      slot = std::move(free_.back());
      free_.pop_back();
    } else if (stats_.slot_count > 0) {
      // A slot in use will be returned.
      ++stats_.waited;
      waiting_.push_back(std::move(done));
      return;
    }
  }
  if (slot != nullptr) return std::move(done)(std::move(slot));
  std::move(done)(std::move(status));
}

void StagingRing::Give(Slot slot, std::shared_ptr<const ReadyEvent> behind) {
  if (behind != nullptr) {
    const absl::StatusOr<bool> is_done = behind->IsDone();
    if (is_done.ok() && !*is_done) {
      // An executor that has been stopped hands out no slots any more. On its own thread it takes
      // this however many wait.
      executor_
          .PostAlways([self = shared_from_this(), slot, behind = std::move(behind)] {
            self->executor_
                .Watch({.event = behind, .what = "a copy into a slot", .keep = slot},
                       [self, slot](absl::Status) { self->Give(slot, nullptr); })
                .IgnoreError();
          })
          .IgnoreError();
      return;
    }
  }
  TakeCallback next;
  {
    absl::MutexLock lock(&mu_);
    if (waiting_.empty()) {
      free_.push_back(std::move(slot));
      return;
    }
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  // Shared, since a rejected Post consumes its function.
  auto shared = std::make_shared<TakeCallback>(std::move(next));
  const absl::Status posted =
      executor_.Post([shared, slot] { std::move (*shared)(absl::StatusOr<Slot>(slot)); });
  if (posted.ok()) return;
  {
    absl::MutexLock lock(&mu_);
    free_.push_back(std::move(slot));
  }
  std::move (*shared)(posted);
}

std::shared_ptr<GpuArena> StagingRing::arena() const {
  absl::MutexLock lock(&mu_);
  return arena_;
}

StagingRingStats StagingRing::stats() const {
  absl::MutexLock lock(&mu_);
  StagingRingStats stats = stats_;
  stats.free_count = static_cast<int>(free_.size());
  stats.waiting_count = static_cast<int>(waiting_.size());
  return stats;
}

}  // namespace ferry::cuda

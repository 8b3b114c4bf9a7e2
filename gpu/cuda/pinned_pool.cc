// SPDX-License-Identifier: Apache-2.0
// PinnedPool: pinned segments and their blocks.
#include "gpu/cuda/pinned_pool.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/status_macros.h"
#include "gpu/cuda/block_table.h"

namespace ferry::cuda {
namespace {

constexpr size_t kGranularity = 4096;

}  // namespace

struct PinnedPool::State {
  State(std::shared_ptr<CudaDevice> cuda_device, std::shared_ptr<SyncGate> sync_gate,
        PinnedPoolOptions given, BlockTableOptions table_options)
      : device(std::move(cuda_device)),
        gate(std::move(sync_gate)),
        options(given),
        table(std::move(table_options)) {}

  absl::Status Quietly(absl::string_view doing, absl::FunctionRef<void()> action) const {
    if (gate != nullptr) return gate->RunQuiesced(options.timeout, doing, action);
    action();
    return absl::OkStatus();
  }
  void Free(const std::vector<void*>& segments_to_free) const {
    const ScopedCurrent current(*device);
    for (void* const each : segments_to_free) device->table().host_free(each);
  }

  // Constant after construction.
  const std::shared_ptr<CudaDevice> device;
  const std::shared_ptr<SyncGate> gate;
  const PinnedPoolOptions options;

  mutable absl::Mutex mu;
  BlockTable table ABSL_GUARDED_BY(mu);
  std::map<uint32_t, void*> segments ABSL_GUARDED_BY(mu);
  // Removed from the table, to be released at the next opportunity.
  std::vector<void*> orphans ABSL_GUARDED_BY(mu);
};

class PinnedPool::Block final : public Buffer {
 public:
  Block(std::shared_ptr<PinnedPool> pool, const TakenBlock& block, void* data, size_t bytes)
      : Buffer(data, bytes), pool_(std::move(pool)), segment_(block.segment), index_(block.index) {}
  ~Block() override { pool_->Release(segment_, index_); }

 private:
  const std::shared_ptr<PinnedPool> pool_;
  const uint32_t segment_;
  const uint32_t index_;
};

PinnedPool::PinnedPool(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::shared_ptr<PinnedPool>> PinnedPool::Create(std::shared_ptr<CudaDevice> device,
                                                               std::shared_ptr<SyncGate> gate,
                                                               PinnedPoolOptions options) {
  if (options.segment_bytes == 0) {
    return absl::InvalidArgumentError("a pool's segments have no bytes");
  }
  options.segment_bytes = std::min(options.segment_bytes, options.budget_bytes);
  if (options.budget_bytes == 0) {
    return absl::InvalidArgumentError(
        "pinned memory for copies to and from GPUs may not be 0 bytes: raise "
        "--pinned-budget-bytes, or do without GPUs (--no-gpus, in programs "
        "TransferOptions::use_gpus)");
  }
  // Compared first, since rounding up may overflow.
  if (options.reserve_bytes > options.budget_bytes ||
      RoundUp(options.reserve_bytes, kGranularity) > options.budget_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.reserve_bytes, " bytes of pinned memory, rounded up to a multiple of ",
                     kGranularity, ", are to be reserved of a budget of ", options.budget_bytes,
                     ": reserve less (--pinned-reserve-bytes), or raise --pinned-budget-bytes"));
  }
  BlockTableOptions table;
  table.name = "the pool of pinned memory";
  table.budget_option = "--pinned-budget-bytes";
  table.budget_bytes = options.budget_bytes;
  table.segment_bytes = options.segment_bytes;
  table.granularity_bytes = kGranularity;
  auto pool = std::shared_ptr<PinnedPool>(new PinnedPool(
      std::make_unique<State>(std::move(device), std::move(gate), options, std::move(table))));
  FERRY_RETURN_IF_ERROR(pool->Reserve());
  return pool;
}

absl::Status PinnedPool::Reserve() {
  State& state = *state_;
  const size_t wanted = state.options.reserve_bytes;
  if (wanted == 0) return absl::OkStatus();
  absl::Status status;
  const absl::Status quiet = state.Quietly("pin memory", [&] {
    const ScopedCurrent current(*state.device);
    for (size_t reserved = 0; reserved < wanted && status.ok();) {
      absl::MutexLock lock(&state.mu);
      const absl::StatusOr<BlockTable::Plan> plan =
          state.table.MakeReservedPlan(std::min(state.options.segment_bytes, wanted - reserved));
      status = plan.status();
      if (!status.ok()) return;
      void* data = nullptr;
      status = state.device->Check(
          state.device->table().host_alloc(&data, plan->bytes, kHostAllocPortable),
          "cuMemHostAlloc");
      if (!status.ok()) return state.table.Forget(*plan);
      state.segments.emplace(plan->segment, data);
      state.table.AddReserved(*plan);
      reserved += plan->bytes;
    }
  });
  if (quiet.ok() && status.ok()) return absl::OkStatus();
  const absl::Status& why = quiet.ok() ? status : quiet;
  return absl::Status(why.code(), absl::StrCat("reserving ", wanted, " bytes of pinned memory ",
                                               "(--pinned-reserve-bytes) failed: ", why.message()));
}

// Buffers keep the pool alive, so none is left.
PinnedPool::~PinnedPool() {
  std::vector<void*> segments;
  {
    absl::MutexLock lock(&state_->mu);
    segments = std::move(state_->orphans);
    for (const auto& [id, data] : state_->segments) segments.push_back(data);
  }
  // If the gate does not allow it, the memory stays pinned until the process exits.
  const absl::Status ignored =
      state_->Quietly("unpin memory", [this, &segments] { state_->Free(segments); });
}

absl::StatusOr<std::shared_ptr<Buffer>> PinnedPool::Allocate(size_t bytes) {
  State& state = *state_;
  std::optional<TakenBlock> block;
  BlockTable::Plan plan;
  std::vector<void*> dropped;
  void* data = nullptr;
  {
    absl::MutexLock lock(&state.mu);
    block = state.table.Take(bytes);
    // Avoids waiting for NCCL work to end, which may itself depend on this allocation.
    if (!block.has_value() && state.gate != nullptr && state.gate->work_count() > 0) {
      block = state.table.TakeLarger(bytes);
    }
    if (block.has_value()) {
      data = state.segments.at(block->segment);
    } else {
      FERRY_ASSIGN_OR_RETURN(plan, state.table.MakePlan(bytes));
      dropped = std::move(state.orphans);
      state.orphans.clear();
      for (const uint32_t id : plan.dropped) {
        dropped.push_back(state.segments.at(id));
        state.segments.erase(id);
      }
    }
  }
  if (!block.has_value()) {
    absl::Status made;
    const absl::Status quiet = state.Quietly("pin memory", [&] {
      state.Free(dropped);
      const ScopedCurrent current(*state.device);
      made = state.device->Check(
          state.device->table().host_alloc(&data, plan.bytes, kHostAllocPortable),
          "cuMemHostAlloc");
    });
    absl::MutexLock lock(&state.mu);
    if (!quiet.ok()) {
      state.orphans.insert(state.orphans.end(), dropped.begin(), dropped.end());
      made = quiet;
    }
    if (!made.ok()) {
      state.table.Forget(plan);
      return made;
    }
    state.segments.emplace(plan.segment, data);
    block = state.table.Add(plan, bytes);
  }
  return std::shared_ptr<Buffer>(std::make_shared<Block>(
      shared_from_this(), *block, static_cast<char*>(data) + block->offset, bytes));
}

void PinnedPool::Release(uint32_t segment, uint32_t index) {
  absl::MutexLock lock(&state_->mu);
  state_->table.Give(segment, index);
}

PinnedPoolStats PinnedPool::stats() const {
  absl::MutexLock lock(&state_->mu);
  const BlockTableStats& table = state_->table.stats();
  return {table.mapped_bytes, table.reserved_bytes, table.used_bytes,
          table.block_count,  table.made_blocks,    table.reused_blocks};
}

PinnedRegistration::PinnedRegistration(std::shared_ptr<CudaDevice> device, void* data)
    : device_(std::move(device)), data_(data) {}

absl::StatusOr<std::unique_ptr<PinnedRegistration>> PinnedRegistration::Create(
    std::shared_ptr<CudaDevice> device, void* data, size_t bytes) {
  const ScopedCurrent current(*device);
  FERRY_RETURN_IF_ERROR(device->Check(
      device->table().host_register(data, bytes, kHostRegisterPortable), "cuMemHostRegister"));
  return absl::WrapUnique(new PinnedRegistration(std::move(device), data));
}

PinnedRegistration::~PinnedRegistration() {
  const ScopedCurrent current(*device_);
  device_->table().host_unregister(data_);
}

}  // namespace ferry::cuda

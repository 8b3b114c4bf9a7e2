// SPDX-License-Identifier: Apache-2.0
// GpuArena: segments of device memory, and blocks waiting for their last use.
#include "gpu/cuda/gpu_arena.h"

#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/logging.h"
#include "base/status_macros.h"
#include "gpu/cuda/arena_segment.h"
#include "gpu/cuda/block_table.h"

namespace ferry::cuda {
namespace {

constexpr size_t kSmallestBytes = 512;
// cuMemAlloc has none, but a handle of a smaller allocation would expose its neighbours to the
// peer: the driver suballocates blocks of this size.
constexpr size_t kPlainGranularity = size_t{2} << 20;

}  // namespace

struct GpuArena::State {
  State(std::shared_ptr<CudaDevice> cuda_device, std::shared_ptr<SyncGate> sync_gate,
        GpuArenaOptions given, BlockTableOptions table_options)
      : device(std::move(cuda_device)),
        gate(std::move(sync_gate)),
        options(std::move(given)),
        table(std::move(table_options)) {}

  struct Pending {
    uint32_t segment = 0;
    uint32_t index = 0;
    DeviceBuffer::Uses uses;
  };
  using SegmentPtr = std::unique_ptr<ArenaSegment>;

  // Runs an action that may synchronize the device.
  absl::Status Quietly(absl::string_view doing, absl::FunctionRef<void()> action) const {
    if (gate != nullptr) return gate->RunQuiesced(options.timeout, doing, action);
    action();
    return absl::OkStatus();
  }
  absl::StatusOr<SegmentPtr> MakeSegment(const BlockTable::Plan& plan) const;
  void NoteRefused(const std::vector<std::pair<int, absl::Status>>& refused) const
      ABSL_LOCKS_EXCLUDED(mu);
  std::vector<SegmentPtr> TakeSegments(const std::vector<uint32_t>& ids)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Constant after construction.
  const std::shared_ptr<CudaDevice> device;
  const std::shared_ptr<SyncGate> gate;
  const GpuArenaOptions options;
  ExportBy export_by = ExportBy::kPosixFd;
  std::string fallback_reason;

  mutable absl::Mutex mu;
  // Those of options.peer_ordinals that have no access to some segment.
  mutable std::set<int> refused_peers ABSL_GUARDED_BY(mu);
  BlockTable table ABSL_GUARDED_BY(mu);
  std::map<uint32_t, SegmentPtr> segments ABSL_GUARDED_BY(mu);
  // Blocks that were released before their last use completed.
  std::vector<Pending> pending ABSL_GUARDED_BY(mu);
  // Removed from the table, to be released at the next opportunity.
  std::vector<SegmentPtr> orphans ABSL_GUARDED_BY(mu);
};

absl::StatusOr<GpuArena::State::SegmentPtr> GpuArena::State::MakeSegment(
    const BlockTable::Plan& plan) const {
  const ScopedCurrent current(*device);
  auto segment = std::make_unique<ArenaSegment>();
  segment->id = plan.segment;
  segment->bytes = plan.bytes;
  absl::Status status;
  if (fallback_reason.empty()) {
    std::vector<std::pair<int, absl::Status>> refused;
    status = segment->MapVirtual(*device, options.peer_ordinals, refused);
    if (status.ok()) NoteRefused(refused);
  } else {
    status = segment->AllocatePlain(*device);
  }
  if (status.ok()) status = segment->Describe(*device, export_by);
  if (status.ok()) return segment;
  segment->Free(*device);
  return status;
}

void GpuArena::State::NoteRefused(const std::vector<std::pair<int, absl::Status>>& refused) const {
  absl::MutexLock lock(&mu);
  for (const auto& [ordinal, status] : refused) {
    if (!refused_peers.insert(ordinal).second) continue;
    FERRY_LOG_WARN(kGpu,
                   "memory not mapped for a peer: gpu:{} cannot access the arena of {}, and copies "
                   "between them may go through host memory: {}",
                   ordinal, device->name(), status);
  }
}

std::vector<GpuArena::State::SegmentPtr> GpuArena::State::TakeSegments(
    const std::vector<uint32_t>& ids) {
  std::vector<SegmentPtr> taken;
  for (const uint32_t id : ids) {
    const auto found = segments.find(id);
    taken.push_back(std::move(found->second));
    segments.erase(found);
  }
  return taken;
}

GpuArena::GpuArena(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::shared_ptr<GpuArena>> GpuArena::Create(std::shared_ptr<CudaDevice> device,
                                                           std::shared_ptr<SyncGate> gate,
                                                           GpuArenaOptions options) {
  if (options.segment_bytes == 0) {
    return absl::InvalidArgumentError("an arena's segments have no bytes");
  }
  options.segment_bytes = std::min(options.segment_bytes, options.budget_bytes);
  if (options.budget_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory of ", device->name(), " for tensors may not be 0 bytes: raise ",
                     options.budget_option,
                     ", or do without GPUs (--no-gpus, in programs TransferOptions::use_gpus)"));
  }
  if (options.reserve_segment_bytes == 0) {
    return absl::InvalidArgumentError(
        "memory is reserved in segments of at least 1 byte: raise --gpu-reserve-segment-bytes, in "
        "programs TransferOptions::gpu_reserve_segment_bytes");
  }
  const ScopedCurrent current(*device);
  size_t granularity = kPlainGranularity;
  absl::Status probe;
  const auto try_it = [&] { probe = ProbeExport(*device, granularity); };
  if (gate == nullptr) {
    try_it();
  } else {
    FERRY_RETURN_IF_ERROR(gate->RunQuiesced(options.timeout, "make exportable memory", try_it));
  }
  // The kind of memory must not depend on how much is free at present.
  if (absl::IsResourceExhausted(probe)) return probe;
  // Compared first, since rounding up may overflow.
  if (options.reserve_bytes > options.budget_bytes ||
      RoundUp(options.reserve_bytes, granularity) > options.budget_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.reserve_bytes, " bytes of ", device->name(), ", rounded up to a multiple of ",
        granularity, ", are to be reserved of a budget of ", options.budget_bytes,
        ": reserve less (--gpu-reserve-bytes, in programs TransferOptions::gpu_reserve_bytes), or "
        "raise ",
        options.budget_option));
  }
  BlockTableOptions table;
  table.name = absl::StrCat("the arena of ", device->name());
  table.budget_option = options.budget_option;
  table.budget_bytes = options.budget_bytes;
  table.segment_bytes = options.segment_bytes;
  table.granularity_bytes = granularity;
  table.smallest_bytes = kSmallestBytes;
  auto state = std::make_unique<State>(std::move(device), std::move(gate), std::move(options),
                                       std::move(table));
  if (!probe.ok()) {
    state->fallback_reason = std::string(probe.message());
    state->export_by =
        state->device->api().Has(CudaGroup::kIpc).ok() ? ExportBy::kLegacyHandle : ExportBy::kNone;
  }
  auto arena = std::shared_ptr<GpuArena>(new GpuArena(std::move(state)));
  FERRY_RETURN_IF_ERROR(arena->Reserve());
  return arena;
}

absl::Status GpuArena::Reserve() {
  State& state = *state_;
  const size_t wanted = state.options.reserve_bytes;
  if (wanted == 0) return absl::OkStatus();
  absl::Status status;
  const absl::Status quiet = state.Quietly("reserve device memory", [&] {
    for (size_t reserved = 0; reserved < wanted && status.ok();) {
      const size_t bytes = std::min(state.options.reserve_segment_bytes, wanted - reserved);
      absl::StatusOr<BlockTable::Plan> plan = absl::UnknownError("no plan");
      {
        absl::MutexLock lock(&state.mu);
        plan = state.table.MakeReservedPlan(bytes);
      }
      status = plan.status();
      if (!status.ok()) return;
      absl::StatusOr<State::SegmentPtr> made = state.MakeSegment(*plan);
      status = made.status();
      reserved += plan->bytes;
      absl::MutexLock lock(&state.mu);
      if (!made.ok()) return state.table.Forget(*plan);
      state.segments.emplace(plan->segment, *std::move(made));
      state.table.AddReserved(*plan);
    }
  });
  if (quiet.ok() && status.ok()) return absl::OkStatus();
  const absl::Status& why = quiet.ok() ? status : quiet;
  return absl::Status(why.code(),
                      absl::StrCat("reserving ", wanted, " bytes of ", state.device->name(),
                                   " (--gpu-reserve-bytes) failed: ", why.message()));
}

// Buffers keep the arena alive, so none is left; streams may still use their memory.
GpuArena::~GpuArena() {
  std::vector<State::SegmentPtr> segments;
  {
    absl::MutexLock lock(&state_->mu);
    segments = std::move(state_->orphans);
    for (auto& [id, segment] : state_->segments) segments.push_back(std::move(segment));
  }
  // Freeing synchronizes the device; if the gate does not allow it, the memory is leaked until the
  // process exits.
  const absl::Status ignored = state_->Quietly("free an arena", [this, &segments] {
    for (const State::SegmentPtr& segment : segments) segment->Free(*state_->device);
  });
}

absl::StatusOr<std::shared_ptr<DeviceBuffer>> GpuArena::Allocate(size_t bytes) {
  State& state = *state_;
  Collect();
  std::optional<TakenBlock> block;
  BlockTable::Plan plan;
  std::vector<State::SegmentPtr> dropped;
  ArenaSegment* segment = nullptr;
  {
    absl::MutexLock lock(&state.mu);
    block = state.table.Take(bytes);
    if (block.has_value()) {
      segment = state.segments.at(block->segment).get();
    } else {
      FERRY_ASSIGN_OR_RETURN(plan, state.table.MakePlan(bytes));
      dropped = state.TakeSegments(plan.dropped);
      std::move(state.orphans.begin(), state.orphans.end(), std::back_inserter(dropped));
      state.orphans.clear();
    }
  }
  if (!block.has_value()) {
    absl::StatusOr<State::SegmentPtr> made = absl::UnavailableError("not made");
    const absl::Status quiet = state.Quietly("make device memory", [&] {
      for (const State::SegmentPtr& each : dropped) each->Free(*state.device);
      made = state.MakeSegment(plan);
    });
    absl::MutexLock lock(&state.mu);
    if (!quiet.ok() || !made.ok()) {
      state.table.Forget(plan);
      if (!quiet.ok()) {
        std::move(dropped.begin(), dropped.end(), std::back_inserter(state.orphans));
        return quiet;
      }
      return made.status();
    }
    segment = made->get();
    state.segments.emplace(plan.segment, *std::move(made));
    block = state.table.Add(plan, bytes);
  }
  return BufferOf(*segment, *block, bytes);
}

std::shared_ptr<DeviceBuffer> GpuArena::TryAllocate(size_t bytes) {
  State& state = *state_;
  Collect();
  std::optional<TakenBlock> block;
  ArenaSegment* segment = nullptr;
  {
    absl::MutexLock lock(&state.mu);
    block = state.table.Take(bytes);
    if (!block.has_value()) return nullptr;
    segment = state.segments.at(block->segment).get();
  }
  return BufferOf(*segment, *block, bytes);
}

std::shared_ptr<DeviceBuffer> GpuArena::BufferOf(ArenaSegment& segment, const TakenBlock& block,
                                                 size_t bytes) {
  return std::make_shared<DeviceBuffer>(
      segment.base + block.offset, bytes, state_->device->ordinal(),
      [arena = shared_from_this(), &segment, index = block.index](DeviceBuffer::Uses uses) {
        arena->Release(segment, index, std::move(uses));
      },
      this, ArenaOffset{segment.id, block.generation, block.offset});
}

void GpuArena::Release(ArenaSegment& segment, uint32_t index, DeviceBuffer::Uses uses) {
  State& state = *state_;
  absl::MutexLock lock(&state.mu);
  if (uses.empty()) return state.table.Give(segment.id, index);
  state.pending.push_back({segment.id, index, std::move(uses)});
}

size_t GpuArena::Collect() {
  State& state = *state_;
  std::vector<State::Pending> pending;
  {
    absl::MutexLock lock(&state.mu);
    pending.swap(state.pending);
  }
  if (pending.empty()) return 0;
  std::vector<State::Pending> waiting;
  std::vector<State::Pending> free;
  // The driver is called with no lock held.
  for (State::Pending& each : pending) {
    bool is_done = true;
    for (const std::shared_ptr<const ReadyEvent>& use : each.uses) {
      const absl::StatusOr<bool> done = use->IsDone();
      // A device that has failed no longer uses memory.
      if (done.ok() && !*done) is_done = false;
    }
    (is_done ? free : waiting).push_back(std::move(each));
  }
  absl::MutexLock lock(&state.mu);
  for (State::Pending& each : waiting) state.pending.push_back(std::move(each));
  const size_t before = state.table.stats().used_bytes;
  for (const State::Pending& each : free) state.table.Give(each.segment, each.index);
  return before - state.table.stats().used_bytes;
}

size_t GpuArena::Trim() {
  State& state = *state_;
  Collect();
  size_t bytes = 0;
  const absl::Status ignored = state.Quietly("give device memory back", [&state, &bytes] {
    std::vector<State::SegmentPtr> dropped;
    {
      absl::MutexLock lock(&state.mu);
      dropped = state.TakeSegments(state.table.DropIdle());
    }
    for (const State::SegmentPtr& segment : dropped) {
      bytes += segment->bytes;
      segment->Free(*state.device);
    }
  });
  return bytes;
}

IpcDescriptor GpuArena::Describe(const Buffer& buffer) const {
  const ArenaOffset at = buffer.arena_offset();
  absl::MutexLock lock(&state_->mu);
  IpcDescriptor descriptor = state_->segments.at(at.segment)->descriptor;
  descriptor.offset = at.offset;
  descriptor.bytes = buffer.bytes();
  return descriptor;
}

absl::StatusOr<UniqueFd> GpuArena::ExportSegment(const Buffer& buffer) const {
  return Export(buffer.arena_offset().segment);
}

absl::StatusOr<UniqueFd> GpuArena::Export(uint32_t segment) const {
  if (state_->export_by != ExportBy::kPosixFd) return UniqueFd();
  AllocationHandle handle = 0;
  {
    absl::MutexLock lock(&state_->mu);
    handle = state_->segments.at(segment)->handle;
  }
  return ExportHandle(*state_->device, handle);
}

std::shared_ptr<const HeldSegment> GpuArena::HoldSegment(const Buffer& buffer) {
  const uint32_t segment = buffer.arena_offset().segment;
  absl::MutexLock lock(&state_->mu);
  state_->table.Hold(segment);
  return std::shared_ptr<const HeldSegment>(
      new HeldSegment(shared_from_this(), segment, state_->segments.at(segment)->descriptor));
}

HeldSegment::~HeldSegment() {
  absl::MutexLock lock(&arena_->state_->mu);
  arena_->state_->table.Unhold(segment_);
}

absl::StatusOr<UniqueFd> HeldSegment::Export() const { return arena_->Export(segment_); }

bool GpuArena::IsMappedFor(int ordinal) const {
  if (ordinal == state_->device->ordinal()) return true;
  const std::vector<int>& peers = state_->options.peer_ordinals;
  if (!state_->fallback_reason.empty() || absl::c_find(peers, ordinal) == peers.end()) return false;
  absl::MutexLock lock(&state_->mu);
  return state_->refused_peers.count(ordinal) == 0;
}

ExportBy GpuArena::export_by() const { return state_->export_by; }

const std::string& GpuArena::fallback_reason() const { return state_->fallback_reason; }

CudaDevice& GpuArena::device() const { return *state_->device; }

GpuArenaStats GpuArena::stats() const {
  absl::MutexLock lock(&state_->mu);
  const BlockTableStats& table = state_->table.stats();
  GpuArenaStats stats;
  stats.mapped_bytes = table.mapped_bytes;
  stats.reserved_bytes = table.reserved_bytes;
  stats.used_bytes = table.used_bytes;
  stats.segment_count = table.segment_count;
  stats.block_count = table.block_count;
  stats.made_blocks = table.made_blocks;
  stats.reused_blocks = table.reused_blocks;
  stats.pending_count = static_cast<int>(state_->pending.size());
  return stats;
}

}  // namespace ferry::cuda

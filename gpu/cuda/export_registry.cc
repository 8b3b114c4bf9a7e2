// SPDX-License-Identifier: Apache-2.0
// Registered memory by address, while anything uses it.
#include "gpu/cuda/export_registry.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "gpu/cuda/device_buffer.h"
#include "gpu/cuda/ipc_descriptor.h"
#include "gpu/cuda/memory_kind.h"
#include "gpu/cuda/ready_tensor.h"

namespace ferry::cuda {
namespace {

using MemoryPtr = std::shared_ptr<const RegisteredMemory>;

// The memory of another buffer, and what keeps the registrations of that.
class HeldBuffer final : public Buffer {
 public:
  HeldBuffer(std::shared_ptr<Buffer> memory, std::vector<std::shared_ptr<const void>> held)
      : Buffer(memory->data(), memory->bytes(), memory->location()),
        held_(std::move(held)),
        memory_(std::move(memory)) {}

  // The buffer without what keeps it, so that a tensor that is passed on again and again does not
  // become a chain of them.
  static std::shared_ptr<Buffer> Unwrap(const std::shared_ptr<Buffer>& buffer) {
    const auto* const held = dynamic_cast<const HeldBuffer*>(buffer.get());
    return held == nullptr ? buffer : held->memory_;
  }

 private:
  // Released last: by then nothing of Ferry's has the memory.
  const std::vector<std::shared_ptr<const void>> held_;
  const std::shared_ptr<Buffer> memory_;
};

}  // namespace

ExportRegistration::ExportRegistration(std::shared_ptr<ExportRegistry> registry,
                                       std::shared_ptr<const RegisteredMemory> memory,
                                       std::string what)
    : registry_(std::move(registry)),
      holders_(memory->holders()),
      allocation_ids_(memory->allocation_ids()),
      what_(std::move(what)),
      memory_(std::move(memory)) {}

ExportRegistration::~ExportRegistration() { Retire(); }

void ExportRegistration::Retire() {
  MemoryPtr memory;
  {
    absl::MutexLock lock(&mu_);
    memory = std::move(memory_);
    memory_ = nullptr;
  }
  if (memory != nullptr) memory->Retire();
}

absl::Status ExportRegistration::Release(absl::Duration timeout) {
  Retire();
  const absl::Time deadline = SteadyClock().Now() + timeout;
  std::vector<std::shared_ptr<const MemoryHolders>> all =
      registry_->HoldersOfRetired(allocation_ids_);
  all.push_back(holders_);
  for (const auto& each : all) {
    if (each->AwaitEnd(deadline - SteadyClock().Now())) continue;
    const std::string names = each->Describe();
    return absl::DeadlineExceededError(absl::StrCat(
        "waited ", absl::FormatDuration(timeout), " for the end of all uses of ", what_,
        ", which is still used by ", names.empty() ? "a call of Ferry's that is returning" : names,
        ": receive the tensors sent from it, release those received, and do not free it yet"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ExportRegistration>> ExportRegistry::Register(
    const CudaDevice& device, Tensor tensor) {
  FERRY_ASSIGN_OR_RETURN(const MemoryInfo info, Classify(device, tensor.data(), tensor.bytes()));
  std::string what =
      absl::StrCat(tensor.bytes(), " bytes of ", MemoryKindName(info.kind), " of ", device.name());
  if (info.export_by == ExportBy::kNone) {
    return absl::FailedPreconditionError(
        absl::StrCat("no other process can map ", what, ": ", info.no_export_reason));
  }
  std::vector<uint64_t> ids;
  for (const MemoryPiece& piece : info.pieces) {
    ids.push_back(AllocationId(piece.buffer_id, piece.base, piece.allocation_bytes));
  }
  const auto memory = std::make_shared<const RegisteredMemory>(
      std::move(tensor), ids, std::make_shared<MemoryHolders>(),
      [weak = weak_from_this()](const RegisteredMemory& ended) {
        if (const auto self = weak.lock()) self->Forget(ended);
      });
  {
    absl::MutexLock lock(&mu_);
    for (size_t i = 0; i < ids.size(); ++i) {
      const MemoryPiece& piece = info.pieces[i];
      pieces_.emplace(piece.base, Piece{piece.allocation_bytes, memory.get(), memory});
      by_id_[ids[i]].push_back({memory.get(), memory, memory->holders()});
    }
    count_ = pieces_.size();
  }
  return std::unique_ptr<ExportRegistration>(
      new ExportRegistration(shared_from_this(), memory, std::move(what)));
}

MemoryPtr ExportRegistry::Find(uint64_t allocation_id) const {
  // Released without the lock, since the last reference calls Forget.
  std::vector<MemoryPtr> registered = AllOf(allocation_id);
  while (!registered.empty() && registered.back()->is_retired()) registered.pop_back();
  return registered.empty() ? nullptr : registered.back();
}

std::vector<MemoryPtr> ExportRegistry::AllOf(uint64_t allocation_id) const {
  std::vector<MemoryPtr> all;
  if (is_empty()) return all;
  absl::MutexLock lock(&mu_);
  const auto found = by_id_.find(allocation_id);
  if (found == by_id_.end()) return all;
  for (const Registered& each : found->second) {
    if (MemoryPtr memory = each.memory.lock()) all.push_back(std::move(memory));
  }
  return all;
}

bool ExportRegistry::IsKnown(uint64_t allocation_id) const {
  if (is_empty()) return false;
  absl::MutexLock lock(&mu_);
  return by_id_.contains(allocation_id);
}

Tensor ExportRegistry::Hold(Tensor tensor, absl::FunctionRef<std::string()> holder) const {
  if (is_empty() || !tensor.is_valid() || tensor.bytes() == 0 ||
      tensor.location().space == MemorySpace::kHost) {
    return tensor;
  }
  const std::shared_ptr<Buffer> memory = HeldBuffer::Unwrap(MemoryOf(tensor));
  if (memory->arena() != nullptr || AsDeviceBuffer(memory.get()) != nullptr) return tensor;
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data());
  const uintptr_t end = begin + tensor.bytes();
  // Also those that are not held, whose last reference must not go with the lock held.
  std::vector<MemoryPtr> found;
  std::vector<const RegisteredMemory*> chosen;
  std::vector<std::shared_ptr<const void>> held;
  {
    absl::MutexLock lock(&mu_);
    auto at = pieces_.upper_bound(begin);
    if (at != pieces_.begin()) at = pieces_.lower_bound(std::prev(at)->first);
    while (at != pieces_.end() && at->first < end) {
      // The newest of those of one allocation that have not ended, so that the end of another one
      // does not wait for transfers that begin under this.
      const RegisteredMemory* newest = nullptr;
      for (const auto next = pieces_.upper_bound(at->first); at != next; ++at) {
        if (at->first + at->second.bytes <= begin) continue;
        MemoryPtr memory = at->second.memory.lock();
        if (memory == nullptr) continue;
        if (newest == nullptr || newest->is_retired() || !memory->is_retired()) {
          newest = memory.get();
        }
        found.push_back(std::move(memory));
      }
      // A registration of many allocations is held once.
      if (newest == nullptr || absl::c_linear_search(chosen, newest)) continue;
      chosen.push_back(newest);
      held.push_back(newest->Hold(holder()));
    }
  }
  if (held.empty()) return tensor;
  absl::StatusOr<Tensor> made =
      Tensor::Create(tensor.dtype(), tensor.shape(),
                     std::make_shared<HeldBuffer>(memory, std::move(held)), tensor.offset_bytes());
  FERRY_CHECK(made.ok());
  return WithReady(*std::move(made), ReadyOf(tensor));
}

void ExportRegistry::Forget(const RegisteredMemory& memory) {
  absl::MutexLock lock(&mu_);
  for (auto at = pieces_.begin(); at != pieces_.end();) {
    at = at->second.identity == &memory ? pieces_.erase(at) : std::next(at);
  }
  for (const uint64_t id : memory.allocation_ids()) {
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) continue;
    std::vector<Registered>& all = found->second;
    std::erase_if(ending_, [](const auto& each) { return each.second->has_ended(); });
    ending_.emplace(id, memory.holders());
    all.erase(std::remove_if(all.begin(), all.end(),
                             [&](const Registered& each) { return each.identity == &memory; }),
              all.end());
    if (all.empty()) by_id_.erase(found);
  }
  count_ = pieces_.size();
}

std::vector<std::shared_ptr<const MemoryHolders>> ExportRegistry::HoldersOfRetired(
    const std::vector<uint64_t>& allocation_ids) const {
  std::vector<std::shared_ptr<const MemoryHolders>> holders;
  // Released without the lock, as in Find.
  std::vector<MemoryPtr> used;
  absl::MutexLock lock(&mu_);
  for (const uint64_t id : allocation_ids) {
    if (const auto found = by_id_.find(id); found != by_id_.end()) {
      for (const Registered& each : found->second) {
        MemoryPtr memory = each.memory.lock();
        // Null: its last reference has gone, and it is about to be forgotten.
        if (memory == nullptr || memory->is_retired()) holders.push_back(each.holders);
        used.push_back(std::move(memory));
      }
    }
    // Tensors of these are being dropped.
    for (auto [at, end] = ending_.equal_range(id); at != end; ++at) holders.push_back(at->second);
  }
  return holders;
}

}  // namespace ferry::cuda

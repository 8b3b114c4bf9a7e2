// SPDX-License-Identifier: Apache-2.0
// Opens the peer's allocations, counts their users, and closes them.
#include "transport/cuda_ipc/cuda_ipc_mappings.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "net/event_loop.h"

namespace ferry {
namespace {

using cuda::ImportedMemory;

constexpr absl::Duration kOpenTimeout = absl::Seconds(10);

// UNAVAILABLE closes the control channel, as for a failed producer; a transfer that cannot be
// opened now must not.
absl::Status OfThisTransfer(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return status;
  return absl::FailedPreconditionError(status.message());
}

}  // namespace

CudaIpcMappings::CudaIpcMappings(const TransportEnvironment& environment, Endpoint peer,
                                 CacheOf cache_of, ClosePeer close_peer,
                                 std::shared_ptr<GpuLink> link)
    : environment_(environment),
      peer_(std::move(peer)),
      cache_of_(std::move(cache_of)),
      close_peer_(std::move(close_peer)),
      link_(std::move(link)) {}

void CudaIpcMappings::OpenForProbe(Gpu& gpu, const cuda::IpcDescriptor& memory, UniqueFd fd,
                                   OpenCallback done) {
  const absl::Status started =
      cache_of_(gpu).Open(KeyOf(memory.allocation_id), memory, std::move(fd),
                          SteadyClock().Now() + kOpenTimeout, done, lifelines_);
  if (!started.ok()) done(started);
}

void CudaIpcMappings::Keep(const ImportedMemory& memory) {
  absl::MutexLock lock(&mu_);
  if (aborted_.ok()) kept_.push_back(memory);
}

void CudaIpcMappings::Open(Gpu& gpu, const GpuPair& pair, const CudaIpcPiece& piece, UniqueFd fd,
                           OpenCallback done) {
  cuda::IpcImportCache& cache = cache_of_(gpu);
  const cuda::ImportKey key = KeyOf(piece.memory.allocation_id);
  const bool is_new = piece.is_kept && piece.has_fd;
  if (std::optional<ImportedMemory> found = cache.Find(key, lifelines_); found.has_value()) {
    if (is_new) Keep(*found);
    return done(*std::move(found));
  }
  // The fetch with its descriptor may be opening it.
  const bool may_request =
      piece.is_kept && !fd.valid() && piece.memory.export_by == cuda::ExportBy::kPosixFd;
  const absl::Status started = cache.Open(
      key, piece.memory, std::move(fd), SteadyClock().Now() + kOpenTimeout,
      [self = shared_from_this(), is_new, done, may_request, pair,
       id = piece.memory.allocation_id](absl::StatusOr<ImportedMemory> memory) {
        if (!memory.ok() && may_request) return self->RequestSegment(pair, id, done);
        if (!memory.ok()) return done(OfThisTransfer(memory.status()));
        if (is_new) self->Keep(*memory);
        done(std::move(memory));
      },
      lifelines_);
  if (!started.ok()) done(started);
}

void CudaIpcMappings::OpenInto(Held& held, Gpu& gpu, const GpuPair& pair, const CudaIpcPiece& piece,
                               UniqueFd fd, std::function<void(const absl::Status&)> done) {
  const bool is_foreign = !piece.is_kept;
  const Held::Foreign use = {piece.memory.allocation_id, piece.may_stay_open};
  const auto device = static_cast<uint16_t>(gpu.device->ordinal());
  if (is_foreign) {
    // Before it is opened: once it is, a tensor that is released must not close it as the last.
    absl::MutexLock lock(&mu_);
    ++foreign_[{device, use.allocation_id}].users;
  }
  Open(gpu, pair, piece, std::move(fd),
       [self = shared_from_this(), &held, &gpu, device, is_foreign, use,
        done = std::move(done)](absl::StatusOr<ImportedMemory> memory) {
         if (memory.ok()) {
           held.memory.push_back(*std::move(memory));
           if (is_foreign) held.foreign.push_back(use);
           return done(absl::OkStatus());
         }
         std::optional<ToClose> to_close;
         if (is_foreign) {
           absl::MutexLock lock(&self->mu_);
           to_close = self->RemoveUser(device, use);
         }
         if (to_close.has_value()) self->CloseUnlessLeaving(gpu, *std::move(to_close));
         done(memory.status());
       });
}

std::optional<CudaIpcMappings::ToClose> CudaIpcMappings::RemoveUser(uint16_t device,
                                                                    const Held::Foreign& use) {
  const auto found = foreign_.find({device, use.allocation_id});
  ForeignState& state = found->second;
  // The others' owner keeps it until they are released.
  if (--state.users > 0) return std::nullopt;
  ToClose to_close = {use.allocation_id, std::move(state.reclaimed)};
  foreign_.erase(found);
  if (use.may_stay_open && to_close.then.empty()) return std::nullopt;
  return to_close;
}

std::function<void()> CudaIpcMappings::Close(Gpu& gpu, ToClose to_close) {
  struct Deferred {
    absl::Mutex mu;
    bool is_deferring ABSL_GUARDED_BY(mu) = true;
    bool is_closed ABSL_GUARDED_BY(mu) = false;
  };
  auto deferred = std::make_shared<Deferred>();
  std::function<void()> tell = [weak = weak_from_this(), then = std::move(to_close.then)] {
    // The last user of a mapping may outlive everything else.
    const auto self = weak.lock();
    if (self == nullptr) return;
    {
      absl::MutexLock lock(&self->mu_);
      if (!self->aborted_.ok()) return;
    }
    for (const auto& each : then) each();
  };
  cache_of_(gpu).Close(KeyOf(to_close.allocation_id), [deferred, tell] {
    {
      absl::MutexLock lock(&deferred->mu);
      deferred->is_closed = true;
      if (deferred->is_deferring) return;
    }
    tell();
  });
  return [deferred, tell] {
    {
      absl::MutexLock lock(&deferred->mu);
      deferred->is_deferring = false;
      if (!deferred->is_closed) return;
    }
    tell();
  };
}

void CudaIpcMappings::CloseUnlessLeaving(Gpu& gpu, ToClose to_close) {
  std::function<void()> tell;
  {
    absl::ReaderMutexLock lock(&link_->mu);
    if (link_->gpus == nullptr) return;
    tell = Close(gpu, std::move(to_close));
  }
  tell();
}

void CudaIpcMappings::Release(Gpu& gpu, Held held, std::function<void()> closed) {
  struct Count {
    std::atomic<size_t> left;
    std::function<void()> closed;
    void Done() {
      if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) closed();
    }
  };
  auto count = std::make_shared<Count>();
  count->closed = std::move(closed);
  std::vector<std::function<void()>> tell;
  {
    absl::ReaderMutexLock lock(&link_->mu);
    // Then there is no device any more. What is held is closed when it is let go of.
    if (link_->gpus == nullptr) return;
    std::vector<ToClose> to_close;
    {
      absl::MutexLock users_lock(&mu_);
      for (const Held::Foreign& use : held.foreign) {
        auto each = RemoveUser(static_cast<uint16_t>(gpu.device->ordinal()), use);
        if (each.has_value()) to_close.push_back(*std::move(each));
      }
    }
    count->left = to_close.size() + 1;
    // They are open because we hold them; they close when we let go.
    for (ToClose& each : to_close) {
      each.then.emplace_back([count] { count->Done(); });
      tell.push_back(Close(gpu, std::move(each)));
    }
  }
  for (const auto& each : tell) each();
  held.memory.clear();
  count->Done();
}

void CudaIpcMappings::OnReclaim(const CudaIpcReclaim& reclaim) {
  // Its callers keep this object.
  std::function<void()> reply = [this, reclaim] {
    control_channel_(EncodeCudaIpcReclaimed(reclaim), {}).IgnoreError();
  };
  {
    absl::MutexLock lock(&mu_);
    const auto found = foreign_.find({reclaim.pair.destination, reclaim.allocation_id});
    if (found != foreign_.end()) {
      found->second.reclaimed.push_back(std::move(reply));
      return;
    }
  }
  environment_.gpus->Use(
      reclaim.pair.destination,
      [self = shared_from_this(), reclaim, reply = std::move(reply)](absl::StatusOr<Gpu*> gpu) {
        // Then nothing is open.
        if (!gpu.ok()) return reply();
        self->CloseUnlessLeaving(**gpu, {reclaim.allocation_id, {reply}});
      });
}

void CudaIpcMappings::RequestSegment(const GpuPair& pair, uint64_t allocation_id,
                                     OpenCallback done) {
  const SegmentKey key(pair.destination, allocation_id);
  bool is_first = false;
  {
    absl::MutexLock lock(&mu_);
    is_first = aborted_.ok() && !requested_.contains(key);
    if (aborted_.ok()) requested_[key].push_back(std::exchange(done, nullptr));
  }
  if (done != nullptr) return done(absl::CancelledError("the control channel has closed"));
  if (!is_first) return;
  // If the control channel has closed, that ends the waiting fetches too.
  control_channel_(EncodeCudaIpcWanted({pair, allocation_id}), {}).IgnoreError();
  environment_.loop->PostAt(
      SteadyClock().Now() + kOpenTimeout, [weak = weak_from_this(), pair, allocation_id] {
        if (const auto self = weak.lock()) {
          self->EndRequest(pair, allocation_id,
                           absl::DeadlineExceededError(absl::StrCat(
                               Describe(self->peer_.peer), " has not sent the descriptor of its ",
                               "memory again within ", absl::FormatDuration(kOpenTimeout))));
        }
      });
}

void CudaIpcMappings::EndRequest(const GpuPair& pair, uint64_t allocation_id,
                                 const absl::StatusOr<ImportedMemory>& memory) {
  std::vector<OpenCallback> waiting;
  {
    absl::MutexLock lock(&mu_);
    const auto found = requested_.find({pair.destination, allocation_id});
    if (found == requested_.end()) return;
    waiting = std::move(found->second);
    requested_.erase(found);
  }
  for (const OpenCallback& done : waiting) done(memory);
}

void CudaIpcMappings::OnSegment(const CudaIpcSegment& segment, UniqueFd fd) {
  {
    absl::MutexLock lock(&mu_);
    // Too late, or not requested.
    if (!requested_.contains({segment.pair.destination, segment.memory.allocation_id})) return;
  }
  environment_.gpus->Use(
      segment.pair.destination,
      [self = shared_from_this(), segment, fd = std::move(fd)](absl::StatusOr<Gpu*> gpu) mutable {
        const uint64_t id = segment.memory.allocation_id;
        if (!gpu.ok()) return self->EndRequest(segment.pair, id, gpu.status());
        if (!fd.valid()) {
          return self->EndRequest(
              segment.pair, id,
              absl::FailedPreconditionError("a segment came without its descriptor"));
        }
        const CudaIpcPiece piece = {.memory = segment.memory, .has_fd = true, .is_kept = true};
        self->Open(**gpu, segment.pair, piece, std::move(fd),
                   [self, pair = segment.pair, id](absl::StatusOr<ImportedMemory> memory) {
                     self->EndRequest(pair, id, memory);
                   });
      });
}

void CudaIpcMappings::Abort(const absl::Status& why) {
  std::vector<ImportedMemory> kept;
  absl::flat_hash_map<SegmentKey, std::vector<OpenCallback>> requested;
  {
    absl::MutexLock lock(&mu_);
    if (aborted_.ok()) aborted_ = why;
    kept.swap(kept_);
    requested.swap(requested_);
  }
  for (const auto& [key, waiting] : requested) {
    for (const OpenCallback& done : waiting) {
      done(absl::CancelledError("the control channel has closed"));
    }
  }
  kept.clear();
  absl::ReaderMutexLock lock(&link_->mu);
  if (link_->gpus != nullptr) close_peer_();
}

}  // namespace ferry

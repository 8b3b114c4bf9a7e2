// SPDX-License-Identifier: Apache-2.0
// How takes end: let go of, called off, not wanted, or with their lane.
#include <atomic>
#include <utility>

#include "absl/time/clock.h"

#include "base/clock.h"
#include "transport/cuda_ipc/cuda_ipc_inlet.h"

namespace ferry {
namespace {

using cuda::ImportedMemory;

// Of a segment that nobody here has wanted so far.
constexpr absl::Duration kOpenTimeout = absl::Seconds(10);
// For a copy that is under way into a buffer that its owner wants back.
constexpr absl::Duration kCopyTimeout = absl::Seconds(10);
constexpr absl::Duration kCopyLook = absl::Microseconds(50);

}  // namespace

void CudaIpcInlet::LetGo(Gpu& gpu, Held held, uint64_t id) {
  struct Count {
    std::atomic<size_t> left;
    std::function<void()> release;
    void Done() {
      if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) release();
    }
  };
  auto count = std::make_shared<Count>();
  count->release = [release = release_, id] { release(id); };
  std::vector<uint64_t> unused;
  {
    absl::MutexLock lock(&mu_);
    for (const uint64_t buffer : held.foreign) {
      if (--foreign_users_[buffer] > 0) continue;
      foreign_users_.erase(buffer);
      unused.push_back(buffer);
    }
    count->left = unused.size() + 1;
    for (const uint64_t buffer : unused) {
      closing_[buffer].push_back([count] { count->Done(); });
    }
  }
  {
    absl::ReaderMutexLock lock(&link_->mu);
    if (link_->gpus == nullptr) return;
    cuda::IpcImportCache& cache = cache_of_(gpu);
    // They are open, since we hold them; they close when we do not.
    for (const uint64_t buffer : unused) cache.Close({peer_.peer.incarnation, buffer});
  }
  held.memory.clear();
  count->Done();
}

void CudaIpcInlet::OnClosed(uint64_t buffer_id) {
  std::function<void()> done;
  {
    absl::MutexLock lock(&mu_);
    const auto found = closing_.find(buffer_id);
    if (found == closing_.end()) return;
    done = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) closing_.erase(found);
  }
  done();
}

void CudaIpcInlet::Cancel(uint64_t id) {
  JobPtr job;
  TakeCallback done;
  {
    absl::MutexLock lock(&mu_);
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    job = std::move(found->second);
    jobs_.erase(found);
    job->is_over = true;
    done = std::move(job->done);
  }
  const bool is_copied = job->writes_destination != nullptr;
  const absl::Time give_up = SteadyClock().Now() + kCopyTimeout;
  while (is_copied && SteadyClock().Now() < give_up) {
    const absl::StatusOr<bool> is_done = job->writes_destination->IsDone();
    if (!is_done.ok() || *is_done) break;
    absl::SleepFor(kCopyLook);
  }
  // Its end says that it is over, wherever it is.
  std::move(done)(absl::CancelledError("cancelled"), /*release_later=*/true);
}

void CudaIpcInlet::Drop(uint64_t id, const TensorHeader& header, absl::string_view body,
                        absl::Span<UniqueFd> descriptors) {
  const absl::StatusOr<CudaIpcTicket> ticket = DecodeCudaIpcTicket(body);
  if (!ticket.ok() || environment_.gpus == nullptr) return;
  // Descriptors of what is kept come once.
  size_t next = 0;
  for (const CudaIpcPiece& piece : ticket->pieces) {
    if (!piece.has_fd) continue;
    if (next >= descriptors.size()) return;
    UniqueFd fd = std::move(descriptors[next++]);
    if (!piece.is_kept) continue;
    environment_.gpus->Use(
        ticket->pair.destination, [self = shared_from_this(), memory = piece.memory,
                                   fd = std::move(fd)](absl::StatusOr<Gpu*> gpu) mutable {
          if (!gpu.ok()) return;
          const cuda::ImportKey key = {self->peer_.peer.incarnation, memory.buffer_id};
          self->cache_of_(**gpu)
              .Open(key, memory, std::move(fd), SteadyClock().Now() + kOpenTimeout,
                    [self](absl::StatusOr<ImportedMemory> opened) {
                      if (!opened.ok()) return;
                      absl::MutexLock lock(&self->mu_);
                      if (self->aborted_.ok()) self->kept_.push_back(*std::move(opened));
                    })
              .IgnoreError();
        });
  }
}

void CudaIpcInlet::Abort(const absl::Status& why) {
  absl::flat_hash_map<uint64_t, JobPtr> jobs;
  absl::flat_hash_map<GpuPair, std::shared_ptr<cuda::ImportedEvents>> events;
  std::vector<ImportedMemory> kept;
  std::vector<TakeCallback> failed;
  absl::flat_hash_map<uint64_t, std::deque<std::function<void()>>> closing;
  {
    absl::MutexLock lock(&mu_);
    if (aborted_.ok()) aborted_ = why;
    closing.swap(closing_);
    jobs.swap(jobs_);
    events.swap(events_);
    kept.swap(kept_);
    for (auto& [id, job] : jobs) {
      job->is_over = true;
      failed.push_back(std::move(job->done));
    }
  }
  for (TakeCallback& done : failed) std::move(done)(why, false);
  events.clear();
  kept.clear();
  absl::ReaderMutexLock lock(&link_->mu);
  if (link_->gpus != nullptr) close_peer_();
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// How fetches end: completed, failed, cancelled, discarded, or with their control channel.
#include <atomic>
#include <utility>

#include "transport/cuda_ipc/cuda_ipc_receiver.h"

namespace ferry {

using cuda::ImportedMemory;

void CudaIpcReceiver::LetGo(Gpu& gpu, Held held, uint64_t id) {
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
    // They are open because we hold them; they close when we let go.
    for (const uint64_t buffer : unused) cache.Close({peer_.peer.incarnation, buffer});
  }
  held.memory.clear();
  count->Done();
}

void CudaIpcReceiver::ForgetUser(Gpu& gpu, uint64_t buffer_id) {
  {
    absl::MutexLock lock(&mu_);
    if (--foreign_users_[buffer_id] > 0) return;
    foreign_users_.erase(buffer_id);
  }
  absl::ReaderMutexLock lock(&link_->mu);
  if (link_->gpus != nullptr) cache_of_(gpu).Close({peer_.peer.incarnation, buffer_id});
}

void CudaIpcReceiver::OnClosed(uint64_t buffer_id) {
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

void CudaIpcReceiver::End(const JobPtr& job, absl::StatusOr<Tensor> tensor) {
  FetchCallback done;
  bool was_over = false;
  {
    absl::MutexLock lock(&mu_);
    was_over = std::exchange(job->is_over, true);
    if (!was_over) {
      done = std::move(job->done);
      jobs_.erase(job->id);
    }
  }
  // The slices of a staged tensor are copied into our own memory, and its slots are returned one by
  // one.
  const bool is_staged = job->descriptor.is_staged();
  if (was_over) {
    // The caller of Cancel was already notified; if the tensor was made all the same, destroying it
    // releases it.
    if (tensor.ok() || is_staged) return;
    if (job->held.memory.empty()) return release_(job->id);
    return LetGo(*job->gpu, std::exchange(job->held, {}), job->id);
  }
  if (!is_staged) {
    // Slices may still be copied into these; the last one drops them.
    job->destination = Tensor();
    job->into = Tensor();
  }
  if (tensor.ok()) return std::move(done)(std::move(tensor), /*release_later=*/!is_staged);
  std::move(done)(std::move(tensor), /*release_later=*/!job->held.memory.empty());
  // Nothing reads the memory now; close it before notifying the producer.
  if (!job->held.memory.empty()) LetGo(*job->gpu, std::exchange(job->held, {}), job->id);
}

void CudaIpcReceiver::Cancel(uint64_t id) {
  JobPtr job;
  FetchCallback done;
  {
    absl::MutexLock lock(&mu_);
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    job = std::move(found->second);
    jobs_.erase(found);
    job->is_over = true;
    done = std::move(job->done);
  }
  // A view or copy is released where it ends. Copies already enqueued complete, into memory that is
  // kept until then.
  std::move(done)(absl::CancelledError("cancelled"),
                  /*release_later=*/!job->descriptor.is_staged());
}

void CudaIpcReceiver::Discard(uint64_t id, const TensorHeader& header, absl::string_view body,
                              absl::Span<UniqueFd> descriptors) {
  // If this carried a kept segment, it is requested again when it is needed.
}

void CudaIpcReceiver::Abort(const absl::Status& why) {
  absl::flat_hash_map<uint64_t, JobPtr> jobs;
  absl::flat_hash_map<GpuPair, std::shared_ptr<cuda::ImportedEvents>> events;
  std::vector<ImportedMemory> kept;
  std::vector<FetchCallback> failed;
  absl::flat_hash_map<std::pair<uint16_t, uint64_t>, std::vector<OpenCallback>> asked;
  absl::flat_hash_map<uint64_t, std::deque<std::function<void()>>> closing;
  {
    absl::MutexLock lock(&mu_);
    if (aborted_.ok()) aborted_ = why;
    closing.swap(closing_);
    jobs.swap(jobs_);
    events.swap(events_);
    kept.swap(kept_);
    asked.swap(asked_);
    for (auto& [id, job] : jobs) {
      job->is_over = true;
      failed.push_back(std::move(job->done));
    }
  }
  for (FetchCallback& done : failed) std::move(done)(why, false);
  for (const auto& [key, waiting] : asked) {
    for (const OpenCallback& done : waiting)
      done(absl::CancelledError("the control channel has closed"));
  }
  events.clear();
  kept.clear();
  absl::ReaderMutexLock lock(&link_->mu);
  if (link_->gpus != nullptr) close_peer_();
}

}  // namespace ferry

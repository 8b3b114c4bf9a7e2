// SPDX-License-Identifier: Apache-2.0
// How takes end: let go of, called off, not wanted, or with their control channel.
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
    // They are open, since we hold them; they close when we do not.
    for (const uint64_t buffer : unused) cache.Close({peer_.peer.incarnation, buffer});
  }
  held.memory.clear();
  count->Done();
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
  TakeCallback done;
  bool was_over = false;
  {
    absl::MutexLock lock(&mu_);
    was_over = std::exchange(job->is_over, true);
    if (!was_over) {
      done = std::move(job->done);
      jobs_.erase(job->id);
    }
  }
  // What comes in slices is nobody's but ours, and its slots go back one by one.
  const bool is_staged = job->ticket.is_staged();
  if (was_over) {
    // Whoever called it off has been told; a tensor that was made all the same tells by its end.
    if (tensor.ok() || is_staged) return;
    if (job->held.memory.empty()) return release_(job->id);
    return LetGo(*job->gpu, std::exchange(job->held, {}), job->id);
  }
  if (!is_staged) {
    // Slices may be on their way to these; then they go with the last of them.
    job->destination = Tensor();
    job->into = Tensor();
  }
  if (tensor.ok()) return std::move(done)(std::move(tensor), /*release_later=*/!is_staged);
  std::move(done)(std::move(tensor), /*release_later=*/!job->held.memory.empty());
  // Nothing reads it, and it is closed before the producer hears so.
  if (!job->held.memory.empty()) LetGo(*job->gpu, std::exchange(job->held, {}), job->id);
}

void CudaIpcReceiver::Cancel(uint64_t id) {
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
  // Of a view or a copy the end says that it is over, wherever it is. What a device was told to
  // copy, it copies, into memory that is kept until then.
  std::move(done)(absl::CancelledError("cancelled"), /*release_later=*/!job->ticket.is_staged());
}

void CudaIpcReceiver::Drop(uint64_t id, const TensorHeader& header, absl::string_view body,
                           absl::Span<UniqueFd> descriptors) {
  // Should something that is kept be new here, it is asked for once more when it is needed.
}

void CudaIpcReceiver::Abort(const absl::Status& why) {
  absl::flat_hash_map<uint64_t, JobPtr> jobs;
  absl::flat_hash_map<GpuPair, std::shared_ptr<cuda::ImportedEvents>> events;
  std::vector<ImportedMemory> kept;
  std::vector<TakeCallback> failed;
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
  for (TakeCallback& done : failed) std::move(done)(why, false);
  for (const auto& [key, waiting] : asked) {
    for (const OpenCallback& done : waiting) done(absl::CancelledError("the lane has ended"));
  }
  events.clear();
  kept.clear();
  absl::ReaderMutexLock lock(&link_->mu);
  if (link_->gpus != nullptr) close_peer_();
}

}  // namespace ferry

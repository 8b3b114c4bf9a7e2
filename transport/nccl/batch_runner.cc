// SPDX-License-Identifier: Apache-2.0
// Issues NCCL groups and detects their completion.
#include "transport/nccl/batch_runner.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "gpu/cuda/cuda_event.h"

namespace ferry {
namespace {

// A group is enqueued within microseconds, unless NCCL must set something up first.
constexpr int kBusyPolls = 200;
constexpr absl::Duration kPollSleep = absl::Microseconds(20);
// How often NCCL is polled for errors of a communicator with work outstanding.
constexpr absl::Duration kLookInterval = absl::Milliseconds(2);
// For how long the kernels of an aborted communicator may stay before that is reported.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(30);

// Smaller batches measure latency more than bandwidth.
constexpr size_t kMinBandwidthSampleBytes = size_t{1} << 20;
// More than any link between two GPUs achieves.
constexpr double kMostBytesPerSecond = 1e12;

// Returns the communicator's asynchronous error. REQUIRES: it has not been aborted.
absl::Status Ask(const NcclCommunicator& communicator) {
  const nccl::NcclApi& api = communicator.api();
  nccl::Communicator const comm = communicator.get();
  nccl::Result state = nccl::kSuccess;
  FERRY_RETURN_IF_ERROR(
      api.Check(api.table().get_async_error(comm, &state), "ncclCommGetAsyncError", comm));
  return api.Check(state, "sends and receives", comm);
}

absl::Status AbortedStatus() { return absl::AbortedError("its communicator was aborted"); }

}  // namespace

BatchRunner::BatchRunner(Gpus& gpus, Gpu& gpu, Loop& loop, ThreadGroup& threads,
                         BrokenCallback broken, LearnCallback learn, QuietCallback quiet)
    : gpus_(gpus),
      gpu_(gpu),
      loop_(loop),
      threads_(threads),
      broken_(std::move(broken)),
      learn_(std::move(learn)),
      quiet_(std::move(quiet)) {}

void BatchRunner::OnQuiesceRequested() {
  // Work agreed meanwhile is queued behind this on the executor.
  gpu_.nccl
      ->PostAlways(
          [self = shared_from_this()] { self->quiet_(self->gpus_.gate()->is_quiesce_requested()); })
      .IgnoreError();
}

void BatchRunner::Launch(RunnableBatch batch) {
  auto shared = std::make_shared<RunnableBatch>(std::move(batch));
  shared->is_warm = shared->warmth == nullptr;
  const absl::Status posted = gpu_.nccl->PostAlways([self = shared_from_this(), shared] {
    if (self->IsEnded(*shared)) return std::move(shared->done)(AbortedStatus());
    self->queue_.push_back(shared);
    self->IssueNext();
  });
  if (!posted.ok()) std::move(shared->done)(posted);
}

void BatchRunner::IssueNext() {
  while (issuing_ == nullptr) {
    const auto next = std::find_if(queue_.begin(), queue_.end(),
                                   [this](const BatchPtr& batch) { return !IsHeld(*batch); });
    if (next == queue_.end()) return;
    const BatchPtr batch = *next;
    queue_.erase(next);
    if (IsEnded(*batch)) {
      std::move(batch->done)(AbortedStatus());
      continue;
    }
    gpus_.gate()->BeginWork();
    if (const absl::Status issued = Issue(*batch); !issued.ok()) {
      StrandBatch(batch, issued);
      continue;
    }
    issuing_ = batch;
    polls_ = 0;
    PollEnqueued();
  }
}

bool BatchRunner::IsHeld(const RunnableBatch& batch) const {
  return batch.stream != nullptr &&
         std::any_of(stranded_.begin(), stranded_.end(), [&batch](const BatchPtr& stranded) {
           return stranded->stream == batch.stream;
         });
}

absl::Status BatchRunner::Issue(RunnableBatch& batch) {
  if (stream_ == nullptr) {
    FERRY_ASSIGN_OR_RETURN(stream_, cuda::CudaStream::Create(gpu_.device));
  }
  if (batch.is_warm && batch.step_count < batch.steps.size()) {
    const cuda::ScopedCurrent current(*gpu_.device);
    return batch.steps[batch.step_count](*batch.communicator, StreamOf(batch));
  }
  if (batch.is_warm) return IssueGroup(batch, batch.operations);
  auto* const bytes = static_cast<char*>(batch.warmth->data());
  return IssueGroup(batch, {{.is_send = true, .data = bytes, .bytes = 1},
                            {.is_send = false, .data = bytes + 1, .bytes = 1}});
}

bool BatchRunner::Advance(RunnableBatch& batch) {
  if (batch.is_warm) {
    // It was the group.
    if (batch.step_count == batch.steps.size()) return false;
    ++batch.step_count;
  }
  batch.is_warm = true;
  return batch.step_count < batch.steps.size() || !batch.operations.empty();
}

absl::Status BatchRunner::IssueGroup(const RunnableBatch& batch,
                                     absl::Span<const BatchOperation> operations) {
  const cuda::ScopedCurrent current(*gpu_.device);
  const nccl::NcclApi& api = batch.communicator->api();
  const nccl::NcclTable& table = api.table();
  nccl::Communicator const comm = batch.communicator->get();
  FERRY_RETURN_IF_ERROR(api.Check(table.group_start(), "ncclGroupStart"));
  absl::Status status;
  for (const BatchOperation& each : operations) {
    status = each.is_send ? api.Check(table.send(each.data, each.bytes, nccl::kUint8,
                                                 batch.peer_rank, comm, stream_->get()),
                                      "ncclSend", comm)
                          : api.Check(table.recv(each.data, each.bytes, nccl::kUint8,
                                                 batch.peer_rank, comm, stream_->get()),
                                      "ncclRecv", comm);
    if (!status.ok()) break;
  }
  const absl::Status ended = api.Check(table.group_end(), "ncclGroupEnd", comm);
  return status.ok() ? ended : status;
}

void BatchRunner::PollEnqueued() {
  const BatchPtr batch = issuing_;
  if (batch == nullptr) return;
  const nccl::NcclApi& api = batch->communicator->api();
  nccl::Communicator const comm = batch->communicator->get();
  nccl::Result state = nccl::kSuccess;
  absl::Status status =
      api.Check(api.table().get_async_error(comm, &state), "ncclCommGetAsyncError", comm);
  if (status.ok() && state == nccl::kInProgress) {
    // Lets other work run on this thread meanwhile, aborts above all.
    if (++polls_ > kBusyPolls) absl::SleepFor(kPollSleep);
    status = gpu_.nccl->Post([self = shared_from_this(), batch] {
      if (self->issuing_ != batch) return;
      self->PollEnqueued();
      self->IssueNext();
    });
    if (status.ok()) return;
  }
  if (status.ok()) status = api.Check(state, "a group of sends and receives", comm);
  if (status.ok() && Advance(*batch)) {
    polls_ = 0;
    status = Issue(*batch);
    if (status.ok()) return PollEnqueued();
  }
  issuing_ = nullptr;
  if (status.ok()) status = WatchUntilDone(batch);
  if (!status.ok()) StrandBatch(batch, status);
}

absl::Status BatchRunner::WatchUntilDone(const BatchPtr& batch) {
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<const cuda::ReadyEvent> event,
                         cuda::ReadyEvent::Record(*gpu_.events, StreamOf(*batch)));
  FERRY_RETURN_IF_ERROR(gpu_.nccl->Watch(
      {.event = std::move(event), .what = "a batch of NCCL's", .keep = batch},
      [self = shared_from_this(), batch, start = SteadyClock().Now()](absl::Status status) {
        // The stream has passed it.
        if (status.ok()) batch->memory.clear();
        if (batch->is_over) return;
        for (std::vector<BatchPtr>* const list : {&self->running_, &self->stranded_}) {
          list->erase(std::remove(list->begin(), list->end(), batch), list->end());
        }
        // The device has failed, or the executor ends: whether it has passed will not be known.
        if (!status.ok() && batch->lost) return self->Lose(batch, status);
        // A wait for a lost peer may complete like a successful transfer: only NCCL knows.
        if (status.ok()) {
          status = self->IsEnded(*batch) ? AbortedStatus() : Ask(*batch->communicator);
        }
        if (batch->stream != nullptr) return self->Finish(batch, std::move(status));
        // It started after the previous batch, since they share a stream.
        const absl::Time began = std::max(start, self->last_end_);
        self->last_end_ = SteadyClock().Now();
        size_t bytes = 0;
        for (const BatchOperation& each : batch->operations) bytes += each.bytes;
        const absl::Duration taken = self->last_end_ - began;
        // Two batches found complete in one poll give no measurement.
        const bool is_sampled =
            bytes >= kMinBandwidthSampleBytes &&
            absl::ToDoubleSeconds(taken) * kMostBytesPerSecond > static_cast<double>(bytes);
        if (status.ok() && is_sampled) self->learn_(bytes, taken);
        self->Finish(batch, std::move(status));
      }));
  running_.push_back(batch);
  SchedulePoll();
  return absl::OkStatus();
}

void BatchRunner::StrandBatch(const BatchPtr& batch, const absl::Status& why) {
  stranded_.push_back(batch);
  broken_(batch->communicator, why);
}

void BatchRunner::Finish(const BatchPtr& batch, absl::Status status) {
  if (std::exchange(batch->is_over, true)) return;
  gpus_.gate()->EndWork();
  // Its owner destroys it on a thread that may block.
  batch->communicator = nullptr;
  std::move(batch->done)(std::move(status));
}

void BatchRunner::Lose(const BatchPtr& batch, const absl::Status& why) {
  if (std::exchange(batch->is_over, true)) return;
  gpus_.gate()->EndWork();
  std::move(batch->lost)(why);
}

void BatchRunner::LoseLater(const std::vector<BatchPtr>& batches) {
  std::vector<std::weak_ptr<RunnableBatch>> losable;
  absl::Duration patience = absl::InfiniteDuration();
  for (const BatchPtr& each : batches) {
    losable.push_back(each);
    patience = std::min(patience, each->patience);
  }
  if (losable.empty()) return;
  auto lose = [weak = weak_from_this(), losable = std::move(losable), patience] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    for (const std::weak_ptr<RunnableBatch>& each : losable) {
      // Otherwise it is over.
      const BatchPtr batch = each.lock();
      if (batch == nullptr) continue;
      self->Lose(batch, absl::AbortedError(absl::StrCat(
                            "its communicator was ended, and its stream has not passed it within ",
                            absl::FormatDuration(patience))));
    }
  };
  loop_.PostAt(SteadyClock().Now() + patience,
               [weak = weak_from_this(), lose = std::move(lose)]() mutable {
                 const auto self = weak.lock();
                 if (self == nullptr) return;
                 self->gpu_.nccl->PostAlways(std::move(lose)).IgnoreError();
               });
}

bool BatchRunner::IsIdle(const NcclCommunicator& communicator) const {
  const auto is_of_it = [&](const BatchPtr& batch) {
    return batch->communicator.get() == &communicator;
  };
  if (issuing_ != nullptr && is_of_it(issuing_)) return false;
  if (std::any_of(running_.begin(), running_.end(), is_of_it)) return false;
  if (std::any_of(stranded_.begin(), stranded_.end(), is_of_it)) return false;
  return Ask(communicator).ok();
}

void BatchRunner::FinishStranded(const std::shared_ptr<NcclCommunicator>& communicator) {
  struct OfStream {
    std::vector<BatchPtr> batches;
    size_t bytes = 0;
  };
  std::map<cuda::Stream, std::shared_ptr<OfStream>> by_stream;
  for (auto it = stranded_.begin(); it != stranded_.end();) {
    if ((*it)->communicator != communicator) {
      ++it;
      continue;
    }
    const bool has_stream = (*it)->stream != nullptr || stream_ != nullptr;
    std::shared_ptr<OfStream>& found = by_stream[has_stream ? StreamOf(**it) : nullptr];
    if (found == nullptr) found = std::make_shared<OfStream>();
    found->bytes += (*it)->pool_bytes;
    for (const Tensor& each : (*it)->memory) found->bytes += each.bytes();
    found->batches.push_back(std::move(*it));
    it = stranded_.erase(it);
  }
  for (const auto& [stream, found] : by_stream) {
    if (stream == nullptr) {
      // Nothing was ever issued.
      Settle(cuda::StreamEnd::kPassed, found->batches);
      continue;
    }
    cuda::RetainUntilPassed(*gpu_.nccl, *gpu_.events, stream,
                            {.user = "operations of an aborted NCCL communicator",
                             .bytes = found->bytes,
                             .memory = found},
                            SteadyClock().Now() + kLeaveTimeout,
                            [self = shared_from_this(), batches = found->batches](
                                cuda::StreamEnd end) { self->Settle(end, batches); });
  }
}

void BatchRunner::Settle(cuda::StreamEnd end, const std::vector<BatchPtr>& batches) {
  if (end == cuda::StreamEnd::kLate) return;
  for (const BatchPtr& each : batches) {
    if (end == cuda::StreamEnd::kUnknown && each->lost) {
      Lose(each, absl::AbortedError(
                     "its communicator was ended, and nothing tells when its stream passes it"));
    } else {
      Finish(each, AbortedStatus());
    }
    // Its owner destroys it on a thread that may block.
    each->communicator = nullptr;
  }
}

void BatchRunner::Abort(std::shared_ptr<NcclCommunicator> communicator, absl::Status why,
                        bool is_in_use_at_peer) {
  const absl::Status posted = gpu_.nccl->PostAlways([self = shared_from_this(), communicator, why,
                                                     is_in_use_at_peer] {
    const bool is_idle = !is_in_use_at_peer && self->IsIdle(*communicator);
    self->aborted_.insert(communicator.get());
    const auto is_of_it = [&](const BatchPtr& batch) {
      return batch->communicator == communicator;
    };
    std::vector<BatchPtr> running;
    for (BatchPtr& each : std::exchange(self->running_, {})) {
      if (is_of_it(each)) each->was_aborted = true;
      // Its event may never complete: the end of the communicator limits how long it is waited for.
      const bool may_be_lost = is_of_it(each) && each->lost;
      (may_be_lost ? self->stranded_ : running).push_back(std::move(each));
    }
    self->running_ = std::move(running);
    std::vector<BatchPtr> unissued;
    std::copy_if(self->queue_.begin(), self->queue_.end(), std::back_inserter(unissued), is_of_it);
    self->queue_.erase(std::remove_if(self->queue_.begin(), self->queue_.end(), is_of_it),
                       self->queue_.end());
    if (self->issuing_ != nullptr && is_of_it(self->issuing_)) {
      self->stranded_.push_back(std::exchange(self->issuing_, nullptr));
    }
    std::vector<BatchPtr> losable;
    std::copy_if(self->stranded_.begin(), self->stranded_.end(), std::back_inserter(losable),
                 [&](const BatchPtr& batch) { return is_of_it(batch) && batch->lost; });
    self->LoseLater(losable);
    // From here on no thread is in a call on it.
    const bool has_begun = self->threads_.Run("ferry-ncclend", [self, communicator, why, is_idle] {
      if (is_idle) {
        communicator->Close(why);
      } else {
        // Its batches do not wait for the peer to stop, which may hang.
        communicator->Abort(why, [&self, &communicator] {
          self->gpu_.nccl
              ->PostAlways([self, communicator] {
                self->FinishStranded(communicator);
                self->IssueNext();
              })
              .IgnoreError();
        });
      }
      const absl::Status ignored = self->gpu_.nccl->PostAlways([self, communicator] {
        self->aborted_.erase(communicator.get());
        self->FinishStranded(communicator);
        self->IssueNext();
      });
    });
    for (const BatchPtr& each : unissued) {
      std::move(each->done)(AbortedStatus());
    }
    if (has_begun) self->IssueNext();
  });
  // Fails only if this process is leaving, and the device's executor has stopped.
  posted.IgnoreError();
}

void BatchRunner::WaitUntilReached(absl::Duration timeout) {
  auto reached = std::make_shared<absl::Notification>();
  if (!gpu_.nccl->Post([reached] { reached->Notify(); }).ok()) return;
  reached->WaitForNotificationWithTimeout(timeout);
}

void BatchRunner::SchedulePoll() {
  if (std::exchange(is_poll_scheduled_, true)) return;
  loop_.PostAt(SteadyClock().Now() + kLookInterval, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->gpu_.nccl->PostAlways([self] { self->Poll(); }).IgnoreError();
  });
}

void BatchRunner::Poll() {
  is_poll_scheduled_ = false;
  if (running_.empty()) return;
  absl::flat_hash_set<const NcclCommunicator*> seen;
  const std::vector<BatchPtr> running = running_;
  for (const BatchPtr& batch : running) {
    if (IsAborted(*batch) || !seen.insert(batch->communicator.get()).second) continue;
    const absl::Status status = Ask(*batch->communicator);
    if (!status.ok()) broken_(batch->communicator, status);
  }
  SchedulePoll();
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// A table whose entries are taken out by whatever ends them.
#include "transport/cuda_ipc/cuda_ipc_fetches.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

// Delay before retrying a resource that is temporarily unavailable.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(1);
// Timeout for device memory that is in use.
constexpr absl::Duration kRoomTimeout = absl::Seconds(10);

// The fetch is over: what is being enqueued for it is the last.
void AwaitEnqueued(const CudaIpcFetch& fetch) { const absl::MutexLock lock(&fetch.enqueuing); }

}  // namespace

absl::Status CudaIpcFetch::MakeRoom() {
  if (into.is_valid()) return absl::OkStatus();
  if (destination.is_valid()) {
    into = destination;
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<cuda::DeviceBuffer>> buffer = gpu->arena->Allocate(header.bytes);
  const absl::Time now = SteadyClock().Now();
  if (absl::IsResourceExhausted(buffer.status())) {
    if (give_up == absl::InfiniteFuture()) give_up = now + kRoomTimeout;
    if (now < give_up) return absl::UnavailableError(buffer.status().message());
  }
  if (!buffer.ok()) return buffer.status();
  FERRY_ASSIGN_OR_RETURN(into, Tensor::Create(header.dtype, header.shape, *std::move(buffer)));
  return absl::OkStatus();
}

void CudaIpcFetch::RetryLater(Loop& loop, std::function<void()> retry,
                              std::function<void(const absl::Status&)> refused) const {
  loop.PostAt(SteadyClock().Now() + kRetryDelay,
              [gpu = gpu, retry = std::move(retry), refused = std::move(refused)] {
                const absl::Status posted = gpu->executor->Post(retry);
                if (!posted.ok()) refused(posted);
              });
}

bool CudaIpcFetches::Add(const std::shared_ptr<CudaIpcFetch>& fetch, FetchCallback done) {
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    status = aborted_;
    if (status.ok()) {
      const auto [found, inserted] = fetches_.try_emplace(fetch->id);
      if (inserted) {
        found->second = {fetch, std::move(done)};
        return true;
      }
      status =
          absl::InvalidArgumentError(absl::StrCat("transfer ", fetch->id, " for a second time"));
    }
  }
  // Moved only where this is not reached. NOLINTNEXTLINE(bugprone-use-after-move)
  std::move(done)(std::move(status), false);
  return false;
}

std::shared_ptr<CudaIpcFetch> CudaIpcFetches::Find(uint64_t id) const {
  absl::MutexLock lock(&mu_);
  const auto found = fetches_.find(id);
  return found == fetches_.end() ? nullptr : found->second.fetch;
}

bool CudaIpcFetches::IsOverLocked(const CudaIpcFetch& fetch) const {
  const auto found = fetches_.find(fetch.id);
  return found == fetches_.end() || found->second.fetch.get() != &fetch;
}

bool CudaIpcFetches::IsOver(const CudaIpcFetch& fetch) const {
  absl::MutexLock lock(&mu_);
  return IsOverLocked(fetch);
}

absl::Status CudaIpcFetches::EnqueueUnlessOver(const CudaIpcFetch& fetch,
                                               absl::FunctionRef<absl::Status()> enqueue) const {
  absl::MutexLock lock(&fetch.enqueuing);
  if (IsOver(fetch)) return absl::CancelledError("cancelled");
  return enqueue();
}

bool CudaIpcFetches::End(const CudaIpcFetch& fetch, absl::StatusOr<Tensor> tensor,
                         bool release_later) {
  Entry entry;
  {
    absl::MutexLock lock(&mu_);
    if (IsOverLocked(fetch)) return false;
    const auto found = fetches_.find(fetch.id);
    entry = std::move(found->second);
    fetches_.erase(found);
  }
  TransportReceiver::FetchInfo info(release_later);
  if (fetch.is_restaged) info.path = kCudaIpcStagedPath;
  std::move(entry.done)(std::move(tensor), info);
  return true;
}

bool CudaIpcFetches::Restage(CudaIpcFetch& fetch, absl::string_view why) {
  absl::MutexLock lock(&mu_);
  if (IsOverLocked(fetch)) return false;
  fetch.why_restaged = std::string(why);
  fetch.is_restaged = true;
  return true;
}

void CudaIpcFetches::Cancel(uint64_t id) {
  Entry entry;
  {
    absl::MutexLock lock(&mu_);
    const auto found = fetches_.find(id);
    if (found == fetches_.end()) return;
    entry = std::move(found->second);
    fetches_.erase(found);
  }
  AwaitEnqueued(*entry.fetch);
  std::move(entry.done)(absl::CancelledError("cancelled"),
                        /*release_later=*/!entry.fetch->is_staged());
}

void CudaIpcFetches::Abort(const absl::Status& why) {
  absl::flat_hash_map<uint64_t, Entry> ended;
  {
    absl::MutexLock lock(&mu_);
    if (aborted_.ok()) aborted_ = why;
    ended.swap(fetches_);
  }
  for (auto& [id, entry] : ended) {
    AwaitEnqueued(*entry.fetch);
    std::move(entry.done)(why, false);
  }
}

void AwaitEvent(std::shared_ptr<const CudaIpcFetches> fetches,
                const std::shared_ptr<CudaIpcFetch>& fetch,
                std::shared_ptr<cuda::ImportedEvents> events, const cuda::EventTicket& ticket,
                std::function<void(const absl::Status&)> done) {
  cuda::DeviceExecutor::Watched watched;
  watched.what = "a tensor that another process has not completed";
  watched.is_done = [fetches = std::move(fetches), fetch, events = std::move(events),
                     ticket]() -> absl::StatusOr<bool> {
    if (fetches->IsOver(*fetch)) return true;
    return events->HasPassed(ticket);
  };
  const absl::Status status = fetch->gpu->executor->Watch(
      std::move(watched), [done](const absl::Status& completed) { done(completed); });
  if (!status.ok()) done(status);
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// IpcImportCache::State: opens, shares and closes mappings.
#include "gpu/cuda/ipc_import_state.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "base/clock.h"

namespace ferry::cuda {

ImportedMemory IpcImportCache::State::Use(const EntryPtr& entry) {
  if (entry->users++ == 0) ++stats.used_count;
  entry->last_use = ++uses;
  return ImportedMemory(entry->mapping->base(), entry->mapping->bytes(),
                        std::make_shared<const Lease>(shared_from_this(), entry));
}

void IpcImportCache::State::Remove(const EntryPtr& entry) {
  entries.erase(entry->key);
  entry->is_doomed = true;
  removed.push_back(entry);
  if (entry->users > 0) return;
  closing.push_back(entry);
  ++stats.closing_count;
}

void IpcImportCache::State::LetGo(const EntryPtr& entry) {
  {
    absl::MutexLock lock(&mu);
    if (--entry->users > 0) return;
    --stats.used_count;
    entry->unused_since = Now();
    if (entry->is_doomed) {
      closing.push_back(entry);
      ++stats.closing_count;
    } else if (side == nullptr || options.idle_timeout == absl::ZeroDuration()) {
      Remove(entry);
    } else {
      MakeRoom(0);
    }
  }
  StartClosing();
}

void IpcImportCache::State::MakeRoom(size_t wanted) {
  size_t staying = stats.mapped_bytes;
  for (const EntryPtr& entry : closing) staying -= entry->mapping->bytes();
  std::vector<EntryPtr> unused;
  if (staying + wanted <= options.cap_bytes) return;
  for (const auto& [key, entry] : entries) {
    if (entry->users == 0) unused.push_back(entry);
  }
  std::sort(unused.begin(), unused.end(),
            [](const EntryPtr& a, const EntryPtr& b) { return a->last_use < b->last_use; });
  for (const EntryPtr& entry : unused) {
    if (staying + wanted <= options.cap_bytes) return;
    staying -= entry->mapping->bytes();
    Remove(entry);
  }
}

void IpcImportCache::State::StartClosing() {
  bool is_orphan = false;
  {
    absl::MutexLock lock(&mu);
    if (closing.empty() || is_close_posted) return;
    is_orphan = side == nullptr;
    if (!is_orphan) {
      is_close_posted = side->Post([self = shared_from_this()] { self->CloseSome(); }).ok();
      // If the queue is full, it drains, and the next release posts the close.
      return;
    }
  }
  // The cache and its thread are gone: this thread must do it.
  std::vector<EntryPtr> closed;
  const absl::Status ignored = gate->RunQuiesced(absl::Seconds(10), "close a peer's memory",
                                                 [this, &closed] { closed = CloseNow(); });
  TellClosed(closed);
}

std::vector<IpcImportCache::State::EntryPtr> IpcImportCache::State::CloseNow() {
  std::vector<EntryPtr> closed;
  {
    absl::MutexLock lock(&mu);
    closed.swap(closing);
    ++closer_count;
  }
  size_t bytes = 0;
  for (const EntryPtr& entry : closed) {
    bytes += entry->mapping->bytes();
    entry->mapping.reset();
  }
  absl::MutexLock lock(&mu);
  --closer_count;
  for (const EntryPtr& entry : closed) {
    removed.erase(std::find(removed.begin(), removed.end(), entry));
  }
  stats.mapped_bytes -= bytes;
  stats.mapping_count -= static_cast<int>(closed.size());
  stats.closing_count -= static_cast<int>(closed.size());
  stats.closed += static_cast<int64_t>(closed.size());
  return closed;
}

void IpcImportCache::State::TellClosed(const std::vector<EntryPtr>& closed) {
  for (const EntryPtr& entry : closed) entry->keep_until_closed.clear();
}

void IpcImportCache::State::CloseSome() {
  std::vector<EntryPtr> closed;
  gate->RunQuiesced(options.timeout, "close a peer's memory",
                    [this, &closed] { closed = CloseNow(); })
      .IgnoreError();
  {
    absl::MutexLock lock(&mu);
    is_close_posted = false;
  }
  TellClosed(closed);
  // Releases meanwhile found a close already posted, and NCCL work may have prevented it: post
  // again, behind other requests.
  StartClosing();
}

absl::StatusOr<std::unique_ptr<IpcMapping>> IpcImportCache::State::TryOpen(
    Job& job, std::vector<EntryPtr>& closed) {
  const size_t wanted = job.descriptor.allocation_bytes;
  {
    absl::MutexLock lock(&mu);
    if (!job.fd.valid()) job.fd = std::move(job.later_fd);
    // A process has one allocation at an address: overlapping ones are older, and freed.
    std::vector<EntryPtr> older;
    for (const auto& [key, entry] : entries) {
      if (key.peer_incarnation == job.key.peer_incarnation && entry->Overlaps(job.descriptor)) {
        older.push_back(entry);
      }
    }
    for (const EntryPtr& entry : older) Remove(entry);
    MakeRoom(wanted);
  }
  closed = CloseNow();
  {
    absl::MutexLock lock(&mu);
    if (stats.mapped_bytes + wanted > options.cap_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "to map ", wanted, " bytes of a peer: ", stats.mapped_bytes, " of ", options.cap_bytes,
          " are mapped and in use. Raise --gpu-ipc-cache-bytes, or release some tensors of peers"));
    }
  }
  absl::StatusOr<std::unique_ptr<IpcMapping>> mapping =
      IpcMapping::Open(device, job.descriptor, std::move(job.fd), &pools, job.key.peer_incarnation);
  if (absl::IsAlreadyExists(mapping.status())) {
    return absl::UnavailableError(
        absl::StrCat(mapping.status().message(), ", because this process still uses it"));
  }
  return mapping;
}

void IpcImportCache::State::Open(const JobPtr& job) {
  absl::StatusOr<std::unique_ptr<IpcMapping>> mapping = absl::UnavailableError("not opened");
  absl::Duration left;
  {
    absl::MutexLock lock(&mu);
    left = job->deadline - SteadyClock().Now();
  }
  std::vector<EntryPtr> closed;
  const absl::Status quiet = gate->RunQuiesced(
      std::clamp(left, absl::ZeroDuration(), options.timeout), "map a peer's memory",
      [this, &job, &mapping, &closed] { mapping = TryOpen(*job, closed); });
  TellClosed(closed);
  if (!quiet.ok()) {
    mapping = quiet;
    absl::MutexLock lock(&mu);
    // Retry behind other requests.
    if (left > options.timeout && side != nullptr && !job->is_peer_gone &&
        side->Post([self = shared_from_this(), job] { self->Open(job); }).ok()) {
      return;
    }
  }
  Finish(job, std::move(mapping));
}

void IpcImportCache::State::Finish(const JobPtr& job,
                                   absl::StatusOr<std::unique_ptr<IpcMapping>> mapping) {
  std::vector<OpenCallback> waiting;
  std::vector<absl::StatusOr<ImportedMemory>> results;
  {
    absl::MutexLock lock(&mu);
    // It arrived while the attempt failed for lack of it.
    if (!mapping.ok() && job->later_fd.valid() && side != nullptr && !job->is_peer_gone &&
        side->Post([self = shared_from_this(), job] { self->Open(job); }).ok()) {
      return;
    }
    opening.erase(job->key);
    waiting.swap(job->waiting);
    absl::Status status = mapping.status();
    auto entry = std::make_shared<Entry>();
    if (mapping.ok()) {
      entry->key = job->key;
      entry->remote_base = job->descriptor.base;
      entry->device = job->descriptor.device;
      entry->mapping = *std::move(mapping);
      for (const auto& each : job->keep) entry->Keep(each);
      ++stats.opened;
      ++stats.mapping_count;
      stats.mapped_bytes += entry->mapping->bytes();
      entries.emplace(entry->key, entry);
      if (job->is_peer_gone || side == nullptr) {
        Remove(entry);
        status = absl::UnavailableError("the peer has gone while its memory was being mapped");
      }
    }
    for (size_t i = 0; i < waiting.size(); ++i) {
      results.push_back(status.ok() ? absl::StatusOr<ImportedMemory>(Use(entry)) : status);
    }
  }
  StartClosing();
  for (size_t i = 0; i < waiting.size(); ++i) std::move(waiting[i])(std::move(results[i]));
}

}  // namespace ferry::cuda

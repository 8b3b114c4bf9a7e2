// SPDX-License-Identifier: Apache-2.0
// IpcImportCache: lookups, and requests to the side executor.
#include "gpu/cuda/ipc_import_cache.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "gpu/cuda/ipc_import_state.h"

namespace ferry::cuda {

IpcImportCache::IpcImportCache(DeviceExecutor& side, std::shared_ptr<SyncGate> gate,
                               IpcImportCacheOptions options)
    : side_(side), state_(std::make_shared<State>(side, std::move(gate), options)) {}

IpcImportCache::~IpcImportCache() {
  {
    absl::MutexLock lock(&state_->mu);
    state_->side = nullptr;
    // A close that was posted still runs, but later ones are this thread's.
    state_->is_close_posted = false;
    std::vector<State::EntryPtr> all;
    for (const auto& [key, entry] : state_->entries) all.push_back(entry);
    for (const State::EntryPtr& entry : all) state_->Remove(entry);
  }
  state_->StartClosing();
  // The side executor's thread may be closing.
  absl::MutexLock lock(&state_->mu);
  state_->mu.Await(absl::Condition(state_.get(), &State::is_nobody_closing));
}

std::optional<ImportedMemory> IpcImportCache::Find(const ImportKey& key,
                                                   const std::shared_ptr<const void>& keep) {
  absl::MutexLock lock(&state_->mu);
  const auto found = state_->entries.find(key);
  if (found == state_->entries.end()) return std::nullopt;
  ++state_->stats.found;
  found->second->Keep(keep);
  return state_->Use(found->second);
}

absl::Status IpcImportCache::Open(const ImportKey& key, const IpcDescriptor& descriptor,
                                  UniqueFd fd, absl::Time deadline, OpenCallback done,
                                  const std::shared_ptr<const void>& keep) {
  State& state = *state_;
  if (key.peer_incarnation == state.options.own_incarnation) {
    return side_.Post([done = std::move(done)]() mutable {
      std::move(done)(absl::FailedPreconditionError(
          "this process's own memory cannot be mapped a second time; use it as it is"));
    });
  }
  if (std::optional<ImportedMemory> memory = Find(key, keep); memory.has_value()) {
    return side_.Post([memory = *std::move(memory), done = std::move(done)]() mutable {
      std::move(done)(std::move(memory));
    });
  }
  absl::MutexLock lock(&state.mu);
  // It may have been opened since. Its lease must be released outside the lock, so not here.
  if (state.entries.contains(key)) {
    return side_.Post([self = state_, key, keep, done = std::move(done)]() mutable {
      std::optional<ImportedMemory> memory;
      {
        absl::MutexLock lock(&self->mu);
        const auto found = self->entries.find(key);
        if (found != self->entries.end()) {
          found->second->Keep(keep);
          memory = self->Use(found->second);
        }
      }
      if (memory.has_value()) return std::move(done)(*std::move(memory));
      std::move(done)(absl::UnavailableError("the peer's memory was closed; ask again"));
    });
  }
  if (const auto found = state.opening.find(key); found != state.opening.end()) {
    found->second->waiting.push_back(std::move(done));
    found->second->keep.push_back(keep);
    // The first request may have none, and would fail without it.
    if (fd.valid()) found->second->later_fd = std::move(fd);
    // The latest deadline of all requests applies.
    found->second->deadline = std::max(found->second->deadline, deadline);
    return absl::OkStatus();
  }
  auto job = std::make_shared<Job>();
  job->key = key;
  job->descriptor = descriptor;
  job->fd = std::move(fd);
  job->deadline = deadline;
  job->keep.push_back(keep);
  FERRY_RETURN_IF_ERROR(side_.Post([self = state_, job] { self->Open(job); }));
  job->waiting.push_back(std::move(done));
  state.opening.emplace(key, std::move(job));
  return absl::OkStatus();
}

void IpcImportCache::Close(const ImportKey& key, CloseCallback done) {
  // Called by the last of those who hold it: the mappings of this key.
  struct Closed {
    ~Closed() {
      if (done != nullptr) std::move(done)();
    }
    CloseCallback done;
  };
  auto closed = std::make_shared<Closed>();
  closed->done = std::move(done);
  {
    absl::MutexLock lock(&state_->mu);
    const auto found = state_->entries.find(key);
    if (found != state_->entries.end()) state_->Remove(State::EntryPtr(found->second));
    for (const State::EntryPtr& entry : state_->removed) {
      if (entry->key == key) entry->keep_until_closed.push_back(closed);
    }
  }
  state_->StartClosing();
}

void IpcImportCache::CloseIdle() {
  State& state = *state_;
  const absl::Time now = state.Now();
  {
    absl::MutexLock lock(&state.mu);
    std::vector<State::EntryPtr> idle;
    for (const auto& [key, entry] : state.entries) {
      if (entry->users == 0 && now - entry->unused_since >= state.options.idle_timeout) {
        idle.push_back(entry);
      }
    }
    for (const State::EntryPtr& entry : idle) state.Remove(entry);
  }
  state.StartClosing();
}

void IpcImportCache::ClosePeer(uint64_t peer_incarnation) {
  {
    absl::MutexLock lock(&state_->mu);
    std::vector<State::EntryPtr> gone;
    for (const auto& [key, entry] : state_->entries) {
      if (key.peer_incarnation == peer_incarnation) gone.push_back(entry);
    }
    for (const State::EntryPtr& entry : gone) state_->Remove(entry);
    for (const auto& [key, job] : state_->opening) {
      if (key.peer_incarnation == peer_incarnation) job->is_peer_gone = true;
    }
  }
  state_->StartClosing();
}

IpcImportCacheStats IpcImportCache::stats() const {
  absl::MutexLock lock(&state_->mu);
  return state_->stats;
}

}  // namespace ferry::cuda

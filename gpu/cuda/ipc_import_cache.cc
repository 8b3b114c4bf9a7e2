// SPDX-License-Identifier: Apache-2.0
// Opening, sharing and closing of mappings.
#include "gpu/cuda/ipc_import_cache.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/status_macros.h"
#include "gpu/cuda/ipc_mapping.h"

namespace ferry::cuda {

struct IpcImportCache::Entry {
  ImportKey key;
  uint64_t remote_base = 0;
  Uuid device = {};
  std::unique_ptr<IpcMapping> mapping;
  int users = 0;
  uint64_t last_use = 0;
  // Its peer has gone, or it is older memory in the place of newer: closed when nobody uses it.
  bool is_doomed = false;
  bool is_peer_gone = false;

  bool Overlaps(const IpcDescriptor& descriptor) const {
    return std::equal(std::begin(device.bytes), std::end(device.bytes),
                      std::begin(descriptor.device.bytes)) &&
           remote_base < descriptor.base + descriptor.allocation_bytes &&
           descriptor.base < remote_base + mapping->bytes();
  }
};

// One opening, and those who wait for it.
struct IpcImportCache::Job {
  ImportKey key;
  IpcDescriptor descriptor;
  UniqueFd fd;
  absl::Time deadline;
  // Guarded by the state's mutex.
  std::vector<OpenCallback> waiting;
  bool is_peer_gone = false;
};

struct IpcImportCache::State : std::enable_shared_from_this<IpcImportCache::State> {
  using EntryPtr = std::shared_ptr<Entry>;
  using JobPtr = std::shared_ptr<Job>;

  State(DeviceExecutor& executor, std::shared_ptr<SyncGate> sync_gate, ReleaseCallback release,
        IpcImportCacheOptions given)
      : device(executor.device()),
        gate(std::move(sync_gate)),
        on_release(std::move(release)),
        options(given),
        side(&executor) {}

  // A lease on an entry that is in the table or doomed.
  ImportedMemory Use(const EntryPtr& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void LetGo(const EntryPtr& entry) ABSL_LOCKS_EXCLUDED(mu);
  // Takes unused entries out of the table until `wanted` more bytes fit under the cap.
  void MakeRoom(size_t wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void StartClosing() ABSL_LOCKS_EXCLUDED(mu);
  void Remove(const EntryPtr& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // On the side executor's thread.
  void Open(const JobPtr& job) ABSL_LOCKS_EXCLUDED(mu);
  // Opens, after closing what is in the way; the gate must be quiet.
  absl::StatusOr<std::unique_ptr<IpcMapping>> TryOpen(Job& job, std::vector<EntryPtr>& closed)
      ABSL_LOCKS_EXCLUDED(mu);
  void Finish(const JobPtr& job, absl::StatusOr<std::unique_ptr<IpcMapping>> mapping)
      ABSL_LOCKS_EXCLUDED(mu);
  void CloseSome() ABSL_LOCKS_EXCLUDED(mu);
  // Unmaps; the gate must be quiet. Returns what was closed.
  std::vector<EntryPtr> CloseNow() ABSL_LOCKS_EXCLUDED(mu);
  void Announce(const std::vector<EntryPtr>& closed);

  // Constant after construction.
  const std::shared_ptr<CudaDevice> device;
  const std::shared_ptr<SyncGate> gate;
  const ReleaseCallback on_release;
  const IpcImportCacheOptions options;

  // Before DeviceExecutor::mu_.
  mutable absl::Mutex mu;
  // Null once the cache has gone.
  DeviceExecutor* side ABSL_GUARDED_BY(mu);
  absl::flat_hash_map<ImportKey, EntryPtr> entries ABSL_GUARDED_BY(mu);
  absl::flat_hash_map<ImportKey, JobPtr> opening ABSL_GUARDED_BY(mu);
  std::vector<EntryPtr> closing ABSL_GUARDED_BY(mu);
  bool is_close_posted ABSL_GUARDED_BY(mu) = false;
  uint64_t uses ABSL_GUARDED_BY(mu) = 0;
  IpcImportCacheStats stats ABSL_GUARDED_BY(mu);
};

// What an ImportedMemory and its copies share.
class IpcImportCache::Lease final {
 public:
  Lease(std::shared_ptr<State> state, State::EntryPtr entry)
      : state_(std::move(state)), entry_(std::move(entry)) {}
  ~Lease() { state_->LetGo(entry_); }

  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

 private:
  const std::shared_ptr<State> state_;
  const State::EntryPtr entry_;
};

ImportedMemory IpcImportCache::State::Use(const EntryPtr& entry) {
  if (entry->users++ == 0) ++stats.used_count;
  entry->last_use = ++uses;
  return ImportedMemory(entry->mapping->base(), entry->mapping->bytes(),
                        std::make_shared<const Lease>(shared_from_this(), entry));
}

void IpcImportCache::State::Remove(const EntryPtr& entry) {
  entries.erase(entry->key);
  entry->is_doomed = true;
  if (entry->users > 0) return;
  closing.push_back(entry);
  ++stats.closing_count;
}

void IpcImportCache::State::LetGo(const EntryPtr& entry) {
  {
    absl::MutexLock lock(&mu);
    if (--entry->users > 0) return;
    --stats.used_count;
    if (entry->is_doomed) {
      closing.push_back(entry);
      ++stats.closing_count;
    } else if (side == nullptr) {
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
      // A full queue empties, and then the next one that lets go closes.
      return;
    }
  }
  // The cache has gone, and its thread: this one must do.
  const absl::Status ignored =
      gate->RunQuietly(absl::Seconds(10), "close a peer's memory", [this] { CloseNow(); });
}

std::vector<IpcImportCache::State::EntryPtr> IpcImportCache::State::CloseNow() {
  std::vector<EntryPtr> closed;
  {
    absl::MutexLock lock(&mu);
    closed.swap(closing);
  }
  size_t bytes = 0;
  for (const EntryPtr& entry : closed) {
    bytes += entry->mapping->bytes();
    entry->mapping.reset();
  }
  absl::MutexLock lock(&mu);
  stats.mapped_bytes -= bytes;
  stats.mapping_count -= static_cast<int>(closed.size());
  stats.closing_count -= static_cast<int>(closed.size());
  stats.closed += static_cast<int64_t>(closed.size());
  return closed;
}

void IpcImportCache::State::Announce(const std::vector<EntryPtr>& closed) {
  if (!on_release) return;
  for (const EntryPtr& entry : closed) {
    if (!entry->is_peer_gone) on_release(entry->key);
  }
}

void IpcImportCache::State::CloseSome() {
  std::vector<EntryPtr> closed;
  const absl::Status status = gate->RunQuietly(options.patience, "close a peer's memory",
                                               [this, &closed] { closed = CloseNow(); });
  {
    absl::MutexLock lock(&mu);
    is_close_posted = false;
  }
  Announce(closed);
  // There was NCCL work all the time: others first, then again.
  if (!status.ok()) StartClosing();
}

absl::StatusOr<std::unique_ptr<IpcMapping>> IpcImportCache::State::TryOpen(
    Job& job, std::vector<EntryPtr>& closed) {
  const size_t wanted = job.descriptor.allocation_bytes;
  {
    absl::MutexLock lock(&mu);
    // A process has one allocation at an address: what overlaps is older, and freed.
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
          " are mapped and in use. Raise IpcImportCacheOptions::cap_bytes"));
    }
  }
  absl::StatusOr<std::unique_ptr<IpcMapping>> mapping =
      IpcMapping::Open(device, job.descriptor, std::move(job.fd));
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
  const absl::Status quiet = gate->RunQuietly(
      std::clamp(left, absl::ZeroDuration(), options.patience), "map a peer's memory",
      [this, &job, &mapping, &closed] { mapping = TryOpen(*job, closed); });
  Announce(closed);
  if (!quiet.ok()) {
    mapping = quiet;
    absl::MutexLock lock(&mu);
    // Others first, then again.
    if (left > options.patience && side != nullptr && !job->is_peer_gone &&
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
    opening.erase(job->key);
    waiting.swap(job->waiting);
    absl::Status status = mapping.status();
    auto entry = std::make_shared<Entry>();
    if (mapping.ok()) {
      entry->key = job->key;
      entry->remote_base = job->descriptor.base;
      entry->device = job->descriptor.device;
      entry->mapping = *std::move(mapping);
      ++stats.opened;
      ++stats.mapping_count;
      stats.mapped_bytes += entry->mapping->bytes();
      entries.emplace(entry->key, entry);
      if (job->is_peer_gone || side == nullptr) {
        entry->is_peer_gone = true;
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

IpcImportCache::IpcImportCache(DeviceExecutor& side, std::shared_ptr<SyncGate> gate,
                               ReleaseCallback on_release, IpcImportCacheOptions options)
    : side_(side),
      state_(std::make_shared<State>(side, std::move(gate), std::move(on_release), options)) {}

IpcImportCache::~IpcImportCache() {
  {
    absl::MutexLock lock(&state_->mu);
    state_->side = nullptr;
    // A close that was posted runs on, but what follows is this thread's.
    state_->is_close_posted = false;
    std::vector<State::EntryPtr> all;
    for (const auto& [key, entry] : state_->entries) all.push_back(entry);
    for (const State::EntryPtr& entry : all) state_->Remove(entry);
  }
  state_->StartClosing();
}

std::optional<ImportedMemory> IpcImportCache::Find(const ImportKey& key) {
  absl::MutexLock lock(&state_->mu);
  const auto found = state_->entries.find(key);
  if (found == state_->entries.end()) return std::nullopt;
  ++state_->stats.found;
  return state_->Use(found->second);
}

absl::Status IpcImportCache::Open(const ImportKey& key, const IpcDescriptor& descriptor,
                                  UniqueFd fd, absl::Time deadline, OpenCallback done) {
  State& state = *state_;
  if (key.peer_incarnation == state.options.own_incarnation) {
    return side_.Post([done = std::move(done)]() mutable {
      std::move(done)(absl::FailedPreconditionError(
          "this process's own memory cannot be mapped a second time; use it as it is"));
    });
  }
  if (std::optional<ImportedMemory> memory = Find(key); memory.has_value()) {
    return side_.Post([memory = *std::move(memory), done = std::move(done)]() mutable {
      std::move(done)(std::move(memory));
    });
  }
  absl::MutexLock lock(&state.mu);
  // It may have been opened since. The lease is let go of outside the lock, so not here.
  if (state.entries.contains(key)) {
    return side_.Post([self = state_, key, done = std::move(done)]() mutable {
      std::optional<ImportedMemory> memory;
      {
        absl::MutexLock lock(&self->mu);
        const auto found = self->entries.find(key);
        if (found != self->entries.end()) memory = self->Use(found->second);
      }
      if (memory.has_value()) return std::move(done)(*std::move(memory));
      std::move(done)(absl::UnavailableError("the peer's memory was closed; ask again"));
    });
  }
  if (const auto found = state.opening.find(key); found != state.opening.end()) {
    found->second->waiting.push_back(std::move(done));
    // Whoever is patient longest says how long.
    found->second->deadline = std::max(found->second->deadline, deadline);
    return absl::OkStatus();
  }
  auto job = std::make_shared<Job>();
  job->key = key;
  job->descriptor = descriptor;
  job->fd = std::move(fd);
  job->deadline = deadline;
  FERRY_RETURN_IF_ERROR(side_.Post([self = state_, job] { self->Open(job); }));
  job->waiting.push_back(std::move(done));
  state.opening.emplace(key, std::move(job));
  return absl::OkStatus();
}

void IpcImportCache::ClosePeer(uint64_t peer_incarnation) {
  {
    absl::MutexLock lock(&state_->mu);
    std::vector<State::EntryPtr> gone;
    for (const auto& [key, entry] : state_->entries) {
      if (key.peer_incarnation == peer_incarnation) gone.push_back(entry);
    }
    for (const State::EntryPtr& entry : gone) {
      entry->is_peer_gone = true;
      state_->Remove(entry);
    }
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

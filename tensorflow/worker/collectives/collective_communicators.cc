// SPDX-License-Identifier: Apache-2.0
// The communicator table, and the threads that destroy communicators.
#include "tensorflow/worker/collectives/collective_communicators.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "gpu/cuda/stream_retention.h"
#include "rendezvous/value.h"

namespace ferry::worker {
namespace {

// Time for NCCL to abort communicators when the worker ends.
constexpr absl::Duration kAbortTimeout = absl::Seconds(30);
// For how long its kernels may stay on the stream before that is reported.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(30);

}  // namespace

CollectiveCommunicators::Use::Use(CollectiveCommunicators& owner, Entry& entry)
    : owner_(owner), entry_(entry) {
  absl::MutexLock lock(&owner_.mu_);
  if (!entry_.ended_.ok()) return;
  communicator_ = entry_.communicator_.get();
  entry_.last_use_ = ++owner_.uses_;
  ++entry_.calls_;
}

CollectiveCommunicators::Use::~Use() {
  if (communicator_ == nullptr) return;
  absl::MutexLock lock(&owner_.mu_);
  if (--entry_.calls_ == 0 && !entry_.ended_.ok()) owner_.Reap(entry_);
}

CollectiveCommunicators::CollectiveCommunicators(Gpus& gpus, Gpu& gpu, const NcclJob& job,
                                                 cuda::Stream stream)
    : gpus_(gpus), gpu_(gpu), job_(job), stream_(stream) {
  absl::MutexLock lock(&callback_target_->mu);
  callback_target_->owner = this;
}

CollectiveCommunicators::~CollectiveCommunicators() {
  {
    absl::MutexLock lock(&callback_target_->mu);
    callback_target_->owner = nullptr;
  }
  std::vector<std::shared_ptr<Entry>> all;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [name, entry] : entries_) all.push_back(entry);
  }
  for (const auto& entry : all) End(*entry, absl::CancelledError("the worker has ended"));
  threads_.StopWithin(kAbortTimeout);
}

absl::StatusOr<CommunicatorKey> CollectiveCommunicators::KeyOf(
    const CollectiveNode& node, const std::vector<int>& members) const {
  std::vector<CommunicatorMember> ranks;
  for (const int member : members) {
    const CollectiveDevice& device = (*node.devices)[static_cast<size_t>(member)];
    const std::optional<DeviceId> id = job_.device_of(device.device.task.task, device.device.index);
    if (!id.has_value()) {
      return absl::InternalError(absl::StrCat(device.name, " is no GPU of the job's"));
    }
    ranks.push_back({id->value(), device.incarnation});
  }
  return CommunicatorKey::Create(std::move(ranks), "collectives of graphs");
}

std::shared_ptr<CollectiveCommunicators::Entry> CollectiveCommunicators::Find(
    const CommunicatorKey& key) {
  std::shared_ptr<Entry> entry;
  {
    absl::MutexLock lock(&mu_);
    const auto found = entries_.find(key.prefix());
    if (found != entries_.end()) entry = found->second;
  }
  return entry != nullptr && Check(*entry) ? entry : nullptr;
}

bool CollectiveCommunicators::Check(Entry& entry) {
  absl::Status status;
  {
    const Use use(*this, entry);
    if (use.get() == nullptr) return false;
    status = use.get()->Check();
  }
  if (!status.ok()) End(entry, status);
  return status.ok();
}

absl::StatusOr<std::shared_ptr<CollectiveCommunicators::Entry>> CollectiveCommunicators::Make(
    const CommunicatorKey& key, int rank, absl::Duration timeout,
    std::function<absl::Status()> keep_going) {
  CommunicatorOptions options;
  options.timeout = timeout;
  options.keep_going = std::move(keep_going);
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<NcclCommunicator> made,
                         NcclCommunicator::Make(job_.library, gpus_, gpu_.device->ordinal(), key,
                                                rank, job_.store, options));
  auto entry = std::make_shared<Entry>();
  entry->name_ = key.prefix();
  entry->generation_ = made->generation();
  entry->communicator_ = std::move(made);
  std::shared_ptr<Entry> oldest;
  {
    absl::MutexLock lock(&mu_);
    if (entries_.size() >= kMaxCommunicators) {
      for (const auto& [name, other] : entries_) {
        // Idle: referenced only by the table and never in use.
        if (other.use_count() > 1) continue;
        if (oldest == nullptr || other->last_use_ < oldest->last_use_) oldest = other;
      }
    }
    entries_[entry->name_] = entry;
  }
  if (oldest != nullptr) {
    End(*oldest, absl::ResourceExhaustedError(
                     absl::StrCat("this GPU has had ", kMaxCommunicators, " others since")));
  }
  const Use use(*this, *entry);
  if (use.get() == nullptr) return StatusOf(*entry);
  use.get()->Listen([target = callback_target_, weak = std::weak_ptr<Entry>(entry)] {
    const std::shared_ptr<Entry> strong = weak.lock();
    absl::MutexLock lock(&target->mu);
    if (target->owner != nullptr && strong != nullptr) target->owner->Check(*strong);
  });
  return entry;
}

void CollectiveCommunicators::End(Entry& entry, const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  if (!entry.ended_.ok()) return;
  // Derived: the caller of End reports the cause.
  entry.ended_ = MakeDerived(absl::AbortedError(
      absl::StrCat("the communicator of a collective was ended: ", why.message())));
  const auto found = entries_.find(entry.name_);
  if (found != entries_.end() && found->second.get() == &entry) entries_.erase(found);
  if (entry.calls_ == 0) Reap(entry);
}

void CollectiveCommunicators::Reap(Entry& entry) {
  if (entry.communicator_ == nullptr) return;
  // On a thread of its own, because destroying one communicator may wait for others.
  threads_.Run("ferry-coll-end",
               [&gpu = gpu_, stream = stream_, communicator = std::move(entry.communicator_),
                kept = std::move(entry.kept_)]() mutable {
                 communicator.reset();
                 if (kept.empty()) return;
                 size_t bytes = 0;
                 for (const Tensor& tensor : kept) bytes += tensor.bytes();
                 cuda::RetainUntilPassed(
                     *gpu.nccl, *gpu.events, stream,
                     {.user = "collectives of an aborted NCCL communicator",
                      .bytes = bytes,
                      .memory = std::make_shared<const std::vector<Tensor>>(std::move(kept))},
                     SteadyClock().Now() + kLeaveTimeout, nullptr);
               });
}

absl::Status CollectiveCommunicators::StatusOf(const Entry& entry) const {
  absl::MutexLock lock(&mu_);
  return entry.ended_;
}

void CollectiveCommunicators::Keep(Entry& entry, std::vector<Tensor> tensors) {
  absl::MutexLock lock(&mu_);
  for (Tensor& tensor : tensors) entry.kept_.push_back(std::move(tensor));
}

}  // namespace ferry::worker

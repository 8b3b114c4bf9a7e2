// SPDX-License-Identifier: Apache-2.0
// The communicator table, and the threads that destroy communicators.
#include "tensorflow/worker/collectives/nccl_cliques.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "rendezvous/value.h"

namespace ferry::worker {
namespace {

// Time for NCCL to abort communicators when the worker ends.
constexpr absl::Duration kAbortTimeout = absl::Seconds(30);

}  // namespace

NcclCliques::Use::Use(NcclCliques& cliques, Clique& clique) : cliques_(cliques), clique_(clique) {
  absl::MutexLock lock(&cliques_.mu_);
  if (!clique_.ended_.ok()) return;
  communicator_ = clique_.communicator_.get();
  clique_.last_use_ = ++cliques_.uses_;
  ++clique_.calls_;
}

NcclCliques::Use::~Use() {
  if (communicator_ == nullptr) return;
  absl::MutexLock lock(&cliques_.mu_);
  if (--clique_.calls_ == 0 && !clique_.ended_.ok()) cliques_.Reap(clique_);
}

NcclCliques::NcclCliques(Gpus& gpus, int ordinal, const NcclJob& job)
    : gpus_(gpus), ordinal_(ordinal), job_(job) {
  absl::MutexLock lock(&ear_->mu);
  ear_->cliques = this;
}

NcclCliques::~NcclCliques() {
  {
    absl::MutexLock lock(&ear_->mu);
    ear_->cliques = nullptr;
  }
  std::vector<std::shared_ptr<Clique>> all;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [name, clique] : cliques_) all.push_back(clique);
  }
  for (const auto& clique : all) End(*clique, absl::CancelledError("the worker has ended"));
  threads_.StopWithin(kAbortTimeout);
}

absl::StatusOr<CliqueKey> NcclCliques::KeyOf(const CollectiveNode& node,
                                             const std::vector<int>& members) const {
  std::vector<CliqueMember> clique;
  for (const int member : members) {
    const CollectiveDevice& device = (*node.devices)[static_cast<size_t>(member)];
    const std::optional<DeviceId> id = job_.device_of(device.device.task.task, device.device.index);
    if (!id.has_value()) {
      return absl::InternalError(absl::StrCat(device.name, " is no GPU of the job's"));
    }
    clique.push_back({id->value(), device.incarnation});
  }
  return CliqueKey::Create(std::move(clique), "collectives of graphs");
}

std::shared_ptr<NcclCliques::Clique> NcclCliques::Find(const CliqueKey& key) {
  std::shared_ptr<Clique> clique;
  {
    absl::MutexLock lock(&mu_);
    const auto found = cliques_.find(key.prefix());
    if (found != cliques_.end()) clique = found->second;
  }
  return clique != nullptr && Check(*clique) ? clique : nullptr;
}

bool NcclCliques::Check(Clique& clique) {
  absl::Status status;
  {
    const Use use(*this, clique);
    if (use.get() == nullptr) return false;
    status = use.get()->Check();
  }
  if (!status.ok()) End(clique, status);
  return status.ok();
}

absl::StatusOr<std::shared_ptr<NcclCliques::Clique>> NcclCliques::Make(
    const CliqueKey& key, int rank, absl::Duration timeout,
    std::function<absl::Status()> keep_going) {
  CommunicatorOptions options;
  options.timeout = timeout;
  options.keep_going = std::move(keep_going);
  FERRY_ASSIGN_OR_RETURN(
      std::shared_ptr<NcclCommunicator> made,
      NcclCommunicator::Make(job_.library, gpus_, ordinal_, key, rank, job_.store, options));
  auto clique = std::make_shared<Clique>();
  clique->name_ = key.prefix();
  clique->generation_ = made->generation();
  clique->communicator_ = std::move(made);
  std::shared_ptr<Clique> oldest;
  {
    absl::MutexLock lock(&mu_);
    if (cliques_.size() >= kMaxCommunicators) {
      for (const auto& [name, other] : cliques_) {
        // Idle: referenced only by the table and never in use.
        if (other.use_count() > 1) continue;
        if (oldest == nullptr || other->last_use_ < oldest->last_use_) oldest = other;
      }
    }
    cliques_[clique->name_] = clique;
  }
  if (oldest != nullptr) {
    End(*oldest, absl::ResourceExhaustedError(
                     absl::StrCat("this GPU has had ", kMaxCommunicators, " others since")));
  }
  const Use use(*this, *clique);
  if (use.get() == nullptr) return StatusOf(*clique);
  use.get()->Listen([ear = ear_, weak = std::weak_ptr<Clique>(clique)] {
    const std::shared_ptr<Clique> strong = weak.lock();
    absl::MutexLock lock(&ear->mu);
    if (ear->cliques != nullptr && strong != nullptr) ear->cliques->Check(*strong);
  });
  return clique;
}

void NcclCliques::End(Clique& clique, const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  if (!clique.ended_.ok()) return;
  // Derived: the caller of End reports the cause.
  clique.ended_ = MakeDerived(absl::AbortedError(
      absl::StrCat("the communicator of a collective was ended: ", why.message())));
  const auto found = cliques_.find(clique.name_);
  if (found != cliques_.end() && found->second.get() == &clique) cliques_.erase(found);
  if (clique.calls_ == 0) Reap(clique);
}

void NcclCliques::Reap(Clique& clique) {
  if (clique.communicator_ == nullptr) return;
  // On a thread of its own, because destroying one communicator may wait for others.
  threads_.Run("ferry-coll-end", [communicator = std::move(clique.communicator_),
                                  kept = std::move(clique.kept_)]() mutable {
    communicator.reset();
    kept.clear();
  });
}

absl::Status NcclCliques::StatusOf(const Clique& clique) const {
  absl::MutexLock lock(&mu_);
  return clique.ended_;
}

void NcclCliques::Keep(Clique& clique, std::vector<Tensor> tensors) {
  absl::MutexLock lock(&mu_);
  for (Tensor& tensor : tensors) clique.kept_.push_back(std::move(tensor));
}

}  // namespace ferry::worker

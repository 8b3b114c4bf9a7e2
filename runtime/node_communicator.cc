// SPDX-License-Identifier: Apache-2.0
// Which ranks a clique of devices has, and this node's part in it.
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "runtime/agent_clique_store.h"
#include "runtime/node.h"

namespace ferry {
namespace {

// Which generation of a clique the others make or have; those before it are over.
absl::StatusOr<uint32_t> GenerationInStore(coord::Agent& agent, const CliqueKey& key) {
  const absl::StatusOr<std::string> text = agent.TryGet(key.GenerationKey());
  if (absl::IsNotFound(text.status())) return 1;
  FERRY_RETURN_IF_ERROR(text.status());
  uint32_t generation = 0;
  if (absl::SimpleAtoi(*text, &generation)) return generation;
  return absl::DataLossError(absl::StrCat(key.GenerationKey(), " is no number in the store"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<NcclCommunicator>> Node::Communicator(
    const std::vector<int>& devices, std::optional<int> own, CommunicatorOptions options) {
  FERRY_RETURN_IF_ERROR(CheckExchange());
  if (exchange_->gpus() == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("this process uses no GPUs: ", exchange_->why_no_gpus()));
  }
  std::vector<CliqueMember> members;
  int rank = -1;
  int ordinal = -1;
  for (size_t i = 0; i < devices.size(); ++i) {
    const int id = devices[i];
    if (id < 0 || static_cast<size_t>(id) >= topology_.devices().size() ||
        topology_.device(id).kind != DeviceKind::kGpu) {
      return absl::InvalidArgumentError(
          absl::StrCat("device ", id, " of the job is no GPU: a communicator is of GPUs"));
    }
    const int node =
        topology_
            .nodes()[static_cast<size_t>(topology_.devices()[static_cast<size_t>(id)].node_index)]
            .node_id;
    FERRY_ASSIGN_OR_RETURN(const Endpoint endpoint, EndpointOf(node));
    members.push_back({id, endpoint.peer.incarnation});
    if (node != node_id() || (own.has_value() && *own != id)) continue;
    if (rank >= 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          topology_.DeviceName(devices[static_cast<size_t>(rank)]), " and ",
          topology_.DeviceName(id), " are both this node's: say for which of them this call is"));
    }
    rank = static_cast<int>(i);
    ordinal = topology_.device(id).ordinal;
  }
  if (rank < 0) {
    return absl::InvalidArgumentError("none of the communicator's devices is this node's");
  }
  FERRY_ASSIGN_OR_RETURN(const CliqueKey key, CliqueKey::Create(std::move(members)));
  const std::string name = absl::StrCat(key.prefix(), rank);
  std::shared_ptr<const nccl::NcclApi> api = exchange_->nccl().library;
  if (api == nullptr) return absl::UnavailableError(exchange_->nccl().why_no_library);
  std::shared_ptr<NcclCommunicator> known;
  {
    absl::MutexLock lock(&mu_);
    // One at a time: a second presence of one rank would make both begin anew.
    const auto is_free = [this, &name]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !making_.contains(name); };
    if (!mu_.AwaitWithTimeout(absl::Condition(&is_free), options.timeout)) {
      return absl::DeadlineExceededError(absl::StrCat("another thread has been making ",
                                                      key.Describe(), " for over ",
                                                      absl::FormatDuration(options.timeout)));
    }
    const auto found = communicators_.find(name);
    if (found != communicators_.end()) known = found->second.lock();
    making_.insert(name);
  }
  const absl::Cleanup is_made = [this, &name] {
    absl::MutexLock lock(&mu_);
    making_.erase(name);
  };
  if (known != nullptr) {
    // Another rank may have let go of its own, and with it have ended all of them.
    FERRY_ASSIGN_OR_RETURN(const uint32_t generation, GenerationInStore(*agent_, key));
    if (generation <= known->generation()) return known;
  }
  absl::StatusOr<std::shared_ptr<NcclCommunicator>> communicator = NcclCommunicator::Make(
      std::move(api), *exchange_->gpus(), ordinal, key, rank,
      [this](std::shared_ptr<CliqueListener> listener) {
        return std::make_unique<AgentCliqueStore>(*agent_, std::move(listener));
      },
      options);
  absl::MutexLock lock(&mu_);
  if (communicator.ok()) communicators_[name] = *communicator;
  return communicator;
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// Node::Communicator: the ranks of a clique of devices, and this node's own rank.
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "node/agent_clique_store.h"
#include "node/communicator_cache.h"
#include "node/node.h"

namespace ferry {
absl::StatusOr<std::shared_ptr<NcclCommunicator>> Node::Communicator(
    const std::vector<int>& devices, std::optional<int> own, CommunicatorOptions options) {
  FERRY_RETURN_IF_ERROR(CheckExchange());
  if (exchange_->gpus() == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("this process uses no GPUs: ", exchange_->why_no_gpus()));
  }
  // The driver found GPUs but could not query one of them.
  if (!discovery_.cuda_reason.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this node has no GPU in the job: ", discovery_.cuda_reason));
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
  std::shared_ptr<const nccl::NcclApi> api = exchange_->nccl().library;
  if (api == nullptr) return absl::UnavailableError(exchange_->nccl().why_no_library);
  // Do not wait for a rank that the job knows to be dead.
  options.keep_going = [this, &key, asked = std::move(options.keep_going)] {
    if (asked) FERRY_RETURN_IF_ERROR(asked());
    return kept_->CheckAlive(key);
  };
  return kept_->Acquire(key, rank, ordinal, options.timeout, [&] {
    return NcclCommunicator::Make(
        std::move(api), *exchange_->gpus(), ordinal, key, rank,
        [this](std::shared_ptr<CliqueListener> listener) {
          return std::make_unique<AgentCliqueStore>(*agent_, std::move(listener));
        },
        options);
  });
}

}  // namespace ferry

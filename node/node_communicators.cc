// SPDX-License-Identifier: Apache-2.0
// NodeCommunicators: the ranks of a communicator of devices, and this node's own rank.
#include "node/node_communicators.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "node/agent_bootstrap_store.h"
#include "node/agent_use_record_store.h"

namespace ferry {
namespace {

// REQUIRES: a device of the job.
int NodeOfDevice(const GlobalTopology& topology, size_t id) {
  return topology.nodes()[static_cast<size_t>(topology.devices()[id].node_index)].node_id;
}

}  // namespace

NodeCommunicators::NodeCommunicators(coord::Agent& agent, PeerDirectory& peers,
                                     TransferEngine& engine, const GlobalTopology& topology,
                                     const LocalDiscovery& discovery,
                                     const NodeCommunicatorsOptions& options)
    : agent_(agent),
      peers_(peers),
      engine_(engine),
      topology_(topology),
      discovery_(discovery),
      abort_timeout_(options.abort_timeout),
      use_record_store_(std::make_unique<AgentUseRecordStore>(agent)),
      cache_(std::make_shared<CommunicatorCache>(
          *use_record_store_, options.budget_bytes, [&engine](int ordinal) -> uint64_t {
            if (engine.gpus() == nullptr) return 0;
            const absl::StatusOr<Gpu*> gpu = engine.gpus()->Get(ordinal);
            return gpu.ok() ? FreeBytesBesideArena(**gpu) : 0;
          })) {}

absl::StatusOr<std::shared_ptr<NcclCommunicator>> NodeCommunicators::Acquire(
    const std::vector<int>& devices, std::optional<int> own, CommunicatorOptions options) {
  if (engine_.gpus() == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("this process uses no GPUs: ", engine_.why_no_gpus()));
  }
  // The driver found GPUs but could not query one of them.
  if (!discovery_.cuda_reason.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this node has no GPU in the job: ", discovery_.cuda_reason));
  }
  std::vector<CommunicatorMember> members;
  int rank = -1;
  int ordinal = -1;
  for (size_t i = 0; i < devices.size(); ++i) {
    const int id = devices[i];
    if (id < 0 || static_cast<size_t>(id) >= topology_.devices().size() ||
        topology_.device(id).kind != DeviceKind::kGpu) {
      return absl::InvalidArgumentError(
          absl::StrCat("device ", id, " of the job is no GPU: a communicator is of GPUs"));
    }
    const int node = NodeOfDevice(topology_, static_cast<size_t>(id));
    FERRY_ASSIGN_OR_RETURN(const Endpoint endpoint, peers_.Lookup(node));
    members.push_back({id, endpoint.peer.incarnation});
    if (node != discovery_.topology.node_id || (own.has_value() && *own != id)) continue;
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
  FERRY_ASSIGN_OR_RETURN(const CommunicatorKey key, CommunicatorKey::Create(std::move(members)));
  std::shared_ptr<const nccl::NcclApi> api = engine_.nccl().library;
  if (api == nullptr) return absl::UnavailableError(engine_.nccl().library_unavailable_reason);
  // Do not wait for a rank that the job knows to be dead.
  options.keep_going = [this, &key, asked = std::move(options.keep_going)] {
    if (asked) FERRY_RETURN_IF_ERROR(asked());
    return cache_->CheckAlive(key);
  };
  options.is_gone = [weak = std::weak_ptr(cache_)](const CommunicatorMember& member) {
    const auto cache = weak.lock();
    return cache == nullptr || cache->HasDied(member);
  };
  return cache_->Acquire(key, rank, ordinal, options.timeout, [&] {
    return NcclCommunicator::Make(
        std::move(api), *engine_.gpus(), ordinal, key, rank,
        [this](std::shared_ptr<BootstrapStoreListener> listener) {
          return std::make_unique<AgentBootstrapStore>(agent_, std::move(listener));
        },
        options);
  });
}

void NodeCommunicators::Forget(const LostPeer& lost) {
  std::vector<int> devices;
  for (size_t id = 0; id < topology_.devices().size(); ++id) {
    if (NodeOfDevice(topology_, id) == lost.node_id) devices.push_back(static_cast<int>(id));
  }
  cache_->Forget(
      // Does not match a later incarnation of the node. May be called after this object is
      // destroyed.
      [devices = std::move(devices),
       gone = lost.gone_incarnations](const CommunicatorMember& member) {
        return absl::c_linear_search(devices, member.device) &&
               absl::c_linear_search(gone, member.incarnation);
      },
      lost.why);
}

absl::Status NodeCommunicators::Stop() {
  absl::Status ended = cache_->Stop(abort_timeout_);
  if (!ended.ok()) (void)use_record_store_.release();
  return ended;
}

}  // namespace ferry

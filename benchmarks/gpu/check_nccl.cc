// SPDX-License-Identifier: Apache-2.0
// Groups of sends and receives.
#include "benchmarks/gpu/check_nccl.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "gpu/nccl/nccl_api.h"

namespace ferry::check {
namespace {

constexpr absl::Duration kMostForCommunicator = absl::Seconds(30);

}  // namespace

absl::StatusOr<int> GlobalIdOf(const Node& node, int node_id, int ordinal) {
  const GlobalTopology& topology = node.topology();
  const std::optional<int> index = topology.NodeIndex(node_id);
  if (!index.has_value()) return absl::NotFoundError(absl::StrCat("there is no node ", node_id));
  const auto& devices = topology.nodes()[static_cast<size_t>(*index)].devices;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].kind == DeviceKind::kGpu && devices[i].ordinal == ordinal) {
      return topology.GlobalId(*index, static_cast<int>(i));
    }
  }
  return absl::NotFoundError(absl::StrCat("node ", node_id, " has no gpu:", ordinal));
}

absl::StatusOr<std::shared_ptr<NcclCommunicator>> MakeCommunicator(CheckNode& self,
                                                                   const std::vector<int>& ordinals,
                                                                   int max_ctas) {
  std::vector<int> devices;
  for (size_t i = 0; i < ordinals.size(); ++i) {
    FERRY_ASSIGN_OR_RETURN(const int id, GlobalIdOf(self.node(), static_cast<int>(i), ordinals[i]));
    devices.push_back(id);
  }
  CommunicatorOptions options;
  options.timeout = std::min(kMostForCommunicator, self.deadline() - SteadyClock().Now());
  options.max_ctas = max_ctas;
  return self.node().Communicator(devices, std::nullopt, options);
}

std::map<std::string, std::string> SharedGpuEnvironment(int node, int version) {
  if (version >= nccl::kMultiRankGpuVersion) {
    return {{"NCCL_MULTI_RANK_GPU_ENABLE", "1"}, {"NCCL_SOCKET_IFNAME", "lo"}};
  }
  return {{"NCCL_HOSTID", absl::StrCat("ferry-check-", node)},
          {"NCCL_MNNVL_ENABLE", "0"},
          {"NCCL_NET", "Socket"},
          {"NCCL_IB_DISABLE", "1"},
          {"NCCL_SOCKET_IFNAME", "lo"},
          {"NCCL_RAS_ENABLE", "0"},
          {"NCCL_NVLS_ENABLE", "0"},
          {"NCCL_CUMEM_HOST_ENABLE", "0"},
          {"NCCL_MAX_CTAS", "2"}};
}

absl::Status RunGroup(NcclCommunicator& communicator, const std::vector<NcclOperation>& operations,
                      cuda::Stream stream) {
  return communicator.RunWithoutTurn(
      [&](const nccl::NcclTable& nccl, nccl::Communicator handle) {
        nccl::Result result = nccl.group_start();
        const auto note = [&result](nccl::Result next) {
          if (result == nccl::kSuccess || result == nccl::kInProgress) result = next;
        };
        for (const NcclOperation& each : operations) {
          note(each.is_send
                   ? nccl.send(each.buffer, each.bytes, nccl::kUint8, each.peer, handle, stream)
                   : nccl.recv(each.buffer, each.bytes, nccl::kUint8, each.peer, handle, stream));
        }
        note(nccl.group_end());
        return result;
      },
      kTimeout);
}

absl::Status ExchangeAndVerify(CheckNode& self, NcclCommunicator& communicator, size_t bytes,
                               const std::string& name) {
  const auto seed = [bytes](int rank) { return bytes * 3 + static_cast<uint64_t>(rank); };
  const int peer = 1 - communicator.rank();
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu(communicator.ordinal()));
  FERRY_ASSIGN_OR_RETURN(Tensor out,
                         self.Pattern(bytes, seed(communicator.rank()), communicator.ordinal()));
  FERRY_ASSIGN_OR_RETURN(Tensor in, self.Empty(bytes, communicator.ordinal()));
  FERRY_RETURN_IF_ERROR(
      RunGroup(communicator,
               {{true, out.mutable_data(), bytes, peer}, {false, in.mutable_data(), bytes, peer}},
               gpu->stream()));
  FERRY_RETURN_IF_ERROR(gpu->WaitWithin(self.Timeout(), gpu->stream()));
  self.report().Check(name, self.Verify(in, bytes, seed(peer)));
  return absl::OkStatus();
}

absl::StatusOr<int> NcclVersion() {
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<nccl::NcclApi> api, nccl::NcclApi::Load());
  return api->version();
}

}  // namespace ferry::check

// SPDX-License-Identifier: Apache-2.0
// Which pairs of GPUs work, and at what cost.
#include "transport/nccl/nccl_transport.h"

#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "transport/gpu_of.h"
#include "transport/nccl/nccl_descriptor.h"
#include "transport/nccl/nccl_endpoints.h"

namespace ferry {
namespace {

// Until measured: a fast network.
constexpr double kAssumedBytesPerSecond = 20e9;
// Weight of each new batch in the running average.
constexpr double kWeight = 0.1;

}  // namespace

NcclTransport::NcclTransport(const TransportEnvironment& environment,
                             const NcclTransportOptions& options, const NcclJob& job)
    : Transport(kInfo),
      environment_(environment),
      job_(job),
      version_(job.library != nullptr && options.memory_bytes > 0 ? job.library->version() : 0),
      put_bytes_(options.put_bytes),
      latency_(options.assumed_latency),
      bytes_per_second_(kAssumedBytesPerSecond),
      node_(environment, options, job, [this](size_t bytes, absl::Duration taken) {
        const double seen = static_cast<double>(bytes) / absl::ToDoubleSeconds(taken);
        const double before = bytes_per_second_.load(std::memory_order_relaxed);
        // One of two concurrent updates may be lost.
        bytes_per_second_.store(before + kWeight * (seen - before), std::memory_order_relaxed);
      }) {}

NcclTransport::~NcclTransport() = default;

std::string NcclTransport::local_descriptor() const {
  if (version_ == 0) return std::string();
  return EncodeNcclPeer(
      {.version = version_, .put_bytes = nccl::HasPut(*job_.library) ? put_bytes_ : 0});
}

absl::StatusOr<int> NcclTransport::CommonVersion(const PathQuery& query) const {
  const bool is_party = IsParty(query);
  std::optional<int> own;
  if (is_party) own = version_;
  for (const Endpoint* each : {query.source, query.destination}) {
    const absl::string_view descriptor = DescriptorOf(*each);
    if (descriptor.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(Describe(each->peer), " does not use NCCL"));
    }
    const absl::StatusOr<NcclPeerDescriptor> peer = DecodeNcclPeer(descriptor);
    if (!peer.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat(Describe(each->peer), " published ", peer.status().message()));
    }
    if (!own.has_value()) own = peer->version;
    if (peer->version == *own) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        Describe(each->peer), " has NCCL ", nccl::VersionText(peer->version), ", and ",
        is_party ? "this process" : Describe(query.source->peer), " ", nccl::VersionText(*own)));
  }
  return *own;
}

bool NcclTransport::IsParty(const PathQuery& query) const {
  return query.source->peer.node_id == environment_.node_id ||
         query.destination->peer.node_id == environment_.node_id;
}

absl::StatusOr<PathCost> NcclTransport::Cost(const PathQuery& query) const {
  const bool is_party = IsParty(query);
  if (is_party) FERRY_RETURN_IF_ERROR(node_.status());
  FERRY_ASSIGN_OR_RETURN(const std::string from, GpuOf(*query.source, query.source_location, "in"));
  FERRY_ASSIGN_OR_RETURN(const std::string to,
                         GpuOf(*query.destination, query.destination_location, "for"));
  FERRY_ASSIGN_OR_RETURN(const int version, CommonVersion(query));
  if (from == to && !nccl::AllowsSharedGpu(version)) {
    return absl::FailedPreconditionError(
        "both ends are on one GPU, and NCCL takes one process of each unless it is 2.30.3 or newer "
        "and NCCL_MULTI_RANK_GPU_ENABLE is 1");
  }
  if (query.bytes == 0) return absl::FailedPreconditionError("it has no bytes");
  // A third process knows only the published endpoints.
  if (!is_party) {
    return PathCost{latency_, bytes_per_second_.load(std::memory_order_relaxed)};
  }
  const auto& device_of = job_.device_of;
  const bool is_source = query.source->peer.node_id == environment_.node_id;
  const int ordinal =
      is_source ? query.source_location.ordinal : query.destination_location.ordinal;
  const auto own = device_of(environment_.node_id, ordinal);
  const Endpoint& other = is_source ? *query.destination : *query.source;
  const auto peer = device_of(other.peer.node_id, is_source ? query.destination_location.ordinal
                                                            : query.source_location.ordinal);
  if (!own.has_value() || !peer.has_value()) {
    return absl::FailedPreconditionError("the job's topology does not have both GPUs");
  }
  FERRY_RETURN_IF_ERROR(node_.Refusal(*own, ordinal, *peer));
  PathCost cost{latency_, bytes_per_second_.load(std::memory_order_relaxed)};
  const std::shared_ptr<NcclDevice> device = node_.Find(*own);
  if (device != nullptr && put_bytes_ > 0) {
    const absl::Status refused = device->PutRefusal(*peer);
    cost.note = refused.ok() ? "puts into a registered pool"
                             : absl::StrCat("batches; no puts: ", refused.message());
  }
  return cost;
}

std::shared_ptr<TransportSender> NcclTransport::CreateSender(const Endpoint& peer) {
  return std::make_shared<NcclSender>(node_, node_.NewPeer(peer));
}

std::shared_ptr<TransportReceiver> NcclTransport::CreateReceiver(const Endpoint& peer,
                                                                 ReleaseCallback release) {
  return std::make_shared<NcclReceiver>(node_, node_.Peer(peer));
}

absl::Status NcclTransport::PutRefusal(int ordinal, DeviceId peer) const {
  const std::shared_ptr<NcclDevice> device = node_.FindOrdinal(ordinal);
  return device == nullptr ? absl::UnavailableError("nothing was sent yet")
                           : device->PutRefusal(peer);
}

std::shared_ptr<NcclCommunicator> NcclTransport::CommunicatorWith(int ordinal,
                                                                  DeviceId peer) const {
  const std::shared_ptr<NcclDevice> device = node_.FindOrdinal(ordinal);
  return device == nullptr ? nullptr : device->CommunicatorWith(peer);
}

}  // namespace ferry

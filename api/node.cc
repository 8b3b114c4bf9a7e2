// SPDX-License-Identifier: Apache-2.0
// The public Node owns an internal one, and leaves its job when destroyed.
#include <ferry/node.h>

#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "api/api_access.h"
#include "api/peer_lookup.h"
#include "api/public_terms.h"
#include "api/step_impl.h"
#include "base/status_macros.h"
#include "node/node.h"
#include "transport/transports.h"

namespace ferry::v0 {
namespace {

ferry::NodeOptions Convert(NodeOptions options) {
  ferry::NodeOptions inner;
  inner.node_id = options.rank;
  inner.num_nodes = options.num_nodes;
  inner.coordinator = std::move(options.coordinator_address);
  inner.connect_timeout = options.connect_timeout;
  inner.enumerate_timeout = options.topology_timeout;
  inner.answer_timeout = options.rpc_timeout;
  inner.reconnect_timeout = options.coordinator_reconnect_timeout;
  inner.recoverable = options.is_recoverable;
  if (options.on_job_failure) {
    inner.on_error = [tell = std::move(options.on_job_failure)](const absl::Status& error) {
      tell(error);
    };
  }
  if (options.cancellation.has_value()) {
    inner.connect_stop = ApiAccess::Unwrap(*options.cancellation);
  }
  inner.share_gpus = options.share_gpus;
  inner.kept_communicator_bytes = options.communicator_cache_bytes;

  TransferOptions& transfer = options.transfer;
  inner.transfers_tensors = transfer.enabled;
  inner.transfer.use_gpus = transfer.use_gpus;
  inner.transfer.gpus.waits_on_device = transfer.gpus_wait_on_device;
  inner.transfer.gpus.arena.reserve_bytes = transfer.gpu_reserve_bytes;
  inner.transfer.gpus.arena.reserve_segment_bytes = transfer.gpu_reserve_segment_bytes;
  inner.transfer.gpus.pinned.reserve_bytes = transfer.pinned_reserve_bytes;
  inner.transfer.gpus.staging.is_reserved = transfer.gpu_reserve_staging;
  inner.transfer.gpus.ipc_idle_timeout = transfer.gpu_mapping_idle_timeout;
  inner.transfer.listen = std::move(transfer.listen_address);
  inner.transfer.advertise = std::move(transfer.advertised_address);
  inner.transfer.unix_socket = transfer.use_unix_sockets;
  inner.transfer.require_transport = std::move(transfer.required_transport);
  inner.transfer.eager = transfer.use_eager_sends;
  inner.transfer.checksum = transfer.use_checksums;
  inner.transfer.token = std::move(transfer.job_token);
  if (transfer.max_host_bytes > 0) inner.transfer.arena.budget_bytes = transfer.max_host_bytes;
  inner.transfer.spin = transfer.polling_time;
  inner.transfer.connect_timeout = transfer.connect_timeout;
  inner.transfer.flush_timeout = transfer.acknowledgement_timeout;
  return inner;
}

absl::Status CheckGpu(const Device& device) {
  if (device.kind == DeviceKind::kGpu) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(ToString(device), " is not a GPU"));
}

}  // namespace

class Node::Impl final {
 public:
  explicit Impl(std::unique_ptr<ferry::Node> inner)
      : node(std::move(inner)),
        topology(ApiAccess::Wrap(node->topology())),
        coordinator(ApiAccess::Wrap(node->agent())),
        lookup(std::make_unique<PeerLookup>(*node)) {}
  ~Impl() {
    // Its receives end first: the node's destructor waits for transfers only. Their callbacks, and
    // those of the transfers, may begin further ones, so that the object stays.
    lookup->Stop();
    if (!has_left) node->Leave().IgnoreError();
    node.reset();
  }

  std::unique_ptr<ferry::Node> node;
  const Topology topology;
  const std::unique_ptr<CoordinatorClient> coordinator;
  const std::unique_ptr<PeerLookup> lookup;
  std::atomic<bool> has_left{false};
};

Node::Node(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Node::~Node() = default;

absl::StatusOr<std::unique_ptr<Node>> Node::Join(NodeOptions options) {
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<ferry::Node> inner,
                         ferry::Node::Join(Convert(std::move(options))));
  return std::unique_ptr<Node>(new Node(std::make_unique<Impl>(std::move(inner))));
}

int Node::rank() const { return impl_->node->node_id(); }
int Node::num_nodes() const { return impl_->node->num_nodes(); }
const Topology& Node::topology() const { return impl_->topology; }
CoordinatorClient& Node::coordinator() { return *impl_->coordinator; }

absl::StatusOr<Tensor> Node::Allocate(Device device, DataType dtype,
                                      absl::Span<const int64_t> shape) {
  FERRY_ASSIGN_OR_RETURN(const Shape extents, Shape::Create(shape));
  FERRY_ASSIGN_OR_RETURN(
      ferry::Tensor tensor,
      impl_->node->Allocate(ToString(device), static_cast<ferry::DataType>(dtype), extents));
  return ApiAccess::Wrap(std::move(tensor));
}

absl::Status Node::PrepareGpu(Device device) {
  FERRY_RETURN_IF_ERROR(CheckGpu(device));
  FERRY_ASSIGN_OR_RETURN(Gpus* const gpus, impl_->node->UsableGpus());
  return gpus->Get(device.index).status();
}

absl::StatusOr<std::unique_ptr<MemoryRegistration>> Node::RegisterMemory(const Tensor& tensor) {
  FERRY_ASSIGN_OR_RETURN(Gpus* const gpus, impl_->node->UsableGpus());
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<cuda::ExportRegistration> registration,
                         gpus->RegisterMemory(ApiAccess::Unwrap(tensor)));
  return ApiAccess::Wrap(std::move(registration));
}

absl::StatusOr<std::string> Node::ExplainPath(const TensorId& id, size_t bytes, bool is_allocated) {
  if (id.destination != rank()) {
    return absl::InvalidArgumentError(absl::StrCat(ToString(id), " is received by node ",
                                                   id.destination, ", and this is node ", rank()));
  }
  const absl::StatusOr<PathExplanation> path =
      impl_->node->PathFrom(id.source, bytes, is_allocated, ApiAccess::Unwrap(id.source_device),
                            ApiAccess::Unwrap(id.destination_device));
  if (!path.ok()) return InPublicTerms(path.status());
  return Explain(*path);
}

absl::StatusOr<std::unique_ptr<ExternalNcclScope>> Node::BeginExternalNccl(Device device,
                                                                           absl::Duration timeout) {
  FERRY_RETURN_IF_ERROR(CheckGpu(device));
  FERRY_ASSIGN_OR_RETURN(Gpus* const gpus, impl_->node->UsableGpus());
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<ferry::ExternalNcclScope> scope,
                         ferry::ExternalNcclScope::Begin(*gpus, device.index, timeout));
  return ApiAccess::Wrap(std::move(scope));
}

absl::StatusOr<Step> Node::OpenStep(int64_t step_id) {
  FERRY_ASSIGN_OR_RETURN(ferry::Step step, impl_->node->OpenStep(step_id));
  return ApiAccess::Wrap(
      std::make_shared<ApiAccess::StepImpl>(*impl_->node, *impl_->lookup, std::move(step)));
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> Node::Communicator(
    const std::vector<int>& devices, NcclCommunicatorOptions options) {
  CommunicatorOptions inner;
  inner.timeout = options.timeout;
  inner.max_ctas = options.max_ctas;
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<ferry::NcclCommunicator> communicator,
                         impl_->node->Communicator(devices, options.own_device, std::move(inner)));
  return ApiAccess::Wrap(std::move(communicator), *impl_->node->transfer_engine().gpus());
}

absl::Status Node::Leave() {
  const absl::Status status = impl_->node->Leave();
  if (status.ok()) impl_->has_left = true;
  return status;
}

absl::Status Node::ShutdownCollective() {
  const absl::Status status = impl_->node->Shutdown();
  if (status.ok()) impl_->has_left = true;
  return status;
}

void Node::FailJob(const absl::Status& reason) {
  impl_->node->FailJob(reason.ok() ? absl::UnknownError("FailJob was called without a reason")
                                   : reason);
  impl_->has_left = true;
}

}  // namespace ferry::v0

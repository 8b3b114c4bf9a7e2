// SPDX-License-Identifier: Apache-2.0
// Registry of peers and devices, and message routing.
#include "transport/nccl/nccl_node.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "net/event_loop.h"
#include "transport/nccl/nccl_descriptor.h"
#include "transport/nccl/put_message.h"

namespace ferry {
namespace {

constexpr absl::Duration kStopTimeout = absl::Seconds(5);

absl::Status WhyNot(const TransportEnvironment& environment, const NcclTransportOptions& options,
                    const NcclJob& job) {
  if (environment.gpus == nullptr) {
    return absl::FailedPreconditionError("this process uses no GPUs");
  }
  if (options.memory_bytes == 0) {
    return absl::FailedPreconditionError("it is switched off (--nccl-memory-bytes=0)");
  }
  if (job.library == nullptr) {
    return absl::FailedPreconditionError(job.library_unavailable_reason);
  }
  if (!job.store || !job.device_of) {
    return absl::FailedPreconditionError("this process has no store in which ranks could meet");
  }
  return absl::OkStatus();
}

uint64_t PutBytesOf(const Endpoint& endpoint) {
  const TransportDescription* const found = endpoint.FindTransport("nccl");
  if (found == nullptr) return 0;
  const absl::StatusOr<NcclPeerDescriptor> peer = DecodeNcclPeer(found->descriptor);
  return peer.ok() ? peer->put_bytes : 0;
}

}  // namespace

NcclPeer::NcclPeer(NcclNode& node, Endpoint endpoint)
    : node_(node), endpoint_(std::move(endpoint)), put_bytes_(PutBytesOf(endpoint_)) {}

void NcclPeer::SetChannel(ControlMessageSender channel) {
  absl::MutexLock lock(&mu_);
  if (!channel_) channel_ = std::move(channel);
}

void NcclPeer::Send(const BatchAgreementMessage& message) {
  SendBytes(EncodeGrantMessage(message));
}

void NcclPeer::Send(const PutMessage& message) { SendBytes(EncodePutMessage(message)); }

void NcclPeer::SendBytes(absl::string_view bytes) {
  ControlMessageSender channel;
  {
    absl::MutexLock lock(&mu_);
    if (!failed_.ok()) return;
    channel = channel_;
  }
  // A control channel that rejects a message is closing, and Fail follows.
  if (channel) channel(bytes, {}).IgnoreError();
}

absl::Status NcclPeer::OnMessage(absl::string_view body) {
  if (IsPutMessage(body)) {
    FERRY_ASSIGN_OR_RETURN(const PutMessage message, DecodePutMessage(body));
    return OnMessage(message);
  }
  FERRY_ASSIGN_OR_RETURN(const BatchAgreementMessage message, DecodeGrantMessage(body));
  return OnMessage(message);
}

absl::Status NcclPeer::OnMessage(const PutMessage& message) {
  const std::optional<PeerDevice> from = device(message.from());
  if (!from.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(message), " has come from ", Describe(endpoint_.peer)));
  }
  if (has_failed()) return absl::OkStatus();
  const std::shared_ptr<NcclDevice> to = node_.Find(message.to());
  return to == nullptr ? absl::OkStatus() : to->OnPutMessage(message, *from);
}

absl::Status NcclPeer::OnMessage(const BatchAgreementMessage& message) {
  const std::optional<PeerDevice> from = device(message.from);
  if (!from.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(message), " has come from ", Describe(endpoint_.peer)));
  }
  if (has_failed()) return absl::OkStatus();
  const std::shared_ptr<NcclDevice> to = node_.DeviceById(message.to);
  // Null if its transfer descriptor has found that NCCL cannot be used here.
  return to == nullptr ? absl::OkStatus() : to->OnMessage(message, *from);
}

void NcclPeer::Fail(const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    if (!failed_.ok()) return;
    failed_ = why;
    channel_ = nullptr;
  }
  node_.OnPeerFailed(*this, why);
}

bool NcclPeer::has_failed() const {
  absl::MutexLock lock(&mu_);
  return !failed_.ok();
}

std::optional<PeerDevice> NcclPeer::device(int ordinal) const {
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= endpoint_.gpus.size()) return std::nullopt;
  const std::optional<DeviceId> id = node_.common().job.device_of(endpoint_.peer.node_id, ordinal);
  if (!id.has_value()) return std::nullopt;
  return PeerDevice{*id, endpoint_.peer.incarnation,
                    absl::StrCat("gpu:", ordinal, " of ", Describe(endpoint_.peer)), put_bytes_};
}

std::optional<PeerDevice> NcclPeer::device(DeviceId id) const {
  for (size_t ordinal = 0; ordinal < endpoint_.gpus.size(); ++ordinal) {
    std::optional<PeerDevice> each = device(static_cast<int>(ordinal));
    if (each.has_value() && each->id == id) return each;
  }
  return std::nullopt;
}

NcclNode::NcclNode(const TransportEnvironment& environment, const NcclTransportOptions& options,
                   const NcclJob& job, BatchRunner::LearnCallback learn)
    : node_id_(environment.node_id), status_(WhyNot(environment, options, job)) {
  common_ = {.job = job,
             .options = options,
             .gpus = environment.gpus,
             .loop = environment.loop,
             .threads = &threads_,
             .incarnation = environment.incarnation,
             .send =
                 [this](const BatchAgreementMessage& message) {
                   if (const auto peer = RouteTo(message.to)) peer->Send(message);
                 },
             .send_put =
                 [this](const PutMessage& message) {
                   if (const auto peer = RouteTo(message.to())) peer->Send(message);
                 },
             .learn = std::move(learn)};
}

NcclNode::~NcclNode() {
  // Callers interested in the status have called Stop before.
  Stop(absl::CancelledError("this process is leaving")).IgnoreError();
}

std::shared_ptr<NcclPeer> NcclNode::Peer(const Endpoint& endpoint) {
  {
    absl::MutexLock lock(&mu_);
    const auto found = peers_.find(endpoint.peer.node_id);
    if (found != peers_.end() && !found->second->has_failed() &&
        found->second->endpoint().peer.incarnation == endpoint.peer.incarnation) {
      return found->second;
    }
  }
  return NewPeer(endpoint);
}

std::shared_ptr<NcclPeer> NcclNode::NewPeer(const Endpoint& endpoint) {
  std::shared_ptr<NcclPeer> replaced;
  std::shared_ptr<NcclPeer> peer;
  std::vector<std::shared_ptr<NcclDevice>> devices;
  {
    absl::MutexLock lock(&mu_);
    std::shared_ptr<NcclPeer>& known = peers_[endpoint.peer.node_id];
    replaced = std::move(known);
    known = peer = std::make_shared<NcclPeer>(*this, endpoint);
    if (!status_.ok()) return peer;
    for (const auto& [ordinal, device] : devices_) devices.push_back(device);
  }
  // Transfers started with the predecessor do not continue.
  if (replaced != nullptr)
    replaced->Fail(absl::UnavailableError("another connection to it has replaced this one"));
  for (size_t ordinal = 0; ordinal < endpoint.gpus.size(); ++ordinal) {
    const std::optional<PeerDevice> theirs = peer->device(static_cast<int>(ordinal));
    if (!theirs.has_value()) continue;
    for (const auto& device : devices) device->PeerJoined(*theirs);
    absl::MutexLock lock(&mu_);
    routes_[theirs->id] = peer;
  }
  return peer;
}

void NcclNode::OnPeerFailed(const NcclPeer& peer, const absl::Status& why) {
  std::vector<std::shared_ptr<NcclDevice>> devices;
  std::vector<DeviceId> theirs;
  {
    absl::MutexLock lock(&mu_);
    for (auto it = routes_.begin(); it != routes_.end();) {
      if (it->second.get() != &peer) {
        ++it;
        continue;
      }
      theirs.push_back(it->first);
      routes_.erase(it++);
    }
    for (const auto& [ordinal, device] : devices_) devices.push_back(device);
  }
  for (const auto& device : devices) {
    for (const DeviceId id : theirs) {
      if (const auto failed = peer.device(id); failed.has_value()) device->PeerFailed(*failed, why);
    }
  }
}

std::shared_ptr<NcclPeer> NcclNode::RouteTo(DeviceId device) const {
  absl::MutexLock lock(&mu_);
  const auto found = routes_.find(device);
  return found == routes_.end() ? nullptr : found->second;
}

absl::StatusOr<std::shared_ptr<NcclDevice>> NcclNode::Device(int ordinal) {
  if (!status_.ok()) return status_;
  absl::MutexLock lock(&mu_);
  if (!stopped_.ok()) return stopped_;
  std::shared_ptr<NcclDevice>& device = devices_[ordinal];
  if (device == nullptr) {
    const std::optional<DeviceId> id = common_.job.device_of(node_id_, ordinal);
    if (!id.has_value()) {
      devices_.erase(ordinal);
      return absl::FailedPreconditionError(
          absl::StrCat("the job's topology does not have this node's gpu:", ordinal));
    }
    absl::StatusOr<std::shared_ptr<NcclDevice>> made = NcclDevice::Create(common_, ordinal, *id);
    if (!made.ok()) {
      devices_.erase(ordinal);
      return made.status();
    }
    device = *std::move(made);
  }
  return device;
}

std::shared_ptr<NcclDevice> NcclNode::DeviceById(DeviceId device) {
  if (auto found = Find(device); found != nullptr || !status_.ok()) return found;
  for (int ordinal = 0; ordinal < common_.gpus->count(); ++ordinal) {
    if (common_.job.device_of(node_id_, ordinal) != device) continue;
    absl::StatusOr<std::shared_ptr<NcclDevice>> made = Device(ordinal);
    return made.ok() ? *std::move(made) : nullptr;
  }
  return nullptr;
}

std::shared_ptr<NcclDevice> NcclNode::FindLocked(DeviceId device) const {
  for (const auto& [ordinal, each] : devices_) {
    if (each->self() == device) return each;
  }
  return nullptr;
}

std::shared_ptr<NcclDevice> NcclNode::Find(DeviceId device) const {
  absl::MutexLock lock(&mu_);
  return FindLocked(device);
}

absl::Status NcclNode::Refusal(DeviceId own, int ordinal, DeviceId peer) const {
  std::shared_ptr<NcclDevice> device;
  {
    absl::MutexLock lock(&mu_);
    device = FindLocked(own);
    // Under the lock, which is also held during creation.
    if (device == nullptr) return common_.gpus->nccl_arbiter(ordinal)->CheckKeyed();
  }
  return device->Refusal(peer);
}

std::shared_ptr<NcclDevice> NcclNode::FindOrdinal(int ordinal) const {
  absl::MutexLock lock(&mu_);
  const auto found = devices_.find(ordinal);
  return found == devices_.end() ? nullptr : found->second;
}

absl::Status NcclNode::Stop(const absl::Status& why) {
  std::vector<std::shared_ptr<NcclDevice>> devices;
  {
    absl::MutexLock lock(&mu_);
    if (!stopped_.ok()) return absl::OkStatus();
    stopped_ = why;
    for (const auto& [ordinal, device] : devices_) devices.push_back(device);
  }
  for (const auto& device : devices) device->Stop(why, kStopTimeout);
  const absl::Duration timeout = common_.options.abort_timeout;
  const std::vector<std::string> stuck = threads_.StopWithin(timeout);
  if (stuck.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("NCCL has not released ", stuck.size(), " communicators within ",
                   absl::FormatDuration(timeout), " of being told to"));
}

}  // namespace ferry

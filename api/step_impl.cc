// SPDX-License-Identifier: Apache-2.0
// A receive: its key, its transfer, and the completion of its bytes on a GPU.
#include "api/step_impl.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

#include "api/api_access.h"
#include "api/public_terms.h"
#include "api/transfer_error.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "gpu/cuda/ready_tensor.h"
#include "rendezvous/value.h"
#include "topology/global_topology.h"

namespace ferry::v0 {
namespace {

// How far a receive has got, of the rendezvous's text, which names it too.
std::string PhaseOf(absl::string_view text, const TensorId& id) {
  const std::string plain = InPublicTerms(text);
  for (const std::string& before : {absl::StrCat(ToString(id), ": "), std::string(" in time: ")}) {
    if (const size_t found = plain.find(before); found != std::string::npos) {
      return plain.substr(found + before.size());
    }
  }
  return plain;
}

// INVALID_ARGUMENT unless the job's node `rank`, if there is one, has `device`.
absl::Status CheckDevice(const ferry::GlobalTopology& topology, int rank, const Device& device) {
  if (device == Device::Host()) return absl::OkStatus();
  const std::optional<int> index = topology.NodeIndex(rank);
  if (!index.has_value()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const ferry::Device& each : topology.nodes()[static_cast<size_t>(*index)].devices) {
    const bool is_gpu = each.kind == ferry::DeviceKind::kGpu;
    const Device there =
        is_gpu ? Device::Gpu(each.ordinal) : Device{DeviceKind::kHost, each.ordinal};
    if (there == device) return absl::OkStatus();
    names.push_back(ToString(there));
  }
  return absl::InvalidArgumentError(absl::StrCat("node ", rank, " has no device ",
                                                 Quoted(ToString(device)), "; it has ",
                                                 absl::StrJoin(names, ", ")));
}

// INVALID_ARGUMENT if a device of `id` does not exist.
absl::Status CheckDevices(const ferry::GlobalTopology& topology, const TensorId& id) {
  FERRY_RETURN_IF_ERROR(CheckDevice(topology, id.source, id.source_device));
  return CheckDevice(topology, id.destination, id.destination_device);
}

}  // namespace

absl::StatusOr<RendezvousKey> Step::Impl::KeyToSend(const TensorId& id, const Tensor& tensor) {
  // Only the address of another node could not be known yet.
  if (id.source != node_.node_id()) {
    return absl::InvalidArgumentError(absl::StrCat(ToString(id), " is sent by node ", id.source,
                                                   ", and this is node ", node_.node_id()));
  }
  FERRY_RETURN_IF_ERROR(CheckDevices(node_.topology(), id));
  if (tensor.is_valid() && tensor.device() != id.source_device) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToString(id), " is sent from ", ToString(id.source_device),
                     ", and the tensor is in the memory of ", ToString(tensor.device())));
  }
  return node_.Key(id.name, id.source, id.destination, ToString(id.source_device),
                   ToString(id.destination_device));
}

absl::Status Step::Impl::Send(const TensorId& id, const Tensor& tensor,
                              const SendOptions& options) {
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, KeyToSend(id, tensor));
  return ExplainStatus(options.stream == nullptr
                           ? step_.Send(key, ApiAccess::Unwrap(tensor))
                           : step_.Send(key, ApiAccess::Unwrap(tensor), options.stream),
                       id.source);
}

std::vector<absl::Status> Step::Impl::SendMany(absl::Span<const SendOperation> operations) {
  std::vector<absl::Status> statuses(operations.size());
  std::vector<RendezvousKey> keys;
  std::vector<ferry::SendItem> items;
  // The operation of each item.
  std::vector<size_t> which;
  keys.reserve(operations.size());
  items.reserve(operations.size());
  which.reserve(operations.size());
  const auto send = [&] {
    step_.SendMany(absl::MakeSpan(items));
    for (size_t i = 0; i < items.size(); ++i) {
      statuses[which[i]] = ExplainStatus(items[i].status, operations[which[i]].id.source);
    }
    keys.clear();
    items.clear();
    which.clear();
  };
  for (size_t i = 0; i < operations.size(); ++i) {
    const SendOperation& each = operations[i];
    if (each.options.stream != nullptr || !each.tensor.is_valid()) {
      send();
      statuses[i] = Send(each.id, each.tensor, each.options);
      continue;
    }
    absl::StatusOr<RendezvousKey> key = KeyToSend(each.id, each.tensor);
    if (!key.ok()) {
      statuses[i] = key.status();
      continue;
    }
    keys.push_back(*std::move(key));
    items.push_back({.key = &keys.back(), .tensor = ApiAccess::Unwrap(each.tensor)});
    which.push_back(i);
  }
  send();
  return statuses;
}

absl::Status Step::Impl::Close(absl::Duration timeout) {
  const absl::Status status = step_.Close(timeout);
  EndLookups();
  return ExplainStatus(status, node_.node_id());
}

void Step::Impl::Abort(const absl::Status& reason) {
  step_.Abort(reason);
  EndLookups();
}

void Step::Impl::EndLookups() {
  const absl::Status ended = step_.ended();
  if (!ended.ok()) lookup_.EndStep(step_.id(), ExplainStatus(ended, node_.node_id()));
}

absl::Status Step::Impl::ExplainStatus(const absl::Status& status, int source) const {
  if (status.ok()) return status;
  const absl::Status plain = InPublicTerms(WithoutDerivedMark(status));
  if (!absl::IsAborted(plain)) return plain;
  absl::string_view text = plain.message();
  if (text == "Shutdown") return absl::CancelledError("the node was destroyed");
  if (text == absl::StrCat("Cleanup ", step_.id())) {
    return absl::AbortedError(absl::StrCat("step ", step_.id(), " was closed on this node"));
  }
  if (!absl::ConsumePrefix(&text, "Shutdown;")) return plain;
  return absl::AbortedError(absl::StrCat("node ", source, " has left the job;", text));
}

std::vector<std::shared_ptr<RequestImpl>> Step::Impl::RecvMany(
    absl::Span<const RecvOperation> operations) {
  ReceiveBatch batch;
  batch.keys.reserve(operations.size());
  batch.items.reserve(operations.size());
  std::vector<std::shared_ptr<RequestImpl>> requests;
  requests.reserve(operations.size());
  for (const RecvOperation& each : operations) {
    requests.push_back(Recv(each.id, each.options, &batch));
  }
  step_.RecvManyAsync(absl::MakeSpan(batch.items));
  return requests;
}

std::shared_ptr<RequestImpl> Step::Impl::Recv(const TensorId& id, RecvOptions options,
                                              ReceiveBatch* batch) {
  const absl::Time deadline = SteadyClock().Now() + options.timeout;
  auto request = std::make_shared<RequestImpl>(node_.transfer_engine().loop(), step_.id(), id);
  if (id.destination != node_.node_id()) {
    request->Complete(absl::InvalidArgumentError(absl::StrCat(ToString(id), " is received by node ",
                                                              id.destination, ", and this is node ",
                                                              node_.node_id())));
    return request;
  }
  if (options.into.is_valid() && options.into.dtype() == DataType::kString) {
    request->Complete(absl::InvalidArgumentError("strings cannot be received into a tensor"));
    return request;
  }
  if (absl::Status status = CheckDevices(node_.topology(), id); !status.ok()) {
    request->Complete(std::move(status));
    return request;
  }
  if (options.into.is_valid() && options.into.device() != id.destination_device) {
    request->Complete(absl::InvalidArgumentError(absl::StrCat(
        ToString(id), " is for ", ToString(id.destination_device), ", and the tensor to receive ",
        "into is in the memory of ", ToString(options.into.device()))));
    return request;
  }
  if (options.stream != nullptr && id.destination_device.kind != DeviceKind::kGpu) {
    request->Complete(absl::InvalidArgumentError(
        absl::StrCat(ToString(id), " is for host memory, and no stream of a GPU reads it")));
    return request;
  }
  if (options.cancellation.has_value()) request->Follow(*options.cancellation);
  if (auto key = lookup_.KeyIfKnown(id); key.has_value()) {
    if (key->ok()) {
      Start(**key, request, std::move(options), deadline, batch);
    } else {
      request->Complete(key->status());
    }
    return request;
  }
  const bool waits_for_address =
      lookup_.MakeKey(step_.id(), id, request, deadline,
                      [self = shared_from_this(), request, options = std::move(options),
                       deadline](absl::StatusOr<RendezvousKey> key) mutable {
                        if (!key.ok()) return request->Complete(key.status());
                        self->Start(*key, request, std::move(options), deadline, /*batch=*/nullptr);
                      });
  // It may have been closed before, or meanwhile.
  if (waits_for_address) EndLookups();
  return request;
}

void Step::Impl::Start(const RendezvousKey& key, const std::shared_ptr<RequestImpl>& request,
                       RecvOptions options, absl::Time deadline, ReceiveBatch* batch) {
  if (!request->StartTransfer(
          [self = shared_from_this(), key] { return self->step_.ReceivePhase(key); })) {
    return;
  }
  RecvArgs args;
  args.cancellation = &request->cancellation();
  args.deadline = deadline;
  args.destination = ApiAccess::Unwrap(options.into);
  request->transfer() = {shared_from_this(), std::move(options), deadline};
  RecvCallback done = [request](absl::Status status, Received received) {
    RequestImpl::Transfer transfer = *std::exchange(request->transfer(), std::nullopt);
    transfer.step->Finish(std::move(status), std::move(received), request, transfer);
  };
  if (batch == nullptr) return step_.RecvAsync(key, std::move(args), std::move(done));
  batch->keys.push_back(key);
  batch->items.push_back(
      {.key = &batch->keys.back(), .args = std::move(args), .done = std::move(done)});
}

void Step::Impl::Finish(absl::Status status, Received received,
                        const std::shared_ptr<RequestImpl>& request,
                        const RequestImpl::Transfer& transfer) {
  const RecvOptions& options = transfer.options;
  if (absl::IsDeadlineExceeded(status)) {
    status = TransferTimeout(ShortDuration(options.timeout), request->what(),
                             PhaseOf(status.message(), request->id()));
  }
  if (!status.ok()) return request->Complete(ExplainStatus(status, request->id().source));
  if (received.is_dead) {
    return request->Complete(absl::FailedPreconditionError(
        absl::StrCat("in ", request->what(), ": the sender has reported that there is no tensor")));
  }
  const std::shared_ptr<const cuda::ReadyEvent> ready = cuda::ReadyOf(received.tensor);
  Tensor tensor = options.into.is_valid() ? options.into : ApiAccess::Wrap(received.tensor);
  if (ready == nullptr) return request->Complete(std::move(tensor), received.path);
  const absl::StatusOr<Gpu*> gpu =
      node_.transfer_engine().gpus()->Get(received.tensor.location().ordinal);
  if (!gpu.ok()) return request->Complete(gpu.status());
  if (options.stream != nullptr) {
    status = ready->EnqueueWait(*(*gpu)->device, options.stream);
    if (!status.ok()) return request->Complete(status);
    return request->Complete(std::move(tensor), received.path);
  }
  status = (*gpu)->executor->Watch({.event = ready,
                                    .deadline = transfer.deadline,
                                    .what = absl::StrCat("the copy of ", request->what()),
                                    .keep = cuda::MemoryOf(received.tensor)},
                                   [request, tensor, path = received.path](absl::Status done) {
                                     if (!done.ok()) return request->Complete(std::move(done));
                                     request->Complete(tensor, path);
                                   });
  if (!status.ok()) return request->Complete(status);
  request->LeaveTransfer([device = ApiAccess::Wrap(received.tensor.location())] {
    return absl::StrCat("work of ", ToString(device), " has not written its bytes yet");
  });
}

}  // namespace ferry::v0

// SPDX-License-Identifier: Apache-2.0
// Maps transfer descriptors to transfers of a GPU.
#include "transport/nccl/nccl_endpoints.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "gpu/cuda/ready_tensor.h"
#include "tensor/host_arena.h"

namespace ferry {
namespace {

// The obstacle may be specific to this attempt, so a retry is allowed.
absl::Status AsAborted(const absl::Status& status) {
  if (absl::IsCancelled(status) || absl::IsInvalidArgument(status) || absl::IsAborted(status)) {
    return status;
  }
  return absl::AbortedError(status.message());
}

}  // namespace

void NcclSender::Expose(uint64_t id, const Tensor& tensor, const TensorLocation& to,
                        ExposeCallback done) {
  absl::Status refused;
  {
    absl::MutexLock lock(&mu_);
    refused = aborted_;
    if (refused.ok()) exposed_.emplace(id, Exposed{});
  }
  if (!refused.ok()) return std::move(done)(refused);
  const std::shared_ptr<const cuda::ReadyEvent> ready = cuda::ReadyOf(tensor);
  if (ready == nullptr) return ExposeReady(id, tensor, to, std::move(done));
  node_.common().gpus->Use(
      tensor.location().ordinal, [self = shared_from_this(), id, tensor, to, ready,
                                  done = std::move(done)](absl::StatusOr<Gpu*> gpu) mutable {
        absl::Status status = gpu.status();
        // Moved to the heap: Watch destroys its function even when it fails.
        auto callback = std::make_shared<ExposeCallback>(std::move(done));
        if (status.ok()) {
          status = (*gpu)->nccl->Watch(
              {.event = ready, .what = "a tensor that is to be sent", .keep = tensor.buffer()},
              [self, id, tensor, to, callback](absl::Status status) {
                if (!status.ok()) {
                  self->Release(id);
                  return std::move(*callback)(status);
                }
                self->ExposeReady(id, tensor, to, std::move(*callback));
              });
        }
        if (status.ok()) return;
        self->Release(id);
        std::move (*callback)(status);
      });
}

void NcclSender::ExposeReady(uint64_t id, const Tensor& tensor, const TensorLocation& to,
                             ExposeCallback done) {
  const absl::StatusOr<std::shared_ptr<NcclDevice>> device =
      node_.Device(tensor.location().ordinal);
  const std::optional<PeerDevice> peer = peer_->device(to.ordinal);
  absl::Status refused = device.status();
  if (refused.ok() && !peer.has_value()) {
    refused = absl::FailedPreconditionError(absl::StrCat(
        Describe(peer_->endpoint().peer), " has no ", ToString(to), " that the job knows"));
  }
  TransferKey key;
  if (refused.ok()) {
    key = {(*device)->self(), peer->id, node_.NewTransferId()};
    absl::MutexLock lock(&mu_);
    refused = aborted_;
    const auto found = exposed_.find(id);
    if (refused.ok() && found == exposed_.end()) {
      refused = absl::CancelledError("the receiver has cancelled the transfer");
    }
    if (refused.ok()) found->second = {*device, key};
  }
  if (!refused.ok()) {
    absl::MutexLock lock(&mu_);
    exposed_.erase(id);
  }
  if (!refused.ok()) return std::move(done)(refused);
  NcclTransfer transfer;
  transfer.key = key;
  transfer.peer = *peer;
  transfer.memory = tensor;
  auto callback = std::make_shared<ExposeCallback>(std::move(done));
  // Once the receiver has the descriptor, it reports the outcome.
  transfer.done = [callback](absl::Status status) {
    ExposeCallback done = std::exchange(*callback, nullptr);
    if (done) std::move(done)(AsAborted(status));
  };
  (*device)->Send(std::move(transfer), [key, callback](std::optional<BatchAgreementMessage> grant,
                                                       std::optional<CommunicatorName> offer) {
    TransferDescriptor descriptor;
    descriptor.body = EncodeNcclDescriptor({key, std::move(grant), offer});
    ExposeCallback done = std::exchange(*callback, nullptr);
    std::move(done)(std::move(descriptor));
  });
}

void NcclSender::Release(uint64_t id) {
  Exposed exposed;
  {
    absl::MutexLock lock(&mu_);
    const auto found = exposed_.find(id);
    if (found == exposed_.end()) return;
    exposed = std::move(found->second);
    exposed_.erase(found);
  }
  if (exposed.device == nullptr) return;
  exposed.device->Cancel(exposed.key,
                         absl::CancelledError("the receiver has cancelled the transfer"));
}

void NcclSender::Abort(const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    if (!aborted_.ok()) return;
    aborted_ = why;
    exposed_.clear();
  }
  peer_->Fail(why);
}

absl::StatusOr<NcclDescriptor> NcclReceiver::Check(const TensorHeader& header,
                                                   absl::string_view body) const {
  FERRY_ASSIGN_OR_RETURN(NcclDescriptor descriptor, DecodeNcclDescriptor(body));
  FERRY_ASSIGN_OR_RETURN(const std::shared_ptr<NcclDevice> device,
                         node_.Device(header.location.ordinal));
  if (header.location.space != MemorySpace::kCuda || descriptor.key.destination != device->self() ||
      !peer_->owns(descriptor.key.source)) {
    return absl::InvalidArgumentError(
        "a descriptor of nccl's for something else than was asked for");
  }
  return descriptor;
}

absl::Status NcclReceiver::FindMemory(uint64_t id, const TensorHeader& header, Tensor& memory) {
  {
    absl::MutexLock lock(&mu_);
    if (const auto got = allocated_.find(id); got != allocated_.end()) {
      memory = std::move(got->second);
      allocated_.erase(got);
      if (memory.bytes() == header.bytes) return absl::OkStatus();
      memory = Tensor();
    }
  }
  struct Found {
    absl::Mutex mu;
    bool is_late ABSL_GUARDED_BY(mu) = false;
    std::shared_ptr<Buffer> buffer ABSL_GUARDED_BY(mu);
  };
  auto found = std::make_shared<Found>();
  node_.common().gpus->Use(header.location.ordinal,
                           [found, bytes = header.bytes](absl::StatusOr<Gpu*> gpu) {
                             absl::MutexLock lock(&found->mu);
                             if (found->is_late || !gpu.ok()) return;
                             found->buffer = (*gpu)->arena->TryAllocate(bytes);
                           });
  absl::MutexLock lock(&found->mu);
  found->is_late = true;
  if (found->buffer == nullptr) return absl::OkStatus();
  FERRY_ASSIGN_OR_RETURN(memory,
                         Tensor::Create(header.dtype, header.shape, std::move(found->buffer)));
  return absl::OkStatus();
}

void NcclReceiver::GetMemory(uint64_t id, const TensorHeader& header) {
  const auto get = [self = shared_from_this(), id, header](Gpu& gpu) {
    absl::StatusOr<Tensor> tensor = [&]() -> absl::StatusOr<Tensor> {
      FERRY_ASSIGN_OR_RETURN(std::shared_ptr<cuda::DeviceBuffer> buffer,
                             gpu.arena->Allocate(header.bytes));
      return Tensor::Create(header.dtype, header.shape, std::move(buffer));
    }();
    if (!tensor.ok()) return self->End(id, tensor.status());
    {
      absl::MutexLock lock(&self->mu_);
      if (self->fetching_.contains(id)) self->allocated_[id] = *std::move(tensor);
    }
    self->End(id, absl::AbortedError("there is memory for it now"));
  };
  node_.common().gpus->Use(header.location.ordinal,
                           [self = shared_from_this(), id, get](absl::StatusOr<Gpu*> gpu) {
                             absl::Status status = gpu.status();
                             // Not on the executor: allocation may wait for work queued there.
                             if (status.ok())
                               status = (*gpu)->side->Post([get, gpu = *gpu] { get(*gpu); });
                             if (!status.ok()) self->End(id, status);
                           });
}

absl::string_view NcclReceiver::PathOf(const TensorHeader& header, absl::string_view body,
                                       const Tensor& destination) const {
  const absl::StatusOr<NcclDescriptor> descriptor = Check(header, body);
  if (!descriptor.ok() || !descriptor->offer.has_value() || destination.is_valid()) return {};
  const std::shared_ptr<NcclDevice> device = *node_.Device(header.location.ordinal);
  return device->HasRoom(descriptor->key.source, *descriptor->offer, header.bytes) ? "nccl, put"
                                                                                   : "";
}

bool NcclReceiver::FetchPut(uint64_t id, const TensorHeader& header,
                            const NcclDescriptor& descriptor,
                            const std::shared_ptr<NcclDevice>& device, FetchCallback& done) {
  {
    absl::MutexLock lock(&mu_);
    if (!aborted_.ok() || fetching_.contains(id) || allocated_.contains(id)) return false;
    fetching_[id] = {device, descriptor.key, std::move(done)};
  }
  NcclTransfer transfer;
  transfer.key = descriptor.key;
  transfer.peer = *peer_->device(descriptor.key.source);
  transfer.put_bytes = header.bytes;
  transfer.done = [self = shared_from_this(), id](const absl::Status& status) {
    self->End(id, status);
  };
  transfer.deliver = [self = shared_from_this(), id, header](std::shared_ptr<Buffer> buffer) {
    self->End(id, Tensor::Create(header.dtype, header.shape, std::move(buffer)));
  };
  if (device->ReceivePut(transfer, *descriptor.offer)) return true;
  absl::MutexLock lock(&mu_);
  const auto found = fetching_.find(id);
  // Otherwise it was cancelled, and has ended.
  if (found == fetching_.end()) return true;
  done = std::move(found->second.done);
  fetching_.erase(found);
  return false;
}

void NcclReceiver::Fetch(uint64_t id, const TensorHeader& header, absl::string_view body,
                         absl::Span<UniqueFd> descriptors, const Tensor& destination,
                         FetchCallback done) {
  absl::StatusOr<NcclDescriptor> descriptor = Check(header, body);
  absl::Status refused = descriptor.status();
  Tensor memory = destination;
  std::shared_ptr<NcclDevice> device;
  if (refused.ok()) device = *node_.Device(header.location.ordinal);
  if (refused.ok() && descriptor->offer.has_value() && !memory.is_valid() &&
      FetchPut(id, header, *descriptor, device, done)) {
    return;
  }
  if (refused.ok() && !memory.is_valid()) refused = FindMemory(id, header, memory);
  if (refused.ok()) {
    absl::MutexLock lock(&mu_);
    refused = aborted_;
    if (refused.ok() && fetching_.contains(id)) {
      refused = absl::InvalidArgumentError(absl::StrCat("transfer ", id, " for a second time"));
    }
    if (refused.ok()) {
      fetching_[id] = {memory.is_valid() ? device : nullptr, descriptor->key, std::move(done)};
    }
  }
  if (!refused.ok()) {
    Answer(body);
    // Moved only if it is not refused. NOLINTNEXTLINE(bugprone-use-after-move)
    return std::move(done)(AsAborted(refused), false);
  }
  const PeerDevice peer = *peer_->device(descriptor->key.source);
  if (!memory.is_valid()) {
    // If the source grants it, it is told that the transfer is not known here; then it is asked
    // again.
    device->Prepare(peer);
    Answer(body);
    return GetMemory(id, header);
  }
  NcclTransfer transfer;
  transfer.key = descriptor->key;
  transfer.peer = peer;
  transfer.memory = memory;
  transfer.done = [self = shared_from_this(), id, tensor = memory](absl::Status status) {
    if (status.ok()) return self->End(id, tensor);
    self->End(id, status);
  };
  device->Receive(std::move(transfer), std::move(descriptor->grant), descriptor->offer.has_value());
}

void NcclReceiver::End(uint64_t id, absl::StatusOr<Tensor> tensor) {
  FetchCallback done;
  {
    absl::MutexLock lock(&mu_);
    const auto found = fetching_.find(id);
    if (found == fetching_.end()) return;
    done = std::move(found->second.done);
    fetching_.erase(found);
  }
  if (!tensor.ok()) return std::move(done)(AsAborted(tensor.status()), false);
  std::move(done)(std::move(tensor), false);
}

void NcclReceiver::Cancel(uint64_t id) {
  Fetching fetching;
  {
    absl::MutexLock lock(&mu_);
    allocated_.erase(id);
    const auto found = fetching_.find(id);
    if (found == fetching_.end()) return;
    fetching = std::move(found->second);
    fetching_.erase(found);
  }
  if (fetching.device != nullptr) {
    fetching.device->Cancel(fetching.key,
                            absl::CancelledError("the receiver has cancelled the transfer"));
  }
  std::move(fetching.done)(absl::CancelledError("cancelled"), false);
}

void NcclReceiver::Discard(uint64_t id, const TensorHeader& header, absl::string_view body,
                           absl::Span<UniqueFd> descriptors) {
  {
    absl::MutexLock lock(&mu_);
    allocated_.erase(id);
  }
  Answer(body);
}

void NcclReceiver::Answer(absl::string_view body) {
  const absl::StatusOr<NcclDescriptor> descriptor = DecodeNcclDescriptor(body);
  if (descriptor.ok() && descriptor->grant.has_value())
    peer_->OnMessage(*descriptor->grant).IgnoreError();
}

void NcclReceiver::Abort(const absl::Status& why) {
  absl::flat_hash_map<uint64_t, Fetching> fetching;
  {
    absl::MutexLock lock(&mu_);
    if (!aborted_.ok()) return;
    aborted_ = why;
    fetching.swap(fetching_);
    allocated_.clear();
  }
  for (auto& [id, each] : fetching) std::move(each.done)(why, false);
  peer_->Fail(why);
}

}  // namespace ferry

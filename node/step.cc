// SPDX-License-Identifier: Apache-2.0
// Step: blocking receives on the caller's thread, delivery to the destination, flush and close.
#include "node/step.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/bounded_text.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/recycled.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "gpu/cuda/ready_tensor.h"
#include "node/transfer_engine.h"
#include "rendezvous/blocking_recv.h"
#include "rendezvous/host_memory.h"

namespace ferry {
namespace {

constexpr size_t kNamedKeys = 3;
// Polling interval for a device copy.
constexpr absl::Duration kCopyLook = absl::Microseconds(20);

// Moves the received tensor to the receiver's destination, unless the transport has delivered it
// there.
void DeliverReceived(TransferEngine& engine, const RendezvousKey& key, absl::Status status,
                     Received received, RecvCallback done) {
  if (!status.ok() || received.is_dead) {
    return std::move(done)(std::move(status), std::move(received));
  }
  const Tensor wanted = received.recv_args.destination.tensor();
  Tensor& tensor = received.tensor;
  const TensorLocation location = wanted.is_valid()                     ? wanted.location()
                                  : IsForHostMemory(received.recv_args) ? TensorLocation()
                                                                        : LocationOf(key.dst());
  const bool is_there = wanted.is_valid() ? cuda::MemoryOf(tensor) == wanted.buffer() &&
                                                tensor.data() == wanted.data()
                                          : tensor.location() == location;
  if (is_there) return std::move(done)(absl::OkStatus(), std::move(received));
  if (tensor.is_on_host() && location.space == MemorySpace::kHost) {
    if (tensor.dtype() == wanted.dtype() && tensor.bytes() == wanted.bytes() &&
        IsFixedSize(wanted.dtype())) {
      Tensor into = wanted;
      CopyBytes(into.mutable_data(), tensor.data(), tensor.bytes());
      tensor = std::move(into);
    } else {
      status = absl::InvalidArgumentError(absl::StrCat("what came is ", ToString(tensor),
                                                       ", and the receiver's buffer is for ",
                                                       ToString(wanted)));
    }
    return std::move(done)(std::move(status), std::move(received));
  }
  if (engine.gpus() == nullptr) {
    return std::move(done)(absl::FailedPreconditionError(absl::StrCat(
                               BoundedName(key.text()), " is for ", ToString(location),
                               ", and this process uses no GPUs: ", engine.why_no_gpus())),
                           std::move(received));
  }
  MoveRequest move;
  move.tensor = tensor;
  move.to = location;
  move.destination = wanted;
  move.deadline = received.recv_args.deadline;
  move.what = BoundedName(key.text());
  engine.gpus()->Move(std::move(move), [received = std::move(received), done = std::move(done)](
                                           absl::StatusOr<Tensor> moved) mutable {
    if (!moved.ok()) return std::move(done)(moved.status(), std::move(received));
    received.tensor = *std::move(moved);
    std::move(done)(absl::OkStatus(), std::move(received));
  });
}

// A receive that DeliverReceived completes.
struct DeliverCall {
  static void* operator new(size_t bytes) { return AllocateRecycled(bytes); }
  static void operator delete(void* call, size_t bytes) { FreeRecycled(call, bytes); }

  DeliverCall(TransferEngine& engine, const RendezvousKey& key, RecvCallback&& done)
      : engine(engine), key(key), done(std::move(done)) {}

  TransferEngine& engine;
  const RendezvousKey key;
  RecvCallback done;
};

}  // namespace

Tensor Step::HoldRegistered(const RendezvousKey& key, Tensor tensor) const {
  if (tensor.is_on_host() || engine_->gpus() == nullptr) return tensor;
  return engine_->gpus()->exports()->Hold(std::move(tensor), [&] {
    return absl::StrCat("step ", id(), " for ", BoundedName(key.text()));
  });
}

absl::Status Step::Send(const RendezvousKey& key, Tensor tensor) {
  if (!tensor.is_valid()) return absl::InvalidArgumentError("there is no tensor to be sent");
  return rendezvous_->Send(key, HoldRegistered(key, std::move(tensor)));
}

absl::Status Step::Send(const RendezvousKey& key, const Tensor& tensor, cuda::Stream stream) {
  if (!tensor.is_valid() || tensor.is_on_host()) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToString(tensor), " is not in a GPU's memory, and no stream writes it"));
  }
  if (engine_->gpus() == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("this process uses no GPUs: ", engine_->why_no_gpus()));
  }
  FERRY_ASSIGN_OR_RETURN(Gpu* const gpu, engine_->gpus()->Get(tensor.location().ordinal));
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<const cuda::ReadyEvent> ready,
                         cuda::ReadyEvent::Record(*gpu->events, stream));
  // Also if it is never received: the stream writes it until then. Memory that counts no uses is
  // the program's, which knows its streams.
  cuda::AddUse(tensor, ready);
  return rendezvous_->Send(key, HoldRegistered(key, cuda::WithReady(tensor, std::move(ready))));
}

void Step::SendMany(absl::Span<SendItem> items) {
  const auto is_valid = [](const SendItem& item) { return item.tensor.is_valid(); };
  if (std::all_of(items.begin(), items.end(), is_valid)) {
    for (SendItem& item : items) {
      item.tensor = HoldRegistered(*item.key, std::exchange(item.tensor, Tensor()));
    }
    return rendezvous_->SendMany(items);
  }
  for (SendItem& item : items) item.status = Send(*item.key, std::move(item.tensor));
}

absl::Status Step::SendDead(const RendezvousKey& key) {
  return rendezvous_->Send(key, Tensor(), /*is_dead=*/true);
}

bool Step::NeedsDelivery(const RendezvousKey& key, const RecvArgs& args) const {
  // The common case: it arrives in host memory, and any host memory will do.
  return args.destination.is_valid() || engine_->gpus() != nullptr || key.dst().type == "GPU";
}

void Step::HoldDestination(const RendezvousKey& key, RecvArgs& args) const {
  if (args.destination.is_valid() && !args.destination->is_on_host()) {
    args.destination = HoldRegistered(key, *args.destination);
  }
}

RecvCallback Step::Delivery(const RendezvousKey& key, RecvCallback&& done) {
  return [call = std::make_unique<DeliverCall>(*engine_, key, std::move(done))](
             absl::Status status, Received received) mutable {
    DeliverReceived(call->engine, call->key, std::move(status), std::move(received),
                    std::move(call->done));
  };
}

void Step::RecvAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done) {
  // The callback may destroy this object.
  TransferEngine& engine = *engine_;
  const absl::Time deadline = args.deadline;
  const bool needs_delivery = NeedsDelivery(key, args);
  HoldDestination(key, args);
  rendezvous_->RecvAsync(key, std::move(args),
                         needs_delivery ? Delivery(key, std::move(done)) : std::move(done));
  engine.NoteDeadline(deadline);
}

void Step::RecvManyAsync(absl::Span<RecvItem> items) {
  // As in RecvAsync.
  TransferEngine& engine = *engine_;
  absl::Time deadline = absl::InfiniteFuture();
  for (RecvItem& item : items) {
    deadline = std::min(deadline, item.args.deadline);
    HoldDestination(*item.key, item.args);
    if (!NeedsDelivery(*item.key, item.args)) continue;
    item.done = Delivery(*item.key, std::move(item.done));
  }
  rendezvous_->RecvMany(items);
  engine.NoteDeadline(deadline);
}

absl::StatusOr<Received> Step::RecvValue(const RendezvousKey& key, absl::Duration timeout,
                                         RecvArgs args) {
  EventLoop& loop = engine_->loop();
  if (loop.IsOnLoop()) {
    return absl::FailedPreconditionError(
        "a callback must not wait: it runs on the event loop, which would have to receive the "
        "tensor. Use RecvAsync there");
  }
  // The wait below enforces the deadline.
  args.deadline = absl::InfiniteFuture();
  return RecvBlocking(
      std::move(args), timeout, &loop,
      [&](RecvArgs own, RecvCallback done) { RecvAsync(key, std::move(own), std::move(done)); },
      [&] {
        return absl::StrCat(" in step ", id(), " for ", BoundedName(key.text()), ": ",
                            ReceivePhase(key));
      });
}

std::string Step::ReceivePhase(const RendezvousKey& key) const {
  std::string phase = "not sent yet";
  rendezvous_->ForEachPending(absl::ZeroDuration(), [&](const PendingStepOp& op) {
    const bool is_it = op.key == key && op.side != PendingStepOp::Side::kSend;
    if (is_it && !op.phase.empty()) phase = op.phase;
  });
  return phase;
}

absl::StatusOr<Tensor> Step::Recv(const RendezvousKey& key, absl::Duration timeout) {
  FERRY_ASSIGN_OR_RETURN(Received received, RecvValue(key, timeout));
  if (received.is_dead) {
    return absl::FailedPreconditionError(
        absl::StrCat(BoundedName(key.text()), " was sent dead: there is no tensor"));
  }
  return std::move(received.tensor);
}

absl::StatusOr<Tensor> Step::Recv(const RendezvousKey& key, absl::Duration timeout,
                                  cuda::Stream stream) {
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, Recv(key, timeout));
  if (tensor.is_on_host()) {
    return absl::InvalidArgumentError(absl::StrCat(
        BoundedName(key.text()), " is for host memory, and no stream of a GPU reads it"));
  }
  if (const auto ready = cuda::ReadyOf(tensor); ready != nullptr) {
    FERRY_ASSIGN_OR_RETURN(Gpu* const gpu, engine_->gpus()->Get(tensor.location().ordinal));
    FERRY_RETURN_IF_ERROR(ready->EnqueueWait(*gpu->device, stream));
  }
  return tensor;
}

absl::Status Step::RecvInto(const RendezvousKey& key, Tensor destination, absl::Duration timeout) {
  if (!destination.is_valid() || !IsFixedSize(destination.dtype())) {
    return absl::InvalidArgumentError("no buffer to receive into");
  }
  RecvArgs args;
  args.destination = std::move(destination);
  const absl::Time give_up = SteadyClock().Now() + timeout;
  FERRY_ASSIGN_OR_RETURN(const Received received, RecvValue(key, timeout, std::move(args)));
  if (const auto ready = cuda::ReadyOf(received.tensor); ready != nullptr) {
    while (true) {
      FERRY_ASSIGN_OR_RETURN(const bool is_done, ready->IsDone());
      if (is_done) break;
      if (SteadyClock().Now() >= give_up) {
        return absl::DeadlineExceededError(absl::StrCat(
            "waited ", ShortDuration(timeout), " in step ", id(), " for ", BoundedName(key.text()),
            ": its copy on ", ToString(received.tensor.location()),
            " has not ended, and still writes to the buffer"));
      }
      absl::SleepFor(kCopyLook);
    }
  }
  if (!received.is_dead) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(BoundedName(key.text()), " was sent dead: there is no tensor"));
}

bool Step::AwaitSends(absl::Time deadline, std::string& left) {
  EventLoop& loop = engine_->loop();
  OutstandingOperations& operations = rendezvous_->operations();
  const OutstandingOperations::Waiter waiter(operations);
  rendezvous_->TrackQueuedSends();
  rendezvous_->StartFlush();
  const absl::Cleanup end_flush = [this] { rendezvous_->EndFlush(); };
  const auto is_idle = [&operations] { return operations.count() == 0; };
  // Waiting on the loop's thread would block the events waited for.
  const bool is_taken = loop.IsOnLoop() ? is_idle() : loop.WaitUntil(is_idle, deadline);
  // A tensor that was fetched may still be rejected.
  if (is_taken) {
    engine_->AwaitAcknowledgements(*rendezvous_, deadline);
  } else {
    left = DescribeOutstanding();
  }
  return is_taken;
}

absl::Status Step::Flush(absl::Duration timeout) {
  std::string left;
  if (AwaitSends(SteadyClock().Now() + timeout, left)) return rendezvous_->send_status();
  if (engine_->loop().IsOnLoop()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "step ", id(), " was flushed inside a callback, which must not wait, and ", left));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("waited ", ShortDuration(timeout), " to flush step ", id(), ", and ", left));
}

absl::Status Step::Close(absl::Duration timeout) {
  std::string left;
  const bool is_taken = AwaitSends(SteadyClock().Now() + timeout, left);
  engine_->Cleanup(id());
  // Sends that can no longer be received are not outstanding, but count as failed.
  if (is_taken) return rendezvous_->send_status();
  if (engine_->loop().IsOnLoop()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "step ", id(), " was closed inside a callback, which must not wait, and ", left));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("step ", id(), " was closed after ", ShortDuration(timeout), ", and ", left));
}

std::string Step::DescribeOutstanding() const {
  std::vector<std::string> named;
  size_t count = 0;
  const auto see = [&](const PendingStepOp& op) {
    const bool is_under_way = op.side == PendingStepOp::Side::kTransfer;
    if (is_under_way ? op.step_id != id() || op.outlives_sender
                     : op.side != PendingStepOp::Side::kSend) {
      return;
    }
    if (++count > kNamedKeys) return;
    named.push_back(absl::StrCat(
        BoundedName(op.key.text()), " (",
        is_under_way ? op.phase
                     : absl::StrCat("node ", op.key.dst().task.task, " has not asked for it"),
        ")"));
  };
  rendezvous_->ForEachPending(absl::ZeroDuration(), see);
  engine_->ForEachTransfer(absl::ZeroDuration(), see);
  if (count == 0) return "the answer to a request for its values is not on its way yet";
  const ConnectionManagerStats channels = engine_->connection_stats();
  return absl::StrCat(
      count, count == 1 ? " tensor that was sent has" : " tensors that were sent have",
      " not been received: ", BoundedList(named, kNamedKeys, count),
      // The missing receiver may be among them.
      channels.refused == 0 ? ""
                            : absl::StrCat("; connections refused here: ", channels.refused,
                                           ", the last: ", channels.last_refusal));
}

void Step::Abort(const absl::Status& why) {
  FERRY_LOG_DEBUG(kRendezvous, "step aborted: step={}: {}", id(), why);
  rendezvous_->StartAbort(why);
  // Transfers in flight are no longer reported once the step is forgotten.
  if (rendezvous_->operations().count() > 0) {
    engine_->ForEachTransfer(absl::ZeroDuration(), [&](const PendingStepOp& op) {
      if (op.step_id == id() && !op.outlives_sender) rendezvous_->RecordSendFailure(op.key, why);
    });
    // Fetched just now, and not listed yet.
    rendezvous_->RecordSendFailure(why);
  }
  engine_->Cleanup(id());
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// Copies of tensors between the host and the GPUs of one process.
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "gpu/cuda/ready_tensor.h"
#include "gpu/cuda/stream_retention.h"
#include "gpu/gpus.h"
#include "tensor/check_values.h"

namespace ferry {
namespace {

using cuda::ReadyEvent;
using cuda::ScopedCurrent;

cuda::DevicePointer PointerOf(const Tensor& tensor) { return cuda::AsDevicePointer(tensor.data()); }

absl::Status CheckDestination(const MoveRequest& request) {
  const Tensor& into = request.destination;
  if (!into.is_valid()) return absl::OkStatus();
  if (into.dtype() == request.tensor.dtype() && into.bytes() == request.tensor.bytes() &&
      into.location() == request.to) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("what came is ", ToString(request.tensor), " for ", ToString(request.to),
                   ", and the receiver's buffer is for ", ToString(into), " in memory of ",
                   ToString(into.location())));
}

}  // namespace

void Gpus::Move(MoveRequest request, MoveCallback done) {
  if (!IsFixedSize(request.tensor.dtype())) {
    return std::move(done)(absl::InvalidArgumentError(
        absl::StrCat(DataTypeName(request.tensor.dtype()), " cannot be in a GPU's memory")));
  }
  if (absl::Status status = CheckDestination(request); !status.ok()) {
    return std::move(done)(std::move(status));
  }
  const TensorLocation from = request.tensor.location();
  const TensorLocation to = request.to;
  if (from == to && !request.destination.is_valid()) {
    return std::move(done)(std::move(request.tensor));
  }
  if (from.space == MemorySpace::kHost && to.space == MemorySpace::kHost) {
    CopyBytes(request.destination.mutable_data(), request.tensor.data(), request.tensor.bytes());
    return std::move(done)(std::move(request.destination));
  }
  if (to.space == MemorySpace::kHost) {
    return Use(from.ordinal, [this, request = std::move(request),
                              done = std::move(done)](absl::StatusOr<Gpu*> gpu) mutable {
      if (!gpu.ok()) return std::move(done)(gpu.status());
      ToHost(**gpu, std::move(request), std::move(done));
    });
  }
  if (from.space == MemorySpace::kHost) {
    return Use(to.ordinal, [this, request = std::move(request),
                            done = std::move(done)](absl::StatusOr<Gpu*> gpu) mutable {
      if (!gpu.ok()) return std::move(done)(gpu.status());
      ToDevice(**gpu, std::move(request), std::move(done));
    });
  }
  Use(from.ordinal, [this, request = std::move(request),
                     done = std::move(done)](absl::StatusOr<Gpu*> source) mutable {
    if (!source.ok()) return std::move(done)(source.status());
    const int ordinal = request.to.ordinal;
    Use(ordinal, [this, source = *source, request = std::move(request),
                  done = std::move(done)](absl::StatusOr<Gpu*> sink) mutable {
      if (!sink.ok()) return std::move(done)(sink.status());
      Across(*source, **sink, std::move(request), std::move(done));
    });
  });
}

absl::StatusOr<Tensor> Gpus::MoveAndWait(MoveRequest request) {
  struct Waiter {
    absl::Mutex mu;
    bool is_done ABSL_GUARDED_BY(mu) = false;
    absl::StatusOr<Tensor> tensor ABSL_GUARDED_BY(mu);
  };
  auto waiter = std::make_shared<Waiter>();
  // Opening the device has its own timeout.
  const absl::Time give_up = request.deadline + kOpenTimeout;
  const std::string what = request.what;
  Move(std::move(request), [waiter](absl::StatusOr<Tensor> tensor) {
    absl::MutexLock lock(&waiter->mu);
    waiter->tensor = std::move(tensor);
    waiter->is_done = true;
  });
  absl::MutexLock lock(&waiter->mu);
  const absl::Duration timeout = give_up - SteadyClock().Now();
  if (waiter->mu.AwaitWithTimeout(absl::Condition(&waiter->is_done), timeout)) {
    return waiter->tensor;
  }
  return absl::DeadlineExceededError(absl::StrCat("the copy of ", what, " has not ended"));
}

absl::StatusOr<Tensor> Gpus::DestinationIn(Gpu& gpu, const MoveRequest& request) {
  if (request.destination.is_valid()) return request.destination;
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<cuda::DeviceBuffer> buffer,
                         gpu.arena->Allocate(request.tensor.bytes()));
  return Tensor::Create(request.tensor.dtype(), request.tensor.shape(), std::move(buffer));
}

void Gpus::ToDevice(Gpu& gpu, MoveRequest request, MoveCallback done) {
  // Allocation may wait for quiet, so it runs on the device's thread.
  struct Job {
    MoveRequest request;
    MoveCallback done;
  };
  auto job = std::make_shared<Job>(Job{std::move(request), std::move(done)});
  const absl::Status posted = gpu.executor->Post([this, &gpu, job] {
    absl::StatusOr<Tensor> into = DestinationIn(gpu, job->request);
    if (!into.ok() || into->bytes() == 0) return std::move(job->done)(std::move(into));
    cuda::HostCopy copy;
    copy.device = PointerOf(*into);
    copy.host = job->request.tensor.mutable_data();
    copy.bytes = into->bytes();
    copy.deadline = job->request.deadline;
    copy.what = job->request.what;
    copy.keep = std::make_shared<std::pair<Tensor, Tensor>>(job->request.tensor, *into);
    const absl::Status started =
        gpu.stager->CopyToDevice(std::move(copy), [job, into = *into](absl::Status status) {
          if (!status.ok()) return std::move(job->done)(std::move(status));
          std::move(job->done)(into);
        });
    if (!started.ok()) std::move(job->done)(started);
  });
  if (!posted.ok()) std::move(job->done)(posted);
}

void Gpus::ToHost(Gpu& gpu, MoveRequest request, MoveCallback done) {
  absl::StatusOr<Tensor> into = request.destination;
  if (!into->is_valid()) {
    absl::StatusOr<std::shared_ptr<Buffer>> buffer = host_(request.tensor.bytes());
    into = buffer.ok()
               ? Tensor::Create(request.tensor.dtype(), request.tensor.shape(), *std::move(buffer))
               : buffer.status();
  }
  if (!into.ok() || into->bytes() == 0) return std::move(done)(std::move(into));
  cuda::HostCopy copy;
  copy.device = PointerOf(request.tensor);
  copy.host = into->mutable_data();
  copy.bytes = into->bytes();
  copy.after = cuda::ReadyOf(request.tensor);
  copy.deadline = request.deadline;
  copy.what = request.what;
  copy.keep = std::make_shared<std::pair<Tensor, Tensor>>(request.tensor, *into);
  auto shared = std::make_shared<MoveCallback>(std::move(done));
  const absl::Status started = gpu.stager->CopyToHost(
      std::move(copy), [shared, into = *into, what = std::move(request.what)](absl::Status status) {
        // The values could not be checked before, and may come from another process.
        if (status.ok()) status = CheckValues(into);
        if (absl::IsInvalidArgument(status)) {
          status = absl::InvalidArgumentError(absl::StrCat(
              what, ", copied out of a GPU's memory, is not a valid tensor: ", status.message()));
        }
        if (!status.ok()) return std::move(*shared)(std::move(status));
        std::move (*shared)(into);
      });
  if (!started.ok()) std::move (*shared)(started);
}

void Gpus::Across(Gpu& from, Gpu& to, MoveRequest request, MoveCallback done) {
  const int source = from.device->ordinal();
  const int sink = to.device->ordinal();
  // The source's engine does the copy: its memory may be imported from another process, mapped for
  // it alone.
  if (source != sink && !peers_.CanAccess(source, sink)) {
    // Staged through the host.
    MoveRequest first = request;
    first.to = {};
    first.destination = Tensor();
    return ToHost(from, std::move(first),
                  [this, &to, request = std::move(request),
                   done = std::move(done)](absl::StatusOr<Tensor> tensor) mutable {
                    if (!tensor.ok()) return std::move(done)(tensor.status());
                    request.tensor = *std::move(tensor);
                    ToDevice(to, std::move(request), std::move(done));
                  });
  }
  struct Job {
    MoveRequest request;
    MoveCallback done;
  };
  auto job = std::make_shared<Job>(Job{std::move(request), std::move(done)});
  const auto copy = [this, &from, &to, job](const absl::Status& is_ready) {
    if (!is_ready.ok()) return std::move(job->done)(is_ready);
    std::move(job->done)(CopyAcross(from, to, job->request));
  };
  auto ready = cuda::ReadyOf(job->request.tensor);
  absl::Status posted;
  if (ready == nullptr || options_.waits_on_device) {
    posted = from.executor->Post([copy] { copy(absl::OkStatus()); });
  } else {
    posted = from.executor->Watch({.event = std::move(ready),
                                   .deadline = job->request.deadline,
                                   .what = job->request.what,
                                   .keep = std::make_shared<Tensor>(job->request.tensor)},
                                  copy);
  }
  if (posted.ok()) return;
  // Its producer may not have written it yet.
  if (auto incomplete = cuda::ReadyOf(job->request.tensor); incomplete != nullptr) {
    from.executor
        ->Watch({.event = std::move(incomplete),
                 .what = job->request.what,
                 .keep = std::make_shared<Tensor>(job->request.tensor)},
                [](absl::Status) {})
        .IgnoreError();
  }
  std::move(job->done)(posted);
}

absl::StatusOr<Tensor> Gpus::CopyAcross(Gpu& from, Gpu& to, const MoveRequest& request) {
  const Tensor& tensor = request.tensor;
  FERRY_ASSIGN_OR_RETURN(Tensor into, DestinationIn(to, request));
  if (into.bytes() == 0) return into;
  // Memory of the arenas is mapped for all peers, where the driver allows it.
  const bool is_mapped = tensor.buffer()->arena() == from.arena.get() &&
                         into.buffer()->arena() == to.arena.get() &&
                         from.arena->IsMappedFor(to.device->ordinal()) &&
                         to.arena->IsMappedFor(from.device->ordinal());
  if (&from != &to && !is_mapped) peer_access_->Enable(*from.device, *to.device);
  // Before anything is enqueued: the stream may wait for the program, which may wait for this
  // thread.
  FERRY_ASSIGN_OR_RETURN(cuda::CudaEvent event, from.events->Take());
  const ScopedCurrent current(*from.device);
  cuda::Stream stream = from.copies->get();
  const auto ready = cuda::ReadyOf(tensor);
  FERRY_ASSIGN_OR_RETURN(const bool is_ready, ready == nullptr ? true : ready->IsDone());
  if (!is_ready) {
    // Copies that are ready must not queue behind it. If all wait streams are busy, it queues
    // behind another copy that waits.
    stream = from.waits->TakeIdleOrAny();
    FERRY_RETURN_IF_ERROR(ready->EnqueueWait(*from.device, stream));
  }
  if (&from == &to) {
    FERRY_RETURN_IF_ERROR(from.device->Check(
        from.device->table().copy_async(PointerOf(into), PointerOf(tensor), into.bytes(), stream),
        "cuMemcpyAsync"));
  } else {
    FERRY_RETURN_IF_ERROR(from.device->Check(
        from.device->table().copy_peer_async(PointerOf(into), to.device->context(),
                                             PointerOf(tensor), from.device->context(),
                                             into.bytes(), stream),
        "cuMemcpyPeerAsync"));
  }
  // Both memories are kept until the copy is done.
  auto memory = std::make_shared<std::pair<Tensor, Tensor>>(tensor, into);
  absl::StatusOr<std::shared_ptr<const ReadyEvent>> copied =
      ReadyEvent::Record(std::move(event), stream);
  if (!copied.ok()) {
    cuda::RetainUntilIdle(*from.executor, stream, request.what, std::move(memory));
    return copied.status();
  }
  FERRY_RETURN_IF_ERROR(from.executor->Watch(
      {.event = *copied, .what = request.what, .keep = std::move(memory)}, [](absl::Status) {}));
  return cuda::WithReady(into, *std::move(copied));
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// PutMemory: the pool of one GPU's one-sided transfers, and its windows.
#include "transport/nccl/put_memory.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry {
namespace {

// Source: ncclPutSignal of 2.30.3 refuses older drivers; those before may lack what it uses.
constexpr int kMinDriver = 12050;

}  // namespace

PutMemory::PutMemory(Gpu& gpu, uint64_t bytes, std::shared_ptr<cuda::DeviceBuffer> buffer)
    : device_(gpu.device), bytes_(bytes), buffer_(std::move(buffer)) {}

absl::StatusOr<std::shared_ptr<PutMemory>> PutMemory::Create(Gpu& gpu, uint64_t bytes) {
  if (const int version = gpu.device->api().version(); version < kMinDriver) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL's one-sided transfers need a driver of CUDA 12.5, this one is of ",
                     cuda::VersionText(version)));
  }
  if (gpu.arena->export_by() != cuda::ExportBy::kPosixFd) {
    return absl::FailedPreconditionError(absl::StrCat(
        "NCCL's one-sided transfers need memory that is exported as file descriptors: ",
        gpu.arena->fallback_reason()));
  }
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<cuda::DeviceBuffer> buffer, gpu.arena->Allocate(bytes));
  // NCCL registers the whole allocation, and takes offsets of all ranks from its beginning: a put
  // into a pool that begins elsewhere would write to the memory before it.
  if (const uint64_t offset = gpu.arena->Describe(*buffer).offset; offset != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the pool for one-sided transfers would begin at byte ", offset,
        " of a segment of the arena, and NCCL needs it at the beginning: give it more bytes than "
        "a segment has (--nccl-put-bytes)"));
  }
  return absl::WrapUnique(new PutMemory(gpu, bytes, std::move(buffer)));
}

std::shared_ptr<Buffer> PutMemory::BufferAt(uint64_t offset, uint64_t bytes) {
  return std::make_shared<cuda::DeviceBuffer>(
      cuda::AsDevicePointer(at(offset)), bytes, device_->ordinal(),
      [self = shared_from_this(), offset](cuda::DeviceBuffer::Uses uses) {
        absl::MutexLock lock(&self->mu_);
        self->returned_.push_back({offset, std::move(uses)});
      });
}

std::vector<PutMemory::FreedBlock> PutMemory::TakeFreed() {
  absl::MutexLock lock(&mu_);
  std::vector<FreedBlock> freed;
  for (auto it = returned_.begin(); it != returned_.end();) {
    FreedBlock block = {it->offset};
    bool is_in_use = false;
    for (const std::shared_ptr<const cuda::ReadyEvent>& use : it->uses) {
      const absl::StatusOr<bool> is_done = use->IsDone();
      block.status.Update(is_done.status());
      is_in_use = is_in_use || (is_done.ok() && !*is_done);
    }
    if (is_in_use) {
      ++it;
      continue;
    }
    freed.push_back(std::move(block));
    it = returned_.erase(it);
  }
  return freed;
}

std::vector<BatchStep> RegisterSteps(std::shared_ptr<PutWindow> window) {
  const auto ask_and_register = [window](const NcclCommunicator& communicator,
                                         cuda::Stream) -> absl::Status {
    const nccl::NcclApi& api = communicator.api();
    nccl::Communicator const comm = communicator.get();
    nccl::CommunicatorProperties properties;
    FERRY_RETURN_IF_ERROR(api.Check(api.table().query_properties(comm, &properties),
                                    "ncclCommQueryProperties", comm));
    if (!properties.has_host_rma) return absl::OkStatus();
    return api.Check(
        api.table().register_window(comm, window->memory->at(0), window->memory->bytes(),
                                    &window->window, nccl::kWindowSymmetric),
        "ncclCommWindowRegister", comm);
  };
  const auto signal = [window](const NcclCommunicator& communicator,
                               cuda::Stream stream) -> absl::Status {
    if (window->window == nullptr) return absl::OkStatus();
    const nccl::NcclApi& api = communicator.api();
    nccl::Communicator const comm = communicator.get();
    return api.Check(api.table().signal(1 - communicator.rank(), 0, 0, 0, comm, stream),
                     "ncclSignal", comm);
  };
  return {ask_and_register, signal};
}

RunnableBatch PutBatch(std::shared_ptr<NcclCommunicator> communicator,
                       std::shared_ptr<PutWindow> window, const Tensor& source,
                       const IssuePut& put) {
  RunnableBatch batch;
  batch.communicator = std::move(communicator);
  batch.stream = window->stream;
  batch.memory = {source};
  batch.steps.push_back([window = std::move(window), from = source.data(), put](
                            const NcclCommunicator& with, cuda::Stream stream) -> absl::Status {
    const PutMemory& memory = *window->memory;
    const cuda::CudaDevice& device = *memory.device();
    FERRY_RETURN_IF_ERROR(
        device.Check(device.table().copy_async(cuda::AsDevicePointer(memory.at(put.source_offset)),
                                               cuda::AsDevicePointer(from), put.bytes, stream),
                     "cuMemcpyAsync"));
    const nccl::NcclApi& api = with.api();
    return api.Check(api.table().put_signal(memory.at(put.source_offset), put.bytes, nccl::kUint8,
                                            1 - with.rank(), window->window, put.destination_offset,
                                            0, 0, 0, with.get(), stream),
                     "ncclPutSignal", with.get());
  });
  return batch;
}

RunnableBatch WaitBatch(std::shared_ptr<NcclCommunicator> communicator,
                        std::shared_ptr<PutWindow> window, const IssueWait& issue) {
  RunnableBatch batch;
  batch.communicator = std::move(communicator);
  batch.stream = window->stream;
  batch.pool_bytes = issue.bytes;
  batch.steps.push_back([window = std::move(window), signals = issue.signals](
                            const NcclCommunicator& with, cuda::Stream stream) -> absl::Status {
    const nccl::NcclApi& api = with.api();
    nccl::WaitSignalDescriptor wait = {.count = signals, .peer = 1 - with.rank()};
    return api.Check(api.table().wait_signal(1, &wait, with.get(), stream), "ncclWaitSignal",
                     with.get());
  });
  return batch;
}

}  // namespace ferry

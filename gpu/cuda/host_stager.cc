// SPDX-License-Identifier: Apache-2.0
// HostStager: slices, their events, and pinned memory.
#include "gpu/cuda/host_stager.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "gpu/cuda/memory_kind.h"

namespace ferry::cuda {

struct HostStager::Shared {
  DeviceExecutor& executor;
  const std::shared_ptr<EventPool> events;
  const std::shared_ptr<PinnedPool> pinned;
  CopyPool* const copier;
  const HostStagerOptions options;
  // One stream for each direction of the bus.
  const std::unique_ptr<CudaStream> to_host;
  const std::unique_ptr<CudaStream> to_device;
};

// One copy. Used on the executor's thread only; kept alive by the slices in flight.
class HostStager::Transfer final : public std::enable_shared_from_this<HostStager::Transfer> {
 public:
  Transfer(std::shared_ptr<Shared> shared, HostCopy copy, DoneCallback done, bool to_host)
      : shared_(std::move(shared)),
        copy_(std::move(copy)),
        done_(std::move(done)),
        to_host_(to_host),
        stream_((to_host ? *shared_->to_host : *shared_->to_device).get()) {}

  void Start() {
    if (copy_.after == nullptr) return Begin();
    const absl::StatusOr<bool> is_ready = copy_.after->IsDone();
    if (!is_ready.ok()) return End(is_ready.status());
    if (*is_ready) return Begin();
    // The host waits, not the stream, where copies that are ready would queue behind it.
    DeviceExecutor::Watched watched;
    watched.event = copy_.after;
    watched.deadline = copy_.deadline;
    watched.what = copy_.what;
    watched.keep = copy_.keep;
    const absl::Status status = shared_->executor.Watch(
        std::move(watched), [self = shared_from_this()](absl::Status ready) {
          if (!ready.ok()) return self->End(std::move(ready));
          self->Begin();
        });
    if (!status.ok()) End(status);
  }

 private:
  // Held by a slice in flight until the device has completed it.
  struct Slice {
    std::shared_ptr<Buffer> pinned;  // null if the host memory itself is pinned
    std::shared_ptr<const void> keep;
  };

  const CudaDevice& device() const { return *shared_->executor.device(); }

  absl::Status Prepare() {
    FERRY_ASSIGN_OR_RETURN(const MemoryInfo info, Classify(device(), copy_.host, copy_.bytes));
    is_direct_ = info.kind == MemoryKind::kPinnedHost;
    return absl::OkStatus();
  }

  void Begin() {
    const absl::Status status = Prepare();
    if (!status.ok()) return End(status);
    Issue();
  }

  void Issue() {
    while (done_ && issued_ < copy_.bytes && in_flight_ < shared_->options.slices_in_flight) {
      const absl::Status status = IssueSlice();
      if (!status.ok()) return End(status);
    }
  }

  absl::Status IssueSlice() {
    const size_t offset = issued_;
    const size_t bytes = std::min(shared_->options.slice_bytes, copy_.bytes - offset);
    Slice slice;
    slice.keep = copy_.keep;
    char* host = static_cast<char*>(copy_.host) + offset;
    if (!is_direct_) {
      FERRY_ASSIGN_OR_RETURN(slice.pinned, shared_->pinned->Allocate(bytes));
      if (!to_host_) CopyOnHost(slice.pinned->data(), host, bytes);
      host = static_cast<char*>(slice.pinned->data());
    }
    const CudaTable& table = device().table();
    const DevicePointer at = copy_.device + offset;
    FERRY_RETURN_IF_ERROR(to_host_
                              ? device().Check(table.copy_to_host_async(host, at, bytes, stream_),
                                               "cuMemcpyDtoHAsync")
                              : device().Check(table.copy_to_device_async(at, host, bytes, stream_),
                                               "cuMemcpyHtoDAsync"));
    FERRY_ASSIGN_OR_RETURN(auto event, ReadyEvent::RecordOrWait(*shared_->events, stream_));
    issued_ += bytes;
    ++in_flight_;
    DeviceExecutor::Watched watched;
    watched.event = std::move(event);
    watched.deadline = copy_.deadline;
    watched.what = copy_.what;
    std::shared_ptr<Buffer> pinned = slice.pinned;
    watched.keep = std::make_shared<const Slice>(std::move(slice));
    return shared_->executor.Watch(
        std::move(watched), [self = shared_from_this(), offset, bytes,
                             pinned = std::move(pinned)](absl::Status status) mutable {
          self->OnSlice(std::move(status), {offset, bytes, std::move(pinned)});
        });
  }

  // A slice that the device has completed.
  struct Ended {
    size_t offset = 0;
    size_t bytes = 0;
    std::shared_ptr<Buffer> pinned;
  };

  void OnSlice(absl::Status status, Ended slice) {
    --in_flight_;
    if (!done_) return;
    if (!status.ok()) return End(std::move(status));
    // Slices complete in order, but the executor polls events one after the other: a later one may
    // be seen first.
    ended_.push_back(std::move(slice));
    while (true) {
      const auto next = std::find_if(ended_.begin(), ended_.end(), [this](const Ended& each) {
        return each.offset == finished_;
      });
      if (next == ended_.end()) break;
      const Ended at = std::move(*next);
      ended_.erase(next);
      if (to_host_) {
        if (at.pinned != nullptr) {
          CopyOnHost(static_cast<char*>(copy_.host) + at.offset, at.pinned->data(), at.bytes);
        }
        if (copy_.on_slice) copy_.on_slice(at.offset, at.bytes);
      }
      finished_ += at.bytes;
    }
    if (finished_ == copy_.bytes) return End(absl::OkStatus());
    Issue();
  }

  void CopyOnHost(void* to, const void* from, size_t bytes) {
    if (shared_->copier != nullptr) return shared_->copier->Copy(to, from, bytes);
    std::memcpy(to, from, bytes);
  }

  void End(absl::Status status) {
    DoneCallback done = std::exchange(done_, nullptr);
    // Slices in flight have their own reference.
    copy_.keep.reset();
    copy_.on_slice = nullptr;
    std::move(done)(std::move(status));
  }

  const std::shared_ptr<Shared> shared_;
  HostCopy copy_;
  DoneCallback done_;  // null once it has been called
  const bool to_host_;
  const Stream stream_;
  bool is_direct_ = false;
  size_t issued_ = 0;
  size_t finished_ = 0;
  int in_flight_ = 0;
  // Completed slices that wait for earlier ones.
  std::vector<Ended> ended_;
};

HostStager::HostStager(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

absl::StatusOr<std::unique_ptr<HostStager>> HostStager::Create(DeviceExecutor& executor,
                                                               std::shared_ptr<EventPool> events,
                                                               std::shared_ptr<PinnedPool> pinned,
                                                               CopyPool* copier,
                                                               HostStagerOptions options) {
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> to_host,
                         CudaStream::Create(executor.device()));
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> to_device,
                         CudaStream::Create(executor.device()));
  std::shared_ptr<Shared> shared(new Shared{executor, std::move(events), std::move(pinned), copier,
                                            options, std::move(to_host), std::move(to_device)});
  return absl::WrapUnique(new HostStager(std::move(shared)));
}

absl::Status HostStager::Start(HostCopy copy, DoneCallback done, bool to_host) {
  if (copy.bytes == 0 || copy.host == nullptr || copy.device == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a copy of ", copy.bytes, " bytes without memory on both sides"));
  }
  DeviceExecutor::Watched incomplete = {
      .event = copy.after, .what = copy.what, .keep = copy.after != nullptr ? copy.keep : nullptr};
  auto transfer = std::make_shared<Transfer>(shared_, std::move(copy), std::move(done), to_host);
  absl::Status posted =
      shared_->executor.Post([transfer = std::move(transfer)] { transfer->Start(); });
  // Its producer may not have written it yet.
  if (!posted.ok() && incomplete.event != nullptr) {
    shared_->executor.Watch(std::move(incomplete), [](absl::Status) {}).IgnoreError();
  }
  return posted;
}

absl::Status HostStager::Reserve() {
  // Held together, so that the pool has that many blocks and keeps them when they are released.
  std::vector<std::shared_ptr<Buffer>> slices(
      static_cast<size_t>(shared_->options.slices_in_flight));
  for (std::shared_ptr<Buffer>& slice : slices) {
    FERRY_ASSIGN_OR_RETURN(slice, shared_->pinned->Allocate(shared_->options.slice_bytes));
  }
  return absl::OkStatus();
}

absl::Status HostStager::CopyToHost(HostCopy copy, DoneCallback done) {
  return Start(std::move(copy), std::move(done), /*to_host=*/true);
}

absl::Status HostStager::CopyToDevice(HostCopy copy, DoneCallback done) {
  return Start(std::move(copy), std::move(done), /*to_host=*/false);
}

}  // namespace ferry::cuda

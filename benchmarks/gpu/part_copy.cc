// SPDX-License-Identifier: Apache-2.0
// Figures of copies into the receiver's memory: by CUDA IPC beside the driver's own copy behind an
// event of the other process, and staged through host memory beside copies to and from pinned
// memory.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "benchmarks/gpu/check_events.h"
#include "benchmarks/gpu/check_transfers.h"

namespace ferry::check {
namespace {

constexpr size_t kGoalFrom = 16 * kMiB;
constexpr double kCopyGoal = 0.95;
constexpr int kInFlight = 8;

// The same in both processes.
absl::StatusOr<std::vector<size_t>> CopySizes(CheckNode& self, size_t most) {
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
  // Patterns that go by the host take their time.
  if (!gpu->why_no_kernels().empty()) most = std::min(most, 64 * kMiB);
  most = std::min(most, MostBytesInFlight(self.machine()));
  if (self.options().is_quick) return std::vector<size_t>{64 * kKiB, 1 * kMiB, 16 * kMiB};
  std::vector<size_t> sizes;
  for (size_t bytes = 64 * kKiB; bytes <= most; bytes *= 4) sizes.push_back(bytes);
  return sizes;
}

// The cost of two processes alone: a copy behind another process's event, beside a copy alone.
absl::Status MeasureRawCopy(CheckNode& self, CheckGpu& gpu, EventWire& wire, size_t bytes) {
  Figure figure;
  figure.name = "cuMemcpyDtoDAsync behind another process's event, without Ferry";
  figure.bytes = bytes;
  figure.path = "raw";
  figure.processes_on_gpu = 2;
  figure.floor_name = "cuMemcpyDtoDAsync";
  FERRY_ASSIGN_OR_RETURN(const bool has_time,
                         self.HasTimeFor(absl::StrCat(figure.name, ", ", bytes, " bytes")));
  if (!has_time) return absl::OkStatus();
  std::vector<Tensor> sources;
  std::vector<Tensor> destinations;
  if (self.id() == 1) {
    FERRY_ASSIGN_OR_RETURN(Tensor source, self.Pattern(bytes, 1));
    FERRY_ASSIGN_OR_RETURN(Tensor destination, self.Empty(bytes));
    sources.push_back(std::move(source));
    destinations.push_back(std::move(destination));
  }
  const FloorBuffers buffers{sources, destinations};
  const Floor alone = CopyFloor();
  const int rounds = RoundsFor(self.options(), bytes);
  for (int round = -2; round < rounds; ++round) {
    FERRY_ASSIGN_OR_RETURN(const absl::Duration behind, wire.Copy(buffers));
    FERRY_ASSIGN_OR_RETURN(const absl::Duration floor, alone(self, buffers));
    if (round < 0 || self.id() == 0) continue;
    figure.ferry.Add(behind);
    figure.floor.Add(floor);
  }
  sources.clear();
  destinations.clear();
  gpu.gpu().arena->Trim();
  return self.id() == 0 ? absl::OkStatus() : self.Tell(figure, rounds);
}

absl::Status MeasureCopies(CheckNode& self) {
  int64_t step = 0;
  FERRY_ASSIGN_OR_RETURN(const std::vector<size_t> sizes, CopySizes(self, size_t{1} << 30));
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
  absl::StatusOr<std::unique_ptr<EventWire>> wire = EventWire::Create(self, *gpu);
  if (wire.ok()) {
    for (const size_t bytes : sizes) {
      FERRY_RETURN_IF_ERROR(MeasureRawCopy(self, *gpu, **wire, bytes));
    }
  } else {
    self.report().Note(
        absl::StrCat("copies are compared with one process's own: ", wire.status().ToString()));
  }
  for (const size_t bytes : sizes) {
    for (const int in_flight : {1, kInFlight}) {
      if (bytes * static_cast<size_t>(in_flight) > MostBytesInFlight(self.machine())) continue;
      // With a fake driver nothing is measured.
      if (self.options().is_quick && in_flight > 1 && bytes > kMiB) continue;
      TransferCase at;
      at.name = "copy by cuda_ipc, within a GPU";
      at.bytes = bytes;
      at.in_flight = in_flight;
      at.rounds = RoundsFor(self.options(), bytes * static_cast<size_t>(in_flight));
      if (bytes >= kGoalFrom) at.goal = kCopyGoal;
      at.floor_name = "cuMemcpyDtoDAsync";
      at.floor = CopyFloor();
      if (wire.ok()) {
        at.floor_name = "cuMemcpyDtoDAsync behind another process's event";
        at.floor = [&wire](CheckNode&, const FloorBuffers& buffers) {
          return (*wire)->Copy(buffers);
        };
      }
      FERRY_RETURN_IF_ERROR(MeasureTransfers(self, ++step, at));
    }
  }
  return wire.ok() ? (*wire)->Close() : absl::OkStatus();
}

// Down to pinned memory and up again, one after the other: each waits for the stream.
class PinnedFloor final {
 public:
  static absl::StatusOr<std::shared_ptr<PinnedFloor>> Create(CheckNode& self, size_t bytes) {
    auto floor = std::make_shared<PinnedFloor>();
    if (self.id() == 0) return floor;
    FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
    floor->gpu_ = gpu;
    const cuda::ScopedCurrent current(gpu->device());
    FERRY_RETURN_IF_ERROR(
        gpu->Check(gpu->table().host_alloc(&floor->pinned_, bytes, cuda::kHostAllocPortable),
                   "cuMemHostAlloc"));
    return floor;
  }
  ~PinnedFloor() {
    if (pinned_ == nullptr) return;
    const cuda::ScopedCurrent current(gpu_->device());
    gpu_->table().host_free(pinned_);
  }

  absl::StatusOr<absl::Duration> Run(const FloorBuffers& buffers) const {
    if (gpu_ == nullptr) return absl::ZeroDuration();
    const Tensor& from = buffers.sources.front();
    const Tensor& to = buffers.destinations.front();
    const cuda::ScopedCurrent current(gpu_->device());
    const absl::Time began = SteadyClock().Now();
    FERRY_RETURN_IF_ERROR(
        gpu_->Check(gpu_->table().copy_to_host_async(pinned_, cuda::AsDevicePointer(from.data()),
                                                     from.bytes(), gpu_->stream()),
                    "cuMemcpyDtoHAsync"));
    FERRY_RETURN_IF_ERROR(gpu_->Wait(gpu_->stream()));
    FERRY_RETURN_IF_ERROR(
        gpu_->Check(gpu_->table().copy_to_device_async(cuda::AsDevicePointer(to.data()), pinned_,
                                                       to.bytes(), gpu_->stream()),
                    "cuMemcpyHtoDAsync"));
    FERRY_RETURN_IF_ERROR(gpu_->Wait(gpu_->stream()));
    return SteadyClock().Now() - began;
  }

 private:
  CheckGpu* gpu_ = nullptr;
  void* pinned_ = nullptr;
};

absl::Status MeasureStaged(CheckNode& self) {
  int64_t step = 0;
  FERRY_ASSIGN_OR_RETURN(const std::vector<size_t> sizes, CopySizes(self, 256 * kMiB));
  for (const size_t bytes : sizes) {
    FERRY_ASSIGN_OR_RETURN(const std::shared_ptr<PinnedFloor> floor,
                           PinnedFloor::Create(self, bytes));
    TransferCase at;
    at.name = "staged through host memory";
    at.bytes = bytes;
    at.rounds = RoundsFor(self.options(), bytes);
    at.floor_name = "copy to pinned memory, then copy from it";
    at.floor = [floor](CheckNode&, const FloorBuffers& buffers) { return floor->Run(buffers); };
    FERRY_RETURN_IF_ERROR(MeasureTransfers(self, ++step, at));
  }
  return absl::OkStatus();
}

absl::Status RunBoth(PartContext& context, const char* name, const char* require,
                     absl::Status (*body)(CheckNode&)) {
  NodesOptions options;
  options.name = name;
  options.transfer = TransferOptionsFor(context.machine, require);
  return RunNodes(context, options, {body, body}).status();
}

}  // namespace

absl::Status RunCopyPart(PartContext& context) {
  return RunBoth(context, "copies by cuda_ipc", "cuda_ipc", MeasureCopies);
}

absl::Status RunStagedPart(PartContext& context) {
  return RunBoth(context, "staged", "shm", MeasureStaged);
}

}  // namespace ferry::check

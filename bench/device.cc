// SPDX-License-Identifier: Apache-2.0
// Patterns generated and verified on the host, and driver copies.
#include "bench/device.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/pattern.h"
#include "gpu/cuda/ready_tensor.h"
#include "gpu/gpus.h"
#include "transport/transports.h"

namespace ferry::cli {
namespace {

// Returns the ordinal; -1 for the host.
std::optional<int> OrdinalOf(absl::string_view name) {
  if (name == kHostDevice) return -1;
  int ordinal = 0;
  if (!absl::ConsumePrefix(&name, "gpu:") || !absl::SimpleAtoi(name, &ordinal) || ordinal < 0) {
    return std::nullopt;
  }
  return ordinal;
}

absl::Duration MedianOf(std::vector<absl::Duration> times) {
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// Pinned host memory for copies.
class Pinned final {
 public:
  static absl::StatusOr<std::unique_ptr<Pinned>> Create(Gpu& gpu, size_t bytes) {
    std::unique_ptr<Pinned> pinned(new Pinned(gpu));
    const cuda::ScopedCurrent current(*gpu.device);
    FERRY_RETURN_IF_ERROR(gpu.device->Check(
        gpu.device->table().host_alloc(&pinned->memory_, bytes, cuda::kHostAllocPortable),
        "cuMemHostAlloc"));
    return pinned;
  }
  ~Pinned() {
    if (memory_ == nullptr) return;
    const cuda::ScopedCurrent current(*gpu_.device);
    gpu_.device->table().host_free(memory_);
  }
  void* memory() { return memory_; }

 private:
  explicit Pinned(Gpu& gpu) : gpu_(gpu) {}

  Gpu& gpu_;
  void* memory_ = nullptr;
};

}  // namespace

absl::StatusOr<BenchDevices> ParseDevicesFlag(absl::string_view text, int most) {
  BenchDevices names = absl::StrSplit(text, ',');
  for (const std::string& name : names) {
    if (OrdinalOf(name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--devices: ", Quoted(text),
                     " is no list of devices, of the first process, the second and so on, such as "
                     "gpu:0,gpu:1 or host:0,gpu:0"));
  }
  if (names.size() > static_cast<size_t>(most)) {
    return absl::InvalidArgumentError(absl::StrCat("--devices: ", names.size(), " devices of ",
                                                   most, " processes; say one for each at most"));
  }
  return names;
}

TensorLocation LocationOfDevice(absl::string_view name) {
  const int ordinal = OrdinalOf(name).value_or(-1);
  if (ordinal < 0) return {};
  return {.space = MemorySpace::kCuda, .ordinal = ordinal};
}

absl::StatusOr<std::unique_ptr<BenchDevice>> BenchDevice::Open(Node& node, std::string name,
                                                               absl::string_view dtype,
                                                               absl::Duration timeout) {
  const std::optional<DataType> type = ParseDataType(dtype);
  if (!type || !IsFixedSize(*type)) {
    return absl::InvalidArgumentError(absl::StrCat("no elements of one size: ", Quoted(dtype)));
  }
  std::unique_ptr<BenchDevice> device(new BenchDevice(node, std::move(name), *type, timeout));
  // Allocating shows whether the device exists.
  FERRY_RETURN_IF_ERROR(device->Make(ElementBytes(*type)).status());
  if (device->name_ == kHostDevice) return device;
  FERRY_ASSIGN_OR_RETURN(
      device->gpu_, node.transfer_engine().gpus()->Get(LocationOfDevice(device->name_).ordinal));
  return device;
}

BenchDevice::~BenchDevice() = default;

TensorLocation BenchDevice::location() const { return LocationOfDevice(name_); }

absl::StatusOr<Tensor> BenchDevice::Allocate(const std::string& device, size_t bytes) {
  const size_t count = bytes / ElementBytes(dtype_);
  FERRY_ASSIGN_OR_RETURN(const Shape shape, Shape::Create({static_cast<int64_t>(count)}));
  return node_.Allocate(device, dtype_, shape);
}

absl::StatusOr<Tensor> BenchDevice::Make(size_t bytes) { return Allocate(name_, bytes); }

absl::StatusOr<Tensor> BenchDevice::Move(const Tensor& tensor, const TensorLocation& to,
                                         const char* what) {
  MoveRequest move;
  move.tensor = tensor;
  move.to = to;
  move.deadline = SteadyClock().Now() + timeout_;
  move.what = what;
  return node_.transfer_engine().gpus()->MoveAndWait(std::move(move));
}

absl::StatusOr<Tensor> BenchDevice::MakePattern(size_t bytes, uint64_t seed) {
  FERRY_ASSIGN_OR_RETURN(Tensor pattern, Allocate(kHostDevice, bytes));
  WritePattern(pattern.mutable_data(), bytes, seed, PatternMask(dtype_));
  if (!is_gpu()) return pattern;
  FERRY_ASSIGN_OR_RETURN(Tensor there, Move(pattern, location(), "the bench's pattern"));
  FERRY_RETURN_IF_ERROR(AwaitBytes(there));
  return there;
}

absl::Status BenchDevice::AwaitBytes(const Tensor& tensor) {
  if (tensor.is_on_host()) return absl::OkStatus();
  const std::shared_ptr<const cuda::ReadyEvent> ready = cuda::ReadyOf(tensor);
  if (ready == nullptr) return absl::OkStatus();
  const absl::Time deadline = SteadyClock().Now() + timeout_;
  while (true) {
    FERRY_ASSIGN_OR_RETURN(const bool is_done, ready->IsDone());
    if (is_done) return absl::OkStatus();
    if (SteadyClock().Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "waited ", absl::FormatDuration(timeout_), " for ", tensor.bytes(), " bytes that ", name_,
          " has been told of; see what else runs there with "
          "nvidia-smi"));
    }
  }
}

absl::StatusOr<size_t> BenchDevice::CountErrors(const Tensor& tensor, size_t bytes, uint64_t seed) {
  if (tensor.bytes() != bytes || tensor.dtype() != dtype_) return bytes;
  Tensor here = tensor;
  if (!tensor.is_on_host()) {
    FERRY_ASSIGN_OR_RETURN(here, Move(tensor, TensorLocation(), "the bench's comparison"));
  }
  return CountPatternErrors(here.data(), bytes, seed, nullptr, PatternMask(dtype_));
}

absl::StatusOr<absl::Duration> BenchDevice::MeasureCopy(size_t bytes, int rounds,
                                                        bool is_from_host) {
  FERRY_ASSIGN_OR_RETURN(const Tensor to, Make(bytes));
  Tensor from;
  std::unique_ptr<Pinned> pinned;
  if (is_from_host) {
    FERRY_ASSIGN_OR_RETURN(pinned, Pinned::Create(*gpu_, bytes));
  } else {
    FERRY_ASSIGN_OR_RETURN(from, Make(bytes));
  }
  FERRY_ASSIGN_OR_RETURN(const auto stream, cuda::CudaStream::Create(gpu_->device));
  const cuda::CudaTable& table = gpu_->device->table();
  const cuda::DevicePointer there = cuda::AsDevicePointer(to.data());
  const cuda::ScopedCurrent current(*gpu_->device);
  const auto wait = [&]() {
    return gpu_->device->Check(table.stream_synchronize(stream->get()), "cuStreamSynchronize");
  };
  std::vector<absl::Duration> times;
  // The first round warms up.
  for (int round = 0; round <= rounds; ++round) {
    const absl::Time start = SteadyClock().Now();
    if (is_from_host) {
      FERRY_RETURN_IF_ERROR(gpu_->device->Check(
          table.copy_to_device_async(there, pinned->memory(), bytes, stream->get()),
          "cuMemcpyHtoDAsync"));
      FERRY_RETURN_IF_ERROR(wait());
      FERRY_RETURN_IF_ERROR(gpu_->device->Check(
          table.copy_to_host_async(pinned->memory(), there, bytes, stream->get()),
          "cuMemcpyDtoHAsync"));
    } else {
      FERRY_RETURN_IF_ERROR(gpu_->device->Check(
          table.copy_async(there, cuda::AsDevicePointer(from.data()), bytes, stream->get()),
          "cuMemcpyDtoDAsync"));
    }
    FERRY_RETURN_IF_ERROR(wait());
    const absl::Duration taken = SteadyClock().Now() - start;
    if (round > 0) times.push_back(is_from_host ? taken / 2 : taken);
  }
  return MedianOf(std::move(times));
}

absl::StatusOr<absl::Duration> BenchDevice::MeasurePeerCopy(size_t bytes, int rounds,
                                                            const std::string& other) {
  Gpus& gpus = *node_.transfer_engine().gpus();
  const int ordinal = LocationOfDevice(other).ordinal;
  const absl::StatusOr<Gpu*> peer = gpus.Get(ordinal);
  if (!peer.ok()) return absl::UnavailableError(peer.status().message());
  const int own = gpu_->device->ordinal();
  if (!gpus.peers().CanAccess(own, ordinal) || !gpus.peers().CanAccess(ordinal, own)) {
    return absl::UnavailableError(
        absl::StrCat("the machine has no peer access between ", name_, " and ", other));
  }
  FERRY_ASSIGN_OR_RETURN(const Tensor here, Make(bytes));
  FERRY_ASSIGN_OR_RETURN(const Tensor there, Allocate(other, bytes));
  FERRY_ASSIGN_OR_RETURN(const auto stream, cuda::CudaStream::Create(gpu_->device));
  const cuda::CudaTable& table = gpu_->device->table();
  // As before a copy of Gpus::Move: else this might measure one through host memory.
  FERRY_RETURN_IF_ERROR(cuda::EnablePeerAccess(*gpu_->device, *(*peer)->device));
  FERRY_RETURN_IF_ERROR(cuda::EnablePeerAccess(*(*peer)->device, *gpu_->device));
  const cuda::ScopedCurrent current(*gpu_->device);
  const auto copy = [&](const Tensor& to, const Gpu& in, const Tensor& from, const Gpu& of) {
    absl::Status status = gpu_->device->Check(
        table.copy_peer_async(cuda::AsDevicePointer(to.data()), in.device->context(),
                              cuda::AsDevicePointer(from.data()), of.device->context(), bytes,
                              stream->get()),
        "cuMemcpyPeerAsync");
    if (!status.ok()) return status;
    return gpu_->device->Check(table.stream_synchronize(stream->get()), "cuStreamSynchronize");
  };
  std::vector<absl::Duration> times;
  // The first round warms up.
  for (int round = 0; round <= rounds; ++round) {
    const absl::Time start = SteadyClock().Now();
    FERRY_RETURN_IF_ERROR(copy(there, **peer, here, *gpu_));
    FERRY_RETURN_IF_ERROR(copy(here, *gpu_, there, **peer));
    if (round > 0) times.push_back((SteadyClock().Now() - start) / 2);
  }
  return MedianOf(std::move(times));
}

std::set<std::string> DevicePaths(Node& node, int from, size_t bytes, absl::string_view from_device,
                                  absl::string_view to_device) {
  std::set<std::string> paths;
  const absl::StatusOr<PathExplanation> choice =
      node.PathFrom(from, bytes, true, LocationOfDevice(from_device), LocationOfDevice(to_device));
  if (!choice.ok()) return paths;
  for (const PathCandidate& candidate : choice->candidates) {
    if (candidate.cost.ok()) paths.insert(candidate.name);
  }
  return paths;
}

std::string DevicePathReason(Node& node, int from, size_t bytes, absl::string_view from_device,
                             absl::string_view to_device) {
  const absl::StatusOr<PathExplanation> choice =
      node.PathFrom(from, bytes, true, LocationOfDevice(from_device), LocationOfDevice(to_device));
  return choice.ok() ? Explain(*choice) : std::string(choice.status().message());
}

}  // namespace ferry::cli

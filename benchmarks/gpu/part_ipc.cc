// SPDX-License-Identifier: Apache-2.0
// Two processes on one GPU: the receiver maps the sender's memory, copies it into its own, or gets
// it through the sender's staging ring or host memory; with sizes and offsets that are prone to
// addressing errors.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

#include "base/status_macros.h"
#include "benchmarks/gpu/check_foreign.h"
#include "benchmarks/gpu/check_nodes.h"
#include "gpu/cuda/ready_tensor.h"

namespace ferry::check {
namespace {

enum class Variant { kView, kCopy, kRing, kHost };

struct Mode {
  Variant variant;
  const char* name;
  const char* require;
  const char* path;
};

constexpr Mode kModes[] = {
    {Variant::kView, "a view of the sender's memory", "cuda_ipc", "cuda_ipc, view"},
    {Variant::kCopy, "a copy into the receiver's memory", "cuda_ipc", "cuda_ipc, copy"},
    {Variant::kRing, "through the sender's ring", "cuda_ipc", "cuda_ipc, staged"},
    {Variant::kHost, "through host memory", "shm", "shm, staged"},
};

std::vector<size_t> IpcSizes(const Options& options) {
  std::vector<size_t> sizes = {1, 7, 4096, 100'003, (size_t{2} << 20) - 1, (size_t{2} << 20) + 1};
  if (!options.is_quick) {
    sizes.push_back(size_t{33} << 20);
    sizes.push_back((size_t{256} << 20) + 24);
  }
  return sizes;
}

uint64_t SeedOfSize(size_t index) { return 0x1234567 + index * 1001; }

// Memory that is not Ferry's, of cudaMalloc, which is freed when the transfers are over.
class ForeignTensors final {
 public:
  explicit ForeignTensors(CheckGpu& gpu) : gpu_(gpu) {}

  absl::StatusOr<Tensor> Make(size_t bytes) {
    FERRY_ASSIGN_OR_RETURN(ForeignMemory memory, kind_.make(gpu_, bytes));
    const auto released = std::make_shared<absl::Notification>();
    made_.push_back({std::move(memory), released});
    FERRY_ASSIGN_OR_RETURN(const Shape shape, Shape::Create({static_cast<int64_t>(bytes)}));
    return Tensor::Create(
        DataType::kUint8, shape,
        WrapForeignBuffer(made_.back().memory.data, bytes, [released] { released->Notify(); },
                          {MemorySpace::kCuda, 0}));
  }

  absl::Status Free() {
    for (Made& each : made_) {
      if (!each.released->WaitForNotificationWithTimeout(kTimeout)) {
        return absl::DeadlineExceededError("all has arrived, and the memory is still held");
      }
    }
    FERRY_RETURN_IF_ERROR(gpu_.Wait(gpu_.stream()));
    for (Made& each : made_) FERRY_RETURN_IF_ERROR(kind_.free(gpu_, each.memory));
    made_.clear();
    return absl::OkStatus();
  }

 private:
  struct Made {
    ForeignMemory memory;
    std::shared_ptr<absl::Notification> released;
  };

  CheckGpu& gpu_;
  const ForeignKind& kind_ = ForeignKinds().front();
  std::vector<Made> made_;
};

absl::Status SendForeign(CheckNode& self) {
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
  const std::vector<size_t> sizes = IpcSizes(self.options());
  ForeignTensors foreign(*gpu);
  for (size_t i = 0; i < sizes.size(); ++i) {
    FERRY_ASSIGN_OR_RETURN(const RendezvousKey key,
                           self.Key(absl::StrCat("size", i), 0, kGpu, kGpu));
    FERRY_ASSIGN_OR_RETURN(const Tensor tensor, foreign.Make(sizes[i]));
    FERRY_RETURN_IF_ERROR(gpu->Fill(tensor.data(), sizes[i], SeedOfSize(i), gpu->stream()));
    FERRY_RETURN_IF_ERROR(step.Send(key, tensor, gpu->stream()));
  }
  FERRY_RETURN_IF_ERROR(step.Close(kTimeout));
  return foreign.Free();
}

absl::Status SendAll(CheckNode& self) {
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
  const std::vector<size_t> sizes = IpcSizes(self.options());
  for (size_t i = 0; i < sizes.size(); ++i) {
    FERRY_ASSIGN_OR_RETURN(const RendezvousKey key,
                           self.Key(absl::StrCat("size", i), 0, kGpu, kGpu));
    FERRY_ASSIGN_OR_RETURN(Tensor tensor, self.Empty(sizes[i]));
    // Not waited for: the receiver's stream does that.
    FERRY_RETURN_IF_ERROR(gpu->Fill(tensor.data(), sizes[i], SeedOfSize(i), gpu->stream()));
    FERRY_RETURN_IF_ERROR(step.Send(key, tensor, gpu->stream()));
  }
  return step.Close(kTimeout);
}

absl::Status ReceiveOne(CheckNode& self, Step& step, const Mode& mode, size_t index, size_t bytes) {
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey key,
                         self.Key(absl::StrCat("size", index), 0, kGpu, kGpu));
  RecvArgs args;
  const void* wanted = nullptr;
  if (mode.variant == Variant::kCopy) {
    FERRY_ASSIGN_OR_RETURN(Tensor destination, self.Empty(bytes));
    wanted = destination.data();
    args.destination = std::move(destination);
  }
  FERRY_ASSIGN_OR_RETURN(const Received received, step.RecvValue(key, kTimeout, std::move(args)));
  // The smallest come with the answer itself.
  const bool is_inline = mode.variant == Variant::kHost && received.path == "inline, staged";
  if (received.path != mode.path && !is_inline) {
    return absl::InternalError(
        absl::StrCat("it came by ", received.path, ", and not by ", mode.path));
  }
  if (received.tensor.is_on_host()) return absl::InternalError("it is in host memory");
  if (wanted != nullptr && received.tensor.data() != wanted) {
    return absl::InternalError("it is not in the receiver's buffer");
  }
  return self.Verify(received.tensor, bytes, SeedOfSize(index));
}

absl::Status ReceiveAll(CheckNode& self, const Mode& mode) {
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
  const int64_t made = gpu->gpu().arena->stats().made_blocks;
  const std::vector<size_t> sizes = IpcSizes(self.options());
  for (size_t i = 0; i < sizes.size(); ++i) {
    const absl::Status status = ReceiveOne(self, step, mode, i, sizes[i]);
    self.report().Check(absl::StrCat(mode.name, ", ", sizes[i], " bytes"), status);
    if (!status.ok()) return absl::AbortedError("the rest was not tried");
  }
  if (mode.variant == Variant::kView && gpu->gpu().arena->stats().made_blocks != made) {
    return absl::InternalError("views were to copy nothing, and took memory of the receiver");
  }
  return absl::OkStatus();
}

// The default choice of a path: for users who require none.
absl::Status ReceiveUnasked(CheckNode& self) {
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
  const std::vector<size_t> sizes = IpcSizes(self.options());
  for (size_t i = 0; i < sizes.size(); ++i) {
    FERRY_ASSIGN_OR_RETURN(const RendezvousKey key,
                           self.Key(absl::StrCat("size", i), 0, kGpu, kGpu));
    FERRY_ASSIGN_OR_RETURN(const Received received, step.RecvValue(key, kTimeout));
    FERRY_RETURN_IF_ERROR(self.Verify(received.tensor, sizes[i], SeedOfSize(i)));
    if (i == 0) {
      self.report().Note(
          absl::StrCat("where nothing is required, tensors between two processes on "
                       "this GPU go by ",
                       received.path));
    }
  }
  self.report().Check("whatever way Ferry takes by itself", absl::OkStatus());
  return absl::OkStatus();
}

}  // namespace

absl::Status RunIpcPart(PartContext& context) {
  for (const Mode& mode : kModes) {
    NodesOptions options;
    options.name = mode.name;
    options.transfer = TransferOptionsFor(context.machine, mode.require);
    // Nothing that is not Ferry's is large enough to be mapped.
    if (mode.variant == Variant::kRing) options.transfer.gpus.ipc_min_bytes = SIZE_MAX;
    FERRY_RETURN_IF_ERROR(RunNodes(context, options,
                                   {mode.variant == Variant::kRing ? SendForeign : SendAll,
                                    [&mode](CheckNode& self) { return ReceiveAll(self, mode); }})
                              .status());
  }
  NodesOptions options;
  options.name = "whatever way Ferry takes by itself";
  options.transfer = TransferOptionsFor(context.machine);
  return RunNodes(context, options, {SendAll, ReceiveUnasked}).status();
}

}  // namespace ferry::check

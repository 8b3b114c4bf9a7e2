// SPDX-License-Identifier: Apache-2.0
// Memory that Ferry has not made, of every kind that a program may have, sent to another process.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

#include "base/status_macros.h"
#include "benchmarks/gpu/check_foreign.h"
#include "benchmarks/gpu/check_nodes.h"
#include "cli/pattern.h"
#include "gpu/cuda/memory_kind.h"

namespace ferry::check {
namespace {

constexpr size_t kForeignBytes = (size_t{3} << 20) + 40;
// The tensor's offset in its allocation: the handle stands for the whole of it.
constexpr size_t kOffset = 512;

// The sender's message when it has such memory; any other: why it has not.
constexpr char kMade[] = "made";

const char* SourceDevice(const ForeignKind& kind) { return kind.is_host ? "host:0" : "gpu:0"; }

uint64_t SeedOfKind(size_t index) { return 99 + index * 17; }

absl::Status SendOne(CheckNode& self, CheckGpu& gpu, Step& step, const ForeignKind& kind,
                     size_t index) {
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey key,
                         self.Key(kind.name, 0, SourceDevice(kind), "gpu:0"));
  absl::StatusOr<ForeignMemory> memory = kind.make(gpu, kForeignBytes + kOffset);
  if (!memory.ok()) {
    FERRY_RETURN_IF_ERROR(self.Say(memory.status().message()));
    self.report().SkipCheck(kind.name, memory.status().message());
    return absl::OkStatus();
  }
  char* const data = static_cast<char*>(memory->data) + kOffset;
  absl::Status status = absl::OkStatus();
  const absl::StatusOr<cuda::MemoryInfo> info = cuda::Classify(gpu.device(), data, kForeignBytes);
  std::string taken_for;
  if (!info.ok()) {
    status = info.status();
  } else {
    taken_for = absl::StrCat(
        cuda::MemoryKindName(info->kind),
        info->no_export_reason.empty() ? "" : absl::StrCat("; ", info->no_export_reason));
    if (info->kind != kind.kind) {
      status = absl::InternalError(absl::StrCat("it is taken for ", taken_for));
    }
  }
  self.report().Check(absl::StrCat(kind.name, ": is taken for what it is"), status,
                      {{"taken_for", taken_for}});
  FERRY_RETURN_IF_ERROR(self.Say(kMade));
  const auto released = std::make_shared<absl::Notification>();
  {
    if (kind.is_host) {
      cli::WritePattern(data, kForeignBytes, SeedOfKind(index));
    } else {
      FERRY_RETURN_IF_ERROR(gpu.Fill(data, kForeignBytes, SeedOfKind(index), gpu.stream()));
    }
    FERRY_ASSIGN_OR_RETURN(const Shape shape, Shape::Create({static_cast<int64_t>(kForeignBytes)}));
    FERRY_ASSIGN_OR_RETURN(
        const Tensor tensor,
        Tensor::Create(
            DataType::kUint8, shape,
            WrapForeignBuffer(
                data, kForeignBytes, [released] { released->Notify(); },
                kind.is_host ? TensorLocation{} : TensorLocation{MemorySpace::kCuda, 0})));
    FERRY_RETURN_IF_ERROR(kind.is_host ? step.Send(key, tensor)
                                       : step.Send(key, tensor, gpu.stream()));
  }
  // It may be freed after the last reference is dropped, which the receiver delays.
  FERRY_ASSIGN_OR_RETURN(const std::string word, self.Hear());
  if (!released->WaitForNotificationWithTimeout(kTimeout)) {
    return absl::DeadlineExceededError(
        absl::StrCat(kind.name, ": the receiver has let it go, and it is still held"));
  }
  FERRY_RETURN_IF_ERROR(gpu.Wait(gpu.stream()));
  return kind.free(gpu, *memory);
}

absl::Status ReceiveOne(CheckNode& self, Step& step, const ForeignKind& kind, size_t index) {
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey key,
                         self.Key(kind.name, 0, SourceDevice(kind), "gpu:0"));
  FERRY_ASSIGN_OR_RETURN(const std::string word, self.Hear());
  if (word != kMade) return absl::OkStatus();
  absl::Status status;
  std::string path;
  {
    const absl::StatusOr<Received> received = step.RecvValue(key, kTimeout);
    status = received.status();
    if (received.ok()) {
      path = std::string(received->path);
      status = self.Verify(received->tensor, kForeignBytes, SeedOfKind(index));
    }
  }
  self.report().Check(absl::StrCat(kind.name, ": arrives as it was"), status, {{"path", path}});
  if (status.ok()) {
    self.report().Check(absl::StrCat(kind.name, ": comes the way that is meant for it"),
                        path == kind.path ? absl::OkStatus()
                                          : absl::InternalError(absl::StrCat(
                                                "it went by ", path, ", and not by ", kind.path)));
  }
  return self.Say("I have let it go");
}

}  // namespace

absl::Status RunForeignPart(PartContext& context) {
  NodesOptions options;
  options.name = "memory of every kind";
  options.transfer = TransferOptionsFor(context.machine);
  return RunNodes(context, options,
                  {[](CheckNode& self) -> absl::Status {
                     FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
                     size_t index = 0;
                     for (const ForeignKind& kind : ForeignKinds()) {
                       // A step of its own: when it closes, the receiver is done with the memory.
                       FERRY_ASSIGN_OR_RETURN(
                           Step step, self.node().OpenStep(static_cast<int64_t>(index) + 1));
                       FERRY_RETURN_IF_ERROR(SendOne(self, *gpu, step, kind, index++));
                       FERRY_RETURN_IF_ERROR(step.Close(kTimeout));
                     }
                     return absl::OkStatus();
                   },
                   [](CheckNode& self) -> absl::Status {
                     size_t index = 0;
                     for (const ForeignKind& kind : ForeignKinds()) {
                       FERRY_ASSIGN_OR_RETURN(
                           Step step, self.node().OpenStep(static_cast<int64_t>(index) + 1));
                       FERRY_RETURN_IF_ERROR(ReceiveOne(self, step, kind, index++));
                     }
                     return absl::OkStatus();
                   }})
      .status();
}

}  // namespace ferry::check

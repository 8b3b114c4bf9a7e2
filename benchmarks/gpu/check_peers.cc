// SPDX-License-Identifier: Apache-2.0
// Rounds of Gpus::Move, and rounds of the driver's copy beside them.
#include "benchmarks/gpu/check_peers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "benchmarks/gpu/check_foreign.h"
#include "benchmarks/gpu/check_transfers.h"

namespace ferry::check {
namespace {

constexpr int kWarmUps = 2;
// A measurement is not begun with less time than this.
constexpr absl::Duration kLeast = absl::Seconds(8);

const ForeignKind& PlainKind() {
  return *std::find_if(ForeignKinds().begin(), ForeignKinds().end(), [](const ForeignKind& kind) {
    return kind.kind == cuda::MemoryKind::kPlain;
  });
}

absl::StatusOr<Tensor> WrapOn(CheckGpu& gpu, const ForeignMemory& memory) {
  FERRY_ASSIGN_OR_RETURN(const Shape shape, Shape::Create({static_cast<int64_t>(memory.bytes)}));
  // The caller frees it, after its last use.
  return Tensor::Create(DataType::kUint8, shape,
                        WrapForeignBuffer(memory.data, memory.bytes, [] {},
                                          {MemorySpace::kCuda, gpu.device().ordinal()}));
}

// One size, in one direction.
class PeerCopy final {
 public:
  PeerCopy(CheckNode& self, CheckGpu& from, CheckGpu& to, size_t bytes)
      : self_(self), from_(from), to_(to), bytes_(bytes) {}

  absl::Status Measure() {
    FERRY_ASSIGN_OR_RETURN(ForeignMemory source, PlainKind().make(from_, bytes_));
    const absl::Cleanup free_source = [&] { PlainKind().free(from_, source).IgnoreError(); };
    FERRY_ASSIGN_OR_RETURN(ForeignMemory destination, PlainKind().make(to_, bytes_));
    const absl::Cleanup free_destination = [&] {
      PlainKind().free(to_, destination).IgnoreError();
    };
    const absl::Status status = MeasureBetween(source, destination);
    self_.node().transfer_engine().gpus()->WaitIdle(SteadyClock().Now() + kTimeout);
    return status;
  }

 private:
  absl::Status MeasureBetween(const ForeignMemory& source, const ForeignMemory& destination) {
    Figure figure;
    figure.name = absl::StrCat("copy within a process, cudaMalloc's memory, ",
                               from_.device().name(), " to ", to_.device().name());
    figure.bytes = bytes_;
    figure.path = "Gpus::Move";
    figure.floor_name = "cuMemcpyPeerAsync";
    const int rounds = RoundsFor(self_.options(), bytes_);
    for (int round = -kWarmUps; round < rounds; ++round) {
      const uint64_t seed = bytes_ * 31 + static_cast<uint64_t>(round + kWarmUps) + 1;
      FERRY_RETURN_IF_ERROR(from_.Fill(source.data, bytes_, seed, from_.stream()));
      FERRY_RETURN_IF_ERROR(from_.Wait(from_.stream()));
      FERRY_ASSIGN_OR_RETURN(const absl::Duration by_ferry, Move(source, destination));
      FERRY_ASSIGN_OR_RETURN(const uint64_t wrong,
                             to_.CountWrong(destination.data, bytes_, seed, to_.stream()));
      figure.wrong_bytes += wrong;
      if (!is_checked_) CheckThatPeersAreEnabled();
      FERRY_ASSIGN_OR_RETURN(const absl::Duration by_driver, Copy(source, destination));
      if (round < 0) continue;
      figure.ferry.Add(by_ferry);
      figure.floor.Add(by_driver);
    }
    return self_.Tell(figure, rounds);
  }

  absl::StatusOr<absl::Duration> Move(const ForeignMemory& source,
                                      const ForeignMemory& destination) const {
    MoveRequest move;
    FERRY_ASSIGN_OR_RETURN(move.tensor, WrapOn(from_, source));
    FERRY_ASSIGN_OR_RETURN(move.destination, WrapOn(to_, destination));
    move.to = move.destination.location();
    move.deadline = SteadyClock().Now() + kTimeout;
    move.what = "a copy between two GPUs";
    const absl::Time began = SteadyClock().Now();
    FERRY_ASSIGN_OR_RETURN(const Tensor moved,
                           self_.node().transfer_engine().gpus()->MoveAndWait(std::move(move)));
    FERRY_RETURN_IF_ERROR(to_.EnqueueWait(moved, to_.stream()));
    FERRY_RETURN_IF_ERROR(to_.Wait(to_.stream()));
    return SteadyClock().Now() - began;
  }

  // By the source's engine, as Ferry does.
  absl::StatusOr<absl::Duration> Copy(const ForeignMemory& source,
                                      const ForeignMemory& destination) const {
    const cuda::ScopedCurrent current(from_.device());
    const absl::Time began = SteadyClock().Now();
    FERRY_RETURN_IF_ERROR(from_.Check(
        from_.table().copy_peer_async(cuda::AsDevicePointer(destination.data),
                                      to_.device().context(), cuda::AsDevicePointer(source.data),
                                      from_.device().context(), bytes_, from_.stream()),
        "cuMemcpyPeerAsync"));
    FERRY_RETURN_IF_ERROR(from_.Wait(from_.stream()));
    return SteadyClock().Now() - began;
  }

  // The driver has no query; enabling twice is an error of its own.
  void CheckThatPeersAreEnabled() {
    is_checked_ = true;
    const auto enable = [](const CheckGpu& from, const CheckGpu& to) {
      const cuda::ScopedCurrent current(from.device());
      return from.table().context_enable_peer_access(to.device().context(), 0);
    };
    const cuda::Result forth = enable(from_, to_);
    const cuda::Result back = enable(to_, from_);
    const bool is_enabled = forth == cuda::kErrorPeerAccessAlreadyEnabled &&
                            back == cuda::kErrorPeerAccessAlreadyEnabled;
    self_.report().Check(
        "the first copy between two GPUs of a process enables peer access, both ways",
        is_enabled ? absl::OkStatus()
                   : absl::InternalError(absl::StrCat(
                         "after it cuCtxEnablePeerAccess gave ", forth, " and ", back, ", and not ",
                         cuda::kErrorPeerAccessAlreadyEnabled, " (already enabled)")));
  }

  CheckNode& self_;
  CheckGpu& from_;
  CheckGpu& to_;
  const size_t bytes_;
  // By one process alone.
  static inline bool is_checked_ = false;
};

}  // namespace

absl::Status CopyWithinProcess(CheckNode& self) {
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const first, self.gpu(0));
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const second, self.gpu(1));
  std::vector<size_t> sizes = {100'003, kMiB};
  if (!self.options().is_quick) {
    for (const size_t mib : {size_t{16}, size_t{256}}) sizes.push_back(mib * kMiB);
  }
  for (const size_t bytes : sizes) {
    if (bytes > MostBytesInFlight(self.machine())) continue;
    for (const auto& [from, to] : {std::pair(first, second), std::pair(second, first)}) {
      if (SteadyClock().Now() + kLeast > self.deadline()) {
        self.report().Note(
            absl::StrCat("copies of ", bytes, " bytes within a process: no time was left"));
        return absl::OkStatus();
      }
      FERRY_RETURN_IF_ERROR(PeerCopy(self, *from, *to, bytes).Measure());
    }
  }
  return absl::OkStatus();
}

}  // namespace ferry::check

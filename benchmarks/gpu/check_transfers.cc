// SPDX-License-Identifier: Apache-2.0
// Rounds of transfers, and rounds of copies beside them.
#include "benchmarks/gpu/check_transfers.h"

#include <atomic>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/clock.h"
#include "base/status_macros.h"

namespace ferry::check {

struct Posted {
  std::atomic<bool> is_done{false};
  absl::Status status;
  Received received;
};

namespace {

uint64_t SeedOf(const TransferCase& at, int round, int index) {
  return at.bytes * 1315423911u + static_cast<uint64_t>(round + 100) * 4096 +
         static_cast<uint64_t>(index) + 1;
}

// State that both sides keep over the rounds of a case.
class Rounds final {
 public:
  Rounds(CheckNode& self, const TransferCase& at, Step step, Signals signals, CheckGpu* gpu)
      : self_(self), at_(at), step_(std::move(step)), signals_(std::move(signals)), gpu_(gpu) {}

  absl::Status Prepare() {
    for (int i = 0; i < at_.in_flight; ++i) {
      FERRY_ASSIGN_OR_RETURN(RendezvousKey key,
                             self_.Key(absl::StrCat("t", i), 0, absl::StrCat("gpu:", at_.from_gpu),
                                       absl::StrCat("gpu:", at_.to_gpu)));
      keys_.push_back(std::move(key));
      if (self_.id() == 0) continue;
      if (at_.into || at_.floor != nullptr) {
        FERRY_ASSIGN_OR_RETURN(Tensor tensor, self_.Empty(at_.bytes, at_.to_gpu));
        destinations_.push_back(std::move(tensor));
      }
      if (at_.floor != nullptr) {
        FERRY_ASSIGN_OR_RETURN(Tensor tensor, self_.Pattern(at_.bytes, 1, at_.from_gpu));
        sources_.push_back(std::move(tensor));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Produce(int round) {
    sources_.clear();
    for (int i = 0; i < at_.in_flight; ++i) {
      FERRY_ASSIGN_OR_RETURN(Tensor tensor,
                             self_.Pattern(at_.bytes, SeedOf(at_, round, i), at_.from_gpu));
      sources_.push_back(std::move(tensor));
    }
    FERRY_RETURN_IF_ERROR(signals_.Take(step_));
    FERRY_RETURN_IF_ERROR(self_.Meet());
    for (int i = 0; i < at_.in_flight; ++i) {
      const auto index = static_cast<size_t>(i);
      FERRY_RETURN_IF_ERROR(step_.Send(keys_[index], sources_[index], gpu_->stream()));
    }
    // Leads the event loop until the receiver has it all.
    return signals_.Take(step_);
  }

  absl::Status Consume(int round, Figure& figure) {
    std::vector<PostedPtr> posted;
    for (int i = 0; i < at_.in_flight; ++i) {
      const auto index = static_cast<size_t>(i);
      posted.push_back(
          Post(self_, step_, keys_[index], at_.into ? destinations_[index] : Tensor()));
    }
    FERRY_RETURN_IF_ERROR(signals_.Give(step_));
    FERRY_RETURN_IF_ERROR(self_.Meet());
    const absl::Time began = SteadyClock().Now();
    std::vector<Received> all;
    for (const PostedPtr& each : posted) {
      FERRY_ASSIGN_OR_RETURN(Received received, Await(self_, *each));
      FERRY_RETURN_IF_ERROR(gpu_->EnqueueWait(received.tensor, gpu_->stream()));
      all.push_back(std::move(received));
    }
    FERRY_RETURN_IF_ERROR(gpu_->Wait(gpu_->stream()));
    const absl::Duration taken = SteadyClock().Now() - began;
    FERRY_RETURN_IF_ERROR(signals_.Give(step_));
    if (round >= 0) figure.ferry.Add(taken / at_.in_flight);
    for (int i = 0; i < at_.in_flight; ++i) {
      const Received& received = all[static_cast<size_t>(i)];
      paths_.insert(std::string(received.path));
      FERRY_ASSIGN_OR_RETURN(const uint64_t wrong,
                             self_.CountWrong(received.tensor, SeedOf(at_, round, i)));
      figure.wrong_bytes += received.tensor.bytes() == at_.bytes ? wrong : at_.bytes;
    }
    return absl::OkStatus();
  }

  absl::Status RunFloor(int round, Figure& figure) {
    FERRY_RETURN_IF_ERROR(self_.Meet());
    if (at_.floor == nullptr) return absl::OkStatus();
    FERRY_ASSIGN_OR_RETURN(const absl::Duration taken,
                           at_.floor(self_, FloorBuffers{sources_, destinations_}));
    if (round >= 0 && self_.id() == 1) figure.floor.Add(taken / at_.in_flight);
    return self_.Meet();
  }

  absl::Status Close() {
    sources_.clear();
    destinations_.clear();
    FERRY_RETURN_IF_ERROR(step_.Close(kTimeout));
    // Buffers of this size are not used for the next one.
    gpu_->gpu().arena->Trim();
    return absl::OkStatus();
  }
  std::string paths() const { return absl::StrJoin(paths_, "+"); }

 private:
  CheckNode& self_;
  const TransferCase& at_;
  Step step_;
  const Signals signals_;
  CheckGpu* const gpu_;
  std::vector<RendezvousKey> keys_;
  std::vector<Tensor> sources_;
  std::vector<Tensor> destinations_;
  std::set<std::string> paths_;
};

}  // namespace

PostedPtr Post(CheckNode& self, Step& step, const RendezvousKey& key, const Tensor& destination) {
  auto posted = std::make_shared<Posted>();
  RecvArgs args;
  args.destination = destination;
  EventLoop& loop = self.node().transfer_engine().loop();
  step.RecvAsync(key, std::move(args), [posted, &loop](absl::Status status, Received received) {
    posted->status = std::move(status);
    posted->received = std::move(received);
    posted->is_done.store(true, std::memory_order_release);
    loop.Wake();
  });
  return posted;
}

bool IsDone(const Posted& posted) { return posted.is_done.load(std::memory_order_acquire); }

absl::StatusOr<Received> Await(CheckNode& self, Posted& posted) {
  const bool is_done = self.node().transfer_engine().loop().WaitUntil(
      [&posted] { return IsDone(posted); }, SteadyClock().Now() + kTimeout);
  if (!is_done) return absl::DeadlineExceededError("the other node does not send");
  FERRY_RETURN_IF_ERROR(posted.status);
  return std::move(posted.received);
}

absl::StatusOr<Signals> Signals::Create(CheckNode& self) {
  FERRY_ASSIGN_OR_RETURN(RendezvousKey out, self.Key("signal", self.id(), "host:0", "host:0"));
  FERRY_ASSIGN_OR_RETURN(RendezvousKey in, self.Key("signal", 1 - self.id(), "host:0", "host:0"));
  return Signals(std::move(out), std::move(in));
}

absl::Status Signals::Give(Step& step) const {
  FERRY_ASSIGN_OR_RETURN(Tensor word, Tensor::Allocate(DataType::kUint8, Shape()));
  return step.Send(out_, std::move(word));
}

absl::Status Signals::Take(Step& step) const { return step.Recv(in_, kTimeout).status(); }

absl::Status MeasureTransfers(CheckNode& self, int64_t step_id, const TransferCase& at) {
  FERRY_ASSIGN_OR_RETURN(
      const bool has_time,
      self.HasTimeFor(absl::StrCat(at.name, ", ", at.bytes, " bytes, ", at.in_flight, " at once")));
  if (!has_time) return absl::OkStatus();
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(step_id));
  FERRY_ASSIGN_OR_RETURN(Signals signals, Signals::Create(self));
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu(self.id() == 0 ? at.from_gpu : at.to_gpu));
  Rounds rounds(self, at, std::move(step), std::move(signals), gpu);
  FERRY_RETURN_IF_ERROR(rounds.Prepare());
  Figure figure;
  figure.name = at.name;
  figure.bytes = at.bytes;
  figure.in_flight = at.in_flight;
  figure.processes_on_gpu = at.from_gpu == at.to_gpu ? 2 : 1;
  figure.goal = at.goal;
  figure.floor_name = at.floor_name;
  bool is_in_time = true;
  for (int round = -at.warm_ups; round < at.rounds && is_in_time; ++round) {
    FERRY_RETURN_IF_ERROR(self.id() == 0 ? rounds.Produce(round) : rounds.Consume(round, figure));
    FERRY_RETURN_IF_ERROR(rounds.RunFloor(round, figure));
    FERRY_ASSIGN_OR_RETURN(is_in_time, self.MeetInTime());
  }
  FERRY_RETURN_IF_ERROR(rounds.Close());
  if (self.id() == 0) return absl::OkStatus();
  figure.path = rounds.paths();
  return self.Tell(figure, at.rounds);
}

Floor CopyFloor(bool peer) {
  return [peer](CheckNode& self, const FloorBuffers& buffers) -> absl::StatusOr<absl::Duration> {
    if (self.id() == 0) return absl::ZeroDuration();
    const int to = buffers.destinations.front().location().ordinal;
    const int from = buffers.sources.front().location().ordinal;
    FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu(to));
    FERRY_ASSIGN_OR_RETURN(CheckGpu* const source, self.gpu(from));
    if (peer) {
      // Else this might measure copies through host memory.
      FERRY_RETURN_IF_ERROR(cuda::EnablePeerAccess(gpu->device(), source->device()));
    }
    const cuda::ScopedCurrent current(gpu->device());
    const absl::Time began = SteadyClock().Now();
    for (size_t i = 0; i < buffers.destinations.size(); ++i) {
      const cuda::DevicePointer out = cuda::AsDevicePointer(buffers.destinations[i].data());
      const cuda::DevicePointer in = cuda::AsDevicePointer(buffers.sources[i].data());
      const size_t bytes = buffers.sources[i].bytes();
      FERRY_RETURN_IF_ERROR(gpu->Check(
          peer ? gpu->table().copy_peer_async(out, gpu->device().context(), in,
                                              source->device().context(), bytes, gpu->stream())
               : gpu->table().copy_async(out, in, bytes, gpu->stream()),
          "cuMemcpyAsync"));
    }
    FERRY_RETURN_IF_ERROR(gpu->Wait(gpu->stream()));
    return SteadyClock().Now() - began;
  };
}

int RoundsFor(const Options& options, size_t bytes) {
  if (options.is_quick) return 3;
  if (bytes >= 64 * kMiB) return 8;
  return bytes >= kMiB ? 20 : 60;
}

}  // namespace ferry::check

// SPDX-License-Identifier: Apache-2.0
// Zero-copy transfers by CUDA IPC over sizes: a ping-pong, next to a record, a word in shared
// memory and a wait, which is the minimum that two processes need.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "benchmarks/gpu/check_events.h"
#include "benchmarks/gpu/check_transfers.h"

namespace ferry::check {
namespace {

struct Case {
  size_t bytes = 0;
  // Whether the host waits, on either side, until the bytes are there.
  bool waits = false;
  int rounds = 0;
};

uint64_t SeedOf(const Case& at, int node, int round) {
  return at.bytes * 31 + static_cast<uint64_t>(round + 100) * 2 + static_cast<uint64_t>(node) +
         (at.waits ? 7'000'000 : 0);
}

bool StreamsWait(CheckNode& self) {
  return self.node().transfer_engine().gpus()->options().waits_on_device;
}

class PingPong final {
 public:
  static absl::StatusOr<std::unique_ptr<PingPong>> Create(CheckNode& self, EventWire* wire) {
    FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
    FERRY_ASSIGN_OR_RETURN(Signals signals, Signals::Create(self));
    FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
    FERRY_ASSIGN_OR_RETURN(RendezvousKey out, self.Key("hop", self.id(), kGpu, kGpu));
    FERRY_ASSIGN_OR_RETURN(RendezvousKey in, self.Key("hop", 1 - self.id(), kGpu, kGpu));
    return std::unique_ptr<PingPong>(new PingPong(
        self, wire, gpu, std::move(step), std::move(signals), std::move(out), std::move(in)));
  }

  absl::Status Measure(const Case& at) {
    Figure figure;
    figure.name = absl::StrCat("hand-off by cuda_ipc, ",
                               StreamsWait(self_) ? "streams that wait on the device, " : "",
                               at.waits ? "until the host knows that the bytes are there"
                                        : "until the receiver's stream may go on");
    figure.bytes = at.bytes;
    figure.processes_on_gpu = 2;
    figure.floor_name = at.waits ? "event record, word in shared memory, event wait, synchronise"
                                 : "event record, word in shared memory, event wait";
    FERRY_ASSIGN_OR_RETURN(const bool has_time,
                           self_.HasTimeFor(absl::StrCat(figure.name, ", ", at.bytes, " bytes")));
    if (!has_time) return absl::OkStatus();
    bool is_in_time = true;
    for (int round = -3; round < at.rounds && is_in_time; ++round) {
      FERRY_RETURN_IF_ERROR(Round(at, round, figure));
      if (wire_ != nullptr) {
        FERRY_ASSIGN_OR_RETURN(const absl::Duration floor, wire_->Hop(at.waits));
        if (round >= 0) figure.floor.Add(floor);
      }
      FERRY_ASSIGN_OR_RETURN(is_in_time, self_.MeetInTime());
    }
    // Errors that node 1 has detected count too.
    if (self_.id() == 1) return self_.Say(absl::StrCat(figure.wrong_bytes));
    FERRY_ASSIGN_OR_RETURN(const std::string other, self_.Hear());
    figure.wrong_bytes += static_cast<uint64_t>(std::stoull(other));
    return self_.Tell(figure, at.rounds);
  }

  absl::Status Close() { return step_.Close(kTimeout); }

 private:
  PingPong(CheckNode& self, EventWire* wire, CheckGpu* gpu, Step step, Signals signals,
           RendezvousKey out, RendezvousKey in)
      : self_(self),
        wire_(wire),
        gpu_(gpu),
        step_(std::move(step)),
        signals_(std::move(signals)),
        out_(std::move(out)),
        in_(std::move(in)) {}

  absl::StatusOr<Received> Receive(const Case& at, Posted& posted) {
    FERRY_ASSIGN_OR_RETURN(Received received, Await(self_, posted));
    FERRY_RETURN_IF_ERROR(gpu_->EnqueueWait(received.tensor, gpu_->stream()));
    if (at.waits) FERRY_RETURN_IF_ERROR(gpu_->Wait(gpu_->stream()));
    return received;
  }

  absl::Status Round(const Case& at, int round, Figure& figure) {
    FERRY_ASSIGN_OR_RETURN(const Tensor tensor,
                           self_.Pattern(at.bytes, SeedOf(at, self_.id(), round)));
    const PostedPtr posted = Post(self_, step_, in_, Tensor());
    FERRY_RETURN_IF_ERROR(signals_.Give(step_));
    FERRY_RETURN_IF_ERROR(signals_.Take(step_));
    FERRY_RETURN_IF_ERROR(self_.Meet());
    Received received;
    if (self_.id() == 0) {
      const absl::Time began = SteadyClock().Now();
      FERRY_RETURN_IF_ERROR(step_.Send(out_, tensor, gpu_->stream()));
      FERRY_ASSIGN_OR_RETURN(received, Receive(at, *posted));
      const absl::Duration taken = SteadyClock().Now() - began;
      if (round >= 0) figure.ferry.Add(taken / 2);
    } else {
      FERRY_ASSIGN_OR_RETURN(received, Receive(at, *posted));
      FERRY_RETURN_IF_ERROR(step_.Send(out_, tensor, gpu_->stream()));
      // The pong may still have to be fetched: this leads the event loop.
      FERRY_RETURN_IF_ERROR(signals_.Take(step_));
    }
    if (self_.id() == 0) FERRY_RETURN_IF_ERROR(signals_.Give(step_));
    figure.path = std::string(received.path);
    FERRY_ASSIGN_OR_RETURN(const uint64_t wrong,
                           self_.CountWrong(received.tensor, SeedOf(at, 1 - self_.id(), round)));
    figure.wrong_bytes += wrong;
    received = Received();
    return self_.Meet();
  }

  CheckNode& self_;
  EventWire* const wire_;
  CheckGpu* const gpu_;
  Step step_;
  const Signals signals_;
  const RendezvousKey out_;
  const RendezvousKey in_;
};

absl::Status MeasureHops(CheckNode& self) {
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
  absl::StatusOr<std::unique_ptr<EventWire>> wire = EventWire::Create(self, *gpu);
  if (!wire.ok()) {
    self.report().Note(absl::StrCat("hand-off has no floor: ", wire.status().ToString()));
  }
  {
    FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<PingPong> play,
                           PingPong::Create(self, wire.ok() ? wire->get() : nullptr));
    std::vector<size_t> sizes = {8, 64 * kKiB, 4 * kMiB};
    if (!self.options().is_quick && !StreamsWait(self)) {
      sizes = {8, 4 * kKiB, 64 * kKiB, kMiB, 16 * kMiB};
      // Patterns that go by the host take their time.
      if (gpu->why_no_kernels().empty()) {
        sizes.push_back(256 * kMiB);
        sizes.push_back(size_t{1} << 30);
      }
    }
    for (const size_t bytes : sizes) {
      if (bytes > MostBytesInFlight(self.machine())) continue;
      for (const bool waits : {false, true}) {
        const int rounds = self.options().is_quick ? 5 : bytes > 16 * kMiB ? 20 : 200;
        FERRY_RETURN_IF_ERROR(play->Measure({bytes, waits, rounds}));
      }
    }
    FERRY_RETURN_IF_ERROR(play->Close());
  }
  return wire.ok() ? (*wire)->Close() : absl::OkStatus();
}

// How long a send keeps its caller, and how many transfers a second a pair has.
absl::Status MeasureLaunch(CheckNode& self) {
  constexpr int kInFlight = 32;
  constexpr size_t kBytes = 64 * kKiB;
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
  FERRY_ASSIGN_OR_RETURN(const Signals signals, Signals::Create(self));
  std::vector<RendezvousKey> keys;
  for (int i = 0; i < kInFlight; ++i) {
    FERRY_ASSIGN_OR_RETURN(RendezvousKey key, self.Key(absl::StrCat("call", i), 0, kGpu, kGpu));
    keys.push_back(std::move(key));
  }
  Figure figure;
  figure.name = "Step::Send with a stream: how long it keeps its caller";
  figure.bytes = kBytes;
  figure.in_flight = kInFlight;
  figure.processes_on_gpu = 2;
  figure.floor_name = "cuEventRecord";
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<EventTimer> timer, EventTimer::Create(*gpu));
  const int rounds = self.options().is_quick ? 3 : 30;
  std::set<std::string> paths;
  for (int round = 0; round < rounds; ++round) {
    if (self.id() == 0) {
      FERRY_ASSIGN_OR_RETURN(const Tensor tensor,
                             self.Pattern(kBytes, static_cast<uint64_t>(round)));
      for (const RendezvousKey& key : keys) {
        const absl::Time began = SteadyClock().Now();
        FERRY_RETURN_IF_ERROR(step.Send(key, tensor, gpu->stream()));
        figure.ferry.Add(SteadyClock().Now() - began);
        FERRY_ASSIGN_OR_RETURN(const absl::Duration floor, timer->Record(gpu->stream()));
        figure.floor.Add(floor);
      }
      FERRY_RETURN_IF_ERROR(signals.Take(step));
    } else {
      for (const RendezvousKey& key : keys) {
        FERRY_ASSIGN_OR_RETURN(const Received received, step.RecvValue(key, kTimeout));
        paths.insert(std::string(received.path));
        FERRY_ASSIGN_OR_RETURN(const uint64_t wrong,
                               self.CountWrong(received.tensor, static_cast<uint64_t>(round)));
        figure.wrong_bytes += wrong;
      }
      FERRY_RETURN_IF_ERROR(signals.Give(step));
    }
    FERRY_RETURN_IF_ERROR(self.Meet());
  }
  FERRY_RETURN_IF_ERROR(step.Close(kTimeout));
  if (self.id() == 1) {
    FERRY_RETURN_IF_ERROR(self.Say(absl::StrCat(figure.wrong_bytes)));
    FERRY_RETURN_IF_ERROR(self.Say(absl::StrJoin(paths, "+")));
  } else {
    FERRY_ASSIGN_OR_RETURN(const std::string wrong, self.Hear());
    figure.wrong_bytes = static_cast<uint64_t>(std::stoull(wrong));
    // The receiver's observation.
    FERRY_ASSIGN_OR_RETURN(figure.path, self.Hear());
    self.report().Figure(FigureJson(figure));
  }
  TransferCase at;
  at.name = "a transfer by cuda_ipc of many at a time";
  at.bytes = kBytes;
  at.in_flight = kInFlight;
  at.rounds = rounds;
  at.into = true;
  at.floor_name = "cuMemcpyDtoDAsync";
  at.floor = CopyFloor();
  return MeasureTransfers(self, 2, at);
}

}  // namespace

absl::Status RunLatencyPart(PartContext& context) {
  NodesOptions options;
  options.name = "hand-off";
  options.transfer = TransferOptionsFor(context.machine, "cuda_ipc");
  FERRY_RETURN_IF_ERROR(RunNodes(context, options, {MeasureHops, MeasureHops}).status());
  options.name = "hand-off, streams wait on the device";
  options.transfer.gpus.waits_on_device = true;
  return RunNodes(context, options, {MeasureHops, MeasureHops}).status();
}

absl::Status RunLaunchPart(PartContext& context) {
  NodesOptions options;
  options.name = "launch";
  options.transfer = TransferOptionsFor(context.machine, "cuda_ipc");
  return RunNodes(context, options, {MeasureLaunch, MeasureLaunch}).status();
}

}  // namespace ferry::check

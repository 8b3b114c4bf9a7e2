// SPDX-License-Identifier: Apache-2.0
// Figures of keyed transfers over NCCL, Step::Send and Recv, beside raw ncclSend and ncclRecv
// between the same two GPUs, on the same communicator.
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "benchmarks/gpu/check_nccl.h"
#include "benchmarks/gpu/check_transfers.h"
#include "gpu/nccl/nccl_api.h"
#include "transport/nccl/nccl_transport.h"

namespace ferry::check {
namespace {

constexpr char kTransport[] = "nccl";
constexpr absl::Duration kKeyedTimeout = absl::Seconds(60);
// Longer than a pair of devices may take to make its communicator (NcclContext).
constexpr absl::Duration kPatienceOnOne = absl::Seconds(40);
constexpr char kTooSlow[] = "too slow";

// The communicator of keyed transfers between gpu:0 of node 0 and gpu:1 of node 1, once one of them
// has been made.
absl::StatusOr<std::shared_ptr<NcclCommunicator>> FindCommunicator(CheckNode& self) {
  const int me = self.id();
  FERRY_ASSIGN_OR_RETURN(const int peer, GlobalIdOf(self.node(), 1 - me, 1 - me));
  for (const auto& transport : self.node().transfer_engine().transports()) {
    if (transport->name() != kTransport) continue;
    auto communicator =
        static_cast<const NcclTransport&>(*transport).CommunicatorWith(me, DeviceId(peer));
    if (communicator != nullptr) return communicator;
  }
  return absl::NotFoundError("no communicator has been made for keyed transfers");
}

absl::Status SendOne(CheckNode& self) {
  constexpr size_t kBytes = kMiB;
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, self.Key("first", 0, "gpu:0", "gpu:1"));
  if (self.id() == 0) {
    FERRY_ASSIGN_OR_RETURN(const Tensor tensor, self.Pattern(kBytes, 9));
    FERRY_RETURN_IF_ERROR(step.Send(key, tensor));
  } else {
    FERRY_ASSIGN_OR_RETURN(const Received received, step.RecvValue(key, kKeyedTimeout));
    self.report().Check("keyed, by nccl, the first", self.Verify(received.tensor, kBytes, 9));
  }
  return self.Meet();
}

// A send at node 0 and a receive at node 1, on the communicator of keyed transfers, of which none
// is in flight then.
class RawNccl final {
 public:
  static absl::StatusOr<std::shared_ptr<RawNccl>> Create(CheckNode& self) {
    auto raw = std::make_shared<RawNccl>();
    FERRY_RETURN_IF_ERROR(SendOne(self));
    FERRY_ASSIGN_OR_RETURN(raw->communicator_, FindCommunicator(self));
    return raw;
  }

  absl::StatusOr<absl::Duration> Run(CheckNode& self, const FloorBuffers& buffers) const {
    FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu(communicator_->ordinal()));
    const bool is_sender = self.id() == 0;
    const std::vector<Tensor>& tensors = is_sender ? buffers.sources : buffers.destinations;
    std::vector<NcclOperation> operations;
    for (const Tensor& each : tensors) {
      operations.push_back(
          {is_sender, const_cast<void*>(each.data()), each.bytes(), is_sender ? 1 : 0});
    }
    FERRY_RETURN_IF_ERROR(self.Meet());
    const absl::Time began = SteadyClock().Now();
    FERRY_RETURN_IF_ERROR(RunGroup(*communicator_, operations, gpu->stream()));
    FERRY_RETURN_IF_ERROR(gpu->Wait(gpu->stream()));
    return SteadyClock().Now() - began;
  }

 private:
  std::shared_ptr<NcclCommunicator> communicator_;
};

absl::Status MeasureKeyed(CheckNode& self) {
  constexpr double kGoal = 0.98;
  FERRY_ASSIGN_OR_RETURN(const std::shared_ptr<RawNccl> raw, RawNccl::Create(self));
  std::vector<size_t> sizes = {64 << 10, kMiB};
  if (!self.options().is_quick) {
    for (const size_t mib : {size_t{4}, size_t{16}, size_t{64}, size_t{256}}) {
      sizes.push_back(mib * kMiB);
    }
  }
  int64_t step = 1;
  for (const size_t bytes : sizes) {
    for (const int in_flight : {1, 8}) {
      if (bytes * static_cast<size_t>(in_flight) > MostBytesInFlight(self.machine())) continue;
      TransferCase at;
      at.name = "keyed, by nccl, gpu:0 to gpu:1";
      at.bytes = bytes;
      at.in_flight = in_flight;
      at.rounds = RoundsFor(self.options(), bytes);
      at.to_gpu = 1;
      if (bytes >= kMiB) at.goal = kGoal;
      at.floor_name = "ncclSend and ncclRecv, in one group";
      at.floor = [raw](CheckNode& node, const FloorBuffers& buffers) {
        return raw->Run(node, buffers);
      };
      FERRY_RETURN_IF_ERROR(MeasureTransfers(self, ++step, at));
    }
  }
  return self.Meet();
}

constexpr size_t kSharedGpuBytes = kMiB + 24;
constexpr char kSharedGpuName[] = "keyed, by nccl, two processes on one GPU";

void CheckKeyed(CheckNode& self, const absl::StatusOr<Received>& received) {
  if (!received.ok()) {
    self.report().Check(kSharedGpuName, received.status());
    return;
  }
  self.report().Check(kSharedGpuName, self.Verify(received->tensor, kSharedGpuBytes, 6),
                      {{"path", std::string(received->path)}});
}

absl::StatusOr<RendezvousKey> SharedGpuKey(CheckNode& self) {
  return self.Key("keyed", 0, "gpu:0", "gpu:0");
}

// Two processes on one GPU alternate on it, so nothing is measured.
absl::Status SendKeyed(CheckNode& self) {
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, SharedGpuKey(self));
  if (self.id() == 0) {
    FERRY_ASSIGN_OR_RETURN(const Tensor tensor, self.Pattern(kSharedGpuBytes, 6));
    FERRY_RETURN_IF_ERROR(step.Send(key, tensor));
  } else {
    CheckKeyed(self, step.RecvValue(key, kPatienceOnOne));
  }
  return self.Meet();
}

// The same with an NCCL that does not support it: a deadline that is exceeded is not Ferry's fault.
absl::Status TryToSendKeyed(CheckNode& self) {
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, SharedGpuKey(self));
  if (self.id() == 0) {
    FERRY_ASSIGN_OR_RETURN(const Tensor tensor, self.Pattern(kSharedGpuBytes, 6));
    FERRY_RETURN_IF_ERROR(step.Send(key, tensor));
    FERRY_ASSIGN_OR_RETURN(const std::string word, self.Hear(kPatienceOnOne + kPatienceOnOne / 8));
    // NCCL may never return from an operation that it has begun.
    if (word == kTooSlow) std::_Exit(0);
    return self.Meet();
  }
  const absl::StatusOr<Received> received = step.RecvValue(key, kPatienceOnOne);
  if (absl::IsDeadlineExceeded(received.status())) {
    self.report().SkipCheck(kSharedGpuName,
                            absl::StrCat("NCCL before 2.30.3 does not support two ranks on one "
                                         "GPU: ",
                                         received.status().message()));
    FERRY_RETURN_IF_ERROR(self.Say(kTooSlow));
    std::_Exit(0);
  }
  FERRY_RETURN_IF_ERROR(self.Say("it came to an end"));
  if (absl::IsFailedPrecondition(received.status())) {
    self.report().SkipCheck(kSharedGpuName, received.status().message());
  } else {
    CheckKeyed(self, received);
  }
  return self.Meet();
}

// Whether this build of Ferry has such a transport; a node without it reports why the part ends.
absl::Status LookForTransport(CheckNode& self) {
  std::vector<absl::string_view> names;
  for (const auto& transport : self.node().transfer_engine().transports()) {
    if (transport->name() == kTransport) return absl::OkStatus();
    names.push_back(transport->name());
  }
  self.report().SkipPart(absl::StrCat("keyed transfers by nccl are not available: this build has ",
                                      absl::StrJoin(names, ", ")));
  std::_Exit(1);
}

}  // namespace

absl::Status RunNcclKeyedPart(PartContext& context) {
  const absl::StatusOr<int> version = NcclVersion();
  if (!version.ok()) {
    context.report.SkipPart(version.status().message());
    return absl::OkStatus();
  }
  NodesOptions look;
  look.name = "the list of transports";
  look.transfer = TransferOptionsFor(context.machine);
  FERRY_ASSIGN_OR_RETURN(const bool has_it, RunNodes(context, look, {LookForTransport}));
  if (!has_it) return absl::OkStatus();
  NodesOptions options;
  options.name = "keyed, by nccl";
  options.transfer = TransferOptionsFor(context.machine, kTransport);
  if (context.machine.gpu_count < 2) {
    context.report.Note("keyed transfers by nccl need two GPUs to be measured");
    options.environments = {SharedGpuEnvironment(0, *version), SharedGpuEnvironment(1, *version)};
    const NodeBody body =
        *version >= nccl::kMultiRankGpuVersion ? NodeBody(SendKeyed) : NodeBody(TryToSendKeyed);
    FERRY_RETURN_IF_ERROR(RunNodes(context, options, {body, body}).status());
  } else {
    FERRY_RETURN_IF_ERROR(RunNodes(context, options, {MeasureKeyed, MeasureKeyed}).status());
  }
  return CheckPuts(context, *version);
}

}  // namespace ferry::check

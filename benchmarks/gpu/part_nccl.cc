// SPDX-License-Identifier: Apache-2.0
// NCCL through Node::Communicator: a rank alone, and two processes on one GPU. Two GPUs: NCCL, and
// copies within a process and between two.
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "benchmarks/gpu/check_nccl.h"
#include "benchmarks/gpu/check_peers.h"
#include "benchmarks/gpu/check_transfers.h"
#include "gpu/nccl/nccl_api.h"

namespace ferry::check {
namespace {

std::vector<size_t> NcclSizes(const Options& options) {
  std::vector<size_t> sizes = {1, 100'003, 4 * kMiB};
  if (!options.is_quick) sizes.push_back(64 * kMiB);
  return sizes;
}

// Two nodes, node i with GPU i.
absl::Status ExchangeByNccl(CheckNode& self, const std::vector<int>& ordinals,
                            const std::string& name, int max_ctas) {
  FERRY_ASSIGN_OR_RETURN(const std::shared_ptr<NcclCommunicator> communicator,
                         MakeCommunicator(self, ordinals, max_ctas));
  for (const size_t bytes : NcclSizes(self.options())) {
    FERRY_RETURN_IF_ERROR(
        ExchangeAndVerify(self, *communicator, bytes,
                          absl::StrCat(name, ", ", bytes, " bytes, rank ", communicator->rank())));
  }
  return self.Meet();
}

// One rank, on a communicator of Ferry's: the cost of the store, the warm-up and non-blocking calls
// on a machine with one GPU.
absl::Status SendToItselfByFerry(CheckNode& self) {
  FERRY_ASSIGN_OR_RETURN(const std::shared_ptr<NcclCommunicator> communicator,
                         MakeCommunicator(self, {0}));
  if (communicator->size() != 1) {
    return absl::InternalError(
        absl::StrCat("the communicator has ", communicator->size(), " ranks, and not 1"));
  }
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
  for (const size_t bytes : NcclSizes(self.options())) {
    FERRY_ASSIGN_OR_RETURN(Tensor from, self.Pattern(bytes, bytes + 1));
    FERRY_ASSIGN_OR_RETURN(Tensor to, self.Empty(bytes));
    FERRY_RETURN_IF_ERROR(
        RunGroup(*communicator,
                 {{true, from.mutable_data(), bytes, 0}, {false, to.mutable_data(), bytes, 0}},
                 gpu->stream()));
    FERRY_RETURN_IF_ERROR(gpu->WaitWithin(self.Timeout(), gpu->stream()));
    self.report().Check(
        absl::StrCat("one rank sends itself ", bytes, " bytes by a communicator of Ferry's"),
        self.Verify(to, bytes, bytes + 1));
  }
  return absl::OkStatus();
}

// The same by NCCL alone: an error here is not Ferry's.
absl::Status SendToItself(CheckNode& self) {
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<nccl::NcclApi> api, nccl::NcclApi::Load());
  const nccl::NcclTable& table = api->table();
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const gpu, self.gpu());
  const cuda::ScopedCurrent current(gpu->device());
  nccl::UniqueId id = {};
  nccl::Communicator communicator = nullptr;
  nccl::Config config;
  FERRY_RETURN_IF_ERROR(api->Check(table.get_unique_id(&id), "ncclGetUniqueId"));
  FERRY_RETURN_IF_ERROR(api->Check(table.init_rank_config(&communicator, 1, id, 0, &config),
                                   "ncclCommInitRankConfig"));
  for (const size_t bytes : NcclSizes(self.options())) {
    FERRY_ASSIGN_OR_RETURN(const Tensor from, self.Pattern(bytes, bytes));
    FERRY_ASSIGN_OR_RETURN(Tensor to, self.Empty(bytes));
    FERRY_RETURN_IF_ERROR(api->Check(table.group_start(), "ncclGroupStart"));
    absl::Status status = api->Check(
        table.send(from.data(), bytes, nccl::kUint8, 0, communicator, gpu->stream()), "ncclSend");
    status.Update(api->Check(
        table.recv(to.mutable_data(), bytes, nccl::kUint8, 0, communicator, gpu->stream()),
        "ncclRecv"));
    status.Update(api->Check(table.group_end(), "ncclGroupEnd"));
    FERRY_RETURN_IF_ERROR(status);
    FERRY_RETURN_IF_ERROR(gpu->WaitWithin(self.Timeout(), gpu->stream()));
    self.report().Check(absl::StrCat("one rank sends itself ", bytes, " bytes"),
                        self.Verify(to, bytes, bytes));
  }
  return api->Check(table.destroy(communicator), "ncclCommDestroy");
}

constexpr char kSharedGpuExchange[] = "two processes on one GPU exchange";
constexpr char kUnsupported[] =
    "NCCL before 2.30.3 does not support two ranks on one GPU, and may hang";

absl::Status ExchangeOnOneGpu(CheckNode& self) {
  return ExchangeByNccl(self, {0, 0}, kSharedGpuExchange, 2);
}

// The same with an NCCL that does not support it: a deadline that is exceeded is not Ferry's fault.
absl::Status TryToExchangeOnOneGpu(CheckNode& self) {
  const absl::Status status = ExchangeOnOneGpu(self);
  if (!absl::IsDeadlineExceeded(status)) return status;
  self.report().SkipCheck(absl::StrCat(kSharedGpuExchange, ", node ", self.id()),
                          absl::StrCat(kUnsupported, ": ", status.message()));
  // NCCL may never return from an operation that it has begun.
  std::_Exit(0);
}

// Ends the process, with a report, where one GPU cannot access the other's memory.
absl::Status LookForPeerAccess(CheckNode& self) {
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const first, self.gpu(0));
  FERRY_ASSIGN_OR_RETURN(CheckGpu* const second, self.gpu(1));
  const auto reaches = [](CheckGpu& from, CheckGpu& to) {
    int can = 0;
    return from.table().device_can_access_peer(&can, from.device().handle(),
                                               to.device().handle()) == cuda::kSuccess &&
           can != 0;
  };
  if (reaches(*first, *second) && reaches(*second, *first)) return absl::OkStatus();
  self.report().SkipCheck("copies by cuda_ipc between two GPUs",
                          "gpu:0 and gpu:1 have no peer access");
  std::_Exit(1);
}

absl::Status CopyBetweenGpus(CheckNode& self) {
  int64_t step = 0;
  std::vector<size_t> sizes = {100'003, kMiB};
  if (!self.options().is_quick) {
    for (const size_t mib : {size_t{4}, size_t{16}, size_t{64}, size_t{256}}) {
      sizes.push_back(mib * kMiB);
    }
  }
  for (const size_t bytes : sizes) {
    for (const int in_flight : {1, 4}) {
      if (bytes * static_cast<size_t>(in_flight) > MostBytesInFlight(self.machine())) continue;
      TransferCase at;
      at.name = "copy by cuda_ipc, gpu:0 to gpu:1";
      at.bytes = bytes;
      at.in_flight = in_flight;
      at.rounds = RoundsFor(self.options(), bytes);
      at.from_gpu = 0;
      at.to_gpu = 1;
      at.floor_name = "cuMemcpyPeerAsync";
      at.floor = CopyFloor(/*peer=*/true);
      FERRY_RETURN_IF_ERROR(MeasureTransfers(self, ++step, at));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunNcclSelfPart(PartContext& context) {
  if (const absl::Status nccl = NcclVersion().status(); !nccl.ok()) {
    context.report.SkipPart(nccl.message());
    return absl::OkStatus();
  }
  NodesOptions options;
  options.name = "one rank, by NCCL alone";
  options.transfer = TransferOptionsFor(context.machine);
  FERRY_RETURN_IF_ERROR(RunNodes(context, options, {SendToItself}).status());
  options.name = "one rank, by Ferry";
  return RunNodes(context, options, {SendToItselfByFerry}).status();
}

absl::Status RunNcclSharedGpuPart(PartContext& context) {
  const absl::StatusOr<int> version = NcclVersion();
  if (!version.ok()) {
    context.report.SkipPart(version.status().message());
    return absl::OkStatus();
  }
  NodesOptions options;
  options.name = "two processes on one GPU";
  options.transfer = TransferOptionsFor(context.machine);
  options.environments = {SharedGpuEnvironment(0, *version), SharedGpuEnvironment(1, *version)};
  if (*version >= nccl::kMultiRankGpuVersion) {
    return RunNodes(context, options, {ExchangeOnOneGpu, ExchangeOnOneGpu}).status();
  }
  context.report.Note(
      "NCCL supports two ranks on one GPU from 2.30.3 (pip install nvidia-nccl-cu13); this one may "
      "hang, and talks over sockets");
  options.excuse = kUnsupported;
  return RunNodes(context, options, {TryToExchangeOnOneGpu, TryToExchangeOnOneGpu}).status();
}

absl::Status RunSeveralGpusPart(PartContext& context) {
  if (context.machine.gpu_count < 2) {
    context.report.SkipPart("this machine shows one GPU");
    return absl::OkStatus();
  }
  // Before the slow measurements: whether it works is reported first.
  if (const absl::Status nccl = NcclVersion().status(); !nccl.ok()) {
    context.report.SkipCheck("NCCL between two GPUs", nccl.message());
  } else {
    NodesOptions options;
    options.name = "NCCL between two GPUs";
    options.transfer = TransferOptionsFor(context.machine);
    const NodeBody body = [](CheckNode& self) {
      return ExchangeByNccl(self, {0, 1}, "NCCL between two GPUs", 0);
    };
    FERRY_RETURN_IF_ERROR(RunNodes(context, options, {body, body}).status());
  }
  NodesOptions look;
  look.name = "peer access";
  look.transfer = TransferOptionsFor(context.machine);
  FERRY_ASSIGN_OR_RETURN(const bool are_peers, RunNodes(context, look, {LookForPeerAccess}));
  if (!are_peers) return absl::OkStatus();
  NodesOptions within;
  within.name = "gpu:0 and gpu:1 in one process";
  within.transfer = TransferOptionsFor(context.machine);
  FERRY_RETURN_IF_ERROR(RunNodes(context, within, {CopyWithinProcess}).status());
  NodesOptions copies;
  copies.name = "gpu:0 to gpu:1 by cuda_ipc";
  copies.transfer = TransferOptionsFor(context.machine, "cuda_ipc");
  return RunNodes(context, copies, {CopyBetweenGpus, CopyBetweenGpus}).status();
}

}  // namespace ferry::check

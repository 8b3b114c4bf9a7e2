// SPDX-License-Identifier: Apache-2.0
// A program's own collectives next to keyed transfers by NCCL, between the same two GPUs, or two
// processes on one: only Ferry's arbitration orders one against the other.
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "benchmarks/gpu/check_nccl.h"
#include "benchmarks/gpu/check_transfers.h"
#include "gpu/nccl/nccl_api.h"

namespace ferry::check {
namespace {

constexpr char kName[] = "collectives beside keyed transfers";
constexpr size_t kSumBytes = 200'000;
constexpr size_t kTransferBytes = 200'008;
// The sum of one round that all others are compared with.
constexpr int kPatterns = 8;
// Polling the GPU's events ends the program's use of NCCL, a moment after the sum itself.
constexpr absl::Duration kTurnEnds = absl::Milliseconds(50);

// The GPU of that node.
int OrdinalOf(const CheckNode& self, int node_id) {
  return self.machine().gpu_count < 2 ? 0 : node_id;
}

// All-reduces over both nodes. Used by one thread at a time.
class Sums final {
 public:
  explicit Sums(CheckNode& self) : self_(self) {}

  static absl::StatusOr<std::unique_ptr<Sums>> Create(CheckNode& self) {
    auto sums = std::make_unique<Sums>(self);
    FERRY_ASSIGN_OR_RETURN(sums->communicator_,
                           MakeCommunicator(self, {OrdinalOf(self, 0), OrdinalOf(self, 1)}));
    const int ordinal = OrdinalOf(self, self.id());
    FERRY_ASSIGN_OR_RETURN(sums->gpu_, self.gpu(ordinal));
    FERRY_ASSIGN_OR_RETURN(sums->stream_, cuda::CudaStream::Create(sums->gpu_->gpu().device));
    FERRY_ASSIGN_OR_RETURN(sums->in_, self.Empty(kSumBytes, ordinal));
    FERRY_ASSIGN_OR_RETURN(sums->out_, self.Empty(kSumBytes, ordinal));
    return sums;
  }

  // Enqueues one of numbers that belong to `round`.
  absl::Status Begin(int round) {
    round_ = round;
    FERRY_RETURN_IF_ERROR(Set(in_, Number(round, communicator_->rank())));
    FERRY_RETURN_IF_ERROR(Set(out_, 0));
    return communicator_->Run(
        stream_->get(),
        [this](const nccl::NcclTable& nccl, nccl::Communicator handle) {
          return nccl.all_reduce(in_.data(), out_.mutable_data(), kSumBytes, nccl::kUint8,
                                 nccl::kReduceSum, handle, stream_->get());
        },
        kTimeout);
  }

  // Waits for the last one, and looks at every number.
  absl::Status Finish() {
    std::vector<uint8_t> found(kSumBytes);
    {
      const cuda::ScopedCurrent current(gpu_->device());
      FERRY_RETURN_IF_ERROR(gpu_->Check(
          gpu_->table().copy_to_host_async(found.data(), cuda::AsDevicePointer(out_.data()),
                                           found.size(), stream_->get()),
          "cuMemcpyDtoHAsync"));
    }
    FERRY_RETURN_IF_ERROR(gpu_->WaitWithin(self_.Timeout(), stream_->get()));
    const auto sum = static_cast<uint8_t>(Number(round_, 0) + Number(round_, 1));
    const auto right = absl::c_count(found, sum);
    if (right == static_cast<int64_t>(found.size())) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(static_cast<int64_t>(found.size()) - right, " of ",
                                            found.size(), " numbers of sum ", round_,
                                            " are not what they should be"));
  }

 private:
  static uint8_t Number(int round, int rank) {
    return static_cast<uint8_t>(1 + round % 50 + 60 * rank);
  }

  absl::Status Set(const Tensor& tensor, uint8_t number) const {
    const cuda::ScopedCurrent current(gpu_->device());
    return gpu_->Check(gpu_->table().set_bytes_async(cuda::AsDevicePointer(tensor.data()), number,
                                                     tensor.bytes(), stream_->get()),
                       "cuMemsetD8Async");
  }

  CheckNode& self_;
  std::shared_ptr<NcclCommunicator> communicator_;
  CheckGpu* gpu_ = nullptr;
  std::unique_ptr<cuda::CudaStream> stream_;
  Tensor in_;
  Tensor out_;
  int round_ = 0;
};

absl::StatusOr<RendezvousKey> KeyOf(CheckNode& self, int index) {
  return self.Key(absl::StrCat("t", index), 0, absl::StrCat("gpu:", OrdinalOf(self, 0)),
                  absl::StrCat("gpu:", OrdinalOf(self, 1)));
}

// Patterns need driver memory, whose allocation must not wait for a sum.
absl::StatusOr<std::vector<Tensor>> MakePatterns(CheckNode& self) {
  std::vector<Tensor> patterns;
  for (int i = 0; i < kPatterns; ++i) {
    FERRY_ASSIGN_OR_RETURN(Tensor tensor, self.Pattern(kTransferBytes, static_cast<uint64_t>(i),
                                                       OrdinalOf(self, self.id())));
    patterns.push_back(std::move(tensor));
  }
  return patterns;
}

absl::Status SendAll(CheckNode& self, Step& step, const std::vector<Tensor>& patterns, int count) {
  for (int i = 0; i < count; ++i) {
    FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, KeyOf(self, i));
    FERRY_RETURN_IF_ERROR(step.Send(key, patterns[static_cast<size_t>(i % kPatterns)]));
  }
  return step.Close(kTimeout);
}

// Several at a time, in an order that is not the sender's.
absl::Status ReceiveAll(CheckNode& self, Step& step, int count, std::map<std::string, int>& paths) {
  for (int first = 0; first < count; first += kPatterns) {
    std::vector<std::pair<int, PostedPtr>> posted;
    for (int i = kPatterns - 1; i >= 0; --i) {
      FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, KeyOf(self, first + i));
      posted.emplace_back(i, Post(self, step, key, Tensor()));
    }
    for (const auto& [pattern, each] : posted) {
      FERRY_ASSIGN_OR_RETURN(const Received received, Await(self, *each));
      ++paths[std::string(received.path)];
      FERRY_RETURN_IF_ERROR(
          self.Verify(received.tensor, kTransferBytes, static_cast<uint64_t>(pattern)));
    }
  }
  return absl::OkStatus();
}

// Each as its thread is scheduled: without arbitration one GPU would have the sum first, and the
// other one the transfer.
absl::Status RunBoth(CheckNode& self) {
  // Without MPS, processes on one GPU take turns, and each of these needs both.
  const bool is_short = self.options().is_quick || self.machine().gpu_count < 2;
  const int transfers = kPatterns * (is_short ? 10 : 50);
  const int sums = is_short ? 30 : 200;
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Sums> sum, Sums::Create(self));
  FERRY_ASSIGN_OR_RETURN(const std::vector<Tensor> patterns, MakePatterns(self));
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
  FERRY_RETURN_IF_ERROR(self.Meet());
  absl::Status summed;
  std::thread program([&] {
    for (int i = 0; i < sums && summed.ok(); ++i) {
      summed = sum->Begin(i);
      if (summed.ok() && (i % 4 == 0 || i + 1 == sums)) summed = sum->Finish();
      absl::SleepFor(absl::Microseconds(137 * (i % 7)));
    }
  });
  std::map<std::string, int> paths;
  const absl::Status moved = self.id() == 0 ? SendAll(self, step, patterns, transfers)
                                            : ReceiveAll(self, step, transfers, paths);
  program.join();
  self.report().Check(absl::StrCat(kName, ": the sums of node ", self.id()), summed,
                      {{"sums", sums}});
  self.report().Check(absl::StrCat(kName, ": the transfers of node ", self.id()), moved,
                      {{"transfers", transfers}, {"paths", paths}});
  FERRY_RETURN_IF_ERROR(summed);
  FERRY_RETURN_IF_ERROR(moved);
  return self.Meet();
}

absl::StatusOr<Received> ReceiveOne(CheckNode& self, Step& step, int index) {
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, KeyOf(self, index));
  FERRY_ASSIGN_OR_RETURN(Received received, step.RecvValue(key, kTimeout));
  FERRY_RETURN_IF_ERROR(self.Verify(received.tensor, kTransferBytes, static_cast<uint64_t>(index)));
  return received;
}

absl::Status SendBeforeASum(CheckNode& self) {
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Sums> sum, Sums::Create(self));
  FERRY_ASSIGN_OR_RETURN(const std::vector<Tensor> patterns, MakePatterns(self));
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
  const auto send = [&](int index) -> absl::Status {
    FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, KeyOf(self, index));
    return step.Send(key, patterns[static_cast<size_t>(index)]);
  };
  FERRY_RETURN_IF_ERROR(send(0));
  FERRY_RETURN_IF_ERROR(self.Meet());
  // The GPU is in the sum, which waits for node 1, which waits for this.
  FERRY_RETURN_IF_ERROR(sum->Begin(1));
  FERRY_RETURN_IF_ERROR(send(1));
  FERRY_RETURN_IF_ERROR(self.Meet());
  self.report().Check(absl::StrCat(kName, ": the sum that was begun before the tensor went"),
                      sum->Finish());
  FERRY_RETURN_IF_ERROR(self.Meet());
  for (int i = 2; i < kPatterns; ++i) {
    absl::SleepFor(kTurnEnds);
    FERRY_RETURN_IF_ERROR(send(i));
    FERRY_RETURN_IF_ERROR(self.Meet());
  }
  return absl::OkStatus();
}

absl::Status ReceiveBeforeASum(CheckNode& self) {
  constexpr char kNccl[] = "nccl";
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Sums> sum, Sums::Create(self));
  FERRY_ASSIGN_OR_RETURN(Step step, self.node().OpenStep(1));
  FERRY_ASSIGN_OR_RETURN(const Received first, ReceiveOne(self, step, 0));
  FERRY_RETURN_IF_ERROR(self.Meet());
  const absl::Time began = SteadyClock().Now();
  const absl::StatusOr<Received> waited = ReceiveOne(self, step, 1);
  const absl::Duration taken = SteadyClock().Now() - began;
  absl::Status status = waited.status();
  if (waited.ok() && waited->path == kNccl) {
    status = absl::InternalError("it went by nccl beside the program's sum");
  }
  self.report().Check(absl::StrCat(kName, ": a tensor that a sum waits for goes another way"),
                      status,
                      {{"before", std::string(first.path)},
                       {"path", waited.ok() ? std::string(waited->path) : ""},
                       {"ms", absl::ToDoubleMilliseconds(taken)}});
  FERRY_RETURN_IF_ERROR(self.Meet());
  FERRY_RETURN_IF_ERROR(sum->Begin(1));
  FERRY_RETURN_IF_ERROR(sum->Finish());
  FERRY_RETURN_IF_ERROR(self.Meet());
  // Costs are measured, and may favour another path now and then; it is an error if no transfer
  // uses this one.
  int as_before = 0;
  std::string last;
  status = absl::OkStatus();
  for (int i = 2; i < kPatterns; ++i) {
    const absl::StatusOr<Received> next = ReceiveOne(self, step, i);
    if (status.ok()) status = next.status();
    if (next.ok()) last = std::string(next->path);
    if (next.ok() && next->path == first.path) ++as_before;
    FERRY_RETURN_IF_ERROR(self.Meet());
  }
  if (status.ok() && as_before == 0) {
    status = absl::InternalError(
        absl::StrCat("none went by ", first.path, ", as one did before, and the last by ", last));
  }
  self.report().Check(absl::StrCat(kName, ": later ones go as before"), status,
                      {{"transfers", kPatterns - 2}, {"as before", as_before}});
  return absl::OkStatus();
}

}  // namespace

absl::Status RunNcclTurnsPart(PartContext& context) {
  const absl::StatusOr<int> version = NcclVersion();
  if (!version.ok()) {
    context.report.SkipPart(version.status().message());
    return absl::OkStatus();
  }
  const bool shares_gpu = context.machine.gpu_count < 2;
  if (shares_gpu && *version < nccl::kMultiRankGpuVersion) {
    context.report.SkipPart(
        "this machine shows one GPU, and NCCL before 2.30.3 does not support two ranks on one");
    return absl::OkStatus();
  }
  NodesOptions options;
  options.name = kName;
  if (shares_gpu) {
    options.environments = {SharedGpuEnvironment(0, *version), SharedGpuEnvironment(1, *version)};
  }
  options.transfer = TransferOptionsFor(context.machine, "nccl");
  // Many batches, each of which could block.
  options.transfer.transports.nccl.grants.max_batch_operations = 2;
  FERRY_RETURN_IF_ERROR(RunNodes(context, options, {RunBoth, RunBoth}).status());
  // Without a Unix socket there are no descriptors, and NCCL is the cheapest path between two GPUs.
  options.name = absl::StrCat(kName, ", another way");
  options.transfer = TransferOptionsFor(context.machine);
  options.transfer.unix_socket = false;
  return RunNodes(context, options, {SendBeforeASum, ReceiveBeforeASum}).status();
}

}  // namespace ferry::check

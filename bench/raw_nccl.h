// SPDX-License-Identifier: Apache-2.0
// RawNccl: the baseline of NCCL transfers: the same bytes between the same two GPUs on the same
// communicator, by plain ncclSend and ncclRecv.
#ifndef FERRY_BENCH_RAW_NCCL_H_
#define FERRY_BENCH_RAW_NCCL_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "bench/device.h"
#include "bench/meeting.h"
#include "bench/plan.h"
#include "gpu/communicator/communicator.h"
#include "gpu/gpus.h"
#include "tensor/tensor.h"
#include "transport/nccl/nccl_transport.h"

namespace ferry::cli {

// For ranks 0 and 1, which make the same calls in the same order, after all their transfers to each
// other have completed. All rounds of a call are one turn (NcclCommunicator::Run): keyed transfers
// by NCCL on these GPUs finish before, and resume after it. NCCL is called on the device's thread,
// as for keyed transfers. Not thread-safe.
class RawNccl final {
 public:
  // The path of the transfers that it is a baseline for.
  static constexpr absl::string_view kPath = NcclTransport::kInfo.name;

  // Returns null if keyed transfers between the two GPUs have made no communicator, or it is gone.
  //   device: of this process; all arguments must outlive it.
  static std::unique_ptr<RawNccl> Find(const BenchParticipants& party, const BenchPlan& plan,
                                       BenchDevice& device);

  // Returns the P50 of `rounds` round trips, halved.
  //   Errors: INTERNAL if wrong data arrives; NCCL's errors; DEADLINE_EXCEEDED; why the bench was
  //   stopped.
  absl::StatusOr<absl::Duration> MeasurePingPong(size_t bytes, int rounds);
  // Sends `count` tensors from the first rank to the second, in groups of at most 64, until the
  // second answers. Returns the P50 over `rounds`, divided by `count`. Errors: as above.
  absl::StatusOr<absl::Duration> MeasureStream(size_t bytes, int count, int rounds);
  // Sends `count` tensors each way at once, in groups of the same size. Returns the P50 of a round.
  // Errors: as above.
  absl::StatusOr<absl::Duration> MeasureExchange(size_t bytes, int count, int rounds);

 private:
  struct Operation {
    bool is_send = false;
    Tensor tensor;
  };
  // The operations between ncclGroupStart and ncclGroupEnd.
  using Group = std::vector<Operation>;

  RawNccl(const BenchParticipants& party, BenchDevice& device,
          std::shared_ptr<NcclCommunicator> communicator)
      : party_(party), device_(device), communicator_(std::move(communicator)) {}

  // Returns the duration of each round of `groups`, after a warm-up round.
  absl::StatusOr<std::vector<absl::Duration>> Measure(const std::vector<Group>& groups, int rounds);
  // Runs on the device's thread.
  absl::Status RunRound(const std::vector<Group>& groups, const nccl::NcclTable& nccl,
                        nccl::Communicator comm, cuda::Stream stream) const;
  // Polls until `is_over` returns true, or the deadline or a stop.
  absl::Status Await(absl::FunctionRef<absl::StatusOr<bool>()> is_over) const;
  // Checks that the tensor is what the other rank sent.
  absl::Status Verify(const Tensor& tensor, size_t bytes, int index);
  // Blocks until keyed transfers may resume.
  absl::Status AwaitEndOfTurn() const;

  const BenchParticipants& party_;
  BenchDevice& device_;
  const std::shared_ptr<NcclCommunicator> communicator_;
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_RAW_NCCL_H_

// SPDX-License-Identifier: Apache-2.0
// RawNccl: the floor of what goes by NCCL: the same bytes between the same two GPUs, on the same
// communicator, by ncclSend and ncclRecv and nothing else.
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
#include "gpu/clique/communicator.h"
#include "gpu/gpus.h"
#include "tensor/tensor.h"

namespace ferry::cli {

// Of ranks 0 and 1, which call the same in the same order once all that they have sent each other
// has come. All rounds of a call are one turn of the program's (NcclCommunicator::Run): whatever
// keyed transfers by NCCL these GPUs have end before, and none begins until it is over. The calls
// of NCCL's are made by the device's thread, which makes those of keyed transfers. Not thread-safe.
class RawNccl final {
 public:
  // Null: keyed transfers between the two GPUs have made no communicator, or it is gone.
  //   device: of this process; all outlive it.
  static std::unique_ptr<RawNccl> Find(const BenchParticipants& party, const BenchPlan& plan,
                                       BenchDevice& device);

  // `rounds` times there and back, halved: P50.
  //   Errors: INTERNAL what came is not what was sent; what NCCL says; DEADLINE_EXCEEDED; why the
  //   bench was stopped.
  absl::StatusOr<absl::Duration> MeasurePingPong(size_t bytes, int rounds);
  // `rounds` times so many from the first one to the second, in groups of at most 64, until that
  // has answered, by how many: P50. Errors: as above.
  absl::StatusOr<absl::Duration> MeasureStream(size_t bytes, int count, int rounds);
  // `rounds` times so many each way at once, in groups as large: P50 of a round. Errors: as above.
  absl::StatusOr<absl::Duration> MeasureExchange(size_t bytes, int count, int rounds);

 private:
  struct Operation {
    bool is_send = false;
    Tensor tensor;
  };
  // Between ncclGroupStart and ncclGroupEnd.
  using Group = std::vector<Operation>;

  RawNccl(const BenchParticipants& party, BenchDevice& device,
          std::shared_ptr<NcclCommunicator> communicator)
      : party_(party), device_(device), communicator_(std::move(communicator)) {}

  // How long each round of `groups` takes, after one more.
  absl::StatusOr<std::vector<absl::Duration>> Measure(const std::vector<Group>& groups, int rounds);
  // On the device's thread.
  absl::Status RunRound(const std::vector<Group>& groups, const nccl::NcclTable& nccl,
                        nccl::Communicator comm, cuda::Stream stream) const;
  // Asks until `is_over` says so, or it is time to give up.
  absl::Status Await(absl::FunctionRef<absl::StatusOr<bool>()> is_over) const;
  // Whether that is what the other one has sent.
  absl::Status Verify(const Tensor& tensor, size_t bytes, int index);
  // Until keyed transfers may go on.
  absl::Status AwaitEndOfTurn() const;

  const BenchParticipants& party_;
  BenchDevice& device_;
  const std::shared_ptr<NcclCommunicator> communicator_;
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_RAW_NCCL_H_

// SPDX-License-Identifier: Apache-2.0
// SendRecvFloors: what the machine does by itself with the bytes of ferry bench sendrecv.
#ifndef FERRY_BENCH_SENDRECV_FLOORS_H_
#define FERRY_BENCH_SENDRECV_FLOORS_H_

#include <cstddef>
#include <memory>

#include <nlohmann/json.hpp>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "bench/device.h"
#include "bench/meeting.h"
#include "bench/plan.h"
#include "bench/raw_tcp.h"

namespace ferry::cli {

// Both processes call the same in the same order. What one of them finds it adds to an object that
// it tells. Not thread-safe.
class SendRecvFloors final {
 public:
  // All outlive it.
  SendRecvFloors(const BenchParticipants& party, BenchSync& meeting, const BenchPlan& plan,
                 BenchDevice& device)
      : party_(party),
        meeting_(meeting),
        plan_(plan),
        device_(device),
        is_first_(party.is_first()) {}

  // Once, before the others.
  absl::Status MeasureMachine(nlohmann::ordered_json& machine);
  // Of tensors of that size, before they are sent.
  absl::Status Measure(size_t bytes, nlohmann::ordered_json& floors);
  // What it takes tensors of that size to have been sent for: the communicator of keyed transfers
  // by NCCL. None of them is under way.
  //   agree: whether both say yes.
  absl::Status MeasureNccl(size_t bytes, absl::FunctionRef<absl::StatusOr<bool>(bool own)> agree,
                           nlohmann::ordered_json& floors);
  absl::Status CleanUp();

 private:
  bool GoesOverTcp() const;
  int RoundsOf(size_t bytes) const;
  int BatchesOf(size_t bytes, int depth) const;
  absl::Status MeasureGpus(size_t bytes, nlohmann::ordered_json& floors);

  const BenchParticipants& party_;
  BenchSync& meeting_;
  const BenchPlan& plan_;
  BenchDevice& device_;
  const bool is_first_;
  std::unique_ptr<RawTcp> raw_tcp_;
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_SENDRECV_FLOORS_H_

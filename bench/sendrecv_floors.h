// SPDX-License-Identifier: Apache-2.0
// SendRecvFloors: the machine's baselines for ferry bench sendrecv.
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

// Both processes make the same calls in the same order. Each adds its measurements to an object
// that it reports. Not thread-safe.
class SendRecvFloors final {
 public:
  // All must outlive it.
  SendRecvFloors(const BenchParticipants& party, BenchSync& meeting, const BenchPlan& plan,
                 BenchDevice& device)
      : party_(party),
        meeting_(meeting),
        plan_(plan),
        device_(device),
        is_first_(party.is_first()) {}

  // Call once, before the others.
  absl::Status MeasureMachine(nlohmann::ordered_json& machine);
  // Measures baselines for tensors of that size, before they are sent.
  absl::Status Measure(size_t bytes, nlohmann::ordered_json& floors);
  // Measures baselines that need earlier transfers of that size, which create the communicator.
  // REQUIRES: no transfers are pending.
  //   agree: returns true if both sides passed true.
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

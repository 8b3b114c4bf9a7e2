// SPDX-License-Identifier: Apache-2.0
// TraceCollection: collects steps' traces and clock readings from all workers.
#ifndef FERRY_TENSORFLOW_MASTER_TRACE_COLLECTION_H_
#define FERRY_TENSORFLOW_MASTER_TRACE_COLLECTION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

#include "base/cancellation_token.h"
#include "proto/ferry_trace.pb.h"
#include "tensorflow/master/cluster.h"
#include "tensorflow/master/fan_out.h"
#include "tensorflow/master/step_log.h"

namespace ferry::master {

// One per request; keeps itself alive. Reads each worker's clock a few times: of the fastest round
// trip, the reading is taken to be from its middle, so the error is at most half of that round
// trip. A worker on this machine shares its clock. A worker that does not answer is included in the
// answer, with the reason.
class TraceCollection final : public std::enable_shared_from_this<TraceCollection> {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<ferry::v1::GetStepsResponse>) &&>;

  struct Context {
    // The coordinator's time: by the clock of `steps`, and since 1970.
    std::function<absl::Time()> now;
    std::function<int64_t()> wall_ns;
    std::string host;
    std::string boot_id;
    // Number of steps the master keeps.
    size_t kept = 0;
  };

  TraceCollection(Context context, std::vector<LoggedStep> steps, Done done);

  // Call once.
  void Start(const Cluster& cluster, const std::shared_ptr<CancellationToken>& gone);

 private:
  // Clock samples of one worker.
  struct Worker {
    std::shared_ptr<WorkerLink> link;
    int trips = 0;
    int64_t best_trip_ns = INT64_MAX;
    int64_t offset_ns = 0;
    ferry::v1::TraceProcess* process = nullptr;
  };

  void FillMaster();
  void AskClock(size_t index, std::shared_ptr<FanOut> all);
  void AskSteps(size_t index, std::shared_ptr<FanOut> all);
  void SetOffset(Worker& worker, const ferry::v1::TraceProcess& process) const;

  const Context context_;
  const std::vector<LoggedStep> steps_;
  Done done_;
  std::shared_ptr<CancellationToken> gone_;
  // Each entry is used only by its worker's chain of calls.
  std::vector<Worker> workers_;
  ferry::v1::GetStepsRequest wanted_;
  ferry::v1::GetStepsResponse response_;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_TRACE_COLLECTION_H_

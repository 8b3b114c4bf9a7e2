// SPDX-License-Identifier: Apache-2.0
// Measures transfers from node 0 to node 1: several in flight, every byte verified, alternating
// with the baseline.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_TRANSFERS_H_
#define FERRY_BENCHMARKS_GPU_CHECK_TRANSFERS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "benchmarks/gpu/check_nodes.h"

namespace ferry::check {

// Buffers for a baseline, in each of the two processes.
struct FloorBuffers {
  // In node 0: the tensor that was sent last. In node 1: memory of the same size and device.
  const std::vector<Tensor>& sources;
  // In node 1: the receiver's memory. Empty in node 0.
  const std::vector<Tensor>& destinations;
};

// Both nodes call it after each round; node 1's answer counts: the time of all that are in flight.
using Floor = std::function<absl::StatusOr<absl::Duration>(CheckNode&, const FloorBuffers&)>;

struct TransferCase {
  std::string name;
  size_t bytes = 0;
  int in_flight = 1;
  int rounds = 10;
  int warm_ups = 2;
  int from_gpu = 0;
  int to_gpu = 0;
  // Into the receiver's own memory; else it accepts the memory it is given.
  bool into = true;
  std::optional<double> goal;
  std::string floor_name;
  // Null: none.
  Floor floor;
};

// Both nodes call it with the same case; node 1 reports the figure. A round, once both sides are
// ready and the receives are posted: node 1 reads the clock; node 0 sends all; node 1's stream
// waits for all, the host for the stream; node 1 reads the clock again. Filling, comparing and
// allocating are not timed.
//   step: of its own.
absl::Status MeasureTransfers(CheckNode& self, int64_t step, const TransferCase& at);

// Copies from sources to destinations on one stream of node 1, and waits for it.
//   peer: between two GPUs.
Floor CopyFloor(bool peer = false);

// A receive that is posted now and waited for later. Shared with its callback.
struct Posted;
using PostedPtr = std::shared_ptr<Posted>;
PostedPtr Post(CheckNode& self, Step& step, const RendezvousKey& key, const Tensor& destination);
bool IsDone(const Posted& posted);
absl::StatusOr<Received> Await(CheckNode& self, Posted& posted);

// Words sent on the path of tensors, so that they arrive behind earlier requests.
class Signals final {
 public:
  static absl::StatusOr<Signals> Create(CheckNode& self);
  absl::Status Give(Step& step) const;
  absl::Status Take(Step& step) const;

 private:
  Signals(RendezvousKey out, RendezvousKey in) : out_(std::move(out)), in_(std::move(in)) {}
  RendezvousKey out_;
  RendezvousKey in_;
};

// Rounds for a size: fewer of large ones.
int RoundsFor(const Options& options, size_t bytes);

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_TRANSFERS_H_

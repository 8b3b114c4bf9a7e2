// SPDX-License-Identifier: Apache-2.0
// CollectiveBackend: moves and merges the tensors of a group whose members are known.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_COLLECTIVE_BACKEND_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_COLLECTIVE_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/cancellation_token.h"
#include "rendezvous/value.h"
#include "tensorflow/worker/collectives/collective_node.h"
#include "tensorflow/worker/kernel.h"

namespace ferry::worker {

// One member's part of one collective. All members have the same kind, type and shape.
struct CollectiveWork {
  // Outlives the work.
  const CollectiveNode* node = nullptr;
  CollectiveCall call;
  // Numbers of node->devices, by rank, and which of them this is.
  std::vector<int> members;
  int rank = 0;
  // Of a broadcast.
  int source_rank = -1;
  // What the leader has chosen for all of them, and why it was not NCCL.
  bool by_nccl = false;
  std::string why_not_nccl;
  // Of the member's device; outlives the work.
  const KernelEnvironment* environment = nullptr;
  // Of the whole of it.
  absl::Time deadline = absl::InfiniteFuture();
  // Outlives the work.
  CancellationToken* cancellation = nullptr;
};

// Thread-safe. One for each way of doing it: over the rendezvous, or by a library of the devices'.
class CollectiveBackend {
 public:
  virtual ~CollectiveBackend() = default;
  // `done`: once, on any thread, perhaps inside; with what the member gets, and how it came as
  // Received::path. Nothing of the work is used after it.
  //   Errors: DEADLINE_EXCEEDED naming who has not sent its part; CANCELLED; those of the exchange.
  virtual void Run(CollectiveWork work, RecvCallback done) = 0;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_COLLECTIVE_BACKEND_H_

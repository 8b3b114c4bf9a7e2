// SPDX-License-Identifier: Apache-2.0
// CollectiveBackend: moves and reduces the tensors of a group with known members.
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
  // Must outlive the work.
  const CollectiveNode* node = nullptr;
  CollectiveCall call;
  // By rank: indexes into node->devices; and this member's rank.
  std::vector<int> members;
  int rank = 0;
  // For a broadcast.
  int source_rank = -1;
  // The leader's choice for the group, and the reason if it is not NCCL.
  bool by_nccl = false;
  std::string why_not_nccl;
  // The member's device; must outlive the work.
  const KernelEnvironment* environment = nullptr;
  // Deadline of the whole collective.
  absl::Time deadline = absl::InfiniteFuture();
  // Must outlive the work.
  CancellationToken* cancellation = nullptr;
};

// Thread-safe. One per implementation: over the rendezvous, or by a device library.
class CollectiveBackend {
 public:
  virtual ~CollectiveBackend() = default;
  // Calls `done` once, on any thread, possibly before returning, with the member's result and the
  // path it took in Received::path. The work's references are not used afterwards.
  //   Errors: DEADLINE_EXCEEDED naming who has not sent its part; CANCELLED; those of the step's
  //   transfers.
  virtual void Run(CollectiveWork work, RecvCallback done) = 0;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_COLLECTIVE_BACKEND_H_

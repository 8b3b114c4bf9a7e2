// SPDX-License-Identifier: Apache-2.0
// Getting several values out of a step.
#ifndef FERRY_TENSORFLOW_WORKER_FETCH_H_
#define FERRY_TENSORFLOW_WORKER_FETCH_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

#include "base/cancellation_token.h"
#include "rendezvous/key.h"
#include "tensor/tensor.h"
#include "tensorflow/worker/step_transfers.h"

namespace ferry::worker {

// In the order of the keys.
using FetchCallback = absl::AnyInvocable<void(absl::Status, std::vector<Tensor>) &&>;

// Receives all of them, and calls `done` when each receive has ended: once, on any thread, perhaps
// inside.
//   cancellation: may be null; outlives the receives.
//   Errors, through `done`: of the receives, the first that no other has caused; INVALID_ARGUMENT
//   for a dead value.
void FetchAll(StepTransfers& exchange, absl::Span<const RendezvousKey> keys,
              CancellationToken* cancellation, FetchCallback done);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_FETCH_H_

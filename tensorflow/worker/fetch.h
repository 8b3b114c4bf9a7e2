// SPDX-License-Identifier: Apache-2.0
// FetchAll: receives several values of a step.
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

// Receives all keys, and calls `done` once every receive has ended: once, on any thread, possibly
// before returning.
//   cancellation: may be null; must outlive the receives.
//   Errors, through `done`: the first error that is not derived from another one; INVALID_ARGUMENT
//   for a dead value.
void FetchAll(StepTransfers& transfers, absl::Span<const RendezvousKey> keys,
              CancellationToken* cancellation, FetchCallback done);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_FETCH_H_

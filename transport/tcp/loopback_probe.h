// SPDX-License-Identifier: Apache-2.0
// What TCP costs on this machine, measured when a process starts.
#ifndef FERRY_TRANSPORT_TCP_LOOPBACK_PROBE_H_
#define FERRY_TRANSPORT_TCP_LOOPBACK_PROBE_H_

#include "absl/status/statusor.h"

#include "transport/transport.h"

namespace ferry {

// The best of a few messages, and of 1 MiB, over a loopback connection of which this thread is both
// ends: about a millisecond. Nobody has to be woken for them, so that a transfer's latency is more,
// until transfers have been seen. Basis: kAtStart.
//   Errors: UNAVAILABLE there is no loopback, or it is too slow for a measurement.
absl::StatusOr<PathCost> MeasureLoopback();

}  // namespace ferry

#endif  // FERRY_TRANSPORT_TCP_LOOPBACK_PROBE_H_

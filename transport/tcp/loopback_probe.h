// SPDX-License-Identifier: Apache-2.0
// Cost of TCP on this machine, measured at startup.
#ifndef FERRY_TRANSPORT_TCP_LOOPBACK_PROBE_H_
#define FERRY_TRANSPORT_TCP_LOOPBACK_PROBE_H_

#include "absl/status/statusor.h"

#include "transport/transport.h"

namespace ferry {

// The best of a few messages, and of 1 MiB, over a loopback connection with this thread at both
// ends: about a millisecond. No thread has to be woken, so a real transfer's latency is higher
// until transfers have been measured. Basis: kAtStart.
//   Errors: UNAVAILABLE no loopback, or it is too slow to measure.
absl::StatusOr<PathCost> MeasureLoopback();

}  // namespace ferry

#endif  // FERRY_TRANSPORT_TCP_LOOPBACK_PROBE_H_

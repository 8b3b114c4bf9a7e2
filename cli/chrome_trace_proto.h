// SPDX-License-Identifier: Apache-2.0
// Converts step traces for chrome://tracing and ui.perfetto.dev.
#ifndef FERRY_CLI_CHROME_TRACE_PROTO_H_
#define FERRY_CLI_CHROME_TRACE_PROTO_H_

#include <string>

#include "proto/ferry_trace.pb.h"

namespace ferry::cli {

// Returns a document in Chrome's Trace Event Format, in the coordinator's time. Each process of
// `steps` becomes a process: the master with a row of its steps, and a row per worker of its calls;
// a worker with a row of its runs, one per thread and device, and rows for each device's receives.
// Rows with overlapping slices are split. An arrow connects each send to its receive. Times are in
// microseconds since the first event, with three decimals; otherData has that event's time, and the
// error bound of each clock.
// Source: "Trace Event Format", the Chromium project.
std::string ChromeTrace(const ferry::v1::GetStepsResponse& steps);

}  // namespace ferry::cli

#endif  // FERRY_CLI_CHROME_TRACE_PROTO_H_

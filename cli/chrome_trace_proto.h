// SPDX-License-Identifier: Apache-2.0
// Steps as chrome://tracing and ui.perfetto.dev show them.
#ifndef FERRY_CLI_CHROME_TRACE_PROTO_H_
#define FERRY_CLI_CHROME_TRACE_PROTO_H_

#include <string>

#include "proto/ferry_trace.pb.h"

namespace ferry::cli {

// A document in Chrome's Trace Event Format, in the coordinator's time. Each process of `steps` is
// a process there: the master with a row of its steps, and one of its calls for each worker; a
// worker with a row of its runs, one for each thread and device, and others for what each device
// receives. Where two things of such a row overlap there are several of it. An arrow goes from
// each send to its receive. Times are in microseconds after the first one, with three digits;
// otherData says when that was, and how far each clock was off.
// Source: "Trace Event Format", the Chromium project.
std::string ChromeTrace(const ferry::v1::GetStepsResponse& steps);

}  // namespace ferry::cli

#endif  // FERRY_CLI_CHROME_TRACE_PROTO_H_

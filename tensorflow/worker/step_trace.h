// SPDX-License-Identifier: Apache-2.0
// Traces of a worker's last runs, as messages.
#ifndef FERRY_TENSORFLOW_WORKER_STEP_TRACE_H_
#define FERRY_TENSORFLOW_WORKER_STEP_TRACE_H_

#include "proto/ferry_trace.pb.h"
#include "tensorflow/worker/registered_graph.h"
#include "tensorflow/worker/step_ring.h"

namespace ferry::worker {

// Returns one label per node of the plan.
NodeLabels LabelsOf(const RegisteredGraph& graph);

// Adds these runs, their labels and their threads to `process`, and a reading of its clock.
void FillTrace(absl::Span<const StepRing::Record> records, ferry::v1::TraceProcess& process);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_STEP_TRACE_H_

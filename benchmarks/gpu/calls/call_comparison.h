// SPDX-License-Identifier: Apache-2.0
// The comparison of a recorded call with the same call of a replay.
#ifndef FERRY_BENCHMARKS_GPU_CALLS_CALL_COMPARISON_H_
#define FERRY_BENCHMARKS_GPU_CALLS_CALL_COMPARISON_H_

#include <string>
#include <vector>

#include "benchmarks/gpu/calls/call_record.h"
#include "benchmarks/gpu/calls/handle_table.h"

namespace ferry::calls {

// Returns one text for each difference: "granularity: recorded 2097152, replayed 65536".
std::vector<std::string> Differences(const RecordedCall& recorded, const RecordedCall& live,
                                     const HandleTable& handles);

// Adds the handles that the call has made to the table, and removes those that it has ended.
// `words`: the arguments of the live call.
void NoteHandles(const RecordedCall& recorded, const RecordedCall& live, const uint64_t* words,
                 HandleTable& handles);

}  // namespace ferry::calls

#endif  // FERRY_BENCHMARKS_GPU_CALLS_CALL_COMPARISON_H_

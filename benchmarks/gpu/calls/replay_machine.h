// SPDX-License-Identifier: Apache-2.0
// The machine on which records were taken, as settings of the fake driver.
#ifndef FERRY_BENCHMARKS_GPU_CALLS_REPLAY_MACHINE_H_
#define FERRY_BENCHMARKS_GPU_CALLS_REPLAY_MACHINE_H_

#include <map>
#include <string>
#include <vector>

#include "benchmarks/gpu/calls/call_record.h"

namespace ferry::calls {

struct ReplayMachine {
  std::map<std::string, std::string> environment;  // STRICT_CUDA_...
  // CUDA_VISIBLE_DEVICES of each record; empty where the record does not say.
  std::vector<std::string> visible;
};

// The number of devices, which of them each process saw (by their UUIDs), their memory and compute
// capability, and the version of the driver; each only if the records have it.
ReplayMachine MachineOf(const std::vector<CallRecord>& records);

}  // namespace ferry::calls

#endif  // FERRY_BENCHMARKS_GPU_CALLS_REPLAY_MACHINE_H_

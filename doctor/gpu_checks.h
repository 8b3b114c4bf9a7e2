// SPDX-License-Identifier: Apache-2.0
// Judging what is known of the driver and its GPUs.
#ifndef FERRY_DOCTOR_GPU_CHECKS_H_
#define FERRY_DOCTOR_GPU_CHECKS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "doctor/finding.h"
#include "doctor/gpu_facts.h"

namespace ferry::doctor {

// What to do about a call of the driver's that failed, by the code in its message.
std::string AdviceForCall(absl::string_view message);

// The driver: whether it can be used, and if not, why. Skipped where there is no GPU that it could
// drive.
Finding CheckDriver(const GpuFacts& facts);
// How many there are, and which are hidden.
Finding CheckGpuCount(const GpuFacts& facts);
// One GPU: its compute mode, what it can share, whether it is a slice of one.
Finding CheckGpu(const GpuFact& gpu);
// NVLink between machines, where the GPUs are in a fabric that could have it.
std::vector<Finding> CheckFabric(const GpuFacts& facts);

// All of the above. Of a machine whose driver cannot be used the first alone.
std::vector<Finding> CheckGpus(const GpuFacts& facts);

// One ordered pair of GPUs of a process: what the driver says, and what came of a copy.
struct PeerOutcome {
  int from = 0;  // reaches memory of `to`
  int to = 0;
  bool can_access = false;
  absl::Status copied;  // of a copy through that access, verified; OK if it cannot access
};

Finding JudgePeers(absl::Span<const PeerOutcome> outcomes);

// One way of opening memory of another process.
struct IpcOutcome {
  absl::Status status;  // open, wait for its event, copy, compare
  absl::Duration taken = absl::ZeroDuration();
};

//   descriptor: of memory of Ferry's own. handle: of memory of cudaMalloc.
Finding JudgeIpc(int ordinal, const IpcOutcome& descriptor, const IpcOutcome& handle);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_GPU_CHECKS_H_

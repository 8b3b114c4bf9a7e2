// SPDX-License-Identifier: Apache-2.0
// Checks of the CUDA driver and its GPUs, on facts read before.
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

// Returns advice for a failed driver call, by the error code in its message.
std::string AdviceForCall(absl::string_view message);

// Whether the driver can be used, and if not, why. Skipped if there is no GPU that it could drive.
Finding CheckDriver(const GpuFacts& facts);
// The number of GPUs, and which are hidden.
Finding CheckGpuCount(const GpuFacts& facts);
// The number of hardware queues that the streams of a context share.
Finding CheckHardwareQueues(const GpuFacts& facts);
// One GPU: its compute mode, its sharing capabilities, whether it is a MIG slice.
Finding CheckGpu(const GpuFact& gpu);
// NVLink between machines, if the GPUs are attached to a fabric.
std::vector<Finding> CheckFabric(const GpuFacts& facts);

// All of the above. If the driver cannot be used, only the first.
std::vector<Finding> CheckGpus(const GpuFacts& facts);

// One ordered pair of GPUs of a process: the driver's answer, and the result of a copy.
struct PeerOutcome {
  int from = 0;  // accesses memory of `to`
  int to = 0;
  bool can_access = false;
  absl::Status copied;  // of a verified copy through that access; OK if there is no access
  absl::Status opened = absl::OkStatus();  // of both GPUs; if not OK, nothing was copied
};

Finding JudgePeers(absl::Span<const PeerOutcome> outcomes);

// The result of one method of opening another process's memory.
struct IpcOutcome {
  absl::Status status;  // open, wait for its event, copy, compare
  absl::Duration taken = absl::ZeroDuration();
};

//   descriptor: for memory of Ferry's arena. handle: for memory of cudaMalloc.
Finding JudgeIpc(int ordinal, const IpcOutcome& descriptor, const IpcOutcome& handle);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_GPU_CHECKS_H_

// SPDX-License-Identifier: Apache-2.0
// The checks of ferry doctor that run in separate processes, so that a driver that crashes or hangs
// is reported as a finding.
#ifndef FERRY_DOCTOR_PROCESSES_H_
#define FERRY_DOCTOR_PROCESSES_H_

#include <functional>

#include "absl/time/time.h"

#include "doctor/finding.h"

namespace ferry::cli {

using FindingSink = std::function<void(doctor::Finding)>;

struct GpuPresence {
  int count = 0;
  int cuda_version = 0;  // the driver's CUDA, 13000; 0: it cannot be used
  // False if its process died or hung before it could report.
  bool is_known = false;
};

// Each starts processes, waits for their findings, and passes them to `sink` as they arrive. A
// process that writes nothing for `timeout` is killed. Call them on the main thread: the processes
// are killed when the calling thread exits.

// The driver, the GPUs, and copies between them.
GpuPresence CheckGpusInProcess(absl::Duration timeout, const FindingSink& sink);
// NCCL, and the creation of an id.
void CheckNcclInProcess(const GpuPresence& gpus, absl::Duration timeout, const FindingSink& sink);
// One GPU's memory shared between two processes.
void CheckIpcInProcesses(int gpu, absl::Duration timeout, const FindingSink& sink);

}  // namespace ferry::cli

#endif  // FERRY_DOCTOR_PROCESSES_H_

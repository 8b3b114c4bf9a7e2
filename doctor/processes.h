// SPDX-License-Identifier: Apache-2.0
// The checks of ferry doctor that run in processes of their own, so that a driver that crashes or
// hangs is a finding.
#ifndef FERRY_DOCTOR_PROCESSES_H_
#define FERRY_DOCTOR_PROCESSES_H_

#include <functional>

#include "absl/time/time.h"

#include "doctor/finding.h"

namespace ferry::cli {

using FindingSink = std::function<void(doctor::Finding)>;

struct GpuPresence {
  int count = 0;
  int cuda_version = 0;  // of the driver, 13000; 0: it cannot be used
  // False if its process died or hung before it could tell.
  bool is_known = false;
};

// Each starts processes, waits for what they find, and tells it to `sink` as it comes. A process
// that says nothing for `timeout` is killed. Call them on the main thread: the processes die with
// the calling one.

// The driver, the GPUs, and copies between them.
GpuPresence CheckGpusInProcess(absl::Duration timeout, const FindingSink& sink);
// NCCL, and an id of it.
void CheckNcclInProcess(const GpuPresence& gpus, absl::Duration timeout, const FindingSink& sink);
// Memory of one GPU between two processes.
void CheckIpcInProcesses(int gpu, absl::Duration timeout, const FindingSink& sink);

}  // namespace ferry::cli

#endif  // FERRY_DOCTOR_PROCESSES_H_

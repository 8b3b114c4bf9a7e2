// SPDX-License-Identifier: Apache-2.0
// Probe: whether one process can open another's GPU memory on this machine; both endpoints.
#ifndef FERRY_DOCTOR_IPC_PROBE_H_
#define FERRY_DOCTOR_IPC_PROBE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/unique_fd.h"
#include "doctor/gpu_checks.h"
#include "gpu/cuda/cuda_device.h"

namespace ferry::doctor {

// The exporter has memory of Ferry's arena (by descriptor) and memory of cuMemAlloc (by handle), in
// this order. For each:
//   1. The exporter enqueues a pattern into the memory and an interprocess event behind it, and
//      sends what is needed to open both. The file descriptor is sent on request.
//   2. The importer opens both, has its stream wait for the event, copies into its own memory,
//      compares, closes, and reports that it has finished.
//   3. The exporter releases event and memory.
// A failure of either side is reported in the importer's outcome. Both processes run the same
// program.

struct IpcProbeReport {
  IpcOutcome descriptor;
  IpcOutcome handle;
};

struct IpcProbeOptions {
  std::shared_ptr<cuda::CudaDevice> device;
  absl::Time deadline = absl::InfiniteFuture();  // by SteadyClock, of every wait for the peer
  // Called before each step with a description of it: the driver itself may hang.
  std::function<void(absl::string_view phase)> on_phase;
};

// A Unix socket in the abstract namespace, as used by Ferry's control channels.
struct ProbeSocket {
  UniqueFd fd;
  std::string name;  // for ConnectProbe
};

//   Errors: UNAVAILABLE with the call that failed.
absl::StatusOr<ProbeSocket> ListenForProbe();
//   Errors: DEADLINE_EXCEEDED when no peer connects; UNAVAILABLE.
absl::StatusOr<UniqueFd> AcceptProbe(const ProbeSocket& socket, absl::Time deadline);
//   Errors: UNAVAILABLE with the kernel's reason.
absl::StatusOr<UniqueFd> ConnectProbe(const std::string& name);

// Both endpoints block for as long as driver calls take: run them in processes that can be killed.
//   Errors: DEADLINE_EXCEEDED or UNAVAILABLE when the peer does not answer, or has exited.
absl::Status ExportForProbe(const IpcProbeOptions& options, const UniqueFd& socket);
absl::StatusOr<IpcProbeReport> ImportForProbe(const IpcProbeOptions& options,
                                              const UniqueFd& socket);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_IPC_PROBE_H_

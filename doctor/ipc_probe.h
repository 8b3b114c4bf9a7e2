// SPDX-License-Identifier: Apache-2.0
// Whether one process can open GPU memory of another one on this machine, tried: the two halves.
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
//   1. It enqueues a pattern into the memory and an interprocess event behind it, and tells what is
//      needed to open both. The descriptor follows when it is asked for.
//   2. The importer opens both, has its stream wait for the event, copies into memory of its own,
//      compares, closes, and says that it is done.
//   3. The exporter gives event and memory back.
// What goes wrong on either side is the importer's outcome. Between processes of one program.

struct IpcProbeReport {
  IpcOutcome descriptor;
  IpcOutcome handle;
};

struct IpcProbeOptions {
  std::shared_ptr<cuda::CudaDevice> device;
  absl::Time deadline = absl::InfiniteFuture();  // by SteadyClock, of every wait for the other half
  // Told before each step what is tried: the driver itself may hang.
  std::function<void(absl::string_view phase)> on_phase;
};

// A Unix socket in the abstract name space, as Ferry's control channels use.
struct ProbeSocket {
  UniqueFd fd;
  std::string name;  // for ConnectProbe
};

//   Errors: UNAVAILABLE with the call that failed.
absl::StatusOr<ProbeSocket> ListenForProbe();
//   Errors: DEADLINE_EXCEEDED when nobody comes; UNAVAILABLE.
absl::StatusOr<UniqueFd> AcceptProbe(const ProbeSocket& socket, absl::Time deadline);
//   Errors: UNAVAILABLE with the kernel's reason.
absl::StatusOr<UniqueFd> ConnectProbe(const std::string& name);

// Both halves block on the driver for as long as that takes: run them in processes that can be
// killed.
//   Errors: DEADLINE_EXCEEDED or UNAVAILABLE when the other half does not answer, or is gone.
absl::Status ExportForProbe(const IpcProbeOptions& options, const UniqueFd& socket);
absl::StatusOr<IpcProbeReport> ImportForProbe(const IpcProbeOptions& options,
                                              const UniqueFd& socket);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_IPC_PROBE_H_

// SPDX-License-Identifier: Apache-2.0
// Probe: whether the GPUs of this process can access each other's memory.
#ifndef FERRY_DOCTOR_PEER_PROBE_H_
#define FERRY_DOCTOR_PEER_PROBE_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "doctor/gpu_checks.h"
#include "gpu/cuda/cuda_api.h"

namespace ferry::doctor {

// Queries the driver for each ordered pair and, where it reports access, copies some memory through
// it and compares. Opens every GPU. Blocks for as long as driver calls take: run it in a process
// that can be killed.
//   on_phase: called before each step with a description of it.
//   Errors: INTERNAL if the driver cannot be queried or a GPU cannot be opened.
absl::StatusOr<std::vector<PeerOutcome>> ProbePeers(
    const std::shared_ptr<const cuda::CudaApi>& api,
    const std::function<void(absl::string_view phase)>& on_phase);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_PEER_PROBE_H_

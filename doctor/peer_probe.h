// SPDX-License-Identifier: Apache-2.0
// Whether the GPUs of this process reach each other's memory, tried.
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

// Asks the driver about each ordered pair and, where it promises access, copies some memory through
// it and compares. Opens every GPU. Blocks, on the driver for as long as that takes: run it in a
// process that can be killed.
//   on_phase: told before each step what is tried.
//   Errors: INTERNAL if the driver cannot be asked, or a GPU not be opened.
absl::StatusOr<std::vector<PeerOutcome>> ProbePeers(
    const std::shared_ptr<const cuda::CudaApi>& api,
    const std::function<void(absl::string_view phase)>& on_phase);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_PEER_PROBE_H_

// SPDX-License-Identifier: Apache-2.0
// Creation of NCCL's unique ids with a deadline.
#ifndef FERRY_GPU_NCCL_UNIQUE_IDS_H_
#define FERRY_GPU_NCCL_UNIQUE_IDS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "gpu/nccl/nccl_api.h"

namespace ferry::nccl {

// Gets `count` ids from NCCL on a separate thread, since NCCL looks for the network and loads
// network plug-ins, and may hang there. Uses no device. One call per process at a time, from
// whatever thread: others wait for their turn, and while an abandoned call hangs all fail at once,
// so that there is at most one such thread. Blocks.
//   deadline: by SteadyClock. After it the thread is abandoned, and its result is discarded.
//   keep_going: called every few milliseconds; an error abandons the call in the same way.
//   Errors: DEADLINE_EXCEEDED; UNAVAILABLE an earlier call hangs, and since when; as keep_going;
//   NCCL's error.
absl::StatusOr<std::vector<std::string>> CreateUniqueIds(
    std::shared_ptr<const NcclApi> api, int count, absl::Time deadline,
    absl::FunctionRef<absl::Status()> keep_going);

}  // namespace ferry::nccl

#endif  // FERRY_GPU_NCCL_UNIQUE_IDS_H_

// SPDX-License-Identifier: Apache-2.0
// NCCL's unique ids, got within a time.
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

// Asks NCCL for `count` ids, on a thread of its own: it looks for the network, loads plug-ins for
// it, and may hang there. No device is concerned. One call of a process at a time, whatever thread
// asks: others wait for their turn, and while one that was given up hangs all are refused at once,
// so that there is one such thread at most. Blocks.
//   deadline: by SteadyClock. Later the thread is left behind, and what it gets is thrown away.
//   keep_going: asked every few milliseconds; an error gives it up in the same way.
//   Errors: DEADLINE_EXCEEDED; UNAVAILABLE an earlier call hangs, and since when; as keep_going;
//   what NCCL says.
absl::StatusOr<std::vector<std::string>> MintUniqueIds(
    std::shared_ptr<const NcclApi> api, int count, absl::Time deadline,
    absl::FunctionRef<absl::Status()> keep_going);

}  // namespace ferry::nccl

#endif  // FERRY_GPU_NCCL_UNIQUE_IDS_H_

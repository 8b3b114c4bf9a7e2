// SPDX-License-Identifier: Apache-2.0
// The demo's transfers from node 0 to node 1, by the selected path and by TCP.
#ifndef FERRY_CLI_DEMO_TENSORS_H_
#define FERRY_CLI_DEMO_TENSORS_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "node/node.h"

namespace ferry::cli {

// The last one is also sent by TCP.
inline constexpr size_t kDemoTensorBytes[] = {8, size_t{64} << 10, size_t{64} << 20};
inline constexpr int kDemoTransfers = 4;

struct DemoTransfer {
  size_t bytes = 0;
  // See DescribePath.
  std::string path;
  // The first transfer, which may open connections and map memory; and the one after it.
  absl::Duration first;
  absl::Duration again;
};

// Runs this node's part; a no-op except on nodes 0 and 1. Node 1 checks every byte.
//   tell: called on node 1 for each transfer.
//   Errors: DATA_LOSS; as Step::Recv.
absl::Status TransferDemoTensors(Node& node, const std::function<void(const DemoTransfer&)>& tell);

}  // namespace ferry::cli

#endif  // FERRY_CLI_DEMO_TENSORS_H_

// SPDX-License-Identifier: Apache-2.0
// ParseTfConfig: which process of a TensorFlow cluster TF_CONFIG says that this is.
#ifndef FERRY_NODE_TF_CONFIG_H_
#define FERRY_NODE_TF_CONFIG_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ferry {

// A plain value.
struct TfConfig {
  int rank = 0;  // from 0; the chief comes before the workers
  int size = 0;
  std::string first_host;  // of process 0, without its port
};

// Reads {"cluster": {"chief": [...], "worker": [...]}, "task": {"type": "worker", "index": 1}}.
// Nothing for a cluster that has other tasks, such as parameter servers: which number one of them
// has in a job of Ferry is for the user to say. Nothing for an evaluator, which is in no cluster.
//   Source: tf.distribute.cluster_resolver.TFConfigClusterResolver, and the order of tasks in
//   multi_worker_util.id_in_cluster.
//   Errors: INVALID_ARGUMENT for what is not such a text, or an index beyond the cluster.
absl::StatusOr<std::optional<TfConfig>> ParseTfConfig(absl::string_view text);

// Where the first task is, and how many there are, if the clusters of all of its processes say so:
// for a process whose own task is garbled or out of range. `rank` is -1. Absent as above.
std::optional<TfConfig> ParseTfCluster(absl::string_view text);

}  // namespace ferry

#endif  // FERRY_NODE_TF_CONFIG_H_

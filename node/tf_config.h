// SPDX-License-Identifier: Apache-2.0
// ParseTfConfig: this process's rank in a TensorFlow cluster, from TF_CONFIG.
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
// Returns nullopt for a cluster that has other tasks, such as parameter servers, whose ranks in a
// Ferry job the user must choose; and for an evaluator, which is not part of the cluster.
//   Source: tf.distribute.cluster_resolver.TFConfigClusterResolver, and the order of tasks in
//   multi_worker_util.id_in_cluster.
//   Errors: INVALID_ARGUMENT for malformed text, or an index beyond the cluster.
absl::StatusOr<std::optional<TfConfig>> ParseTfConfig(absl::string_view text);

// Returns the first task's host and the number of tasks, if the cluster has no tasks but chief and
// workers: for a process whose own task is malformed or out of range. `rank` is -1. Absent as
// above.
std::optional<TfConfig> ParseTfCluster(absl::string_view text);

}  // namespace ferry

#endif  // FERRY_NODE_TF_CONFIG_H_

// SPDX-License-Identifier: Apache-2.0
// StepRing: node timings of a worker's last runs.
#ifndef FERRY_TENSORFLOW_WORKER_STEP_RING_H_
#define FERRY_TENSORFLOW_WORKER_STEP_RING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "tensorflow/worker/graph_run.h"

namespace ferry::worker {

// Description of a node; holds no reference to its graph.
struct NodeLabel {
  PlanNode::Kind kind = PlanNode::Kind::kCompute;
  std::string name;
  std::string op;
  std::string device;
  // For communication nodes.
  std::string key;
  std::string edge;
  std::string src_device;
  std::string dst_device;
};
using NodeLabels = std::vector<NodeLabel>;

// One run of a graph.
struct StepRecord {
  int64_t step_id = 0;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::shared_ptr<const NodeLabels> labels;
  // One per label.
  std::vector<NodeTimes> times;
};

// Thread-safe. Drops the oldest runs when there are too many runs or nodes.
class StepRing final {
 public:
  using Record = std::shared_ptr<const StepRecord>;

  //   max_runs: 0: no runs are kept.
  StepRing(size_t max_runs, size_t max_nodes) : max_runs_(max_runs), max_nodes_(max_nodes) {}

  // True if runs of graphs of that size are kept.
  bool Takes(int nodes) const { return max_runs_ > 0 && static_cast<size_t>(nodes) <= max_nodes_; }
  size_t max_runs() const { return max_runs_; }

  // REQUIRES: Takes().
  void Add(StepRecord record) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the runs of these steps, oldest first.
  std::vector<Record> Find(absl::Span<const int64_t> step_ids) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const size_t max_runs_;
  const size_t max_nodes_;
  mutable absl::Mutex mu_;
  std::deque<Record> records_ ABSL_GUARDED_BY(mu_);
  size_t nodes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_STEP_RING_H_

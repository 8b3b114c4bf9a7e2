// SPDX-License-Identifier: Apache-2.0
// PartialRun: tracks a step that is fed and fetched in pieces.
#ifndef FERRY_TENSORFLOW_GRAPH_PARTIAL_RUN_H_
#define FERRY_TENSORFLOW_GRAPH_PARTIAL_RUN_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

#include "tensorflow/graph/prune.h"

namespace ferry::graph {

// The feeds and fetches of a partial run that are done and pending. Not thread-safe.
class PartialRun {
 public:
  //   step: pruned to all feeds and fetches that were announced.
  explicit PartialRun(std::shared_ptr<const StepGraph> step);

  // Checks that a piece with these feeds and fetches may run, and records it. Names are spelled as
  // in the StepRequest; a piece may fetch a tensor twice.
  //   Errors, all INVALID_ARGUMENT and without effect: a name that was not announced, one that was
  //   already fed or fetched, or a fetch that depends on feeds not yet given, including this
  //   piece's.
  absl::Status Take(const std::vector<std::string>& feeds, const std::vector<std::string>& fetches);

  // True if everything announced has been fed and fetched.
  bool is_done() const { return left_ == 0; }

 private:
  struct Tensor {
    int node = -1;
    bool is_done = false;
  };
  // The announced tensors. Two names may denote one tensor, which is fed or fetched once.
  struct Tensors {
    void Announce(const StepTensor& announced);
    // REQUIRES: `name` was announced (is in `by_name`).
    Tensor& at(const std::string& name) { return all[by_name.at(name)]; }
    const Tensor& at(const std::string& name) const { return all[by_name.at(name)]; }

    std::vector<Tensor> all;
    absl::flat_hash_map<std::string, size_t> by_name;
    // Keyed by the canonical "x:0".
    absl::flat_hash_map<std::string, size_t> by_plain_name;
  };

  void Finish(Tensor& tensor);
  absl::Status CheckComputable(const std::vector<std::string>& fetches,
                               const std::vector<std::string>& fed_now) const;

  const std::shared_ptr<const StepGraph> step_;
  Tensors feeds_;
  Tensors fetches_;
  size_t left_ = 0;
};

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_PARTIAL_RUN_H_

// SPDX-License-Identifier: Apache-2.0
// PartialRun: a step that is fed and fetched in pieces.
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

// What of a step has been fed and fetched. Not thread-safe.
class PartialRun {
 public:
  //   step: pruned to everything that was announced.
  explicit PartialRun(std::shared_ptr<const StepGraph> step);

  // Whether a piece may be run that feeds and fetches these, and remembers that it was. Names are
  // spelled as they were in the StepRequest; a piece may fetch a tensor twice.
  //   Errors, all of them INVALID_ARGUMENT and without effect: what was not announced, what was fed
  //   or fetched before, and a fetch that needs more than has been fed, this piece included.
  absl::Status Take(const std::vector<std::string>& feeds, const std::vector<std::string>& fetches);

  // Whether everything that was announced has been fed and fetched.
  bool is_done() const { return left_ == 0; }

 private:
  struct Tensor {
    int node = -1;
    bool is_done = false;
  };
  // What was announced; two names may be of one tensor, which is fed or fetched once.
  struct Tensors {
    void Announce(const StepTensor& announced);
    // What none has is not in `by_name`.
    Tensor& at(const std::string& name) { return all[by_name.at(name)]; }
    const Tensor& at(const std::string& name) const { return all[by_name.at(name)]; }

    std::vector<Tensor> all;
    absl::flat_hash_map<std::string, size_t> by_name;
    // By "x:0".
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

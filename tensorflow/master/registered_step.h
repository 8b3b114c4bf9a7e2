// SPDX-License-Identifier: Apache-2.0
// RegisteredStep: a step's graphs, at the workers that run them.
#ifndef FERRY_TENSORFLOW_MASTER_REGISTERED_STEP_H_
#define FERRY_TENSORFLOW_MASTER_REGISTERED_STEP_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

#include "proto/tf_config.pb.h"
#include "tensorflow/master/session_workers.h"
#include "tensorflow/master/step_plan.h"

namespace ferry::master {

// Immutable once it is made. The workers drop their graphs when the last user of it goes, or when
// their session ends.
class RegisteredStep final {
 public:
  struct Part {
    int worker = 0;
    std::string graph_handle;
  };
  using Done = absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<const RegisteredStep>>) &&>;

  // Registers every part. If one cannot be, none is.
  //   Errors: ABORTED for a worker that is lost; the worker's own.
  static void Register(std::shared_ptr<SessionWorkers> workers, StepPlan plan,
                       const tensorflow::ConfigProto& config, Done done);
  ~RegisteredStep();

  RegisteredStep(const RegisteredStep&) = delete;
  RegisteredStep& operator=(const RegisteredStep&) = delete;

  SessionWorkers& workers() const { return *workers_; }
  const std::vector<Part>& parts() const { return parts_; }
  // Of the parts.
  std::vector<int> worker_indexes() const;
  // As in the plan.
  const std::vector<PlanTensor>& feeds() const { return feeds_; }
  const std::vector<PlanTensor>& fetches() const { return fetches_; }
  // Null if there is no such feed or fetch.
  const std::string* FindFeedKey(const std::string& name) const;
  const std::string* FindFetchKey(const std::string& name) const;
  const std::shared_ptr<const graph::StepGraph>& step() const { return step_; }

 private:
  using Keys = absl::flat_hash_map<std::string, std::string>;

  RegisteredStep(std::shared_ptr<SessionWorkers> workers, StepPlan& plan);

  const std::shared_ptr<SessionWorkers> workers_;
  std::vector<Part> parts_;
  std::vector<PlanTensor> feeds_;
  std::vector<PlanTensor> fetches_;
  Keys feed_keys_;
  Keys fetch_keys_;
  std::shared_ptr<const graph::StepGraph> step_;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_REGISTERED_STEP_H_

// SPDX-License-Identifier: Apache-2.0
// RegisteredStep: a step's graphs as registered at the workers.
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

// Immutable once made. Graphs are deregistered when the last reference is released, or end with the
// session.
class RegisteredStep final {
 public:
  struct Part {
    int worker = 0;
    std::string graph_handle;
  };
  using Done = absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<const RegisteredStep>>) &&>;

  // Registers all parts, or none.
  //   Errors: ABORTED for a lost worker; errors of the workers.
  static void Register(std::shared_ptr<SessionWorkers> workers, StepPlan plan,
                       const tensorflow::ConfigProto& config, Done done);
  ~RegisteredStep();

  RegisteredStep(const RegisteredStep&) = delete;
  RegisteredStep& operator=(const RegisteredStep&) = delete;

  SessionWorkers& workers() const { return *workers_; }
  const std::vector<Part>& parts() const { return parts_; }
  // Returns the workers' indexes, one per part.
  std::vector<int> worker_indexes() const;
  // In the plan's order.
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

// SPDX-License-Identifier: Apache-2.0
// StepCache: the steps of a session that are registered already.
#ifndef FERRY_TENSORFLOW_MASTER_STEP_CACHE_H_
#define FERRY_TENSORFLOW_MASTER_STEP_CACHE_H_

#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "tensorflow/master/registered_step.h"

namespace ferry::master {

// Thread-safe. What several want at once is registered once. A failure is told to those who wait,
// and forgotten. Callbacks run with no lock held.
class StepCache final {
 public:
  using Result = absl::StatusOr<std::shared_ptr<const RegisteredStep>>;
  using Done = absl::AnyInvocable<void(Result) &&>;

  explicit StepCache(size_t max_steps) : max_steps_(max_steps) {}

  // The step, if it is there; the usual case.
  std::shared_ptr<const RegisteredStep> Find(const std::string& key) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `done` when it is. True: the caller is the first to ask, and calls Finish.
  bool Await(const std::string& key, Done done) ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(const std::string& key, Result result) ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets everything.
  void Clear() ABSL_LOCKS_EXCLUDED(mu_);

  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    // Null while it is being made.
    std::shared_ptr<const RegisteredStep> step;
    std::vector<Done> waiting;
    // In by_use_; only of what is made.
    std::list<std::string>::iterator use;
  };

  const size_t max_steps_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);
  // The last one used at the end.
  std::list<std::string> by_use_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_STEP_CACHE_H_

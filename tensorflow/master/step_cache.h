// SPDX-License-Identifier: Apache-2.0
// StepCache: a session's registered steps.
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

// Thread-safe. Concurrent requests for one key register it once. A failure is reported to all
// waiters and not cached. Callbacks run with no lock held.
class StepCache final {
 public:
  using Result = absl::StatusOr<std::shared_ptr<const RegisteredStep>>;
  using Done = absl::AnyInvocable<void(Result) &&>;

  explicit StepCache(size_t max_steps) : max_steps_(max_steps) {}

  // Returns the step if it is cached, the common case; else null.
  std::shared_ptr<const RegisteredStep> Find(const std::string& key) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `done` when the step is ready. Returns true for the first caller, which must call Finish.
  bool Await(const std::string& key, Done done) ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(const std::string& key, Result result) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes all entries.
  void Clear() ABSL_LOCKS_EXCLUDED(mu_);

  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    // Null while being made.
    std::shared_ptr<const RegisteredStep> step;
    std::vector<Done> waiting;
    // Position in by_use_; valid once made.
    std::list<std::string>::iterator use;
  };

  const size_t max_steps_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);
  // Most recently used last.
  std::list<std::string> by_use_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_STEP_CACHE_H_

// SPDX-License-Identifier: Apache-2.0
// AttemptFailure: why the coordinator has not been reached yet.
#ifndef FERRY_CLI_ATTEMPT_FAILURE_H_
#define FERRY_CLI_ATTEMPT_FAILURE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace ferry::cli {

// Thread-safe.
class AttemptFailure final {
 public:
  // Returns a callback for AgentOptions::on_attempt_failed; it may outlive this object.
  std::function<void(const absl::Status&)> Writer() const {
    return [last = last_](const absl::Status& why) {
      absl::MutexLock lock(&last->mu);
      last->text = std::string(why.message());
    };
  }
  // Returns the reason as a suffix of a progress line: ": connection refused". Empty if there is
  // none.
  std::string Text() const {
    absl::MutexLock lock(&last_->mu);
    return last_->text.empty() ? std::string() : absl::StrCat(": ", last_->text);
  }

 private:
  struct Last {
    absl::Mutex mu;
    std::string text ABSL_GUARDED_BY(mu);
  };
  const std::shared_ptr<Last> last_ = std::make_shared<Last>();
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_ATTEMPT_FAILURE_H_

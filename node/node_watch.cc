// SPDX-License-Identifier: Apache-2.0
// NodeWatch: the request loop, and its shutdown.
#include "node/node_watch.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace ferry {
namespace {

// Errors of a coordinator that still answers. The others mean that the connection is lost or that
// the node is leaving, which are reported by other means.
bool MayPass(const absl::Status& error) {
  // Other answers wait for this client, or as many requests as it may have; or there has been no
  // change for so long that the request has timed out.
  return absl::IsResourceExhausted(error) || absl::IsDeadlineExceeded(error);
}

}  // namespace

// Kept alive by requests that have not been answered.
struct NodeWatch::State : public std::enable_shared_from_this<State> {
  // Returns false if stopped: the owner may be gone.
  bool Enter() ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    if (!is_stopped) ++inside;
    return !is_stopped;
  }
  void Exit() ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    --inside;
  }
  bool is_empty() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return inside == 0; }

  void Question(int64_t version) {
    if (!Enter()) return;
    ask(version, [self = shared_from_this(), version](absl::StatusOr<coord::NodeTable> table) {
      self->OnAnswer(version, table);
    });
    Exit();
  }
  void OnAnswer(int64_t version, const absl::StatusOr<coord::NodeTable>& table) {
    if ((!table.ok() && !MayPass(table.status())) || !Enter()) return;
    if (!table.ok()) {
      retry([self = shared_from_this(), version] { self->Question(version); });
    } else {
      on_table(*table);
      if (pause) {
        pause([self = shared_from_this(), version = table->version] { self->Question(version); });
      } else {
        Question(table->version);
      }
    }
    Exit();
  }

  // Constant after construction.
  Ask ask;
  Pause pause;
  Pause retry;
  OnTable on_table;

  absl::Mutex mu;
  bool is_stopped ABSL_GUARDED_BY(mu) = false;
  // Number of calls in progress.
  int inside ABSL_GUARDED_BY(mu) = 0;
};

NodeWatch::NodeWatch(Ask ask, Pause pause, Pause retry, OnTable on_table)
    : state_(std::make_shared<State>()) {
  state_->ask = std::move(ask);
  state_->pause = std::move(pause);
  state_->retry = std::move(retry);
  state_->on_table = std::move(on_table);
  state_->Question(-1);
}

void NodeWatch::Stop() {
  absl::MutexLock lock(&state_->mu);
  state_->is_stopped = true;
  state_->mu.Await(absl::Condition(state_.get(), &State::is_empty));
}

}  // namespace ferry

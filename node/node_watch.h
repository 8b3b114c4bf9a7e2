// SPDX-License-Identifier: Apache-2.0
// NodeWatch: reports every change of the job's node table to its owner.
#ifndef FERRY_NODE_NODE_WATCH_H_
#define FERRY_NODE_NODE_WATCH_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

#include "coord/client/agent.h"

namespace ferry {

// Requests the node table, reports it, and requests it again, until an answer is an error. An
// answer may arrive at any time, also after the owner is gone (from an agent that is left behind):
// it is then ignored. Thread-safe.
class NodeWatch final {
 public:
  using Answer = absl::AnyInvocable<void(absl::StatusOr<coord::NodeTable>) &&>;
  // As coord::Agent::WatchTasksAsync.
  using Ask = std::function<void(int64_t version, Answer answer)>;
  // Calls `again` after the pause between two requests.
  using Pause = std::function<void(absl::AnyInvocable<void() &&> again)>;
  using OnTable = std::function<void(const coord::NodeTable& table)>;

  // Sends the first request at once. None of the callbacks is called after Stop has returned.
  //   pause: after an answer; null: no pause.
  //   retry: after an error that does not end the connection, such as RESOURCE_EXHAUSTED.
  NodeWatch(Ask ask, Pause pause, Pause retry, OnTable on_table);
  ~NodeWatch() { Stop(); }

  NodeWatch(const NodeWatch&) = delete;
  NodeWatch& operator=(const NodeWatch&) = delete;

  // Blocks until a callback in progress returns. REQUIRES: not called within a callback.
  void Stop();

 private:
  struct State;

  const std::shared_ptr<State> state_;
};

}  // namespace ferry

#endif  // FERRY_NODE_NODE_WATCH_H_

// SPDX-License-Identifier: Apache-2.0
// NodeWatch: hears of every change of the job's nodes, for as long as its owner is there.
#ifndef FERRY_NODE_NODE_WATCH_H_
#define FERRY_NODE_NODE_WATCH_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

#include "coord/client/agent.h"

namespace ferry {

// Asks for the table of nodes, tells of it, and asks again, until an answer is an error. An answer
// may come at any time, from an agent that is left behind also when whoever wanted it is gone: it
// is let go of then. Thread-safe.
class NodeWatch final {
 public:
  using Answer = absl::AnyInvocable<void(absl::StatusOr<coord::NodeTable>) &&>;
  // As coord::Agent::WatchTasksAsync.
  using Ask = std::function<void(int64_t version, Answer answer)>;
  // Calls `again` after the pause between two questions.
  using Pause = std::function<void(absl::AnyInvocable<void() &&> again)>;
  using OnTable = std::function<void(const coord::NodeTable& table)>;

  // Asks at once. None of the three is called when Stop has returned.
  //   pause: null: there is none.
  NodeWatch(Ask ask, Pause pause, OnTable on_table);
  ~NodeWatch() { Stop(); }

  NodeWatch(const NodeWatch&) = delete;
  NodeWatch& operator=(const NodeWatch&) = delete;

  // Waits for a call that is under way. REQUIRES: not within one.
  void Stop();

 private:
  struct State;

  const std::shared_ptr<State> state_;
};

}  // namespace ferry

#endif  // FERRY_NODE_NODE_WATCH_H_

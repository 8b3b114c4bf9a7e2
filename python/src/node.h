// SPDX-License-Identifier: Apache-2.0
// JoinedNode: the node behind every Python object of a job.
#ifndef FERRY_PYTHON_SRC_NODE_H_
#define FERRY_PYTHON_SRC_NODE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ferry/node.h>
#include <nanobind/nanobind.h>

#include "absl/time/time.h"
#include "python/src/errors.h"
#include "python/src/fork_guard.h"
#include "python/src/waits.h"

namespace ferry::python {

// Shared by the node, its steps, its store and its transfers. The node is destroyed once it has
// left the job and no call uses it any more. REQUIRES: the GIL.
class JoinedNode final : public std::enable_shared_from_this<JoinedNode> {
 public:
  JoinedNode(std::unique_ptr<Node> node, absl::Duration default_timeout);
  ~JoinedNode();

  // For one call; may be kept by a thread that makes it.
  // Raises FerryError if the node has left the job, or in a child of fork.
  std::shared_ptr<Node> Use() const;
  // In a child of fork, which must not touch what is the node's.
  bool is_inherited() const { return fork_guard_.is_inherited(); }
  // Raises FerryError there.
  void CheckNotForked() const;
  // True once the node has left the job. Pending waits check it.
  bool is_closed() const { return node_ == nullptr; }
  // The error of a wait that ends because of is_closed().
  absl::Status ClosedError() const;
  absl::Duration default_timeout() const { return default_timeout_; }

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  // A peer's host name; empty if there is no such rank.
  std::string HostOf(int rank) const;
  ErrorContext ContextOf(std::string key, std::optional<int> peer) const;

  // Takes the node away. Later calls return null.
  std::shared_ptr<Node> Close();

 private:
  const ForkGuard fork_guard_;
  std::shared_ptr<Node> node_;
  const absl::Duration default_timeout_;
  const int rank_;
  const int world_size_;
  const Topology topology_;
};

// A call of the coordinator that waits for other nodes, of a type absl::StatusOr or absl::Status:
// as CallInterruptibly, and raises ClosedError(), after `interrupt`, when the node is closed
// meanwhile.
template <typename T, typename Call>
T CallOfNode(
    const JoinedNode& node, Call call, const std::function<void()>& interrupt = [] {}) {
  auto result = std::make_shared<std::optional<T>>();
  if (!RunInterruptibly([result, call = std::move(call)]() mutable { result->emplace(call()); },
                        interrupt, [&node] { return node.is_closed(); })) {
    {
      const nanobind::gil_scoped_release release;
      interrupt();
    }
    Raise(node.ClosedError());
  }
  return *std::move(*result);
}

// A `to=` or `source=` argument.
struct Peer {
  int rank = 0;
  std::optional<Device> device;
};
// A rank, or a pair of a rank and a device. Raises TypeError, ValueError.
Peer ParsePeer(nanobind::handle peer);

// That of a Python Node.
std::shared_ptr<JoinedNode> JoinedNodeOf(nanobind::handle node);

void DefineNode(nanobind::module_& core);

}  // namespace ferry::python

#endif  // FERRY_PYTHON_SRC_NODE_H_

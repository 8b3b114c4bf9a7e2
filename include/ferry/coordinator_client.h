// SPDX-License-Identifier: Apache-2.0
// CoordinatorClient: key-value store, barriers and membership of a job.
#ifndef FERRY_INCLUDE_FERRY_COORDINATOR_CLIENT_H_
#define FERRY_INCLUDE_FERRY_COORDINATOR_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include <ferry/cancellation_token.h>
#include <ferry/key_watch.h>
#include <ferry/namespace.h>

namespace ferry {
FERRY_NAMESPACE_BEGIN

struct CoordinatorClientOptions {
  // HOST:PORT.
  std::string address;
  // How long Connect waits for the coordinator.
  absl::Duration connect_timeout = absl::Minutes(5);
  // The limit on calls that do not wait for other nodes. Writes get a second more per MiB.
  absl::Duration rpc_timeout = absl::Seconds(30);
  // Ends Connect.
  std::optional<CancellationToken> cancellation;
};

enum class NodeState {
  kNotJoined,  // it has not joined, or is joining now
  kJoined,
  kLeft,
  kFailed,  // it has died, hangs, or has reported an error
};

// "not joined", "joined", "left", "failed".
std::string ToString(NodeState state);

// A node as the coordinator sees it. A plain value.
struct NodeStatus {
  int rank = 0;
  NodeState state = NodeState::kNotJoined;
  std::string host_name;
  // Why it has failed; OK otherwise.
  absl::Status error;
  // Time since its last sign of life; infinite if there was none.
  absl::Duration heartbeat_age = absl::InfiniteDuration();
};

// Thread-safe. A dropped connection is made again, and pending calls neither fail nor run twice.
// Every call ends: besides the errors that each method lists,
//   DEADLINE_EXCEEDED   its timeout, or rpc_timeout, has passed; if the coordinator hangs or is out
//                       of reach, Get, GetAll and Barrier end 2 to 5 seconds after their timeout;
//   UNAVAILABLE         the coordinator cannot be reached, or is stopping;
//   ABORTED             the coordinator was restarted, considers this node dead, or the job has
//                       failed;
//   CANCELLED           the client was destroyed.
class CoordinatorClient {
 public:
  // A client outside the job, for the store and for status; a node has its own,
  // Node::coordinator(). Blocks.
  //   Errors: INVALID_ARGUMENT for a malformed address; DEADLINE_EXCEEDED naming the address that
  //   did not answer; the reason of the cancellation.
  static absl::StatusOr<std::unique_ptr<CoordinatorClient>> Connect(
      CoordinatorClientOptions options);
  ~CoordinatorClient();

  CoordinatorClient(const CoordinatorClient&) = delete;
  CoordinatorClient& operator=(const CoordinatorClient&) = delete;

  // The job's number of nodes.
  int num_nodes() const;

  // --- Key-value store. Keys and values are bytes; a job begins with an empty store. ---

  // Waits until the key exists.
  //   Errors: DEADLINE_EXCEEDED naming the key; the reason of the cancellation.
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout,
                                  std::optional<CancellationToken> cancellation = std::nullopt);
  // Waits until all exist; values in the order of `keys`. One round trip.
  absl::StatusOr<std::vector<std::string>> GetAll(
      std::vector<std::string> keys, absl::Duration timeout,
      std::optional<CancellationToken> cancellation = std::nullopt);
  //   Errors: NOT_FOUND if the key does not exist.
  absl::StatusOr<std::string> TryGet(absl::string_view key);
  // Entries whose key begins with `prefix`, ordered by key.
  absl::StatusOr<std::vector<KeyValue>> List(absl::string_view prefix);
  //   Errors: ALREADY_EXISTS if the key exists, unless `overwrite`.
  absl::Status Set(absl::string_view key, absl::string_view value, bool overwrite = false);
  // Sets all entries or none. One round trip.
  //   Errors: as Set.
  absl::Status SetAll(std::vector<std::pair<std::string, std::string>> entries,
                      bool overwrite = false);
  // Adds to the decimal number that the key holds, 0 if it does not exist, and returns the sum.
  //   Errors: FAILED_PRECONDITION if the value is not a number.
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta);
  // Sets the key if it holds `expected` (nullopt: if it does not exist). Returns whether it did.
  absl::StatusOr<bool> CompareAndSet(absl::string_view key,
                                     const std::optional<std::string>& expected,
                                     absl::string_view desired);
  // Deletes the key, if it exists.
  //   is_prefix: also all keys that begin with `key` and "/".
  absl::Status Delete(absl::string_view key, bool is_prefix = false);
  // Calls `on_change` for existing entries, and then for every change, in order, on a thread shared
  // by all clients of this process, or on one that waits for an answer in a call of a client. It
  // must not block, throw, or destroy a client; calls of clients that would wait fail there with
  // FAILED_PRECONDITION. Does not block: changes until the coordinator has received the watch count
  // as existing entries.
  //   Errors: RESOURCE_EXHAUSTED; INVALID_ARGUMENT `on_change` is null.
  absl::StatusOr<KeyWatch> Watch(absl::string_view prefix,
                                 std::function<void(const KeyChange&)> on_change);

  // --- Barriers and membership ---

  // Blocks until all of `ranks`, or all nodes if it is empty, have called this with the same id and
  // ranks. They must include this node. An id can be used again. Only for nodes.
  //   Errors: DEADLINE_EXCEEDED naming the missing ranks; INVALID_ARGUMENT others wait there with
  //   other ranks; INTERNAL a node failed, or is at another use of the id; FAILED_PRECONDITION this
  //   node waits there already, or this client is not a node.
  absl::Status Barrier(absl::string_view id, absl::Duration timeout, std::vector<int> ranks = {});
  // Ends the barrier at which this node waits in another thread, with CANCELLED for all.
  //   Errors: FAILED_PRECONDITION if it does not wait there.
  absl::Status CancelBarrier(absl::string_view id);

  // Returns the live nodes among `ranks`, which must include this node. Collective: blocks until
  // each live node of `ranks` has called this; all get the same result. Only for nodes.
  absl::StatusOr<std::vector<int>> LiveNodes(std::vector<int> ranks, absl::Duration timeout);
  // The state of every node, by rank. Not collective.
  absl::StatusOr<std::vector<NodeStatus>> Nodes();
  // Why the job has failed; OK while it has not.
  absl::Status JobStatus();

 private:
  class Impl;
  friend class ApiAccess;

  explicit CoordinatorClient(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_COORDINATOR_CLIENT_H_

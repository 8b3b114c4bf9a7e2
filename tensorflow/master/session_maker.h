// SPDX-License-Identifier: Apache-2.0
// SessionMaker: creates a session for a request.
#ifndef FERRY_TENSORFLOW_MASTER_SESSION_MAKER_H_
#define FERRY_TENSORFLOW_MASTER_SESSION_MAKER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/cancellation_token.h"
#include "proto/tf_master.pb.h"
#include "tensorflow/master/cluster.h"
#include "tensorflow/master/master_options.h"
#include "tensorflow/master/session.h"
#include "tensorflow/master/worker_waits.h"

namespace ferry::master {

// Reads the graph, waits for the workers, places the graph, and opens the session at the workers.
// Retries if a worker cannot be reached, with its then current incarnation. One per request.
class SessionMaker final : public std::enable_shared_from_this<SessionMaker> {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<Session>>) &&>;

  // Shared by all makers; must outlive them.
  struct Context {
    const MasterContext& master;
    ClusterSource& cluster;
    WorkerWaits& waits;
    // Tells workers this incarnation of the master from others.
    std::string master_task;
    int64_t incarnation = 0;
  };

  SessionMaker(const Context& context, std::shared_ptr<tensorflow::CreateSessionRequest> request,
               std::shared_ptr<CancellationToken> gone, Done done);

  // Calls `done` once, with no lock held.
  //   Errors: INVALID_ARGUMENT and UNIMPLEMENTED for options; those of ReadGraph and graph::Place;
  //   DEADLINE_EXCEEDED naming workers; CANCELLED; what workers answer.
  void Start();

 private:
  absl::Status ReadOptions();
  void AwaitWorkers();
  // Runs on the work threads.
  void Place(Cluster cluster);
  void Open(std::shared_ptr<SessionWorkers> workers, std::shared_ptr<const PlacedGraph> graph);
  void WhenOpened(const std::shared_ptr<SessionWorkers>& workers,
                  std::shared_ptr<const PlacedGraph> graph, const absl::Status& status);

  const Context& context_;
  const std::shared_ptr<tensorflow::CreateSessionRequest> request_;
  const std::shared_ptr<CancellationToken> gone_;
  Done done_;
  // Used by one thread at a time.
  DeviceFilters filters_;
  absl::Duration timeout_;
  absl::Time deadline_;
  size_t graph_bytes_ = 0;
  Budget::Share graph_share_;
  PlacedGraph graph_;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_SESSION_MAKER_H_

// SPDX-License-Identifier: Apache-2.0
// SessionGraph: a session's graph, in the version to which the client has extended it.
#ifndef FERRY_TENSORFLOW_MASTER_SESSION_GRAPH_H_
#define FERRY_TENSORFLOW_MASTER_SESSION_GRAPH_H_

#include <cstddef>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "proto/tf_config.pb.h"
#include "proto/tf_master.pb.h"
#include "tensorflow/master/master_options.h"
#include "tensorflow/master/session_workers.h"
#include "tensorflow/master/step_plan.h"

namespace ferry::master {

// A version is immutable: an extension makes the next one, and steps in progress keep the one with
// which they began. Thread-safe.
class SessionGraph final {
 public:
  // All references outlive it.
  //   first: placed on the workers' devices.
  //   bytes: the client's messages in all; limited by MasterOptions::max_graph_bytes.
  //   share: of the budget of all graphs' memory.
  SessionGraph(const MasterContext& context, const SessionWorkers& workers,
               const tensorflow::ConfigProto& config, std::shared_ptr<const PlacedGraph> first,
               size_t bytes, Budget::Share share);

  SessionGraph(const SessionGraph&) = delete;
  SessionGraph& operator=(const SessionGraph&) = delete;

  std::shared_ptr<const PlacedGraph> Current() const ABSL_LOCKS_EXCLUDED(mu_);

  // Reads and places the request's nodes, which it consumes. May take long; concurrent extensions
  // of one version are computed in parallel, and the first one to finish wins.
  //   memory: GraphMemory of the request's graph.
  //   Errors: ABORTED if the request is not for the current version; those of ReadGraph and
  //   graph::Place; RESOURCE_EXHAUSTED naming the limit.
  absl::StatusOr<tensorflow::ExtendSessionResponse> Extend(
      tensorflow::ExtendSessionRequest& request, size_t memory) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const MasterContext& context_;
  const SessionWorkers& workers_;
  const tensorflow::ConfigProto& config_;

  mutable absl::Mutex mu_;
  std::shared_ptr<const PlacedGraph> current_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_);
  Budget::Share share_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_SESSION_GRAPH_H_

// SPDX-License-Identifier: Apache-2.0
// SessionGraph: extending a graph.
#include "tensorflow/master/session_graph.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensorflow/graph/place.h"
#include "tensorflow/master/read_graph.h"

namespace ferry::master {

SessionGraph::SessionGraph(const MasterContext& context, const SessionWorkers& workers,
                           const tensorflow::ConfigProto& config,
                           std::shared_ptr<const PlacedGraph> first, size_t bytes,
                           Budget::Share share)
    : context_(context),
      workers_(workers),
      config_(config),
      current_(std::move(first)),
      bytes_(bytes),
      share_(std::move(share)) {}

std::shared_ptr<const PlacedGraph> SessionGraph::Current() const {
  absl::MutexLock lock(&mu_);
  return current_;
}

absl::StatusOr<tensorflow::ExtendSessionResponse> SessionGraph::Extend(
    tensorflow::ExtendSessionRequest& request, size_t memory) {
  const auto check_version = [&request](int64_t version) {
    if (version == request.current_graph_version()) return absl::OkStatus();
    return absl::AbortedError(absl::StrCat("Current version is ", version, " but caller expected ",
                                           request.current_graph_version(), "."));
  };
  const std::shared_ptr<const PlacedGraph> before = Current();
  FERRY_RETURN_IF_ERROR(check_version(before->version));
  const size_t bytes = request.graph_def().ByteSizeLong();
  Budget::Share share;
  FERRY_RETURN_IF_ERROR(TakeGraphShare(context_, memory, share));
  auto after = std::make_shared<PlacedGraph>();
  FERRY_ASSIGN_OR_RETURN(
      *after, ReadGraph(std::move(*request.mutable_graph_def()), before.get(), context_.options));
  graph::PlaceOptions options;
  options.allow_soft_placement = config_.allow_soft_placement();
  FERRY_ASSIGN_OR_RETURN(after->placement, graph::Place(after->graph, workers_.devices().set,
                                                        options, before->placement));
  after->version = before->version + 1;
  absl::MutexLock lock(&mu_);
  // Another extension was faster.
  FERRY_RETURN_IF_ERROR(check_version(current_->version));
  if (bytes > context_.options.max_graph_bytes - bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("The session's graph would be larger than --max-graph-bytes (",
                     context_.options.max_graph_bytes, ")"));
  }
  bytes_ += bytes;
  share_.Add(std::move(share));
  current_ = std::move(after);
  tensorflow::ExtendSessionResponse response;
  response.set_new_graph_version(current_->version);
  return response;
}

}  // namespace ferry::master

// SPDX-License-Identifier: Apache-2.0
// StepSession: a session at a coordinator, and one step that is run in it repeatedly.
#ifndef FERRY_CLI_STEP_SESSION_H_
#define FERRY_CLI_STEP_SESSION_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "cli/step_graph_proto.h"
#include "cli/step_report.h"
#include "tensor/tensor.h"

namespace ferry::cli {

struct StepRequest {
  std::vector<std::pair<std::string, Tensor>> feeds;
  std::vector<std::string> fetches;
  std::vector<std::string> targets;
  // Per step; the master ends the step then.
  absl::Duration timeout;
};

// Thread-safe except for Open. Errors of all calls: those of the server; CANCELLED after Cancel.
class StepSession final {
 public:
  //   wait: timeout for the job's workers.
  //   soft_placement: nodes that cannot run on their requested device may run elsewhere.
  //   Errors: UNAVAILABLE if nothing answers at `coordinator`; UNIMPLEMENTED if it serves no
  //   graphs.
  static absl::StatusOr<std::unique_ptr<StepSession>> Open(const std::string& coordinator,
                                                           const StepGraph& graph,
                                                           StepRequest request, bool soft_placement,
                                                           absl::Duration wait);
  // Closes the session, which takes at most a second.
  ~StepSession();

  StepSession(const StepSession&) = delete;
  StepSession& operator=(const StepSession&) = delete;

  // Runs a step with tracing.
  absl::StatusOr<TracedStep> RunTraced();
  // Runs a step as a client would; the fetches are received and dropped.
  absl::Status Run();
  // An empty call of the same server: the minimum latency of a call.
  absl::Status Ping();

  // Cancels all current and future calls.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Method = grpc::internal::RpcMethod;

  explicit StepSession(std::string coordinator);

  absl::Status Call(const Method& method, absl::Duration timeout, const grpc::ByteBuffer& request,
                    grpc::ByteBuffer& response) ABSL_LOCKS_EXCLUDED(mu_);
  template <typename Request, typename Response>
  absl::Status Ask(const char* method, absl::Duration timeout, const Request& request,
                   Response& response);
  absl::Status Serialize(const StepRequest& request);

  // Constant after Open.
  const std::string coordinator_;
  const std::shared_ptr<grpc::Channel> channel_;
  const Method run_step_;
  const Method ping_;
  std::string handle_;
  std::vector<std::string> fetches_;
  absl::Duration timeout_;
  // Serialised once and sent repeatedly.
  grpc::ByteBuffer plain_;
  grpc::ByteBuffer traced_;
  grpc::ByteBuffer empty_;

  absl::Mutex mu_;
  bool is_cancelled_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_STEP_SESSION_H_

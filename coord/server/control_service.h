// SPDX-License-Identifier: Apache-2.0
// ferry.v1.Control: streams, and the registry of their sessions.
#ifndef FERRY_COORD_SERVER_CONTROL_SERVICE_H_
#define FERRY_COORD_SERVER_CONTROL_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <grpcpp/alarm.h>
#include <grpcpp/impl/codegen/service_type.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "coord/server/call.h"
#include "coord/server/control_session.h"
#include "coord/server/memory_trim.h"

namespace ferry::coord {

struct OpenSession {
  std::shared_ptr<ControlSession> session;
  // All fields except those that only the session knows.
  v1::Welcome welcome;
};

// Thread-safe. Holds every session, attaches streams to them, rejects a second rank that claims an
// identity in use, and drops sessions whose client does not reconnect.
class ControlSessions final {
 public:
  // `check_end_job`: as ServerOptions.
  explicit ControlSessions(
      Frontend& frontend,
      std::function<absl::Status(const Coordinator&, absl::string_view auth_tag)> check_end_job =
          nullptr);
  ~ControlSessions();

  // Serves the requests for PyTorch's stores too. Called before Open; `server` outlives all
  // streams. `open`: see TcpStoreServer::OpenScope; called on the threads that serve streams.
  void ServeTcpStore(TcpStoreServer& server,
                     std::function<absl::StatusOr<std::unique_ptr<Listener>>()> open) {
    shared_.tcp_store = {&server, std::move(open)};
  }
  // Adds the lighthouse to the job's status. Called before Open; it outlives all streams.
  void ReportLighthouse(LighthouseServer& lighthouse) { shared_.lighthouse = &lighthouse; }
  // Reports the runs of PyTorch's nodes. Called before Open; `server` outlives all streams.
  void ServeElastic(const ElasticServer& server) { shared_.elastic = &server; }

  // Returns the session that `hello` refers to, new or existing, to attach a stream to.
  //   Errors: INVALID_ARGUMENT unknown node; ABORTED the session no longer exists; ALREADY_EXISTS
  //   the node id is in use by another process, or one of its GPUs by another host; UNAVAILABLE
  //   closing.
  absl::StatusOr<OpenSession> Open(const v1::Hello& hello, const std::string& observed_address)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Ends every session with `why` once its pending frames are sent; no other can be opened any
  // more.
  void CloseAll(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // The number of sessions with a stream. The others' clients have ended, or will reconnect.
  size_t attached_count() const ABSL_LOCKS_EXCLUDED(mu_);

  // See CoordinatorOptions.
  size_t max_frame_bytes() const { return max_frame_bytes_; }

 private:
  using SessionMap = absl::flat_hash_map<uint64_t, std::shared_ptr<ControlSession>>;

  absl::Status CheckIdentityLocked(const v1::Node& node, const std::string& observed_address,
                                   int64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetIdentityLocked(const std::shared_ptr<ControlSession>& session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Every second: drops sessions that have been detached for too long, and trims freed memory.
  void Sweep() ABSL_LOCKS_EXCLUDED(mu_);
  void ArmLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ControlShared shared_;
  // How long a rank may stay disconnected.
  absl::Duration rank_grace_;
  size_t max_frame_bytes_ = 0;
  // Used by Sweep only.
  MemoryTrim trim_;

  mutable absl::Mutex mu_;
  absl::CondVar swept_;
  bool is_closing_ ABSL_GUARDED_BY(mu_) = false;
  bool is_sweep_armed_ ABSL_GUARDED_BY(mu_) = false;
  SessionMap sessions_ ABSL_GUARDED_BY(mu_);
  // The latest session of each node, and of each GPU.
  absl::flat_hash_map<int32_t, std::shared_ptr<ControlSession>> by_node_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, std::shared_ptr<ControlSession>> by_gpu_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mu_);
};

// The receiving side of one stream: its first frame opens or resumes a session. Used by the
// stream's reader; not thread-safe.
class ControlEntry final {
 public:
  // `sessions` outlives it.
  ControlEntry(ControlSessions& sessions, std::string observed_address)
      : sessions_(sessions), observed_address_(std::move(observed_address)) {}

  // If not OK, the stream must end with this status. `sink` is the stream's sending side.
  absl::Status OnFrame(absl::string_view frame, FrameSink& sink);
  // The stream has ended.
  void Detach(FrameSink& sink);

  size_t max_frame_bytes() const { return sessions_.max_frame_bytes(); }

  // Null before the first frame. Set before the session writes anything.
  const std::shared_ptr<ControlSession>& session() const { return session_; }

 private:
  ControlSessions& sessions_;
  const std::string observed_address_;
  std::shared_ptr<ControlSession> session_;
};

// The gRPC service over `sessions`, which outlives it.
std::unique_ptr<grpc::Service> MakeControlService(ControlSessions& sessions);

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_CONTROL_SERVICE_H_

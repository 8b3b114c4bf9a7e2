// SPDX-License-Identifier: Apache-2.0
// One unary call of a compatible service: answered at once, or parked until the coordinator is
// ready.
#ifndef FERRY_COORD_GRPC_CALL_H_
#define FERRY_COORD_GRPC_CALL_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include <google/protobuf/message_lite.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "coord/grpc_bytes.h"
#include "coord/strand.h"
#include "coord/types.h"

namespace ferry::coord {

// What the adapters share. Thread-safe.
class Edge final {
 public:
  explicit Edge(Strand& strand) : strand_(strand) {}

  Strand& strand() { return strand_; }

  // Which tasks call from an address: those that registered from it. Mostly one; processes that
  // share a connection are several.
  void NoteCaller(const std::string& address, TaskId task) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<TaskId> CallersAt(const std::string& address) const ABSL_LOCKS_EXCLUDED(mu_);
  // The only one, or kNoTask. Calls that do not name their task, such as a get, are put down to it
  // in status reports.
  TaskId CallerAt(const std::string& address) const ABSL_LOCKS_EXCLUDED(mu_);

  // Parked calls that were dropped because their client vanished or gave up.
  int64_t dropped_waits() const { return dropped_waits_.load(std::memory_order_relaxed); }
  void CountDroppedWait() { dropped_waits_.fetch_add(1, std::memory_order_relaxed); }

 private:
  Strand& strand_;
  std::atomic<int64_t> dropped_waits_{0};
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::vector<TaskId>> callers_ ABSL_GUARDED_BY(mu_);
};

// A call that may wait. Owned by gRPC: deletes itself when the call is over. Holds no thread.
// Use: make one, park it with the coordinator, SetWait what that returned, and return it from the
// handler; the coordinator's callback calls Finish exactly once.
class ParkedCall final : public grpc::ServerUnaryReactor {
 public:
  ParkedCall(Edge& edge, grpc::ByteBuffer* response) : edge_(edge), response_(response) {}

  // gRPC cannot cancel or end the call before its handler has returned it, so this needs no lock.
  void SetWait(WaitId wait) { wait_ = wait; }

  void Reply(const google::protobuf::MessageLite& message) {
    *response_ = SerializeMessage(message);
    Finish(grpc::Status::OK);
  }

 private:
  // The client vanished, cancelled, or its deadline passed.
  void OnCancel() override {
    if (wait_ == kNoWait) return;
    const bool dropped =
        edge_.strand().Run([this](Coordinator& coordinator) { return coordinator.Cancel(wait_); });
    if (dropped) edge_.CountDroppedWait();
  }
  void OnDone() override { delete this; }

  Edge& edge_;
  grpc::ByteBuffer* const response_;
  WaitId wait_ = kNoWait;
};

// The parts of a call on their way through a handler.
struct UnaryContext {
  grpc::CallbackServerContext* server = nullptr;
  grpc::ByteBuffer* response = nullptr;

  grpc::ServerUnaryReactor* Fail(grpc::Status status) const {
    grpc::ServerUnaryReactor* reactor = server->DefaultReactor();
    reactor->Finish(std::move(status));
    return reactor;
  }
  grpc::ServerUnaryReactor* Reply(const google::protobuf::MessageLite& message) const {
    *response = SerializeMessage(message);
    return Fail(grpc::Status::OK);
  }
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_GRPC_CALL_H_

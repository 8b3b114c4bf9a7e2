// SPDX-License-Identifier: Apache-2.0
// ControlRequests: executes the requests of one client of ferry.v1.Control.
#ifndef FERRY_COORD_SERVER_CONTROL_REQUESTS_H_
#define FERRY_COORD_SERVER_CONTROL_REQUESTS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/support/slice.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "coord/core/coordinator.h"
#include "coord/core/types.h"
#include "coord/server/call.h"
#include "coord/server/control_delivery.h"
#include "coord/server/elastic_server.h"
#include "coord/server/lighthouse_server.h"
#include "coord/server/store_requests.h"
#include "coord/server/tcp_store_holds.h"
#include "proto/ferry_control.pb.h"

namespace ferry::coord {

// The shared bytes of a large answer, as a gRPC slice that is made once.
class SharedBlobs final {
 public:
  grpc::Slice SliceOf(const TopologyExchange::Result& topology) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  TopologyExchange::Result topology_ ABSL_GUARDED_BY(mu_);
  grpc::Slice slice_ ABSL_GUARDED_BY(mu_);
};

// State shared by all sessions of a server; outlives them.
struct ControlShared {
  Frontend& frontend;
  // As ServerOptions.
  std::function<absl::Status(const Coordinator&, absl::string_view auth_tag)> check_end_job;
  SharedBlobs blobs;
  // Set before the first session.
  TcpStorePorts tcp_store;
  // Null if there is none. Set before the first session.
  LighthouseServer* lighthouse = nullptr;
  // Null: it is not served.
  const ElasticServer* elastic = nullptr;
  // Shared with the executor, which may run completions after the rest is destroyed.
  std::shared_ptr<WriteCoalescer> gather = std::make_shared<WriteCoalescer>();
};

// Thread-safe. Translates requests to calls of the Coordinator and their results to replies, and
// knows what the client, if it is a rank, has done in the job. Shared by its session and the
// callbacks of deferred requests.
class ControlRequests final : public std::enable_shared_from_this<ControlRequests> {
 public:
  ControlRequests(ControlShared& shared, std::shared_ptr<ControlDelivery> delivery,
                  const v1::Hello& hello, std::string observed_address);

  // Executes one request: adds its reply to `out`, or that it is deferred. With the executor's lock
  // held; the caller then records in the delivery what was deferred.
  void Execute(Coordinator& coordinator, v1::Request& request, RequestResults& out);
  // Then, without the lock, executes those of out.without_lock: PyTorch's stores have a lock of
  // their own, which their clients take often.
  void ExecuteWithoutLock(RequestResults& out);
  // The session has ended.
  void EndHolds() { holds_.End(); }

  // kNoTask for a client that is not a rank.
  TaskId task() const { return task_; }
  const v1::Node& node() const { return node_; }
  const std::string& observed_address() const { return observed_address_; }

  // Bytes of any kind have arrived from the client.
  void NoteAlive();
  // True if its rank joined an earlier job than that of `epoch`, and so is not part of that one.
  bool IsOfJobBefore(int64_t epoch) const { return epoch_ != 0 && epoch_ < epoch; }
  // True if its rank has left the job normally: its identity is free.
  bool has_left() const { return has_left_; }
  // True if its rank sends heartbeats, and has sent none for `timeout`.
  bool IsSilent(absl::Time now, absl::Duration timeout) const {
    const int64_t last = last_heartbeat_;
    return last != 0 && now - absl::FromUnixNanos(last) > timeout;
  }

 private:
  // An Enumerate request.
  struct Enumeration {
    uint64_t request_id = 0;
    LocalTopology local;
    absl::Duration timeout;
  };

  // All with the executor's lock held.
  void ExecuteTask(Coordinator& coordinator, v1::Request& request, RequestResults& out);
  void Register(Coordinator& coordinator, const v1::Request& request, RequestResults& out);
  void Barrier(Coordinator& coordinator, const v1::Request& request, RequestResults& out);
  void GetAlive(Coordinator& coordinator, const v1::Request& request, RequestResults& out);
  void Enumerate(Coordinator& coordinator, Enumeration enumeration);
  void Cancel(Coordinator& coordinator, const v1::Request& request, RequestResults& out);
  void WatchTasks(Coordinator& coordinator, const v1::Request& request, RequestResults& out);
  // Counts a request that will be answered with the whole task table; its callback uncounts it.
  // Returns false, having answered it, if there are too many.
  bool BeginTableWait(const Coordinator& coordinator, const v1::Request& request,
                      RequestResults& out);
  void PollForErrors(Coordinator& coordinator);
  // Without the executor's lock.
  void ListStore(const v1::Request& request, RequestResults& out);

  // Constant after construction.
  ControlShared& shared_;
  const std::shared_ptr<ControlDelivery> delivery_;
  const v1::Node node_;
  const TaskId task_;
  const std::string observed_address_;

  StoreRequests store_requests_;
  TcpStoreHolds holds_;

  // On the steady clock, in nanoseconds; 0: there has been none.
  std::atomic<int64_t> last_heartbeat_{0};
  // When NoteAlive last reported it, in the same units.
  std::atomic<int64_t> last_alive_{0};
  // The epoch of the job that its rank has joined; 0 if it has joined none.
  std::atomic<int64_t> epoch_{0};
  std::atomic<bool> has_left_{false};
  // Pending requests for the task table.
  std::atomic<int> table_waits_{0};

  // Guarded by the executor's lock: a Register is in progress, and what follows it.
  bool is_joining_ = false;
  std::vector<Enumeration> after_joining_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_CONTROL_REQUESTS_H_

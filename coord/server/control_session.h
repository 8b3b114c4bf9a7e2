// SPDX-License-Identifier: Apache-2.0
// ControlSession: one client of ferry.v1.Control across all its streams.
#ifndef FERRY_COORD_SERVER_CONTROL_SESSION_H_
#define FERRY_COORD_SERVER_CONTROL_SESSION_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "coord/core/store.h"
#include "coord/core/types.h"
#include "coord/server/call.h"
#include "coord/server/control_outbox.h"
#include "proto/ferry_control.pb.h"

namespace ferry::coord {

// The sending side of a session's stream. Called with the session's lock held, because a stream
// may only be used until the session has detached it; neither method calls back synchronously.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Sends one frame, whose content it consumes. Returns true if the next frame may follow at once;
  // else the sink calls ControlSession::OnWritten when it may. One at a time.
  virtual bool Write(grpc::ByteBuffer& frame) = 0;
  // Ends the stream after the current write. No Write follows.
  virtual void Finish(const absl::Status& why) = 0;
};

// The shared bytes of a large answer, as a gRPC slice that is made once.
class SharedBlobs final {
 public:
  grpc::Slice SliceOf(const TopologyExchange::Result& topology) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  TopologyExchange::Result topology_ ABSL_GUARDED_BY(mu_);
  grpc::Slice slice_ ABSL_GUARDED_BY(mu_);
};

class ControlSession;

// Thread-safe. Collects the sessions for which completions have queued messages and flushes them
// when the batch of completions is over, so that messages due together share one frame.
class WriteCoalescer final {
 public:
  void Add(std::shared_ptr<ControlSession> session) ABSL_LOCKS_EXCLUDED(mu_);
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  std::vector<std::shared_ptr<ControlSession>> sessions_ ABSL_GUARDED_BY(mu_);
};

// State shared by all sessions of a server; outlives them.
struct ControlShared {
  Edge& edge;
  // As ServerOptions.
  std::function<absl::Status(const Coordinator&, absl::string_view proof)> check_end_job;
  SharedBlobs blobs;
  // Shared with the executor, which may run completions after the rest is destroyed.
  std::shared_ptr<WriteCoalescer> gather = std::make_shared<WriteCoalescer>();
};

// Thread-safe. Executes requests, and retains outgoing messages until the client has acknowledged
// them, so that a new stream resumes where the old one broke off. Shared by the registry, the
// stream, and the callbacks of deferred requests.
// Lock order: the executor's lock, mu_, then the sink's locks; the executor is entered without
// mu_.
class ControlSession final : public std::enable_shared_from_this<ControlSession> {
 public:
  ControlSession(uint64_t id, ControlShared& shared, const v1::Hello& hello,
                 std::string observed_address);

  uint64_t id() const { return id_; }
  // kNoTask for a client that is not a rank.
  TaskId task() const { return task_; }
  const v1::Node& node() const { return node_; }
  const std::string& observed_address() const { return observed_address_; }

  // True if `hello` is from the client that opened the session; see v1::Hello.
  bool IsOpening(const v1::Hello& hello) const {
    return opening_ != 0 && opening_ == hello.opening();
  }
  // True if `hello` is from the client that owns this session.
  bool IsOf(const v1::Hello& hello) const {
    return hello.has_node() == has_node_ && hello.node().node_id() == node_.node_id() &&
           hello.node().incarnation() == node_.incarnation() &&
           (opening_ == 0 || opening_ == hello.opening());
  }
  // REQUIRES: one caller at a time. Returns false if a later attempt arrived before this one.
  bool NoteAttempt(const v1::Hello& hello) {
    const uint32_t last = std::exchange(last_attempt_, std::max(last_attempt_, hello.attempt()));
    return hello.attempt() > last || last == 0;
  }

  // Replaces any other sink by `sink`, which gets `welcome` first, then what is unacknowledged.
  void Attach(FrameSink& sink, uint64_t acked_sequence, v1::Welcome welcome)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Detaches `sink`; ignored if another one is attached.
  void Detach(FrameSink& sink) ABSL_LOCKS_EXCLUDED(mu_);
  void OnWritten(FrameSink& sink) ABSL_LOCKS_EXCLUDED(mu_);
  // If not OK, the stream must end with this status.
  absl::Status OnFrame(v1::ClientFrame& frame) ABSL_LOCKS_EXCLUDED(mu_);
  // Bytes of any kind have arrived from the client.
  void NoteAlive();

  // Writes pending messages if the stream is ready.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the stream and drops every deferred request. Returns their number.
  size_t Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // As Close, but first sends what is queued.
  void FinishWhenDrained(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Since when no stream is attached; InfiniteFuture while one is.
  absl::Time detached_since() const ABSL_LOCKS_EXCLUDED(mu_);
  // True if its rank joined an earlier job than that of `epoch`, and so is not part of that one.
  bool IsOfJobBefore(int64_t epoch) const { return epoch_ != 0 && epoch_ < epoch; }
  bool has_left() const ABSL_LOCKS_EXCLUDED(mu_);
  // True if it sends heartbeats, and has sent none for `timeout` although a stream is attached:
  // the kernel keeps the connections of a process that is stopped, or whose children have
  // inherited them.
  bool IsSilent(absl::Time now, absl::Duration timeout) const {
    const int64_t last = last_heartbeat_;
    return last != 0 && now - absl::FromUnixNanos(last) > timeout;
  }

 private:
  // The immediate results of a frame's requests, sent when the executor's lock is released.
  struct Executed {
    // Not encoded straight into the outbox, which would be faster but would hold mu_ meanwhile.
    std::vector<v1::Reply> replies;
    // The shared bytes of some replies, by index into `replies`, in order.
    std::vector<std::pair<size_t, SharedBytes>> shared;
    std::vector<std::pair<uint64_t, WaitId>> waits;
    std::vector<std::pair<uint64_t, Store::Watch>> watches;
    // Bytes queued for the client, including these results.
    size_t behind = 0;
  };

  // An Enumerate request.
  struct Enumeration {
    uint64_t request_id = 0;
    LocalTopology local;
    absl::Duration timeout;
  };

  // control_requests.cc and, for the store, control_store.cc; with the executor's lock held.
  void Execute(Coordinator& coordinator, v1::Request& request, Executed& out);
  void ExecuteStore(Coordinator& coordinator, v1::Request& request, Executed& out);
  void ExecuteTask(Coordinator& coordinator, v1::Request& request, Executed& out);
  void Register(Coordinator& coordinator, const v1::Request& request, Executed& out);
  void Enumerate(Coordinator& coordinator, Enumeration enumeration);
  // Counts a request that will be answered with the whole task table; its callback uncounts it.
  // Returns false, having answered it, if there are too many.
  bool BeginTableWait(const Coordinator& coordinator, const v1::Request& request, Executed& out);
  void PollForErrors(Coordinator& coordinator);

  // The rank has left the job normally: its identity is free.
  void NoteLeft() ABSL_LOCKS_EXCLUDED(mu_);

  // Called by callbacks of deferred requests, which run as completions, so that a Flush follows.
  void Tell(v1::Reply reply, const SharedBytes* shared = nullptr) ABSL_LOCKS_EXCLUDED(mu_);
  // `value`: as in ControlOutbox::Add.
  void Tell(v1::Event event, const grpc::Slice& value = grpc::Slice()) ABSL_LOCKS_EXCLUDED(mu_);
  void FlushLaterLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // With the executor's lock held, so that a deferred request cannot be answered before it is
  // recorded.
  void NoteParked(Coordinator& coordinator, const Executed& executed) ABSL_LOCKS_EXCLUDED(mu_);
  void NoteParked(Coordinator& coordinator, uint64_t request_id, WaitId wait)
      ABSL_LOCKS_EXCLUDED(mu_);
  size_t CountWatches() const ABSL_LOCKS_EXCLUDED(mu_);
  // Bytes queued for the client.
  size_t Behind() const ABSL_LOCKS_EXCLUDED(mu_);
  // True if nothing will be sent any more.
  bool IsOver() const ABSL_LOCKS_EXCLUDED(mu_);
  void WriteNextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddLocked(Executed& executed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the session if too much is queued for its client.
  void BoundLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const uint64_t id_;
  ControlShared& shared_;
  const v1::Node node_;
  const bool has_node_;
  const uint64_t opening_;
  const std::string observed_address_;
  TaskId task_ = kNoTask;

  // Guarded by the registry's lock.
  uint32_t last_attempt_ = 0;

  // On the steady clock, in nanoseconds; 0: there has been none.
  std::atomic<int64_t> last_heartbeat_{0};
  // When NoteAlive last reported it, in the same units.
  std::atomic<int64_t> last_alive_{0};

  // The epoch of the job that its rank has joined; 0 if it has joined none.
  std::atomic<int64_t> epoch_{0};

  // Pending requests for the task table.
  std::atomic<int> table_waits_{0};

  // Guarded by the executor's lock: a Register is in progress, and what follows it.
  bool is_joining_ = false;
  std::vector<Enumeration> after_joining_;

  mutable absl::Mutex mu_;
  FrameSink* sink_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool is_writing_ ABSL_GUARDED_BY(mu_) = false;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  bool has_left_ ABSL_GUARDED_BY(mu_) = false;
  // Not OK: the queue exceeded its limit and was dropped.
  absl::Status overflow_ ABSL_GUARDED_BY(mu_);
  // Not OK: the stream ends with it as soon as everything is sent.
  absl::Status finish_with_ ABSL_GUARDED_BY(mu_);
  absl::Time detached_since_ ABSL_GUARDED_BY(mu_);
  uint64_t received_request_id_ ABSL_GUARDED_BY(mu_) = 0;
  // Deferred requests.
  absl::flat_hash_map<uint64_t, WaitId> waits_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Store::Watch> watches_ ABSL_GUARDED_BY(mu_);
  bool is_in_gather_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<v1::Welcome> welcome_ ABSL_GUARDED_BY(mu_);
  ControlOutbox outbox_ ABSL_GUARDED_BY(mu_);
};

// A reply with only a status.
v1::Reply MakeReply(uint64_t request_id, const absl::Status& status);

// The data of `ferry status`. control_status.cc; with the executor's lock held.
void FillJobStatus(const Coordinator& coordinator, int64_t dropped_waits, absl::Time now,
                   v1::JobStatus& status);
void FillTaskInfo(const Coordinator& coordinator, const TaskInfo& info, v1::TaskInfo& out);

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_CONTROL_SESSION_H_

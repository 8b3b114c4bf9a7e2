// SPDX-License-Identifier: Apache-2.0
// ControlSession: one client of ferry.v1.Control across all the streams it comes by.
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

// The end of a stream that a session writes to. Calls come with the session's lock held, because a
// stream may only be used until the session has let go of it; neither calls back from inside.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Sends one frame, whose content it takes. True: it is out, and the next may follow; else the
  // sink calls ControlSession::OnWritten then. One at a time.
  virtual bool Write(grpc::ByteBuffer& frame) = 0;
  // Ends the stream once what is being written is out. No Write follows.
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

// Thread-safe. Sessions that were told something by a completion. They are written to when the
// batch of completions is over, so that what falls due together goes out in one frame each.
class WriteCoalescer final {
 public:
  void Add(std::shared_ptr<ControlSession> session) ABSL_LOCKS_EXCLUDED(mu_);
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  std::vector<std::shared_ptr<ControlSession>> sessions_ ABSL_GUARDED_BY(mu_);
};

// What all sessions of a server share; it outlives them.
struct ControlShared {
  Edge& edge;
  // As ServerOptions.
  std::function<absl::Status(const Coordinator&, absl::string_view proof)> check_end_job;
  SharedBlobs blobs;
  // Shared with the strand, which may run completions when the rest is gone.
  std::shared_ptr<WriteCoalescer> gather = std::make_shared<WriteCoalescer>();
};

// Thread-safe. Executes requests, and keeps what is to be told until the client has acknowledged
// it, so that a new stream goes on where the old one broke off.
// Shared by the registry, the stream, and the callbacks of parked requests.
// Locks: the strand's, then mu_, then those of the sink; the strand is entered with mu_ released.
class ControlSession final : public std::enable_shared_from_this<ControlSession> {
 public:
  ControlSession(uint64_t id, ControlShared& shared, const v1::Hello& hello,
                 std::string observed_address);

  uint64_t id() const { return id_; }
  // kNoTask for a client that is no rank.
  TaskId task() const { return task_; }
  const v1::Node& node() const { return node_; }
  const std::string& observed_address() const { return observed_address_; }

  // See v1::Hello. Whether `hello` is of the client that opened the session.
  bool IsOpening(const v1::Hello& hello) const {
    return opening_ != 0 && opening_ == hello.opening();
  }
  // Whether `hello` is of the client whose session this is.
  bool IsOf(const v1::Hello& hello) const {
    return hello.has_node() == has_node_ && hello.node().node_id() == node_.node_id() &&
           hello.node().incarnation() == node_.incarnation() &&
           (opening_ == 0 || opening_ == hello.opening());
  }
  // REQUIRES: one caller at a time. False: a later attempt has come before this one.
  bool NoteAttempt(const v1::Hello& hello) {
    const uint32_t last = std::exchange(last_attempt_, std::max(last_attempt_, hello.attempt()));
    return hello.attempt() > last || last == 0;
  }

  // `sink` takes over from any other: it gets `welcome` first, then what is unacknowledged.
  void Attach(FrameSink& sink, uint64_t acked_sequence, v1::Welcome welcome)
      ABSL_LOCKS_EXCLUDED(mu_);
  // `sink` is gone; nothing if it is not the one that is attached.
  void Detach(FrameSink& sink) ABSL_LOCKS_EXCLUDED(mu_);
  void OnWritten(FrameSink& sink) ABSL_LOCKS_EXCLUDED(mu_);
  // Not OK: the stream is to end with it.
  absl::Status OnFrame(v1::ClientFrame& frame) ABSL_LOCKS_EXCLUDED(mu_);
  // Something has come from the client, of whatever kind.
  void NoteAlive();

  // Writes what is pending, if the stream is free.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the stream and drops every parked request. Returns how many those were.
  size_t Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // As Close, but what has been said already still goes out first.
  void FinishWhenDrained(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Since when no stream is attached; InfiniteFuture while one is.
  absl::Time detached_since() const ABSL_LOCKS_EXCLUDED(mu_);
  // True if its rank joined an earlier job than that of `epoch`, and so is not part of that one.
  bool IsOfJobBefore(int64_t epoch) const { return epoch_ != 0 && epoch_ < epoch; }
  bool has_left() const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether it sends heartbeats, and has sent none for `timeout` although a stream is attached:
  // the kernel keeps the connections of a process that is stopped, or whose children have inherited
  // them.
  bool IsSilent(absl::Time now, absl::Duration timeout) const {
    const int64_t last = last_heartbeat_;
    return last != 0 && now - absl::FromUnixNanos(last) > timeout;
  }

 private:
  // What a frame's requests gave at once, to be told when the strand's lock is released.
  struct Executed {
    // Encoded straight into the outbox would be quicker still, but mu_ would be held meanwhile.
    std::vector<v1::Reply> replies;
    // Of some of them, with the place of the reply; in order.
    std::vector<std::pair<size_t, SharedBytes>> shared;
    std::vector<std::pair<uint64_t, WaitId>> waits;
    std::vector<std::pair<uint64_t, Store::Watch>> watches;
    // So many bytes of earlier answers wait for the client, these included.
    size_t behind = 0;
  };

  // An Enumerate request.
  struct Enumeration {
    uint64_t request_id = 0;
    LocalTopology local;
    absl::Duration timeout;
  };

  // grpc_control_requests.cc and, of the store, grpc_control_store.cc; with the strand's lock held.
  void Execute(Coordinator& coordinator, v1::Request& request, Executed& out);
  void ExecuteStore(Coordinator& coordinator, v1::Request& request, Executed& out);
  void ExecuteTask(Coordinator& coordinator, v1::Request& request, Executed& out);
  void Register(Coordinator& coordinator, const v1::Request& request, Executed& out);
  void Enumerate(Coordinator& coordinator, Enumeration enumeration);
  // Counts a request that will be answered with what is known of each task; its callback takes it
  // off again. False, and answered, if there are too many.
  bool BeginTableWait(const Coordinator& coordinator, const v1::Request& request, Executed& out);
  void PollForErrors(Coordinator& coordinator);

  // The rank has left the job in good order: its identity is free.
  void NoteLeft() ABSL_LOCKS_EXCLUDED(mu_);

  // Callbacks of parked requests end here; they run as completions, so that a Flush follows.
  void Tell(v1::Reply reply, const SharedBytes* shared = nullptr) ABSL_LOCKS_EXCLUDED(mu_);
  // `value`: as in ControlOutbox::Add.
  void Tell(v1::Event event, const grpc::Slice& value = grpc::Slice()) ABSL_LOCKS_EXCLUDED(mu_);
  void FlushLaterLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // With the strand's lock held, so that no parked request can be answered before it is known here.
  void NoteParked(Coordinator& coordinator, const Executed& executed) ABSL_LOCKS_EXCLUDED(mu_);
  void NoteParked(Coordinator& coordinator, uint64_t request_id, WaitId wait)
      ABSL_LOCKS_EXCLUDED(mu_);
  size_t CountWatches() const ABSL_LOCKS_EXCLUDED(mu_);
  // Bytes that wait for the client.
  size_t Behind() const ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing will be told any more.
  bool IsOver() const ABSL_LOCKS_EXCLUDED(mu_);
  void WriteNextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddLocked(Executed& executed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the session if too much waits for its client.
  void BoundLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const uint64_t id_;
  ControlShared& shared_;
  const v1::Node node_;
  const bool has_node_;
  const uint64_t opening_;
  const std::string observed_address_;
  TaskId task_ = kNoTask;

  // Of the registry, under its lock.
  uint32_t last_attempt_ = 0;

  // On the steady clock, in nanoseconds; 0: there has been none.
  std::atomic<int64_t> last_heartbeat_{0};
  // When NoteAlive last told of it; in the same way.
  std::atomic<int64_t> last_alive_{0};

  // The epoch of the job that its rank has joined; 0 if it has joined none.
  std::atomic<int64_t> epoch_{0};

  // Requests that wait for the table of tasks.
  std::atomic<int> table_waits_{0};

  // Guarded by the strand's lock: a Register is under way, and what is to follow it.
  bool is_joining_ = false;
  std::vector<Enumeration> after_joining_;

  mutable absl::Mutex mu_;
  FrameSink* sink_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool is_writing_ ABSL_GUARDED_BY(mu_) = false;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  bool has_left_ ABSL_GUARDED_BY(mu_) = false;
  // Not OK: too much waited for the client, and is dropped.
  absl::Status overflow_ ABSL_GUARDED_BY(mu_);
  // Not OK: the stream ends with it as soon as there is nothing more to send.
  absl::Status finish_with_ ABSL_GUARDED_BY(mu_);
  absl::Time detached_since_ ABSL_GUARDED_BY(mu_);
  uint64_t received_request_id_ ABSL_GUARDED_BY(mu_) = 0;
  // Parked requests.
  absl::flat_hash_map<uint64_t, WaitId> waits_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Store::Watch> watches_ ABSL_GUARDED_BY(mu_);
  bool is_in_gather_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<v1::Welcome> welcome_ ABSL_GUARDED_BY(mu_);
  ControlOutbox outbox_ ABSL_GUARDED_BY(mu_);
};

// An answer without anything but its status.
v1::Reply MakeReply(uint64_t request_id, const absl::Status& status);

// What `ferry status` shows. grpc_control_status.cc; with the strand's lock held.
void FillJobStatus(const Coordinator& coordinator, int64_t dropped_waits, absl::Time now,
                   v1::JobStatus& status);
void FillTaskInfo(const Coordinator& coordinator, const TaskInfo& info, v1::TaskInfo& out);

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_CONTROL_SESSION_H_

// SPDX-License-Identifier: Apache-2.0
// ControlDelivery: exactly-once delivery between a session and its client, over streams that break.
#ifndef FERRY_COORD_SERVER_CONTROL_DELIVERY_H_
#define FERRY_COORD_SERVER_CONTROL_DELIVERY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "coord/core/coordinator.h"
#include "coord/core/store.h"
#include "coord/core/types.h"
#include "coord/server/control_outbox.h"
#include "proto/ferry_control.pb.h"

namespace ferry::coord {

// The sending side of a session's stream. Called with the delivery's lock held, because a stream
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

class ControlDelivery;

// Thread-safe. Collects the sessions for which completions have queued messages and flushes them
// when the batch of completions is over, so that messages due together share one frame.
class WriteCoalescer final {
 public:
  void Add(std::shared_ptr<ControlDelivery> delivery) ABSL_LOCKS_EXCLUDED(mu_);
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  std::vector<std::shared_ptr<ControlDelivery>> deliveries_ ABSL_GUARDED_BY(mu_);
};

// The immediate results of a frame's requests, sent when the executor's lock is released.
struct RequestResults {
  // Not encoded straight into the outbox, which would be faster but would hold the delivery's lock
  // meanwhile.
  std::vector<v1::Reply> replies;
  // The shared bytes of some replies, by index into `replies`, in order.
  std::vector<std::pair<size_t, SharedBytes>> shared;
  // Requests that are answered later, and watches, by the ids of their requests.
  std::vector<std::pair<uint64_t, WaitId>> waits;
  std::vector<std::pair<uint64_t, Store::Watch>> watches;
  // Requests to execute once the executor's lock has been released.
  std::vector<v1::Request*> without_lock;
  // Bytes queued for the client, including these results.
  size_t behind = 0;
};

// Thread-safe. Executes no request: skips those that were received before, keeps those that are
// deferred, and retains outgoing messages until the client has acknowledged them, so that a new
// stream resumes where the old one broke off. Shared by its session and the callbacks of deferred
// requests.
// Lock order: the executor's lock, mu_, then the sink's locks. The executor is never entered from
// here: Detach and Close return what their caller then cancels.
class ControlDelivery final : public std::enable_shared_from_this<ControlDelivery> {
 public:
  explicit ControlDelivery(std::shared_ptr<WriteCoalescer> coalescer);

  // Replaces any other sink by `sink`, which gets `welcome` first, then what is unacknowledged.
  // Returns false, having finished `sink`, if the session is over.
  bool Attach(FrameSink& sink, uint64_t acked_sequence, v1::Welcome welcome)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Detaches `sink`, and adds to `withdrawn` the deferred requests that do not outlive their
  // stream. Returns false if another sink is attached.
  bool Detach(FrameSink& sink, std::vector<WaitId>& withdrawn) ABSL_LOCKS_EXCLUDED(mu_);
  void OnWritten(FrameSink& sink) ABSL_LOCKS_EXCLUDED(mu_);
  // Writes pending messages if the stream is ready.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);

  // Notes what a frame acknowledges, and removes from it the requests that were received before.
  // Returns the bytes queued for the client; nothing if the frame has no request to execute.
  std::optional<size_t> Receive(v1::ClientFrame& frame) ABSL_LOCKS_EXCLUDED(mu_);
  // Records the deferred requests of `results`. With the executor's lock held, so that none can be
  // answered before it is recorded.
  void Defer(Coordinator& coordinator, const RequestResults& results) ABSL_LOCKS_EXCLUDED(mu_);
  void Defer(Coordinator& coordinator, uint64_t request_id, WaitId wait) ABSL_LOCKS_EXCLUDED(mu_);
  // Queues the replies; the caller then calls Write. Returns false if the session is closed.
  bool Add(RequestResults& results) ABSL_LOCKS_EXCLUDED(mu_);
  // As Flush, after Add.
  void Write() ABSL_LOCKS_EXCLUDED(mu_);

  // Called by callbacks of deferred requests, which run as completions, so that a Flush follows.
  void Send(v1::Reply reply, const SharedBytes* shared = nullptr) ABSL_LOCKS_EXCLUDED(mu_);
  // `value`: as in ControlOutbox::Add.
  void Send(v1::Event event, const grpc::Slice& value = grpc::Slice()) ABSL_LOCKS_EXCLUDED(mu_);

  // The deferred request that the client cancels; a watch is removed. With the executor's lock
  // held.
  struct Cancelled {
    WaitId wait = kNoWait;
    std::optional<Store::Watch> watch;
  };
  Cancelled Find(uint64_t request_id) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the stream and drops what is queued. Returns the deferred requests; none if it was closed
  // before.
  struct Deferred {
    std::vector<WaitId> waits;
    std::vector<Store::Watch> watches;
  };
  Deferred Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the stream when what is queued is sent.
  void FinishWhenDrained(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Since when no stream is attached; InfiniteFuture while one is.
  absl::Time detached_since() const ABSL_LOCKS_EXCLUDED(mu_);
  size_t watch_count() const ABSL_LOCKS_EXCLUDED(mu_);
  // Bytes queued for the client.
  size_t behind() const ABSL_LOCKS_EXCLUDED(mu_);
  // True if nothing will be sent any more.
  bool is_over() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void FlushLaterLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WriteNextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the session if too much is queued for its client.
  void LimitBacklogLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const std::shared_ptr<WriteCoalescer> coalescer_;

  mutable absl::Mutex mu_;
  FrameSink* sink_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool is_writing_ ABSL_GUARDED_BY(mu_) = false;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  // Not OK: the queue exceeded its limit and was dropped.
  absl::Status overflow_ ABSL_GUARDED_BY(mu_);
  // Not OK: the stream ends with it as soon as everything is sent.
  absl::Status finish_with_ ABSL_GUARDED_BY(mu_);
  absl::Time detached_since_ ABSL_GUARDED_BY(mu_);
  uint64_t received_request_id_ ABSL_GUARDED_BY(mu_) = 0;
  // Deferred requests.
  absl::flat_hash_map<uint64_t, WaitId> waits_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Store::Watch> watches_ ABSL_GUARDED_BY(mu_);
  bool is_in_coalescer_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<v1::Welcome> welcome_ ABSL_GUARDED_BY(mu_);
  ControlOutbox outbox_ ABSL_GUARDED_BY(mu_);
};

// A reply with only a status.
v1::Reply MakeReply(uint64_t request_id, const absl::Status& status);

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_CONTROL_DELIVERY_H_

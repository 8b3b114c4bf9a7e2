// SPDX-License-Identifier: Apache-2.0
// ControlSession: one client of ferry.v1.Control across all its streams.
#ifndef FERRY_COORD_SERVER_CONTROL_SESSION_H_
#define FERRY_COORD_SERVER_CONTROL_SESSION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "coord/core/types.h"
#include "coord/server/control_delivery.h"
#include "coord/server/control_requests.h"
#include "proto/ferry_control.pb.h"

namespace ferry::coord {

// Thread-safe. The identity of a client, for the registry, and the way of its frames: what it has
// not sent before (ControlDelivery) is executed (ControlRequests), a limited number of requests for
// each entry to the executor, and the results are delivered. Owned by the registry and the attached
// stream. Enters the executor without a lock.
class ControlSession final {
 public:
  // `shared` outlives it.
  ControlSession(uint64_t id, ControlShared& shared, const v1::Hello& hello,
                 std::string observed_address);

  uint64_t id() const { return id_; }
  // kNoTask for a client that is not a rank.
  TaskId task() const { return requests_->task(); }
  const v1::Node& node() const { return requests_->node(); }
  const std::string& observed_address() const { return requests_->observed_address(); }

  // True if `hello` is from the client that opened the session; see v1::Hello.
  bool IsOpening(const v1::Hello& hello) const {
    return opening_ != 0 && opening_ == hello.opening();
  }
  // True if `hello` is from the client that owns this session.
  bool IsOf(const v1::Hello& hello) const {
    return hello.has_node() == (task() != kNoTask) && hello.node().node_id() == node().node_id() &&
           hello.node().incarnation() == node().incarnation() &&
           (opening_ == 0 || opening_ == hello.opening());
  }
  // REQUIRES: one caller at a time. Returns false if a later attempt arrived before this one.
  bool NoteAttempt(const v1::Hello& hello) {
    const uint32_t last = std::exchange(last_attempt_, std::max(last_attempt_, hello.attempt()));
    return hello.attempt() > last || last == 0;
  }

  // Replaces any other sink by `sink`, which gets `welcome` first, then what is unacknowledged.
  void Attach(FrameSink& sink, uint64_t acked_sequence, v1::Welcome welcome);
  // Detaches `sink`; ignored if another one is attached.
  void Detach(FrameSink& sink);
  void OnWritten(FrameSink& sink) { delivery_->OnWritten(sink); }
  // If not OK, the stream must end with this status.
  absl::Status OnFrame(v1::ClientFrame& frame);
  // Bytes of any kind have arrived from the client.
  void NoteAlive() { requests_->NoteAlive(); }

  // Ends the stream and drops every deferred request. Returns their number.
  size_t Close(const absl::Status& why);
  // As Close, but first sends what is queued.
  void FinishWhenDrained(const absl::Status& why) { delivery_->FinishWhenDrained(why); }

  // Since when no stream is attached; InfiniteFuture while one is.
  absl::Time detached_since() const { return delivery_->detached_since(); }
  // True if its rank joined an earlier job than that of `epoch`, and so is not part of that one.
  bool IsOfJobBefore(int64_t epoch) const { return requests_->IsOfJobBefore(epoch); }
  bool has_left() const { return requests_->has_left(); }
  // True if it sends heartbeats, and has sent none for `timeout` although a stream is attached:
  // the kernel keeps the connections of a process that is stopped, or whose children have
  // inherited them.
  bool IsSilent(absl::Time now, absl::Duration timeout) const {
    return requests_->IsSilent(now, timeout);
  }

 private:
  // For the log: "task=3" or "tool".
  std::string ClientText() const;

  // Constant after construction.
  const uint64_t id_;
  ControlShared& shared_;
  const uint64_t opening_;
  const std::shared_ptr<ControlDelivery> delivery_;
  const std::shared_ptr<ControlRequests> requests_;

  // Guarded by the registry's lock.
  uint32_t last_attempt_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_CONTROL_SESSION_H_

// SPDX-License-Identifier: Apache-2.0
// AgentOutbox: an agent's requests that the coordinator is not known to have received.
#ifndef FERRY_COORD_CLIENT_AGENT_OUTBOX_H_
#define FERRY_COORD_CLIENT_AGENT_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/functional/function_ref.h"

#include "proto/ferry_control.pb.h"

namespace ferry::coord {

// Not thread-safe: part of an AgentLink. Numbers the requests, makes frames of them, and after a
// reconnection makes those frames again that have not arrived. Counts the coordinator's frames too,
// so that each is processed once.
class AgentOutbox final {
 public:
  // The overhead of a request in a frame: its id, tag and length; the same for the acknowledgement.
  static constexpr size_t kRequestHeadBytes = 32;

  // The id of the next request that is added.
  uint64_t next_id() const { return last_id_ + 1; }
  // Returns the request's id.
  uint64_t Add(v1::Request request);
  // Returns true if the request had not been written, and now will not be; false if it may have
  // arrived.
  bool TakeBack(uint64_t id);

  // Sets `frame` to the next one to write, of at most `max_bytes` unless one request alone has
  // more. Returns false if there is nothing to send.
  bool Next(size_t max_bytes, v1::ClientFrame& frame);
  // The coordinator has received every request up to `id`: drops them.
  void ForgetArrived(uint64_t id);
  // The stream has ended: what was written to it must be written again.
  void Rewind() { written_ = 0; }
  // A new stream begins; the coordinator has received every request up to `received_id` and no
  // other. Drops those that are not `wanted` any more.
  void Resume(uint64_t received_id, absl::FunctionRef<bool(const v1::Request&)> is_wanted);
  void Clear();

  // Counts a frame of the coordinator, which the next frame acknowledges. Returns false if it was
  // received before: its acknowledgement was lost with the old stream.
  bool Receive(const v1::ServerFrame& frame);
  // The last frame of the coordinator that was received.
  uint64_t received_sequence() const { return received_sequence_; }

 private:
  uint64_t last_id_ = 0;
  // In id order. The first `written_` were written to the current stream, and the first
  // `maybe_received_` to this or an earlier one, which may have delivered them: the next Welcome
  // tells.
  std::deque<v1::Request> requests_;
  size_t written_ = 0;
  size_t maybe_received_ = 0;
  uint64_t received_sequence_ = 0;
  size_t unacked_bytes_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CLIENT_AGENT_OUTBOX_H_

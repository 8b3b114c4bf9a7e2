// SPDX-License-Identifier: Apache-2.0
// ControlChannel: framed messages, in order, between two processes of a job.
#ifndef FERRY_TRANSPORT_CONTROL_CONTROL_CHANNEL_H_
#define FERRY_TRANSPORT_CONTROL_CONTROL_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "base/unique_fd.h"

namespace ferry {

// A process of a job, in one of its lives.
struct PeerId {
  int32_t node_id = 0;
  uint64_t incarnation = 0;

  friend bool operator==(const PeerId&, const PeerId&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const PeerId& peer) {
    return H::combine(std::move(state), peer.node_id, peer.incarnation);
  }
};

// A body of a frame that every control channel takes; what is larger travels by a transport.
inline constexpr size_t kMaxLaneBody = 64 * 1024;

class ControlChannel;

// Who hears what comes out of a control channel. Called on its loop, one call at a time, with no
// lock held.
class ControlHandler {
 public:
  virtual ~ControlHandler() = default;
  // The first call, unless there never is a control channel: then OnClosed says why.
  virtual void OnOpen(std::shared_ptr<ControlChannel> channel) = 0;
  // `body` and `descriptors` are the control channel's; descriptors may be moved from. A body in
  // shared memory may change while it is read, if the peer means harm: read each field once.
  //   Errors: the control channel ends with it, since the peer does not keep to the protocol.
  virtual absl::Status OnFrame(uint16_t type, absl::string_view body,
                               absl::Span<UniqueFd> descriptors) = 0;
  // The last call: nothing more comes out, and nothing goes in. Exactly once.
  virtual void OnClosed(const absl::Status& why) = 0;
};

// Thread-safe. What it does not accept was not sent; what it accepts arrives once and in order, or
// the control channel ends.
class ControlChannel {
 public:
  virtual ~ControlChannel() = default;

  // Sends the parts, one after the other, as the body of one frame. Never blocks: what the peer
  // does not take yet is kept, within a limit.
  //   descriptors: duplicates of them arrive with the frame; only if passes_descriptors().
  //   Errors: UNAVAILABLE with the reason when the control channel has ended; RESOURCE_EXHAUSTED
  //   naming the limit when the peer takes nothing; INVALID_ARGUMENT above max_body().
  virtual absl::Status Send(uint16_t type, absl::Span<const absl::string_view> parts,
                            absl::Span<const int> descriptors = {}) = 0;

  // Ends it for both sides; the handler hears `why`, unless it had ended before.
  virtual void Close(const absl::Status& why) = 0;

  virtual const PeerId& peer() const = 0;
  virtual bool passes_descriptors() const = 0;
  // The largest body of a frame, in bytes: kMaxLaneBody at least.
  virtual size_t max_body() const { return kMaxLaneBody; }
  // Of what was sent, the bytes that the peer has no room for yet, and that are kept here.
  virtual size_t queued_bytes() const { return 0; }
  // Whether the peer has read all that was sent. False also where nobody can tell.
  virtual bool is_all_read() const { return false; }
  // "shm", "tcp to 10.0.0.3:41234": for people.
  virtual std::string Describe() const = 0;
};

// "node 3".
std::string Describe(const PeerId& peer);

// For implementations. The first: INVALID_ARGUMENT above `max_body`.
absl::Status CheckLaneBody(absl::Span<const absl::string_view> parts,
                           size_t max_body = kMaxLaneBody);
absl::Status LaneQueueIsFull(const PeerId& peer, size_t bytes, size_t frames, size_t limit);
absl::Status PeerHasGone(const PeerId& peer);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_CONTROL_CHANNEL_H_

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

// A process of a job, in one of its incarnations.
struct PeerId {
  int32_t node_id = 0;
  uint64_t incarnation = 0;

  friend bool operator==(const PeerId&, const PeerId&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const PeerId& peer) {
    return H::combine(std::move(state), peer.node_id, peer.incarnation);
  }
};

// Frame body size that every control channel accepts; larger data goes through a transport.
inline constexpr size_t kMaxControlBody = 64 * 1024;

class ControlChannel;

// A frame without descriptors. The body belongs to the channel, and stays until the handler's call
// returns; in shared memory it may change meanwhile, see ControlHandler::OnFrame.
struct ControlFrame {
  uint16_t type = 0;
  absl::string_view body;
};

// Receives the events of a control channel. Called on its loop, one call at a time, with no lock
// held. After ControlChannel::Close frames may still be delivered, until OnClosed.
class ControlHandler {
 public:
  virtual ~ControlHandler() = default;
  // The first call, unless the channel never opens: then OnClosed says why.
  virtual void OnOpen(std::shared_ptr<ControlChannel> channel) = 0;
  // `body` and `descriptors` belong to the channel; descriptors may be moved from. A body in shared
  // memory may change while it is read if the peer is malicious: read each field once.
  //   Errors: the peer violates the protocol; the channel is closed with the error.
  virtual absl::Status OnFrame(uint16_t type, absl::string_view body,
                               absl::Span<UniqueFd> descriptors) = 0;
  // Frames that have arrived together: one or more, of any types, without descriptors. The same as
  // OnFrame for each of them, in order, up to the first error; an implementation may do work once
  // for several of them.
  virtual absl::Status OnFrames(absl::Span<const ControlFrame> frames) {
    for (const ControlFrame& frame : frames) {
      if (absl::Status status = OnFrame(frame.type, frame.body, {}); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  // The last call: nothing is received or sent any more. Called exactly once.
  virtual void OnClosed(const absl::Status& why) = 0;
};

// Thread-safe. A frame that Send rejects was not sent; one that it accepts arrives once and in
// order, or the channel closes.
class ControlChannel {
 public:
  virtual ~ControlChannel() = default;

  // Sends the concatenated parts as the body of one frame. Never blocks: what the peer does not
  // read yet is queued, within a limit.
  //   descriptors: duplicates of them arrive with the frame; only if passes_descriptors().
  //   Errors: UNAVAILABLE with the reason when the channel has closed; RESOURCE_EXHAUSTED naming
  //   the limit when the peer reads nothing; INVALID_ARGUMENT above max_body().
  virtual absl::Status Send(uint16_t type, absl::Span<const absl::string_view> parts,
                            absl::Span<const int> descriptors = {}) = 0;

  // Append is Send without the part that several frames can share: the peer may see the frame only
  // after Kick, or the next Send. Kick has no error of its own: a frame that was accepted arrives,
  // or the channel closes. Every Append is followed by a Kick, of any thread. An implementation
  // may send each frame at once.
  virtual absl::Status Append(uint16_t type, absl::Span<const absl::string_view> parts) {
    return Send(type, parts);
  }
  virtual void Kick() {}

  // Closes both sides; the handler's OnClosed gets `why`, unless it was closed before.
  virtual void Close(const absl::Status& why) = 0;

  virtual const PeerId& peer() const = 0;
  virtual bool passes_descriptors() const = 0;
  // The largest body of a frame, in bytes; at least kMaxControlBody.
  virtual size_t max_body() const { return kMaxControlBody; }
  // Bytes sent that the peer has no room for yet, and that are queued here.
  virtual size_t queued_bytes() const { return 0; }
  // True if the peer has read everything sent. False also if that is unknown.
  virtual bool is_all_read() const { return false; }
  // Human-readable: "shm", "tcp to 10.0.0.3:41234".
  virtual std::string Describe() const = 0;
};

// "node 3".
std::string Describe(const PeerId& peer);

// For implementations. The first returns INVALID_ARGUMENT above `max_body`.
absl::Status CheckControlBody(absl::Span<const absl::string_view> parts,
                              size_t max_body = kMaxControlBody);
absl::Status ControlBodyIsTooLarge(size_t bytes, size_t max_body);
absl::Status ControlQueueIsFull(const PeerId& peer, size_t bytes, size_t frames, size_t limit);
absl::Status PeerHasGone(const PeerId& peer);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_CONTROL_CHANNEL_H_

// SPDX-License-Identifier: Apache-2.0
// DirectConnection: frames over a TCP connection of our own, for client and server.
#ifndef FERRY_COORD_WIRE_DIRECT_CONNECTION_H_
#define FERRY_COORD_WIRE_DIRECT_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/support/slice.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "base/host_watch.h"
#include "base/unique_fd.h"
#include "coord/wire/direct_frames.h"
#include "net/socket_address.h"
#include "net/socket_loop.h"

namespace ferry::coord {

// The idle time after which a peer's host is probed, and the time until it counts as gone.
inline constexpr absl::Duration kDirectIdle = absl::Seconds(20);
inline constexpr absl::Duration kDirectTimeout = absl::Seconds(20);

// A received frame.
struct DirectFrame {
  absl::string_view bytes;
  bool is_last = false;
  // Owns `bytes` if they are worth keeping: copy the slice to keep them beyond the call. Otherwise
  // null, and the bytes belong to the loop.
  const grpc::Slice* whole = nullptr;
};

// The On* methods are called on the loop's thread, one at a time, with no lock held. The loop
// keeps the connection alive until it is closed.
class DirectConnection : public LoopSource, public std::enable_shared_from_this<DirectConnection> {
 public:
  // `loop` outlives it.
  explicit DirectConnection(SocketLoop& loop) : loop_(loop) {}

  // Takes over an accepted connection, whose preface is still to be read. Its peer's host is
  // probed after `idle`, and counts as gone after `timeout` more without an answer.
  void Accept(UniqueFd fd, absl::Duration idle = kDirectIdle,
              absl::Duration timeout = kDirectTimeout);
  // Connects to the first of the addresses that answers.
  void Connect(std::vector<SocketAddress> addresses);

  // Sends the slices as one frame, in order. Returns true if the kernel has accepted everything,
  // as usual; else OnDrained follows, or OnClosed. May be called before it is connected.
  bool Send(absl::Span<const grpc::Slice> slices) ABSL_LOCKS_EXCLUDED(mu_) {
    return SendFrame(slices, /*is_last=*/false);
  }
  // Sends the last frame. The connection is closed when the other end has closed it.
  bool SendLast(absl::Span<const grpc::Slice> slices) ABSL_LOCKS_EXCLUDED(mu_) {
    return SendFrame(slices, /*is_last=*/true);
  }
  // Closes asynchronously; unsent frames are dropped. A second call does nothing.
  void Close(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);

 protected:
  // Returns false to stop reading, if the connection is about to be closed.
  virtual bool OnFrame(const DirectFrame& frame) = 0;
  // Bytes have arrived, perhaps not a whole frame.
  virtual void OnBytes() {}
  // Returns OK if a frame of `bytes` is acceptable now; else it is rejected with this error.
  virtual absl::Status CheckFrameSize(size_t bytes) { return absl::OkStatus(); }
  // The input is rejected with `why`; reading has stopped.
  virtual void OnRefused(const absl::Status& why) { Close(why); }
  // The kernel has accepted everything queued, after a Send that returned false.
  virtual void OnDrained() = 0;
  // Called exactly once; `why` is OK only if the other end closed it between frames.
  virtual void OnClosed(const absl::Status& why) = 0;

 private:
  void OnReady(uint32_t events) final;
  void OnLoopEnd() final;

  bool SendFrame(absl::Span<const grpc::Slice> slices, bool is_last) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends until the kernel accepts no more; returns true when out_ is empty.
  bool FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WatchLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WatchOutput(bool wants_output) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TryNext() ABSL_LOCKS_EXCLUDED(mu_);
  // Tries the next address after `timeout`, unless this one has answered.
  void TryNextAddressAfter(absl::Duration timeout, size_t next_address);
  void FinishConnecting() ABSL_LOCKS_EXCLUDED(mu_);
  void Read();
  // Returns false to stop reading.
  bool Take(absl::string_view bytes);
  // Keeps what is left after one turn.
  bool TakeForOneTurn(absl::string_view bytes);
  bool TakeFrames(absl::string_view& bytes, absl::Time until);
  // Ignores further frames, but still detects the end.
  void Ignore() ABSL_LOCKS_EXCLUDED(mu_);
  // Processes the frames left over from the last turn.
  void TakeBacklog();
  bool TakePartial(absl::string_view& bytes);
  bool TakeWhole();
  bool BeginWhole(DirectHeader header, absl::string_view content);
  void CloseNow(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // For a connection that is already established.
  void SetSocketOptions(absl::Duration idle, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Schedules a check of the peer's host.
  void ScheduleHostCheck() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Closes if the host has vanished; otherwise reschedules itself while data is outstanding.
  void CheckHost() ABSL_LOCKS_EXCLUDED(mu_);

  SocketLoop& loop_;

  // Loop thread only.
  std::vector<SocketAddress> addresses_;
  size_t next_address_ = 0;
  absl::Status connect_failure_;
  bool is_connecting_ = false;
  // Input is ignored: the connection is about to be closed.
  bool ignores_input_ = false;
  // Small frames received for the next turn, and how much of them is processed.
  std::string backlog_;
  // The number of preface bytes received.
  size_t preface_seen_ = 0;
  bool wants_preface_ = false;
  // The beginning of an incomplete frame, header included.
  std::string partial_;
  // A large frame being received: its length, the bytes received so far, and its buffer.
  size_t whole_bytes_ = 0;
  size_t whole_have_ = 0;
  bool whole_is_last_ = false;
  grpc::Slice whole_;

  absl::Mutex mu_;
  // Modified on the loop's thread only.
  UniqueFd fd_ ABSL_GUARDED_BY(mu_);
  Loop::SourceId source_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  bool is_connected_ ABSL_GUARDED_BY(mu_) = false;
  bool has_sent_last_ ABSL_GUARDED_BY(mu_) = false;
  bool owes_drained_ ABSL_GUARDED_BY(mu_) = false;
  bool is_watching_output_ ABSL_GUARDED_BY(mu_) = false;
  HostWatch host_watch_ ABSL_GUARDED_BY(mu_){kDirectIdle + kDirectTimeout};
  // A check of the host is scheduled.
  bool is_host_check_scheduled_ ABSL_GUARDED_BY(mu_) = false;
  // Data the kernel has not accepted, beginning after the first `out_next_` slices and
  // `out_offset_` bytes of the next. Usually empty; both numbers are then 0.
  std::vector<grpc::Slice> out_ ABSL_GUARDED_BY(mu_);
  size_t out_next_ ABSL_GUARDED_BY(mu_) = 0;
  size_t out_offset_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_WIRE_DIRECT_CONNECTION_H_

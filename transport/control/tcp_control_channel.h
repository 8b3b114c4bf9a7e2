// SPDX-License-Identifier: Apache-2.0
// TcpControlChannel: a control channel over a TCP connection, between hosts.
#ifndef FERRY_TRANSPORT_CONTROL_TCP_CONTROL_CHANNEL_H_
#define FERRY_TRANSPORT_CONTROL_TCP_CONTROL_CHANNEL_H_

#include <sys/uio.h>

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "base/host_watch.h"
#include "base/unique_fd.h"
#include "net/event_loop.h"
#include "net/sockets.h"
#include "transport/control/control_channel.h"

namespace ferry {

// Room for an inline tensor (transport/inline_threshold.h) and its description.
inline constexpr size_t kMaxTcpControlBody = 132 * 1024;

// Each frame is preceded by its length. A host that has vanished is detected by the kernel's
// keepalive (TuneTcp) while nothing is being sent, and by the channel's own checks while something
// is. A peer that is merely stopped is waited for, and frames that do not fit its window are
// queued.
class TcpControlChannel final : public ControlChannel,
                                public PolledSource,
                                public std::enable_shared_from_this<TcpControlChannel> {
 public:
  // `socket`: connected, non-blocking, with an authenticated peer. Starts calling `handler` at
  // once, on `loop`, which must outlive it.
  static std::shared_ptr<TcpControlChannel> Start(EventLoop& loop, PeerId peer, UniqueFd socket,
                                                  std::string description,
                                                  std::shared_ptr<ControlHandler> handler,
                                                  size_t max_queued_bytes);
  ~TcpControlChannel() override;

  absl::Status Send(uint16_t type, absl::Span<const absl::string_view> parts,
                    absl::Span<const int> descriptors) override ABSL_LOCKS_EXCLUDED(send_mu_);
  absl::Status Append(uint16_t type, absl::Span<const absl::string_view> parts) override
      ABSL_LOCKS_EXCLUDED(send_mu_);
  void Kick() override ABSL_LOCKS_EXCLUDED(send_mu_);
  void Close(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(send_mu_);
  const PeerId& peer() const override { return peer_; }
  size_t queued_bytes() const override { return queued_bytes_.load(std::memory_order_relaxed); }
  bool passes_descriptors() const override { return false; }
  size_t max_body() const override { return kMaxTcpControlBody; }
  std::string Describe() const override { return description_; }

  bool Poll() override;
  bool HasWork() override;
  void OnReady(uint32_t events) override;
  bool IsStream() const override { return true; }

 private:
  TcpControlChannel(EventLoop& loop, PeerId peer, UniqueFd socket, std::string description,
                    std::shared_ptr<ControlHandler> handler, size_t max_queued_bytes);

  // Sends `pieces`, or queues what the kernel has no room for.
  absl::Status SendLocked(absl::Span<iovec> pieces) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu_);
  void KickLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu_);
  void ClearAppended() ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu_);
  // Enables notifications for input, and for room if anything is queued.
  void Watch() ABSL_LOCKS_EXCLUDED(send_mu_);
  // Input is found by polling. Must be watched again before the loop sleeps.
  void Unwatch() ABSL_LOCKS_EXCLUDED(send_mu_);
  // Consumes peeked bytes from the socket. Call before waiting for a notification: what is left
  // takes window space, and a peer without window sends nothing.
  void ConsumePeeked();
  // Reads once; false when the kernel has no more for now, or the channel has closed.
  bool ReadOnce();
  // Frames that are delivered together.
  static constexpr size_t kFramesAtOnce = 64;
  using Frames = absl::InlinedVector<ControlFrame, kFramesAtOnce>;
  // Appends complete frames of the buffer, up to kFramesAtOnce; they stay until MakeRoom.
  //   Errors: INVALID_ARGUMENT if the next one is malformed; those before it are in `frames`.
  absl::Status ReadFrames(Frames& frames);
  absl::Status DeliverFrames();
  // Makes room for the rest of a partial frame.
  void MakeRoom();
  void Flush() ABSL_LOCKS_EXCLUDED(send_mu_);
  void FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu_);
  void CloseLocked(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu_);
  // Schedules a check of the peer's host.
  void ScheduleHostCheck();
  // Ends the control channel if the host has vanished; otherwise reschedules itself while something
  // is outstanding.
  void CheckHost() ABSL_LOCKS_EXCLUDED(send_mu_);
  // Closes a channel that cannot be opened.
  void Refuse(const absl::Status& why);
  void Finish();

  // Constant after construction.
  EventLoop& loop_;
  const PeerId peer_;
  const UniqueFd socket_;
  const std::string description_;
  const size_t max_queued_bytes_;
  EventLoop::SourceId source_ = 0;

  // Loop thread only.
  std::shared_ptr<ControlHandler> handler_;
  std::vector<char> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  // Bytes already read (peeked) but not yet consumed from the socket.
  size_t looked_at_ = 0;
  // Input consists of large segments: each is consumed before the next peek.
  bool is_bulk_ = false;
  // Peeks continue where the previous one ended (SO_PEEK_OFF): Linux 6.9 and later, for TCP.
  bool looks_go_on_ = false;
  // Remaining polls worth a system call: some are granted whenever something has arrived.
  int eager_looks_ = 0;
  // False while polling finds the input: a notification costs the kernel a lock for each message
  // while the reader waits for it.
  bool is_watched_ = false;
  int found_by_looking_ = 0;
  HostWatch host_watch_{kVanishLimit};
  bool is_finished_ = false;

  // Held over non-blocking system calls.
  absl::Mutex send_mu_;
  std::deque<std::string> queue_ ABSL_GUARDED_BY(send_mu_);
  // Bytes of the first frame in the queue that were already sent.
  size_t sent_of_front_ ABSL_GUARDED_BY(send_mu_) = 0;
  // Written under send_mu_.
  std::atomic<size_t> queued_bytes_{0};
  // Frames between Append and Kick; none while anything is queued.
  std::string appended_ ABSL_GUARDED_BY(send_mu_);
  // Written under send_mu_.
  std::atomic<bool> has_appended_{false};
  bool watches_for_room_ ABSL_GUARDED_BY(send_mu_) = false;
  absl::Status closed_ ABSL_GUARDED_BY(send_mu_);
  std::atomic<bool> is_closing_{false};
  // A check of the peer's host is scheduled. Set by senders.
  std::atomic<bool> is_host_check_scheduled_{false};
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_TCP_CONTROL_CHANNEL_H_

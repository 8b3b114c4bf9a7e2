// SPDX-License-Identifier: Apache-2.0
// PeerConnection: one end of a control channel; dispatches frames to the process's two roles,
// requester and responder.
#ifndef FERRY_RENDEZVOUS_PEER_PEER_CONNECTION_H_
#define FERRY_RENDEZVOUS_PEER_PEER_CONNECTION_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"

#include "base/spin_lock.h"
#include "rendezvous/peer/tensor_requester.h"
#include "rendezvous/peer/tensor_responder.h"

namespace ferry {

class PeerConnection;

// Decides which control channel is used with a peer. Called on the loop.
class PeerConnectionObserver {
 public:
  virtual ~PeerConnectionObserver() = default;
  // The control channel is open. OK: its opener may send HELLO.
  //   Errors: another one was chosen; this one closes.
  virtual absl::Status OnConnectionOpen(const std::shared_ptr<PeerConnection>& connection) = 0;
  // The peer has sent HELLO. Returns the requester for the peer, which uses this control channel
  // from now on.
  //   Errors: as above; ALREADY_EXISTS must be sent to the peer.
  virtual absl::StatusOr<std::shared_ptr<TensorRequester>> OnPeerHello(
      const std::shared_ptr<PeerConnection>& connection, const Endpoint& peer) = 0;
  // Reports the responder of a chosen control channel.
  virtual void OnResponderReady(PeerConnection& connection,
                                const std::shared_ptr<TensorResponder>& responder) = 0;
  // The connection has closed, or was never established. Notifies the requester, if the connection
  // was chosen.
  virtual void OnConnectionClosed(PeerConnection& connection, const absl::Status& why) = 0;
};

// The side that opened the control channel sends HELLO first; the other answers with HELLO, or with
// an ERROR of 0. Nothing else is sent before both HELLOs. From then on each side requests and
// responds, by a TensorRequester and a TensorResponder that are independent of each other. If
// either HELLO is checksummed (frame_checksum.h), so is everything that follows, on both sides.
class PeerConnection final : public ControlHandler,
                             public std::enable_shared_from_this<PeerConnection> {
 public:
  PeerConnection(const TransferContext& context, std::shared_ptr<PeerConnectionObserver> observer,
                 const PeerId& peer, bool is_opener);
  ~PeerConnection() override;

  const PeerId& peer() const { return peer_; }
  // True if this side opened it.
  bool is_opener() const { return is_opener_; }
  // Closes it, if there is a control channel. Any thread.
  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends a message without effect, so that the kernel reports whether the peer is gone.
  void Probe();
  // True if it has closed, and all callbacks have run. Any thread.
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  // Loop thread only: whether the control channel was ever open; whether the peer has sent HELLO;
  // or, instead, that it has another control channel with this process.
  bool was_open() const { return was_open_; }
  bool has_received_hello() const { return has_received_hello_; }
  bool was_refused() const { return was_refused_; }

  void OnOpen(std::shared_ptr<ControlChannel> channel) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnFrame(uint16_t type, absl::string_view body,
                       absl::Span<UniqueFd> descriptors) override;
  absl::Status OnFrames(absl::Span<const ControlFrame> frames) override;
  void OnClosed(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status OnHello(absl::string_view body);
  absl::Status OnEarlyError(absl::string_view body);
  absl::Status OnPing(PeerMessageType type, absl::string_view body);
  // Checks a frame's checksum, or that it must have none; removes the checksum.
  absl::Status VerifyChecksum(uint16_t& type, absl::string_view& body);
  absl::Status SendOwnHello();
  // The channel to send through.
  std::shared_ptr<ControlChannel> Checksummed(bool is_checksummed);

  const TransferContext& context_;
  const std::shared_ptr<PeerConnectionObserver> observer_;
  const PeerId peer_;
  const bool is_opener_;

  // Loop thread only.
  bool was_open_ = false;
  bool has_received_hello_ = false;
  bool was_refused_ = false;
  // True if incoming and outgoing frames must have a checksum.
  bool expects_checksums_ = false;
  bool sends_checksums_ = false;
  // Both null until the connection is chosen.
  std::shared_ptr<TensorRequester> requester_;
  std::shared_ptr<TensorResponder> responder_;
  const std::shared_ptr<LatencyProbe> ping_;

  std::atomic<bool> is_over_{false};
  SpinLock mu_;
  std::shared_ptr<ControlChannel> channel_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_PEER_CONNECTION_H_

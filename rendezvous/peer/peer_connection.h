// SPDX-License-Identifier: Apache-2.0
// PeerConnection: one end of a control channel; hands what comes to the two roles that a process
// has there.
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

// Decides which control channel there is with a peer. Called on the loop.
class PeerConnectionObserver {
 public:
  virtual ~PeerConnectionObserver() = default;
  // There is a control channel. OK: whoever has opened it may say HELLO.
  //   Errors: another one has been chosen; this one ends.
  virtual absl::Status OnLinkOpen(const std::shared_ptr<PeerConnection>& link) = 0;
  // The peer has said HELLO. Whoever asks it for values from now on; its control channel is this
  // one.
  //   Errors: as above; ALREADY_EXISTS is to be told to the peer.
  virtual absl::StatusOr<std::shared_ptr<TensorRequester>> OnLinkHello(
      const std::shared_ptr<PeerConnection>& link, const Endpoint& peer) = 0;
  // The server of a control channel that was chosen.
  virtual void OnLinkServes(PeerConnection& link,
                            const std::shared_ptr<TensorResponder>& server) = 0;
  // It has ended, or there never was a control channel. Tells the client, if the control channel
  // was chosen.
  virtual void OnLinkClosed(PeerConnection& link, const absl::Status& why) = 0;
};

// Whoever has opened the control channel says HELLO first; the other answers with HELLO, or with a
// REFUSAL of 0. Nothing else is said before both have. From then on each side asks and answers, by
// a TensorRequester and a TensorResponder that know nothing of each other. If either HELLO is
// sealed (frame_checksum.h), so is everything that follows, on either side.
class PeerConnection final : public ControlHandler,
                             public std::enable_shared_from_this<PeerConnection> {
 public:
  PeerConnection(const TransferContext& exchange, std::shared_ptr<PeerConnectionObserver> chooser,
                 const PeerId& peer, bool is_opener);
  ~PeerConnection() override;

  const PeerId& peer() const { return peer_; }
  // Whether this side has opened it.
  bool is_opener() const { return is_opener_; }
  // Ends it, if there is a control channel. Any thread.
  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Says something that changes nothing: of a peer that has gone the kernel will tell.
  void Probe();
  // Whether it has ended, and everyone has been told. Any thread.
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  // Of the loop: whether there has been a control channel; a HELLO of the peer; or, in its place,
  // word that the peer has got another control channel with this process.
  bool was_open() const { return was_open_; }
  bool has_heard_hello() const { return has_heard_hello_; }
  bool was_refused() const { return was_refused_; }

  void OnOpen(std::shared_ptr<ControlChannel> channel) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnFrame(uint16_t type, absl::string_view body,
                       absl::Span<UniqueFd> descriptors) override;
  void OnClosed(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status OnHello(absl::string_view body);
  absl::Status OnEarlyRefusal(absl::string_view body);
  absl::Status OnPing(ControlMessage type, absl::string_view body);
  // What is wrong with a frame that has, or should have, a seal; takes its seal off.
  absl::Status CheckSeal(uint16_t& type, absl::string_view& body);
  absl::Status SayHello();
  // Through which to send.
  std::shared_ptr<ControlChannel> Sealed(bool is_sealed);

  const TransferContext& exchange_;
  const std::shared_ptr<PeerConnectionObserver> chooser_;
  const PeerId peer_;
  const bool is_opener_;

  // Of the loop.
  bool was_open_ = false;
  bool has_heard_hello_ = false;
  bool was_refused_ = false;
  // Whether frames that come must have seals, and ours have.
  bool hears_seals_ = false;
  bool sends_seals_ = false;
  // Both null before it was chosen.
  std::shared_ptr<TensorRequester> client_;
  std::shared_ptr<TensorResponder> server_;
  const std::shared_ptr<LatencyProbe> ping_;

  std::atomic<bool> is_over_{false};
  SpinLock mu_;
  std::shared_ptr<ControlChannel> channel_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_PEER_CONNECTION_H_

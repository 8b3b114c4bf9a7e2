// SPDX-License-Identifier: Apache-2.0
// RogueProcess: a node in a process of its own that ends or hangs at a message of the protocol.
#ifndef FERRY_TESTS_NODE_ROGUE_PROCESS_H_
#define FERRY_TESTS_NODE_ROGUE_PROCESS_H_

#include <atomic>
#include <csignal>
#include <memory>
#include <string>

#include "tests/node/peer_process.h"
#include "tests/node/rogue_peer.h"

namespace ferry {

// The step of its requests; it may be closed.
inline constexpr int64_t kStepOfRogue = kStepId + 1;

// Where it stops, and at which signal.
enum class Word {
  // As the producer: it has received a REQUEST; it has sent the descriptor of a tensor in its
  // arena.
  kRequestHeard,
  kReadyToSendSent,
  // As the consumer, for a value that it requests on command: it has sent the REQUEST; it has
  // received the descriptor; it has sent REJECTED, or ACK, without reading anything.
  kRequestSent,
  kReadyToSendReceived,
  kRejectedSent,
  kAckSent,
};

// Takes part in one transfer, as node kPeer.
class RogueProcess final {
 public:
  // Forks. REQUIRES: this process has one thread.
  RogueProcess(std::string transport, Word at, int signal, int64_t bytes) {
    int sockets[2];
    FERRY_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
    pid_ = fork();
    FERRY_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      close(sockets[0]);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Serve(Channel(sockets[1]), transport, at, signal, bytes);
    }
    close(sockets[1]);
    channel_ = std::make_unique<Channel>(sockets[0]);
  }
  ~RogueProcess() { Kill(); }
  RogueProcess(const RogueProcess&) = delete;
  RogueProcess& operator=(const RogueProcess&) = delete;

  void Meet(Directory& directory, const Endpoint& here) const {
    channel_->Say(EncodeEndpoint(here));
    directory.Publish(*DecodeEndpoint(channel_->Hear(), kPeer));
  }
  // Requests that value from this process.
  void AskFor(const RendezvousKey& key) const { channel_->Say(key.text()); }
  // Whether the signal has had its effect, for which it waits.
  [[nodiscard]] bool HasGone() const {
    for (const absl::Time end = SteadyClock().Now() + absl::Seconds(20);
         SteadyClock().Now() < end;) {
      siginfo_t info = {};
      FERRY_CHECK(waitid(P_PID, static_cast<id_t>(pid_), &info,
                         WEXITED | WSTOPPED | WNOWAIT | WNOHANG) == 0);
      if (info.si_pid != 0) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }
  void Continue() const { kill(pid_, SIGCONT); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  RendezvousKey To(absl::string_view name) const { return KeyOf(kHere, 1000, kPeer, name); }
  RendezvousKey From(absl::string_view name) const {
    return KeyOf(kPeer, 1000u + kPeer, kHere, name);
  }

 private:
  [[noreturn]] static void Serve(const Channel& channel, const std::string& transport, Word at,
                                 int signal, int64_t bytes) {
    const auto reach = [at, signal](Word word) {
      if (word == at) raise(signal);
    };
    Directory directory;
    // Read on the loop, which runs before it is set.
    std::atomic<RoguePeer*> self = nullptr;
    RoguePeer rogue(
        directory, kPeer,
        [&](RoguePeer::End& end, uint64_t id) {
          reach(Word::kRequestHeard);
          RoguePeer& peer = *self.load();
          Tensor tensor = *Tensor::Create(DataType::kUint8, *Shape::Create({bytes}),
                                          *peer.arena().Allocate(static_cast<size_t>(bytes)));
          FillPattern(tensor, 7);
          end.SendRts(id, peer.NumberOf(transport), tensor, {},
                      [&reach] { reach(Word::kReadyToSendSent); });
        },
        [&](RoguePeer::End& end, const ReadyToSendMessage& rts) {
          reach(Word::kReadyToSendReceived);
          if (at == Word::kRejectedSent) {
            SendRejected(end.channel(),
                         {rts.id, absl::DataLossError("it smells"), kStepOfRogue, {}})
                .IgnoreError();
          } else {
            SendId(end.channel(), PeerMessageType::kAck, rts.id).IgnoreError();
          }
          reach(at);
        });
    self = &rogue;
    const Endpoint there = *DecodeEndpoint(channel.Hear(), kHere);
    channel.Say(EncodeEndpoint(rogue.self()));
    const std::string key = channel.Hear();
    rogue.Open(there, there.channels.unix_name.empty(), [&](RoguePeer::End& end) {
      SendRequest(end.channel(), {1, kStepOfRogue, true, key}).IgnoreError();
      reach(Word::kRequestSent);
    });
    while (true) pause();
  }

  pid_t pid_ = 0;
  std::unique_ptr<Channel> channel_;
};

}  // namespace ferry

#endif  // FERRY_TESTS_NODE_ROGUE_PROCESS_H_

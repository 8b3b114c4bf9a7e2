// SPDX-License-Identifier: Apache-2.0
// Handshake: how two processes of a job make sure of each other before anything else is said.
#ifndef FERRY_TRANSPORT_CONTROL_HANDSHAKE_H_
#define FERRY_TRANSPORT_CONTROL_HANDSHAKE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "transport/control/control_channel.h"

namespace ferry {

inline constexpr uint16_t kLaneVersion = 3;

// What a connection is for.
enum class ConnectionPurpose : uint16_t {
  kLane = 1,
  // Carries the bytes of tensors; `index` tells those of a pair apart.
  kData = 2,
};

struct HandshakeOptions {
  PeerId self;
  // The job's secret; the same in all its processes, and never sent.
  std::string token;
  uint16_t version = kLaneVersion;
};

// One side of it; a plain object, fed with bytes. Four messages of fixed size:
//   client: who I am, whom I want, what for, a nonce
//   server: who I am, a nonce, or why not
//   client: HMAC-SHA256(token, "client", all of the above)
//   server: HMAC-SHA256(token, "server", all of the above), or why not
// Nothing of the job is said before both have proved that they know the token, and a proof is only
// good for its two nonces.
class Handshake {
 public:
  // Connects to `peer`, in that life of it.
  static Handshake Client(HandshakeOptions options, PeerId peer, ConnectionPurpose purpose,
                          uint32_t index);
  static Handshake Server(HandshakeOptions options);
  // What a server that cannot keep the connection says instead: it is out of descriptors.
  static std::string OutOfDescriptors(const HandshakeOptions& options);

  // Bytes that have come; takes what belongs to the handshake from the front of `bytes`.
  //   Errors: the handshake is over, in vain; what pending_output() holds may still be sent.
  //   UNAUTHENTICATED the peer does not know the token; FAILED_PRECONDITION another version, or
  //   another life of the peer than the one that was wanted; INVALID_ARGUMENT something else than
  //   Ferry speaks here; RESOURCE_EXHAUSTED the peer is out of descriptors, for now.
  absl::Status OnBytes(absl::string_view& bytes);
  // How many bytes it waits for, so that a reader takes no more.
  size_t wanted_bytes() const;

  // To be sent to the peer; cleared by whoever sends it.
  std::string& pending_output() { return output_; }
  bool is_done() const { return stage_ == Stage::kDone; }

  // Once done.
  const PeerId& peer() const { return peer_; }
  ConnectionPurpose purpose() const { return purpose_; }
  uint32_t index() const { return index_; }

 private:
  enum class Stage { kHello, kChallenge, kClientProof, kServerProof, kDone, kFailed };

  explicit Handshake(HandshakeOptions options) : options_(std::move(options)) {}

  absl::Status OnMessage(absl::string_view message);
  absl::Status OnHello(absl::string_view message);
  absl::Status OnChallenge(absl::string_view message);
  absl::Status OnClientProof(absl::string_view message);
  absl::Status OnServerProof(absl::string_view message);
  std::string Proof(absl::string_view side) const;

  HandshakeOptions options_;
  Stage stage_ = Stage::kHello;
  PeerId peer_;
  ConnectionPurpose purpose_ = ConnectionPurpose::kLane;
  uint32_t index_ = 0;
  std::string output_;
  std::string input_;
  // What both sides have seen.
  std::string transcript_;
};

// 32 bytes from the kernel.
std::string DrawSecret();
// HMAC-SHA256.
std::string Authenticate(absl::string_view secret, absl::string_view message);
// In a time that does not tell where they differ.
bool IsSameProof(absl::string_view a, absl::string_view b);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_HANDSHAKE_H_

// SPDX-License-Identifier: Apache-2.0
// AuthHandshake: mutual authentication of two processes of a job before any other data.
#ifndef FERRY_TRANSPORT_CONTROL_AUTH_HANDSHAKE_H_
#define FERRY_TRANSPORT_CONTROL_AUTH_HANDSHAKE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "transport/control/control_channel.h"

namespace ferry {

// The version of the handshake and of all that follows; docs/protocols.md tells what each has
// changed.
inline constexpr uint16_t kControlVersion = 4;

// Purpose of a connection.
enum class ConnectionPurpose : uint16_t {
  kControl = 1,
  // Tensor data; `index` distinguishes the connections of a pair.
  kData = 2,
};

struct AuthHandshakeOptions {
  PeerId self;
  // The job's secret; the same in all its processes, and never sent.
  std::string token;
  uint16_t version = kControlVersion;
};

// One side of the handshake; a plain object, fed with bytes. Four messages of fixed size:
//   client: its id, the id of the wanted peer, the purpose, a nonce
//   server: its id and a nonce, or an error
//   client: HMAC-SHA256(token, "client", all of the above)
//   server: HMAC-SHA256(token, "server", all of the above), or an error
// Nothing else is sent before both have proved that they know the token, and an authentication tag
// is valid only for its two nonces.
class AuthHandshake {
 public:
  // Connects to `peer`, in exactly that incarnation.
  static AuthHandshake Client(AuthHandshakeOptions options, PeerId peer, ConnectionPurpose purpose,
                              uint32_t index);
  static AuthHandshake Server(AuthHandshakeOptions options);
  // The reply of a server that cannot keep the connection because it is out of descriptors.
  static std::string OutOfDescriptors(const AuthHandshakeOptions& options);

  // Processes received bytes; consumes those that belong to the handshake from the front of
  // `bytes`.
  //   Errors: the handshake has failed; pending_output() may still be sent. UNAUTHENTICATED the
  //   peer does not know the token; FAILED_PRECONDITION another version, or another incarnation of
  //   the peer than requested; INVALID_ARGUMENT the peer does not speak the Ferry protocol;
  //   RESOURCE_EXHAUSTED the peer is temporarily out of descriptors.
  absl::Status OnBytes(absl::string_view& bytes);
  // Number of bytes expected next, so that a reader consumes no more.
  size_t wanted_bytes() const;

  // Output to send to the peer; the caller clears it.
  std::string& pending_output() { return output_; }
  bool is_done() const { return stage_ == Stage::kDone; }

  // Valid once done.
  const PeerId& peer() const { return peer_; }
  ConnectionPurpose purpose() const { return purpose_; }
  uint32_t index() const { return index_; }

 private:
  enum class Stage { kHello, kChallenge, kClientAuthTag, kServerAuthTag, kDone, kFailed };

  explicit AuthHandshake(AuthHandshakeOptions options) : options_(std::move(options)) {}

  absl::Status OnMessage(absl::string_view message);
  absl::Status OnHello(absl::string_view message);
  absl::Status OnChallenge(absl::string_view message);
  absl::Status OnClientAuthTag(absl::string_view message);
  absl::Status OnServerAuthTag(absl::string_view message);
  std::string AuthTag(absl::string_view side) const;

  AuthHandshakeOptions options_;
  Stage stage_ = Stage::kHello;
  PeerId peer_;
  ConnectionPurpose purpose_ = ConnectionPurpose::kControl;
  uint32_t index_ = 0;
  std::string output_;
  std::string input_;
  // All handshake bytes seen by both sides.
  std::string transcript_;
};

// 32 bytes from the kernel.
std::string GenerateSecret();
// HMAC-SHA256.
std::string HmacSha256(absl::string_view secret, absl::string_view message);
// Constant-time comparison.
bool IsSameAuthTag(absl::string_view a, absl::string_view b);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_AUTH_HANDSHAKE_H_

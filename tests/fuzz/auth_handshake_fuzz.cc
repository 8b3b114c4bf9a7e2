// SPDX-License-Identifier: Apache-2.0
// Unauthenticated peers at both sides of a handshake. The first byte selects the side that receives
// them, and the length of the slices; a second one how much of a real peer's messages comes before.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

#include "base/status_macros.h"
#include "transport/control/auth_handshake.h"

namespace ferry {
namespace {

constexpr PeerId kClient = {1, 11};
constexpr PeerId kServer = {2, 22};
constexpr size_t kMostOutput = 256;

// False: it has failed.
bool Feed(AuthHandshake& side, absl::string_view bytes, size_t slice) {
  while (!bytes.empty()) {
    const absl::string_view part = bytes.substr(0, slice);
    absl::string_view rest = part;
    const size_t wanted = side.wanted_bytes();
    const absl::Status status = side.OnBytes(rest);
    // Never more than it wanted, and never nothing.
    FERRY_CHECK(side.pending_output().size() <= kMostOutput);
    if (!status.ok()) {
      FERRY_CHECK(absl::IsUnauthenticated(status) || absl::IsFailedPrecondition(status) ||
                  absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status));
      FERRY_CHECK(status.message().size() < 500);
      FERRY_CHECK(!side.is_done() && side.wanted_bytes() == 0);
      return false;
    }
    if (rest.size() == part.size()) {
      FERRY_CHECK(wanted == 0);
      return true;
    }
    bytes.remove_prefix(part.size() - rest.size());
  }
  return true;
}

void Check(uint8_t how, uint8_t before, absl::string_view bytes) {
  AuthHandshake client = AuthHandshake::Client({.self = kClient, .token = "a secret"}, kServer,
                                               ConnectionPurpose::kControl, 0);
  AuthHandshake server = AuthHandshake::Server({.self = kServer, .token = "a secret"});
  const bool to_client = (how & 1) != 0;
  const size_t slice = (how >> 1) + 1u;
  AuthHandshake& side = to_client ? client : server;
  // As far as a real handshake gets.
  const int steps = before % 3;
  std::string real = std::exchange(client.pending_output(), "");
  if (steps > 0) {
    FERRY_CHECK(Feed(server, real, 1000));
    real = std::exchange(server.pending_output(), "");
  }
  if (to_client && steps > 1) {
    // A challenge with some bytes changed.
    if (!bytes.empty()) real[bytes.size() % real.size()] ^= bytes[0];
    bytes.remove_prefix(std::min<size_t>(bytes.size(), 1));
    if (!Feed(client, real, slice)) return;
  }
  Feed(side, bytes, slice);
  // No peer is accepted that does not know the token.
  FERRY_CHECK(!side.is_done());
}

}  // namespace
}  // namespace ferry

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  ferry::Check(data[0], data[1], {reinterpret_cast<const char*>(data) + 2, size - 2});
  return 0;
}

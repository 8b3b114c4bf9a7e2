// SPDX-License-Identifier: Apache-2.0
// Encoding and checking of the four handshake messages.
#include "transport/control/auth_handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/byte_reader.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

constexpr absl::string_view kMagic("FERRYLN\x01", 8);
constexpr size_t kSecretBytes = 32;

enum class Verdict : uint16_t {
  kWelcome = 0,
  kOtherVersion = 1,
  kOtherIncarnation = 2,
  kOtherNode = 3,
  kWrongToken = 4,
  kWrongPurpose = 5,
  kOutOfDescriptors = 6,
};

// magic, version, purpose, self, wanted peer, index, nonce
constexpr size_t kHelloBytes = 8 + 2 + 2 + 4 + 8 + 4 + 8 + 4 + kSecretBytes;
// magic, version, verdict, self, nonce
constexpr size_t kChallengeBytes = 8 + 2 + 2 + 4 + 8 + kSecretBytes;
constexpr size_t kClientAuthTagBytes = kSecretBytes;
constexpr size_t kServerAuthTagBytes = 2 + kSecretBytes;

// The server's first reply.
std::string EncodeChallenge(const AuthHandshakeOptions& options, Verdict verdict) {
  char room[kChallengeBytes];
  ByteWriter challenge(room, sizeof(room));
  challenge.PutBytes(kMagic);
  challenge.Put(options.version);
  challenge.Put(static_cast<uint16_t>(verdict));
  challenge.Put(options.self.node_id);
  challenge.Put(options.self.incarnation);
  challenge.PutBytes(GenerateSecret());
  return std::string(challenge.view());
}

absl::Status NotFerry() {
  return absl::InvalidArgumentError("the peer does not speak Ferry's protocol");
}

}  // namespace

std::string GenerateSecret() {
  std::string secret(kSecretBytes, '\0');
  // From the kernel: a library's generator may need a descriptor or memory on first use.
  static_assert(kSecretBytes <= 256, "more may be cut short");
  FERRY_CHECK(getentropy(secret.data(), secret.size()) == 0);
  return secret;
}

bool IsSameAuthTag(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string HmacSha256(absl::string_view secret, absl::string_view message) {
  std::string mac(EVP_MAX_MD_SIZE, '\0');
  unsigned bytes = 0;
  FERRY_CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                   reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                   reinterpret_cast<unsigned char*>(mac.data()), &bytes) != nullptr);
  mac.resize(bytes);
  return mac;
}

AuthHandshake AuthHandshake::Client(AuthHandshakeOptions options, PeerId peer,
                                    ConnectionPurpose purpose, uint32_t index) {
  AuthHandshake handshake(std::move(options));
  handshake.stage_ = Stage::kChallenge;
  handshake.peer_ = peer;
  handshake.purpose_ = purpose;
  handshake.index_ = index;
  char room[kHelloBytes];
  ByteWriter hello(room, sizeof(room));
  hello.PutBytes(kMagic);
  hello.Put(handshake.options_.version);
  hello.Put(static_cast<uint16_t>(purpose));
  hello.Put(handshake.options_.self.node_id);
  hello.Put(handshake.options_.self.incarnation);
  hello.Put(peer.node_id);
  hello.Put(peer.incarnation);
  hello.Put(index);
  hello.PutBytes(GenerateSecret());
  handshake.output_ = std::string(hello.view());
  handshake.transcript_ = handshake.output_;
  return handshake;
}

AuthHandshake AuthHandshake::Server(AuthHandshakeOptions options) {
  return AuthHandshake(std::move(options));
}

std::string AuthHandshake::OutOfDescriptors(const AuthHandshakeOptions& options) {
  return EncodeChallenge(options, Verdict::kOutOfDescriptors);
}

size_t AuthHandshake::wanted_bytes() const {
  size_t whole = 0;
  switch (stage_) {
    case Stage::kHello:
      whole = kHelloBytes;
      break;
    case Stage::kChallenge:
      whole = kChallengeBytes;
      break;
    case Stage::kClientAuthTag:
      whole = kClientAuthTagBytes;
      break;
    case Stage::kServerAuthTag:
      whole = kServerAuthTagBytes;
      break;
    case Stage::kDone:
    case Stage::kFailed:
      return 0;
  }
  return whole - input_.size();
}

absl::Status AuthHandshake::OnBytes(absl::string_view& bytes) {
  while (!bytes.empty() && wanted_bytes() > 0) {
    const size_t taken = std::min(bytes.size(), wanted_bytes());
    absl::StrAppend(&input_, bytes.substr(0, taken));
    bytes.remove_prefix(taken);
    // Reject foreign protocols at their first bytes, not after a full message.
    if ((stage_ == Stage::kHello || stage_ == Stage::kChallenge) &&
        kMagic.substr(0, input_.size()) != absl::string_view(input_).substr(0, kMagic.size())) {
      stage_ = Stage::kFailed;
      return NotFerry();
    }
    if (wanted_bytes() > 0) break;
    const std::string message = std::exchange(input_, "");
    if (absl::Status status = OnMessage(message); !status.ok()) {
      stage_ = Stage::kFailed;
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status AuthHandshake::OnMessage(absl::string_view message) {
  switch (stage_) {
    case Stage::kHello:
      return OnHello(message);
    case Stage::kChallenge:
      return OnChallenge(message);
    case Stage::kClientAuthTag:
      return OnClientAuthTag(message);
    case Stage::kServerAuthTag:
      return OnServerAuthTag(message);
    case Stage::kDone:
    case Stage::kFailed:
      break;
  }
  return NotFerry();
}

absl::Status AuthHandshake::OnHello(absl::string_view message) {
  ByteReader hello(message);
  if (hello.GetBytes(kMagic.size()) != kMagic) return NotFerry();
  const auto version = hello.Get<uint16_t>();
  const auto purpose = hello.Get<uint16_t>();
  peer_.node_id = hello.Get<int32_t>();
  peer_.incarnation = hello.Get<uint64_t>();
  const PeerId wanted = {hello.Get<int32_t>(), hello.Get<uint64_t>()};
  index_ = hello.Get<uint32_t>();
  purpose_ = static_cast<ConnectionPurpose>(purpose);

  Verdict verdict = Verdict::kWelcome;
  absl::Status status;
  if (version != options_.version) {
    verdict = Verdict::kOtherVersion;
    status = absl::FailedPreconditionError(
        absl::StrCat(Describe(peer_), " speaks version ", version,
                     " of the control protocol, this is ", options_.version));
  } else if (wanted.node_id != options_.self.node_id) {
    verdict = Verdict::kOtherNode;
    status = absl::FailedPreconditionError(
        absl::StrCat(Describe(peer_), " looks for node ", wanted.node_id, " here"));
  } else if (wanted.incarnation != options_.self.incarnation) {
    verdict = Verdict::kOtherIncarnation;
    status = absl::FailedPreconditionError(
        absl::StrCat(Describe(peer_), " looks for an earlier life of this process"));
  } else if (purpose_ != ConnectionPurpose::kControl && purpose_ != ConnectionPurpose::kData) {
    verdict = Verdict::kWrongPurpose;
    status = NotFerry();
  }
  const std::string challenge = EncodeChallenge(options_, verdict);
  absl::StrAppend(&output_, challenge);
  transcript_ = absl::StrCat(message, challenge);
  stage_ = Stage::kClientAuthTag;
  return status;
}

absl::Status AuthHandshake::OnChallenge(absl::string_view message) {
  ByteReader challenge(message);
  if (challenge.GetBytes(kMagic.size()) != kMagic) return NotFerry();
  const auto version = challenge.Get<uint16_t>();
  const auto verdict = static_cast<Verdict>(challenge.Get<uint16_t>());
  const PeerId there = {challenge.Get<int32_t>(), challenge.Get<uint64_t>()};
  switch (verdict) {
    case Verdict::kWelcome:
      break;
    case Verdict::kOtherVersion:
      return absl::FailedPreconditionError(absl::StrCat(
          Describe(peer_), " speaks version ", version, " of the control protocol, this is ",
          options_.version, ": install one version everywhere"));
    case Verdict::kOtherNode:
      return absl::FailedPreconditionError(
          absl::StrCat("where ", Describe(peer_), " should be, node ", there.node_id, " is"));
    case Verdict::kOtherIncarnation:
      return absl::FailedPreconditionError(
          absl::StrCat(Describe(peer_), " was restarted: it is not the process that joined"));
    case Verdict::kOutOfDescriptors:
      return absl::ResourceExhaustedError(absl::StrCat(
          Describe(peer_), " can open no more descriptors: raise its limit (`ulimit -n`)"));
    default:
      return absl::FailedPreconditionError(
          absl::StrCat(Describe(peer_), " refuses: ", static_cast<int>(verdict)));
  }
  absl::StrAppend(&transcript_, message);
  output_ = AuthTag("client");
  stage_ = Stage::kServerAuthTag;
  return absl::OkStatus();
}

std::string AuthHandshake::AuthTag(absl::string_view side) const {
  return HmacSha256(options_.token, absl::StrCat(side, transcript_));
}

absl::Status AuthHandshake::OnClientAuthTag(absl::string_view message) {
  const bool is_right = IsSameAuthTag(message, AuthTag("client"));
  const Verdict verdict = is_right ? Verdict::kWelcome : Verdict::kWrongToken;
  output_.append(reinterpret_cast<const char*>(&verdict), sizeof(verdict));
  // Send no authentication tag to an unauthenticated peer.
  output_.append(is_right ? AuthTag("server") : std::string(kSecretBytes, '\0'));
  if (!is_right) {
    return absl::UnauthenticatedError(absl::StrCat("a peer that claims to be ", Describe(peer_),
                                                   " does not know the job's token"));
  }
  stage_ = Stage::kDone;
  return absl::OkStatus();
}

absl::Status AuthHandshake::OnServerAuthTag(absl::string_view message) {
  ByteReader auth_tag(message);
  const auto verdict = static_cast<Verdict>(auth_tag.Get<uint16_t>());
  if (verdict != Verdict::kWelcome) {
    return absl::UnauthenticatedError(absl::StrCat(
        Describe(peer_), " does not take this process's token: is it the same job's?"));
  }
  if (!IsSameAuthTag(auth_tag.rest(), AuthTag("server"))) {
    return absl::UnauthenticatedError(absl::StrCat("the peer that answers for ", Describe(peer_),
                                                   " does not know the job's token"));
  }
  stage_ = Stage::kDone;
  return absl::OkStatus();
}

}  // namespace ferry

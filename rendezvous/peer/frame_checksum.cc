// SPDX-License-Identifier: Apache-2.0
// Checksums of whole frames.
#include "rendezvous/peer/frame_checksum.h"

#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

#include "rendezvous/peer/peer_protocol.h"
#include "tensor/checksum.h"

namespace ferry {
namespace {

// Only a wrapper; the other channel does the work.
class ChecksummedChannel final : public ControlChannel {
 public:
  explicit ChecksummedChannel(std::shared_ptr<ControlChannel> channel)
      : channel_(std::move(channel)) {}

  absl::Status Send(uint16_t type, absl::Span<const absl::string_view> parts,
                    absl::Span<const int> descriptors) override {
    const Frame frame(type, parts);
    return channel_->Send(frame.type, frame.parts, descriptors);
  }
  absl::Status Append(uint16_t type, absl::Span<const absl::string_view> parts) override {
    const Frame frame(type, parts);
    return channel_->Append(frame.type, frame.parts);
  }
  void Kick() override { channel_->Kick(); }
  void Close(const absl::Status& why) override { channel_->Close(why); }
  const PeerId& peer() const override { return channel_->peer(); }
  bool passes_descriptors() const override { return channel_->passes_descriptors(); }
  size_t max_body() const override { return channel_->max_body() - kChecksumBytes; }
  size_t queued_bytes() const override { return channel_->queued_bytes(); }
  bool is_all_read() const override { return channel_->is_all_read(); }
  std::string Describe() const override { return channel_->Describe(); }

 private:
  // A frame with its checksum.
  struct Frame {
    Frame(uint16_t bare_type, absl::Span<const absl::string_view> bare_parts)
        : type(bare_type | kChecksumBit), parts(bare_parts.begin(), bare_parts.end()) {
      const uint64_t sum = Checksum(bare_parts, type);
      std::memcpy(checksum, &sum, sizeof(checksum));
      parts.emplace_back(checksum, sizeof(checksum));
    }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

    const uint16_t type;
    char checksum[kChecksumBytes];
    absl::InlinedVector<absl::string_view, 4> parts;
  };

  const std::shared_ptr<ControlChannel> channel_;
};

}  // namespace

std::shared_ptr<ControlChannel> MakeChecksummedChannel(std::shared_ptr<ControlChannel> channel) {
  return std::make_shared<ChecksummedChannel>(std::move(channel));
}

absl::Status RemoveChecksum(const PeerId& sender, uint16_t& type, absl::string_view& body) {
  const auto bare_type = static_cast<uint16_t>(type & ~kChecksumBit);
  const auto changed = [&](absl::string_view how) {
    return absl::DataLossError(absl::StrCat("a ", PeerMessageName(bare_type), " of ", body.size(),
                                            " bytes from ", Describe(sender), how, ". ",
                                            WhatToDoAboutDamage(sender)));
  };
  if (!IsChecksummed(type) || body.size() < kChecksumBytes)
    return changed(" has lost its checksum");
  uint64_t sent = 0;
  const absl::string_view inside = body.substr(0, body.size() - kChecksumBytes);
  std::memcpy(&sent, body.data() + inside.size(), sizeof(sent));
  const uint64_t sum = Checksum({inside}, type);
  if (sum != sent) {
    return changed(absl::StrCat(" has changed on its way: its checksum is ", absl::Hex(sum),
                                ", and it was sent with ", absl::Hex(sent)));
  }
  type = bare_type;
  body = inside;
  return absl::OkStatus();
}

std::string WhatToDoAboutDamage(const PeerId& peer) {
  return absl::StrCat("Memory or a network card here or at ", Describe(peer),
                      " changes bits: look for memory errors in both kernels' logs (`dmesg | grep "
                      "-i -E 'edac|mce|hardware error'`), run the step again, and take the machine "
                      "out of the job if it happens again");
}

}  // namespace ferry

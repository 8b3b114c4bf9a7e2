// SPDX-License-Identifier: Apache-2.0
// ReplayChannel: one datagram of a Unix socket for each message.
#include "benchmarks/gpu/calls/replay_channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "base/file_limit.h"

namespace ferry::calls {
namespace {

constexpr size_t kMaxMessageText = size_t{16} << 10;

struct Head {
  int32_t type;
  int32_t has_foreign;
  int32_t has_descriptor;
  int32_t is_error;
  int64_t index;
  uint32_t foreign_bytes;
  uint32_t differences;
  uint32_t skipped;
};

}  // namespace

absl::Status SendMessage(int socket, const ReplayMessage& message) {
  const std::string none;
  const std::string& foreign = message.foreign.has_value() ? message.foreign->bytes : none;
  const int descriptor = message.foreign.has_value() ? message.foreign->descriptor : -1;
  Head head = {
      .type = message.type,
      .has_foreign = message.foreign.has_value(),
      .has_descriptor = descriptor >= 0,
      .is_error = message.is_error,
      .index = message.index,
      .foreign_bytes = static_cast<uint32_t>(foreign.size()),
      .differences = static_cast<uint32_t>(std::min(message.differences.size(), kMaxMessageText)),
      .skipped = static_cast<uint32_t>(std::min(message.skipped.size(), kMaxMessageText))};
  std::string text(reinterpret_cast<const char*>(&head), sizeof(head));
  absl::StrAppend(&text, foreign, message.differences.substr(0, kMaxMessageText),
                  message.skipped.substr(0, kMaxMessageText));
  iovec part = {.iov_base = text.data(), .iov_len = text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr packet = {};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  if (descriptor >= 0) {
    packet.msg_control = control;
    packet.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&packet);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  if (sendmsg(socket, &packet, MSG_NOSIGNAL) < 0) {
    return absl::UnavailableError(absl::StrCat("sending: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<ReplayMessage> ReceiveMessage(int socket) {
  std::string text(sizeof(Head) + cuda::kIpcHandleBytes + 2 * kMaxMessageText, '\0');
  iovec part = {.iov_base = text.data(), .iov_len = text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr packet = {};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  packet.msg_control = control;
  packet.msg_controllen = sizeof(control);
  ssize_t received = 0;
  do {
    received = recvmsg(socket, &packet, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  int descriptor = -1;
  if (const cmsghdr* const header = received > 0 ? CMSG_FIRSTHDR(&packet) : nullptr;
      header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  }
  Head head;
  if (received < static_cast<ssize_t>(sizeof(head))) {
    return absl::UnavailableError("the other side is gone");
  }
  std::memcpy(&head, text.data(), sizeof(head));
  ReplayMessage message{.type = static_cast<ReplayMessage::Type>(head.type),
                        .index = head.index,
                        .is_error = head.is_error != 0};
  size_t at = sizeof(head);
  if (head.has_foreign != 0) {
    message.foreign =
        Foreign{.bytes = text.substr(at, head.foreign_bytes), .descriptor = descriptor};
    if (head.has_descriptor != 0 && descriptor < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no descriptor is left for what a process of the replay has exported: ",
                       ErrorWithFileLimit(EMFILE)));
    }
  }
  at += head.foreign_bytes;
  message.differences = text.substr(at, head.differences);
  message.skipped = text.substr(at + head.differences, head.skipped);
  return message;
}

}  // namespace ferry::calls

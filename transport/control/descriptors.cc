// SPDX-License-Identifier: Apache-2.0
// SCM_RIGHTS, including truncated and lost descriptors.
#include "transport/control/descriptors.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "base/file_limit.h"
#include "base/status_macros.h"

namespace ferry {

absl::Status SendDescriptors(int socket, absl::Span<const int> fds) {
  FERRY_CHECK(fds.size() <= kMaxDescriptors);
  auto count = static_cast<unsigned char>(fds.size());
  iovec data = {&count, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
  std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  while (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) {
    if (errno == EINTR) continue;
    return absl::UnavailableError(absl::StrCat("sendmsg: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ReceiveDescriptors(int socket, std::deque<UniqueFd>& arrived, size_t enough) {
  while (true) {
    unsigned char count = 0;
    iovec data = {&count, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)];
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got < 0 && errno == ECONNRESET) return false;
    if (got < 0) return absl::UnavailableError(absl::StrCat("recvmsg: ", std::strerror(errno)));
    size_t missing = std::min<size_t>(count, kMaxDescriptors);
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const size_t received = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      missing -= std::min(missing, received);
      for (size_t i = 0; i < received; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
        arrived.emplace_back(fd);
      }
    }
    // The kernel has dropped them: callers see invalid descriptors.
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      for (; missing > 0; --missing) arrived.emplace_back();
    }
    if (got == 0) return false;
    if (arrived.size() >= enough) return true;
  }
}

absl::Status CheckDescriptor(const UniqueFd& fd) {
  if (fd.valid()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      "a descriptor from the peer was lost: this process can open no more (see `ulimit -n`)");
}

absl::Status CheckDescriptors(absl::Span<const UniqueFd> fds) {
  for (const UniqueFd& fd : fds) FERRY_RETURN_IF_ERROR(CheckDescriptor(fd));
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> DuplicateDescriptor(int fd) {
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (copy.valid()) return copy;
  return absl::ResourceExhaustedError(absl::StrCat("dup: ", ErrorWithFileLimit(errno)));
}

}  // namespace ferry

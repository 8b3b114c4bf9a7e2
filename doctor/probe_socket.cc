// SPDX-License-Identifier: Apache-2.0
// The socket that connects the two endpoints of the IPC probe.
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "doctor/ipc_probe.h"

namespace ferry::doctor {
namespace {

absl::Status SocketError(const char* call) {
  return absl::UnavailableError(absl::StrCat(call, " of a Unix socket: ", std::strerror(errno)));
}

// The first byte is zero: an abstract name, not a file.
socklen_t FillAddress(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), size);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

}  // namespace

absl::StatusOr<ProbeSocket> ListenForProbe() {
  uint64_t token = 0;
  if (getrandom(&token, sizeof(token), 0) != sizeof(token)) return SocketError("getrandom for");
  ProbeSocket out = {UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
                     absl::StrFormat("ferry-doctor-%016x", token)};
  if (!out.fd.valid()) return SocketError("socket()");
  sockaddr_un address;
  const socklen_t size = FillAddress(out.name, address);
  if (bind(out.fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return SocketError("bind()");
  }
  if (listen(out.fd.get(), 1) != 0) return SocketError("listen()");
  return out;
}

absl::StatusOr<UniqueFd> AcceptProbe(const ProbeSocket& listener, absl::Time deadline) {
  while (true) {
    UniqueFd fd(accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) return fd;
    if (errno != EAGAIN && errno != EINTR) return SocketError("accept()");
    const absl::Duration left = deadline - SteadyClock().Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError("the other process of the probe did not come");
    }
    pollfd polled = {listener.fd.get(), POLLIN, 0};
    poll(&polled, 1,
         static_cast<int>(absl::ToInt64Milliseconds(std::min(left, absl::Minutes(1)))) + 1);
  }
}

absl::StatusOr<UniqueFd> ConnectProbe(const std::string& name) {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return SocketError("socket()");
  sockaddr_un address;
  const socklen_t size = FillAddress(name, address);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return SocketError("connect()");
  }
  return fd;
}

}  // namespace ferry::doctor

// SPDX-License-Identifier: Apache-2.0
// A relay of bytes between two sockets that can be cut, held, and refuse.
#include "tests/support/tcp_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

void CheckCall(int result, const char* what) {
  if (result >= 0) return;
  std::perror(what);
  std::abort();  // a test cannot go on without its proxy
}

}  // namespace

TcpProxy::TcpProxy(int target_port) : target_port_(target_port) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CheckCall(listener_, "socket");
  sockaddr_in address = Loopback(0);
  CheckCall(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), "bind");
  CheckCall(listen(listener_, 128), "listen");
  socklen_t length = sizeof address;
  CheckCall(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length), "getsockname");
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

TcpProxy::~TcpProxy() {
  {
    absl::MutexLock lock(&mu_);
    is_closing_ = true;
  }
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  close(listener_);
  Cut();
  // The acceptor has ended, so that nothing is added any more.
  std::vector<std::unique_ptr<Link>> links;
  {
    absl::MutexLock lock(&mu_);
    links.swap(links_);
  }
  for (const auto& link : links) {
    link->up.join();
    link->down.join();
    close(link->client);
    close(link->server);
  }
}

std::string TcpProxy::address() const { return absl::StrCat("127.0.0.1:", port_); }

void TcpProxy::SetTarget(int target_port) {
  absl::MutexLock lock(&mu_);
  target_port_ = target_port;
}

void TcpProxy::SetRefusing(bool refusing) {
  absl::MutexLock lock(&mu_);
  is_refusing_ = refusing;
}

void TcpProxy::SetStalled(bool stalled) {
  absl::MutexLock lock(&mu_);
  is_stalled_ = stalled;
}

void TcpProxy::Cut() {
  absl::MutexLock lock(&mu_);
  // The descriptors stay open until the end, so that none is mistaken for a later one's.
  for (const auto& link : links_) {
    shutdown(link->client, SHUT_RDWR);
    shutdown(link->server, SHUT_RDWR);
  }
}

int TcpProxy::accepted() const {
  absl::MutexLock lock(&mu_);
  return accepted_;
}

void TcpProxy::Accept() {
  while (true) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    absl::MutexLock lock(&mu_);
    if (is_closing_ || client < 0) {
      if (client >= 0) close(client);
      return;
    }
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in target = Loopback(target_port_);
    if (is_refusing_ || connect(server, reinterpret_cast<sockaddr*>(&target), sizeof target) != 0) {
      close(client);
      close(server);
      continue;
    }
    const int on = 1;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ++accepted_;
    links_.push_back(std::make_unique<Link>());
    Link& link = *links_.back();
    link.client = client;
    link.server = server;
    link.up = std::thread([this, client, server] { Carry(client, server); });
    link.down = std::thread([this, client, server] { Carry(server, client); });
  }
}

void TcpProxy::Carry(int from, int to) {
  std::vector<char> buffer(64 << 10);
  while (true) {
    const ssize_t size = read(from, buffer.data(), buffer.size());
    if (size <= 0) break;
    {
      const auto may_go_on = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return !is_stalled_ || is_closing_;
      };
      absl::MutexLock lock(&mu_, absl::Condition(&may_go_on));
    }
    ssize_t sent = 0;
    while (sent < size) {
      const ssize_t written =
          send(to, buffer.data() + sent, static_cast<size_t>(size - sent), MSG_NOSIGNAL);
      if (written <= 0) break;
      sent += written;
    }
    if (sent < size) break;
  }
  shutdown(from, SHUT_RDWR);
  shutdown(to, SHUT_RDWR);
}

}  // namespace ferry

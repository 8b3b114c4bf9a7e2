// SPDX-License-Identifier: Apache-2.0
// Accepting, and the addresses to listen on.
#include "net/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/address_family.h"
#include "base/clock.h"
#include "base/file_limit.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

// How long to wait for a free descriptor before the next try.
constexpr absl::Duration kNoDescriptorsPause = absl::Milliseconds(100);
constexpr absl::Duration kNoRoomPause = absl::Milliseconds(5);
constexpr absl::Duration kTroublePeriod = absl::Seconds(10);
// Limit per turn, so that clients that come without end do not starve the loop's other sources.
constexpr int kMostInTurn = 1024;

UniqueFd AcceptOne(int socket) {
  return UniqueFd(accept4(socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

}  // namespace

struct Listener::Shared {
  explicit Shared(ListenerCallbacks callbacks) : callbacks(std::move(callbacks)) {}

  const ListenerCallbacks callbacks;
  // Loop only: when on_trouble was last called.
  absl::Time told = absl::InfinitePast();
};

// One address of the listener.
class Listener::Socket final : public LoopSource, public std::enable_shared_from_this<Socket> {
 public:
  explicit Socket(UniqueFd socket) : socket_(std::move(socket)) {}

  int descriptor() const { return socket_.get(); }
  absl::Status Start(Loop& loop, std::shared_ptr<Shared> shared) ABSL_LOCKS_EXCLUDED(mu_) {
    shared_ = std::move(shared);
    KeepReserve();
    // The loop may call it before the id is stored; it waits for the lock then.
    absl::MutexLock lock(&mu_);
    FERRY_ASSIGN_OR_RETURN(source_, loop.Add(shared_from_this(), socket_.get(), EPOLLIN));
    loop_ = &loop;
    return absl::OkStatus();
  }
  void Close() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (loop_ != nullptr) loop_->Remove(source_, socket_.get());
    loop_ = nullptr;
  }

 private:
  void OnReady(uint32_t) override;
  void OnLoopEnd() override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    loop_ = nullptr;
    socket_.Reset();
  }

  // Accepts one client to send it callbacks.out_of_descriptors. Returns 0, or the error of accept;
  // `error` if there is no spare descriptor.
  int TurnAwayOne(int error);
  void KeepReserve();
  void NoteTrouble(int error);
  // Watches nothing until then.
  void ComeBackIn(absl::Duration pause) ABSL_LOCKS_EXCLUDED(mu_);
  void ComeBack() ABSL_LOCKS_EXCLUDED(mu_);
  void Watch(uint32_t events) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // Changing the events of a descriptor that is watched already takes no resources.
    loop_->Watch(source_, socket_.get(), events).IgnoreError();
  }

  // Constant after Start.
  std::shared_ptr<Shared> shared_;

  // Loop only, after Start. The socket is closed with the lock held, since Close reads it.
  UniqueFd socket_;
  // Spare descriptor, closed when none are left in order to accept a client and tell it why it is
  // rejected.
  UniqueFd reserve_;
  bool comes_back_ = false;

  absl::Mutex mu_;
  // nullptr before Start and after the end.
  Loop* loop_ ABSL_GUARDED_BY(mu_) = nullptr;
  Loop::SourceId source_ ABSL_GUARDED_BY(mu_) = 0;
};

void Listener::Socket::OnReady(uint32_t) {
  // Until then it waits on purpose.
  if (comes_back_) return;
  const ListenerCallbacks& callbacks = shared_->callbacks;
  for (int i = 0; i < kMostInTurn; ++i) {
    if (callbacks.has_room && !callbacks.has_room()) return ComeBackIn(kNoRoomPause);
    UniqueFd connection = AcceptOne(socket_.get());
    if (connection.valid()) {
      KeepReserve();
      callbacks.on_connection(std::move(connection));
      continue;
    }
    int error = errno;
    // Also reported if no client waits.
    if (error == EMFILE || error == ENFILE) error = TurnAwayOne(error);
    if (error == 0 || error == EINTR || error == ECONNABORTED) continue;
    if (error == EAGAIN || error == EWOULDBLOCK) return;
    // Most likely out of descriptors; connections wait in the backlog. Without a pause this would
    // be a busy loop.
    NoteTrouble(error);
    return ComeBackIn(kNoDescriptorsPause);
  }
  ComeBackIn(absl::ZeroDuration());
}

int Listener::Socket::TurnAwayOne(int error) {
  if (!reserve_.valid()) return error;
  reserve_.Reset();
  UniqueFd client = AcceptOne(socket_.get());
  error = client.valid() ? 0 : errno;
  if (client.valid()) {
    // Closing with unread data sends a reset, which may overtake the reply.
    char hello[256];
    recv(client.get(), hello, sizeof(hello), MSG_DONTWAIT);
    const std::string& reply = shared_->callbacks.out_of_descriptors;
    send(client.get(), reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  client.Reset();
  KeepReserve();
  return error;
}

void Listener::Socket::KeepReserve() {
  if (reserve_.valid() || shared_->callbacks.out_of_descriptors.empty()) return;
  reserve_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

void Listener::Socket::NoteTrouble(int error) {
  const absl::Time now = SteadyClock().Now();
  if (!shared_->callbacks.on_trouble || now - shared_->told < kTroublePeriod) return;
  shared_->told = now;
  shared_->callbacks.on_trouble(
      absl::StrCat("cannot accept connections for now: ", ErrorWithFileLimit(error)));
}

void Listener::Socket::ComeBackIn(absl::Duration pause) {
  absl::MutexLock lock(&mu_);
  if (loop_ == nullptr) return;
  comes_back_ = true;
  Watch(0);
  loop_->PostAfter(pause, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->ComeBack();
  });
}

void Listener::Socket::ComeBack() {
  comes_back_ = false;
  {
    absl::MutexLock lock(&mu_);
    if (loop_ == nullptr) return;
    Watch(EPOLLIN);
  }
  OnReady(EPOLLIN);
}

Listener::Listener(std::vector<ListeningSocket> sockets) : port_(sockets.front().port) {
  for (ListeningSocket& each : sockets) {
    sockets_.push_back(std::make_shared<Socket>(std::move(each.fd)));
  }
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::OpenTcp(const std::string& address) {
  return OpenTcp(address,
                 [](const HostPort& parts) { return ResolveHost(parts, {.is_passive = true}); });
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::OpenTcp(const std::string& address,
                                                            ResolveFunction resolve) {
  FERRY_ASSIGN_OR_RETURN(std::vector<ListeningSocket> sockets, ListenTcpOnAll(address, resolve));
  auto listener = std::unique_ptr<Listener>(new Listener(std::move(sockets)));
  std::string host = address.substr(0, address.rfind(':'));
  if (host.empty()) host = HasAddressFamily(AF_INET6) ? "[::]" : "0.0.0.0";
  listener->address_ = absl::StrCat(host, ":", listener->port_);
  return listener;
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::OpenUnix(absl::string_view name) {
  FERRY_ASSIGN_OR_RETURN(ListeningSocket socket, ListenUnix(name));
  std::vector<ListeningSocket> sockets;
  sockets.push_back(std::move(socket));
  auto listener = std::unique_ptr<Listener>(new Listener(std::move(sockets)));
  listener->address_ = std::string(name);
  return listener;
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Adopt(std::vector<UniqueFd> sockets,
                                                          std::string address) {
  std::vector<ListeningSocket> adopted;
  for (UniqueFd& socket : sockets) {
    FERRY_ASSIGN_OR_RETURN(ListeningSocket each, AdoptListening(std::move(socket)));
    adopted.push_back(std::move(each));
  }
  if (adopted.empty()) return absl::InvalidArgumentError("there is no listening socket");
  auto listener = std::unique_ptr<Listener>(new Listener(std::move(adopted)));
  listener->address_ = std::move(address);
  return listener;
}

Listener::~Listener() { Close(); }

std::vector<int> Listener::descriptors() const {
  std::vector<int> descriptors;
  for (const auto& socket : sockets_) descriptors.push_back(socket->descriptor());
  return descriptors;
}

std::string Listener::AddressFor(const std::string& coordinator) {
  const size_t colon = coordinator.rfind(':');
  const std::string port = coordinator.substr(colon + 1);
  std::string host = coordinator.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  host = absl::AsciiStrToLower(host);
  in_addr v4 = {};
  in6_addr v6 = {};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    const bool is_loopback = ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET;
    return is_loopback ? absl::StrCat(host, ":", port) : absl::StrCat(":", port);
  }
  if (inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &v6) == 1) {
    const bool is_mapped_loopback =
        IN6_IS_ADDR_V4MAPPED(&v6) != 0 && v6.s6_addr[12] == IN_LOOPBACKNET;
    if (is_mapped_loopback) return absl::StrCat("127.0.0.1:", port);
    if (IN6_IS_ADDR_V4MAPPED(&v6) != 0) return absl::StrCat(":", port);
    return absl::StrCat(IN6_IS_ADDR_LOOPBACK(&v6) ? "[::1]:" : "[::]:", port);
  }
  // Names that mean loopback on every host. Another name may resolve to loopback on its own host
  // only: Debian maps a machine's own name to 127.0.1.1.
  for (const absl::string_view name : {"localhost", "localhost.localdomain", "localhost4",
                                       "localhost6", "ip6-localhost", "ip6-loopback"}) {
    if (host == name) return absl::StrCat(host, ":", port);
  }
  if (absl::EndsWith(host, ".localhost")) return absl::StrCat(host, ":", port);
  return absl::StrCat(":", port);
}

absl::Status Listener::Start(Loop& loop, ListenerCallbacks callbacks) {
  const auto shared = std::make_shared<Shared>(std::move(callbacks));
  for (const auto& socket : sockets_) FERRY_RETURN_IF_ERROR(socket->Start(loop, shared));
  return absl::OkStatus();
}

void Listener::Close() {
  for (const auto& socket : sockets_) socket->Close();
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// TcpListener: accepts connections, and goes on doing so whatever happens.
#ifndef FERRY_NET_TCP_LISTENER_H_
#define FERRY_NET_TCP_LISTENER_H_

#include <netdb.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/thread.h"
#include "base/unique_fd.h"

namespace ferry::coord {

// gRPC's own listener stops for good when accept fails once, as it does when the process is out of
// descriptors; this one waits until there are some. Thread-safe. One thread, "ferry-accept".
class TcpListener final {
 public:
  // Called on the accepting thread, for each connection, until Close.
  using ConnectionCallback = std::function<void(UniqueFd connection)>;
  // Called there now and then while connections cannot be accepted, with a line for people.
  using TroubleCallback = std::function<void(const std::string& trouble)>;

  // Listens on every address of the host part of `address`, HOST:PORT or [IPV6]:PORT; of "[::]" on
  // those of both families. ":PORT" is every address of the families that the kernel has, while
  // "[::]" fails where there is no IPv6. Port 0 takes a free one. Accepts nothing before Start.
  //   Errors: INVALID_ARGUMENT for what is no such address; UNAVAILABLE, with the reason, if the
  //   host cannot be resolved, the port is in use, or the address is not one of this host.
  static absl::StatusOr<std::unique_ptr<TcpListener>> Open(const std::string& address);
  ~TcpListener();

  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  // Where a coordinator has to listen that its nodes look for at `coordinator`, HOST:PORT: at a
  // loopback address or "localhost" there and nowhere else; otherwise on every address, since the
  // host may be a name or an address of which only the network knows that it leads here.
  static std::string AddressFor(const std::string& coordinator);

  int port() const { return port_; }
  // The requested address with the port that was bound; "[::]:PORT" or "0.0.0.0:PORT" for ":PORT".
  const std::string& address() const { return address_; }

  // REQUIRES: not started yet.
  void Start(ConnectionCallback on_connection, TroubleCallback on_trouble);
  // Closes the port; no callback runs when this has returned. A second call does nothing.
  void Close();

 private:
  TcpListener() = default;

  // On the port `port_`, unless that is 0; the last error if there is none in listeners_ then.
  int BindAll(const addrinfo& first, bool is_v6_only);
  void Accept();
  // False when it is time to stop.
  bool WaitForConnection(std::vector<bool>& is_ready);
  void AcceptAll(int listener);

  // Constant after Start.
  std::vector<UniqueFd> listeners_;
  int port_ = 0;
  std::string address_;
  UniqueFd stop_;
  ConnectionCallback on_connection_;
  TroubleCallback on_trouble_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace ferry::coord

#endif  // FERRY_NET_TCP_LISTENER_H_

// SPDX-License-Identifier: Apache-2.0
// TcpListener: accepts connections, and keeps doing so after errors.
#ifndef FERRY_NET_TCP_LISTENER_H_
#define FERRY_NET_TCP_LISTENER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

#include "base/thread.h"
#include "base/unique_fd.h"
#include "net/resolver.h"
#include "net/socket_address.h"

namespace ferry::coord {

// gRPC's own listener stops permanently when accept fails once, as it does when the process is out
// of descriptors; this one waits until some are free. Thread-safe. One thread, "ferry-accept".
class TcpListener final {
 public:
  // Called on the accepting thread for each connection, until Close.
  using ConnectionCallback = std::function<void(UniqueFd connection)>;
  // Called there periodically while connections cannot be accepted, with a line to log.
  using TroubleCallback = std::function<void(const std::string& trouble)>;

  // Listens on every address of the host part of `address`, HOST:PORT or [IPV6]:PORT; for "[::]"
  // on those of both families. ":PORT" means every address of the families that the kernel has,
  // while "[::]" fails without IPv6. Port 0 means any free port. Accepts nothing before Start.
  //   Errors: INVALID_ARGUMENT for a malformed address; UNAVAILABLE, with the reason, if the host
  //   cannot be resolved, the port is in use, or the address is not one of this host.
  static absl::StatusOr<std::unique_ptr<TcpListener>> Open(const std::string& address);
  // As above, with the addresses that `resolve` returns for the host.
  using Resolve =
      absl::FunctionRef<absl::StatusOr<std::vector<SocketAddress>>(const HostPort& parts)>;
  static absl::StatusOr<std::unique_ptr<TcpListener>> Open(const std::string& address,
                                                           Resolve resolve);
  ~TcpListener();

  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  // Returns where a coordinator must listen so that nodes reach it at `coordinator`, HOST:PORT: a
  // loopback address or "localhost" as is; otherwise every address, since the host may be a name
  // or an address that only the network maps to this host.
  static std::string AddressFor(const std::string& coordinator);

  int port() const { return port_; }
  // The requested address with the port that was bound; "[::]:PORT" or "0.0.0.0:PORT" for ":PORT".
  const std::string& address() const { return address_; }

  // REQUIRES: not started yet.
  void Start(ConnectionCallback on_connection, TroubleCallback on_trouble);
  // Closes the port; no callback runs once this has returned. A second call does nothing.
  void Close();

 private:
  TcpListener() = default;

  // Binds on the port `port_`, or any if it is 0. Returns the last error if listeners_ is empty
  // after it.
  int BindAll(const std::vector<SocketAddress>& addresses, bool is_v6_only);
  void Accept();
  // Returns false when it is time to stop.
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

// SPDX-License-Identifier: Apache-2.0
// Listener: accepts connections, and keeps doing so when the process runs out of descriptors.
#ifndef FERRY_NET_LISTENER_H_
#define FERRY_NET_LISTENER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "base/unique_fd.h"
#include "net/loop.h"
#include "net/sockets.h"

namespace ferry {

// Called on the loop, one at a time. A turn of the loop that is in progress or about to begin may
// still call them after Listener::Close.
struct ListenerCallbacks {
  // For each connection, non-blocking.
  std::function<void(UniqueFd connection)> on_connection;
  // Asked before each: false leaves the connection in the kernel's backlog, and the next question
  // follows some milliseconds later. None: there is always room.
  std::function<bool()> has_room;
  // Called from time to time while connections cannot be accepted, with a line to log. May be none.
  std::function<void(const std::string& trouble)> on_trouble;
  // Sent to a client that is turned away because the process is out of descriptors: each socket
  // keeps a spare one for that. Empty: such clients wait in the backlog.
  std::string out_of_descriptors;
};

// Thread-safe. TCP or Unix sockets, on a loop of either kind.
class Listener final {
 public:
  // Binds, and accepts nothing before Start; clients wait in the backlog until then.
  //   Errors: as ListenTcpOnAll.
  static absl::StatusOr<std::unique_ptr<Listener>> OpenTcp(const std::string& address);
  static absl::StatusOr<std::unique_ptr<Listener>> OpenTcp(const std::string& address,
                                                           ResolveFunction resolve);
  //   Errors: as ListenUnix.
  static absl::StatusOr<std::unique_ptr<Listener>> OpenUnix(absl::string_view name);
  // Takes over TCP sockets that listen already; `address` is what address() returns.
  //   Errors: INVALID_ARGUMENT if there are none, or one does not listen.
  static absl::StatusOr<std::unique_ptr<Listener>> Adopt(std::vector<UniqueFd> sockets,
                                                         std::string address);
  // Calls Close.
  ~Listener();

  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Returns where a coordinator must listen so that nodes reach it at `coordinator`, HOST:PORT: a
  // loopback address or "localhost" as is; otherwise every address, since the host may be a name
  // or an address that only the network maps to this host.
  static std::string AddressFor(const std::string& coordinator);

  // 0 for Unix sockets.
  int port() const { return port_; }
  // The requested address with the port that was bound; "[::]:PORT" or "0.0.0.0:PORT" for ":PORT".
  // The name of a Unix socket.
  const std::string& address() const { return address_; }
  // The descriptors, which stay its own. REQUIRES: the loop does not run (PausedLoop), or was not
  // started.
  std::vector<int> descriptors() const;

  // `loop` outlives it. REQUIRES: not started yet.
  //   Errors: as Loop::Add.
  absl::Status Start(Loop& loop, ListenerCallbacks callbacks);
  // Accepts no more; the port is closed when the loop has released its sockets, which a SocketLoop
  // does at its end at the latest. A second call does nothing.
  void Close();

 private:
  class Socket;
  struct Shared;

  explicit Listener(std::vector<ListeningSocket> sockets);

  int port_ = 0;
  std::string address_;
  std::vector<std::shared_ptr<Socket>> sockets_;
};

}  // namespace ferry

#endif  // FERRY_NET_LISTENER_H_

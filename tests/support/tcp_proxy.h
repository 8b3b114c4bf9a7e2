// SPDX-License-Identifier: Apache-2.0
// TcpProxy: forwards connections between a client and a server, and injects network faults.
#ifndef FERRY_TESTS_SUPPORT_TCP_PROXY_H_
#define FERRY_TESTS_SUPPORT_TCP_PROXY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ferry {

// Listens on a free port of 127.0.0.1 and carries each connection to another port there.
// Thread-safe. Threads: one accepts, and two for each connection, one a direction.
class TcpProxy final {
 public:
  explicit TcpProxy(int target_port);
  ~TcpProxy();

  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  std::string address() const;

  // Where later connections go.
  void SetTarget(int target_port) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether new connections are closed at once, as where no process listens.
  void SetRefusing(bool refusing) ABSL_LOCKS_EXCLUDED(mu_);
  // While stalled nothing is forwarded and neither side is notified: an unplugged cable.
  void SetStalled(bool stalled) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends every connection there is.
  void Cut() ABSL_LOCKS_EXCLUDED(mu_);

  // Connections that were carried, ever.
  int accepted() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Link {
    int client = -1;
    int server = -1;
    std::thread up;
    std::thread down;
  };

  void Accept();
  void Carry(int from, int to) ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  int listener_ = -1;
  int port_ = 0;

  mutable absl::Mutex mu_;
  int target_port_ ABSL_GUARDED_BY(mu_);
  bool is_refusing_ ABSL_GUARDED_BY(mu_) = false;
  bool is_stalled_ ABSL_GUARDED_BY(mu_) = false;
  bool is_closing_ ABSL_GUARDED_BY(mu_) = false;
  int accepted_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::unique_ptr<Link>> links_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;
};

}  // namespace ferry

#endif  // FERRY_TESTS_SUPPORT_TCP_PROXY_H_

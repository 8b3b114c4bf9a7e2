// SPDX-License-Identifier: Apache-2.0
// A server in a process of its own: this very binary, started again with --serve.
#ifndef FERRY_BENCHMARKS_SUPPORT_SERVER_PROCESS_H_
#define FERRY_BENCHMARKS_SUPPORT_SERVER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ferry::bench {

enum class ServerKind {
  // support/floor_services.h: gRPC's own cost.
  kFloor,
  kCoordinator,
};

// Ends the process with a message; a benchmark that cannot measure has nothing else to do.
[[noreturn]] void Fatal(absl::string_view message);

// The server runs as long as this object exists. Thread-compatible.
class ServerProcess final {
 public:
  // Listens when it returns.
  //   tasks: how many the coordinator waits for, or parked calls the floor's barrier.
  ServerProcess(ServerKind kind, int tasks);
  ~ServerProcess();

  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // "ipv4:127.0.0.1:PORT": no name is looked up.
  const std::string& address() const { return address_; }
  // User and system time of all its threads so far.
  absl::Duration CpuTime() const;
  // Private memory in RAM: RssAnon of /proc/PID/status.
  int64_t ResidentBytes() const;

 private:
  pid_t pid_ = -1;
  // Closing it ends the server.
  int input_ = -1;
  std::string address_;
};

// The body of the child. Returns the process's exit status.
int Serve(absl::string_view kind, int tasks);

}  // namespace ferry::bench

#endif  // FERRY_BENCHMARKS_SUPPORT_SERVER_PROCESS_H_

// SPDX-License-Identifier: Apache-2.0
// Starting, watching and being the server process.
#include "benchmarks/support/server_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <utility>

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/file_limit.h"
#include "benchmarks/support/floor_services.h"
#include "coord/server/server.h"

extern char** environ;

namespace ferry::bench {
namespace {

// The child's ends of the pipes.
constexpr int kChildInput = 0;
constexpr int kChildOutput = 3;

absl::string_view Name(ServerKind kind) {
  return kind == ServerKind::kFloor ? "floor" : "coordinator";
}

// Reports the port to the parent, then waits until the parent has ended.
void AnnounceAndWait(int port) {
  const std::string line = absl::StrCat(port, "\n");
  if (write(kChildOutput, line.data(), line.size()) < 0) return;
  close(kChildOutput);
  char unused;
  while (read(kChildInput, &unused, 1) > 0) {
  }
}

int ServeFloor(int tasks) {
  const auto services = MakeFloorServices(tasks);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  for (const auto& service : services) builder.RegisterService(service.get());
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  AnnounceAndWait(port);
  return 0;
}

int ServeCoordinator(int tasks) {
  coord::ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.coordinator.jobs = {{"jax_worker", tasks}};
  // The simulated ranks send no heartbeats.
  options.coordinator.heartbeat_timeout = absl::Hours(1);
  options.coordinator.shutdown_timeout = absl::ZeroDuration();
  auto server = coord::CoordinatorServer::Create(std::move(options));
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
    return 1;
  }
  AnnounceAndWait((*server)->port());
  return 0;
}

}  // namespace

void Fatal(absl::string_view message) {
  std::fprintf(stderr, "coordinator_bench: %.*s\n", static_cast<int>(message.size()),
               message.data());
  std::exit(1);
}

ServerProcess::ServerProcess(ServerKind kind, int tasks) {
  int input[2];
  int output[2];
  if (pipe2(input, O_CLOEXEC) != 0 || pipe2(output, O_CLOEXEC) != 0) Fatal("no pipes");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], kChildInput);
  posix_spawn_file_actions_adddup2(&actions, output[1], kChildOutput);
  std::string program = "/proc/self/exe";
  std::string serve = absl::StrCat("--serve=", Name(kind));
  std::string count = absl::StrCat("--tasks=", tasks);
  char* const arguments[] = {program.data(), serve.data(), count.data(), nullptr};
  if (posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ) != 0) {
    Fatal("cannot start the server process");
  }
  posix_spawn_file_actions_destroy(&actions);
  close(input[0]);
  close(output[1]);
  input_ = input[1];
  std::string line;
  char c;
  while (read(output[0], &c, 1) == 1 && c != '\n') line.push_back(c);
  close(output[0]);
  if (line.empty()) Fatal("the server process did not start");
  address_ = absl::StrCat("ipv4:127.0.0.1:", line);
}

ServerProcess::~ServerProcess() {
  close(input_);
  // Not a clean shutdown: thousands of connections would take time that is not measured.
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

absl::Duration ServerProcess::CpuTime() const {
  clockid_t clock;
  timespec time;
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) {
    Fatal("the server process is gone");
  }
  return absl::DurationFromTimespec(time);
}

int64_t ServerProcess::ResidentBytes() const {
  std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
  std::string word;
  int64_t kib = 0;
  while (status >> word) {
    if (word == "RssAnon:" && status >> kib) return kib * 1024;
  }
  Fatal("the server process is gone");
}

int Serve(absl::string_view kind, int tasks) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  RaiseFileLimit();
  return kind == Name(ServerKind::kFloor) ? ServeFloor(tasks) : ServeCoordinator(tasks);
}

}  // namespace ferry::bench

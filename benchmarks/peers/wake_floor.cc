// SPDX-License-Identifier: Apache-2.0
// The machine's time to wake a sleeping process on another core: a byte through a socket there and
// back, halved.
//
//   wake_floor unix ROUNDS
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "pair.h"

namespace {

// The first or the second of the cores that this process may use.
void Pin(int which) {
  cpu_set_t all;
  if (sched_getaffinity(0, sizeof all, &all) != 0) peers::Fail("no affinity");
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all) || which-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) peers::Fail("wake_floor unix ROUNDS");
  const size_t rounds = std::strtoull(argv[2], nullptr, 10);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) peers::Fail("no socket pair");
  const pid_t child = fork();
  if (child < 0) peers::Fail("cannot fork");
  char byte = 0;
  if (child == 0) {
    Pin(1);
    close(ends[0]);
    while (read(ends[1], &byte, 1) == 1) {
      if (write(ends[1], &byte, 1) != 1) break;
    }
    std::_Exit(0);
  }
  Pin(0);
  close(ends[1]);
  std::vector<double> times;
  uint64_t wrong = 0;
  for (size_t round = 0; round < rounds + 10; ++round) {
    const char sent = static_cast<char>(round);
    const double start = peers::Now();
    if (write(ends[0], &sent, 1) != 1 || read(ends[0], &byte, 1) != 1) peers::Fail("it has died");
    if (round >= 10) times.push_back((peers::Now() - start) / 2);
    wrong += byte != sent;
  }
  close(ends[0]);
  waitpid(child, nullptr, 0);
  peers::Print("seconds", peers::Median(times), times.size(), wrong);
}

// SPDX-License-Identifier: Apache-2.0
// What the machine gives to whoever asks for nothing else.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status_macros.h"
#include "benchmarks/support/exchange_peer.h"

namespace ferry::bench {
namespace {

double Now() { return absl::ToDoubleSeconds(SteadyClock().Now() - absl::UnixEpoch()); }

double Median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + static_cast<long>(samples.size() / 2),
                   samples.end());
  return samples[samples.size() / 2];
}

// Runs `body` in a child, and `measure` here.
template <typename T>
T WithChild(const std::function<void()>& body, const std::function<T()>& measure,
            bool is_pinned = true) {
  const pid_t child = fork();
  FERRY_CHECK(child >= 0);
  if (child == 0) {
    if (is_pinned) PinTo(1);
    body();
    std::_Exit(0);
  }
  if (is_pinned) PinTo(0);
  const T result = measure();
  PinTo(-1);
  waitpid(child, nullptr, 0);
  return result;
}

double CpuOfSelfAndChildren() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage = {};
    getrusage(who, &usage);
    seconds += static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
  }
  return seconds;
}

struct TcpListener {
  int socket = -1;
  sockaddr_in address = {};
};

TcpListener Listen() {
  TcpListener pair;
  pair.socket = socket(AF_INET, SOCK_STREAM, 0);
  pair.address.sin_family = AF_INET;
  pair.address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  FERRY_CHECK(bind(pair.socket, reinterpret_cast<sockaddr*>(&pair.address), sizeof(pair.address)) ==
              0);
  socklen_t length = sizeof(pair.address);
  getsockname(pair.socket, reinterpret_cast<sockaddr*>(&pair.address), &length);
  FERRY_CHECK(listen(pair.socket, 16) == 0);
  return pair;
}

int Connect(const TcpListener& pair) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  FERRY_CHECK(connect(fd, reinterpret_cast<const sockaddr*>(&pair.address), sizeof(pair.address)) ==
              0);
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return fd;
}

int Accept(const TcpListener& pair) {
  const int fd = accept(pair.socket, nullptr, nullptr);
  FERRY_CHECK(fd >= 0);
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return fd;
}

}  // namespace

void ReceiveSpinning(int fd, char* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = recv(fd, to, bytes, MSG_DONTWAIT);
    if (got > 0) {
      to += got;
      bytes -= static_cast<size_t>(got);
    }
  }
}

double SpinFloor() {
  constexpr int kRounds = 200'000;
  struct Line {
    alignas(128) std::atomic<int> there;
    alignas(128) std::atomic<int> back;
  };
  auto* line = static_cast<Line*>(
      mmap(nullptr, sizeof(Line), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const auto body = [line] {
    for (int i = 1; i <= kRounds; ++i) {
      while (line->there.load(std::memory_order_acquire) != i) {
      }
      line->back.store(i, std::memory_order_release);
    }
  };
  const double result = WithChild<double>(body, [line] {
    std::vector<double> samples;
    for (int batch = 0; batch < kRounds / 100; ++batch) {
      const double start = Now();
      for (int i = batch * 100 + 1; i <= batch * 100 + 100; ++i) {
        line->there.store(i, std::memory_order_release);
        while (line->back.load(std::memory_order_acquire) != i) {
        }
      }
      samples.push_back((Now() - start) / 200);
    }
    return Median(samples);
  });
  munmap(line, sizeof(Line));
  return result;
}

double BlockingFloor() {
  constexpr int kRounds = 5000;
  const int there = eventfd(0, 0);
  const int back = eventfd(0, 0);
  uint64_t value = 1;
  const double result = WithChild<double>(
      [&] {
        for (int i = 0; i < kRounds; ++i) {
          if (read(there, &value, sizeof(value)) < 0) return;
          value = 1;
          if (write(back, &value, sizeof(value)) < 0) return;
        }
      },
      [&] {
        std::vector<double> samples;
        for (int i = 0; i < kRounds; ++i) {
          const double start = Now();
          value = 1;
          FERRY_CHECK(write(there, &value, sizeof(value)) > 0);
          FERRY_CHECK(read(back, &value, sizeof(value)) > 0);
          samples.push_back(Now() - start);
        }
        return Median(samples);
      });
  close(there);
  close(back);
  return result;
}

TcpPair ConnectedTcp() {
  const TcpListener listener = Listen();
  TcpPair pair;
  pair.here = Connect(listener);
  pair.there = Accept(listener);
  close(listener.socket);
  return pair;
}

double HandOverDescriptor(int socket, int fd) {
  char byte = 0;
  iovec piece = {&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &fd, sizeof(fd));
  const double start = Now();
  FERRY_CHECK(sendmsg(socket, &message, 0) == 1);
  ReceiveSpinning(socket, &byte, 1);
  return Now() - start;
}

void AnswerDescriptor(int socket, size_t bytes, bool checks) {
  char byte = 0;
  iovec piece = {&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  ssize_t got = -1;
  while (got < 0) {
    message = {};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = room;
    message.msg_controllen = sizeof(room);
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  }
  const cmsghdr* const head = CMSG_FIRSTHDR(&message);
  // The other process has gone, and with it the benchmark.
  if (got == 0 || head == nullptr) std::_Exit(0);
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(head), sizeof(fd));
  if (checks) {
    FERRY_CHECK(lseek(fd, 0, SEEK_END) == static_cast<off_t>(bytes));
    FERRY_CHECK((fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) != 0);
  }
  void* const memory = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  FERRY_CHECK(memory != MAP_FAILED);
  FERRY_CHECK(send(socket, &byte, 1, MSG_NOSIGNAL) == 1);
  munmap(memory, bytes);
  close(fd);
}

StreamFloor TcpStreamFloor(int streams, size_t bytes) {
  constexpr int kRounds = 12;
  constexpr size_t kSlice = 256 * 1024;
  const TcpListener pair = Listen();
  const size_t share = bytes / static_cast<size_t>(streams) / kSlice * kSlice;
  const double cpu = CpuOfSelfAndChildren();
  const double rate = WithChild<double>(
      [&] {
        std::vector<char> data(bytes, 1);
        std::vector<std::thread> threads;
        for (int s = 0; s < streams; ++s) {
          threads.emplace_back([&, s] {
            const int fd = Connect(pair);
            for (int round = 0; round < kRounds; ++round) {
              for (size_t at = 0; at < share; at += kSlice) {
                size_t sent = 0;
                while (sent < kSlice) {
                  const ssize_t done =
                      send(fd, data.data() + static_cast<size_t>(s) * share + at + sent,
                           kSlice - sent, 0);
                  if (done <= 0) return;
                  sent += static_cast<size_t>(done);
                }
              }
              char byte;
              if (recv(fd, &byte, 1, 0) <= 0) return;
            }
          });
        }
        for (std::thread& thread : threads) thread.join();
      },
      [&] {
        std::vector<char> data(bytes, 2);
        std::vector<int> fds;
        for (int s = 0; s < streams; ++s) fds.push_back(Accept(pair));
        std::vector<double> samples;
        for (int round = 0; round < kRounds; ++round) {
          const double start = Now();
          std::vector<std::thread> threads;
          for (int s = 0; s < streams; ++s) {
            threads.emplace_back([&, s] {
              size_t got = 0;
              while (got < share) {
                const ssize_t done =
                    recv(fds[static_cast<size_t>(s)],
                         data.data() + static_cast<size_t>(s) * share + got, share - got, 0);
                FERRY_CHECK(done > 0);
                got += static_cast<size_t>(done);
              }
            });
          }
          for (std::thread& thread : threads) thread.join();
          samples.push_back(Now() - start);
          for (const int fd : fds) FERRY_CHECK(send(fd, "", 1, 0) == 1);
        }
        for (const int fd : fds) close(fd);
        return static_cast<double>(share * static_cast<size_t>(streams)) / Median(samples);
      },
      /*is_pinned=*/false);
  close(pair.socket);
  const double total = static_cast<double>(share) * streams * kRounds / 1e9;
  return {rate, (CpuOfSelfAndChildren() - cpu) / total};
}

double MemcpyFloor(size_t bytes) {
  std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes, 2);
  std::vector<double> samples;
  for (int i = 0; i < 9; ++i) {
    const double start = Now();
    std::memcpy(to.data(), from.data(), bytes);
    samples.push_back(Now() - start);
  }
  return static_cast<double>(bytes) / Median(samples);
}

}  // namespace ferry::bench

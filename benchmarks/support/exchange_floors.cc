// SPDX-License-Identifier: Apache-2.0
// Baselines: the limits of the machine without any other work.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
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
#include "benchmarks/support/transfer_peer.h"
#include "tensor/copy.h"

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
T WithChild(const std::function<void()>& body, const std::function<T()>& measure) {
  const pid_t child = fork();
  FERRY_CHECK(child >= 0);
  if (child == 0) {
    PinTo(1);
    body();
    std::_Exit(0);
  }
  PinTo(0);
  const T result = measure();
  PinTo(-1);
  waitpid(child, nullptr, 0);
  return result;
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

constexpr size_t kStreamSlice = 256 * 1024;

// Each stream has an equal part and a thread; the last one this thread.
void OnEachStream(absl::Span<const int> sockets, size_t bytes,
                  const std::function<void(int fd, size_t begin, size_t end)>& body) {
  const size_t share = bytes / sockets.size();
  std::vector<std::thread> threads;
  for (size_t i = 0; i + 1 < sockets.size(); ++i) {
    threads.emplace_back(body, sockets[i], i * share, (i + 1) * share);
  }
  body(sockets.back(), (sockets.size() - 1) * share, bytes);
  for (std::thread& thread : threads) thread.join();
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
  // The other process has ended, and with it the benchmark.
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

void SendStreams(absl::Span<const int> sockets, const char* from, size_t bytes) {
  OnEachStream(sockets, bytes, [from](int fd, size_t begin, size_t end) {
    while (begin < end) {
      const ssize_t sent = send(fd, from + begin, std::min(kStreamSlice, end - begin), 0);
      FERRY_CHECK(sent > 0);
      begin += static_cast<size_t>(sent);
    }
    char byte;
    FERRY_CHECK(recv(fd, &byte, 1, 0) == 1);
  });
}

void ReceiveStreams(absl::Span<const int> sockets, char* to, size_t bytes) {
  OnEachStream(sockets, bytes, [to](int fd, size_t begin, size_t end) {
    while (begin < end) {
      const ssize_t got = recv(fd, to + begin, end - begin, 0);
      // The other process has ended, and with it the benchmark.
      if (got <= 0) std::_Exit(0);
      begin += static_cast<size_t>(got);
    }
    FERRY_CHECK(send(fd, "", 1, 0) == 1);
  });
}

double StreamedCopySeconds(void* to, const void* from, size_t bytes) {
  constexpr size_t kPiece = size_t{1} << 20;
  std::atomic<size_t> next{0};
  std::atomic<int> ready{0};
  const auto work = [&] {
    ready.fetch_add(1);
    while (ready.load() < 2) {
    }
    const double start = Now();
    while (true) {
      const size_t begin = next.fetch_add(kPiece);
      if (begin >= bytes) return Now() - start;
      CopyBytesStreamed(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                        std::min(kPiece, bytes - begin));
    }
  };
  double other = 0;
  std::thread second([&] { other = work(); });
  const double first = work();
  second.join();
  return std::max(first, other);
}

}  // namespace ferry::bench

// SPDX-License-Identifier: Apache-2.0
// As few system calls as there can be.
#include "cli/bench_floors.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "cli/bench_times.h"
#include "cli/pattern.h"

namespace ferry::cli {
namespace {

constexpr char kPortKey[] = "bench/raw-tcp-port";
constexpr absl::Duration kFloorPatience = absl::Seconds(20);
constexpr int kSpinRounds = 20'000;
// Spins before the other core may be the very one that this thread is on.
constexpr int kSpinsBeforeYield = 20'000;
// A thread at either end costs tens of microseconds.
constexpr size_t kManyStreamsBytes = size_t{1} << 20;

absl::Status Failed(absl::string_view call) {
  return absl::UnavailableError(absl::StrCat("floors: ", call, ": ", std::strerror(errno)));
}

// Two words that do not share a cache line, nor the line that is fetched with it.
struct SpinPage {
  alignas(128) std::atomic<int> there;
  alignas(128) std::atomic<int> back;
};
static_assert(std::atomic<int>::is_always_lock_free);

bool SpinUntil(const std::atomic<int>& word, int value, absl::Time deadline) {
  for (int spins = 1; word.load(std::memory_order_acquire) != value; ++spins) {
    if (spins % kSpinsBeforeYield != 0) continue;
    sched_yield();
    if (SteadyClock().Now() > deadline) return false;
  }
  return true;
}

bool SendAll(int fd, const char* from, size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = send(fd, from, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    from += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool RecvAll(int fd, char* to, size_t bytes, bool is_polling) {
  while (bytes > 0) {
    const ssize_t got = recv(fd, to, bytes, is_polling ? MSG_DONTWAIT : 0);
    if (got < 0 && (errno == EINTR || (is_polling && errno == EAGAIN))) continue;
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

absl::StatusOr<UniqueFd> ListenOnLoopback(int* port) {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (listener.get() < 0 || bind(listener.get(), raw, length) != 0 ||
      listen(listener.get(), 64) != 0 || getsockname(listener.get(), raw, &length) != 0) {
    return Failed("listen");
  }
  *port = ntohs(address.sin_port);
  return listener;
}

absl::StatusOr<UniqueFd> ConnectToLoopback(int port) {
  UniqueFd stream(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (stream.get() < 0 ||
      connect(stream.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return Failed("connect");
  }
  return stream;
}

// The median of what `pass` over so many bytes takes.
template <typename Pass>
absl::Duration MeasureBatches(size_t bytes, int rounds, const Pass& pass) {
  std::vector<absl::Duration> samples;
  // The clock takes tens of nanoseconds: small ones are timed by the batch.
  const int batch = static_cast<int>(std::clamp<size_t>(4096 / (bytes + 1), 1, 256));
  for (int i = 0; i <= rounds; ++i) {
    const absl::Time start = SteadyClock().Now();
    for (int j = 0; j < batch; ++j) pass();
    // The first one is to warm up.
    if (i > 0) samples.push_back((SteadyClock().Now() - start) / batch);
  }
  return SummarizeTimes(std::move(samples)).p50;
}

}  // namespace

absl::Duration MeasureMemcpy(void* to, const void* from, size_t bytes, int rounds) {
  return MeasureBatches(bytes, rounds, [to, from, bytes] {
    std::memcpy(to, from, bytes);
    // The copy is seen by whoever looks next.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    asm volatile("" : : "r"(to) : "memory");
  });
}

absl::Duration MeasureRead(const void* from, size_t bytes, int rounds) {
  return MeasureBatches(bytes, rounds, [from, bytes] {
    asm volatile("" : : "r"(ReadEveryByte(from, bytes)) : "memory");
  });
}

absl::StatusOr<absl::Duration> MeasureSpin(const std::string& file, bool is_first) {
  const UniqueFd fd(open(file.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) return Failed(absl::StrCat("open ", file));
  void* const map =
      mmap(nullptr, sizeof(SpinPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED) return Failed("mmap");
  auto* const page = static_cast<SpinPage*>(map);
  const absl::Time deadline = SteadyClock().Now() + kFloorPatience;
  std::vector<absl::Duration> samples;
  bool is_answered = true;
  absl::Time start = SteadyClock().Now();
  for (int i = 1; i <= kSpinRounds && is_answered; ++i) {
    if (is_first) {
      page->there.store(i, std::memory_order_release);
      is_answered = SpinUntil(page->back, i, deadline);
      // The clock takes tens of nanoseconds.
      if (i % 100 != 0) continue;
      const absl::Time now = SteadyClock().Now();
      samples.push_back((now - start) / 200);
      start = now;
    } else {
      is_answered = SpinUntil(page->there, i, deadline);
      page->back.store(i, std::memory_order_release);
    }
  }
  munmap(map, sizeof(SpinPage));
  if (!is_answered) return absl::DeadlineExceededError("floors: the other process does not answer");
  return SummarizeTimes(std::move(samples)).p50;
}

absl::StatusOr<std::unique_ptr<RawTcp>> RawTcp::Create(coord::Agent& agent, bool is_first,
                                                       int streams) {
  std::unique_ptr<RawTcp> raw(new RawTcp(is_first));
  UniqueFd listener;
  int port = 0;
  if (is_first) {
    FERRY_ASSIGN_OR_RETURN(listener, ListenOnLoopback(&port));
    FERRY_RETURN_IF_ERROR(agent.Set(kPortKey, absl::StrCat(port)));
  } else {
    FERRY_ASSIGN_OR_RETURN(const std::string text, agent.Get(kPortKey, kFloorPatience));
    if (!absl::SimpleAtoi(text, &port)) return absl::InternalError("floors: no port");
  }
  // One after the other, so that both sides have them in the same order.
  for (int i = 0; i < streams; ++i) {
    UniqueFd stream;
    if (is_first) {
      stream = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (stream.get() < 0) return Failed("accept");
    } else {
      FERRY_ASSIGN_OR_RETURN(stream, ConnectToLoopback(port));
    }
    const int one = 1;
    setsockopt(stream.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    raw->streams_.push_back(std::move(stream));
  }
  return raw;
}

absl::StatusOr<absl::Duration> RawTcp::Measure(void* buffer, size_t bytes, int rounds,
                                               bool is_polling) {
  const size_t streams = bytes >= kManyStreamsBytes ? streams_.size() : 1;
  std::atomic<bool> is_good = true;
  const auto turn = [&](size_t stream) {
    const size_t begin = bytes * stream / streams;
    char* const data = static_cast<char*>(buffer) + begin;
    const size_t share = bytes * (stream + 1) / streams - begin;
    const int fd = streams_[stream].get();
    const bool done = is_first_ ? SendAll(fd, data, share) && RecvAll(fd, data, share, is_polling)
                                : RecvAll(fd, data, share, is_polling) && SendAll(fd, data, share);
    if (!done) is_good = false;
  };
  std::vector<absl::Duration> samples;
  for (int i = 0; i <= rounds && is_good; ++i) {
    const absl::Time start = SteadyClock().Now();
    {
      std::vector<std::unique_ptr<Thread>> others;
      for (size_t stream = 1; stream < streams; ++stream) {
        others.push_back(
            std::make_unique<Thread>("ferry-floor", [&turn, stream] { turn(stream); }));
      }
      turn(0);
    }
    if (i > 0) samples.push_back((SteadyClock().Now() - start) / 2);
  }
  if (!is_good) return absl::UnavailableError("floors: the other process has gone");
  return SummarizeTimes(std::move(samples)).p50;
}

}  // namespace ferry::cli

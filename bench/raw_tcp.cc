// SPDX-License-Identifier: Apache-2.0
// Sockets with as few system calls as possible.
#include "bench/raw_tcp.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/clock.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "bench/times.h"
#include "net/sockets.h"

namespace ferry::cli {
namespace {

constexpr absl::Duration kFloorTimeout = absl::Seconds(20);
// Per address.
constexpr absl::Duration kConnectTimeout = absl::Seconds(3);
// How often a waiting process checks whether the bench was stopped.
constexpr absl::Duration kLook = absl::Milliseconds(250);
// The same when polling: number of system calls.
constexpr int kCallsBeforeLook = 10'000;
// Below this size one stream is used: a thread at either end costs tens of microseconds.
constexpr size_t kManyStreamsBytes = size_t{1} << 20;
constexpr char kReady[] = "ready";

// The first bytes on each stream.
struct Greeting {
  uint64_t number = 0;
  uint64_t stream = 0;
};

// Makes calls on this socket block, but at most for kLook.
void MakeBlocking(int socket) {
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) & ~O_NONBLOCK);
  const timeval look = absl::ToTimeval(kLook);
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &look, sizeof(look));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &look, sizeof(look));
  TuneTcp(socket);
}

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

absl::StatusOr<UniqueFd> ConnectTo(const std::string& address) {
  FERRY_ASSIGN_OR_RETURN(UniqueFd stream, BeginConnectTcp(address));
  pollfd writable = {stream.get(), POLLOUT, 0};
  if (poll(&writable, 1, static_cast<int>(absl::ToInt64Milliseconds(kConnectTimeout))) != 1) {
    return absl::UnavailableError(absl::StrCat(address, " does not answer"));
  }
  FERRY_RETURN_IF_ERROR(ConnectError(stream.get(), address));
  MakeBlocking(stream.get());
  return stream;
}

}  // namespace

RawTcp::RawTcp(const BenchParticipants& party)
    : party_(party),
      key_prefix_(
          absl::StrCat(party.store_prefix.empty() ? "bench" : party.store_prefix, "/raw-tcp")) {}

bool RawTcp::GoesOn(absl::Time deadline) const {
  const bool is_stopped = party_.stop != nullptr && party_.stop->is_cancelled();
  return !is_stopped && SteadyClock().Now() < deadline;
}

bool RawTcp::Send(int fd, const void* from, size_t bytes) const {
  const char* next = static_cast<const char*>(from);
  absl::Time deadline = SteadyClock().Now() + kFloorTimeout;
  while (bytes > 0) {
    const ssize_t sent = send(fd, next, bytes, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EINTR || (errno == EAGAIN && GoesOn(deadline)))) continue;
    if (sent <= 0) return false;
    next += sent;
    bytes -= static_cast<size_t>(sent);
    if (bytes > 0) deadline = SteadyClock().Now() + kFloorTimeout;
  }
  return true;
}

bool RawTcp::Receive(int fd, void* to, size_t bytes, bool is_polling) const {
  char* next = static_cast<char*>(to);
  absl::Time deadline = SteadyClock().Now() + kFloorTimeout;
  for (int calls = 1; bytes > 0; ++calls) {
    const ssize_t got = recv(fd, next, bytes, is_polling ? MSG_DONTWAIT : 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      const bool looks = !is_polling || calls % kCallsBeforeLook == 0;
      if (!looks || GoesOn(deadline)) continue;
    }
    if (got <= 0) return false;
    next += got;
    bytes -= static_cast<size_t>(got);
    if (bytes > 0) deadline = SteadyClock().Now() + kFloorTimeout;
  }
  return true;
}

absl::StatusOr<std::string> RawTcp::Await(const std::string& key) const {
  const absl::Time deadline = SteadyClock().Now() + kFloorTimeout;
  while (true) {
    absl::StatusOr<std::string> value = party_.node.agent().Get(key, kLook);
    if (value.ok() || !absl::IsDeadlineExceeded(value.status()) || !GoesOn(deadline)) return value;
  }
}

// The connecting side's result decides for both.
absl::Status RawTcp::Listen(size_t streams) {
  coord::Agent& agent = party_.node.agent();
  const std::vector<std::string>& channels = party_.node.transfer_engine().self().channels.tcp;
  absl::StatusOr<ListeningSocket> listener = absl::UnavailableError("");
  // The advertised address may be that of a proxy or NAT, and not local.
  if (channels.size() == 1) listener = ListenTcp(absl::StrCat(HostOf(channels[0]), ":0"));
  if (!listener.ok()) listener = ListenTcp(":0");
  std::vector<std::string> words = {absl::StrCat(RandomId())};
  for (const std::string& channel : channels) {
    if (listener.ok()) words.push_back(absl::StrCat(HostOf(channel), ":", listener->port));
  }
  FERRY_RETURN_IF_ERROR(agent.Set(absl::StrCat(key_prefix_, "/at"), absl::StrJoin(words, " ")));
  FERRY_RETURN_IF_ERROR(listener.status());
  streams_.resize(streams);
  // The connecting side gives up earlier.
  const absl::Time deadline = SteadyClock().Now() + 2 * kFloorTimeout;
  while (true) {
    const absl::StatusOr<std::string> told = agent.TryGet(absl::StrCat(key_prefix_, "/is"));
    if (told.ok() && *told == kReady) return absl::OkStatus();
    if (told.ok()) return absl::UnavailableError(*told);
    if (!absl::IsNotFound(told.status())) return told.status();
    if (!GoesOn(deadline)) return absl::UnavailableError("the other process has not connected");
    pollfd readable = {listener->fd.get(), POLLIN, 0};
    if (poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(kLook)) / 10) != 1) continue;
    UniqueFd stream(accept4(listener->fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!stream.valid()) continue;
    MakeBlocking(stream.get());
    // An unauthenticated connection sends something else, or nothing.
    Greeting greeting;
    if (recv(stream.get(), &greeting, sizeof(greeting), MSG_WAITALL) != sizeof(greeting) ||
        absl::StrCat(greeting.number) != words[0] || greeting.stream >= streams) {
      continue;
    }
    ++greeting.number;
    if (Send(stream.get(), &greeting, sizeof(greeting))) {
      streams_[greeting.stream] = std::move(stream);
    }
  }
}

absl::Status RawTcp::Connect(size_t streams) {
  FERRY_ASSIGN_OR_RETURN(const std::string at, Await(absl::StrCat(key_prefix_, "/at")));
  const std::vector<std::string> words = absl::StrSplit(at, ' ');
  uint64_t number = 0;
  if (!absl::SimpleAtoi(words[0], &number)) return absl::InternalError("floors: no number");
  std::vector<std::string> troubles;
  if (words.size() == 1) troubles.emplace_back("the other process listens nowhere");
  const absl::Time deadline = SteadyClock().Now() + kFloorTimeout;
  for (size_t i = 1; i < words.size() && GoesOn(deadline); ++i) {
    streams_.clear();
    while (streams_.size() < streams) {
      absl::StatusOr<UniqueFd> stream = ConnectTo(words[i]);
      if (!stream.ok()) {
        troubles.emplace_back(stream.status().message());
        break;
      }
      const Greeting greeting = {number, streams_.size()};
      Greeting answer;
      if (!Send(stream->get(), &greeting, sizeof(greeting)) ||
          !Receive(stream->get(), &answer, sizeof(answer), false) || answer.number != number + 1) {
        troubles.push_back(absl::StrCat(words[i], " is another process"));
        break;
      }
      streams_.push_back(*std::move(stream));
    }
    if (streams_.size() == streams) return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrJoin(troubles, "; "));
}

absl::StatusOr<std::unique_ptr<RawTcp>> RawTcp::Create(const BenchParticipants& party,
                                                       int streams) {
  std::unique_ptr<RawTcp> raw(new RawTcp(party));
  const auto count = static_cast<size_t>(streams);
  if (party.is_first()) {
    FERRY_RETURN_IF_ERROR(raw->Listen(count));
    return raw;
  }
  const absl::Status connected = raw->Connect(count);
  FERRY_RETURN_IF_ERROR(
      party.node.agent().Set(absl::StrCat(raw->key_prefix_, "/is"),
                             connected.ok() ? kReady : absl::string_view(connected.message())));
  FERRY_RETURN_IF_ERROR(connected);
  return raw;
}

absl::Status RawTcp::CleanUp() { return party_.node.agent().Delete(key_prefix_, /*subtree=*/true); }

size_t RawTcp::StreamsOf(size_t bytes) const {
  return bytes >= kManyStreamsBytes ? streams_.size() : 1;
}

absl::StatusOr<absl::Duration> RawTcp::Measure(
    size_t streams, int rounds, const std::function<bool(size_t stream)>& turn) const {
  std::atomic<bool> is_good = true;
  std::vector<absl::Duration> samples;
  // The first round warms up.
  for (int i = 0; i <= rounds && is_good; ++i) {
    const absl::Time start = SteadyClock().Now();
    {
      std::vector<std::unique_ptr<Thread>> others;
      for (size_t stream = 1; stream < streams; ++stream) {
        others.push_back(std::make_unique<Thread>("ferry-floor", [&turn, &is_good, stream] {
          if (!turn(stream)) is_good = false;
        }));
      }
      if (!turn(0)) is_good = false;
    }
    if (i > 0) samples.push_back(SteadyClock().Now() - start);
  }
  if (!is_good) return absl::UnavailableError("floors: the other process has gone");
  return SummarizeTimes(std::move(samples)).p50;
}

RawTcp::Share RawTcp::ShareOf(size_t stream, size_t streams, void* buffer, size_t bytes) const {
  const size_t begin = bytes * stream / streams;
  return {streams_[stream].get(), static_cast<char*>(buffer) + begin,
          bytes * (stream + 1) / streams - begin};
}

absl::StatusOr<absl::Duration> RawTcp::MeasurePingPong(void* buffer, size_t bytes, int rounds,
                                                       bool is_polling) {
  const size_t streams = StreamsOf(bytes);
  FERRY_ASSIGN_OR_RETURN(
      const absl::Duration both_ways,
      Measure(streams, rounds, [this, buffer, bytes, streams, is_polling](size_t stream) {
        const auto [fd, data, share] = ShareOf(stream, streams, buffer, bytes);
        return party_.is_first() ? Send(fd, data, share) && Receive(fd, data, share, is_polling)
                                 : Receive(fd, data, share, is_polling) && Send(fd, data, share);
      }));
  return both_ways / 2;
}

absl::StatusOr<absl::Duration> RawTcp::MeasureStream(void* buffer, size_t bytes, int count,
                                                     int rounds) {
  const size_t streams = StreamsOf(bytes * static_cast<size_t>(count));
  FERRY_ASSIGN_OR_RETURN(
      const absl::Duration all,
      Measure(streams, rounds, [this, buffer, bytes, streams, count](size_t stream) {
        const auto [fd, data, share] = ShareOf(stream, streams, buffer, bytes);
        for (int i = 0; i < count; ++i) {
          const bool done = party_.is_first() ? Send(fd, data, share)
                                              : Receive(fd, data, share, /*is_polling=*/false);
          if (!done) return false;
        }
        char answer = 0;
        return party_.is_first() ? Receive(fd, &answer, 1, /*is_polling=*/false)
                                 : Send(fd, &answer, 1);
      }));
  return all / count;
}

}  // namespace ferry::cli

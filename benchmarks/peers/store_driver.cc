// SPDX-License-Identifier: Apache-2.0
// A load generator for TCPStore servers: many clients in one thread, which send the same bytes, in
// the same number of writes, as clients of PyTorch 2.15 (or 1.13):
//   store_driver [--release=1.13] PORT|floor kv CLIENTS OPERATIONS | gloo RANKS | multi_get RANKS |
//                                            connect CLIENTS
// The real client blocks in each call, so 512 of them would be 512 threads that compete with the
// server for cores; here one thread drives all of them by epoll. The server listens at
// 127.0.0.1:PORT. "floor" measures a lower bound instead, against a server of this program that
// parses and stores nothing: it counts request bytes, and sends replies of the right size.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <functional>
#include <utility>

#include "stores.h"

namespace {

constexpr int kTimeoutMs = 45000;
// PyTorch's client flushes its write buffer when it has at least this many bytes.
constexpr size_t kFlushBytes = 1440;
// A SET has no reply, so a CHECK after this many of them waits for their execution.
constexpr size_t kSetsPerCheck = 100;

// Operation numbers of PyTorch 2.2 to 2.15. Those of 1.13, which has no kMultiGet and kPing, are
// one less.
enum Op : uint8_t {
  kValidate = 0,
  kSet = 1,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kMultiGet = 10,
  kPing = 13,
};

template <typename Number>
std::string Raw(Number number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof number);
}

std::string LengthPrefixed(const std::string& text) { return Raw<uint64_t>(text.size()) + text; }

// Decimal, of fixed width, so that all requests of an operation have the same size.
std::string Padded(size_t number) {
  std::string digits = std::to_string(number);
  return std::string(8 - digits.size(), '0') + digits;
}

struct Dialect {
  bool has_handshake = true;

  std::string Begin(Op op) const {
    return std::string(1, static_cast<char>(has_handshake ? op : op - 1));
  }
  // SET, GET and ADD: a key, followed by `rest`.
  std::string OneKey(Op op, const std::string& key, const std::string& rest = "") const {
    return Begin(op) + LengthPrefixed(key) + rest;
  }
  std::string Keys(Op op, const std::vector<std::string>& keys) const {
    std::string request = Begin(op) + Raw<uint64_t>(keys.size());
    for (const std::string& key : keys) request += LengthPrefixed(key);
    return request;
  }
};

// The sizes of an operation's request and reply, in bytes.
struct Sizes {
  size_t request = 0;
  size_t answer = 0;
};

void Write(int fd, const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
    if (sent > 0) {
      data += sent;
      bytes -= static_cast<size_t>(sent);
    } else if (errno == EAGAIN) {
      pollfd wait{fd, POLLOUT, 0};
      if (poll(&wait, 1, kTimeoutMs) != 1) peers::Fail("the server has read nothing for 45 s");
    } else {
      peers::Fail(std::string("send: ") + std::strerror(errno));
    }
  }
}

// Writes like PyTorch's client, which flushes after each string that fills its buffer.
void WriteKeys(int fd, const std::string& request) {
  size_t begun = 0, at = 9;
  while (at < request.size()) {
    uint64_t length = 0;
    std::memcpy(&length, &request[at], sizeof length);
    at += sizeof length + length;
    if (at - begun >= kFlushBytes || at >= request.size()) {
      Write(fd, &request[begun], at - begun);
      begun = at;
    }
  }
}

struct Client {
  int fd = -1;
  size_t index = 0;
  // The number of calls begun in this run.
  size_t calls = 0;
  std::string answer;
  size_t arrived = 0;

  void Expect(size_t bytes) {
    answer.resize(bytes);
    arrived = 0;
  }
  void Send(const std::string& request) const { Write(fd, request.data(), request.size()); }
};

// The calls of a client. `next` sends the next request and sets the size of its reply, or returns
// false if there is none. `wrong` returns the number of wrong bytes in a reply.
struct Script {
  std::function<bool(Client&)> next;
  std::function<uint64_t(const Client&)> wrong;
};

class Clients final {
 public:
  Clients(int port, Dialect dialect, bool is_floor)
      : port_(port), dialect_(dialect), is_floor_(is_floor), poll_(epoll_create1(0)) {}

  // Connects, with a handshake (VALIDATE, PING) from 2.2 on. Returns the seconds until the last
  // client is connected, or has its PING reply.
  double Connect(size_t count) {
    clients_.resize(count);
    const double began = peers::Now();
    for (size_t i = 0; i < count; ++i) {
      Client& client = clients_[i];
      client.index = i;
      client.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
      if (client.fd < 0) peers::Fail("no socket");
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(port_));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      if (connect(client.fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 &&
          errno != EINPROGRESS) {
        peers::Fail(std::string("connect: ") + std::strerror(errno));
      }
      const int on = 1;
      setsockopt(client.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      Watch(client, EPOLLOUT, EPOLL_CTL_ADD);
    }
    std::vector<bool> is_connected(count);
    size_t left = count;
    Events([&](Client& client) {
      if (!is_connected[client.index]) {
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(client.fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error != 0) peers::Fail(std::string("connect: ") + std::strerror(error));
        is_connected[client.index] = true;
        Watch(client, EPOLLIN, EPOLL_CTL_MOD);
        if (!dialect_.has_handshake) return --left > 0;
        client.Send(dialect_.Begin(kValidate) + Raw<uint32_t>(0x3C85F7CE));
        client.Send(dialect_.Begin(kPing) + Raw(static_cast<uint32_t>(client.index)));
        client.Expect(sizeof(uint32_t));
        return true;
      }
      if (!Read(client)) return true;
      if (!is_floor_ && client.answer != Raw(static_cast<uint32_t>(client.index))) wrong_ += 4;
      return --left > 0;
    });
    return peers::Now() - began;
  }

  // Runs the script on all clients concurrently. Returns the seconds until the last one has
  // finished.
  double Run(const Script& script) {
    const double began = peers::Now();
    size_t left = 0;
    for (Client& client : clients_) {
      client.calls = 0;
      if (script.next(client)) ++left;
    }
    if (left == 0) return peers::Now() - began;
    Events([&](Client& client) {
      if (!Read(client)) return true;
      Check(script, client);
      return script.next(client) || --left > 0;
    });
    return peers::Now() - began;
  }

  // Runs the script on the first client alone, which blocks in each call, as the real one does.
  // Returns the median time of a call, of `steps` requests, in seconds.
  double Median(const Script& script, size_t steps) {
    Client& client = clients_[0];
    client.calls = 0;
    fcntl(client.fd, F_SETFL, 0);
    std::vector<double> times;
    double began = peers::Now();
    for (size_t step = 1; script.next(client); ++step) {
      while (client.arrived < client.answer.size()) Receive(client, MSG_WAITALL);
      Check(script, client);
      if (step % steps == 0) {
        const double now = peers::Now();
        times.push_back(now - began);
        began = now;
      }
    }
    fcntl(client.fd, F_SETFL, O_NONBLOCK);
    return peers::Median(times);
  }

  size_t count() const { return clients_.size(); }
  uint64_t wrong() const { return wrong_; }

 private:
  void Watch(Client& client, uint32_t events, int operation) const {
    epoll_event event{};
    event.events = events;
    event.data.u64 = client.index;
    if (epoll_ctl(poll_, operation, client.fd, &event) != 0) peers::Fail("epoll_ctl");
  }

  // Calls `handle` for each client that is ready, until it returns false.
  void Events(const std::function<bool(Client&)>& handle) {
    std::array<epoll_event, 256> events;
    for (;;) {
      const int count = epoll_wait(poll_, events.data(), events.size(), kTimeoutMs);
      if (count <= 0) peers::Fail("no reply for 45 s");
      for (int i = 0; i < count; ++i) {
        if (!handle(clients_[events[i].data.u64])) return;
      }
    }
  }

  void Receive(Client& client, int flags) const {
    const ssize_t bytes = recv(client.fd, &client.answer[client.arrived],
                               client.answer.size() - client.arrived, flags);
    if (bytes == 0) peers::Fail("the server has closed a connection");
    if (bytes < 0 && errno != EAGAIN) peers::Fail(std::string("recv: ") + std::strerror(errno));
    if (bytes > 0) client.arrived += static_cast<size_t>(bytes);
  }

  // Returns true if the reply is complete.
  bool Read(Client& client) const {
    Receive(client, 0);
    return client.arrived == client.answer.size();
  }

  void Check(const Script& script, const Client& client) {
    if (!is_floor_) wrong_ += script.wrong(client);
  }

  const int port_;
  const Dialect dialect_;
  const bool is_floor_;
  const int poll_;
  std::vector<Client> clients_;
  uint64_t wrong_ = 0;
};

uint64_t WrongUnless(const Client& client, const std::string& expected) {
  return client.answer == expected ? 0 : expected.size();
}

std::string KeyOf(size_t index) { return "/peers/key" + Padded(index); }

void Kv(Clients& clients, Dialect dialect, size_t operations) {
  const size_t count = clients.count();
  const size_t each = operations / count;
  const std::string stop(1, '\0');
  std::string written;
  const auto key_of = [&](const Client& client) {
    return KeyOf(client.index * each + client.calls - 1);
  };
  const auto value_of = [&](const Client& client) {
    return peers::ValueOf(1, client.index * each + client.calls - 1);
  };
  // A CHECK of the last key completes a batch of `sets`.
  const auto set = [&](size_t sets) {
    return Script{
        [&, sets](Client& client) {
          if (client.calls == each) return false;
          for (size_t i = 0; i < sets && client.calls < each; ++i) {
            ++client.calls;
            client.Send(dialect.OneKey(kSet, key_of(client), LengthPrefixed(value_of(client))));
          }
          client.Send(dialect.Keys(kCheck, {key_of(client)}));
          client.Expect(1);
          return true;
        },
        [&](const Client& client) { return WrongUnless(client, stop); }};
  };
  // PyTorch's get() is a WAIT and a GET: two round trips.
  std::vector<bool> has_waited(count);
  const Script get{[&](Client& client) {
                     if (has_waited[client.index]) {
                       has_waited[client.index] = false;
                       client.Send(dialect.OneKey(kGet, key_of(client)));
                       client.Expect(16);
                       return true;
                     }
                     if (client.calls == each) return false;
                     ++client.calls;
                     has_waited[client.index] = true;
                     client.Send(dialect.Keys(kWait, {key_of(client)}));
                     client.Expect(1);
                     return true;
                   },
                   [&](const Client& client) {
                     return WrongUnless(client, client.answer.size() == 1
                                                    ? stop
                                                    : LengthPrefixed(value_of(client)));
                   }};
  std::vector<int64_t> last_sum(count);
  const auto add = [&](const std::string& key) {
    std::fill(last_sum.begin(), last_sum.end(), 0);
    return Script{[&, key](Client& client) {
                    if (client.calls++ == each) return false;
                    client.Send(dialect.OneKey(kAdd, key, Raw<int64_t>(1)));
                    client.Expect(sizeof(int64_t));
                    return true;
                  },
                  [&](const Client& client) -> uint64_t {
                    int64_t sum = 0;
                    std::memcpy(&sum, client.answer.data(), sizeof sum);
                    const bool is_right =
                        sum > last_sum[client.index] && sum <= static_cast<int64_t>(each * count);
                    last_sum[client.index] = sum;
                    return is_right ? 0 : sizeof sum;
                  }};
  };
  const Script check{[&](Client& client) {
                       if (client.calls++ == each) return false;
                       client.Send(dialect.Keys(kCheck, {key_of(client)}));
                       client.Expect(1);
                       return true;
                     },
                     [&](const Client& client) { return WrongUnless(client, stop); }};
  const auto print = [&](const std::string& what, const std::function<Script()>& script,
                         size_t steps) {
    // The first run is a warm-up; that of "set" also creates the keys.
    clients.Run(script());
    if (count == 1) {
      peers::Print(what + "_p50_s", clients.Median(script(), steps), operations, clients.wrong());
    } else {
      peers::Print(what + "_per_s", static_cast<double>(each * count) / clients.Run(script()),
                   operations, clients.wrong());
    }
  };
  size_t turn = 0;
  print(
      "set", [&] { return set(count == 1 ? 1 : kSetsPerCheck); }, 1);
  print(
      "get", [&] { return get; }, 2);
  print(
      "add", [&] { return add("/peers/sum" + Padded(turn++)); }, 1);
  print(
      "check", [&] { return check; }, 1);
}

std::string RankKey(size_t rank) { return "/default_pg/0//cpu//0/" + Padded(rank); }

// ProcessGroupGloo's connection setup: each rank sets its addresses, then waits for and gets those
// of each rank. Since get() itself begins with a WAIT, these are three round trips per pair.
void Gloo(Clients& clients, Dialect dialect) {
  const size_t count = clients.count();
  const auto value_of = [](size_t rank) {
    std::string value(186, 'a');
    const std::string number = Padded(rank);
    value.replace(0, number.size(), number);
    return value;
  };
  std::vector<std::string> waits, gets, answers;
  for (size_t rank = 0; rank < count; ++rank) {
    waits.push_back(dialect.Keys(kWait, {RankKey(rank)}));
    gets.push_back(dialect.OneKey(kGet, RankKey(rank)));
    answers.push_back(LengthPrefixed(value_of(rank)));
  }
  const std::string stop(1, '\0');
  const double time =
      clients.Run({[&](Client& client) {
                     if (client.calls == 3 * count) return false;
                     if (client.calls == 0) {
                       client.Send(dialect.OneKey(kSet, RankKey(client.index),
                                                  LengthPrefixed(value_of(client.index))));
                     }
                     const bool is_get = client.calls % 3 == 2;
                     client.Send((is_get ? gets : waits)[client.calls / 3]);
                     client.Expect(is_get ? answers[0].size() : 1);
                     ++client.calls;
                     return true;
                   },
                   [&](const Client& client) {
                     const size_t call = client.calls - 1;
                     return WrongUnless(client, call % 3 == 2 ? answers[call / 3] : stop);
                   }});
  peers::Print("seconds", time, 1, clients.wrong());
}

// Each rank sets its address, then gets those of all ranks with one WAIT and one MULTI_GET.
void MultiGet(Clients& clients, Dialect dialect) {
  const size_t count = clients.count();
  const auto endpoint_of = [](size_t rank) { return "127.0.0.1:" + std::to_string(10000 + rank); };
  std::vector<std::string> keys;
  std::string answer;
  for (size_t rank = 0; rank < count; ++rank) {
    keys.push_back(RankKey(rank));
    answer += LengthPrefixed(endpoint_of(rank));
  }
  const std::string wait = dialect.Keys(kWait, keys), get = dialect.Keys(kMultiGet, keys);
  const std::string stop(1, '\0');
  const double time =
      clients.Run({[&](Client& client) {
                     if (client.calls == 2) return false;
                     if (client.calls == 0) {
                       client.Send(dialect.OneKey(kSet, keys[client.index],
                                                  LengthPrefixed(endpoint_of(client.index))));
                     }
                     WriteKeys(client.fd, client.calls == 0 ? wait : get);
                     client.Expect(client.calls == 0 ? 1 : answer.size());
                     ++client.calls;
                     return true;
                   },
                   [&](const Client& client) {
                     return WrongUnless(client, client.calls == 1 ? stop : answer);
                   }});
  peers::Print("seconds", time, 1, clients.wrong());
}

// The sizes of the requests and replies of a run, indexed by operation number.
std::array<Sizes, 256> SizesOf(const std::string& what, Dialect dialect, size_t ranks) {
  std::array<Sizes, 256> sizes{};
  const auto is = [&](const std::string& request, size_t answer) {
    sizes[static_cast<uint8_t>(request[0])] = {request.size(), answer};
  };
  if (dialect.has_handshake) {
    is(dialect.Begin(kValidate) + "1234", 0);
    is(dialect.Begin(kPing) + "1234", 4);
  }
  const std::string key = what == "kv" ? KeyOf(0) : RankKey(0);
  const size_t value = what == "kv" ? 8 : what == "gloo" ? 186 : 15;
  is(dialect.OneKey(kSet, key, LengthPrefixed(std::string(value, 'a'))), 0);
  is(dialect.OneKey(kGet, key), 8 + value);
  is(dialect.OneKey(kAdd, "/peers/sum" + Padded(0), Raw<int64_t>(1)), 8);
  is(dialect.Keys(kCheck, {key}), 1);
  is(dialect.Keys(kWait, std::vector<std::string>(what == "multi_get" ? ranks : 1, key)), 1);
  if (what == "multi_get") {
    is(dialect.Keys(kMultiGet, std::vector<std::string>(ranks, key)), ranks * (8 + value));
  }
  return sizes;
}

// A server that does nothing but count bytes.
[[noreturn]] void ServeFloor(int listener, const std::array<Sizes, 256>& sizes) {
  const int poll = epoll_create1(0);
  const auto watch = [&](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
  };
  watch(listener);
  std::vector<std::string> pending(65536);
  std::array<epoll_event, 256> events;
  std::vector<char> piece(65536);
  std::string answers;
  for (;;) {
    const int count = epoll_wait(poll, events.data(), events.size(), -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listener) {
        for (int client = 0; (client = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK)) >= 0;) {
          const int on = 1;
          setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
          watch(client);
        }
        continue;
      }
      const ssize_t got = recv(fd, piece.data(), piece.size(), 0);
      if (got <= 0) {
        close(fd);
        continue;
      }
      std::string& input = pending[fd];
      input.append(piece.data(), static_cast<size_t>(got));
      size_t at = 0;
      answers.clear();
      while (at < input.size()) {
        const Sizes& size = sizes[static_cast<uint8_t>(input[at])];
        if (size.request == 0) peers::Fail("the floor server got an unknown operation");
        if (input.size() - at < size.request) break;
        at += size.request;
        answers.append(size.answer, '\0');
      }
      input.erase(0, at);
      if (!answers.empty()) Write(fd, answers.data(), answers.size());
    }
  }
}

// Starts the floor server in a child process, and returns its port.
int StartFloor(const std::array<Sizes, 256>& sizes) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener, 8192) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    peers::Fail("the floor server cannot listen");
  }
  const pid_t child = fork();
  if (child < 0) peers::Fail("cannot fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ServeFloor(listener, sizes);
  }
  close(listener);
  return ntohs(address.sin_port);
}

}  // namespace

int main(int argc, char** argv) {
  Dialect dialect;
  if (argc > 1 && std::string(argv[1]) == "--release=1.13") {
    dialect.has_handshake = false;
    --argc;
    ++argv;
  }
  if (argc < 4) {
    peers::Fail(
        "store_driver [--release=1.13] PORT|floor kv CLIENTS OPERATIONS | gloo RANKS | "
        "multi_get RANKS | connect CLIENTS");
  }
  const bool is_floor = std::string(argv[1]) == "floor";
  const std::string what = argv[2];
  const size_t count = std::strtoull(argv[3], nullptr, 10);
  const size_t operations = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 0;
  if (count == 0 || (what == "kv" && operations < count))
    peers::Fail("too few clients or operations");
  if (what == "multi_get" && !dialect.has_handshake) peers::Fail("1.13 has no multi_get");
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const int port = is_floor ? StartFloor(SizesOf(what, dialect, count))
                            : static_cast<int>(std::strtol(argv[1], nullptr, 10));
  Clients clients(port, dialect, is_floor);
  const double connected = clients.Connect(count);
  if (what == "kv") {
    Kv(clients, dialect, operations);
  } else if (what == "gloo") {
    Gloo(clients, dialect);
  } else if (what == "multi_get") {
    MultiGet(clients, dialect);
  } else if (what == "connect") {
    peers::Print("seconds", connected, count, clients.wrong());
  } else {
    peers::Fail("unknown workload " + what);
  }
  std::_Exit(0);
}

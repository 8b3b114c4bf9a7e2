// SPDX-License-Identifier: Apache-2.0
// PyTorch's TCPStore, in C++:
//   tcpstore [--port=PORT] kv CLIENTS OPERATIONS | barrier RANKS ROUNDS | bootstrap RANKS |
//            gloo RANKS | multi_get RANKS | connect CLIENTS
// The server is PyTorch's own, in a process of its own, or that at PORT, which may be a Ferry
// coordinator. Each client has a connection and a thread, as its calls wait.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <tuple>
#include <utility>

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "stores.h"

namespace {

using Client = std::unique_ptr<c10d::TCPStore>;

Client Connect(int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.waitWorkers = false;
  return std::make_unique<c10d::TCPStore>("127.0.0.1", options);
}

std::vector<uint8_t> BytesOf(const std::string& text) { return {text.begin(), text.end()}; }

uint64_t Wrong(const std::vector<uint8_t>& found, const std::string& expected) {
  return found == BytesOf(expected) ? 0 : expected.size();
}

void Kv(int port, size_t count, size_t operations) {
  std::vector<Client> clients;
  for (size_t i = 0; i < count; ++i) clients.push_back(Connect(port));
  std::atomic<uint64_t> wrong{0};
  const auto set = [&](uint64_t turn) {
    return peers::RunLoad(count, operations, [&, turn](size_t client, size_t i) {
      clients[client]->set(peers::KeyOf(i), BytesOf(peers::ValueOf(turn, i)));
    });
  };
  set(0);
  // Not acknowledged: its time is that of writing to a socket.
  const peers::Load sets = set(1);
  // They have all been done when an answer to each client has come.
  for (auto& client : clients) client->add("peers/fence", 1);
  peers::RunLoad(count, operations,
                 [&](size_t client, size_t i) { clients[client]->get(peers::KeyOf(i)); });
  const peers::Load gets = peers::RunLoad(count, operations, [&](size_t client, size_t i) {
    wrong += Wrong(clients[client]->get(peers::KeyOf(i)), peers::ValueOf(1, i));
  });
  const peers::Load adds = peers::RunLoad(
      count, operations, [&](size_t client, size_t) { clients[client]->add("peers/sum", 1); });
  if (clients[0]->add("peers/sum", 0) != static_cast<int64_t>(operations)) wrong += 8;
  const peers::Load checks = peers::RunLoad(count, operations, [&](size_t client, size_t i) {
    if (!clients[client]->check({peers::KeyOf(i)})) ++wrong;
  });
  const auto print = [&](const std::string& what, const peers::Load& load) {
    peers::Print(what + "_p50_s", load.p50, operations, wrong);
    peers::Print(what + "_per_s", load.per_s, operations, wrong);
  };
  print("set", sets);
  print("get", gets);
  print("add", adds);
  print("check", checks);
}

// The last of `count` ranks that adds to a number sets the key for which all wait.
void Meet(c10d::TCPStore& store, size_t count, const std::string& name) {
  if (store.add(name, 1) == static_cast<int64_t>(count)) store.set(name + "/open", {1});
  store.wait({name + "/open"});
}

void Barrier(int port, size_t count, size_t rounds) {
  std::vector<Client> clients;
  for (size_t i = 0; i < count; ++i) clients.push_back(Connect(port));
  std::vector<double> times;
  uint64_t wrong = 0;
  for (size_t round = 0; round < rounds + 3; ++round) {
    std::atomic<size_t> arrived{0}, early{0};
    const double time = peers::RunRanks(count, [&](size_t rank) {
      ++arrived;
      Meet(*clients[rank], count, "peers/barrier" + std::to_string(round));
      if (arrived != count) ++early;
    });
    if (round >= 3) times.push_back(time);
    wrong += early;
  }
  peers::Print("seconds", peers::Median(times), times.size(), wrong);
}

std::string EndpointOf(size_t rank) { return "127.0.0.1:" + std::to_string(10000 + rank); }

// Connect, set its own endpoint, pass a barrier, get all endpoints.
void Bootstrap(int port, size_t count) {
  std::vector<Client> clients(count);
  std::vector<std::vector<std::vector<uint8_t>>> tables(count);
  const double time = peers::RunRanks(count, [&](size_t rank) {
    clients[rank] = Connect(port);
    c10d::TCPStore& store = *clients[rank];
    store.set("endpoint/" + std::to_string(rank), BytesOf(EndpointOf(rank)));
    Meet(store, count, "peers/start");
    for (size_t other = 0; other < count; ++other) {
      tables[rank].push_back(store.get("endpoint/" + std::to_string(other)));
    }
  });
  uint64_t wrong = 0;
  for (const auto& table : tables) {
    for (size_t other = 0; other < count; ++other) wrong += Wrong(table[other], EndpointOf(other));
  }
  peers::Print("seconds", time, 1, wrong);
}

// As gloo: each rank sets its addresses, and gets those of all ranks with a wait before each.
void Gloo(int port, size_t count) {
  std::vector<Client> clients;
  for (size_t i = 0; i < count; ++i) clients.push_back(Connect(port));
  const std::string address(186, 'a');
  std::atomic<uint64_t> wrong{0};
  const double time = peers::RunRanks(count, [&](size_t rank) {
    c10d::TCPStore& store = *clients[rank];
    store.set("gloo/" + std::to_string(rank), BytesOf(address));
    for (size_t other = 0; other < count; ++other) {
      const std::string key = "gloo/" + std::to_string(other);
      store.wait({key});
      // A wait and a get.
      wrong += Wrong(store.get(key), address);
    }
  });
  peers::Print("seconds", time, 1, wrong);
}

// Each rank sets its address, and gets those of all ranks with one call, which PyTorch 1 lacks.
void MultiGet(int port, size_t count) {
#if TORCH_VERSION_MAJOR < 2
  peers::Fail("multi_get needs PyTorch 2.1 or later");
#else
  std::vector<Client> clients;
  for (size_t i = 0; i < count; ++i) clients.push_back(Connect(port));
  std::vector<std::string> keys;
  for (size_t i = 0; i < count; ++i) keys.push_back("multi/" + std::to_string(i));
  std::atomic<uint64_t> wrong{0};
  const double time = peers::RunRanks(count, [&](size_t rank) {
    clients[rank]->set(keys[rank], BytesOf(EndpointOf(rank)));
    const auto values = clients[rank]->multiGet(keys);
    for (size_t i = 0; i < count; ++i) wrong += Wrong(values[i], EndpointOf(i));
  });
  peers::Print("seconds", time, 1, wrong);
#endif
}

void ConnectAll(int port, size_t count) {
  std::vector<Client> clients(count);
  const double time = peers::RunRanks(64, [&](size_t thread) {
    for (size_t i = thread; i < count; i += 64) clients[i] = Connect(port);
  });
  peers::Print("seconds", time, count, 0);
}

// Starts PyTorch's server; returns its process and port.
std::pair<pid_t, int> StartServer() {
  int ports[2];
  if (pipe(ports) != 0) peers::Fail("no pipe");
  const pid_t child = fork();
  if (child < 0) peers::Fail("cannot fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    c10d::TCPStore server("127.0.0.1", options);
    const int port = server.getPort();
    if (write(ports[1], &port, sizeof port) < 0) peers::Fail("no pipe");
    pause();
  }
  int port = 0;
  if (read(ports[0], &port, sizeof port) != sizeof port) peers::Fail("the server has died");
  return {child, port};
}

}  // namespace

int main(int argc, char** argv) {
  constexpr char kUsage[] =
      "tcpstore [--port=PORT] kv CLIENTS OPERATIONS | barrier RANKS ROUNDS | bootstrap RANKS | "
      "gloo RANKS | multi_get RANKS | connect CLIENTS";
  int port = 0;
  if (argc > 1 && std::sscanf(argv[1], "--port=%d", &port) == 1) {
    --argc;
    ++argv;
  }
  if (argc < 3) peers::Fail(kUsage);
  const std::string what = argv[1];
  const size_t count = std::strtoull(argv[2], nullptr, 10);
  const size_t rounds = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  rlimit files{65536, 65536};
  setrlimit(RLIMIT_NOFILE, &files);
  pid_t child = 0;
  if (port == 0) std::tie(child, port) = StartServer();
  if (what == "kv") Kv(port, count, rounds);
  if (what == "barrier") Barrier(port, count, rounds);
  if (what == "bootstrap") Bootstrap(port, count);
  if (what == "gloo") Gloo(port, count);
  if (what == "multi_get") MultiGet(port, count);
  if (what == "connect") ConnectAll(port, count);
  if (child != 0) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  std::_Exit(0);
}

// SPDX-License-Identifier: Apache-2.0
// The coordination service of jaxlib 0.10, by a client in C++ without Python, with the messages of
// proto/:
//   jax_client HOST:PORT kv INFLIGHT OPERATIONS CHANNELS | barrier RANKS ROUNDS | bootstrap RANKS
#include <set>

#include "grpc_stores.h"
#include "proto/xla_coordination.pb.h"

namespace {

using namespace xla::coordination;  // NOLINT: of messages alone
using Clients = std::vector<std::unique_ptr<peers::GrpcClient>>;

constexpr uint64_t kIncarnation = 77;

std::string Method(const char* name) {
  return std::string("/xla.coordination.CoordinationService/") + name;
}

template <typename Answer>
Answer Parse(const std::string& text) {
  Answer answer;
  if (!answer.ParseFromString(text)) peers::Fail("an answer cannot be read");
  return answer;
}

Clients ClientsOf(const std::string& address, size_t count) {
  Clients clients;
  for (size_t i = 0; i < count; ++i)
    clients.push_back(std::make_unique<peers::GrpcClient>(address));
  return clients;
}

std::string RegisterRequest(size_t rank) {
  RegisterTaskRequest request;
  request.set_incarnation(kIncarnation + rank);
  request.set_source_task(static_cast<int>(rank));
  return request.SerializeAsString();
}

void SetIncarnations(Incarnations& it, size_t rank, uint64_t service) {
  it.set_task_id(static_cast<int>(rank));
  it.set_task_incarnation(kIncarnation + rank);
  it.set_service_incarnation(service);
}

std::string BarrierRequestOf(size_t rank, uint64_t service, const std::string& id) {
  BarrierRequest request;
  SetIncarnations(*request.mutable_incarnations(), rank, service);
  request.set_barrier_id(id);
  request.set_barrier_timeout_in_ms(60000);
  request.set_source_task(static_cast<int>(rank));
  return request.SerializeAsString();
}

std::string SetRequest(uint64_t service, const std::string& key, const std::string& value) {
  InsertKeyValueRequest request;
  SetIncarnations(*request.mutable_incarnations(), 0, service);
  request.mutable_kv()->set_key(key);
  request.mutable_kv()->set_value(value);
  request.set_allow_overwrite(true);
  return request.SerializeAsString();
}

void Kv(Clients& clients, size_t inflight, size_t operations) {
  const uint64_t service = Parse<RegisterTaskResponse>(
                               clients[0]->CallAndWait(Method("RegisterTask"), RegisterRequest(0)))
                               .leader_incarnation();
  uint64_t wrong = 0;
  const auto nothing = [](size_t, const std::string&) { return uint64_t{0}; };
  const auto set = [&](uint64_t turn) {
    return peers::RunCalls(
        clients, inflight, operations, Method("InsertKeyValue"),
        [&](size_t i) { return SetRequest(service, peers::KeyOf(i), peers::ValueOf(turn, i)); },
        nothing, wrong);
  };
  const auto get = [&] {
    return peers::RunCalls(
        clients, inflight, operations, Method("GetKeyValue"),
        [&](size_t i) {
          GetKeyValueRequest request;
          SetIncarnations(*request.mutable_incarnations(), 0, service);
          request.set_key(peers::KeyOf(i));
          return request.SerializeAsString();
        },
        [](size_t i, const std::string& answer) {
          return uint64_t{
              Parse<GetKeyValueResponse>(answer).kv().value() == peers::ValueOf(1, i) ? 0u : 8u};
        },
        wrong);
  };
  const auto add = [&](const std::string& key, int64_t by) {
    IncrementKeyValueRequest request;
    SetIncarnations(*request.mutable_incarnations(), 0, service);
    request.set_key(key);
    request.set_increment(by);
    return request.SerializeAsString();
  };
  set(0);
  const peers::Load sets = set(1);
  get();
  const peers::Load gets = get();
  const peers::Load adds = peers::RunCalls(
      clients, inflight, operations, Method("IncrementKeyValue"),
      [&](size_t) { return add("peers/sum", 1); }, nothing, wrong);
  const std::string sum =
      Parse<IncrementKeyValueResponse>(
          clients[0]->CallAndWait(Method("IncrementKeyValue"), add("peers/sum", 0)))
          .kv()
          .value();
  if (sum != std::to_string(operations)) wrong += 8;
  peers::PrintLoad("set", sets, operations, wrong);
  peers::PrintLoad("get", gets, operations, wrong);
  peers::PrintLoad("add", adds, operations, wrong);
}

// Each of them calls once, one after the other; until all are answered.
double CallAll(Clients& clients, const std::string& method,
               const std::vector<std::string>& requests,
               const std::function<void(size_t, const std::string&)>& done) {
  peers::Latch latch(clients.size());
  const double start = peers::Now();
  for (size_t rank = 0; rank < clients.size(); ++rank) {
    clients[rank]->Call(method, requests[rank], [&, rank](const std::string& answer) {
      done(rank, answer);
      latch.Down();
    });
  }
  latch.Wait();
  return peers::Now() - start;
}

void Barrier(Clients& clients, size_t rounds) {
  std::vector<std::string> requests;
  for (size_t rank = 0; rank < clients.size(); ++rank) requests.push_back(RegisterRequest(rank));
  std::atomic<uint64_t> service{0};
  CallAll(clients, Method("RegisterTask"), requests, [&](size_t, const std::string& answer) {
    service = Parse<RegisterTaskResponse>(answer).leader_incarnation();
  });
  std::vector<double> times;
  for (size_t round = 0; round < rounds + 3; ++round) {
    for (size_t rank = 0; rank < clients.size(); ++rank) {
      requests[rank] = BarrierRequestOf(rank, service, "peers/" + std::to_string(round));
    }
    const double time =
        CallAll(clients, Method("Barrier"), requests, [](size_t, const std::string&) {});
    if (round >= 3) times.push_back(time);
  }
  peers::Print("seconds", peers::Median(times), times.size(), 0);
}

std::string EndpointOf(size_t rank) { return "127.0.0.1:" + std::to_string(10000 + rank); }

// Connect, register, set its own endpoint, pass a barrier, get all endpoints with one call. Each
// answer begins the next call.
void Bootstrap(const std::string& address, size_t count) {
  peers::Latch latch(count);
  Clients clients(count);
  std::vector<GetKeyValueDirResponse> tables(count);
  const double start = peers::Now();
  for (size_t rank = 0; rank < count; ++rank) {
    clients[rank] = std::make_unique<peers::GrpcClient>(address);
    peers::GrpcClient& client = *clients[rank];
    client.Call(
        Method("RegisterTask"), RegisterRequest(rank), [&, rank](const std::string& registered) {
          const uint64_t service = Parse<RegisterTaskResponse>(registered).leader_incarnation();
          const std::string set =
              SetRequest(service, "endpoint/" + std::to_string(rank), EndpointOf(rank));
          client.Call(Method("InsertKeyValue"), set, [&, rank, service](const std::string&) {
            client.Call(Method("Barrier"), BarrierRequestOf(rank, service, "start"),
                        [&, rank, service](const std::string&) {
                          GetKeyValueDirRequest request;
                          SetIncarnations(*request.mutable_incarnations(), 0, service);
                          request.set_directory_key("endpoint/");
                          client.Call(Method("GetKeyValueDir"), request.SerializeAsString(),
                                      [&, rank](const std::string& found) {
                                        tables[rank] = Parse<GetKeyValueDirResponse>(found);
                                        latch.Down();
                                      });
                        });
          });
        });
  }
  latch.Wait();
  const double time = peers::Now() - start;
  uint64_t wrong = 0;
  for (const GetKeyValueDirResponse& table : tables) {
    std::set<size_t> right;
    for (const KeyValueEntry& each : table.kv()) {
      const size_t other =
          std::strtoull(each.key().c_str() + each.key().rfind('/') + 1, nullptr, 10);
      if (other < count && each.value() == EndpointOf(other)) right.insert(other);
    }
    wrong += 8 * (count - right.size());
  }
  peers::Print("seconds", time, 1, wrong);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4)
    peers::Fail(
        "jax_client HOST:PORT kv INFLIGHT OPERATIONS CHANNELS | barrier RANKS ROUNDS | bootstrap "
        "RANKS");
  const std::string address = argv[1], what = argv[2];
  const auto number = [&](int at) { return at < argc ? std::strtoull(argv[at], nullptr, 10) : 1; };
  if (what == "kv") {
    Clients clients = ClientsOf(address, number(5));
    Kv(clients, number(3), number(4));
  } else if (what == "barrier") {
    Clients clients = ClientsOf(address, number(3));
    Barrier(clients, number(4));
  } else if (what == "bootstrap") {
    Bootstrap(address, number(3));
  } else {
    peers::Fail("what is " + what + "?");
  }
  std::_Exit(0);
}

// SPDX-License-Identifier: Apache-2.0
// Two processes that may both open a control channel to the other at any moment, over connections
// that come about at any time, or never; and that break, and processes that are restarted. Replay
// one seed: FERRY_SIM_SEED=<seed> control_channel_faults_test.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "rendezvous/peer/peer_fetcher.h"
#include "tests/rendezvous/peer_world.h"

namespace ferry {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSeeds = 200;
#else
constexpr int kSeeds = 3000;
#endif
// As the connection manager gives up an attempt.
constexpr absl::Duration kTimeout = absl::Seconds(10);

struct GlareFaults {
  // Which attempts never complete: 1 or 2: this process's; 3: either's, but not both; 0: none.
  int hanging = 0;
  // Out of a thousand actions.
  int break_wire = 0;
  int fail_attempt = 0;
  int restart = 0;
};

class GlareWorld final {
 public:
  GlareWorld(uint64_t seed, const GlareFaults& faults) : random_(Scramble(seed)), faults_(faults) {
    if (faults.hanging == 3) faults_.hanging = static_cast<int>(1 + random_() % 2);
    for (int node : {1, 2}) Start(node);
  }
  ~GlareWorld() {
    for (int node : {1, 2}) Stop(node);
    Settle();
    EXPECT_EQ(asked_, ended_);
    for (int node : {1, 2})
      EXPECT_EQ(Of(node).fetcher->connection_count(), 0u) << "connections leak";
  }

  void Run() {
    const int other_asks_at = faults_.hanging == 0 ? -1 : static_cast<int>(random_() % 50);
    for (int i = 0; i < 200; ++i) {
      if (i == other_asks_at) Ask(3 - faults_.hanging, true);
      Act();
    }
    Settle();
    EXPECT_EQ(asked_, ended_) << "a request waits for nothing";
    const bool is_calm =
        faults_.break_wire == 0 && faults_.fail_attempt == 0 && faults_.restart == 0;
    if (is_calm) {
      EXPECT_EQ(failed_, 0) << last_failure_;
    }
    // Requests work now, over one control channel, after any sequence of events.
    faults_.break_wire = faults_.fail_attempt = faults_.restart = 0;
    const int failed_before = failed_;
    for (int node : {1, 2}) Ask(node, true);
    Settle();
    EXPECT_EQ(asked_, ended_);
    EXPECT_EQ(failed_, failed_before) << last_failure_;
    int wires = 0;
    for (const auto& wire : wires_) wires += wire->is_over() ? 0 : 1;
    EXPECT_EQ(wires, 1) << "connections of one pair";
    for (int node : {1, 2}) EXPECT_EQ(Of(node).fetcher->connection_count(), 1u);
  }

  int asked() const { return asked_; }
  int failed() const { return failed_; }
  int glares() const { return glares_; }
  size_t wires() const { return wires_.size(); }

 private:
  struct Process {
    FakeClock clock;
    NoFetcher no_fetcher;
    RendezvousManager manager{clock, no_fetcher};
    std::shared_ptr<RemoteRendezvous> step;
    TransportList transports;
    TransferContext context;
    FakeConnector connector;
    std::unique_ptr<PeerFetcher> fetcher;
    std::vector<std::pair<absl::Time, Connector::AttemptId>> hanging;
  };

  Process& Of(int node) { return *processes_[node - 1]; }
  PeerId PeerOf(int node) { return Of(node).context.self.peer; }

  void Start(int node) {
    // Ended processes stay allocated, since pending work may still call them.
    if (processes_[node - 1] != nullptr) gone_.push_back(std::move(processes_[node - 1]));
    auto process = std::make_unique<Process>();
    process->context.self.peer = {node, ++last_incarnation_};
    process->context.manager = &process->manager;
    process->context.transports = &process->transports;
    process->context.connect_timeout = kTimeout;
    process->step = *process->manager.Find(kStep);
    EXPECT_TRUE(process->step->Initialize({.job = "worker", .replica = 0, .task = node}).ok());
    process->fetcher = std::make_unique<PeerFetcher>(process->context,
                                                     [this](int32_t wanted, ResolveCallback done) {
                                                       Endpoint endpoint;
                                                       endpoint.peer = PeerOf(wanted);
                                                       std::move(done)(std::move(endpoint));
                                                     });
    process->fetcher->set_connector(&process->connector);
    processes_[node - 1] = std::move(process);
  }
  // Like a process that dies: its connections end without a message.
  void Stop(int node) {
    Of(node).fetcher->Close(absl::CancelledError("this process is leaving"));
    for (const auto& wire : wires_) wire->Break();
    while (Of(node).connector.Step()) continue;
    while (!Of(node).connector.attempts.empty()) {
      Of(node).connector.Fail(Of(node).connector.attempts.begin()->first,
                              absl::CancelledError("this process is leaving"));
    }
  }

  RendezvousKey Key(int source, uint64_t number) {
    const auto device = [](int node) {
      return absl::StrCat("/job:worker/replica:0/task:", node, "/device:CPU:0");
    };
    return *RendezvousKey::Parse(RendezvousKey::Text(device(source), PeerOf(source).incarnation,
                                                     device(3 - source), absl::StrCat(number)));
  }
  // `node` requests a value, which is available, or becomes so later.
  void Ask(int node, bool is_there) {
    const int source = 3 - node;
    const uint64_t number = ++asked_;
    const uint64_t value = Scramble(number) ^ PeerOf(source).incarnation;
    const RendezvousKey key = Key(source, number);
    auto send = [process = &Of(source), key, value] {
      Tensor tensor = *Tensor::Allocate(DataType::kUint64, *Shape::Create({1}));
      std::memcpy(tensor.mutable_data(), &value, sizeof(value));
      EXPECT_TRUE(process->step->Send(key, std::move(tensor)).ok());
    };
    is_there ? send() : to_send_.push_back(std::move(send));
    auto ended = std::make_shared<int>(0);
    Of(node).fetcher->Fetch(kStep, key, {},
                            [this, ended, value](const absl::Status& status, Received received) {
                              EXPECT_EQ(++*ended, 1) << "a request ends twice";
                              ++ended_;
                              if (!status.ok()) {
                                ++failed_;
                                last_failure_ = status.ToString();
                                return;
                              }
                              uint64_t got = 0;
                              std::memcpy(&got, received.tensor.data(), sizeof(got));
                              EXPECT_EQ(got, value) << "a value of somebody else";
                            });
  }

  bool Chance(int out_of_thousand) {
    return out_of_thousand > 0 && static_cast<int>(random_() % 1000) < out_of_thousand;
  }

  void Act() {
    const int node = static_cast<int>(1 + random_() % 2);
    if (Chance(faults_.restart)) {
      Stop(node);
      Start(node);
    }
    if (Chance(faults_.break_wire) && !wires_.empty()) wires_[random_() % wires_.size()]->Break();
    switch (random_() % 6) {
      case 0:
        return Ask(node, random_() % 2 == 0);
      case 1:
        if (to_send_.empty()) return;
        to_send_.back()();
        return to_send_.pop_back();
      case 2:
        AdvanceTime(absl::Milliseconds(random_() % 8));
        return;
      default:
        StepOnce();
    }
  }

  // One possible event. Returns false if there is none.
  bool StepOnce() {
    std::vector<std::function<bool()>> able;
    for (int node : {1, 2}) {
      able.emplace_back([this, node] { return Of(node).connector.Step(); });
      able.emplace_back([this, node] { return CompleteAttempt(node); });
    }
    for (const auto& wire : wires_) {
      if (!wire->is_over()) able.emplace_back([raw = wire.get()] { return raw->Step(); });
    }
    for (const auto& process : gone_) {
      able.emplace_back([raw = process.get()] { return raw->connector.Step(); });
    }
    for (size_t first = random_() % able.size(), i = 0; i < able.size(); ++i) {
      if (able[(first + i) % able.size()]()) return true;
    }
    return false;
  }

  bool CompleteAttempt(int node) {
    Process& process = Of(node);
    for (auto& [id, attempt] : process.connector.attempts) {
      bool is_hanging = false;
      for (const auto& each : process.hanging) is_hanging |= each.second == id;
      if (is_hanging) continue;
      if (!Of(3 - node).connector.attempts.empty()) ++glares_;
      if (faults_.hanging == node) {
        process.hanging.emplace_back(now_ + kTimeout, id);
      } else if (Chance(faults_.fail_attempt) || !(attempt.peer == PeerOf(3 - node))) {
        process.connector.Fail(id, absl::UnavailableError("Connection refused"));
      } else {
        wires_.push_back(std::make_unique<FaultyWire>(random_(), WireFaults{}));
        const auto handler = process.connector.Take(id);
        wires_.back()->Open(handler, PeerOf(node), Of(3 - node).fetcher->Serve(PeerOf(node)),
                            PeerOf(3 - node), /*is_late=*/true);
      }
      return true;
    }
    return false;
  }

  void AdvanceTime(absl::Duration by) {
    now_ += by;
    for (int node : {1, 2}) {
      Process& process = Of(node);
      process.connector.Advance(by);
      for (const auto& [until, id] : process.hanging) {
        if (until > now_) continue;
        process.connector.Fail(id, absl::DeadlineExceededError("it has not answered for 10s"));
      }
      std::erase_if(process.hanging, [this](const auto& each) { return each.first <= now_; });
    }
  }

  // Until nothing happens any more, however long one waits.
  void Settle() {
    for (auto& send : to_send_) send();
    to_send_.clear();
    for (int quiet = 0; quiet < 40;) {
      quiet = StepOnce() ? 0 : quiet + 1;
      if (quiet > 0) AdvanceTime(absl::Seconds(1));
    }
  }

  std::mt19937_64 random_;
  GlareFaults faults_;
  absl::Time now_ = absl::UnixEpoch();
  uint64_t last_incarnation_ = 100;
  std::unique_ptr<Process> processes_[2];
  std::vector<std::unique_ptr<Process>> gone_;
  std::vector<std::unique_ptr<FaultyWire>> wires_;
  std::vector<std::function<void()>> to_send_;
  int asked_ = 0;
  int ended_ = 0;
  int failed_ = 0;
  int glares_ = 0;
  std::string last_failure_;
};

void RunSeeds(const GlareFaults& faults, bool needs_glares = true) {
  std::vector<uint64_t> seeds;
  uint64_t replayed = 0;
  if (const char* text = std::getenv("FERRY_SIM_SEED");
      text != nullptr && absl::SimpleAtoi(text, &replayed)) {
    seeds = {replayed};
  } else {
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) seeds.push_back(seed);
    uint64_t fresh = 1;
    if (const char* count = std::getenv("FERRY_SIM_SEEDS");
        count == nullptr || !absl::SimpleAtoi(count, &fresh)) {
      fresh = 1;
    }
    const auto first = static_cast<uint64_t>(absl::GetCurrentTimeNanos());
    for (uint64_t i = 0; i < fresh; ++i) seeds.push_back(first + i);
  }
  int asked = 0;
  int failed = 0;
  int glares = 0;
  size_t wires = 0;
  for (const uint64_t seed : seeds) {
    {
      GlareWorld world(seed, faults);
      world.Run();
      asked += world.asked();
      failed += world.failed();
      glares += world.glares() > 0 ? 1 : 0;
      wires += world.wires();
    }
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "replay: FERRY_SIM_SEED=" << seed << " --gtest_filter=SimultaneousOpen."
                    << ::testing::UnitTest::GetInstance()->current_test_info()->name();
      return;
    }
  }
  std::cout << seeds.size() << " seeds, the last " << seeds.back() << ": " << asked
            << " requests, of which " << failed << " failed, " << wires
            << " connections, both at once in " << glares << "\n";
  if (seeds.size() > 1 && needs_glares) {
    EXPECT_GT(glares, kSeeds / 10);
    EXPECT_GT(wires, seeds.size());
  }
}

TEST(SimultaneousOpen, BothOpen_OneIsKept) { RunSeeds({}); }

TEST(SimultaneousOpen, ConnectionNeverCompletes_OthersAreNotBlocked) {
  // One of the requesting processes cannot connect.
  RunSeeds({.hanging = 3}, /*needs_glares=*/false);
}

TEST(SimultaneousOpen, ConnectionsBreak) { RunSeeds({.break_wire = 30}); }

TEST(SimultaneousOpen, AttemptsFail) { RunSeeds({.fail_attempt = 200}); }

TEST(SimultaneousOpen, ProcessesAreRestarted) { RunSeeds({.restart = 10}); }

TEST(SimultaneousOpen, EverythingAtOnce) {
  RunSeeds({.break_wire = 20, .fail_attempt = 100, .restart = 10});
}

}  // namespace
}  // namespace ferry

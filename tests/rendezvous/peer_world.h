// SPDX-License-Identifier: Apache-2.0
// Two processes as far as control channels go, with requests in both directions over one control
// channel, on one thread, with faults by a seed; checks the invariants under any faults.
#ifndef FERRY_TESTS_RENDEZVOUS_PEER_WORLD_H_
#define FERRY_TESTS_RENDEZVOUS_PEER_WORLD_H_

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/cancellation_token.h"
#include "base/clock.h"
#include "base/table_sizes.h"
#include "rendezvous/peer/eager_peers.h"
#include "rendezvous/peer/peer_connection_pool.h"
#include "tests/rendezvous/fake_connector.h"
#include "tests/support/faulty_control_channel.h"
#include "tests/support/faulty_transport.h"

namespace ferry {

inline constexpr PeerId kProducer = {1, 1001};
inline constexpr PeerId kConsumer = {2, 1002};
inline constexpr int64_t kStep = 7;
inline constexpr int kActions = 80;

struct Faults {
  WireFaults wire;
  TransportFaults transport;
  bool checksum = false;
  // Small values are sent before they are requested, except with checksums.
  bool eager = false;
};

class NoFetcher final : public RemoteFetcher {
 public:
  std::shared_ptr<RemoteFetch> Fetch(int64_t, const RendezvousKey&, const RecvArgs&,
                                     RecvCallback done) override {
    std::move(done)(absl::InternalError("nothing is fetched here"), {});
    return nullptr;
  }
};

// A unique value: how a key and its value are told apart.
inline uint64_t Scramble(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

// One seed's run of two processes. Values of even numbers go from the first to the second, the
// others back.
class World final {
 public:
  World(uint64_t seed, const Faults& faults)
      : random_(Scramble(seed)),
        faults_(faults),
        state_(std::make_shared<FaultyTransportState>(random_(), faults.transport)) {
    for (int i = 0; i < 2; ++i) {
      Process& process = processes_[i];
      process.transports.push_back(MakeFaultyTransport(state_, "views", true));
      process.transports.push_back(MakeFaultyTransport(state_, "copies", false));
      process.context.self.peer = kPeers[i];
      process.context.self.transports = DescribeTransports(process.transports);
      process.context.manager = &process.manager;
      process.context.transports = &process.transports;
      process.context.clock = &process.clock;
      process.eager =
          std::make_unique<EagerPeers>(process.context, EagerLimits{.step_values = 2,
                                                                    .step_bytes = 200,
                                                                    .peer_values = 5,
                                                                    .peer_bytes = 1000,
                                                                    .names = 4,
                                                                    .name_bytes = 1000});
      if (faults.eager) process.context.eager = process.eager.get();
      // Either side, or both: it is done by both.
      process.context.checksum = faults.checksum && (seed % 3 == 2 || seed % 3 == (i == 0));
      process.step = *process.manager.Find(kStep);
      EXPECT_TRUE(process.step->Initialize({.job = "worker", .replica = 0, .task = i + 1}).ok());
    }
  }

  void Run() {
    OneChannel(faults_.wire);
    // The next control channel is not affected by the faults of this one.
    state_->faults = {};
    const int64_t before = values_;
    OneChannel({});
    EXPECT_GT(values_, before) << "later requests do not work";
    EXPECT_EQ(end_statuses_, 0);
    for (Process& process : processes_) {
      process.manager.Cleanup(kStep);
      process.step = nullptr;
    }
    EXPECT_EQ(*live_buffers_, 0) << "buffers leak";
    EXPECT_EQ(state_->halves, state_->aborted_halves);
  }

  int64_t receives() const { return receives_; }
  int64_t values() const { return values_; }
  int64_t damaged() const { return damaged_; }
  int64_t data_losses() const { return data_losses_; }
  // With eager values: those that were not requested, and those that were.
  int64_t pushed() const { return pushed_; }
  int64_t pulled() const { return values_ - pushed_; }
  // STEP_REFUSED, and requests that PULL has caused.
  int64_t refused() const { return refused_; }
  int64_t converted() const { return converted_; }

 private:
  struct Receive {
    uint64_t number = 0;
    CancellationToken cancellation;
    std::shared_ptr<RemoteFetch> fetch;
    Tensor destination;
    bool is_done = false;
    bool is_cancelled = false;
  };

  static constexpr PeerId kPeers[2] = {kProducer, kConsumer};
  struct Process {
    // As PeerFetcher, for one peer.
    class Fetcher final : public RemoteFetcher {
     public:
      explicit Fetcher(const Process& process) : process_(process) {}
      std::shared_ptr<RemoteFetch> Fetch(int64_t step_id, const RendezvousKey& key,
                                         const RecvArgs& args, RecvCallback done) override {
        return process_.requester->Request(step_id, key, args, std::move(done));
      }
      EagerLinks* eager_links() override { return process_.context.eager; }

     private:
      const Process& process_;
    };

    FakeClock clock;
    TransportList transports;
    TransferContext context;
    std::unique_ptr<EagerPeers> eager;
    Fetcher fetcher{*this};
    RendezvousManager manager{clock, fetcher};
    std::shared_ptr<RemoteRendezvous> step;
    std::unique_ptr<FakeConnector> connector;
    std::shared_ptr<PeerConnectionPool> pool;
    // The node that requests.
    std::shared_ptr<TensorRequester> requester;
  };
  // The node that has the value.
  static int SourceOf(uint64_t number) { return static_cast<int>(number % 2); }
  static RendezvousKey Key(uint64_t number) {
    const auto device = [](int process) {
      return absl::StrCat("/job:worker/replica:0/task:", process + 1, "/device:CPU:0");
    };
    const int source = SourceOf(number);
    return *RendezvousKey::Parse(RendezvousKey::Text(device(source), kPeers[source].incarnation,
                                                     device(1 - source),
                                                     absl::StrFormat("%016x", Scramble(number))));
  }
  static int64_t Bytes(uint64_t number) {
    // In the transfer descriptor, and by a transport.
    constexpr int64_t kSizes[] = {0, 1, 100, 17'000, 20'000};
    return kSizes[Scramble(number + 1) % 5];
  }
  static bool IsDead(uint64_t number) { return Scramble(number + 2) % 10 == 0; }

  static void Fill(void* to, uint64_t number) {
    std::memset(to, static_cast<int>(Scramble(number + 3) & 0xFF),
                static_cast<size_t>(Bytes(number)));
    if (Bytes(number) >= 100) std::memcpy(to, &number, sizeof(number));
  }
  static bool Holds(const Tensor& tensor, uint64_t number) {
    if (!tensor.is_valid() || tensor.bytes() != static_cast<size_t>(Bytes(number))) return false;
    std::vector<char> expected(tensor.bytes());
    if (expected.empty()) return true;
    Fill(expected.data(), number);
    return std::memcmp(expected.data(), tensor.data(), tensor.bytes()) == 0;
  }

  Tensor Counted(uint64_t number) {
    const size_t bytes = static_cast<size_t>(Bytes(number));
    auto memory = std::make_unique<std::vector<char>>(bytes + 1);
    void* const data = memory->data();
    ++*live_buffers_;
    auto buffer = WrapForeignBuffer(
        data, bytes, [live = live_buffers_, memory = std::move(memory)] { --*live; });
    return *Tensor::Create(DataType::kUint8, *Shape::Create({Bytes(number)}), std::move(buffer));
  }

  void Send(uint64_t number) {
    if (IsDead(number)) {
      EXPECT_TRUE(processes_[SourceOf(number)].step->Send(Key(number), Tensor(), true).ok());
      return;
    }
    Tensor tensor = Counted(number);
    if (tensor.bytes() > 0) Fill(tensor.mutable_data(), number);
    EXPECT_TRUE(processes_[SourceOf(number)].step->Send(Key(number), std::move(tensor)).ok());
  }

  void Request(uint64_t number) {
    auto receive = std::make_shared<Receive>();
    receive->number = number;
    RecvArgs args;
    if (random_() % 3 == 0 && !IsDead(number)) receive->destination = Counted(number);
    args.destination = receive->destination;
    ++receives_;
    open_.push_back(receive);
    if (faults_.eager) {
      args.cancellation = &receive->cancellation;
      return processes_[1 - SourceOf(number)].step->RecvAsync(
          Key(number), args, [this, receive](absl::Status status, Received received) {
            OnReceived(*receive, status, std::move(received));
          });
    }
    receive->fetch = processes_[1 - SourceOf(number)].requester->Request(
        kStep, Key(number), args, [this, receive](absl::Status status, Received received) {
          OnReceived(*receive, status, std::move(received));
        });
  }

  void OnReceived(Receive& receive, const absl::Status& status, Received received) {
    EXPECT_FALSE(receive.is_done) << "a receive ends twice";
    receive.is_done = true;
    if (!status.ok()) {
      if (absl::IsDataLoss(status)) ++data_losses_;
      if (!receive.is_cancelled) {
        const std::string peer = Describe(kPeers[SourceOf(receive.number)]);
        EXPECT_TRUE(is_head_damaged() || absl::StrContains(status.message(), peer) ||
                    absl::StrContains(status.message(), "this process is leaving"))
            << "the peer is not named: " << status;
        if (is_clean_) ++end_statuses_;
      }
      receive.destination = Tensor();
      return;
    }
    ++values_;
    const bool was_pushed = received.path == "eager";
    pushed_ += was_pushed ? 1 : 0;
    // Without checksums, only TCP detects changed bits of messages.
    const bool may_be_wrong = !faults_.checksum && damage() > 0;
    if (received.is_dead) {
      EXPECT_TRUE(may_be_wrong || IsDead(receive.number));
    } else {
      EXPECT_TRUE(may_be_wrong || Holds(received.tensor, receive.number)) << "a wrong value";
      // One that has arrived before the receive is copied by the facade.
      if (!may_be_wrong && !was_pushed && receive.destination.is_valid()) {
        EXPECT_EQ(received.tensor.data(), receive.destination.data());
      }
      if (random_() % 2 == 0) kept_.emplace_back(receive.number, std::move(received.tensor));
    }
    receive.destination = Tensor();
  }

  int damage() const { return wire_->damaged() + state_->corrupted; }
  bool is_head_damaged() const {
    const WireFaults& wire = faults_.wire;
    return !faults_.checksum && wire_->damaged() > 0 &&
           (wire.truncate > 0 || wire.corrupt > 0 || wire.reorder > 0);
  }

  void OneChannel(const WireFaults& faults) {
    is_clean_ = wire_ != nullptr;
    state_->early_releases = 0;
    for (Process& process : processes_) {
      process.pool = std::make_shared<PeerConnectionPool>(process.context);
      process.connector = std::make_unique<FakeConnector>();
      process.pool->set_connector(process.connector.get());
      process.eager->set_run_after(
          [&process](absl::Duration delay, absl::AnyInvocable<void()> call) {
            process.connector->RunAfter(delay, std::move(call));
          });
    }
    for (int i = 0; i < 2; ++i) {
      Endpoint other;
      other.peer = kPeers[1 - i];
      processes_[i].requester = *processes_[i].pool->Open(other);
    }
    wire_ = std::make_unique<FaultyWire>(random_(), faults);
    // Some request before there is a control channel.
    std::deque<uint64_t> to_send;
    const auto ask = [&] {
      const uint64_t number = ++last_number_;
      (random_() % 2 == 0 ? to_send.push_back(number) : Send(number));
      Request(number);
    };
    for (uint64_t i = random_() % 3; i > 0; --i) ask();
    // The other's attempt never gets anywhere.
    const int opener = static_cast<int>(random_() % 2);
    wire_->Open(processes_[opener].connector->Take(1), kPeers[opener],
                processes_[1 - opener].pool->Accept(kPeers[opener]), kPeers[1 - opener]);
    for (int i = 0; i < kActions; ++i) {
      if (faults_.eager && random_() % 4 == 0) {
        Process& process = processes_[random_() % 2];
        process.connector->Advance(absl::Milliseconds(1));
        process.connector->Step();
      }
      switch (random_() % 8) {
        case 0:
        case 1:
          ask();
          break;
        case 2:
          if (to_send.empty()) break;
          Send(to_send.front());
          to_send.pop_front();
          break;
        case 3:
          if (!is_clean_) CancelOne();
          break;
        case 4:
          DropOne();
          break;
        case 5:
          state_->Step();
          break;
        default:
          for (uint64_t steps = random_() % 6; steps > 0; --steps) wire_->Step();
      }
    }
    for (const uint64_t number : to_send) Send(number);
    if (is_clean_ || random_() % 2 == 0) Settle();
    if (is_clean_) {
      for (const auto& each : open_) EXPECT_TRUE(each->is_done) << "a receive waits for nothing";
      if (faults_.eager) CloseSteps();
      CheckQuiet();
    }
    switch (random_() % 3) {
      case 0:
        processes_[1].pool->Forget(1, absl::UnavailableError("node 1 was given up by the test"));
        break;
      case 1:
        processes_[0].pool->Close(absl::CancelledError("this process is leaving"));
        break;
      default:
        wire_->Break();
    }
    end_statuses_ = 0;
    Settle();
    // A wait for a HELLO that was lost has lasted long enough.
    for (Process& process : processes_) process.connector->Advance(absl::Minutes(1));
    Settle();
    for (Process& process : processes_) {
      process.pool->Forget(1, absl::UnavailableError("node 1 was given up by the test"));
      process.pool->Forget(2, absl::UnavailableError("node 2 was given up by the test"));
    }
    Settle();
    CheckEnded();
    damaged_ += wire_->damaged();
    const auto type = [](PeerMessageType of) { return static_cast<uint16_t>(of); };
    refused_ += wire_->sent(type(PeerMessageType::kStepRefused));
    converted_ += wire_->sent_while_handling(type(PeerMessageType::kRequest),
                                             type(PeerMessageType::kEagerPull)) +
                  wire_->sent_while_handling(type(PeerMessageType::kNamedRequest),
                                             type(PeerMessageType::kEagerPull));
  }

  // Also what waits for a timer.
  void SettleWithTimers() {
    for (int i = 0; i < 3; ++i) {
      Settle();
      for (Process& process : processes_) process.connector->Advance(2 * EagerInbox::kMaxAckDelay);
    }
    Settle();
  }

  // Values that were not received are dropped.
  void CloseSteps() {
    SettleWithTimers();
    const uint64_t first = random_() % 2;
    for (const uint64_t i : {first, 1 - first}) {
      processes_[i].manager.Cleanup(kStep);
      if (random_() % 2 == 0) SettleWithTimers();
    }
    SettleWithTimers();
    for (Process& process : processes_) {
      EXPECT_EQ(NonEmptyTables(process.eager->InnerTableSizes(),
                               {"eager_sender.names", "eager_receiver.names"}),
                "")
          << "something of a step that is over is left";
      EXPECT_EQ(NonEmptyTables(process.step->InnerTableSizes()), "");
    }
  }

  void Settle() {
    for (int i = 0; i < 100'000; ++i) {
      bool did_something = wire_->Step();
      for (Process& process : processes_) did_something |= process.connector->Step();
      if (!state_->Step() && !did_something) return;
    }
    ADD_FAILURE() << "it never ends";
  }

  // The control channel is open, and all requests have been answered: only the views that receivers
  // still hold are left.
  void CheckQuiet() {
    EXPECT_EQ(state_->lent.size(), state_->viewed.size()) << "a producer keeps what was received";
    size_t views = 0;
    for (Process& process : processes_) {
      TableSizes sizes = process.pool->InnerTableSizes();
      views += sizes["responder.views"];
      EXPECT_EQ(sizes["responder.views"], sizes["responder.exposed"]);
      EXPECT_EQ(NonEmptyTables(sizes, {"peers.", "responder.views", "responder.exposed"}), "");
      EXPECT_EQ(sizes["peers.pairs"], 1u);
      EXPECT_EQ(sizes["peers.pending_hellos"], 0u);
    }
    EXPECT_EQ(views, state_->viewed.size());
  }

  void CheckEnded() {
    EXPECT_TRUE(wire_->is_over());
    for (const auto& each : open_) EXPECT_TRUE(each->is_done) << "a receive never ends";
    open_.clear();
    EXPECT_TRUE(state_->lent.empty()) << "a producer keeps what nobody will take";
    EXPECT_EQ(state_->halves, state_->aborted_halves);
    for (Process& process : processes_) {
      EXPECT_TRUE(process.requester->has_ended());
      EXPECT_TRUE(process.requester->is_over());
      EXPECT_EQ(process.pool->unfinished_sends(), 0u);
      EXPECT_EQ(process.pool->connection_count(), 0u);
      // These two keep the entries of the control channel that ended last, until the next one ends.
      EXPECT_EQ(NonEmptyTables(process.pool->InnerTableSizes(),
                               {"peers.last_connections", "peers.ended"}),
                "");
      // Requests other than those whose values are no longer requested.
      process.manager.ForEachPending(absl::ZeroDuration(), [](const PendingStepOp& op) {
        EXPECT_EQ(op.side, PendingStepOp::Side::kSend) << "a request outlives its connection";
      });
      bool has_ended = false;
      process.requester->Request(kStep, Key(0), {},
                                 [&has_ended](const absl::Status& status, const Received&) {
                                   EXPECT_FALSE(status.ok());
                                   has_ended = true;
                                 });
      EXPECT_TRUE(has_ended);
    }
    if (!is_head_damaged()) {
      EXPECT_EQ(state_->early_releases, 0) << "a view without its lease";
    }
    while (!kept_.empty()) DropOne();
  }

  void CancelOne() {
    if (open_.empty()) return;
    Receive& each = *open_[random_() % open_.size()];
    if (each.is_done || (each.fetch == nullptr && !faults_.eager)) return;
    each.is_cancelled = true;
    if (faults_.eager) {
      each.cancellation.Cancel();
    } else {
      EXPECT_FALSE(each.fetch->Phase().empty());
      each.fetch->Cancel();
    }
    EXPECT_TRUE(each.is_done) << "a cancelled receive waits";
  }
  void DropOne() {
    if (kept_.empty()) return;
    const size_t index = random_() % kept_.size();
    const auto [number, tensor] = std::move(kept_[index]);
    kept_.erase(kept_.begin() + static_cast<ptrdiff_t>(index));
    EXPECT_TRUE(is_head_damaged() || (!faults_.checksum && damage() > 0) || Holds(tensor, number))
        << "a view has changed";
  }

  std::mt19937_64 random_;
  const Faults faults_;
  const std::shared_ptr<int> live_buffers_ = std::make_shared<int>(0);
  const std::shared_ptr<FaultyTransportState> state_;
  Process processes_[2];
  std::unique_ptr<FaultyWire> wire_;
  bool is_clean_ = false;
  std::vector<std::shared_ptr<Receive>> open_;
  std::vector<std::pair<uint64_t, Tensor>> kept_;
  uint64_t last_number_ = 0;
  int64_t receives_ = 0;
  int64_t values_ = 0;
  int64_t end_statuses_ = 0;
  int64_t data_losses_ = 0;
  int64_t damaged_ = 0;
  int64_t pushed_ = 0;
  int64_t refused_ = 0;
  int64_t converted_ = 0;
};

}  // namespace ferry

#endif  // FERRY_TESTS_RENDEZVOUS_PEER_WORLD_H_

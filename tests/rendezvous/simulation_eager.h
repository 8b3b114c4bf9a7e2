// SPDX-License-Identifier: Apache-2.0
// Workers of a simulation whose values go through control channels, before they are requested or
// after it.
#ifndef FERRY_TESTS_RENDEZVOUS_SIMULATION_EAGER_H_
#define FERRY_TESTS_RENDEZVOUS_SIMULATION_EAGER_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/cancellation_token.h"
#include "base/clock.h"
#include "rendezvous/peer/eager_peers.h"
#include "rendezvous/peer/peer_fetcher.h"
#include "rendezvous/rendezvous_manager.h"
#include "tests/rendezvous/fake_connector.h"
#include "tests/rendezvous/simulation_ledger.h"
#include "tests/support/faulty_control_channel.h"
#include "tests/support/faulty_transport.h"

namespace ferry::simulation {

// The contract is checked, not the way a value takes: the values of a step and key go to its
// receives in order, each once, and are neither lost nor left behind without a reason. Not
// thread-safe. Every choice follows from the seed.
class EagerSimulation final {
 public:
  EagerSimulation(uint64_t seed, int64_t events);
  ~EagerSimulation();
  Report Run();

 private:
  // Values of one key in one step of one incarnation of its source.
  struct Stream {
    struct Value {
      int64_t number = 0;
      size_t bytes = 0;
      bool is_dead = false;
      bool is_received = false;
    };
    // The incarnation of the process that has sent them.
    uint64_t source = 0;
    std::vector<Value> values;
    size_t received = 0;
    // Those of them that were dead.
    size_t dead_received = 0;
    // Receives that have ended without a value, and may have taken one with them.
    size_t excuses = 0;
    // By the consumer's incarnation, 0: one at the source itself: the positions of receives and of
    // the values that they got.
    std::map<uint64_t, std::map<int64_t, size_t>> order;
  };
  // Step and text of the key, which names the incarnation of its source.
  using StreamId = std::pair<int64_t, std::string>;

  struct StepState {
    std::shared_ptr<RemoteRendezvous> real;
    bool is_initialized = false;
    // Aborted or closed.
    bool is_over = false;
    bool is_closing = false;
    // Something that this step sent may be lost without a report: a control channel has ended.
    bool has_excuse = false;
  };
  struct Process {
    TransportList transports;
    TransferContext context;
    FakeConnector connector;
    std::unique_ptr<EagerPeers> eager;
    std::unique_ptr<PeerFetcher> fetcher;
    std::unique_ptr<RendezvousManager> manager;
    std::map<int64_t, StepState> steps;

    int node() const { return context.self.peer.node_id; }
    uint64_t incarnation() const { return context.self.peer.incarnation; }
  };
  struct Wire {
    std::unique_ptr<FaultyWire> wire;
    PeerId opener;
    PeerId other;
    bool is_counted = false;
  };
  struct Receive {
    int64_t id = 0;
    StreamId stream;
    RendezvousKey key;
    int64_t step_id = 0;
    PeerId consumer;
    // It takes the value at its source, like a consumer of another protocol.
    bool is_local = false;
    std::shared_ptr<CancellationToken> cancellation;
    absl::Time deadline = absl::InfiniteFuture();
    Tensor destination;
    int64_t breaks_before = 0;
    bool is_refusable = false;
    bool is_done = false;
  };
  using ReceivePtr = std::shared_ptr<Receive>;

  // --- The world
  void Start();
  void StartProcess(int node);
  void Stop();
  void DoEvent();

  // --- Steps
  // Null: it cannot be opened.
  StepState* AnyStep(Process& process);
  StepState* Find(Process& process, int64_t step_id);
  void End(Process& process, int64_t step_id, bool is_abort);
  void StartFlush(Process& process);
  // A flush that is over proves that everything was received.
  void CheckFlushes(Process& process, bool is_quiet);

  // --- Values
  RendezvousKey RandomKey(const Process& source, int consumer);
  void Send(Process& process);
  void Recv(Process& process);
  void RecvLocal(Process& process);
  void Post(const ReceivePtr& receive,
            const std::function<void(const RendezvousKey&, RecvArgs, RecvCallback)>& post);
  void OnReceived(Receive& receive, const Received& received);
  void OnFailed(Receive& receive, const absl::Status& status);
  // There is a reason for that error.
  bool IsRight(const Receive& receive, const absl::Status& status);

  // --- The network
  bool Connect(Process& process, bool may_fail);
  bool StepNetwork(bool may_fail);
  void OnEnded(Wire& wire);
  // Also notes those that are about to end.
  void ForgetEnded();
  // Control channels between the two have ended, or could not be opened.
  int64_t& Breaks(int a, int b) { return breaks_[{std::min(a, b), std::max(a, b)}]; }
  void CountBreak(int a, int b);
  // One of the two has not noticed the end of a control channel yet.
  bool IsEnding(int a, int b) const;

  // --- Faults
  void Cancel();
  void MoveClock();
  void Restart(int node, bool is_killed);
  void HearOfRestart();

  // Until nothing happens any more. Deadlines do not pass.
  void Settle();
  // V1, V6 and V7 of docs/rendezvous.md.
  void CheckQuiet();

  Process& Of(int node) { return *processes_[static_cast<size_t>(node - 1)]; }
  Process& Any() { return Of(1 + dice_.Roll(static_cast<int>(processes_.size()))); }
  // Null: that incarnation is gone.
  Process* Alive(const PeerId& peer);
  Stream& StreamOf(const StreamId& id) { return streams_[id]; }
  void Log(std::string line) { ledger_.Log(clock_.Now(), std::move(line)); }

  Dice dice_;
  const int64_t events_;
  FakeClock clock_;
  Ledger ledger_;
  std::shared_ptr<FaultyTransportState> state_;
  EagerLimits limits_;
  RendezvousManagerOptions options_;
  WireFaults wire_faults_;
  int edge_count_ = 1;
  bool is_calm_ = false;
  // Callbacks begin nothing.
  bool is_stopping_ = false;
  // Nothing is checked any more.
  bool is_over_ = false;
  std::vector<std::unique_ptr<Process>> processes_;
  // Processes that have ended stay allocated, since others' work may still call them.
  std::vector<std::unique_ptr<Process>> gone_;
  std::vector<Wire> wires_;
  std::map<std::pair<int, int>, int64_t> breaks_;
  std::vector<int64_t> step_ids_;
  int64_t last_step_id_ = 0;
  uint64_t last_incarnation_ = 100;
  int64_t last_number_ = 0;
  std::map<StreamId, Stream> streams_;
  std::map<int64_t, ReceivePtr> open_;
  std::vector<std::shared_ptr<CancellationToken>> cancellations_;
  // Which nodes have yet to be notified of which restarts.
  std::vector<std::pair<int, int>> news_;
};

}  // namespace ferry::simulation

#endif  // FERRY_TESTS_RENDEZVOUS_SIMULATION_EAGER_H_

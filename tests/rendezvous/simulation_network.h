// SPDX-License-Identifier: Apache-2.0
// The network of a simulation: fetches that travel, late, in any order between keys, or not at all.
#ifndef FERRY_TESTS_RENDEZVOUS_SIMULATION_NETWORK_H_
#define FERRY_TESTS_RENDEZVOUS_SIMULATION_NETWORK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "rendezvous/remote_rendezvous.h"
#include "tests/rendezvous/simulation_ledger.h"
#include "tests/rendezvous/simulation_model.h"

namespace ferry::simulation {

// The receive that a fetch is for.
struct Asker {
  ReceivePtr receive;
  std::shared_ptr<StepModel> step;
};

// One fetch, from its request to its answer.
struct Call {
  enum class State { kRequested, kServed, kAnswered, kLost, kOver };

  int64_t id = 0;
  int client = 0;
  int server = 0;
  int64_t step_id = 0;
  RendezvousKey key;
  Asker asker;
  RecvCallback done;
  State state = State::kRequested;
  int cancels = 0;
  // The server's receive, and its cancellation.
  std::shared_ptr<CancellationToken> cancellation = std::make_shared<CancellationToken>();
  // The actual and the expected answer.
  absl::Status status;
  Received received;
  Outcome outcome;
};
using CallPtr = std::shared_ptr<Call>;

// Not thread-safe; outlives the workers.
class Network final {
 public:
  // Events at either end, implemented by the simulation.
  struct Ends {
    // The source's worker receives a request for the value.
    std::function<void(const CallPtr&)> serve;
    // It is notified that the request was cancelled.
    std::function<void(const CallPtr&)> call_off;
    // Another call runs while a request is being issued.
    std::function<void(const CallPtr&)> while_issuing;
  };

  Network(Ledger& ledger, Dice& dice, Ends ends)
      : ledger_(ledger), dice_(dice), ends_(std::move(ends)) {}

  // The fetcher of worker `client`, whose next fetch is for `asker`.
  std::unique_ptr<RemoteFetcher> FetcherOf(int client);
  void set_asker(Asker asker) { asker_ = std::move(asker); }

  // Delivers one message, any of those that may be the next of their key. Returns false if there
  // are none.
  bool Deliver();
  // The server has the value, or an error.
  void Answer(const CallPtr& call, absl::Status status, Received received, Outcome outcome);
  // The request could not go out.
  void Refuse(const CallPtr& call);
  // The worker has ended, with its messages in flight. Peers that wait for it are notified later.
  void CloseConnectionsOf(int server);
  // Every call that is over for the client was called off.
  void Check();

  // Answers that carry a tensor.
  int64_t carried_tensors() const { return carried_tensors_; }

 private:
  enum class Kind { kRequest, kCancel, kAnswer };
  struct Message {
    Kind kind = Kind::kRequest;
    CallPtr call;
    // Calls that end many receives end them in an order that does not follow from the seed; that of
    // their messages must.
    friend bool operator<(const Message& a, const Message& b) {
      return std::pair(a.call->id, a.kind) < std::pair(b.call->id, b.kind);
    }
  };
  class Fetcher;
  class Fetch;

  std::shared_ptr<RemoteFetch> Begin(int client, int64_t step_id, const RendezvousKey& key,
                                     RecvCallback done);
  void CallOff(const CallPtr& call);
  void Finish(const CallPtr& call);
  bool MayOvertake(size_t index) const;

  Ledger& ledger_;
  Dice& dice_;
  const Ends ends_;
  Asker asker_;
  std::vector<Message> messages_;
  std::vector<CallPtr> calls_;
  int64_t last_id_ = 0;
  int64_t carried_tensors_ = 0;
};

}  // namespace ferry::simulation

#endif  // FERRY_TESTS_RENDEZVOUS_SIMULATION_NETWORK_H_

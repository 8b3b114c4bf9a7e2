// SPDX-License-Identifier: Apache-2.0
// Messages in flight, and the order of their delivery.
#include "tests/rendezvous/simulation_network.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ferry::simulation {

class Network::Fetch final : public RemoteFetch {
 public:
  Fetch(Network& network, CallPtr call) : network_(network), call_(std::move(call)) {}
  void Cancel() override { network_.CallOff(call_); }

 private:
  Network& network_;
  const CallPtr call_;
};

class Network::Fetcher final : public RemoteFetcher {
 public:
  Fetcher(Network& network, int client) : network_(network), client_(client) {}
  std::shared_ptr<RemoteFetch> Fetch(int64_t step_id, const RendezvousKey& key, const RecvArgs&,
                                     RecvCallback done) override {
    return network_.Begin(client_, step_id, key, std::move(done));
  }

 private:
  Network& network_;
  const int client_;
};

std::unique_ptr<RemoteFetcher> Network::FetcherOf(int client) {
  return std::make_unique<Fetcher>(*this, client);
}

std::shared_ptr<RemoteFetch> Network::Begin(int client, int64_t step_id, const RendezvousKey& key,
                                            RecvCallback done) {
  ++ledger_.report().fetches;
  ledger_.Expect(asker_.receive != nullptr && asker_.receive->key == key,
                 "a fetch that nobody asked for");
  auto call = std::make_shared<Call>(Call{.id = ++last_id_,
                                          .client = client,
                                          .server = static_cast<int>(key.src().task.task),
                                          .step_id = step_id,
                                          .key = key,
                                          .asker = std::exchange(asker_, {}),
                                          .done = std::move(done)});
  calls_.push_back(call);
  messages_.push_back({Kind::kRequest, call});
  ends_.while_issuing(call);
  return std::make_shared<class Fetch>(*this, call);
}

// A second cancel of one call, as lossy transports send it, must do no harm.
void Network::CallOff(const CallPtr& call) {
  const int copies = call->id % 5 == 0 ? 2 : 1;
  ++call->cancels;
  for (int i = 0; i < copies; ++i) messages_.push_back({Kind::kCancel, call});
}

// Requests for one value are served in the order in which they were made.
bool Network::MayOvertake(size_t index) const {
  const Message& message = messages_[index];
  if (message.kind != Kind::kRequest) return true;
  return std::none_of(messages_.begin(), messages_.begin() + static_cast<int64_t>(index),
                      [&message](const Message& earlier) {
                        return earlier.kind == Kind::kRequest &&
                               earlier.call->client == message.call->client &&
                               earlier.call->step_id == message.call->step_id &&
                               earlier.call->key == message.call->key;
                      });
}

bool Network::Deliver() {
  if (messages_.empty()) return false;
  std::sort(messages_.begin(), messages_.end());
  auto index = static_cast<size_t>(dice_.Roll(static_cast<int>(messages_.size())));
  if (!MayOvertake(index)) index = 0;
  const Message message = messages_[index];
  messages_.erase(messages_.begin() + static_cast<int64_t>(index));
  const CallPtr& call = message.call;
  switch (message.kind) {
    case Kind::kRequest:
      if (call->state != Call::State::kRequested) break;
      call->state = Call::State::kServed;
      ends_.serve(call);
      break;
    case Kind::kCancel:
      // It may be there before the request.
      if (call->state > Call::State::kServed) break;
      ends_.call_off(call);
      break;
    case Kind::kAnswer:
      Finish(call);
      break;
  }
  return true;
}

void Network::Answer(const CallPtr& call, absl::Status status, Received received, Outcome outcome) {
  if (call->state == Call::State::kLost) return;
  ledger_.Expect(call->state == Call::State::kServed, "an answer to what was not asked");
  call->state = Call::State::kAnswered;
  if (received.tensor.is_valid()) ++carried_tensors_;
  call->status = std::move(status);
  call->received = std::move(received);
  call->outcome = std::move(outcome);
  messages_.push_back({Kind::kAnswer, call});
}

void Network::Refuse(const CallPtr& call) {
  call->status = absl::UnavailableError("no connection");
  call->outcome = Error(absl::StatusCode::kUnavailable, "no connection");
  Finish(call);
}

void Network::Finish(const CallPtr& call) {
  call->state = Call::State::kOver;
  if (call->received.tensor.is_valid()) --carried_tensors_;
  call->asker.step->Fetched(call->asker.receive, call->outcome);
  std::move(call->done)(std::move(call->status), std::move(call->received));
}

void Network::CloseConnectionsOf(int server) {
  for (const CallPtr& call : calls_) {
    if (call->server != server || call->state >= Call::State::kLost) continue;
    if (call->received.tensor.is_valid()) --carried_tensors_;
    call->received = {};
    call->state = Call::State::kLost;
    call->status = absl::UnavailableError("the connection is lost");
    call->outcome = Error(absl::StatusCode::kUnavailable, "the connection is lost");
    messages_.erase(std::remove_if(messages_.begin(), messages_.end(),
                                   [&call](const Message& each) { return each.call == call; }),
                    messages_.end());
    messages_.push_back({Kind::kAnswer, call});
  }
}

void Network::Check() {
  for (const CallPtr& call : calls_) {
    ledger_.Expect(
        call->state == Call::State::kOver || !call->asker.receive->is_answered || call->cancels > 0,
        absl::StrCat("nobody called off the fetch of receive ", call->asker.receive->id));
  }
  calls_.erase(
      std::remove_if(calls_.begin(), calls_.end(),
                     [](const CallPtr& call) { return call->state == Call::State::kOver; }),
      calls_.end());
}

}  // namespace ferry::simulation

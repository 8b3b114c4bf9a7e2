// SPDX-License-Identifier: Apache-2.0
// Transfers by the node's own engine, which selects the path, and by a second one restricted to
// TCP.
#include "cli/demo_tensors.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "cli/demo_worker.h"
#include "cli/pattern.h"
#include "cli/send_recv.h"
#include "node/endpoint_record.h"
#include "transport/control/auth_handshake.h"

namespace ferry::cli {
namespace {

constexpr int64_t kStep = 1;
constexpr int kRounds = 2;
constexpr char kTokenKey[] = "demo/tcp-token";

std::string TcpEndpointKey(int node) { return absl::StrCat("demo/tcp/", node); }

absl::StatusOr<Tensor> MakeTensor(Node& node, size_t bytes, uint64_t seed) {
  FERRY_ASSIGN_OR_RETURN(const Shape shape, Shape::Create({static_cast<int64_t>(bytes)}));
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, node.Allocate("host:0", DataType::kUint8, shape));
  WritePattern(tensor.mutable_data(), bytes, seed);
  return tensor;
}

absl::Status Check(const Received& received, uint64_t seed) {
  const Tensor& tensor = received.tensor;
  const size_t errors = CountPatternErrors(tensor.data(), tensor.bytes(), seed);
  if (errors == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(errors, " of ", tensor.bytes(), " bytes that came by ",
                                          received.path, " are wrong"));
}

// Returns "demo-65536": the name in the key, and the seed of the pattern.
std::string NameOf(size_t bytes) { return absl::StrCat("demo-", bytes); }

absl::Status SendAll(Node& node, Step& step) {
  for (const size_t bytes : kDemoTensorBytes) {
    FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, node.Key(NameOf(bytes), 0, 1));
    FERRY_ASSIGN_OR_RETURN(const Tensor tensor,
                           MakeTensor(node, bytes, PatternSeed(NameOf(bytes), kStep)));
    // The same tensor: the second round shows the cost once the receiver has mapped the memory.
    for (int round = 0; round < kRounds; ++round) {
      FERRY_RETURN_IF_ERROR(step.Send(key, tensor));
    }
  }
  return absl::OkStatus();
}

absl::Status RecvAll(Node& node, Step& step, const std::function<void(const DemoTransfer&)>& tell) {
  for (const size_t bytes : kDemoTensorBytes) {
    FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, node.Key(NameOf(bytes), 0, 1));
    DemoTransfer transfer;
    transfer.bytes = bytes;
    for (int round = 0; round < kRounds; ++round) {
      const absl::Time start = SteadyClock().Now();
      FERRY_ASSIGN_OR_RETURN(const Received received, step.RecvValue(key, kDemoTimeout));
      (round == 0 ? transfer.first : transfer.again) = SteadyClock().Now() - start;
      FERRY_RETURN_IF_ERROR(Check(received, PatternSeed(NameOf(bytes), kStep)));
      transfer.path = DescribePath(node, 0, received);
    }
    tell(transfer);
  }
  return absl::OkStatus();
}

// The transport policy is per engine, so this needs a second one in the same process.
absl::StatusOr<std::unique_ptr<TransferEngine>> StartTcp(Node& node) {
  TransferEngineOptions options;
  for (const TransportFactory& transport : AllTransports(options)) {
    if (!transport.info.capabilities.moves_over_tcp) continue;
    options.require_transport = std::string(transport.info.name);
  }
  options.listen = "127.0.0.1:0";
  FERRY_ASSIGN_OR_RETURN(const coord::CompareAndSetResult token,
                         node.agent().CompareAndSet(kTokenKey, std::nullopt, GenerateSecret()));
  options.token = token.value.value_or("");
  Endpoint self = node.transfer_engine().self();
  self.channels = {};
  coord::Agent* const agent = &node.agent();
  FERRY_ASSIGN_OR_RETURN(
      std::unique_ptr<TransferEngine> engine,
      TransferEngine::Start(
          std::move(options), std::move(self), [agent](int32_t peer, ResolveCallback done) {
            agent->GetAllAsync(
                {TcpEndpointKey(peer)}, kDemoTimeout,
                [peer,
                 done = std::move(done)](absl::StatusOr<std::vector<std::string>> values) mutable {
                  if (!values.ok()) return std::move(done)(values.status());
                  std::move(done)(DecodeEndpoint(values->front(), peer, TcpEndpointKey(peer)));
                });
          }));
  FERRY_RETURN_IF_ERROR(
      node.agent().Set(TcpEndpointKey(node.node_id()), EncodeEndpoint(engine->self())));
  return engine;
}

absl::StatusOr<Received> RecvBy(RemoteRendezvous& rendezvous, const RendezvousKey& key) {
  struct Waiter {
    absl::Notification done;
    absl::Status status;
    Received received;
  };
  auto waiter = std::make_shared<Waiter>();
  rendezvous.RecvAsync(key, {}, [waiter](absl::Status status, Received received) {
    waiter->status = std::move(status);
    waiter->received = std::move(received);
    waiter->done.Notify();
  });
  if (!waiter->done.WaitForNotificationWithTimeout(kDemoTimeout)) {
    return absl::DeadlineExceededError("nothing came over TCP");
  }
  FERRY_RETURN_IF_ERROR(waiter->status);
  return std::move(waiter->received);
}

absl::Status TransferByTcp(Node& node, const std::function<void(const DemoTransfer&)>& tell) {
  const size_t bytes = kDemoTensorBytes[std::size(kDemoTensorBytes) - 1];
  const std::string name = NameOf(bytes);
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<TransferEngine> engine, StartTcp(node));
  FERRY_ASSIGN_OR_RETURN(const auto rendezvous, engine->rendezvous().Find(kStep));
  FERRY_RETURN_IF_ERROR(rendezvous->Initialize(engine->task()));
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, node.Key(name, 0, 1));
  if (node.node_id() == 0) {
    for (int round = 0; round < kRounds; ++round) {
      FERRY_ASSIGN_OR_RETURN(Tensor tensor,
                             MakeTensor(node, bytes, PatternSeed(name, kStep, kRounds + round)));
      FERRY_RETURN_IF_ERROR(rendezvous->Send(key, std::move(tensor)));
    }
  }
  FERRY_RETURN_IF_ERROR(node.agent().Barrier("demo/tcp-sent", kDemoTimeout, {0, 1}));
  if (node.node_id() == 1) {
    DemoTransfer transfer;
    transfer.bytes = bytes;
    for (int round = 0; round < kRounds; ++round) {
      const absl::Time start = SteadyClock().Now();
      FERRY_ASSIGN_OR_RETURN(const Received received, RecvBy(*rendezvous, key));
      (round == 0 ? transfer.first : transfer.again) = SteadyClock().Now() - start;
      FERRY_RETURN_IF_ERROR(Check(received, PatternSeed(name, kStep, kRounds + round)));
      transfer.path = absl::StrCat("by ", received.path, ", asked for");
    }
    tell(transfer);
  }
  // Node 0 keeps its engine running until node 1 has received everything.
  return node.agent().Barrier("demo/tcp-taken", kDemoTimeout, {0, 1});
}

}  // namespace

absl::Status TransferDemoTensors(Node& node, const std::function<void(const DemoTransfer&)>& tell) {
  if (node.node_id() > 1) return absl::OkStatus();
  FERRY_ASSIGN_OR_RETURN(Step step, node.OpenStep(kStep));
  if (node.node_id() == 0) FERRY_RETURN_IF_ERROR(SendAll(node, step));
  // The measurements below must not include waiting for the sender.
  FERRY_RETURN_IF_ERROR(node.agent().Barrier("demo/sent", kDemoTimeout, {0, 1}));
  if (node.node_id() == 1) FERRY_RETURN_IF_ERROR(RecvAll(node, step, tell));
  FERRY_RETURN_IF_ERROR(step.Close(kDemoTimeout));
  return TransferByTcp(node, tell);
}

}  // namespace ferry::cli

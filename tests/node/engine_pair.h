// SPDX-License-Identifier: Apache-2.0
// Two or more nodes' parts in moving tensors, in one process and without a coordinator.
#ifndef FERRY_TESTS_NODE_ENGINE_PAIR_H_
#define FERRY_TESTS_NODE_ENGINE_PAIR_H_

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "node/transfer_engine.h"

namespace ferry {

// Endpoints by node; nodes that are not there yet are answered when they are.
class Directory {
 public:
  EndpointResolver resolver() {
    return [this](int32_t node, ResolveCallback done) {
      Endpoint found;
      {
        absl::MutexLock lock(&mu_);
        if (!endpoints_.contains(node)) {
          return std::move(done)(absl::NotFoundError(absl::StrCat("no node ", node)));
        }
        found = endpoints_.at(node);
      }
      std::move(done)(std::move(found));
    };
  }
  KnownEndpoint known() {
    return [this](int32_t node) -> absl::StatusOr<Endpoint> {
      absl::MutexLock lock(&mu_);
      const auto found = endpoints_.find(node);
      if (found == endpoints_.end()) return absl::NotFoundError(absl::StrCat("no node ", node));
      return found->second;
    };
  }
  void Publish(const Endpoint& endpoint) {
    absl::MutexLock lock(&mu_);
    endpoints_[endpoint.peer.node_id] = endpoint;
  }

 private:
  absl::Mutex mu_;
  absl::flat_hash_map<int32_t, Endpoint> endpoints_;
};

// A node.
struct EngineEnd {
  EngineEnd(Directory& directory, int node, TransferEngineOptions options = {},
            uint64_t incarnation = 0, std::string boot_id = "one machine", NcclJob nccl = {}) {
    options.token = options.token.empty() ? "token" : options.token;
    if (options.listen == ":0") options.listen = "127.0.0.1:0";
    // Some tests also run with every value requested.
    if (std::getenv("FERRY_TEST_NO_EAGER") != nullptr) options.eager = false;
    Endpoint self;
    self.peer = {node, incarnation == 0 ? 1000u + static_cast<uint64_t>(node) : incarnation};
    self.boot_id = std::move(boot_id);
    self.host_name = absl::StrCat("host", node);
    if (options.grpc_listen == ":0") options.grpc_listen = "127.0.0.1:0";
    auto started = TransferEngine::Start(std::move(options), std::move(self), directory.resolver(),
                                         directory.known(), std::move(nccl));
    EXPECT_TRUE(started.ok()) << started.status();
    engine = *std::move(started);
    directory.Publish(engine->self());
  }

  std::shared_ptr<RemoteRendezvous> Step(int64_t id) {
    auto step = engine->rendezvous().Find(id);
    EXPECT_TRUE(step.ok()) << step.status();
    EXPECT_TRUE((*step)->Initialize(engine->task()).ok());
    return *step;
  }

  Tensor Allocate(DataType dtype, const Shape& shape) {
    return *Tensor::Create(dtype, shape, *engine->arena().Allocate(*TensorBytes(dtype, shape)));
  }

  std::unique_ptr<TransferEngine> engine;
};

inline RendezvousKey KeyBetween(const EngineEnd& from, const EngineEnd& to,
                                const std::string& name) {
  const auto device = [](const EngineEnd& end) {
    return absl::StrCat("/job:worker/replica:0/task:", end.engine->self().peer.node_id,
                        "/device:CPU:0");
  };
  return *RendezvousKey::Parse(
      RendezvousKey::Text(device(from), from.engine->self().peer.incarnation, device(to), name));
}

// A pending receive.
class Receipt {
 public:
  RecvCallback callback() {
    return [state = state_](absl::Status status, Received received) {
      absl::MutexLock lock(&state->mu);
      EXPECT_FALSE(state->is_done) << "called twice";
      state->is_done = true;
      state->status = std::move(status);
      state->received = std::move(received);
    };
  }
  // DEADLINE_EXCEEDED of the test itself when nothing arrives.
  absl::StatusOr<Received> Wait(absl::Duration timeout = absl::Seconds(30)) {
    absl::MutexLock lock(&state_->mu);
    if (!state_->mu.AwaitWithTimeout(absl::Condition(&state_->is_done), timeout)) {
      return absl::DeadlineExceededError("the test has waited long enough");
    }
    if (!state_->status.ok()) return state_->status;
    return state_->received;
  }
  bool is_done() const {
    absl::MutexLock lock(&state_->mu);
    return state_->is_done;
  }

 private:
  struct State {
    absl::Mutex mu;
    bool is_done = false;
    absl::Status status;
    Received received;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Bytes that no other tensor has by chance.
inline void FillPattern(Tensor& tensor, uint32_t seed) {
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data());
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (size_t i = 0; i < tensor.bytes(); ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    // Any bits are an element, but of booleans.
    const uint64_t kept = tensor.dtype() == DataType::kBool ? 1 : 0xff;
    bytes[i] = static_cast<unsigned char>((state >> 32) & kept);
  }
}

// Descriptors and mappings of this process, which must not grow.
struct Footprint {
  int descriptors = 0;
  int mappings = 0;
  int threads = 0;
  static Footprint Now();
};

}  // namespace ferry

#endif  // FERRY_TESTS_NODE_ENGINE_PAIR_H_

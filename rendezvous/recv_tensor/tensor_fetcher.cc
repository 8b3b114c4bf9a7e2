// SPDX-License-Identifier: Apache-2.0
// Connections to workers, and starting a fetch.
#include "rendezvous/recv_tensor/tensor_fetcher.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

#include "rendezvous/recv_tensor/recv_tensor_service.h"
#include "rendezvous/recv_tensor/tensor_channel.h"
#include "rendezvous/recv_tensor/tensor_fetch.h"

namespace ferry {
namespace {

using grpc::internal::RpcMethod;

uint64_t RandomStart() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

TensorPeer::TensorPeer(std::string address, std::shared_ptr<grpc::Channel> channel)
    : address(std::move(address)),
      channel(std::move(channel)),
      stream(kTensorStreamPath, RpcMethod::SERVER_STREAMING, this->channel),
      unary(kRecvTensorPath, RpcMethod::NORMAL_RPC, this->channel),
      mark_finished(kMarkRecvFinishedPath, RpcMethod::NORMAL_RPC, this->channel) {}

TensorFetchCore::TensorFetchCore(const Clock& clock, WorkerResolver resolver,
                                 GrpcTensorFetcherOptions options)
    : clock_(clock),
      resolver_(std::move(resolver)),
      options_(std::move(options)),
      next_id_(RandomStart()) {}

absl::StatusOr<std::shared_ptr<TensorPeer>> TensorFetchCore::PeerOf(const TaskName& task) {
  {
    absl::MutexLock lock(&mu_);
    if (const auto found = peers_.find(task); found != peers_.end()) return found->second;
  }
  absl::StatusOr<std::string> address = resolver_(task);
  if (absl::IsNotFound(address.status())) {
    // TensorFlow's code and message.
    return absl::InternalError(
        absl::StrCat("No worker known as ", ToString(task), ": ", address.status().message()));
  }
  if (!address.ok()) return address.status();
  auto peer = std::make_shared<TensorPeer>(*address, MakeTensorChannel(*address));
  absl::MutexLock lock(&mu_);
  return peers_.try_emplace(task, std::move(peer)).first->second;
}

void TensorFetchCore::Forget(const TaskName& task) {
  // Its channel is destroyed after the lock is released.
  std::shared_ptr<TensorPeer> dropped;
  absl::MutexLock lock(&mu_);
  const auto found = peers_.find(task);
  if (found == peers_.end()) return;
  dropped = std::move(found->second);
  peers_.erase(found);
}

int64_t TensorFetchCore::NewRequestId() {
  // SplitMix64: a permutation of the counter. Source: Steele, Lea, Flood, OOPSLA 2014.
  for (;;) {
    uint64_t id = next_id_.fetch_add(0x9e3779b97f4a7c15, std::memory_order_relaxed);
    id = (id ^ (id >> 30)) * 0xbf58476d1ce4e5b9;
    id = (id ^ (id >> 27)) * 0x94d049bb133111eb;
    id ^= id >> 31;
    if (id != 0) return static_cast<int64_t>(id);
  }
}

GrpcTensorFetcher::GrpcTensorFetcher(const Clock& clock, WorkerResolver resolver,
                                     GrpcTensorFetcherOptions options)
    : core_(std::make_shared<TensorFetchCore>(clock, std::move(resolver), std::move(options))) {}

GrpcTensorFetcher::~GrpcTensorFetcher() = default;

std::shared_ptr<RemoteFetch> GrpcTensorFetcher::Fetch(int64_t step_id, const RendezvousKey& key,
                                                      const RecvArgs& args, RecvCallback done) {
  auto fetch = std::make_shared<TensorFetch>(core_, step_id, key, args, std::move(done));
  fetch->Start();
  return fetch;
}

void GrpcTensorFetcher::Forget(const TaskName& task) { core_->Forget(task); }

}  // namespace ferry

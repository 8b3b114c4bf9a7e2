// SPDX-License-Identifier: Apache-2.0
// NcclTransport's answers about a path, while other threads bring its GPUs into use.
#include "transport/nccl/nccl_transport.h"

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "net/event_loop.h"
#include "tests/transport/nccl/no_store.h"
#include "transport/nccl/nccl_descriptor.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kRounds = 100;
#else
constexpr int kRounds = 200;
#endif

class NcclTransportTest : public ::testing::Test {
 protected:
  NcclTransportTest() {
    for (const char* const name : {"FERRY_CUDA_LIBRARY", "FERRY_NCCL_LIBRARY"}) {
      setenv(name, FERRY_STRICT_CUDA, /*overwrite=*/1);
    }
    cuda_ = *cuda::CudaApi::Load();
    nccl_ = *nccl::NcclApi::Load();
    gpus_ = *Gpus::Create(cuda_, AllocateHeapBuffer, nullptr, {});
    loop_ = *EventLoop::Create({});
    for (int node = 0; node < 2; ++node) {
      nodes_[node].peer = {node, 1000u + static_cast<uint64_t>(node)};
      nodes_[node].transports = {{"nccl", EncodeNcclPeer({.version = nccl_->version()})}};
      for (int gpu = 0; gpu < 2; ++gpu) {
        nodes_[node].gpus.push_back(absl::StrCat("GPU-", node, "-", gpu));
      }
    }
  }

  // For node 0. As a node of the job has one.
  std::unique_ptr<NcclTransport> Make() {
    TransportEnvironment environment;
    environment.loop = loop_.get();
    environment.gpus = gpus_.get();
    environment.node_id = 0;
    environment.incarnation = nodes_[0].peer.incarnation;
    NcclJob job;
    job.library = nccl_;
    job.store = [](std::shared_ptr<BootstrapStoreListener>) { return std::make_unique<NoStore>(); };
    job.device_of = [](int32_t node, int ordinal) {
      return std::optional<DeviceId>(DeviceId(node * 16 + ordinal));
    };
    return std::make_unique<NcclTransport>(environment, NcclTransportOptions(), job);
  }
  // From the other node's GPU 0 to this one's.
  absl::Status Cost(const NcclTransport& transport) const {
    PathQuery query;
    query.source = &nodes_[1];
    query.destination = &nodes_[0];
    query.bytes = 1 << 20;
    query.source_location = query.destination_location = {MemorySpace::kCuda, 0};
    return transport.Cost(query).status();
  }
  // A transfer descriptor for another process is refused, and this process's GPU 0 is in use from
  // then on.
  void Use(NcclTransport& transport) const {
    const auto receiver = transport.CreateReceiver(nodes_[1], [](uint64_t) {});
    TensorHeader header;
    header.location = {MemorySpace::kCuda, 0};
    receiver->Fetch(1, header, EncodeNcclDescriptor({{DeviceId(16), DeviceId(5), 1}, std::nullopt}),
                    {}, Tensor(),
                    [](const absl::StatusOr<Tensor>& taken, TransportReceiver::FetchInfo) {
                      EXPECT_TRUE(absl::IsInvalidArgument(taken.status())) << taken.status();
                    });
    receiver->Abort(absl::CancelledError("the test is over"));
  }

  std::shared_ptr<const cuda::CudaApi> cuda_;
  std::shared_ptr<const nccl::NcclApi> nccl_;
  std::unique_ptr<Gpus> gpus_;
  std::unique_ptr<EventLoop> loop_;
  Endpoint nodes_[2];
};

// A sender selects a path while the first transfer descriptor of another thread arrives: a GPU that
// this node brings into use meanwhile is not another node's.
TEST_F(NcclTransportTest, GpuThatIsComingIntoUse_IsNoReason) {
  constexpr int kAsking = 2;
  constexpr int kQuestions = 10;
  std::unique_ptr<NcclTransport> transport;
  std::vector<absl::Status> refused(kAsking);
  std::barrier round(kAsking + 1);
  std::vector<std::thread> asking;
  for (int i = 0; i < kAsking; ++i) {
    asking.emplace_back([&, i] {
      for (int at = 0; at < kRounds; ++at) {
        round.arrive_and_wait();
        for (int j = 0; j < kQuestions; ++j)
          refused[static_cast<size_t>(i)].Update(Cost(*transport));
        round.arrive_and_wait();
      }
    });
  }
  // Other threads delay a caller between two of its queries.
  std::atomic<bool> is_over = false;
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&] {
      while (!is_over) gpus_->nccl_arbiter(0)->CheckKeyed().IgnoreError();
    });
  }
  for (int at = 0; at < kRounds; ++at) {
    transport = Make();
    round.arrive_and_wait();
    Use(*transport);
    round.arrive_and_wait();
    transport = nullptr;
  }
  for (std::thread& thread : asking) thread.join();
  is_over = true;
  for (std::thread& thread : others) thread.join();
  for (const absl::Status& each : refused) EXPECT_TRUE(each.ok()) << each;
}

TEST_F(NcclTransportTest, GpuOfAnotherNodeOfTheProcess_IsNamed) {
  const std::unique_ptr<NcclTransport> transport = Make();
  {
    const std::unique_ptr<NcclTransport> other = Make();
    EXPECT_TRUE(Cost(*transport).ok()) << Cost(*transport);
    Use(*other);
    EXPECT_THAT(std::string(Cost(*transport).message()),
                HasSubstr("another node of this process has keyed transfers by NCCL on gpu:0"));
    EXPECT_TRUE(Cost(*other).ok()) << Cost(*other);
  }
  EXPECT_TRUE(Cost(*transport).ok()) << Cost(*transport);
}

}  // namespace
}  // namespace ferry

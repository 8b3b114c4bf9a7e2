// SPDX-License-Identifier: Apache-2.0
// Ranks of communicators in one process, each on a thread and a GPU of the fake driver.
#ifndef FERRY_TESTS_GPU_COMMUNICATOR_FAKE_DRIVER_RANKS_H_
#define FERRY_TESTS_GPU_COMMUNICATOR_FAKE_DRIVER_RANKS_H_

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "base/thread.h"
#include "gpu/communicator/communicator.h"
#include "tests/gpu/cuda_fixture.h"
#include "tests/node/directory_store.h"

namespace ferry {

using Held = std::map<int, std::shared_ptr<NcclCommunicator>>;

inline constexpr absl::Duration kTooLong = absl::Seconds(30);
inline constexpr int kGpuCount = 4;

class FakeDriverRanks : public testing::Test {
 protected:
  FakeDriverRanks() {
    for (const char* const name : {"FERRY_CUDA_LIBRARY", "FERRY_NCCL_LIBRARY"}) {
      setenv(name, FERRY_STRICT_CUDA, /*overwrite=*/1);
    }
    setenv("STRICT_CUDA_DEVICES", absl::StrCat(kGpuCount).c_str(), 1);
    setenv("STRICT_CUDA_NCCL_VERSION", "23203", 1);
    gpus_ = *Gpus::Create(*cuda::CudaApi::Load(), AllocateHeapBuffer, nullptr, {});
    api_ = *nccl::NcclApi::Load();
  }
  ~FakeDriverRanks() override {
    reinterpret_cast<void (*)()>(cuda::StrictSymbol("strict_cuda_clear_faults"))();
    gpus_->Stop();
    std::filesystem::remove_all(folder_);
  }

  // Makes the communicator of `devices`; those of `calling` call, each on a thread. `origins`: what
  // a device makes it of; null: it joins.
  struct Made {
    Held communicators;
    std::map<int, absl::Status> errors;
  };
  Made Make(const std::vector<int>& devices, const Held& origins = {},
            std::vector<int> calling = {}, absl::Duration timeout = kTooLong) {
    std::vector<CommunicatorMember> members;
    for (const int device : devices) {
      members.push_back({device, 1000 + static_cast<uint64_t>(device)});
    }
    const CommunicatorKey key = *CommunicatorKey::Create(members);
    if (calling.empty()) calling = devices;
    absl::Mutex mu;
    Made made;
    std::vector<std::unique_ptr<Thread>> threads;
    for (size_t rank = 0; rank < devices.size(); ++rank) {
      const int device = devices[rank];
      if (std::find(calling.begin(), calling.end(), device) == calling.end()) continue;
      threads.push_back(std::make_unique<Thread>("rank", [&, device, rank] {
        CommunicatorOptions options = {.timeout = timeout};
        options.is_gone = [this](const CommunicatorMember& member) {
          return gone_.contains(member.device);
        };
        if (origins.contains(device)) options.origin = {.from = origins.at(device)};
        if (keep_going_) options.keep_going = [this, device] { return keep_going_(device); };
        auto result = NcclCommunicator::Make(api_, *gpus_, device, key, static_cast<int>(rank),
                                             DirectoryStores(folder_), options);
        const absl::MutexLock lock(&mu);
        if (result.ok()) {
          made.communicators[device] = *std::move(result);
        } else {
          made.errors[device] = result.status();
        }
        if (on_ended_) on_ended_(made.communicators.size() + made.errors.size());
      }));
    }
    threads.clear();
    return made;
  }
  static void ExpectWay(const Made& made, size_t count, CommunicatorWay way) {
    EXPECT_EQ(made.communicators.size(), count);
    for (const auto& [device, communicator] : made.communicators) {
      EXPECT_EQ(communicator->way(), way) << device;
    }
    for (const auto& [device, error] : made.errors) ADD_FAILURE() << device << ": " << error;
  }
  static Held Of(const Held& all, const std::vector<int>& devices) {
    Held some;
    for (const int device : devices) some[device] = all.at(device);
    return some;
  }

  // An operation that waits for a rank that never joins.
  void Hang(NcclCommunicator& communicator) {
    Gpu* const gpu = *gpus_->Get(communicator.ordinal());
    streams_.push_back(*cuda::CudaStream::Create(gpu->device));
    const cuda::Stream stream = streams_.back()->get();
    void* const data = Memory(*gpu);
    EXPECT_TRUE(communicator
                    .Run(stream,
                         [&](const nccl::NcclTable& table, nccl::Communicator comm) {
                           return table.all_reduce(data, data, 1, nccl::kInt32, nccl::kReduceSum,
                                                   comm, stream);
                         })
                    .ok());
  }
  void* Memory(Gpu& gpu) {
    buffers_.push_back(*gpu.arena->Allocate(64));
    return buffers_.back()->data();
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "ferry-ranks-", getpid());
  std::unique_ptr<Gpus> gpus_;
  std::shared_ptr<const nccl::NcclApi> api_;
  std::vector<std::shared_ptr<Buffer>> buffers_;
  std::vector<std::unique_ptr<cuda::CudaStream>> streams_;
  // Devices whose processes count as ended.
  std::set<int> gone_;
  // CommunicatorOptions::keep_going of each device, if set.
  std::function<absl::Status(int device)> keep_going_;
  // Called when a rank's call of Make has ended, with the number of those.
  std::function<void(size_t count)> on_ended_;
};

}  // namespace ferry

#endif  // FERRY_TESTS_GPU_COMMUNICATOR_FAKE_DRIVER_RANKS_H_

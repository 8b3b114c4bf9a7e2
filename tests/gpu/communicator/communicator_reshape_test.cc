// SPDX-License-Identifier: Apache-2.0
// Communicators that are made of others, on the fake driver: by the members that are left, and with
// new ones.
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

#include <gmock/gmock.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/thread.h"
#include "gpu/communicator/communicator.h"
#include "tests/gpu/cuda_fixture.h"
#include "tests/node/directory_store.h"

namespace ferry {
namespace {

using testing::HasSubstr;
using Held = std::map<int, std::shared_ptr<NcclCommunicator>>;

constexpr absl::Duration kTooLong = absl::Seconds(30);
constexpr int kGpuCount = 4;

class CommunicatorReshapeTest : public testing::Test {
 protected:
  CommunicatorReshapeTest() {
    for (const char* const name : {"FERRY_CUDA_LIBRARY", "FERRY_NCCL_LIBRARY"}) {
      setenv(name, FERRY_STRICT_CUDA, /*overwrite=*/1);
    }
    setenv("STRICT_CUDA_DEVICES", absl::StrCat(kGpuCount).c_str(), 1);
    setenv("STRICT_CUDA_NCCL_VERSION", "23203", 1);
    gpus_ = *Gpus::Create(*cuda::CudaApi::Load(), AllocateHeapBuffer, nullptr, {});
    api_ = *nccl::NcclApi::Load();
  }
  ~CommunicatorReshapeTest() override {
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

  const std::string folder_ = absl::StrCat(testing::TempDir(), "ferry-reshape-", getpid());
  std::unique_ptr<Gpus> gpus_;
  std::shared_ptr<const nccl::NcclApi> api_;
  std::vector<std::shared_ptr<Buffer>> buffers_;
  std::vector<std::unique_ptr<cuda::CudaStream>> streams_;
  // Devices whose processes count as ended.
  std::set<int> gone_;
  // Called when a rank's call of Make has ended, with the number of those.
  std::function<void(size_t count)> on_ended_;
};

// Making it ends with a warm-up: all of its ranks have exchanged data.
TEST_F(CommunicatorReshapeTest, SurvivorsOfADeadMemberShrink) {
  Made all = Make({0, 1, 2});
  ExpectWay(all, 3, CommunicatorWay::kCreate);
  // They wait for the dead one, and for each other.
  Hang(*all.communicators[0]);
  Hang(*all.communicators[2]);
  gone_ = {1};
  const Made some = Make({0, 2}, Of(all.communicators, {0, 2}));
  ExpectWay(some, 2, CommunicatorWay::kShrink);
  EXPECT_EQ(all.communicators[0]->get(), nullptr);
  EXPECT_EQ(some.communicators.at(2)->rank(), 1);
}

// Its operation with a survivor runs, and reads what the end of the origin frees.
TEST_F(CommunicatorReshapeTest, ExcludedMemberThatIsAlive_StopsFirst) {
  Made all = Make({0, 1, 2});
  NcclCommunicator& excluded = *all.communicators[1];
  Hang(excluded);
  const Thread ending("excluded", [&excluded] {
    while (excluded.Check().ok()) absl::SleepFor(absl::Milliseconds(1));
    absl::SleepFor(absl::Milliseconds(50));
    excluded.Abort(absl::AbortedError("another rank has left it"));
  });
  ExpectWay(Make({0, 2}, Of(all.communicators, {0, 2})), 2, CommunicatorWay::kShrink);
}

TEST_F(CommunicatorReshapeTest, ShrunkOneShrinksAgain) {
  Made all = Make({0, 1, 2, 3});
  gone_ = {0};
  Made some = Make({1, 2, 3}, Of(all.communicators, {1, 2, 3}));
  ExpectWay(some, 3, CommunicatorWay::kShrink);
  gone_ = {0, 2};
  ExpectWay(Make({1, 3}, Of(some.communicators, {1, 3})), 2, CommunicatorWay::kShrink);
}

TEST_F(CommunicatorReshapeTest, NewMembersJoin) {
  Made two = Make({0, 1});
  Held origins = two.communicators;
  origins[2] = nullptr;
  origins[3] = nullptr;
  const Made four = Make({0, 1, 2, 3}, origins);
  ExpectWay(four, 4, CommunicatorWay::kGrow);
  EXPECT_EQ(two.communicators[1]->get(), nullptr);
}

TEST_F(CommunicatorReshapeTest, OneOfASingleMemberGrows) {
  Made one = Make({0});
  Held origins = one.communicators;
  origins[1] = nullptr;
  ExpectWay(Make({0, 1}, origins), 2, CommunicatorWay::kGrow);
}

TEST_F(CommunicatorReshapeTest, RankWithoutAnOrigin_AllCreateIt) {
  Made all = Make({0, 1, 2});
  ExpectWay(Make({0, 2}, Of(all.communicators, {0})), 2, CommunicatorWay::kCreate);
}

// Its operations would never end.
TEST_F(CommunicatorReshapeTest, OriginWithWorkInFlight_DoesNotGrow) {
  Made two = Make({0, 1});
  Hang(*two.communicators[1]);
  Held origins = two.communicators;
  origins[2] = nullptr;
  ExpectWay(Make({0, 1, 2}, origins), 3, CommunicatorWay::kCreate);
}

TEST_F(CommunicatorReshapeTest, ShrinkFailsOnOneRank_AllCreateIt) {
  Made all = Make({0, 1, 2});
  gone_ = {1};
  cuda::FailNext("ncclCommShrink", nccl::kInternalError);
  ExpectWay(Make({0, 2}, Of(all.communicators, {0, 2})), 2, CommunicatorWay::kCreate);
}

TEST_F(CommunicatorReshapeTest, GrowFailsOnOneRank_AllCreateIt) {
  Made two = Make({0, 1});
  Held origins = two.communicators;
  origins[2] = nullptr;
  cuda::FailNext("ncclCommGrow", nccl::kSystemError);
  ExpectWay(Make({0, 1, 2}, origins), 3, CommunicatorWay::kCreate);
}

TEST_F(CommunicatorReshapeTest, OriginThatCannotBeRevoked_IsAbortedAndCreatedAnew) {
  Made all = Make({0, 1, 2});
  gone_ = {1};
  cuda::FailNext("ncclCommRevoke", nccl::kInvalidUsage);
  ExpectWay(Make({0, 2}, Of(all.communicators, {0, 2})), 2, CommunicatorWay::kCreate);
}

TEST_F(CommunicatorReshapeTest, MemberThatNeverCalls_IsNamed) {
  Made all = Make({0, 1, 2, 3});
  Made some = Make({0, 1, 2}, Of(all.communicators, {0, 1}), {0, 1}, absl::Seconds(1));
  ASSERT_EQ(some.errors.size(), 2u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(some.errors[0])) << some.errors[0];
  // The one whose time is over first: the other goes on to the next generation for a moment.
  EXPECT_THAT(absl::StrCat(some.errors[0].message(), some.errors[1].message()),
              HasSubstr("1 of 3: rank 2 (device 2) has not come"));
  EXPECT_EQ(all.communicators[0]->get(), nullptr);
}

// It has said that it takes part, and then hangs in the call, as if it had died.
TEST_F(CommunicatorReshapeTest, FurtherMemberDiesWhileTheSurvivorsShrink) {
  Made all = Make({0, 1, 2, 3});
  cuda::FailNext("ncclCommShrink", -1);
  on_ended_ = [](size_t count) {
    if (count < 2) return;
    reinterpret_cast<void (*)()>(cuda::StrictSymbol("strict_cuda_clear_faults"))();
  };
  const Made some = Make({0, 1, 2}, Of(all.communicators, {0, 1, 2}), {}, absl::Milliseconds(500));
  EXPECT_EQ(some.errors.size(), 3u);
  for (const auto& [device, error] : some.errors) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(error)) << error;
  }
  // Those that are left go on.
  ExpectWay(Make({0, 1}), 2, CommunicatorWay::kCreate);
}

}  // namespace
}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// Ids from an NCCL that hangs while it looks for the network: the cost of the hang, and the errors.
#include "gpu/nccl/unique_ids.h"

#include <dlfcn.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"

namespace ferry::nccl {
namespace {

using ::testing::HasSubstr;

class UniqueIdsTest : public ::testing::Test {
 protected:
  UniqueIdsTest() {
    setenv("FERRY_NCCL_LIBRARY", FERRY_STRICT_CUDA, /*overwrite=*/1);
    api_ = *NcclApi::Load();
    unsetenv("FERRY_NCCL_LIBRARY");
  }
  ~UniqueIdsTest() override { ComeBack(); }

  void* Symbol(const char* name) {
    return dlsym(dlopen(FERRY_STRICT_CUDA, RTLD_NOW | RTLD_LOCAL), name);
  }
  void HangNext() {
    reinterpret_cast<void (*)(const char*, int, int)>(Symbol("strict_cuda_fail_next"))(
        "ncclGetUniqueId", -1, 0);
  }
  // Calls of the fake library that hang now.
  int Hanging() { return reinterpret_cast<int (*)()>(Symbol("strict_cuda_hanging"))(); }
  void AwaitHang() {
    for (int i = 0; i < 10000 && Hanging() == 0; ++i) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(Hanging(), 1);
  }
  // The hanging calls return.
  void ComeBack() {
    reinterpret_cast<void (*)()>(Symbol("strict_cuda_clear_faults"))();
    for (int i = 0; i < 10000 && Threads() > 0; ++i) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(Threads(), 0);
  }
  // Threads that request ids from NCCL.
  static int Threads() {
    int count = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::ifstream(task.path() / "comm") >> name;
      count += name == "ferry-ncclid" ? 1 : 0;
    }
    return count;
  }
  using Ids = absl::StatusOr<std::vector<std::string>>;
  Ids Mint(absl::Duration timeout, int count = 1) {
    return CreateUniqueIds(api_, count, SteadyClock().Now() + timeout,
                           [] { return absl::OkStatus(); });
  }

  std::shared_ptr<const NcclApi> api_;
};

// A job that retries, each time with a thread that would hang forever.
TEST_F(UniqueIdsTest, AtMostOneThreadHangs) {
  HangNext();
  const absl::Status late = CreateUniqueIds(api_, 1, absl::InfinitePast(), [this] {
                              AwaitHang();
                              return absl::OkStatus();
                            }).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("ncclGetUniqueId has not returned for "));
  // The next would hang too, if it were started.
  HangNext();
  for (int i = 0; i < 5; ++i) {
    const absl::Status refused = Mint(absl::Hours(1)).status();
    EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("NCCL does not answer in this process: an earlier ncclGetUniqueId, which "
                          "has timed out, has not returned for "));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("NCCL_SOCKET_IFNAME"));
  }
  EXPECT_EQ(Threads(), 1);
  ComeBack();
  const Ids ids = Mint(absl::Hours(1), 2);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_NE(ids->front(), ids->back());
}

// It is slow, and no caller has given up: the second caller gets ids as well.
TEST_F(UniqueIdsTest, SecondCallerWaitsForTheFirst) {
  HangNext();
  Ids first = absl::UnknownError("not yet");
  std::thread other([&] { first = Mint(absl::Hours(1)); });
  AwaitHang();
  int looks = 0;
  const Ids second = CreateUniqueIds(api_, 1, absl::InfiniteFuture(), [&] {
    if (++looks == 3) ComeBack();
    return absl::OkStatus();
  });
  other.join();
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE(*first, *second);
  EXPECT_GE(looks, 3) << "two at a time";
}

TEST_F(UniqueIdsTest, SecondCallerHasItsOwnTimeout) {
  HangNext();
  Ids first = absl::UnknownError("not yet");
  std::thread other([&] { first = Mint(absl::Hours(1)); });
  AwaitHang();
  const absl::Status late = Mint(absl::ZeroDuration()).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()),
              HasSubstr("waited for another ncclGetUniqueId of this process"));
  const absl::Status cancelled = CreateUniqueIds(api_, 1, absl::InfiniteFuture(), [] {
                                   return absl::CancelledError("it is not wanted any more");
                                 }).status();
  EXPECT_TRUE(absl::IsCancelled(cancelled)) << cancelled;
  ComeBack();
  other.join();
  EXPECT_TRUE(first.ok()) << first.status();
}

}  // namespace
}  // namespace ferry::nccl

// SPDX-License-Identifier: Apache-2.0
// CommunicatorCache: what an Acquire that fails leaves behind, in the store and for its threads.
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#include "node/communicator_cache.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Communicator = std::shared_ptr<NcclCommunicator>;

constexpr absl::Duration kLong = absl::Minutes(1);

// A store in memory. Reads of keys with the prefix `fails_under` fail.
class MapUseRecordStore final : public UseRecordStore {
 public:
  absl::Status Put(const std::string& key, absl::string_view value) override {
    absl::MutexLock lock(&mu_);
    store_[key] = std::string(value);
    return absl::OkStatus();
  }
  absl::Status Erase(const std::string& key) override {
    absl::MutexLock lock(&mu_);
    store_.erase(key);
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key) override {
    absl::MutexLock lock(&mu_);
    if (!fails_under_.empty() && absl::StartsWith(key, fails_under_)) {
      return absl::UnavailableError("the store is out of reach");
    }
    const auto found = store_.find(key);
    if (found == store_.end()) return std::nullopt;
    return found->second;
  }
  absl::StatusOr<std::vector<std::string>> KeysUnder(const std::string& prefix) override {
    absl::MutexLock lock(&mu_);
    std::vector<std::string> keys;
    for (const auto& [key, value] : store_) {
      if (absl::StartsWith(key, prefix)) keys.push_back(key);
    }
    return keys;
  }
  absl::StatusOr<bool> CompareAndSet(const std::string& key,
                                     const std::optional<std::string>& expected,
                                     absl::string_view desired) override {
    absl::MutexLock lock(&mu_);
    const auto found = store_.find(key);
    const bool exists = found != store_.end();
    if (exists != expected.has_value() || (exists && found->second != *expected)) return false;
    store_[key] = std::string(desired);
    return true;
  }

  void FailUnder(std::string prefix) {
    absl::MutexLock lock(&mu_);
    fails_under_ = std::move(prefix);
  }
  bool Has(const std::string& key) const {
    absl::MutexLock lock(&mu_);
    return store_.contains(key);
  }

 private:
  mutable absl::Mutex mu_;
  std::map<std::string, std::string> store_ ABSL_GUARDED_BY(mu_);
  std::string fails_under_ ABSL_GUARDED_BY(mu_);
};

// The cache of rank 0 of a communicator of two.
class CommunicatorCacheUseRecord : public ::testing::Test {
 protected:
  ~CommunicatorCacheUseRecord() override { EXPECT_TRUE(cache_->Stop(kLong).ok()); }

  absl::Status Acquire(absl::Duration timeout = kLong,
                       absl::Status makes = absl::InternalError("NCCL made none")) {
    return cache_
        ->Acquire(key_, /*rank=*/0, /*ordinal=*/0, timeout,
                  [&]() -> absl::StatusOr<Communicator> {
                    ++makes_;
                    EXPECT_TRUE(store_.Has(own_.UseKey())) << "another rank may end it meanwhile";
                    return makes;
                  })
        .status();
  }
  // Another rank needs the memory.
  bool OtherRankCanEndIt() {
    CommunicatorUseRecord other(key_, 1, store_, SteadyClock(), [] { return absl::OkStatus(); });
    return other.TryEndForAll(/*generation=*/1, SteadyClock().Now()).value();
  }

  MapUseRecordStore store_;
  const CommunicatorKey key_ = *CommunicatorKey::Create({{0, 100}, {1, 100}});
  CommunicatorUseRecord own_{key_, 0, store_, SteadyClock(), [] { return absl::OkStatus(); }};
  std::shared_ptr<CommunicatorCache> cache_ = std::make_shared<CommunicatorCache>(
      store_, uint64_t{1} << 30, [](int ordinal) { return uint64_t{0}; });
  int makes_ = 0;
};

// Another rank could otherwise never free its memory.
TEST_F(CommunicatorCacheUseRecord, CommunicatorThatCannotBeMade_IsNotInUse) {
  for (int i = 1; i <= 2; ++i) {
    EXPECT_EQ(Acquire(), absl::InternalError("NCCL made none"));
    EXPECT_EQ(makes_, i);
    EXPECT_FALSE(store_.Has(own_.UseKey()));
  }
  EXPECT_TRUE(OtherRankCanEndIt());
}

TEST_F(CommunicatorCacheUseRecord, StoreThatFails_LeavesNoUseAndTheNextCallTriesAgain) {
  for (const std::string& unreadable : {own_.LeavingKey(), key_.GenerationKey()}) {
    store_.FailUnder(unreadable);
    EXPECT_TRUE(absl::IsUnavailable(Acquire())) << unreadable;
    EXPECT_FALSE(store_.Has(own_.UseKey())) << unreadable;
  }
  EXPECT_EQ(makes_, 0);
  store_.FailUnder("");
  EXPECT_EQ(Acquire(), absl::InternalError("NCCL made none"));
  EXPECT_EQ(makes_, 1);
}

TEST_F(CommunicatorCacheUseRecord, RankThatIsAboutToEndIt_IsWaitedForUntilTheDeadline) {
  ASSERT_TRUE(store_.Put(own_.LeavingKey(), "rank 1 (device 1)").ok());
  const absl::Status late = Acquire(absl::Milliseconds(5));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("rank 1 (device 1) to decide"));
  EXPECT_FALSE(store_.Has(own_.UseKey()));
  ASSERT_TRUE(store_.Erase(own_.LeavingKey()).ok());
  EXPECT_EQ(Acquire(), absl::InternalError("NCCL made none"));
}

TEST_F(CommunicatorCacheUseRecord, ThreadThatWaitsForAnotherThread_WaitsUntilItsDeadline) {
  absl::Notification is_making;
  absl::Notification may_return;
  std::thread maker([&] {
    const absl::Status made = cache_
                                  ->Acquire(key_, 0, 0, kLong,
                                            [&]() -> absl::StatusOr<Communicator> {
                                              is_making.Notify();
                                              may_return.WaitForNotificationWithTimeout(kLong);
                                              return absl::InternalError("NCCL made none");
                                            })
                                  .status();
    EXPECT_TRUE(absl::IsInternal(made)) << made;
  });
  ASSERT_TRUE(is_making.WaitForNotificationWithTimeout(kLong));
  const absl::Status late = Acquire(absl::Milliseconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(
      std::string(late.message()),
      AllOf(HasSubstr(key_.Describe()), HasSubstr("another thread has been making it for over")));
  EXPECT_TRUE(store_.Has(own_.UseKey())) << "the other thread's use was ended";
  EXPECT_FALSE(OtherRankCanEndIt());
  may_return.Notify();
  maker.join();
  EXPECT_EQ(Acquire(), absl::InternalError("NCCL made none"));
}

TEST_F(CommunicatorCacheUseRecord, AfterStop_NothingIsMadeOrUsed) {
  ASSERT_TRUE(cache_->Stop(kLong).ok());
  const absl::Status leaving = Acquire();
  EXPECT_TRUE(absl::IsFailedPrecondition(leaving)) << leaving;
  EXPECT_EQ(makes_, 0);
  EXPECT_FALSE(store_.Has(own_.UseKey()));
}

// A member's later incarnation is another communicator's.
TEST_F(CommunicatorCacheUseRecord, Forget_FailsTheCommunicatorsWithThatMemberAlone) {
  EXPECT_TRUE(cache_->CheckAlive(key_).ok());
  cache_->Forget(
      [](const CommunicatorMember& member) {
        return member == CommunicatorMember{1, 100};
      },
      absl::UnavailableError("it was killed"));
  const absl::Status dead = cache_->CheckAlive(key_);
  EXPECT_TRUE(absl::IsUnavailable(dead)) << dead;
  EXPECT_THAT(std::string(dead.message()),
              AllOf(HasSubstr("rank 1 (device 1)"), HasSubstr("is gone: it was killed")));
  EXPECT_TRUE(cache_->CheckAlive(*CommunicatorKey::Create({{0, 100}, {1, 101}})).ok());
  EXPECT_TRUE(cache_->CheckAlive(*CommunicatorKey::Create({{0, 100}})).ok());
}

}  // namespace
}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// Communicators that are cached while ranks die, and when NCCL does not release them.
#include "node/communicator_cache.h"

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/gpu_patterns.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Communicator = std::shared_ptr<NcclCommunicator>;

// Far longer than it takes on a loaded machine, and far shorter than a rank waits for another one.
constexpr absl::Duration kMuchSooner = absl::Seconds(30);

// A store that takes its time to erase.
class SlowUseRecordStore final : public DirectoryUseRecordStore {
 public:
  using DirectoryUseRecordStore::DirectoryUseRecordStore;

  absl::Status Erase(const std::string& key) override {
    if (on_erase_) on_erase_();
    return DirectoryUseRecordStore::Erase(key);
  }
  void OnErase(std::function<void()> on_erase) { on_erase_ = std::move(on_erase); }

 private:
  std::function<void()> on_erase_;
};

// The cache of a node. GPU 0 of the producer is rank 0 of its communicators, GPU 1 of the consumer
// rank 1.
class Keeper final {
 public:
  explicit Keeper(GpuPeer& peer, uint64_t budget_bytes = uint64_t{1} << 30)
      : peer_(peer),
        rank_(static_cast<int>(peer.transfer_engine().self().peer.node_id)),
        use_record_store_(absl::StrCat(std::getenv("STRICT_CUDA_SESSION"), "/store")),
        kept_(std::make_shared<CommunicatorCache>(use_record_store_, budget_bytes,
                                                  [](int ordinal) { return uint64_t{0}; })) {}
  ~Keeper() {
    if (kept_ != nullptr) {
      EXPECT_TRUE(kept_->Stop(kTimeout).ok());
    }
  }

  CommunicatorKey Both(absl::string_view purpose = "") const {
    return *CommunicatorKey::Create({Member(0), Member(1)}, purpose);
  }
  CommunicatorKey Own() const { return *CommunicatorKey::Create({Member(rank_)}); }

  // made: is cached, or in use, while the entry exists.
  absl::StatusOr<Communicator> Acquire(const CommunicatorKey& key,
                                       absl::Duration timeout = kTimeout,
                                       std::weak_ptr<NcclCommunicator>* made = nullptr,
                                       Communicator origin = nullptr) {
    const NcclJob& nccl = peer_.transfer_engine().nccl();
    const int rank = key.size() == 1 ? 0 : rank_;
    CommunicatorOptions options;
    options.timeout = timeout;
    options.keep_going = [this, &key] { return kept_->CheckAlive(key); };
    if (origin != nullptr) options.origin = {.from = std::move(origin)};
    return kept_->Acquire(key, rank, rank_, timeout, [&]() -> absl::StatusOr<Communicator> {
      FERRY_ASSIGN_OR_RETURN(Communicator all,
                             NcclCommunicator::Make(nccl.library, peer_.gpus(), rank_, key, rank,
                                                    nccl.store, options));
      if (made != nullptr) *made = all;
      return all;
    });
  }
  // The other rank has died.
  void Forget() {
    kept_->Forget(
        [gone = Member(1 - rank_)](const CommunicatorMember& member) { return member == gone; },
        absl::UnavailableError("it was killed"));
  }
  std::shared_ptr<CommunicatorCache>& kept() { return kept_; }
  SlowUseRecordStore& use_record_store() { return use_record_store_; }

 private:
  CommunicatorMember Member(int node) const {
    return {peer_.transfer_engine().nccl().device_of(node, node)->value(),
            1000u + static_cast<uint64_t>(node)};
  }

  GpuPeer& peer_;
  const int rank_;
  SlowUseRecordStore use_record_store_;
  std::shared_ptr<CommunicatorCache> kept_;
};

bool EndsWithin(absl::Duration timeout, const std::weak_ptr<NcclCommunicator>& made) {
  const absl::Time deadline = SteadyClock().Now() + timeout;
  while (!made.expired() && SteadyClock().Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  return made.expired();
}

GpuPairOptions OnTwoMachines(bool consumer_dies = false) {
  GpuPairOptions options;
  options.is_apart = true;
  options.consumer_dies = consumer_dies;
  return options;
}

// Both ranks have the communicator, and the consumer keeps it or still has it when it is killed.
void HasAndIsKilled(GpuPeer& peer, bool lets_go) {
  Keeper keeper(peer);
  absl::StatusOr<Communicator> all = keeper.Acquire(keeper.Both());
  ASSERT_TRUE(all.ok()) << all.status();
  if (lets_go) *all = nullptr;
  peer.Meet();
  kill(getpid(), SIGKILL);
}

TEST(CommunicatorCache, RankDies_ItsCachedCommunicatorsAreDroppedAndTheRestStay) {
  NEEDS_FAKE_DRIVER("has two GPUs for two processes");
  for (const bool lets_go : {true, false}) {
    RunGpuPair(
        OnTwoMachines(/*consumer_dies=*/true),
        [](GpuPeer& peer) {
          Keeper keeper(peer);
          std::weak_ptr<NcclCommunicator> made;
          std::weak_ptr<NcclCommunicator> own_made;
          absl::StatusOr<Communicator> all = keeper.Acquire(keeper.Both(), kTimeout, &made);
          ASSERT_TRUE(all.ok()) << all.status();
          absl::StatusOr<Communicator> own = keeper.Acquire(keeper.Own(), kTimeout, &own_made);
          ASSERT_TRUE(own.ok()) << own.status();
          *all = nullptr;
          *own = nullptr;
          peer.Meet();
          EXPECT_FALSE(EndsWithin(absl::Milliseconds(100), made));
          keeper.Forget();
          EXPECT_TRUE(EndsWithin(kMuchSooner, made));
          own = keeper.Acquire(keeper.Own());
          ASSERT_TRUE(own.ok()) << own.status();
          EXPECT_EQ((*own).get(), own_made.lock().get()) << "it has nothing to do with that";
        },
        [&](GpuPeer& peer) { HasAndIsKilled(peer, lets_go); });
  }
}

TEST(CommunicatorCache, RankDies_TheSurvivorGoesOnWithoutIt) {
  NEEDS_FAKE_DRIVER("has two GPUs for two processes");
  RunGpuPair(
      OnTwoMachines(/*consumer_dies=*/true),
      [](GpuPeer& peer) {
        Keeper keeper(peer);
        std::weak_ptr<NcclCommunicator> made;
        absl::StatusOr<Communicator> all = keeper.Acquire(keeper.Both(), kTimeout, &made);
        ASSERT_TRUE(all.ok()) << all.status();
        peer.Meet();
        keeper.Forget();
        const absl::StatusOr<Communicator> own =
            keeper.Acquire(keeper.Own(), kTimeout, nullptr, *std::move(all));
        ASSERT_TRUE(own.ok()) << own.status();
        EXPECT_EQ((*own)->way(), CommunicatorWay::kShrink);
        EXPECT_TRUE(EndsWithin(kMuchSooner, made));
      },
      [](GpuPeer& peer) { HasAndIsKilled(peer, /*lets_go=*/false); });
}

// It is not taken away from its user, and not cached afterwards.
TEST(CommunicatorCache, RankDies_CommunicatorsInUseAreNotCached) {
  NEEDS_FAKE_DRIVER("has two GPUs for two processes");
  RunGpuPair(
      OnTwoMachines(/*consumer_dies=*/true),
      [](GpuPeer& peer) {
        Keeper keeper(peer);
        std::weak_ptr<NcclCommunicator> made;
        absl::StatusOr<Communicator> all = keeper.Acquire(keeper.Both(), kTimeout, &made);
        ASSERT_TRUE(all.ok()) << all.status();
        peer.Meet();
        keeper.Forget();
        EXPECT_FALSE(EndsWithin(absl::Milliseconds(100), made));
        const absl::Status late = keeper.Acquire(keeper.Both()).status();
        EXPECT_TRUE(absl::IsUnavailable(late)) << late;
        *all = nullptr;
        EXPECT_TRUE(made.expired());
      },
      [](GpuPeer& peer) { HasAndIsKilled(peer, /*lets_go=*/false); });
}

// Its user has released it, and the store has not recorded that yet.
TEST(CommunicatorCache, RankDies_CommunicatorThatIsBeingReleasedIsDropped) {
  NEEDS_FAKE_DRIVER("has two GPUs for two processes");
  RunGpuPair(
      OnTwoMachines(/*consumer_dies=*/true),
      [](GpuPeer& peer) {
        Keeper keeper(peer);
        std::weak_ptr<NcclCommunicator> made;
        absl::StatusOr<Communicator> all = keeper.Acquire(keeper.Both(), kTimeout, &made);
        ASSERT_TRUE(all.ok()) << all.status();
        peer.Meet();
        keeper.use_record_store().OnErase([&keeper] {
          keeper.Forget();
          absl::SleepFor(absl::Milliseconds(300));
        });
        *all = nullptr;
        keeper.use_record_store().OnErase(nullptr);
        EXPECT_TRUE(EndsWithin(kMuchSooner, made));
      },
      [](GpuPeer& peer) { HasAndIsKilled(peer, /*lets_go=*/false); });
}

// The other rank does not take part: the call would end at its deadline.
TEST(CommunicatorCache, StopEndsCallsInProgress) {
  NEEDS_FAKE_DRIVER("has two GPUs for two processes");
  RunGpuPair(
      OnTwoMachines(),
      [](GpuPeer& peer) {
        Keeper keeper(peer);
        std::atomic<bool> has_returned{false};
        absl::Status left;
        std::thread job([&] {
          left = keeper.Acquire(keeper.Both(), absl::Minutes(2)).status();
          has_returned = true;
        });
        absl::SleepFor(absl::Milliseconds(200));
        const absl::Time start = SteadyClock().Now();
        EXPECT_TRUE(keeper.kept()->Stop(absl::Minutes(1)).ok());
        EXPECT_TRUE(has_returned) << "it uses what is destroyed after Stop";
        job.join();
        EXPECT_LT(SteadyClock().Now() - start, kMuchSooner);
        EXPECT_TRUE(absl::IsFailedPrecondition(left)) << left;
      },
      [](GpuPeer&) {});
}

// One that another rank has ended, in the hands of a user of this one: NCCL hangs in its end.
TEST(CommunicatorCache, RequestDoesNotWaitForTheEndOfTheOneBefore) {
  NEEDS_FAKE_DRIVER("can make NCCL hang");
  GpuPairOptions options = OnTwoMachines();
  options.producer_environment = {{"STRICT_CUDA_FAIL", "ncclCommDestroy:-1:0:1"}};
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        Keeper keeper(peer);
        const CommunicatorKey key = keeper.Own();
        absl::StatusOr<Communicator> first = keeper.Acquire(key);
        ASSERT_TRUE(first.ok()) << first.status();
        // Neither the sweep nor its release has ended it.
        keeper.use_record_store().OnErase(
            [&] { ASSERT_TRUE(keeper.use_record_store().Put(key.GenerationKey(), "2").ok()); });
        *first = nullptr;
        keeper.use_record_store().OnErase(nullptr);
        const absl::Time start = SteadyClock().Now();
        const absl::StatusOr<Communicator> second = keeper.Acquire(key);
        EXPECT_TRUE(second.ok()) << second.status();
        EXPECT_LT(SteadyClock().Now() - start, kMuchSooner);
        EXPECT_TRUE(absl::IsUnavailable(keeper.kept()->Stop(absl::Milliseconds(300))));
        std::fflush(nullptr);
        std::_Exit(testing::Test::HasFailure() ? 1 : 0);
      },
      [](GpuPeer&) {});
}

// Its user aborts it, and has not released it when another thread requests one.
TEST(CommunicatorCache, CommunicatorThatWasReplaced_IsReleasedWithoutTheNextOne) {
  NEEDS_FAKE_DRIVER("has two GPUs for two processes");
  RunGpuPair(
      OnTwoMachines(),
      [](GpuPeer& peer) {
        Keeper keeper(peer);
        absl::StatusOr<Communicator> first = keeper.Acquire(keeper.Own());
        ASSERT_TRUE(first.ok()) << first.status();
        (*first)->Abort(absl::CancelledError("it is not wanted any more"));
        const absl::StatusOr<Communicator> second = keeper.Acquire(keeper.Own());
        ASSERT_TRUE(second.ok()) << second.status();
        ASSERT_NE(*second, *first);
        *first = nullptr;
        const absl::StatusOr<Communicator> third = keeper.Acquire(keeper.Own());
        ASSERT_TRUE(third.ok()) << third.status();
        EXPECT_EQ(*third, *second) << "while it is in use, callers share it";
      },
      [](GpuPeer&) {});
}

// Long before its own deadline.
TEST(CommunicatorCache, RankDies_WaitersGetItsName) {
  NEEDS_FAKE_DRIVER("has two GPUs for two processes");
  RunGpuPair(
      OnTwoMachines(/*consumer_dies=*/true),
      [](GpuPeer& peer) {
        Keeper keeper(peer);
        std::thread job([&keeper] {
          absl::SleepFor(absl::Milliseconds(300));
          keeper.Forget();
        });
        const absl::Time start = SteadyClock().Now();
        absl::Status late = keeper.Acquire(keeper.Both(), absl::Minutes(1)).status();
        job.join();
        EXPECT_TRUE(absl::IsUnavailable(late)) << late;
        EXPECT_THAT(std::string(late.message()),
                    AllOf(HasSubstr("rank 1 (device 17)"), HasSubstr("it was killed")));
        // One that was killed when it was about to end it for its memory.
        const CommunicatorKey key = keeper.Both();
        CommunicatorUseRecord use_record(key, 0, keeper.use_record_store(), SteadyClock(),
                                         [] { return absl::OkStatus(); });
        ASSERT_TRUE(
            keeper.use_record_store().Put(use_record.LeavingKey(), "rank 1 (device 17)").ok());
        late = keeper.Acquire(key, absl::Minutes(1)).status();
        EXPECT_TRUE(absl::IsUnavailable(late)) << late;
        EXPECT_LT(SteadyClock().Now() - start, kMuchSooner);
      },
      [](GpuPeer& peer) { kill(getpid(), SIGKILL); });
}

// Concurrent requests for one communicator get the same one, next to requests that no other rank
// makes.
TEST(CommunicatorCache, ManyThreadsRequestAtOnce) {
  NEEDS_FAKE_DRIVER("has two GPUs for two processes");
  const auto run = [](GpuPeer& peer) {
    Keeper keeper(peer);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&keeper, thread] {
        for (int i = 0; i < 20; ++i) {
          const auto all = keeper.Acquire(thread == 0 ? keeper.Own() : keeper.Both());
          ASSERT_TRUE(all.ok()) << all.status();
          EXPECT_EQ((*all)->generation(), 1u) << "it was kept, or somebody had it";
          if (i % 5 == 0) absl::SleepFor(absl::Milliseconds(thread));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    peer.Meet();
  };
  RunGpuPair(OnTwoMachines(), run, run);
}

// The warm-ups of communicators that share a GPU have one order on all ranks, whatever the order of
// the threads' requests.
TEST(CommunicatorCache, ThreadsRequestDifferentOnesInDifferentOrders) {
  NEEDS_FAKE_DRIVER("has two GPUs for two processes");
  const auto run = [](GpuPeer& peer, bool is_reversed) {
    Keeper keeper(peer);
    constexpr int kCount = 4;
    for (int round = 0; round < 8; ++round) {
      std::vector<std::thread> threads;
      for (int i = 0; i < kCount; ++i) {
        threads.emplace_back([&, which = is_reversed ? kCount - 1 - i : i] {
          const auto all = keeper.Acquire(keeper.Both(absl::StrCat(round, " ", which)));
          EXPECT_TRUE(all.ok()) << all.status();
        });
      }
      for (std::thread& thread : threads) thread.join();
      peer.Meet();
    }
  };
  RunGpuPair(
      OnTwoMachines(), [&](GpuPeer& peer) { run(peer, /*is_reversed=*/false); },
      [&](GpuPeer& peer) { run(peer, /*is_reversed=*/true); });
}

// NCCL hangs while it looks for the network: neither the waiting caller nor the device may hang.
TEST(CommunicatorCache, CreationThatNeverReturns) {
  NEEDS_FAKE_DRIVER("can make NCCL hang");
  GpuPairOptions options = OnTwoMachines();
  options.producer_environment = {{"STRICT_CUDA_FAIL", "ncclGetUniqueId:-1"}};
  const auto ask = [](GpuPeer& peer, Keeper& keeper, absl::Duration timeout) {
    peer.Meet();
    const absl::Time start = SteadyClock().Now();
    const absl::Status late = keeper.Acquire(keeper.Both(), timeout).status();
    EXPECT_LT(SteadyClock().Now() - start, kMuchSooner);
    EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
    return std::string(late.message());
  };
  RunGpuPair(
      options,
      [&](GpuPeer& peer) {
        Keeper keeper(peer);
        EXPECT_THAT(ask(peer, keeper, absl::Seconds(4)),
                    HasSubstr("ncclGetUniqueId has not returned for "));
        // Requests during the hang fail, and leave no second thread behind.
        const absl::Status refused = keeper.Acquire(keeper.Own()).status();
        EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
        EXPECT_THAT(
            std::string(refused.message()),
            HasSubstr("an earlier ncclGetUniqueId, which has timed out, has not returned "));
        peer.Control<void (*)()>("strict_cuda_clear_faults")();
        auto own = keeper.Acquire(keeper.Own());
        for (int i = 0; i < 1000 && absl::IsUnavailable(own.status()); ++i) {
          absl::SleepFor(absl::Milliseconds(10));
          own = keeper.Acquire(keeper.Own());
        }
        EXPECT_TRUE(own.ok()) << own.status();
        peer.Meet();
      },
      [&](GpuPeer& peer) {
        Keeper keeper(peer);
        EXPECT_THAT(ask(peer, keeper, absl::Seconds(2)),
                    HasSubstr("for rank 0 (device 0) to publish the ids"));
        peer.Meet();
      });
}

// A process leaves nonetheless, and the state that the hanging thread may return to stays
// allocated.
TEST(CommunicatorCache, EndThatNeverReturns) {
  NEEDS_FAKE_DRIVER("can make NCCL hang");
  for (const bool is_forgotten : {false, true}) {
    GpuPairOptions options = OnTwoMachines();
    options.consumer_environment = {{"STRICT_CUDA_FAIL", "ncclCommDestroy:-1"}};
    RunGpuPair(
        options,
        [](GpuPeer& peer) {
          Keeper keeper(peer);
          ASSERT_TRUE(keeper.Acquire(keeper.Both()).ok());
          peer.Meet();
          peer.Meet();
        },
        [&](GpuPeer& peer) {
          Keeper keeper(peer);
          ASSERT_TRUE(keeper.Acquire(keeper.Both()).ok());
          // The other one has it too.
          peer.Meet();
          if (is_forgotten) keeper.Forget();
          peer.Meet();
          const absl::Time start = SteadyClock().Now();
          const absl::Status stopped = keeper.kept()->Stop(absl::Milliseconds(300));
          EXPECT_LT(SteadyClock().Now() - start, kMuchSooner);
          EXPECT_TRUE(absl::IsUnavailable(stopped)) << stopped;
          EXPECT_THAT(std::string(stopped.message()), HasSubstr("NCCL does not release it"));
          const std::weak_ptr<CommunicatorCache> kept = keeper.kept();
          keeper.kept() = nullptr;
          EXPECT_FALSE(kept.expired());
          // Used by the thread that hangs.
          std::fflush(nullptr);
          std::_Exit(testing::Test::HasFailure() ? 1 : 0);
        });
  }
}

// An abort would end either process.
TEST(CommunicatorCache, IdleOnesAreNotAborted) {
  NEEDS_FAKE_DRIVER("kills the process at a call");
  GpuPairOptions options = OnTwoMachines();
  options.producer_environment = {{"STRICT_CUDA_FAIL", "ncclCommAbort:-2"}};
  options.consumer_environment = options.producer_environment;
  const auto body = [](GpuPeer& peer) {
    Keeper keeper(peer, /*budget_bytes=*/0);
    {
      const auto both = keeper.Acquire(keeper.Both());
      ASSERT_TRUE(both.ok()) << both.status();
      // The other one may still be warming up: its work would be in flight when this one ends it.
      peer.Meet();
    }
    peer.Meet();
    EXPECT_TRUE(keeper.kept()->Stop(absl::Seconds(30)).ok());
  };
  RunGpuPair(options, body, body);
}

// Only one of them has its memory requested, and NCCL does not release it.
TEST(CommunicatorCache, CommunicatorThatDoesNotEnd_DelaysNoOther) {
  NEEDS_FAKE_DRIVER("can make NCCL hang");
  GpuPairOptions options = OnTwoMachines();
  options.consumer_environment = {{"STRICT_CUDA_FAIL", "ncclCommDestroy:-1:0:1"}};
  RunGpuPair(
      options,
      [](GpuPeer& peer) {
        Keeper keeper(peer);
        const auto all = keeper.Acquire(keeper.Both());
        EXPECT_TRUE(all.ok()) << all.status();
        peer.Meet();
      },
      [](GpuPeer& peer) {
        // Each is taken for 16 MiB at least.
        Keeper keeper(peer, /*budget_bytes=*/uint64_t{20} << 20);
        ASSERT_TRUE(keeper.Acquire(keeper.Own()).ok());
        {
          const absl::Time start = SteadyClock().Now();
          const auto all = keeper.Acquire(keeper.Both());
          EXPECT_TRUE(all.ok()) << all.status();
          EXPECT_LT(SteadyClock().Now() - start, kMuchSooner);
        }
        peer.Meet();
        EXPECT_TRUE(absl::IsUnavailable(keeper.kept()->Stop(absl::Milliseconds(300))));
        std::fflush(nullptr);
        std::_Exit(testing::Test::HasFailure() ? 1 : 0);
      });
}

}  // namespace
}  // namespace ferry

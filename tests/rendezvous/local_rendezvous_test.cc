// SPDX-License-Identifier: Apache-2.0
// The local table.
#include "rendezvous/local_rendezvous.h"

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "absl/synchronization/blocking_counter.h"

#include "rendezvous_fixture.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kLong = absl::Seconds(30);
constexpr char kCancelled[] = "CANCELLED: [_Derived_]RecvAsync is cancelled.";

class Context final : public DeviceContext {};

class Local : public ::testing::Test {
 protected:
  std::string Recv(absl::string_view edge, absl::Duration timeout = kLong) {
    const absl::StatusOr<Received> received = rendezvous_.Recv(Key(edge), timeout);
    if (!received.ok()) return received.status().ToString();
    return received->is_dead ? "dead" : received->tensor.strings()[0];
  }
  absl::Status Send(absl::string_view edge, absl::string_view value) {
    return rendezvous_.Send(Key(edge), Value(value));
  }

  FakeClock clock_;
  Results results_;
  LocalRendezvous rendezvous_{clock_};
};

TEST_F(Local, StepsAreSeparate) {
  LocalRendezvous other(clock_);
  ASSERT_TRUE(Send("e", "of this step").ok());
  ASSERT_TRUE(other.Send(Key("e"), Value("of the other")).ok());
  EXPECT_EQ(Recv("e"), "of this step");
  EXPECT_EQ(other.Recv(Key("e"), kLong)->tensor.strings()[0], "of the other");
}

TEST_F(Local, ValueWaitsForItsReceiver) {
  ASSERT_TRUE(Send("e", "v").ok());
  EXPECT_EQ(rendezvous_.waiting_count(), 1u);
  EXPECT_EQ(Recv("e"), "v");
  EXPECT_EQ(rendezvous_.waiting_count(), 0u);
}

TEST_F(Local, ReceiverWaitsForItsValue) {
  std::thread sender([this] {
    while (rendezvous_.waiting_count() == 0) std::this_thread::yield();
    ASSERT_TRUE(Send("e", "v").ok());
  });
  EXPECT_EQ(Recv("e"), "v");
  sender.join();
}

TEST_F(Local, PingPongAlternatesStrictly) {
  constexpr int kRounds = 500;
  std::thread other([this] {
    for (int i = 0; i < kRounds; ++i) {
      ASSERT_EQ(Recv("foo"), absl::StrCat("foo", i));
      ASSERT_TRUE(Send("bar", absl::StrCat("bar", i)).ok());
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    ASSERT_TRUE(Send("foo", absl::StrCat("foo", i)).ok());
    ASSERT_EQ(Recv("bar"), absl::StrCat("bar", i));
  }
  other.join();
}

TEST_F(Local, SendsOfAKeyQueueInOrder) {
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Send("e", absl::StrCat(i)).ok());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Recv("e"), absl::StrCat(i));
}

TEST_F(Local, ReceivesOfAKeyQueueInOrder) {
  for (int i = 0; i < 3; ++i) rendezvous_.RecvAsync(Key("e"), {}, results_.Writer());
  for (const char* value : {"a", "b", "c"}) ASSERT_TRUE(Send("e", value).ok());
  EXPECT_THAT(results_.all(), ElementsAre("a", "b", "c"));
}

TEST_F(Local, ManyKeysMatchInAnyOrder) {
  constexpr int kKeys = 1000;
  std::vector<std::atomic<int>> hits(kKeys);
  std::vector<std::thread> threads;
  for (const bool sends : {true, false}) {
    threads.emplace_back([&, sends] {
      std::vector<int> order(kKeys);
      for (int i = 0; i < kKeys; ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), std::mt19937(sends ? 1 : 2));
      for (const int i : order) {
        const std::string name = absl::StrCat("edge", i);
        if (sends) {
          ASSERT_TRUE(Send(name, name).ok());
        } else {
          rendezvous_.RecvAsync(Key(name), {}, [&hits, i, name](absl::Status status, Received r) {
            ASSERT_TRUE(status.ok());
            ASSERT_EQ(r.tensor.strings()[0], name);
            ++hits[i];
          });
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& hit : hits) ASSERT_EQ(hit, 1);
  EXPECT_EQ(rendezvous_.waiting_count(), 0u);
}

TEST_F(Local, ReceiveThatIsAlreadyCancelledDoesNotWait) {
  CancellationToken cancellation;
  cancellation.Cancel();
  rendezvous_.RecvAsync(Key("e"), {.cancellation = &cancellation}, results_.Writer());
  EXPECT_THAT(results_.all(), ElementsAre(kCancelled));
  EXPECT_EQ(rendezvous_.waiting_count(), 0u);
  // A value that is there is given all the same.
  ASSERT_TRUE(Send("e", "v").ok());
  rendezvous_.RecvAsync(Key("e"), {.cancellation = &cancellation}, results_.Writer());
  EXPECT_THAT(results_.all(), ElementsAre(kCancelled, "v"));
}

TEST_F(Local, CancelEndsThePendingReceives) {
  CancellationToken cancellation;
  rendezvous_.RecvAsync(Key("e"), {}, results_.Writer());
  rendezvous_.RecvAsync(Key("e"), {.cancellation = &cancellation}, results_.Writer());
  rendezvous_.RecvAsync(Key("e"), {.cancellation = &cancellation}, results_.Writer());
  rendezvous_.RecvAsync(Key("e"), {}, results_.Writer());
  cancellation.Cancel();
  EXPECT_THAT(results_.all(), ElementsAre(kCancelled, kCancelled));
  ASSERT_TRUE(Send("e", "a").ok());
  ASSERT_TRUE(Send("e", "b").ok());
  EXPECT_THAT(results_.all(), ElementsAre(kCancelled, kCancelled, "a", "b"));
}

// Only the receive of the token ends, wherever it waits.
TEST_F(Local, CancelEndsNoOtherReceiveOfTheKey) {
  std::vector<CancellationToken> cancellations(2);
  std::vector<Results> results(3);
  rendezvous_.RecvAsync(Key("e"), {}, results[0].Writer());
  rendezvous_.RecvAsync(Key("e"), {.cancellation = &cancellations[0]}, results[1].Writer());
  rendezvous_.RecvAsync(Key("e"), {.cancellation = &cancellations[1]}, results[2].Writer());
  cancellations[1].Cancel();
  EXPECT_THAT(results[2].all(), ElementsAre(kCancelled));
  ASSERT_TRUE(Send("e", "a").ok());
  ASSERT_TRUE(Send("e", "b").ok());
  EXPECT_THAT(results[0].all(), ElementsAre("a"));
  EXPECT_THAT(results[1].all(), ElementsAre("b"));
}

TEST_F(Local, CancelAfterTheValueDoesNothing) {
  CancellationToken cancellation;
  rendezvous_.RecvAsync(Key("e"), {.cancellation = &cancellation}, results_.Writer());
  ASSERT_TRUE(Send("e", "v").ok());
  cancellation.Cancel();
  EXPECT_THAT(results_.all(), ElementsAre("v"));
}

// A cancellation after the end of the step has no effect.
TEST_F(Local, CancellationMayOutliveTheTable) {
  CancellationToken cancellation;
  {
    LocalRendezvous other(clock_);
    other.RecvAsync(Key("e"), {.cancellation = &cancellation}, results_.Writer());
  }
  cancellation.Cancel();
  EXPECT_THAT(results_.all(), ElementsAre("CANCELLED: LocalRendezvousImpl deleted"));
}

TEST_F(Local, AbortEndsABlockedReceive) {
  std::thread aborter([this] {
    while (rendezvous_.waiting_count() == 0) std::this_thread::yield();
    rendezvous_.StartAbort(absl::AbortedError("gone"));
  });
  EXPECT_EQ(Recv("e"), "ABORTED: gone");
  aborter.join();
}

TEST_F(Local, AbortIsPermanentAndTheFirstReasonCounts) {
  rendezvous_.StartAbort(absl::AbortedError("first"));
  rendezvous_.StartAbort(absl::InternalError("second"));
  EXPECT_EQ(Send("e", "v").ToString(), "ABORTED: first");
  EXPECT_EQ(Recv("e"), "ABORTED: first");
  EXPECT_EQ(rendezvous_.abort_status().message(), "first");
}

TEST_F(Local, AbortReleasesTheMemoryOfUnsentValues) {
  int released = 0;
  char memory[64];
  for (int i = 0; i < 10; ++i) {
    Tensor tensor = *Tensor::Create(DataType::kUint8, *Shape::Create({64}),
                                    WrapForeignBuffer(memory, 64, [&released] { ++released; }));
    ASSERT_TRUE(rendezvous_.Send(Key(absl::StrCat(i % 3)), std::move(tensor)).ok());
  }
  EXPECT_EQ(rendezvous_.queued_bytes(), 640u);
  rendezvous_.StartAbort(absl::AbortedError("gone"));
  EXPECT_EQ(released, 10);
  EXPECT_EQ(rendezvous_.queued_bytes(), 0u);
  EXPECT_EQ(rendezvous_.waiting_count(), 0u);
}

TEST_F(Local, BothDeviceContextsReachTheReceiver) {
  const auto of_sender = std::make_shared<Context>();
  const auto of_receiver = std::make_shared<Context>();
  int calls = 0;
  const auto check = [&](absl::Status, Received received) {
    ++calls;
    EXPECT_EQ(received.send_args.device_context, of_sender);
    EXPECT_EQ(received.recv_args.device_context, of_receiver);
  };
  ASSERT_TRUE(rendezvous_.Send(Key("e"), Value("v"), false, {of_sender}).ok());
  rendezvous_.RecvAsync(Key("e"), {.device_context = of_receiver}, check);
  rendezvous_.RecvAsync(Key("f"), {.device_context = of_receiver}, check);
  ASSERT_TRUE(rendezvous_.Send(Key("f"), Value("v"), false, {of_sender}).ok());
  EXPECT_EQ(calls, 2);
}

TEST_F(Local, DeadValueHasNoContent) {
  ASSERT_TRUE(rendezvous_.Send(Key("e"), Tensor(), /*is_dead=*/true).ok());
  EXPECT_EQ(Recv("e"), "dead");
}

TEST_F(Local, DestructionCancelsPendingReceives) {
  auto other = std::make_unique<LocalRendezvous>(clock_);
  other->RecvAsync(Key("e"), {}, results_.Writer());
  other = nullptr;
  EXPECT_THAT(results_.all(), ElementsAre("CANCELLED: LocalRendezvousImpl deleted"));
}

TEST_F(Local, ReceiveThatTimesOutLeavesTheValueToTheNext) {
  const std::string result = Recv("e", absl::Milliseconds(20));
  EXPECT_THAT(result, StartsWith("DEADLINE_EXCEEDED: waited 20ms for /job:worker/"));
  EXPECT_THAT(result, HasSubstr("no node has sent"));
  EXPECT_EQ(rendezvous_.waiting_count(), 0u);
  ASSERT_TRUE(Send("e", "late").ok());
  EXPECT_EQ(rendezvous_.waiting_count(), 1u);
  EXPECT_EQ(Recv("e"), "late");
}

TEST_F(Local, ChainsOfCallbacksMayHaveAnyLength) {
  constexpr int kDepth = 10'000;
  int done = 0;
  for (int i = 0; i < kDepth; ++i) {
    rendezvous_.RecvAsync(Key(absl::StrCat(i)), {}, [&, i](absl::Status status, Received) {
      ASSERT_TRUE(status.ok());
      ++done;
      if (i + 1 < kDepth) {
        ASSERT_TRUE(Send(absl::StrCat(i + 1), "v").ok());
      }
    });
  }
  ASSERT_TRUE(Send("0", "v").ok());
  EXPECT_EQ(done, kDepth);
}

TEST_F(Local, DeadlinesUseTheGivenClock) {
  const absl::Time start = clock_.Now();
  for (const int seconds : {20, 10, 30}) {
    rendezvous_.RecvAsync(Key(absl::StrCat("e", seconds)),
                          {.deadline = start + absl::Seconds(seconds)}, results_.Writer());
  }
  EXPECT_EQ(rendezvous_.NextDeadline(), start + absl::Seconds(10));
  ASSERT_TRUE(Send("e20", "in time").ok());
  clock_.Advance(absl::Seconds(20));
  rendezvous_.Expire();
  ASSERT_EQ(results_.size(), 2u);
  EXPECT_EQ(results_.all()[0], "in time");
  EXPECT_THAT(results_.all()[1], StartsWith("DEADLINE_EXCEEDED: no node has sent"));
  EXPECT_THAT(results_.all()[1], HasSubstr(";e10;"));
  EXPECT_EQ(rendezvous_.NextDeadline(), start + absl::Seconds(30));
}

// Every exchange has one, and most are met: they must not accumulate.
TEST_F(Local, DeadlinesThatWereMetAreForgotten) {
  const absl::Time deadline = clock_.Now() + absl::Hours(1);
  for (int i = 0; i < 100'000; ++i) {
    rendezvous_.RecvAsync(Key("e"), {.deadline = deadline}, [](absl::Status, Received) {});
    ASSERT_TRUE(rendezvous_.Send(Key("e"), Tensor()).ok());
  }
  // Some stay until it pays to look for them; not one for each receive.
  EXPECT_LT(rendezvous_.InnerTableSizes()["table.deadlines"], 200u);
  clock_.Advance(absl::Hours(2));
  rendezvous_.Expire();
  EXPECT_EQ(rendezvous_.NextDeadline(), absl::InfiniteFuture());
  EXPECT_EQ(NonEmptyTables(rendezvous_.InnerTableSizes()), "");
}

// A send whose receives are served, cancelled, timed out and aborted at once ends each exactly
// once.
TEST_F(Local, EveryReceiveEndsOnceUnderAnyRace) {
  std::mt19937 random(20261120);
  for (int round = 0; round < 300; ++round) {
    FakeClock clock;
    LocalRendezvous rendezvous(clock);
    CancellationToken cancellation;
    constexpr int kReceives = 8;
    std::atomic<int> ended = 0;
    std::atomic<int> values = 0;
    for (int i = 0; i < kReceives; ++i) {
      rendezvous.RecvAsync(Key("e"),
                           {.cancellation = i % 2 == 0 ? &cancellation : nullptr,
                            .deadline = clock.Now() + absl::Seconds(i % 3 + 1)},
                           [&](absl::Status status, Received) {
                             ++ended;
                             if (status.ok()) ++values;
                           });
    }
    std::atomic<int> accepted = 0;
    std::vector<std::function<void()>> racers = {
        [&] { cancellation.Cancel(); },
        [&] {
          clock.Advance(absl::Seconds(2));
          rendezvous.Expire();
        },
        [&] {
          for (int i = 0; i < 4; ++i) {
            if (rendezvous.Send(Key("e"), Tensor()).ok()) ++accepted;
          }
        },
        [&] { rendezvous.StartAbort(absl::AbortedError("over")); },
    };
    std::shuffle(racers.begin(), racers.end(), random);
    std::vector<std::thread> threads;
    for (auto& racer : racers) threads.emplace_back(racer);
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(ended, kReceives);
    ASSERT_LE(values, accepted);
    ASSERT_EQ(rendezvous.waiting_count(), 0u);
    ASSERT_EQ(rendezvous.queued_bytes(), 0u);
  }
}

}  // namespace
}  // namespace ferry

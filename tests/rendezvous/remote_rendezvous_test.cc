// SPDX-License-Identifier: Apache-2.0
// Steps of a worker, with a fetcher that the test controls.
#include "rendezvous/remote_rendezvous.h"

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/rendezvous_manager.h"
#include "rendezvous_fixture.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

constexpr absl::Duration kLocalWait = absl::Seconds(30);

TaskName Task(int task) { return {"worker", 0, task}; }

// From task `src` to task `dst`.
RendezvousKey KeyOf(int src, int dst, absl::string_view edge = "e") {
  return *RendezvousKey::Parse(
      RendezvousKey::Text(absl::StrCat("/job:worker/replica:0/task:", src, "/device:CPU:0"), 1,
                          absl::StrCat("/job:worker/replica:0/task:", dst, "/device:CPU:0"), edge));
}

// Keeps its requests until the test answers.
class FakeFetcher final : public RemoteFetcher {
 public:
  class Call final : public RemoteFetch {
   public:
    explicit Call(RecvCallback done) : done_(std::move(done)) {}
    void Cancel() override { ++cancels; }
    void Answer(absl::Status status, Received received = {}) {
      std::move(done_)(std::move(status), std::move(received));
    }

    std::atomic<int> cancels{0};

   private:
    RecvCallback done_;
  };

  std::shared_ptr<RemoteFetch> Fetch(int64_t step_id, const RendezvousKey& key, const RecvArgs&,
                                     RecvCallback done) override {
    keys.push_back(absl::StrCat(step_id, " ", key.edge()));
    calls.push_back(std::make_shared<Call>(std::move(done)));
    if (while_issuing) while_issuing();
    return calls.back();
  }

  std::vector<std::string> keys;
  std::vector<std::shared_ptr<Call>> calls;
  std::function<void()> while_issuing;
};

class Remote : public ::testing::Test {
 protected:
  std::shared_ptr<RemoteRendezvous> Begin(int64_t step_id) {
    auto step = *manager_.Find(step_id);
    EXPECT_TRUE(step->Initialize(Task(0)).ok());
    return step;
  }

  FakeClock clock_;
  FakeFetcher fetcher_;
  Results results_;
  RendezvousManager manager_{clock_, fetcher_};
};

TEST_F(Remote, ValueSentLocallyIsReceivedLocally) {
  const auto step = Begin(123);
  ASSERT_TRUE(step->Send(KeyOf(0, 1), Value("v")).ok());
  EXPECT_EQ(manager_.RecvLocal(123, KeyOf(0, 1), kLocalWait)->tensor.strings()[0], "v");
  manager_.Cleanup(123);
  EXPECT_EQ(manager_.step_count(), 0u);
}

TEST_F(Remote, AbortEndsALocalReceive) {
  const auto step = Begin(1);
  step->RecvLocalAsync(KeyOf(0, 1), {}, results_.Writer());
  step->StartAbort(absl::AbortedError("gone"));
  EXPECT_THAT(results_.all(), ElementsAre("ABORTED: [_Derived_]gone"));
}

// The caller of StartAbort reports the cause; other callers receive a derived error, whatever its
// code. Otherwise a worker that was only waiting might be blamed.
TEST_F(Remote, AnyErrorThatEndsAStep_IsReceivedAsDerived) {
  const absl::StatusCode codes[] = {
      absl::StatusCode::kInvalidArgument,  absl::StatusCode::kInternal,
      absl::StatusCode::kNotFound,         absl::StatusCode::kAborted,
      absl::StatusCode::kCancelled,        absl::StatusCode::kUnavailable,
      absl::StatusCode::kResourceExhausted};
  int64_t step_id = 0;
  for (const absl::StatusCode code : codes) {
    Results results;
    const auto step = Begin(++step_id);
    // A receive from a local node, one of a waiting peer, and a fetch.
    step->RecvAsync(KeyOf(0, 0), {}, results.Writer());
    manager_.RecvLocalAsync(step_id, KeyOf(0, 1), {}, results.Writer());
    step->RecvAsync(KeyOf(1, 0), {}, results.Writer());
    step->StartAbort(absl::Status(code, "the cause"));
    // Receives that begin later.
    manager_.RecvLocalAsync(step_id, KeyOf(0, 1, "later"), {}, results.Writer());
    step->RecvAsync(KeyOf(1, 0, "later"), {}, results.Writer());
    const std::string copy = absl::StrCat(absl::StatusCodeToString(code), ": [_Derived_]the cause");
    EXPECT_EQ(results.all(), std::vector<std::string>(5, copy));
    EXPECT_EQ(step->Send(KeyOf(0, 1), Value("v")).ToString(), copy);
    EXPECT_TRUE(IsDerived(step->abort_status()));
  }
}

// A copy of a copy has one mark, and the mark is found behind prepended text.
TEST(Derived, DerivedTwice_IsMarkedOnce) {
  const absl::Status once = MakeDerived(absl::InternalError("x"));
  EXPECT_EQ(MakeDerived(once), once);
  const absl::Status wrapped =
      absl::InternalError(absl::StrCat("connection to node 1: ", once.message()));
  EXPECT_TRUE(IsDerived(wrapped));
  EXPECT_EQ(MakeDerived(wrapped), wrapped);
  EXPECT_EQ(WithoutDerivedMark(wrapped).message(), "connection to node 1: x");
  EXPECT_EQ(WithoutDerivedMark(absl::InternalError("x")).message(), "x");
  EXPECT_TRUE(MakeDerived(absl::OkStatus()).ok());
}

TEST_F(Remote, CleanupEndsPendingOperations) {
  manager_.RecvLocalAsync(7, KeyOf(0, 1), {}, results_.Writer());
  Begin(8)->RecvLocalAsync(KeyOf(0, 1), {}, results_.Writer());
  manager_.Cleanup(8);
  manager_.Cleanup(7);
  EXPECT_THAT(results_.all(),
              ElementsAre("ABORTED: [_Derived_]Cleanup 8", "ABORTED: [_Derived_]Cleanup 7"));
}

TEST_F(Remote, LocalReceiveIsCancelledUnlessItIsServed) {
  Begin(1);
  CancellationToken first;
  CancellationToken second;
  manager_.RecvLocalAsync(1, KeyOf(0, 1, "a"), {.cancellation = &first}, results_.Writer());
  manager_.RecvLocalAsync(1, KeyOf(0, 1, "b"), {.cancellation = &second}, results_.Writer());
  first.Cancel();
  ASSERT_TRUE((*manager_.Find(1))->Send(KeyOf(0, 1, "b"), Value("v")).ok());
  second.Cancel();
  EXPECT_THAT(results_.all(), ElementsAre("CANCELLED: [_Derived_]RecvAsync is cancelled.", "v"));
}

TEST_F(Remote, CleanupAllEndsStepsThatAreStillHeld) {
  const auto step = Begin(1);
  ASSERT_TRUE(step->Send(KeyOf(0, 0), Value("v")).ok());
  manager_.CleanupAll();
  step->RecvAsync(KeyOf(0, 0), {}, results_.Writer());
  EXPECT_THAT(results_.all(), ElementsAre("ABORTED: [_Derived_]Shutdown"));
}

TEST_F(Remote, TheSendersContextReachesALocalReceiver) {
  class Context final : public DeviceContext {};
  const auto context = std::make_shared<Context>();
  ASSERT_TRUE(Begin(1)->Send(KeyOf(0, 1), Value("v"), false, {context}).ok());
  EXPECT_EQ(manager_.RecvLocal(1, KeyOf(0, 1), kLocalWait)->send_args.device_context, context);
}

TEST_F(Remote, ReceivesBeforeTheStepAreServedInOrder) {
  for (int i = 0; i < 3; ++i) {
    manager_.RecvLocalAsync(5, KeyOf(0, 1), {}, results_.Writer());
  }
  EXPECT_EQ(results_.size(), 0u);
  const auto step = Begin(5);
  for (const char* value : {"a", "b", "c"}) {
    ASSERT_TRUE(step->Send(KeyOf(0, 1), Value(value)).ok());
  }
  EXPECT_THAT(results_.all(), ElementsAre("a", "b", "c"));
}

// TensorFlow never ends these.
TEST_F(Remote, ReceivesBeforeTheStepEndToo) {
  CancellationToken cancellation;
  manager_.RecvLocalAsync(1, KeyOf(0, 1), {.cancellation = &cancellation}, results_.Writer());
  manager_.RecvLocalAsync(2, KeyOf(0, 1), {.deadline = clock_.Now() + absl::Seconds(3)},
                          results_.Writer());
  manager_.RecvLocalAsync(3, KeyOf(0, 1), {}, results_.Writer());
  cancellation.Cancel();
  EXPECT_EQ(manager_.NextDeadline(), clock_.Now() + absl::Seconds(3));
  clock_.Advance(absl::Seconds(3));
  manager_.Expire();
  (*manager_.Find(3))->StartAbort(absl::UnavailableError("no such job"));
  ASSERT_EQ(results_.size(), 3u);
  EXPECT_EQ(results_.all()[0], "CANCELLED: [_Derived_]RecvLocalAsync is cancelled.");
  EXPECT_THAT(results_.all()[1], StartsWith("DEADLINE_EXCEEDED: the step has not begun here"));
  EXPECT_EQ(results_.all()[2], "UNAVAILABLE: [_Derived_]no such job");
}

TEST_F(Remote, InitializeTwiceIsOkWithTheSameName) {
  const auto step = Begin(1);
  EXPECT_TRUE(step->Initialize(Task(0)).ok());
  const absl::Status other = step->Initialize(Task(1));
  EXPECT_EQ(other.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(other.message()),
              StartsWith("Double init! Worker names would have changed!"));
}

TEST_F(Remote, NothingIsSentOrReceivedBeforeInitialize) {
  const auto step = *manager_.Find(1);
  step->RecvAsync(KeyOf(0, 0), {}, results_.Writer());
  EXPECT_THAT(results_.all(),
              ElementsAre("INTERNAL: ValidateDevices called before initialization."));
  EXPECT_EQ(step->Send(KeyOf(0, 0), Value("v")).code(), absl::StatusCode::kInternal);
}

// Including task 1 against task 10, which is no prefix.
TEST_F(Remote, KeysMustBeOfThisWorker) {
  const auto step = *manager_.Find(1);
  ASSERT_TRUE(step->Initialize(Task(1)).ok());
  const absl::Status sent = step->Send(KeyOf(10, 1), Value("v"));
  EXPECT_EQ(sent.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(sent.message()), StartsWith("Invalid rendezvous key (src): "));
  step->RecvAsync(KeyOf(1, 10), {}, results_.Writer());
  step->RecvLocalAsync(KeyOf(10, 1), {}, results_.Writer());
  ASSERT_EQ(results_.size(), 2u);
  EXPECT_THAT(results_.all()[0], StartsWith("INVALID_ARGUMENT: Invalid rendezvous key (dst): "));
  EXPECT_THAT(results_.all()[1], StartsWith("INVALID_ARGUMENT: Invalid rendezvous key (src): "));
}

TEST_F(Remote, ConsumerOfTheSameWorkerSharesTheBuffer) {
  const auto step = Begin(1);
  const Tensor tensor = Bytes(100);
  ASSERT_TRUE(step->Send(KeyOf(0, 0), tensor).ok());
  Tensor received;
  step->RecvAsync(KeyOf(0, 0), {}, [&received](absl::Status status, Received value) {
    ASSERT_TRUE(status.ok());
    received = std::move(value.tensor);
  });
  EXPECT_EQ(received.data(), tensor.data());
  EXPECT_EQ(tensor.buffer().use_count(), 2);
  EXPECT_TRUE(fetcher_.calls.empty());
}

TEST_F(Remote, ConsumerOfAnotherWorkerFetches) {
  const auto step = Begin(9);
  step->RecvAsync(KeyOf(1, 0, "x"), {}, results_.Writer());
  EXPECT_THAT(fetcher_.keys, ElementsAre("9 x"));
  EXPECT_EQ(step->fetch_count(), 1u);
  fetcher_.calls[0]->Answer(absl::OkStatus(), {.tensor = Value("far")});
  EXPECT_THAT(results_.all(), ElementsAre("far"));
  EXPECT_EQ(step->fetch_count(), 0u);
  EXPECT_EQ(fetcher_.calls[0]->cancels, 0);
}

// The fetcher knows no such worker, and its error is passed on.
TEST_F(Remote, FetchersErrorReachesTheReceiver) {
  const auto step = Begin(1);
  step->RecvAsync(KeyOf(1, 0), {}, results_.Writer());
  fetcher_.calls[0]->Answer(absl::InternalError("No worker known as /job:worker/task:1"));
  // The error names the receive among many.
  EXPECT_THAT(results_.all(), ElementsAre(absl::StrCat(
                                  "INTERNAL: No worker known as /job:worker/task:1; step 1 needed ",
                                  KeyOf(1, 0).text())));
}

TEST_F(Remote, CancelCancelsTheFetch) {
  const auto step = Begin(1);
  CancellationToken cancellation;
  step->RecvAsync(KeyOf(1, 0), {.cancellation = &cancellation}, results_.Writer());
  cancellation.Cancel();
  EXPECT_THAT(results_.all(),
              ElementsAre("CANCELLED: [_Derived_]RecvFromRemoteAsync is cancelled."));
  EXPECT_EQ(fetcher_.calls[0]->cancels, 1);
  // A value that it returns afterwards is dropped.
  fetcher_.calls[0]->Answer(absl::OkStatus(), {.tensor = Value("late")});
  EXPECT_EQ(results_.size(), 1u);
}

TEST_F(Remote, AbortCancelsEveryFetch) {
  const auto step = Begin(1);
  for (int i = 0; i < 3; ++i) step->RecvAsync(KeyOf(1, 0), {}, results_.Writer());
  step->StartAbort(absl::AbortedError("gone"));
  EXPECT_EQ(step->fetch_count(), 0u);
  EXPECT_EQ(results_.all(), std::vector<std::string>(3, "ABORTED: [_Derived_]gone"));
  for (const auto& call : fetcher_.calls) EXPECT_EQ(call->cancels, 1);
}

// An abort while the request was being issued was lost in TensorFlow.
TEST_F(Remote, AbortWhileAFetchIsBeingIssuedIsNotLost) {
  const auto step = Begin(1);
  fetcher_.while_issuing = [&step] { step->StartAbort(absl::AbortedError("gone")); };
  step->RecvAsync(KeyOf(1, 0), {}, results_.Writer());
  EXPECT_THAT(results_.all(), ElementsAre("ABORTED: [_Derived_]gone"));
  EXPECT_EQ(fetcher_.calls[0]->cancels, 1);
}

// Nothing would end a receive that is posted while the step's others are being ended.
TEST_F(Remote, ReceivePostedByOneThatAnAbortEnds_EndsToo) {
  const auto step = Begin(1);
  const RendezvousKey keys[] = {KeyOf(1, 0), KeyOf(0, 0)};
  for (const RendezvousKey& key : keys) {
    step->RecvAsync(key, {}, [&](const absl::Status&, const Received&) {
      for (const RendezvousKey& next : keys) step->RecvAsync(next, {}, results_.Writer());
    });
  }
  step->StartAbort(absl::AbortedError("gone"));
  EXPECT_EQ(results_.all(), std::vector<std::string>(4, "ABORTED: [_Derived_]gone"));
  EXPECT_EQ(step->fetch_count(), 0u);
  EXPECT_EQ(fetcher_.calls.size(), 1u);
}

TEST_F(Remote, DeferredReceivePostedByOneThatAnAbortEnds_EndsToo) {
  const auto step = *manager_.Find(1);
  step->RecvLocalAsync(KeyOf(0, 1), {}, [&](const absl::Status&, const Received&) {
    step->RecvLocalAsync(KeyOf(0, 1), {}, results_.Writer());
  });
  step->StartAbort(absl::AbortedError("gone"));
  EXPECT_THAT(results_.all(), ElementsAre("ABORTED: [_Derived_]gone"));
  EXPECT_EQ(step->fetch_count(), 0u);
}

// A peer that asks again at once would begin the step anew, and nothing would end it.
TEST_F(Remote, ReceivePostedByOneThatACleanupEnds_DoesNotBeginTheStepAnew) {
  for (const bool is_all : {false, true}) {
    const int64_t step_id = is_all ? 2 : 1;
    Results results;
    manager_.RecvLocalAsync(step_id, KeyOf(0, 1), {}, [&](const absl::Status&, const Received&) {
      manager_.RecvLocalAsync(step_id, KeyOf(0, 1), {}, results.Writer());
    });
    is_all ? manager_.CleanupAll() : manager_.Cleanup(step_id);
    ASSERT_THAT(results.all(), ::testing::SizeIs(1));
    EXPECT_THAT(results.all()[0], HasSubstr(" is over"));
    EXPECT_EQ(manager_.step_count(), 0u);
  }
}

// The thread that a receive wakes asks next which values were lost.
TEST_F(Remote, ReceiveIsEnded_LostValueIsAlreadyRecorded) {
  for (const bool is_abort : {false, true}) {
    const auto step = Begin(is_abort ? 2 : 1);
    ASSERT_TRUE(step->Send(KeyOf(0, 1), Value("v")).ok());
    std::vector<bool> is_recorded;
    for (const RendezvousKey& key : {KeyOf(1, 0), KeyOf(1, 0, "f")}) {
      step->RecvAsync(key, {}, [&](const absl::Status&, const Received&) {
        is_recorded.push_back(!step->send_status().ok());
      });
    }
    if (is_abort) {
      step->StartAbort(absl::UnavailableError("gone"));
    } else {
      step->FailTask(Task(1), absl::UnavailableError("gone"));
    }
    EXPECT_EQ(is_recorded, std::vector<bool>(2, true)) << is_abort;
  }
}

// The caller may destroy it as soon as it is called.
TEST_F(Remote, ReceiveEnds_ItsCancellationIsReleasedBeforeItIsCalled) {
  CancellationToken cancellation;
  std::vector<size_t> registered;
  const auto writer = [&] {
    return [&](const absl::Status&, const Received&) {
      registered.push_back(cancellation.registered_count());
    };
  };
  const RecvArgs args = {.cancellation = &cancellation};
  // Served, refused, aborted, and deferred until then.
  auto step = Begin(1);
  step->RecvAsync(KeyOf(1, 0), args, writer());
  fetcher_.calls[0]->Answer(absl::OkStatus(), {.tensor = Value("v")});
  step->RecvAsync(KeyOf(1, 0), args, writer());
  fetcher_.calls[1]->Answer(absl::InternalError("refused"));
  step->RecvAsync(KeyOf(0, 0), args, writer());
  ASSERT_TRUE(step->Send(KeyOf(0, 0), Value("v")).ok());
  step->RecvAsync(KeyOf(1, 0), args, writer());
  step->StartAbort(absl::AbortedError("gone"));
  step = *manager_.Find(2);
  step->RecvLocalAsync(KeyOf(0, 1), args, writer());
  step->StartAbort(absl::AbortedError("gone"));
  EXPECT_EQ(registered, std::vector<size_t>(5, 0));
}

TEST_F(Remote, AnswerMayComeWhileAFetchIsBeingIssued) {
  const auto step = Begin(1);
  fetcher_.while_issuing = [this] {
    fetcher_.calls[0]->Answer(absl::OkStatus(), {.tensor = Value("fast")});
  };
  step->RecvAsync(KeyOf(1, 0), {}, results_.Writer());
  EXPECT_THAT(results_.all(), ElementsAre("fast"));
  EXPECT_EQ(step->fetch_count(), 0u);
}

TEST_F(Remote, OperationsAfterCleanupFailAndLeaveNothing) {
  for (int64_t step_id = 0; step_id < 10'000; ++step_id) {
    manager_.Cleanup(step_id);
    manager_.RecvLocalAsync(step_id, KeyOf(0, 1), {}, results_.Writer());
  }
  EXPECT_EQ(manager_.step_count(), 0u);
  ASSERT_EQ(results_.size(), 10'000u);
  EXPECT_EQ(results_.all()[77], "ABORTED: [_Derived_]step 77 is over");
  EXPECT_EQ(manager_.Find(77).status().code(), absl::StatusCode::kAborted);
}

TEST_F(Remote, FinishedStepsAreRememberedWithinBounds) {
  RendezvousManager manager(clock_, fetcher_, {.max_steps = 2, .max_finished_steps = 10});
  for (int64_t step_id = 0; step_id < 20; ++step_id) manager.Cleanup(step_id);
  EXPECT_EQ(manager.Find(19).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(manager.Find(10).status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(manager.Find(9).ok());
  EXPECT_TRUE(manager.Find(8).ok());
  const absl::Status full = manager.Find(7).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("--max-steps"));
}

TEST_F(Remote, AfterAnAbortNothingIsFetched) {
  const auto step = Begin(1);
  step->StartAbort(absl::AbortedError("gone"));
  step->RecvAsync(KeyOf(1, 0), {}, results_.Writer());
  EXPECT_THAT(results_.all(), ElementsAre("ABORTED: [_Derived_]gone"));
  EXPECT_TRUE(fetcher_.calls.empty());
}

// A dead task fails the operations that depend on it in every step, with its name and the key; the
// rest continues.
TEST_F(Remote, DeadTaskFailsItsDependentsOnly) {
  Begin(1)->RecvAsync(KeyOf(1, 0, "from dead"), {}, results_.Writer());
  Begin(2)->RecvAsync(KeyOf(2, 0, "from alive"), {}, results_.Writer());
  manager_.RecvLocalAsync(2, KeyOf(0, 1, "to dead"), {}, results_.Writer());
  manager_.RecvLocalAsync(3, KeyOf(0, 1, "early, to dead"), {}, results_.Writer());
  ASSERT_TRUE((*manager_.Find(2))->Send(KeyOf(0, 1, "queued"), Bytes(10)).ok());
  EXPECT_EQ(manager_.FailTask(Task(1), absl::UnavailableError("task 1 has died")), 4u);
  ASSERT_EQ(results_.size(), 3u);
  for (const std::string& result : results_.all()) {
    EXPECT_THAT(result, StartsWith("UNAVAILABLE: task 1 has died; step "));
  }
  EXPECT_EQ(fetcher_.calls[0]->cancels, 1);
  EXPECT_EQ(fetcher_.calls[1]->cancels, 0);
  fetcher_.calls[1]->Answer(absl::OkStatus(), {.tensor = Value("alive")});
  EXPECT_EQ(results_.all().back(), "alive");
}

// A send returns at once; closing the step must report that the value will not be received.
TEST_F(Remote, ValueForADeadTaskIsReportedAsLost) {
  const auto step = Begin(1);
  ASSERT_TRUE(step->Send(KeyOf(0, 2, "for the living"), Bytes(10)).ok());
  manager_.FailTask(Task(1), absl::UnavailableError("task 1 has died"));
  EXPECT_TRUE(step->send_status().ok());
  manager_.FailTask(Task(2), absl::UnavailableError("task 2 has died"));
  EXPECT_EQ(step->send_status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(step->send_status().message()), HasSubstr("task 2 has died"));
  EXPECT_THAT(std::string(step->send_status().message()), HasSubstr("for the living"));
}

TEST_F(Remote, FetchHasADeadlineToo) {
  const auto step = Begin(1);
  step->RecvAsync(KeyOf(1, 0, "slow"), {.deadline = clock_.Now() + absl::Seconds(5)},
                  results_.Writer());
  clock_.Advance(absl::Seconds(5));
  manager_.Expire();
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_THAT(results_.all()[0],
              StartsWith("DEADLINE_EXCEEDED: /job:worker/replica:0/task:1 has not answered"));
  EXPECT_THAT(results_.all()[0], HasSubstr(";slow;"));
  EXPECT_EQ(fetcher_.calls[0]->cancels, 1);
}

TEST_F(Remote, BlockingReceiveTimesOutOrIsCancelled) {
  Begin(4);
  EXPECT_THAT(manager_.RecvLocal(4, KeyOf(0, 1), absl::Milliseconds(10)).status().ToString(),
              StartsWith("DEADLINE_EXCEEDED: waited 10ms in step 4 for /job:worker/"));
  CancellationToken cancellation;
  cancellation.Cancel();
  EXPECT_EQ(manager_.RecvLocal(4, KeyOf(0, 1), kLocalWait, {.cancellation = &cancellation})
                .status()
                .code(),
            absl::StatusCode::kCancelled);
}

TEST_F(Remote, PendingListsStepSideAndAge) {
  manager_.RecvLocalAsync(3, KeyOf(0, 1, "early"), {}, results_.Writer());
  const auto step = Begin(4);
  step->RecvAsync(KeyOf(1, 0, "far"), {}, results_.Writer());
  step->RecvLocalAsync(KeyOf(0, 1, "here"), {}, results_.Writer());
  ASSERT_TRUE(step->Send(KeyOf(0, 1, "unasked"), Bytes(12)).ok());
  clock_.Advance(absl::Seconds(2));
  std::vector<std::string> lines;
  manager_.ForEachPending(absl::Seconds(1), [&lines](const PendingStepOp& op) {
    lines.push_back(absl::StrCat(op.step_id, " ", op.key.edge(), " ", static_cast<int>(op.side),
                                 " ", op.bytes, " ", absl::FormatDuration(op.age)));
  });
  EXPECT_THAT(lines, UnorderedElementsAre("3 early 3 0 2s", "4 far 2 0 2s", "4 here 1 0 2s",
                                          "4 unasked 0 12 2s"));
}

// Aborts, answers and cancels at once, with threads: every receive ends once, nothing is left.
TEST_F(Remote, EveryFetchEndsOnceUnderAnyRace) {
  for (int64_t round = 0; round < 200; ++round) {
    const auto step = Begin(1000 + round);
    CancellationToken cancellation;
    std::atomic<int> ended = 0;
    constexpr int kFetches = 6;
    for (int i = 0; i < kFetches; ++i) {
      step->RecvAsync(KeyOf(1, 0), {.cancellation = i % 2 == 0 ? &cancellation : nullptr},
                      [&ended](absl::Status, Received) { ++ended; });
    }
    const std::vector<std::shared_ptr<FakeFetcher::Call>> calls(fetcher_.calls.end() - kFetches,
                                                                fetcher_.calls.end());
    std::vector<std::thread> threads;
    threads.emplace_back([&] { cancellation.Cancel(); });
    threads.emplace_back([&] {
      for (const auto& call : calls) call->Answer(absl::OkStatus(), {.tensor = Value("v")});
    });
    threads.emplace_back([&] { manager_.Cleanup(1000 + round); });
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(ended, kFetches);
    ASSERT_EQ(step->fetch_count(), 0u);
  }
}

}  // namespace
}  // namespace ferry

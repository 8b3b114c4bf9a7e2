// SPDX-License-Identifier: Apache-2.0
// Learning the heartbeat timeouts of clients that do not transmit them.
#include "coord/core/heartbeat_interval.h"

#include <string>
#include <utility>
#include <vector>

#include "tests/coord/coordinator_fixture.h"

namespace ferry::coord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kBeatsOfJax = 2;

// The numbers of jax.distributed.initialize: the coordinator has its default, 100 s.
CoordinatorOptions JaxOptions(int tasks) {
  CoordinatorOptions options = PlainOptions(tasks);
  options.heartbeat_timeout = absl::Seconds(100);
  return options;
}

// As with --heartbeat-timeout.
CoordinatorOptions LimitedOptions(int tasks, absl::Duration limit) {
  CoordinatorOptions options = JaxOptions(tasks);
  options.heartbeat_timeout = limit;
  options.heartbeat_timeout_is_limit = true;
  return options;
}

// A client of JAX, which sends heartbeats according to its own timeout.
struct JaxClient {
  int task = 0;
  absl::Duration timeout;
  // Clients from before 2026 send the first heartbeat at once, later ones an interval after
  // registering.
  bool beats_at_once = false;
  bool polls = true;
};

StatusCall Join(TestJob& job, const JaxClient& client) {
  Registration registration;
  registration.task = TaskId(client.task);
  registration.incarnation = Incarnation(LifeOf(client.task));
  registration.beats_per_timeout = kBeatsOfJax;
  EXPECT_THAT(job.Register(std::move(registration)).result(), IsOk());
  if (client.beats_at_once) {
    EXPECT_THAT(job.Heartbeat(client.task), IsOk());
  }
  // A call that nothing waits for, where the client does not poll.
  return client.polls ? job.Poll(client.task, /*is_watched=*/true)
                      : StatusCall(std::make_shared<bool>(true));
}

// Lets each client send heartbeats for that many of its intervals; they share one timeout.
void RunBeats(TestJob& job, const std::vector<JaxClient>& clients, int intervals) {
  for (int i = 0; i < intervals; ++i) {
    job.Advance(clients[0].timeout / 2);
    for (const JaxClient& client : clients) ASSERT_THAT(job.Heartbeat(client.task), IsOk());
  }
}

// The time until the task was considered dead, in steps of 0.1 s; InfiniteDuration if it was not.
absl::Duration TimeToNotice(TestJob& job, int task, absl::Duration timeout) {
  for (absl::Duration passed; passed <= timeout; passed += absl::Milliseconds(100)) {
    if (job.state(task) == TaskState::kError) return passed;
    job.Advance(absl::Milliseconds(100));
  }
  return absl::InfiniteDuration();
}

// The client's process is killed: its connection ends, and with it the call that waits there.
void Kill(TestJob& job, int task, StatusCall& poll) {
  job.Cancel(poll.wait());
  job.coordinator().NoteConnectionEnd(TaskId(task));
}

TEST(HeartbeatInterval, TwoBeatsAnIntervalApart_RevealTheTimeout) {
  const absl::Time start = absl::UnixEpoch();
  HeartbeatInterval pace(kBeatsOfJax, start);
  EXPECT_FALSE(pace.is_learned());
  pace.Beat(start + absl::Seconds(5));
  EXPECT_TRUE(pace.is_learned());
  EXPECT_FALSE(pace.is_certain());
  pace.Beat(start + absl::Seconds(10));
  EXPECT_TRUE(pace.is_certain());
  EXPECT_EQ(pace.interval(), absl::Seconds(5));
  EXPECT_EQ(pace.timeout(), absl::Seconds(10));
}

// A retry whose first attempt had arrived: 4 ms must not become a timeout of 8 ms.
TEST(HeartbeatInterval, RepeatedCalls_AreNoInterval) {
  const absl::Time start = absl::UnixEpoch();
  HeartbeatInterval pace(kBeatsOfJax, start);
  for (int i = 1; i <= 5; ++i) {
    pace.Beat(start + absl::Seconds(5 * i));
    pace.Beat(start + absl::Seconds(5 * i) + absl::Milliseconds(4));
    pace.Beat(start + absl::Seconds(5 * i) + absl::Milliseconds(9));
  }
  EXPECT_GE(pace.interval(), absl::Seconds(4.9));
  EXPECT_LE(pace.interval(), absl::Seconds(5));
}

// Delayed heartbeats arrive in a burst when the network recovers.
TEST(HeartbeatInterval, DelayAndBurst_ExtendTheTimeoutOnlyForAWhile) {
  absl::Time now = absl::UnixEpoch();
  HeartbeatInterval pace(kBeatsOfJax, now);
  for (const double gap : {5.0, 5.0, 12.0, 0.001, 0.2, 3.0}) {
    pace.Beat(now += absl::Seconds(gap));
    EXPECT_GE(pace.timeout(), absl::Seconds(10));
  }
  for (int i = 0; i < 3; ++i) pace.Beat(now += absl::Seconds(5));
  EXPECT_EQ(pace.timeout(), absl::Seconds(10));
}

TEST(HeartbeatInterval, AnIntervalThatChanges_IsFollowed) {
  absl::Time now = absl::UnixEpoch();
  HeartbeatInterval pace(kBeatsOfJax, now);
  for (int i = 0; i < 4; ++i) pace.Beat(now += absl::Seconds(5));
  pace.Beat(now += absl::Seconds(50));
  EXPECT_EQ(pace.timeout(), absl::Seconds(100));
  for (int i = 0; i < 3; ++i) pace.Beat(now += absl::Seconds(5));
  EXPECT_EQ(pace.timeout(), absl::Seconds(10));
}

TEST(HeartbeatInterval, AClockThatJumpsBack_LeavesItAlone) {
  absl::Time now = absl::UnixEpoch();
  HeartbeatInterval pace(kBeatsOfJax, now);
  for (int i = 0; i < 3; ++i) pace.Beat(now += absl::Seconds(5));
  pace.Beat(now -= absl::Minutes(30));
  EXPECT_EQ(pace.timeout(), absl::Seconds(10));
  pace.Beat(now += absl::Seconds(5));
  EXPECT_EQ(pace.timeout(), absl::Seconds(10));
}

// Ferry's own agents receive the coordinator's timeout.
TEST(HeartbeatInterval, ClientThatReceivesTheTimeout_IsNotLearned) {
  HeartbeatInterval pace;
  for (int i = 0; i < 5; ++i) pace.Beat(absl::UnixEpoch() + absl::Seconds(i));
  EXPECT_FALSE(pace.is_learned());
  EXPECT_EQ(pace.timeout(), absl::ZeroDuration());
}

// heartbeat_timeout_seconds=300 under a coordinator with default options: healthy and idle.
TEST(UntoldTimeout, IdleClientOf300s_SurvivesTheDefaultTimeout) {
  for (const bool at_once : {false, true}) {
    TestJob job(JaxOptions(2));
    const std::vector<JaxClient> clients = {{0, absl::Seconds(300), at_once},
                                            {1, absl::Seconds(300), at_once}};
    const StatusCall first = Join(job, clients[0]);
    const StatusCall second = Join(job, clients[1]);
    RunBeats(job, clients, 10);
    EXPECT_EQ(job.state(0), TaskState::kConnected);
    EXPECT_EQ(job.state(1), TaskState::kConnected);
    EXPECT_FALSE(first.done());
    EXPECT_FALSE(second.done());
  }
}

// The user's limit is shorter than the client's timeout: a call on a live connection is a sign of
// life.
TEST(UntoldTimeout, IdleClientOf300s_SurvivesALimitOf60s) {
  TestJob job(LimitedOptions(1, absl::Seconds(60)));
  const std::vector<JaxClient> clients = {{0, absl::Seconds(300)}};
  const StatusCall poll = Join(job, clients[0]);
  RunBeats(job, clients, 5);
  EXPECT_EQ(job.state(0), TaskState::kConnected);
}

TEST(UntoldTimeout, ClientOf10sThatFallsSilent_IsDetectedAfter10s) {
  TestJob job(JaxOptions(2));
  const std::vector<JaxClient> clients = {{0, absl::Seconds(10)}, {1, absl::Seconds(10)}};
  const StatusCall poll = Join(job, clients[0]);
  const StatusCall stopped = Join(job, clients[1]);
  RunBeats(job, clients, 3);
  // Its connection stays open, as that of a stopped process does.
  absl::Duration passed;
  for (; job.state(1) != TaskState::kError && passed < absl::Minutes(5);
       passed += absl::Seconds(1)) {
    job.Advance(absl::Seconds(1));
    ASSERT_THAT(job.Heartbeat(0), IsOk());
  }
  EXPECT_EQ(passed, absl::Seconds(10));
  EXPECT_THAT(poll.result(), Fails(absl::StatusCode::kUnavailable,
                                   AllOf(HasSubstr("task 1 has been silent for over 10s"),
                                         HasSubstr("it beat every 5s"))));
}

TEST(UntoldTimeout, KilledClient_IsDetectedSoonBeforeAndAfterItsIntervalIsKnown) {
  for (const absl::Duration timeout : {absl::Seconds(2), absl::Seconds(10), absl::Seconds(300)}) {
    for (const int beats : {0, 1, 3}) {
      TestJob job(JaxOptions(2));
      const std::vector<JaxClient> clients = {{0, timeout}, {1, timeout}};
      const StatusCall poll = Join(job, clients[0]);
      StatusCall killed = Join(job, clients[1]);
      RunBeats(job, clients, beats);
      Kill(job, 1, killed);
      const absl::Duration passed = TimeToNotice(job, 1, absl::Minutes(10));
      EXPECT_LE(passed, absl::Seconds(3.1)) << timeout << " " << beats;
      EXPECT_LE(passed, std::max(timeout, absl::Seconds(3.1))) << timeout << " " << beats;
      EXPECT_THAT(poll.result(),
                  Fails(absl::StatusCode::kUnavailable, HasSubstr("connection ended")));
    }
  }
}

// The end of its connection and its silence are found at the same time, by a coordinator that was
// late.
TEST(UntoldTimeout, TaskThatIsDeadForTwoReasons_IsReportedOnce) {
  TestJob job(JaxOptions(2));
  const StatusCall poll = Join(job, {0, absl::Seconds(300)});
  StatusCall killed = Join(job, {1, absl::Seconds(300)});
  Kill(job, 1, killed);
  job.clock().Advance(absl::Seconds(200));
  job.coordinator().Advance();
  job.Drain();
  EXPECT_THAT(poll.result(), Fails(absl::StatusCode::kUnavailable,
                                   HasSubstr("heartbeat timeout: task 1 has been silent")));
}

// A proxy dropped the connection; the client has opened another one and polls there.
TEST(UntoldTimeout, ConnectionMadeAgain_KeepsTheTask) {
  TestJob job(JaxOptions(1));
  const JaxClient client = {0, absl::Seconds(300)};
  StatusCall poll = Join(job, client);
  for (int i = 0; i < 3; ++i) {
    Kill(job, 0, poll);
    job.Advance(absl::Seconds(1));
    poll = job.Poll(0, /*is_watched=*/true);
    job.Advance(absl::Minutes(2));
    EXPECT_EQ(job.state(0), TaskState::kConnected);
  }
}

// A heartbeat on another connection has the same effect.
TEST(UntoldTimeout, HeartbeatAfterTheEndOfAConnection_KeepsTheTask) {
  TestJob job(JaxOptions(1));
  StatusCall poll = Join(job, {0, absl::Seconds(10)});
  Kill(job, 0, poll);
  job.Advance(absl::Seconds(2));
  ASSERT_THAT(job.Heartbeat(0), IsOk());
  job.Advance(absl::Seconds(5));
  EXPECT_EQ(job.state(0), TaskState::kConnected);
}

// A client that cancels its poll but keeps its connection has its heartbeat timeout to send a
// heartbeat.
TEST(UntoldTimeout, PollThatIsGivenUp_KeepsTheTask) {
  TestJob job(JaxOptions(1));
  StatusCall poll = Join(job, {0, absl::Seconds(300)});
  job.Advance(absl::Seconds(140));
  job.Cancel(poll.wait());
  job.Advance(absl::Seconds(10));
  ASSERT_THAT(job.Heartbeat(0), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  // Its first heartbeat came 150 s after it joined, which implies a timeout of 300 s.
  job.Advance(absl::Seconds(299));
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  job.Advance(absl::Seconds(2));
  EXPECT_EQ(job.state(0), TaskState::kError);
}

// The same for a client that has not sent a heartbeat yet: the poll keeps it alive no longer.
TEST(UntoldTimeout, PollThatIsGivenUpBeforeAnyHeartbeat_LeavesOneTimeout) {
  TestJob job(JaxOptions(1));
  StatusCall poll = Join(job, {0, absl::Seconds(300)});
  job.Advance(absl::Seconds(140));
  ASSERT_TRUE(job.Cancel(poll.wait()));
  job.Advance(absl::Seconds(100) - absl::Milliseconds(1));
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  job.Advance(absl::Milliseconds(1));
  EXPECT_EQ(job.state(0), TaskState::kError);
}

// A poll that was answered with the job's error is over, and no sign of life: a survivor that hangs
// would keep the failed job from ending.
TEST(UntoldTimeout, PollThatReceivedTheError_KeepsNoTaskAlive) {
  TestJob job(JaxOptions(2));
  const StatusCall survivor = Join(job, {0, absl::Seconds(300)});
  const StatusCall failed = Join(job, {1, absl::Seconds(300)});
  job.Advance(absl::Seconds(140));
  ASSERT_THAT(job.Report(1, absl::InternalError("broken")), IsOk());
  ASSERT_THAT(survivor.result(), Fails(absl::StatusCode::kInternal));
  job.Advance(absl::Seconds(100) - absl::Milliseconds(1));
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  job.Advance(absl::Milliseconds(1));
  EXPECT_EQ(job.state(0), TaskState::kError);
}

// A task that waits for the others to shut down may disconnect.
TEST(UntoldTimeout, ConnectionThatEndsDuringShutdown_FailsNoTask) {
  CoordinatorOptions options = JaxOptions(2);
  options.shutdown_timeout = absl::Seconds(30);
  TestJob job(options);
  StatusCall leaving = Join(job, {0, absl::Seconds(100)});
  StatusCall staying = Join(job, {1, absl::Seconds(100)});
  StatusCall shutdown = job.Shutdown(0);
  Kill(job, 0, leaving);
  job.Advance(absl::Seconds(20));
  EXPECT_FALSE(staying.done());
  EXPECT_THAT(job.Shutdown(1).result(), IsOk());
}

// The user's limit applies to tasks without a live connection, and the error says what to change.
TEST(UntoldTimeout, ClientThatBeatsTooSeldomForTheLimit_GetsTheNumber) {
  TestJob job(LimitedOptions(1, absl::Seconds(20)));
  Join(job, {0, absl::Seconds(300), /*beats_at_once=*/true, /*polls=*/false});
  job.Advance(absl::Seconds(25));
  EXPECT_EQ(job.state(0), TaskState::kError);
  job.Advance(absl::Seconds(125));
  EXPECT_THAT(job.Heartbeat(0),
              Fails(absl::StatusCode::kAborted,
                    AllOf(HasSubstr("it beats every 2m30s"), HasSubstr("timeout is 20s"),
                          HasSubstr("--heartbeat-timeout=5m"))));
}

TEST(UntoldTimeout, IntervalThatIsLongerThanTheLimit_IsNamedInTheError) {
  TestJob job(LimitedOptions(1, absl::Seconds(20)));
  Join(job, {0, absl::Seconds(24), /*beats_at_once=*/true, /*polls=*/false});
  for (int i = 0; i < 3; ++i) {
    job.Advance(absl::Seconds(12));
    ASSERT_THAT(job.Heartbeat(0), IsOk());
  }
  job.Advance(absl::Seconds(21));
  EXPECT_THAT(job.task(0).status,
              Fails(absl::StatusCode::kUnavailable,
                    AllOf(HasSubstr("it beats every 12s"), HasSubstr("timeout is 20s"),
                          HasSubstr("--heartbeat-timeout=24s"))));
}

// The limit is an upper bound: a client with a shorter timeout is judged by that one.
TEST(UntoldTimeout, ShorterThanTheLimit_Counts) {
  TestJob job(LimitedOptions(1, absl::Seconds(60)));
  const std::vector<JaxClient> clients = {{0, absl::Seconds(10)}};
  const StatusCall poll = Join(job, clients[0]);
  RunBeats(job, clients, 3);
  EXPECT_LE(TimeToNotice(job, 0, absl::Minutes(5)), absl::Seconds(10.1));
}

// A healthy task whose heartbeat was late once: one delay must not count as its death.
TEST(UntoldTimeout, JitterAndRetries_FailNoTask) {
  TestJob job(JaxOptions(1));
  const StatusCall poll = Join(job, {0, absl::Seconds(10)});
  for (const double gap : {5.0, 5.3, 0.004, 5.0, 8.9, 0.1, 1.5, 5.0, 9.5, 5.0, 5.0}) {
    job.Advance(absl::Seconds(gap));
    ASSERT_THAT(job.Heartbeat(0), IsOk());
  }
}

// Clients that received the timeout are not judged by the interval of their heartbeats.
TEST(UntoldTimeout, ClientsThatReceiveTheTimeout_KeepTheCoordinatorsTimeout) {
  TestJob job(JaxOptions(1));
  job.RegisterAll();
  for (int i = 0; i < 5; ++i) {
    job.Advance(absl::Seconds(1));
    ASSERT_THAT(job.Heartbeat(0), IsOk());
  }
  const absl::Duration passed = TimeToNotice(job, 0, absl::Minutes(5));
  EXPECT_GE(passed, absl::Seconds(99));
  EXPECT_LE(passed, absl::Seconds(101));
}

// The coordinator was not running: the time does not count for connections that ended meanwhile.
TEST(UntoldTimeout, CoordinatorThatWasHeldUp_ExtendsTheDeadlineOfAnEndedConnection) {
  TestJob job(JaxOptions(1));
  StatusCall poll = Join(job, {0, absl::Seconds(100)});
  Kill(job, 0, poll);
  job.clock().Advance(absl::Seconds(30));
  job.coordinator().ExtendHeartbeatDeadlines(absl::Seconds(30));
  job.coordinator().Advance();
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  EXPECT_LE(TimeToNotice(job, 0, absl::Minutes(5)), absl::Seconds(3.1));
}

// The interval of a new incarnation is not known yet, and the poll of the former one does not
// count.
TEST(UntoldTimeout, NewIncarnation_IsLearnedAnew) {
  CoordinatorOptions options = JaxOptions(1);
  options.recoverable = true;
  TestJob job(options);
  const std::vector<JaxClient> clients = {{0, absl::Seconds(10)}};
  const StatusCall poll = Join(job, clients[0]);
  RunBeats(job, clients, 3);
  Registration again;
  again.task = TaskId(0);
  again.incarnation = Incarnation(7);
  again.beats_per_timeout = kBeatsOfJax;
  ASSERT_THAT(job.Register(again).result(), IsOk());
  job.Advance(absl::Seconds(99));
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  job.Advance(absl::Seconds(2));
  EXPECT_EQ(job.state(0), TaskState::kError);
  EXPECT_THAT(job.task(0).status, Fails(absl::StatusCode::kUnavailable, Not(HasSubstr("it beat"))));
}

// An extension beyond the silence would delay the detection by as much.
TEST(UntoldTimeout, ExtensionBeyondTheSilence_StillDetectsAnEndedConnection) {
  TestJob job(JaxOptions(1));
  StatusCall poll = Join(job, {0, absl::Seconds(100)});
  Kill(job, 0, poll);
  job.coordinator().ExtendHeartbeatDeadlines(absl::Seconds(60));
  EXPECT_LE(TimeToNotice(job, 0, absl::Minutes(5)), absl::Seconds(3.1));
}

// It left together with the others and has come back: it may not disconnect any more.
TEST(UntoldTimeout, ConnectionThatEndsAfterATaskCameBackFromLeaving_IsDetected) {
  CoordinatorOptions options = JaxOptions(2);
  options.shutdown_timeout = absl::Seconds(30);
  TestJob job(options);
  StatusCall leaving = Join(job, {0, absl::Seconds(100)});
  const StatusCall staying = Join(job, {1, absl::Seconds(100)});
  const StatusCall shutdown = job.Shutdown(0);
  ASSERT_FALSE(shutdown.done());
  ASSERT_THAT(job.Shutdown(1).result(), IsOk());
  ASSERT_THAT(shutdown.result(), IsOk());
  StatusCall again = Join(job, {0, absl::Seconds(100)});
  Kill(job, 0, again);
  EXPECT_LE(TimeToNotice(job, 0, absl::Minutes(5)), absl::Seconds(3.1));
}

// A gap of this length is no repeated call.
TEST(HeartbeatInterval, TheShortestGap_Counts) {
  const absl::Time start = absl::UnixEpoch();
  HeartbeatInterval pace(kBeatsOfJax, start);
  pace.Beat(start + HeartbeatInterval::kShortestGap - absl::Nanoseconds(1));
  EXPECT_FALSE(pace.is_learned());
  HeartbeatInterval other(kBeatsOfJax, start);
  other.Beat(start + HeartbeatInterval::kShortestGap);
  EXPECT_TRUE(other.is_learned());
  EXPECT_EQ(other.interval(), HeartbeatInterval::kShortestGap);
}

}  // namespace
}  // namespace ferry::coord

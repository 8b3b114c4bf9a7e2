// SPDX-License-Identifier: Apache-2.0
// ferry.v1.Control: the effect of each request, as proto/ferry_control.proto specifies it.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "control_stream.h"
#include "coord/wire/control_limits.h"
#include "proto/ferry_topology.pb.h"
#include "test_server.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Minutes(1);

int Code(StatusCode code) { return static_cast<int>(code); }

// A server, and a tool that is attached to it.
class ControlRequests : public ::testing::Test {
 protected:
  ControlRequests() { stream_.Attach(); }

  TestServer server_{2};
  ControlStream stream_{server_.Channel()};
};

TEST_F(ControlRequests, PutSetsAllOrNothing) {
  EXPECT_EQ(stream_.Call(PutRequest(1, {{"b", "1"}})).code(), 0);
  EXPECT_EQ(stream_.Call(PutRequest(2, {{"a", "2"}, {"b", "2"}})).code(),
            Code(StatusCode::kAlreadyExists));
  EXPECT_EQ(stream_.Call(GetRequest(3, {"a"}, absl::ZeroDuration())).code(),
            Code(StatusCode::kNotFound));
  EXPECT_EQ(stream_.Call(PutRequest(4, {{"a", "2"}, {"b", "2"}}, true)).code(), 0);
  const v1::Reply got = stream_.Call(GetRequest(5, {"b", "a", "b"}, absl::ZeroDuration()));
  ASSERT_EQ(got.entries_size(), 3);
  EXPECT_EQ(got.entries(0).key(), "b");
  EXPECT_EQ(got.entries(1).key(), "a");
  EXPECT_EQ(got.entries(1).value(), "2");
}

TEST_F(ControlRequests, IdZeroIsInvalid) {
  v1::Request cancel;
  cancel.set_id(1);
  cancel.mutable_cancel();
  EXPECT_EQ(stream_.Call(cancel).code(), Code(StatusCode::kInvalidArgument));
}

// By which ranks join and leave.
TEST(ControlBarriers, BarriersOfTheCoordinatorCannotBePassedByRequest) {
  TestServer server(2);
  ControlStream rank(server.Channel());
  const uint64_t life = rank.Attach(RankHello(0, 1, "host")).coordinator_incarnation();
  uint64_t id = 0;
  for (const std::string& name :
       {std::string(Coordinator::RegisterBarrierId()), absl::StrCat("Shutdown::", life),
        std::string("WaitForAllTasks::1")}) {
    v1::Request arrive;
    arrive.set_id(++id);
    arrive.mutable_barrier()->set_id(name);
    EXPECT_EQ(rank.Call(arrive).code(), Code(StatusCode::kInvalidArgument)) << name;
    v1::Request cancel;
    cancel.set_id(++id);
    cancel.mutable_cancel_barrier()->set_id(name);
    EXPECT_EQ(rank.Call(cancel).code(), Code(StatusCode::kInvalidArgument)) << name;
  }
}

TEST_F(ControlRequests, GetNamesTheMissingKeys) {
  stream_.Call(PutRequest(1, {{"here", "1"}}));
  const v1::Reply now = stream_.Call(GetRequest(2, {"here", "absent/1"}, absl::ZeroDuration()));
  EXPECT_EQ(now.code(), Code(StatusCode::kNotFound));
  EXPECT_THAT(now.message(), AllOf(HasSubstr("absent/1"), Not(HasSubstr("here"))));
  const v1::Reply late =
      stream_.Call(GetRequest(3, {"here", "absent/1", "absent/2"}, absl::Milliseconds(50)));
  EXPECT_EQ(late.code(), Code(StatusCode::kDeadlineExceeded));
  EXPECT_THAT(late.message(), AllOf(HasSubstr("absent/1"), HasSubstr("absent/2")));
}

TEST_F(ControlRequests, ListIsOrderedAndCanBeLimited) {
  stream_.Call(PutRequest(1, {{"p/b", "2"}, {"p/a", "1"}, {"q", "3"}, {"p", "0"}}));
  v1::Request list;
  list.set_id(2);
  list.mutable_list()->set_prefix("p/");
  const v1::Reply all = stream_.Call(list);
  ASSERT_EQ(all.entries_size(), 2);
  EXPECT_EQ(all.entries(0).key(), "p/a");
  EXPECT_EQ(all.entries(0).value(), "1");
  list.set_id(3);
  list.mutable_list()->set_limit(1);
  list.mutable_list()->set_keys_only(true);
  list.mutable_list()->set_prefix("");
  const v1::Reply first = stream_.Call(list);
  ASSERT_EQ(first.entries_size(), 1);
  EXPECT_EQ(first.entries(0).key(), "p");
  EXPECT_EQ(first.entries(0).value(), "");
}

TEST_F(ControlRequests, DeleteRemovesTheSubtreeOnlyOnRequest) {
  stream_.Call(PutRequest(1, {{"d", "0"}, {"d/x", "1"}, {"dx", "2"}}));
  v1::Request erase;
  erase.set_id(2);
  erase.mutable_delete_()->add_keys("d");
  EXPECT_EQ(stream_.Call(erase).code(), 0);
  EXPECT_EQ(stream_.Call(GetRequest(3, {"d/x"}, absl::ZeroDuration())).code(), 0);
  erase.set_id(4);
  erase.mutable_delete_()->set_recursive(true);
  EXPECT_EQ(stream_.Call(erase).code(), 0);
  EXPECT_EQ(stream_.Call(GetRequest(5, {"d/x"}, absl::ZeroDuration())).code(),
            Code(StatusCode::kNotFound));
  EXPECT_EQ(stream_.Call(GetRequest(6, {"dx"}, absl::ZeroDuration())).code(), 0);
}

TEST_F(ControlRequests, IncrementOverflowIsAnError) {
  EXPECT_EQ(stream_.Call(IncrementRequest(1, "n", INT64_MAX)).code(), 0);
  EXPECT_EQ(stream_.Call(IncrementRequest(2, "n", 1)).code(), Code(StatusCode::kOutOfRange));
  EXPECT_EQ(stream_.Call(IncrementRequest(3, "n", -1)).entries(0).value(), "9223372036854775806");
}

v1::Request CompareAndSetRequest(uint64_t id, const std::string& expected,
                                 const std::string& desired, bool expect_absent) {
  v1::Request request;
  request.set_id(id);
  request.mutable_compare_and_set()->set_key("lock");
  request.mutable_compare_and_set()->set_expected(expected);
  request.mutable_compare_and_set()->set_desired(desired);
  request.mutable_compare_and_set()->set_expect_absent(expect_absent);
  return request;
}

TEST_F(ControlRequests, CompareAndSetReturnsTheActualValue) {
  EXPECT_EQ(stream_.Call(CompareAndSetRequest(1, "", "me", true)).code(), 0);
  const v1::Reply refused = stream_.Call(CompareAndSetRequest(2, "", "you", true));
  EXPECT_EQ(refused.code(), Code(StatusCode::kAborted));
  ASSERT_EQ(refused.entries_size(), 1);
  EXPECT_EQ(refused.entries(0).value(), "me");
  EXPECT_EQ(stream_.Call(CompareAndSetRequest(3, "you", "x", false)).code(),
            Code(StatusCode::kAborted));
  EXPECT_EQ(stream_.Call(CompareAndSetRequest(4, "me", "you", false)).code(), 0);
}

TEST_F(ControlRequests, CancelEndsOnlyTheNamedWait) {
  stream_.Send({GetRequest(1, {"a"}, kLong), GetRequest(2, {"b"}, kLong)});
  ASSERT_TRUE(server_.WaitUntilParked(2));
  stream_.Send({CancelRequest(3, 1)});
  EXPECT_EQ(stream_.ReplyTo(1).code(), Code(StatusCode::kCancelled));
  EXPECT_EQ(server_.parked(), 1u);
  stream_.Send({PutRequest(4, {{"b", "v"}})});
  EXPECT_EQ(stream_.ReplyTo(2).code(), 0);
  // Cancelling a call that is over, or never existed, has no effect.
  stream_.Send({CancelRequest(5, 2), CancelRequest(6, 4711)});
  EXPECT_EQ(stream_.Call(PutRequest(7, {{"c", "v"}})).code(), 0);
}

v1::Request WatchRequest(uint64_t id, const std::string& prefix, bool with_existing) {
  v1::Request request;
  request.set_id(id);
  request.mutable_watch()->set_prefix(prefix);
  request.mutable_watch()->set_with_existing(with_existing);
  return request;
}

TEST_F(ControlRequests, WatchReportsExistingEntriesThenEveryChangeInOrder) {
  stream_.Call(PutRequest(1, {{"w/b", "1"}, {"w/a", "1"}, {"other", "1"}}));
  stream_.Send({WatchRequest(2, "w/", true)});
  TaskClient writer = server_.Task(Dialect::kTensorflow, 0);
  ASSERT_TRUE(stream_.ReadUntilEvents(2));
  for (int i = 0; i < 100; ++i) {
    ASSERT_THAT(writer.Insert("w/n", std::to_string(i), true).Wait(), IsOk());
    ASSERT_THAT(writer.Insert("other", std::to_string(i), true).Wait(), IsOk());
  }
  ASSERT_THAT(writer.Delete("w").Wait(), IsOk());
  ASSERT_TRUE(stream_.ReadUntilEvents(2 + 100 + 3));
  EXPECT_EQ(stream_.events[0].entry().key(), "w/a");
  EXPECT_EQ(stream_.events[1].entry().key(), "w/b");
  int64_t revision = 0;
  for (int i = 0; i < 100; ++i) {
    const v1::Event& event = stream_.events[2 + i];
    EXPECT_EQ(event.kind(), v1::Event::KEY_SET);
    EXPECT_EQ(event.request_id(), 2u);
    EXPECT_EQ(event.entry().value(), std::to_string(i));
    EXPECT_GT(event.entry().revision(), revision);
    revision = event.entry().revision();
  }
  for (int i = 102; i < 105; ++i) {
    EXPECT_EQ(stream_.events[i].kind(), v1::Event::KEY_DELETED);
  }
}

TEST_F(ControlRequests, WatchWithoutExistingReportsOnlyChangesAndEndsWhenCancelled) {
  stream_.Call(PutRequest(1, {{"w/a", "1"}}));
  stream_.Send({WatchRequest(2, "w/", false)});
  stream_.Call(PutRequest(3, {{"w/b", "2"}}));
  ASSERT_TRUE(stream_.ReadUntilEvents(1));
  EXPECT_EQ(stream_.events[0].entry().key(), "w/b");
  stream_.Send({CancelRequest(4, 2)});
  EXPECT_EQ(stream_.ReplyTo(2).code(), Code(StatusCode::kCancelled));
  stream_.Call(PutRequest(5, {{"w/c", "3"}}));
  stream_.Call(PutRequest(6, {{"x", "3"}}));
  EXPECT_EQ(stream_.events.size(), 1u);
}

// An agent removes a watch before its connection is ready: both requests go in one frame.
TEST_F(ControlRequests, WatchThatIsCancelledInItsFrame_Ends) {
  stream_.Send({WatchRequest(1, "a", false), CancelRequest(2, 1), PutRequest(3, {{"a", "1"}})});
  EXPECT_EQ(stream_.ReplyTo(1).code(), Code(StatusCode::kCancelled));
  EXPECT_EQ(stream_.ReplyTo(2).code(), 0);
  EXPECT_EQ(stream_.ReplyTo(3).code(), 0);
  EXPECT_TRUE(stream_.events.empty());
  EXPECT_EQ(server_->executor().Run([](Coordinator& coordinator) {
    return coordinator.InnerTableSizes()["store.watches"];
  }),
            0u);
}

TEST_F(ControlRequests, TenThousandRequestsFitInOneFrame) {
  std::vector<v1::Request> requests;
  for (uint64_t id = 1; id <= 10'000; ++id) requests.push_back(IncrementRequest(id, "n", 1));
  stream_.Send(std::move(requests));
  for (uint64_t id = 1; id <= 10'000; ++id) {
    const v1::Reply reply = stream_.ReplyTo(id);
    ASSERT_EQ(reply.code(), 0);
    ASSERT_EQ(reply.entries(0).value(), std::to_string(id));
  }
}

TEST_F(ControlRequests, ValueOf64MebibytesPasses) {
  const std::string value(64 << 20, 'v');
  EXPECT_EQ(stream_.Call(PutRequest(1, {{"big", value}})).code(), 0);
  const v1::Reply reply = stream_.Call(GetRequest(2, {"big"}, kLong));
  ASSERT_EQ(reply.entries_size(), 1);
  EXPECT_TRUE(reply.entries(0).value() == value);
}

#if defined(__SANITIZE_THREAD__)
constexpr bool kIsSlowToCopy = true;
#else
constexpr bool kIsSlowToCopy = false;
#endif
constexpr char kWhySlowToCopy[] =
    "the thread sanitizer takes minutes over megabytes that gRPC copies, byte by byte, for reports "
    "that are suppressed because it is not instrumented";

v1::Request StatusRequest(uint64_t id) {
  v1::Request request;
  request.set_id(id);
  request.mutable_get_job_status();
  return request;
}

// A kilobyte that requests a hundred gigabytes: the answers of a frame count as if they were
// waiting.
TEST_F(ControlRequests, FrameMayNotRequestMoreThanASlowClientMayHavePending) {
  if (kIsSlowToCopy) GTEST_SKIP() << kWhySlowToCopy;
  ASSERT_EQ(stream_.Call(PutRequest(1, {{"large", std::string(size_t{1} << 20, 'v')}})).code(), 0);
  v1::Request list;
  list.mutable_list()->set_prefix("large");
  v1::Request watch;
  watch.mutable_watch()->set_with_existing(true);
  uint64_t id = 2;
  for (const v1::Request& request :
       {GetRequest(0, {"large", "large"}, absl::ZeroDuration()), list, watch}) {
    // Each of them has a mebibyte or two, and 64 MiB are the limit for the state of the job.
    v1::ClientFrame frame;
    for (int i = 0; i < 70; ++i) {
      *frame.add_requests() = request;
      frame.mutable_requests(i)->set_id(id++);
    }
    *frame.add_requests() = StatusRequest(id++);
    stream_.Send(frame);
    EXPECT_EQ(stream_.ReplyTo(id - 1).code(), Code(StatusCode::kResourceExhausted))
        << request.ShortDebugString();
    stream_.Acknowledge(stream_.last_sequence());
    // The sent data has been read.
    EXPECT_EQ(stream_.Call(StatusRequest(id++)).code(), 0) << request.ShortDebugString();
    stream_.Acknowledge(stream_.last_sequence());
  }
}

TEST_F(ControlRequests, FrameOfJobStatesIsCutShort) {
  if (kIsSlowToCopy) GTEST_SKIP() << kWhySlowToCopy;
  ControlStream rank(server_.Channel());
  rank.Attach(RankHello(0, 1, std::string(size_t{3} << 20, 'h')));
  rank.Send({[] {
    v1::Request request;
    request.set_id(1);
    request.mutable_register_();
    return request;
  }()});
  while (stream_.Call(StatusRequest(stream_.replies.size() + 1)).job_status().ByteSizeLong() <
         size_t{3} << 20) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  stream_.Acknowledge(stream_.last_sequence());
  const uint64_t first = stream_.replies.size() + 1;
  std::vector<v1::Request> requests;
  for (int i = 0; i < 60; ++i) requests.push_back(StatusRequest(first + i));
  stream_.Send(std::move(requests));
  EXPECT_EQ(stream_.ReplyTo(first + 59).code(), Code(StatusCode::kResourceExhausted));
  EXPECT_EQ(stream_.replies[first].code(), 0);
}

TEST_F(ControlRequests, WatchesPerClientAreLimited) {
  std::vector<v1::Request> requests(kMaxWatches + 1);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].set_id(i + 1);
    requests[i].mutable_watch()->set_prefix(absl::StrCat("w", i, "/"));
  }
  stream_.Send(std::move(requests));
  EXPECT_EQ(stream_.ReplyTo(kMaxWatches + 1).code(), Code(StatusCode::kResourceExhausted));
  EXPECT_EQ(stream_.Call(CancelRequest(kMaxWatches + 2, 1)).code(), 0);
  v1::Request again;
  again.set_id(kMaxWatches + 3);
  again.mutable_watch()->set_prefix("again/");
  stream_.Send({again});
  EXPECT_EQ(stream_.Call(PutRequest(kMaxWatches + 4, {{"again/a", "1"}})).code(), 0);
  ASSERT_TRUE(stream_.ReadUntilEvents(1));
  EXPECT_EQ(stream_.events[0].request_id(), kMaxWatches + 3);
}

// Each is answered with the whole table: of thousands of tasks, to tens of thousands of calls.
TEST_F(ControlRequests, WaitsForTaskChangesPerClientAreLimited) {
  const auto watch = [](uint64_t id, int64_t version) {
    v1::Request request;
    request.set_id(id);
    request.mutable_watch_tasks()->set_version(version);
    return request;
  };
  const int64_t version = stream_.Call(watch(1, -1)).version();
  std::vector<v1::Request> requests;
  for (int i = 0; i <= kMaxTableWaits; ++i) requests.push_back(watch(2 + i, version));
  stream_.Send(std::move(requests));
  const uint64_t refused = 2 + kMaxTableWaits;
  EXPECT_EQ(stream_.ReplyTo(refused).code(), Code(StatusCode::kResourceExhausted));
  EXPECT_EQ(stream_.replies.count(2), 0u);
  EXPECT_EQ(stream_.Call(CancelRequest(refused + 1, 2)).code(), 0);
  EXPECT_EQ(stream_.ReplyTo(2).code(), Code(StatusCode::kCancelled));
  stream_.Send({watch(refused + 2, version), watch(refused + 3, version)});
  EXPECT_EQ(stream_.ReplyTo(refused + 3).code(), Code(StatusCode::kResourceExhausted));
  EXPECT_EQ(stream_.replies.count(refused + 2), 0u);
}

// One of thousands of tasks leaves, and each of the others is notified.
TEST_F(ControlRequests, CallerThatAsksForChangesReceivesNothingElse) {
  ControlStream ranks[2] = {ControlStream(server_.Channel()), ControlStream(server_.Channel())};
  v1::Request join;
  join.set_id(1);
  join.mutable_register_();
  for (int i = 0; i < 2; ++i) {
    ranks[i].Attach(RankHello(i, 7 + static_cast<uint64_t>(i), "host"));
    ranks[i].Send({join});
  }
  for (ControlStream& rank : ranks) ASSERT_EQ(rank.ReplyTo(1).code(), 0);
  v1::Request watch;
  watch.set_id(1);
  watch.mutable_watch_tasks()->set_version(-1);
  watch.mutable_watch_tasks()->set_only_changed(true);
  const v1::Reply all = stream_.Call(watch);
  EXPECT_EQ(all.tasks_size(), 2);
  watch.set_id(2);
  watch.mutable_watch_tasks()->set_version(all.version());
  v1::Request watch_all = watch;
  watch_all.set_id(3);
  watch_all.mutable_watch_tasks()->clear_only_changed();
  stream_.Send({watch, watch_all});
  // Includes the server's own request for each rank: the job's errors.
  ASSERT_TRUE(server_.WaitUntilParked(4));
  v1::Request leave;
  leave.set_id(2);
  leave.mutable_leave();
  EXPECT_EQ(ranks[1].Call(leave).code(), 0);
  EXPECT_EQ(stream_.ReplyTo(3).tasks_size(), 2);
  const v1::Reply changed = stream_.ReplyTo(2);
  ASSERT_EQ(changed.tasks_size(), 1);
  EXPECT_EQ(changed.tasks(0).node_id(), 1);
  EXPECT_GT(changed.version(), all.version());
}

// Requests that need a rank are refused for tools.
TEST_F(ControlRequests, ToolIsNoNode) {
  std::vector<v1::Request> requests(7);
  requests[0].mutable_register_();
  requests[1].mutable_heartbeat();
  requests[2] = BarrierRequest(0, "b", kLong);
  requests[3].mutable_get_alive()->add_nodes(0);
  requests[4].mutable_enumerate();
  requests[5].mutable_report_error()->set_code(13);
  requests[6].mutable_shutdown();
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].set_id(i + 1);
    const v1::Reply reply = stream_.Call(requests[i]);
    EXPECT_EQ(reply.code(), static_cast<int>(StatusCode::kFailedPrecondition))
        << requests[i].ShortDebugString();
    EXPECT_THAT(reply.message(), HasSubstr("did not say which node it is"));
  }
}

v1::Request RegisterRequest(uint64_t id, absl::Duration timeout = kLong) {
  v1::Request request;
  request.set_id(id);
  request.mutable_register_()->set_timeout_ms(absl::ToInt64Milliseconds(timeout));
  return request;
}

v1::Request EnumerateRequest(uint64_t id, int node) {
  v1::LocalTopology local;
  local.set_node_id(node);
  local.set_host_name(absl::StrCat("host", node));
  local.set_boot_id(absl::StrCat("boot", node));
  local.add_devices()->set_name("cpu");
  v1::Request request;
  request.set_id(id);
  request.mutable_enumerate()->set_local_topology(local.SerializeAsString());
  request.mutable_enumerate()->set_timeout_ms(20'000);
  return request;
}

// Two ranks that have not joined yet.
class JoiningRanks : public ::testing::Test {
 protected:
  JoiningRanks() {
    for (int node = 0; node < 2; ++node) {
      ranks_[node].Attach(RankHello(node, 100 + node, absl::StrCat("host", node)));
    }
  }

  TestServer server_{BarrierOptions(2)};
  ControlStream ranks_[2] = {ControlStream(server_.Channel()), ControlStream(server_.Channel())};
};

// An agent joins with one message in each direction.
TEST_F(JoiningRanks, DevicesMayComeWithTheRegistration) {
  for (int node = 0; node < 2; ++node) {
    ranks_[node].Send({RegisterRequest(1), EnumerateRequest(2, node)});
  }
  for (ControlStream& rank : ranks_) {
    EXPECT_EQ(rank.ReplyTo(2).code(), 0);
    EXPECT_EQ(rank.replies[1].code(), 0);
  }
  EXPECT_EQ(ranks_[0].blobs[2], ranks_[1].blobs[2]);
  v1::GlobalTopology global;
  ASSERT_TRUE(global.ParseFromString(ranks_[0].blobs[2]));
  EXPECT_EQ(global.node_id_deltas_size(), 2);
}

TEST_F(JoiningRanks, DevicesFailAsTheRegistrationDoes) {
  ranks_[0].Send({RegisterRequest(1, absl::Milliseconds(30)), EnumerateRequest(2, 0)});
  EXPECT_EQ(ranks_[0].ReplyTo(1).code(), Code(StatusCode::kDeadlineExceeded));
  EXPECT_EQ(ranks_[0].ReplyTo(2).code(), Code(StatusCode::kDeadlineExceeded));
  EXPECT_EQ(ranks_[0].replies[2].missing_nodes(), "1");
  // And once more, in good order.
  ranks_[0].Send({RegisterRequest(3), EnumerateRequest(4, 0)});
  ranks_[1].Send({RegisterRequest(1), EnumerateRequest(2, 1)});
  EXPECT_EQ(ranks_[0].ReplyTo(4).code(), 0);
  EXPECT_EQ(ranks_[1].ReplyTo(2).code(), 0);
}

TEST_F(JoiningRanks, DevicesThatWaitForTheRegistrationCanBeCancelled) {
  ranks_[0].Send({RegisterRequest(1), EnumerateRequest(2, 0), CancelRequest(3, 2)});
  EXPECT_EQ(ranks_[0].ReplyTo(2).code(), Code(StatusCode::kCancelled));
  EXPECT_EQ(ranks_[0].ReplyTo(3).code(), 0);
  ranks_[1].Send({RegisterRequest(1), EnumerateRequest(2, 1)});
  EXPECT_EQ(ranks_[0].ReplyTo(1).code(), 0);
  // Its devices were never sent, and may be now.
  EXPECT_EQ(ranks_[0].Call(EnumerateRequest(4, 0)).code(), 0);
  EXPECT_EQ(ranks_[1].ReplyTo(2).code(), 0);
  EXPECT_EQ(ranks_[0].reply_counts[2], 1);
}

// Two ranks that have joined.
class ControlRanks : public ::testing::Test {
 protected:
  ControlRanks() {
    for (int node = 0; node < 2; ++node) {
      ranks_[node].Attach(RankHello(node, 100 + node, absl::StrCat("host", node)));
      v1::Request join;
      join.set_id(1);
      join.mutable_register_();
      ranks_[node].Send({join});
    }
    for (ControlStream& rank : ranks_) EXPECT_EQ(rank.ReplyTo(1).code(), 0);
  }

  TestServer server_{BarrierOptions(2)};
  ControlStream ranks_[2] = {ControlStream(server_.Channel()), ControlStream(server_.Channel())};
};

TEST_F(ControlRanks, BarrierThatTimesOutNamesTheMissing) {
  const v1::Reply reply = ranks_[0].Call(BarrierRequest(2, "b", absl::Milliseconds(50)));
  EXPECT_EQ(reply.code(), Code(StatusCode::kDeadlineExceeded));
  EXPECT_EQ(reply.missing_nodes(), "1");
  EXPECT_EQ(reply.counter(), 0);
  ranks_[0].Send({BarrierRequest(3, "b", kLong, 1)});
  EXPECT_EQ(ranks_[1].Call(BarrierRequest(2, "b", kLong, 1)).code(), 0);
  EXPECT_EQ(ranks_[0].ReplyTo(3).counter(), 1);
}

v1::Request AliveRequest(uint64_t id, const std::vector<int>& nodes) {
  v1::Request request;
  request.set_id(id);
  for (const int node : nodes) request.mutable_get_alive()->add_nodes(node);
  return request;
}

TEST_F(ControlRanks, AliveRequestThatFails_DoesNotCountAsWaiting) {
  uint64_t id = 2;
  for (int i = 0; i < kMaxTableWaits; ++i) {
    // Without the caller itself.
    EXPECT_EQ(ranks_[0].Call(AliveRequest(id++, {1})).code(), Code(StatusCode::kInvalidArgument));
    ranks_[0].Send({AliveRequest(id, {0, 1}), CancelRequest(id + 1, id)});
    EXPECT_EQ(ranks_[0].ReplyTo(id).code(), Code(StatusCode::kCancelled));
    id += 2;
  }
  EXPECT_EQ(ranks_[0].Call(AliveRequest(id, {0})).code(), 0);
}

// With those for changes of the table: the answers are of one size.
TEST_F(ControlRanks, AliveRequestsThatWaitAreLimited) {
  std::vector<v1::Request> requests;
  for (int i = 0; i <= kMaxTableWaits; ++i) requests.push_back(AliveRequest(2 + i, {0, 1}));
  ranks_[0].Send(std::move(requests));
  const uint64_t refused = 2 + kMaxTableWaits;
  EXPECT_EQ(ranks_[0].ReplyTo(refused).code(), Code(StatusCode::kResourceExhausted));
  EXPECT_EQ(ranks_[0].replies.count(refused - 1), 0u);
  v1::Request watch;
  watch.set_id(refused + 1);
  watch.mutable_watch_tasks()->set_version(-1);
  EXPECT_EQ(ranks_[0].Call(watch).code(), Code(StatusCode::kResourceExhausted));
  // All are answered, and others may wait.
  EXPECT_EQ(ranks_[1].Call(AliveRequest(2, {0, 1})).tasks_size(), 2);
  EXPECT_EQ(ranks_[0].ReplyTo(refused - 1).code(), 0);
  watch.set_id(refused + 2);
  EXPECT_EQ(ranks_[0].Call(watch).code(), 0);
}

TEST_F(ControlRanks, EnumerateAnswersAllWithTheSameBlob) {
  for (int node = 1; node >= 0; --node) ranks_[node].Send({EnumerateRequest(2, node)});
  EXPECT_EQ(ranks_[0].ReplyTo(2).code(), 0);
  EXPECT_EQ(ranks_[1].ReplyTo(2).code(), 0);
  v1::GlobalTopology global;
  ASSERT_TRUE(global.ParseFromString(ranks_[0].blobs[2]));
  EXPECT_EQ(global.node_id_deltas_size(), 2);
  EXPECT_EQ(ranks_[0].blobs[2], ranks_[1].blobs[2]);
  v1::Request again;
  again.set_id(3);
  again.mutable_get_topology();
  EXPECT_EQ(ranks_[0].Call(again).code(), 0);
  EXPECT_EQ(ranks_[0].blobs[3], ranks_[0].blobs[2]);
}

TEST_F(ControlRanks, ErrorOfOneReachesTheOtherAsAnEventOnce) {
  v1::Request report;
  report.set_id(2);
  report.mutable_report_error()->set_code(Code(StatusCode::kDataLoss));
  report.mutable_report_error()->set_message("disk gone");
  EXPECT_EQ(ranks_[0].Call(report).code(), 0);
  ASSERT_TRUE(ranks_[1].ReadUntilEvents(1));
  EXPECT_EQ(ranks_[1].events[0].kind(), v1::Event::JOB_ERROR);
  EXPECT_EQ(ranks_[1].events[0].code(), Code(StatusCode::kDataLoss));
  EXPECT_THAT(ranks_[1].events[0].message(), HasSubstr("disk gone"));
  ranks_[1].Call(PutRequest(2, {{"k", "v"}}));
  EXPECT_EQ(ranks_[1].events.size(), 1u);
}

TEST_F(ControlRanks, StatusListsTheWaits) {
  ranks_[0].Send({BarrierRequest(2, "checkpoint", kLong), GetRequest(3, {"ncclid"}, kLong)});
  ASSERT_TRUE(Eventually([this] { return server_.parked() >= 2; }));
  ControlStream tool(server_.Channel());
  tool.Attach();
  v1::Request request;
  request.set_id(1);
  request.mutable_get_job_status();
  const v1::JobStatus status = tool.Call(request).job_status();
  ASSERT_EQ(status.tasks_size(), 2);
  EXPECT_EQ(status.tasks(0).host_name(), "host0");
  EXPECT_EQ(status.tasks(0).service(), "control");
  EXPECT_EQ(status.tasks(0).process_id(), 1000);
  ASSERT_EQ(status.barriers_size(), 1);
  EXPECT_EQ(status.barriers(0).id(), "checkpoint");
  EXPECT_EQ(status.barriers(0).arrived(), "0");
  EXPECT_EQ(status.barriers(0).missing(), "1");
  EXPECT_THAT(status.tasks(0).ShortDebugString(), HasSubstr("ncclid"));
  int listed = status.anonymous_waits_size();
  for (const v1::TaskInfo& task : status.tasks()) listed += task.waits_size();
  EXPECT_EQ(status.parked_waits(), listed);
}

// Neither the call itself nor the coordinator's own watches count as waits.
TEST(ControlStatus, NothingWaits_CountsNoWaits) {
  TestServer server(BarrierOptions(2));
  bool has_ended = false;
  const WaitId own = server->executor().Run([&has_ended](Coordinator& coordinator) {
    return coordinator.WatchTasks(coordinator.membership().version(), kCoordinatorItself,
                                  [&has_ended](const auto&) { has_ended = true; });
  });
  ASSERT_NE(own, kNoWait);
  ControlStream tool(server.Channel());
  tool.Attach();
  for (int round = 0; round < 3; ++round) {
    v1::Request request;
    request.set_id(static_cast<uint64_t>(round) + 1);
    request.mutable_get_job_status();
    EXPECT_EQ(tool.Call(request).job_status().parked_waits(), 0) << round;
  }
  EXPECT_FALSE(has_ended);
  server->executor().Run([own](Coordinator& coordinator) { coordinator.Cancel(own); });
  EXPECT_TRUE(has_ended);
}

}  // namespace
}  // namespace ferry::coord

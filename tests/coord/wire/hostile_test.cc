// SPDX-License-Identifier: Apache-2.0
// Bytes and numbers that no honest client sends. After each, the server serves the next client.
#include <random>
#include <string>
#include <vector>

#include <google/protobuf/descriptor.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "control_stream.h"
#include "proto/tsl_coordination.pb.h"
#include "proto/xla_coordination.pb.h"
#include "proto/xla_distributed_runtime.pb.h"
#include "test_server.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr unsigned kSeed = 20261120;

// Every method that takes a message.
std::vector<std::string> AllPaths() {
  // Makes the linker keep the descriptors.
  (void)tensorflow::PollForErrorRequest::descriptor();
  (void)::xla::coordination::PollForErrorRequest::descriptor();
  (void)::xla::ConnectRequest::descriptor();
  std::vector<std::string> paths;
  for (const char* name : {"tensorflow.CoordinationService", "xla.coordination.CoordinationService",
                           "xla.DistributedRuntimeService", "ferry.v1.Control"}) {
    const auto* service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    if (service == nullptr) {
      ADD_FAILURE() << name;
      continue;
    }
    for (int i = 0; i < service->method_count(); ++i) {
      paths.push_back(absl::StrCat("/", name, "/", service->method(i)->name()));
    }
  }
  // The older layouts have methods of their own on the newer path.
  for (const char* method :
       {"WatchJobState", "WaitForAllTasks", "ResetTask", "GetTaskState", "ReportErrorToService"}) {
    paths.push_back(absl::StrCat("/xla.coordination.CoordinationService/", method));
  }
  return paths;
}

class Hostile : public ::testing::Test {
 protected:
  // The server does its work for an honest client.
  void ExpectServes() {
    TaskClient honest = server_.Task(Dialect::kIncarnations, 0);
    const std::string value = absl::StrCat(++asked_);
    EXPECT_THAT(honest.Insert("honest", value, true).Wait(), IsOk());
    EXPECT_THAT(honest.Entry("GetKeyValue", honest.Get("honest").Wait()), Pair("honest", value));
  }
  // Sends all at once, each with a short deadline where some of them wait.
  std::vector<Answer> SendAll(const std::vector<std::pair<std::string, std::string>>& requests,
                              absl::Duration deadline = absl::Milliseconds(500)) {
    PendingCall::Options options;
    options.deadline = deadline;
    std::vector<PendingCall> calls;
    for (const auto& [path, bytes] : requests) {
      calls.push_back(PendingCall::Start(channel_, path, bytes, options));
    }
    std::vector<Answer> answers;
    for (const PendingCall& call : calls) answers.push_back(call.Wait());
    return answers;
  }

  TestServer server_{TestOptions(3)};
  std::shared_ptr<grpc::Channel> channel_ = server_.Channel();
  int asked_ = 0;
};

TEST_F(Hostile, MalformedMessagesAreRefusedOnEveryPath) {
  std::vector<std::pair<std::string, std::string>> requests;
  for (const std::string& path : AllPaths()) {
    // A length beyond the end; an endless varint; a group's end; field number 0.
    for (const char* hex : {"0aff", "0affffffff0f61", "08ffffffffffffffffffff01", "0c", "00"}) {
      requests.emplace_back(path, absl::HexStringToBytes(hex));
    }
  }
  // None of them waits, however loaded the machine is.
  const std::vector<Answer> answers = SendAll(requests, kTimeout);
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_FALSE(answers[i].code == StatusCode::kOk)
        << requests[i].first << " " << absl::BytesToHexString(requests[i].second);
    EXPECT_FALSE(answers[i].code == StatusCode::kDeadlineExceeded)
        << requests[i].first << " " << absl::BytesToHexString(requests[i].second);
  }
  ExpectServes();
}

TEST_F(Hostile, EmptyMessagesAreHarmless) {
  std::vector<std::pair<std::string, std::string>> requests;
  for (const std::string& path : AllPaths()) requests.emplace_back(path, "");
  SendAll(requests);
  ExpectServes();
}

TEST_F(Hostile, RandomBytesAreHarmless) {
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const std::vector<std::string> paths = AllPaths();
  for (int round = 0; round < 4; ++round) {
    std::vector<std::pair<std::string, std::string>> requests;
    for (int i = 0; i < 750; ++i) {
      std::string bytes(random() % 64, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      requests.emplace_back(paths[random() % paths.size()], std::move(bytes));
    }
    SendAll(requests);
    ExpectServes();
  }
}

// Real requests of jaxlib 0.4.13, 0.9.0 and 0.10.2, as captured.
std::vector<std::pair<std::string, std::string>> Captures() {
  constexpr struct {
    const char* path;
    const char* hex;
  } kCaptures[] = {
      {"/xla.DistributedRuntimeService/Connect", "080310e0d403180120d6db85a8d3fa848ade01"},
      {"/xla.DistributedRuntimeService/KeyValueSet",
       "08e3add9bebf86d8eeb50112062f612f2f622f1a0176"},
      {"/xla.DistributedRuntimeService/WaitAtBarrier",
       "08e3add9bebf86d8eeb50112036261721801208827"},
      {"/xla.DistributedRuntimeService/KeyValueGet", "08e3add9bebf86d8eeb5011203612f6218e807"},
      {"/tensorflow.CoordinationService/RegisterTask",
       "1906837c451cd2f0452a0e0a0a6a61785f776f726b65721001"},
      {"/tensorflow.CoordinationService/Barrier",
       "0a13506a52545f436c69656e745f436f6e6e65637410c0a907220e0a0a6a61785f776f726b65721001"},
      {"/tensorflow.CoordinationService/Heartbeat",
       "1906837c451cd2f045220e0a0a6a61785f776f726b65721001"},
      {"/tensorflow.CoordinationService/InsertKeyValue", "0a080a03612f621201771001"},
      {"/tensorflow.CoordinationService/PollForError", "0a0e0a0a6a61785f776f726b65721001"},
      {"/tensorflow.CoordinationService/GetAliveTasks",
       "0a0c0a0a6a61785f776f726b6572120c0a0a6a61785f776f726b6572120e0a0a6a61785f776f726b65721001"},
      {"/tensorflow.CoordinationService/IncrementKeyValue", "0a016e1005"},
      {"/xla.coordination.CoordinationService/RegisterTask", "198b8d75a5368911672801"},
      {"/xla.coordination.CoordinationService/PollForError",
       "0a12118b8d75a53689116719bc642102e077c67d1001"},
      {"/xla.coordination.CoordinationService/InsertKeyValue",
       "0a12118995234cc698b7a319bc642102e077c67d120b0a062f612f2f622f120176"},
      {"/xla.coordination.CoordinationService/Barrier",
       "0a12118b8d75a53689116719bc642102e077c67d12036261721888272801"},
      {"/xla.coordination.CoordinationService/IncrementKeyValue",
       "0a12118995234cc698b7a319bc642102e077c67d12016e1805"},
      {"/xla.coordination.CoordinationService/GetAliveTasks",
       "0a12118b8d75a53689116719bc642102e077c67d10011a020001"},
      {"/xla.coordination.CoordinationService/Heartbeat",
       "0a12118b8d75a53689116719bc642102e077c67d118b8d75a5368911671801"},
  };
  std::vector<std::pair<std::string, std::string>> captures;
  for (const auto& capture : kCaptures) {
    captures.emplace_back(capture.path, absl::HexStringToBytes(capture.hex));
  }
  return captures;
}

std::string Mutate(std::string bytes, std::mt19937& random) {
  const auto at = [&] { return bytes.empty() ? 0 : random() % bytes.size(); };
  for (unsigned change = 0; change <= random() % 3; ++change) {
    switch (random() % 6) {
      case 0:
        if (!bytes.empty()) bytes[at()] ^= static_cast<char>(1 << (random() % 8));
        break;
      case 1:
        if (!bytes.empty()) bytes[at()] = static_cast<char>(random());
        break;
      case 2:
        bytes.resize(at());
        break;
      case 3:
        bytes.insert(at(), 1, static_cast<char>(random()));
        break;
      case 4:
        // The largest varint, as a length, a number or a tag.
        bytes.insert(at(), "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
        break;
      case 5:
        bytes += bytes;
        break;
    }
  }
  return bytes;
}

TEST_F(Hostile, MutationsOfRealRequestsAreHarmless) {
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const auto captures = Captures();
  // Also those that would be right, for this service.
  auto tasks = server_.Registered(Dialect::kTensorflow, 2);
  for (int round = 0; round < 6; ++round) {
    std::vector<std::pair<std::string, std::string>> requests;
    for (int i = 0; i < 750; ++i) {
      const auto& [path, bytes] = captures[random() % captures.size()];
      requests.emplace_back(path, Mutate(bytes, random));
    }
    SendAll(requests);
    ExpectServes();
  }
}

TEST_F(Hostile, MutationsOfControlFramesAreHarmless) {
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  v1::ClientFrame frame;
  *frame.mutable_hello() = RankHello(1, 7, "host");
  *frame.add_requests() = PutRequest(1, {{"a", "b"}});
  *frame.add_requests() = GetRequest(2, {"a", "zz"}, absl::Seconds(5));
  *frame.add_requests() = BarrierRequest(3, "b", absl::Seconds(5));
  frame.add_requests()->mutable_get_job_status();
  frame.mutable_requests(3)->set_id(4);
  const std::string bytes = frame.SerializeAsString();
  for (int round = 0; round < 3; ++round) {
    std::vector<std::pair<std::string, std::string>> requests;
    for (int i = 0; i < 300; ++i) {
      requests.emplace_back("/ferry.v1.Control/Attach", Mutate(bytes, random));
    }
    SendAll(requests);
    ExpectServes();
  }
}

// --- Numbers ---

constexpr int64_t kExtremes[] = {INT64_MIN, INT64_MIN + 1, -1, 0, INT64_MAX - 1, INT64_MAX};

TEST_F(Hostile, ExtremeTimeoutsAndCountersOfBarriers) {
  auto tasks = server_.Registered(Dialect::kTensorflow, 3);
  std::vector<std::pair<std::string, std::string>> requests;
  int id = 0;
  for (const int64_t timeout : kExtremes) {
    for (const int64_t counter : kExtremes) {
      tensorflow::BarrierRequest request;
      request.set_barrier_id(absl::StrCat("b", id++));
      request.set_barrier_timeout_in_ms(timeout);
      request.set_counter(counter);
      request.mutable_source_task()->set_job_name("jax_worker");
      requests.emplace_back("/tensorflow.CoordinationService/Barrier", request.SerializeAsString());
      tensorflow::CancelBarrierRequest cancel;
      cancel.set_barrier_id(request.barrier_id());
      cancel.set_counter(counter);
      *cancel.mutable_source_task() = request.source_task();
      requests.emplace_back("/tensorflow.CoordinationService/CancelBarrier",
                            cancel.SerializeAsString());
    }
  }
  SendAll(requests);
  ExpectServes();
  // A wait that is far too long is a wait, not one that is over.
  const PendingCall wait = tasks[0].Barrier("long", absl::Milliseconds(INT64_MAX));
  ASSERT_TRUE(server_.WaitUntilAwaited("barrier \"long\""));
  EXPECT_FALSE(wait.done());
  const PendingCall second = tasks[1].Barrier("long", absl::Milliseconds(INT64_MAX));
  EXPECT_THAT(tasks[2].Barrier("long", absl::Milliseconds(INT64_MAX)).Wait(), IsOk());
  EXPECT_THAT(wait.Wait(), IsOk());
  EXPECT_THAT(second.Wait(), IsOk());
}

TEST_F(Hostile, ExtremeTaskIdsVersionsAndIncrements) {
  for (const Dialect dialect : kDialects) {
    for (const int task : {INT32_MIN, -1, 3, INT32_MAX}) {
      TaskClient client = server_.Task(dialect, task);
      EXPECT_THAT(client.Register(1).Wait(), Fails(StatusCode::kInvalidArgument));
      EXPECT_THAT(client.Heartbeat(1).Wait(), Fails(StatusCode::kInvalidArgument));
      EXPECT_THAT(client.Poll().Wait(), Fails(StatusCode::kInvalidArgument));
      EXPECT_THAT(client.Shutdown().Wait(), Fails(StatusCode::kInvalidArgument));
      EXPECT_FALSE(client.Reset().Wait().code == StatusCode::kOk);
      EXPECT_FALSE(client.Alive({task}).Wait().code == StatusCode::kOk);
      EXPECT_FALSE(client.Barrier("b", absl::Seconds(1)).Wait().code == StatusCode::kOk);
    }
    TaskClient client = server_.Task(dialect, 0);
    EXPECT_THAT(client.Watch(INT64_MAX).Wait(), Fails(StatusCode::kInvalidArgument));
    EXPECT_THAT(client.Watch(INT64_MIN).Wait(), AnyOf(IsOk(), Fails(StatusCode::kInvalidArgument)));
    const std::string key = DialectName(dialect);
    ASSERT_THAT(client.Increment(key, INT64_MAX).Wait(), IsOk());
    EXPECT_THAT(client.Increment(key, INT64_MAX).Wait(), Fails(StatusCode::kOutOfRange));
    EXPECT_EQ(client.Entry("IncrementKeyValue", client.Increment(key, INT64_MIN).Wait()).second,
              "-1");
    EXPECT_THAT(client.Increment(key, INT64_MIN).Wait(), Fails(StatusCode::kOutOfRange));
  }
  ExpectServes();
}

TEST_F(Hostile, ListsOfTenThousandTasks) {
  std::vector<int> unknown;
  for (int i = 0; i < 10'000; ++i) unknown.push_back(i);
  const std::vector<int> repeated(10'000, 0);
  for (const Dialect dialect : kDialects) {
    TaskClient task = server_.Registered(dialect, 1)[0];
    EXPECT_THAT(task.Barrier("u", absl::Seconds(9), 0, unknown).Wait(),
                Fails(StatusCode::kInvalidArgument));
    EXPECT_THAT(task.Alive(unknown).Wait(), Fails(StatusCode::kInvalidArgument));
    // One task, listed ten thousand times, is one task.
    EXPECT_THAT(task.Barrier(DialectName(dialect), absl::Seconds(9), 0, repeated).Wait(), IsOk());
    EXPECT_THAT(task.AliveTasks(task.Alive(repeated).Wait()).tasks, ::testing::ElementsAre(0));
  }
  ExpectServes();
}

}  // namespace
}  // namespace ferry::coord

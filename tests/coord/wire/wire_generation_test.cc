// SPDX-License-Identifier: Apache-2.0
// Telling the generations of xla.coordination.CoordinationService apart, per request.
#include "coord/core/wire_generation.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include <google/protobuf/message.h>

#include "absl/strings/escaping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/tsl_coordination.pb.h"
#include "proto/xla_coordination.pb.h"
#include "proto/xla_coordination_numbered.pb.h"

namespace ferry::coord {
namespace {

using google::protobuf::Message;

template <typename Task>
void Fill(Task& task, const std::string& job, int number) {
  task.set_job_name(job);
  task.set_task_id(number);
}

constexpr WireGeneration kNamed = WireGeneration::kNamedTasks;
constexpr WireGeneration kNumbered = WireGeneration::kNumberedTasks;
constexpr WireGeneration kNew = WireGeneration::kIncarnations;

// A request of a G3 client, for task `number`.
std::vector<std::pair<std::string, std::string>> NamedRequests(int number) {
  std::vector<std::pair<std::string, std::string>> requests;
  const auto add = [&](const std::string& method, const Message& message) {
    requests.emplace_back(method, message.SerializeAsString());
  };
  const std::string job = "jax_worker";
  tensorflow::RegisterTaskRequest register_task;
  register_task.set_incarnation(77);
  Fill(*register_task.mutable_source_task(), job, number);
  add("RegisterTask", register_task);
  tensorflow::HeartbeatRequest heartbeat;
  heartbeat.set_incarnation(77);
  Fill(*heartbeat.mutable_source_task(), job, number);
  add("Heartbeat", heartbeat);
  tensorflow::WaitForAllTasksRequest wait;
  Fill(*wait.mutable_source_task(), job, number);
  wait.mutable_device_info()->add_device("x");
  add("WaitForAllTasks", wait);
  tensorflow::ShutdownTaskRequest shutdown;
  Fill(*shutdown.mutable_source_task(), job, number);
  add("ShutdownTask", shutdown);
  tensorflow::ResetTaskRequest reset;
  Fill(*reset.mutable_source_task(), job, number);
  add("ResetTask", reset);
  tensorflow::PollForErrorRequest poll;
  Fill(*poll.mutable_source_task(), job, number);
  add("PollForError", poll);
  tensorflow::ReportErrorToServiceRequest report;
  report.set_error_code(13);
  report.set_error_message("x");
  Fill(*report.mutable_error_origin(), job, number);
  add("ReportErrorToService", report);
  tensorflow::GetTaskStateRequest state;
  Fill(*state.add_source_task(), job, number);
  add("GetTaskState", state);
  tensorflow::WatchJobStateRequest watch;
  watch.set_job_name(job);
  watch.set_version_number(-1);
  add("WatchJobState", watch);
  tensorflow::BarrierRequest barrier;
  barrier.set_barrier_id("b");
  barrier.set_barrier_timeout_in_ms(5000);
  Fill(*barrier.mutable_source_task(), job, number);
  add("Barrier", barrier);
  Fill(*barrier.add_tasks(), job, 0);
  Fill(*barrier.add_tasks(), job, 1);
  barrier.set_counter(3);
  add("Barrier", barrier);
  tensorflow::CancelBarrierRequest cancel;
  cancel.set_barrier_id("b");
  Fill(*cancel.mutable_source_task(), job, number);
  add("CancelBarrier", cancel);
  tensorflow::GetAliveTasksRequest alive;
  Fill(*alive.mutable_requesting_task(), job, number);
  Fill(*alive.add_tasks(), job, 0);
  add("GetAliveTasks", alive);
  return requests;
}

// A request of a G4 client.
std::vector<std::pair<std::string, std::string>> NumberedRequests(int number) {
  std::vector<std::pair<std::string, std::string>> requests;
  const auto add = [&](const std::string& method, const Message& message) {
    requests.emplace_back(method, message.SerializeAsString());
  };
  numbered::HeartbeatRequest heartbeat;
  heartbeat.set_incarnation(77);
  heartbeat.set_source_task(number);
  add("Heartbeat", heartbeat);
  numbered::WaitForAllTasksRequest wait;
  wait.set_source_task(number);
  wait.mutable_device_info()->add_device("x");
  add("WaitForAllTasks", wait);
  numbered::BarrierRequest barrier;
  barrier.set_barrier_id("b");
  barrier.set_barrier_timeout_in_ms(5000);
  barrier.set_source_task(number);
  add("Barrier", barrier);
  barrier.set_barrier_id("PREEMPTION_SYNC_BARRIER");
  barrier.add_tasks(0);
  barrier.add_tasks(1);
  barrier.set_counter(3);
  add("Barrier", barrier);
  numbered::CancelBarrierRequest cancel;
  cancel.set_barrier_id("b");
  cancel.set_source_task(number);
  add("CancelBarrier", cancel);
  numbered::GetAliveTasksRequest alive;
  alive.set_requesting_task(number);
  alive.add_tasks(0);
  alive.add_tasks(1);
  add("GetAliveTasks", alive);
  numbered::WatchJobStateRequest watch;
  watch.set_version_number(-1);
  add("WatchJobState", watch);
  if (number != 0) {
    // With task 0 these three are empty, and alike in every layout.
    numbered::ShutdownTaskRequest shutdown;
    shutdown.set_source_task(number);
    add("ShutdownTask", shutdown);
    numbered::ResetTaskRequest reset;
    reset.set_source_task(number);
    add("ResetTask", reset);
    numbered::PollForErrorRequest poll;
    poll.set_source_task(number);
    add("PollForError", poll);
  }
  return requests;
}

// A request of a G5 client; `service` 0 is what a new client may send.
std::vector<std::pair<std::string, std::string>> IncarnationsRequests(int number,
                                                                      uint64_t service) {
  std::vector<std::pair<std::string, std::string>> requests;
  const auto add = [&](const std::string& method, auto message) {
    message.mutable_incarnations()->set_task_incarnation(0xa3b798c64c239589);
    message.mutable_incarnations()->set_service_incarnation(service);
    requests.emplace_back(method, message.SerializeAsString());
  };
  namespace g5 = ::xla::coordination;
  g5::HeartbeatRequest heartbeat;
  heartbeat.set_incarnation(77);
  heartbeat.set_source_task(number);
  add("Heartbeat", heartbeat);
  g5::PollForErrorRequest poll;
  poll.set_source_task(number);
  add("PollForError", poll);
  g5::ShutdownTaskRequest shutdown;
  shutdown.set_source_task(number);
  add("ShutdownTask", shutdown);
  g5::WatchTasksRequest watch;
  watch.set_version_number(-1);
  add("WatchTasks", watch);
  g5::InsertKeyValueRequest insert;
  insert.mutable_kv()->set_key("k");
  insert.mutable_kv()->set_value("v");
  insert.set_allow_overwrite(true);
  add("InsertKeyValue", insert);
  g5::GetKeyValueRequest get;
  get.set_key("k");
  add("GetKeyValue", get);
  g5::TryGetKeyValueRequest try_get;
  try_get.set_key("k");
  add("TryGetKeyValue", try_get);
  g5::IncrementKeyValueRequest increment;
  increment.set_key("k");
  increment.set_increment(-5);
  add("IncrementKeyValue", increment);
  g5::GetKeyValueDirRequest list;
  list.set_directory_key("k");
  add("GetKeyValueDir", list);
  g5::DeleteKeyValueRequest erase;
  erase.set_key("k");
  erase.set_is_directory(true);
  add("DeleteKeyValue", erase);
  g5::BarrierRequest barrier;
  barrier.set_barrier_id("b");
  barrier.set_barrier_timeout_in_ms(5000);
  barrier.set_source_task(number);
  add("Barrier", barrier);
  barrier.add_tasks(0);
  barrier.add_tasks(1);
  barrier.set_counter(2);
  add("Barrier", barrier);
  g5::CancelBarrierRequest cancel;
  cancel.set_barrier_id("b");
  cancel.set_source_task(number);
  add("CancelBarrier", cancel);
  g5::GetAliveTasksRequest alive;
  alive.set_requesting_task(number);
  alive.add_tasks(0);
  alive.add_tasks(1);
  add("GetAliveTasks", alive);
  return requests;
}

TEST(WireGeneration, NamedTasksAreRecognised) {
  for (const int number : {0, 1, 1000, 1'000'000}) {
    for (const auto& [method, bytes] : NamedRequests(number)) {
      EXPECT_EQ(TellGeneration(method, bytes), kNamed) << method << " of task " << number;
    }
  }
}

TEST(WireGeneration, NumberedTasksAreRecognised) {
  for (const int number : {0, 1, 127, 128, 1'000'000}) {
    for (const auto& [method, bytes] : NumberedRequests(number)) {
      EXPECT_EQ(TellGeneration(method, bytes), kNumbered) << method << " of task " << number;
    }
  }
}

TEST(WireGeneration, IncarnationsAreRecognised) {
  for (const int number : {0, 1, 127, 128, 1'000'000}) {
    for (const uint64_t service : {uint64_t{0}, uint64_t{1}, uint64_t{0x7dc677e0022164bc}}) {
      for (const auto& [method, bytes] : IncarnationsRequests(number, service)) {
        EXPECT_EQ(TellGeneration(method, bytes), kNew) << method << " of task " << number;
      }
    }
  }
}

// Key-value messages have no task in G3 and G4, and one layout.
TEST(WireGeneration, KeyValueRequestsWithoutIncarnationsAreRecognised) {
  std::vector<std::pair<std::string, std::string>> requests;
  // Keys that look like an Incarnations message to a careless reader, and values that look like
  // the tail of one.
  for (const std::string& key :
       {std::string("k"), std::string("jax_worker"), std::string("\x11") + std::string(8, 'x'),
        std::string("cuda:local_topology/cuda/0"), std::string(300, 'k')}) {
    tensorflow::InsertKeyValueRequest insert;
    insert.mutable_kv()->set_key(key);
    insert.mutable_kv()->set_value("v");
    requests.emplace_back("InsertKeyValue", insert.SerializeAsString());
    insert.set_allow_overwrite(true);
    requests.emplace_back("InsertKeyValue", insert.SerializeAsString());
    // That key is byte for byte an Incarnations message, and taken for one; no client has such
    // keys.
    if (key[0] == '\x11') continue;
    tensorflow::IncrementKeyValueRequest increment;
    increment.set_key(key);
    increment.set_increment(5);
    requests.emplace_back("IncrementKeyValue", increment.SerializeAsString());
    tensorflow::DeleteKeyValueRequest erase;
    erase.set_key(key);
    erase.set_is_directory(true);
    requests.emplace_back("DeleteKeyValue", erase.SerializeAsString());
    tensorflow::GetKeyValueRequest get;
    get.set_key(key);
    requests.emplace_back("GetKeyValue", get.SerializeAsString());
    requests.emplace_back("TryGetKeyValue", get.SerializeAsString());
    requests.emplace_back("GetKeyValueDir", get.SerializeAsString());
  }
  for (const auto& [method, bytes] : requests) {
    EXPECT_NE(TellGeneration(method, bytes), kNew) << method << " " << absl::CHexEscape(bytes);
  }
}

// Captured from jaxlib 0.10.2 (tasks 0 and 1).
TEST(WireGeneration, RealRequestsOfJaxlib0_10AreRecognised) {
  constexpr struct {
    const char* method;
    const char* hex;
  } kCaptures[] = {
      {"PollForError", "0a12118995234cc698b7a319bc642102e077c67d"},
      {"PollForError", "0a12118b8d75a53689116719bc642102e077c67d1001"},
      {"InsertKeyValue", "0a12118995234cc698b7a319bc642102e077c67d120b0a062f612f2f622f120176"},
      {"InsertKeyValue", "0a12118995234cc698b7a319bc642102e077c67d12080a03612f621201771801"},
      {"Barrier", "0a12118b8d75a53689116719bc642102e077c67d12036261721888272801"},
      {"Barrier", "0a12118995234cc698b7a319bc642102e077c67d1203626172188827"},
      {"Barrier", "0a12118995234cc698b7a319bc642102e077c67d12036261721888273001"},
      {"TryGetKeyValue", "0a12118995234cc698b7a319bc642102e077c67d1203612f62"},
      {"TryGetKeyValue", "0a12118995234cc698b7a319bc642102e077c67d120a2f6e6f2f2f737563682f"},
      {"IncrementKeyValue", "0a12118995234cc698b7a319bc642102e077c67d12016e1805"},
      {"GetKeyValueDir", "0a12118995234cc698b7a319bc642102e077c67d120161"},
      {"GetKeyValue", "0a12118995234cc698b7a319bc642102e077c67d12027a7a"},
      {"DeleteKeyValue", "0a12118995234cc698b7a319bc642102e077c67d1201611801"},
      {"GetAliveTasks", "0a12118995234cc698b7a319bc642102e077c67d1a020001"},
      {"GetAliveTasks", "0a12118b8d75a53689116719bc642102e077c67d10011a020001"},
      {"Heartbeat", "0a12118995234cc698b7a319bc642102e077c67d118995234cc698b7a3"},
      {"Heartbeat", "0a12118b8d75a53689116719bc642102e077c67d118b8d75a5368911671801"},
  };
  for (const auto& capture : kCaptures) {
    EXPECT_EQ(TellGeneration(capture.method, absl::HexStringToBytes(capture.hex)), kNew)
        << capture.method << " " << capture.hex;
  }
}

// Captured from jaxlib 0.9.0 under the tensorflow path; a G3 client would send the same.
TEST(WireGeneration, RealRequestsOfJaxlib0_9AreRecognised) {
  constexpr struct {
    const char* method;
    const char* hex;
  } kCaptures[] = {
      {"RegisterTask", "198f10e767955ba2ac2a0c0a0a6a61785f776f726b6572"},
      {"RegisterTask", "190fe85f2e8daa2c842a0e0a0a6a61785f776f726b65721001"},
      {"PollForError", "0a0e0a0a6a61785f776f726b65721001"},
      {"PollForError", "0a0c0a0a6a61785f776f726b6572"},
      {"Heartbeat", "190fe85f2e8daa2c84220e0a0a6a61785f776f726b65721001"},
      {"Barrier", "0a03626172108827220e0a0a6a61785f776f726b65721001"},
      {"Barrier", "0a03626172108827220c0a0a6a61785f776f726b65722801"},
      {"GetAliveTasks",
       "0a0c0a0a6a61785f776f726b6572120c0a0a6a61785f776f726b6572120e0a0a6a61785f776f726b65721001"},
  };
  for (const auto& capture : kCaptures) {
    EXPECT_EQ(TellGeneration(capture.method, absl::HexStringToBytes(capture.hex)), kNamed)
        << capture.method << " " << capture.hex;
  }
}

// Registration is the same in G4 and G5, so either reading is right; but it is not G3's.
TEST(WireGeneration, RegistrationByNumberIsNotTheNamedOne) {
  EXPECT_NE(TellGeneration("RegisterTask", absl::HexStringToBytes("198995234cc698b7a3")), kNamed);
  EXPECT_NE(TellGeneration("RegisterTask", absl::HexStringToBytes("198b8d75a5368911672801")),
            kNamed);
}

// "Bytes that are no message come out as kIncarnations, whose parser then refuses them."
TEST(WireGeneration, GarbageGetsTheGenerationThatRefusesIt) {
  for (const char* method : {"Heartbeat", "Barrier", "InsertKeyValue", "GetKeyValue",
                             "PollForError", "GetAliveTasks", "CancelBarrier"}) {
    for (const std::string& bytes :
         {std::string("\xff\xff\xff"), std::string("\x0a\x7f"), std::string("\x0a"),
          std::string("\x08"), std::string("\x19\x01"), std::string("\x0f")}) {
      EXPECT_EQ(TellGeneration(method, bytes), kNew) << method << " " << absl::CHexEscape(bytes);
    }
  }
}

// Every prefix and random bytes: any verdict will do, as long as there is one.
TEST(WireGeneration, TruncatedAndRandomBytesAreClassified) {
  std::vector<std::pair<std::string, std::string>> requests = IncarnationsRequests(1, 5);
  for (auto& request : NamedRequests(1)) requests.push_back(std::move(request));
  for (auto& request : NumberedRequests(1)) requests.push_back(std::move(request));
  for (const auto& [method, bytes] : requests) {
    for (size_t size = 0; size < bytes.size(); ++size) {
      (void)TellGeneration(method, absl::string_view(bytes).substr(0, size));
    }
  }
  constexpr unsigned kSeed = 20261120;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (int i = 0; i < 100'000; ++i) {
    std::string bytes(random() % 40, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    (void)TellGeneration(requests[random() % requests.size()].first, bytes);
  }
  (void)TellGeneration("NoSuchMethod", "");
  (void)TellGeneration("", "\x0a\x00");
}

}  // namespace
}  // namespace ferry::coord

// SPDX-License-Identifier: Apache-2.0
// Lets a service merge the devices of a job, and prints the result; for comparing services.
//   merge_devices_program ADDRESS drs|coordination BOOT_ID:DEVICES...
// One node for each BOOT_ID:DEVICES, all of them clients of this process. A line for each device
// that the answer has: node, boot id, ordinal, global id, partition.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "proto/tsl_coordination.pb.h"
#include "proto/xla_distributed_runtime.pb.h"
#include "proto/xla_topology.pb.h"
#include "wire_client.h"

namespace ferry::coord {
namespace {

// One node's connection.
class MergedNode {
 public:
  MergedNode(const std::string& address, std::string service)
      : channel_(NewChannel(address)), service_(std::move(service)) {}

  PendingCall Start(const std::string& method, const google::protobuf::MessageLite& request) {
    return PendingCall::Start(channel_, absl::StrCat("/", service_, "/", method),
                              request.SerializeAsString());
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::string service_;
};

// Ends the process with an error message.
Answer MustSucceed(const PendingCall& call, const char* method) {
  Answer answer = call.Wait();
  if (answer.code == absl::StatusCode::kOk) return answer;
  std::fprintf(stderr, "%s: %s\n", method, ToStatus(answer).ToString().c_str());
  std::exit(1);
}

std::vector<Answer> AllMustSucceed(const std::vector<PendingCall>& calls, const char* method) {
  std::vector<Answer> answers;
  for (const PendingCall& call : calls) answers.push_back(MustSucceed(call, method));
  return answers;
}

// The xla.GlobalTopologyProto that each node gets.
std::vector<std::string> MergeByRuntimeService(const std::string& address,
                                               const std::vector<std::string>& locals) {
  std::vector<MergedNode> nodes;
  std::vector<PendingCall> calls;
  for (size_t i = 0; i < locals.size(); ++i) {
    nodes.emplace_back(address, "xla.DistributedRuntimeService");
    ::xla::ConnectRequest request;
    request.set_protocol_version(3);
    request.set_timeout_milliseconds(15'000);
    request.set_node_id(static_cast<int>(i));
    request.set_client_id(1000 + i);
    calls.push_back(nodes.back().Start("Connect", request));
  }
  const std::vector<Answer> connected = AllMustSucceed(calls, "Connect");
  calls.clear();
  for (size_t i = 0; i < locals.size(); ++i) {
    ::xla::ConnectResponse response;
    response.ParseFromString(connected[i].body);
    ::xla::EnumerateDevicesRequest request;
    request.set_session_id(response.session_id());
    request.set_local_topology(locals[i]);
    calls.push_back(nodes[i].Start("EnumerateDevices", request));
  }
  std::vector<std::string> globals;
  for (const Answer& answer : AllMustSucceed(calls, "EnumerateDevices")) {
    ::xla::EnumerateDevicesResponse response;
    response.ParseFromString(answer.body);
    globals.push_back(response.global_topology());
  }
  return globals;
}

std::vector<std::string> MergeByCoordinationService(const std::string& address,
                                                    const std::vector<std::string>& locals) {
  std::vector<MergedNode> nodes;
  std::vector<PendingCall> calls;
  const auto set_task = [](tensorflow::CoordinatedTask& task, size_t number) {
    task.set_job_name("jax_worker");
    task.set_task_id(static_cast<int>(number));
  };
  for (size_t i = 0; i < locals.size(); ++i) {
    nodes.emplace_back(address, "tensorflow.CoordinationService");
    tensorflow::RegisterTaskRequest request;
    set_task(*request.mutable_source_task(), i);
    request.set_incarnation(1000 + i);
    calls.push_back(nodes.back().Start("RegisterTask", request));
  }
  (void)AllMustSucceed(calls, "RegisterTask");
  calls.clear();
  for (size_t i = 0; i < locals.size(); ++i) {
    tensorflow::WaitForAllTasksRequest request;
    set_task(*request.mutable_source_task(), i);
    ferry::xla::Any any;
    any.set_type_url("type.googleapis.com/xla.LocalTopologyProto");
    any.set_value(locals[i]);
    request.mutable_device_info()->add_device(any.SerializeAsString());
    calls.push_back(nodes[i].Start("WaitForAllTasks", request));
  }
  std::vector<std::string> globals;
  for (const Answer& answer : AllMustSucceed(calls, "WaitForAllTasks")) {
    tensorflow::WaitForAllTasksResponse response;
    response.ParseFromString(answer.body);
    ferry::xla::Any any;
    if (response.device_info().device_size() == 1) {
      any.ParseFromString(response.device_info().device(0));
    }
    globals.push_back(any.value());
  }
  return globals;
}

int Main(int count, char** words) {
  if (count < 4) {
    std::fprintf(stderr, "usage: %s ADDRESS drs|coordination BOOT_ID:DEVICES...\n", words[0]);
    return 2;
  }
  std::vector<std::string> locals;
  for (int i = 3; i < count; ++i) {
    const absl::string_view word = words[i];
    const size_t colon = word.rfind(':');
    int devices = 0;
    if (colon == absl::string_view::npos || !absl::SimpleAtoi(word.substr(colon + 1), &devices)) {
      std::fprintf(stderr, "not BOOT_ID:DEVICES: %s\n", words[i]);
      return 2;
    }
    ferry::xla::LocalTopology local;
    local.set_process_id(i - 3);
    local.set_boot_id(std::string(word.substr(0, colon)));
    for (int device = 0; device < devices; ++device) {
      local.add_devices()->set_local_device_ordinal(device);
      local.mutable_devices(device)->set_name("gpu");
    }
    locals.push_back(local.SerializeAsString());
  }
  const std::vector<std::string> globals = absl::string_view(words[2]) == "drs"
                                               ? MergeByRuntimeService(words[1], locals)
                                               : MergeByCoordinationService(words[1], locals);
  for (const std::string& bytes : globals) {
    if (bytes != globals[0]) {
      std::fprintf(stderr, "the nodes were given different topologies\n");
      return 1;
    }
  }
  ferry::xla::GlobalTopology global;
  if (!global.ParseFromString(globals[0])) {
    std::fprintf(stderr, "the answer is no topology\n");
    return 1;
  }
  for (const auto& node : global.processes()) {
    for (const auto& device : node.devices()) {
      std::printf("node %d boot '%s' ordinal %d id %d partition %d\n", node.process_id(),
                  node.boot_id().c_str(), device.local_device_ordinal(), device.global_device_id(),
                  device.partition_index());
    }
  }
  return 0;
}

}  // namespace
}  // namespace ferry::coord

int main(int count, char** words) {
  const int status = ferry::coord::Main(count, words);
  std::fflush(stdout);
  // Threads of gRPC may still be releasing the last calls, and its static destructors do not wait
  // for them: now and then it aborts over a reference count.
  std::_Exit(status);
}

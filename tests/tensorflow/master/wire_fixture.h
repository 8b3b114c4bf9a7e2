// SPDX-License-Identifier: Apache-2.0
// A master in a coordinator's server, with workers that compute nothing.
#ifndef FERRY_TESTS_TENSORFLOW_MASTER_WIRE_FIXTURE_H_
#define FERRY_TESTS_TENSORFLOW_MASTER_WIRE_FIXTURE_H_

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "coord/server/server.h"
#include "proto/tf_master.grpc.pb.h"
#include "tensorflow/master/master_host.h"
#include "tests/tensorflow/graph/graph_fixture.h"
#include "tests/tensorflow/master/wire_worker.h"

namespace ferry::master {

using ::ferry::graph::GraphWriter;

// "INCARNATION ADDRESS GPUS".
inline absl::StatusOr<WorkerRecord> ReadRecord(int32_t node, absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ' ');
  WorkerRecord record;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &record.incarnation) ||
      !absl::SimpleAtoi(parts[2], &record.gpu_count)) {
    return absl::InvalidArgumentError("nonsense");
  }
  record.address = parts[1];
  return record;
}

inline std::string RecordKey(int32_t node) { return absl::StrCat("records/", node); }

class WireTest : public ::testing::Test {
 protected:
  explicit WireTest(int nodes = 1) : nodes_(nodes) {
    MasterOptions options;
    options.worker_timeout = absl::Milliseconds(700);
    options.max_graph_nodes = 10'000;
    host_ = std::make_unique<MasterHost>(
        options, WorkerRecords{"records/", RecordKey, ReadRecord, "", "token"});
    coord::ServerOptions server;
    server.listen = "127.0.0.1:0";
    server.stop_grace = absl::Milliseconds(200);
    server.coordinator.jobs = {{"jax_worker", nodes}};
    server.coordinator.register_barrier = false;
    server.more_services = [this](coord::CoordinatorExecutor& strand,
                                  coord::GenericMethodTable& rare) {
      return host_->Attach(strand, rare);
    };
    server_ = *coord::CoordinatorServer::Create(std::move(server));
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    stub_ = tensorflow::MasterService::NewStub(channel_);
    for (int i = 0; i < nodes; ++i) workers_.push_back(std::make_unique<WireWorker>());
  }
  ~WireTest() override {
    host_->Stop(absl::Seconds(2));
    server_->Stop();
  }

  // The node joins, with its devices.
  void Join(int32_t node, uint64_t incarnation) {
    server_->executor().Run([&](coord::Coordinator& coordinator) {
      const coord::TaskId task{node};
      coordinator.RegisterTask({task, coord::Incarnation(incarnation)}, [](absl::Status) {});
      LocalTopology topology;
      topology.node_id = node;
      topology.devices.emplace_back().name = "host";
      Device& gpu = topology.devices.emplace_back();
      gpu.kind = DeviceKind::kGpu;
      gpu.name = "NVIDIA H100";
      gpu.memory_bytes = 1000;
      gpu.compute_major = 9;
      coordinator.EnumerateDevices(task, topology, absl::Seconds(10), [](const auto&) {});
    });
  }
  void Publish(int32_t node, const std::string& record) {
    server_->executor().Run([&](coord::Coordinator& coordinator) {
      (void)coordinator.store().Put(RecordKey(node), record, /*overwrite=*/true);
    });
  }
  void JoinAll() {
    for (int i = 0; i < nodes_; ++i) {
      Join(i, 50 + static_cast<uint64_t>(i));
      Publish(i, absl::StrCat(50 + i, " ", workers_[static_cast<size_t>(i)]->address(), " 1"));
    }
  }

  struct Result {
    grpc::Status status;
    std::string session;
  };
  Result Create(const tensorflow::GraphDef& graph) {
    grpc::ClientContext context;
    tensorflow::CreateSessionRequest request;
    *request.mutable_graph_def() = graph;
    tensorflow::CreateSessionResponse response;
    const grpc::Status status = stub_->CreateSession(&context, request, &response);
    return {status, response.session_handle()};
  }
  grpc::Status Run(const tensorflow::RunStepRequest& request,
                   tensorflow::RunStepResponse& response) {
    grpc::ClientContext context;
    return stub_->RunStep(&context, request, &response);
  }

  const int nodes_;
  std::unique_ptr<MasterHost> host_;
  std::unique_ptr<coord::CoordinatorServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<tensorflow::MasterService::Stub> stub_;
  std::vector<std::unique_ptr<WireWorker>> workers_;
};

inline GraphWriter Graph(const char* name = "a") {
  GraphWriter graph;
  graph.Placeholder("x");
  graph.AddFloat(name, "Identity", {"x"});
  return graph;
}

}  // namespace ferry::master

#endif  // FERRY_TESTS_TENSORFLOW_MASTER_WIRE_FIXTURE_H_

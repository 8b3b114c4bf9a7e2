// SPDX-License-Identifier: Apache-2.0
// Workers with everything but a coordinator, and a small master that drives them over gRPC.
#ifndef FERRY_TESTS_TENSORFLOW_WORKER_WORKER_FIXTURE_H_
#define FERRY_TESTS_TENSORFLOW_WORKER_WORKER_FIXTURE_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "proto/tf_worker.pb.h"
#include "tensor/tensor_proto.h"
#include "tensorflow/graph/partition.h"
#include "tensorflow/graph/prune.h"
#include "tensorflow/node_worker/node_worker.h"
#include "tests/coord/wire/wire_client.h"
#include "tests/node/engine_pair.h"
#include "tests/tensorflow/graph/graph_fixture.h"

namespace ferry {

inline Tensor Floats(std::vector<float> values) {
  Tensor tensor =
      *Tensor::Allocate(DataType::kFloat, *Shape::Create({static_cast<int64_t>(values.size())}));
  std::copy(values.begin(), values.end(), static_cast<float*>(tensor.mutable_data()));
  return tensor;
}
inline std::vector<float> ToFloats(const Tensor& tensor) {
  const auto elements = tensor.elements<float>();
  return {elements.begin(), elements.end()};
}

// A worker, wherever it is, as masters see it.
class WorkerClient {
 public:
  WorkerClient() = default;
  //   devices: the full names of all of them, the CPU first.
  WorkerClient(const std::string& address, uint64_t incarnation, std::vector<std::string> devices)
      : incarnation_(incarnation),
        devices_(std::move(devices)),
        channel_(coord::NewChannel(address)) {}

  uint64_t incarnation() const { return incarnation_; }
  const std::vector<std::string>& devices() const { return devices_; }
  const std::string& device() const { return devices_[0]; }

  coord::PendingCall Start(const std::string& method, const google::protobuf::Message& request,
                           const coord::PendingCall::Options& options = {}) {
    return coord::PendingCall::Start(channel_, absl::StrCat("/tensorflow.WorkerService/", method),
                                     request.SerializeAsString(), options);
  }
  template <typename Response>
  absl::StatusOr<Response> Call(const std::string& method,
                                const google::protobuf::Message& request) {
    const coord::Answer answer = Start(method, request).Wait();
    if (answer.code != absl::StatusCode::kOk) return coord::ToStatus(answer);
    Response response;
    EXPECT_TRUE(response.ParseFromString(answer.body));
    return response;
  }

  absl::StatusOr<std::string> Register(const tensorflow::GraphDef& graph,
                                       const std::string& session = "") {
    tensorflow::RegisterGraphRequest request;
    *request.mutable_graph_def() = graph;
    request.set_session_handle(session);
    request.set_create_worker_session_called(!session.empty());
    auto response = Call<tensorflow::RegisterGraphResponse>("RegisterGraph", request);
    if (!response.ok()) return response.status();
    return response->graph_handle();
  }
  absl::Status CreateSession(const std::string& handle, const std::string& master = "",
                             int64_t life = 0, bool isolate = false) {
    tensorflow::CreateWorkerSessionRequest request;
    request.set_session_handle(handle);
    request.set_master_task(master);
    request.set_master_incarnation(life);
    request.set_isolate_session_state(isolate);
    return Call<tensorflow::CreateWorkerSessionResponse>("CreateWorkerSession", request).status();
  }
  absl::Status Cleanup(int64_t step) {
    tensorflow::CleanupGraphRequest request;
    request.set_step_id(step);
    return Call<tensorflow::CleanupGraphResponse>("CleanupGraph", request).status();
  }
  // With errors in the body, as masters request them.
  static absl::StatusOr<tensorflow::RunGraphResponse> ToResult(const coord::Answer& answer) {
    if (answer.code != absl::StatusCode::kOk) return coord::ToStatus(answer);
    tensorflow::RunGraphResponse response;
    EXPECT_TRUE(response.ParseFromString(answer.body));
    if (response.status_code() != tensorflow::error::OK) {
      return absl::Status(static_cast<absl::StatusCode>(response.status_code()),
                          response.status_error_message());
    }
    return response;
  }
  absl::StatusOr<tensorflow::RunGraphResponse> Run(const tensorflow::RunGraphRequest& request) {
    return ToResult(Start("RunGraph", request).Wait());
  }

 private:
  uint64_t incarnation_ = 0;
  std::vector<std::string> devices_;
  std::shared_ptr<grpc::Channel> channel_;
};

inline std::vector<std::string> NamesOf(const std::vector<worker::WorkerDevice>& devices) {
  std::vector<std::string> names;
  for (const worker::WorkerDevice& device : devices) names.push_back(device.name);
  return names;
}

// A node that runs graphs; on the GPUs among the devices as well.
class WorkerEnd : public WorkerClient {
 public:
  WorkerEnd(Directory& directory, int node, TransferEngineOptions options = {},
            NodeWorkerOptions worker = {}, uint64_t incarnation = 0) {
    options.use_gpus = !worker.devices.empty();
    options.grpc_services = [&](TransferEngine& engine) {
      worker_ = std::make_unique<NodeWorker>(engine, worker);
      return std::vector<grpc::Service*>{&worker_->service()};
    };
    end_ = std::make_unique<EngineEnd>(directory, node, options, incarnation);
    WorkerClient::operator=
        ({transfer_engine().self().grpc_address, transfer_engine().self().peer.incarnation,
          NamesOf(this->worker().options().devices)});
  }
  ~WorkerEnd() { EXPECT_TRUE(transfer_engine().Stop().ok()); }

  TransferEngine& transfer_engine() { return *end_->engine; }
  worker::Worker& worker() { return worker_->worker(); }
  // Expects that nothing has been left behind.
  void ExpectClean() {
    EXPECT_EQ(worker().step_count(), 0u);
    EXPECT_EQ(transfer_engine().rendezvous().step_count(), 0u);
  }

 private:
  std::unique_ptr<EngineEnd> end_;
  // Destroyed before the transfer engine.
  std::unique_ptr<NodeWorker> worker_;
};

inline tensorflow::RunGraphRequest RunRequestOf(const std::string& graph, int64_t step,
                                                const std::string& session = "") {
  tensorflow::RunGraphRequest request;
  request.set_graph_handle(graph);
  request.set_step_id(step);
  request.set_session_handle(session);
  request.set_create_worker_session_called(!session.empty());
  request.set_store_errors_in_response_body(true);
  return request;
}

inline void AddFeed(tensorflow::RunGraphRequest& request, const std::string& key,
                    const Tensor& tensor) {
  tensorflow::NamedTensorProto& named = *request.add_send();
  named.set_name(key);
  *named.mutable_tensor() = *TensorToProto(tensor);
}

// The master's calls for one graph with fixed feeds and fetches.
class SmallMaster {
 public:
  SmallMaster(std::vector<WorkerClient*> workers, const graph::GraphWriter& writer,
              const graph::StepRequest& request, const std::string& session = "")
      : workers_(std::move(workers)), session_(session) {
    std::vector<std::pair<std::string, uint64_t>> names;
    for (WorkerClient* const worker : workers_) {
      for (const std::string& name : worker->devices()) {
        names.emplace_back(name, worker->incarnation());
      }
    }
    const graph::DeviceSet devices = *graph::DeviceSet::Create(names, workers_[0]->device());
    const absl::StatusOr<graph::Graph> graph = writer.Create();
    EXPECT_TRUE(graph.ok()) << graph.status();
    const auto placement = graph::Place(*graph, devices, {});
    EXPECT_TRUE(placement.ok()) << placement.status();
    auto step = graph::Prune(*graph, *placement, devices, request);
    EXPECT_TRUE(step.ok()) << step.status();
    const auto parts = graph::PartitionByDevice(step->graph, step->placement, devices);
    EXPECT_TRUE(parts.ok()) << parts.status();
    crossings = parts->crossings;
    for (const graph::Partition& part : parts->partitions) {
      WorkerClient& worker = WorkerOf(devices.device(part.device).name);
      absl::StatusOr<std::string> handle = worker.Register(part.graph, session);
      status.Update(handle.status());
      parts_.push_back(
          {&worker, handle.value_or(""), part.graph, part.device == devices.client_device()});
    }
    feeds_ = step->feeds;
    fetches_ = step->fetches;
  }

  // A run of every part, in progress.
  class Step {
   public:
    std::vector<coord::PendingCall> calls;
    std::vector<WorkerClient*> workers;
    int64_t id = 0;
    std::vector<std::string> keys;
    // One for each part.
    std::vector<absl::StatusOr<tensorflow::RunGraphResponse>> results;

    // In the order of the fetches.
    absl::StatusOr<std::vector<Tensor>> Wait() {
      absl::Status status;
      std::map<std::string, Tensor> found;
      for (const coord::PendingCall& call : calls) {
        results.push_back(WorkerClient::ToResult(call.Wait()));
        const auto& result = results.back();
        if (!result.ok()) {
          // As in the master: a worker that has ended cannot report the cause.
          const auto is_copy = [](const absl::Status& error) {
            return IsDerived(error) || absl::IsUnavailable(error);
          };
          if (status.ok() || (is_copy(status) && !is_copy(result.status()))) {
            status = result.status();
          }
          continue;
        }
        for (const auto& named : result->recv()) {
          found[named.name()] = *TensorFromProto(named.tensor());
        }
      }
      for (WorkerClient* const worker : workers) EXPECT_THAT(worker->Cleanup(id), coord::IsOk());
      if (!status.ok()) return status;
      std::vector<Tensor> tensors;
      for (const std::string& key : keys) tensors.push_back(found.at(key));
      return tensors;
    }
  };

  Step Start(int64_t id, const std::vector<Tensor>& feeds = {}, bool record = false,
             const coord::PendingCall::Options& options = {}) {
    Step step;
    step.id = id;
    for (const Part& part : parts_) {
      tensorflow::RunGraphRequest request = RunRequestOf(part.handle, id, session_);
      request.mutable_exec_opts()->set_record_timeline(record);
      request.mutable_exec_opts()->set_record_partition_graphs(record);
      if (part.is_client) {
        for (size_t i = 0; i < feeds.size(); ++i) AddFeed(request, feeds_[i].key, feeds[i]);
        for (const graph::StepTensor& fetch : fetches_) request.add_recv_key(fetch.key);
      }
      step.calls.push_back(part.worker->Start("RunGraph", request, options));
      step.workers.push_back(part.worker);
    }
    for (const graph::StepTensor& fetch : fetches_) step.keys.push_back(fetch.key);
    return step;
  }
  absl::StatusOr<std::vector<Tensor>> Run(int64_t id, const std::vector<Tensor>& feeds = {}) {
    return Start(id, feeds).Wait();
  }
  void Deregister() {
    for (const Part& part : parts_) {
      tensorflow::DeregisterGraphRequest request;
      request.set_graph_handle(part.handle);
      request.set_session_handle(session_);
      request.set_create_worker_session_called(!session_.empty());
      EXPECT_THAT(
          part.worker->Call<tensorflow::DeregisterGraphResponse>("DeregisterGraph", request),
          coord::IsOk());
    }
  }

  // The result of registering.
  absl::Status status;
  std::vector<graph::Crossing> crossings;

  const std::string& handle(size_t part) const { return parts_[part].handle; }
  const std::string& feed_key(size_t i) const { return feeds_[i].key; }
  const std::string& fetch_key(size_t i) const { return fetches_[i].key; }

 private:
  struct Part {
    WorkerClient* worker = nullptr;
    std::string handle;
    tensorflow::GraphDef graph;
    // Where feeds come in and fetches go out.
    bool is_client = false;
  };

  WorkerClient& WorkerOf(const std::string& device) {
    for (WorkerClient* const worker : workers_) {
      for (const std::string& name : worker->devices()) {
        if (name == device) return *worker;
      }
    }
    ADD_FAILURE() << device;
    return *workers_[0];
  }

  const std::vector<WorkerClient*> workers_;
  const std::string session_;
  std::vector<Part> parts_;
  std::vector<graph::StepTensor> feeds_;
  std::vector<graph::StepTensor> fetches_;
};

}  // namespace ferry

#endif  // FERRY_TESTS_TENSORFLOW_WORKER_WORKER_FIXTURE_H_

// SPDX-License-Identifier: Apache-2.0
// Calls of TensorFlow's masters and workers other than running graphs: Logging, Tracing.
#include <string>

#include "tensorflow/worker/transfer_log.h"
#include "worker_fixture.h"

namespace ferry {
namespace {

using coord::Fails;
using coord::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;

tensorflow::StepStats Rows(int count) {
  tensorflow::StepStats stats;
  tensorflow::DeviceStepStats& device = *stats.add_dev_stats();
  for (int i = 0; i < count; ++i) device.add_node_stats()->set_node_name("RecvTensor");
  return stats;
}

TEST(TransferLog, IsOnAsLongAsAnyClientRequestsIt) {
  worker::TransferLog log(10, 10);
  EXPECT_FALSE(log.is_on());
  log.Switch(false);
  log.Switch(true);
  log.Switch(true);
  log.Switch(false);
  EXPECT_TRUE(log.is_on());
  log.Switch(false);
  EXPECT_FALSE(log.is_on());
}

TEST(TransferLog, ReturnsAStepOnceWithAllItsRuns) {
  worker::TransferLog log(10, 10);
  log.Add(1, Rows(1));
  log.Add(2, Rows(1));
  log.Add(1, Rows(2));
  log.Add(3, Rows(0));
  const auto rows = log.Take(1);
  ASSERT_TRUE(rows.has_value());
  EXPECT_EQ(rows->dev_stats_size(), 2);
  EXPECT_FALSE(log.Take(1).has_value());
  EXPECT_FALSE(log.Take(3).has_value());
  log.Clear();
  EXPECT_FALSE(log.Take(2).has_value());
}

// Masters that die fetch nothing any more.
TEST(TransferLog, ForgetsTheOldestWhenThereAreTooManyStepsOrRows) {
  worker::TransferLog log(3, 10);
  for (int step = 1; step <= 4; ++step) log.Add(step, Rows(1));
  EXPECT_FALSE(log.Take(1).has_value());
  EXPECT_TRUE(log.Take(2).has_value());
  log.Add(5, Rows(9));
  EXPECT_FALSE(log.Take(3).has_value());
  EXPECT_TRUE(log.Take(4).has_value());
  log.Add(6, Rows(11));
  EXPECT_FALSE(log.Take(5).has_value());
  EXPECT_FALSE(log.Take(6).has_value());
  log.Add(7, Rows(10));
  EXPECT_TRUE(log.Take(7).has_value());
}

class WorkerCalls : public ::testing::Test {
 protected:
  // x at task 0, through task 1, and back.
  static graph::GraphWriter ThereAndBack() {
    graph::GraphWriter writer;
    writer.Placeholder("x", graph::kTask0);
    writer.AddFloat("y", "Identity", {"x"}, graph::kTask1);
    writer.AddFloat("z", "Identity", {"y"}, graph::kTask0);
    return writer;
  }
  static std::vector<tensorflow::LabeledStepStats> Log(WorkerEnd& worker,
                                                       const tensorflow::LoggingRequest& request) {
    const auto response = worker.Call<tensorflow::LoggingResponse>("Logging", request);
    EXPECT_THAT(response, IsOk());
    return {response->step().begin(), response->step().end()};
  }
  static std::vector<tensorflow::LabeledStepStats> Fetch(WorkerEnd& worker,
                                                         std::vector<int64_t> steps) {
    tensorflow::LoggingRequest request;
    for (const int64_t step : steps) request.add_fetch_step_id(step);
    return Log(worker, request);
  }
  void Switch(bool on) {
    tensorflow::LoggingRequest request;
    request.set_enable_rpc_logging(on);
    request.set_disable_rpc_logging(!on);
    EXPECT_TRUE(Log(a_, request).empty());
    EXPECT_TRUE(Log(b_, request).empty());
  }

  Directory directory_;
  WorkerEnd a_{directory_, 0};
  WorkerEnd b_{directory_, 1};
  SmallMaster master_{{&a_, &b_}, ThereAndBack(), {{"x"}, {"z:0"}, {}}};
};

TEST_F(WorkerCalls, LoggingListsTransfersFromOtherWorkersWhileItWasOn) {
  ASSERT_THAT(master_.Run(1, {Floats({1})}), IsOk());
  Switch(true);
  ASSERT_THAT(master_.Run(2, {Floats({1})}), IsOk());
  ASSERT_THAT(master_.Run(3, {Floats({1, 2})}), IsOk());
  Switch(false);
  ASSERT_THAT(master_.Run(4, {Floats({1})}), IsOk());
  const auto steps = Fetch(b_, {1, 2, 3, 4});
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].step_id(), 2);
  EXPECT_EQ(steps[1].step_id(), 3);
  // y is no transfer, and z goes to the other worker.
  ASSERT_EQ(steps[1].step_stats().dev_stats_size(), 1);
  const tensorflow::DeviceStepStats& device = steps[1].step_stats().dev_stats(0);
  EXPECT_EQ(device.device(), b_.device());
  ASSERT_EQ(device.node_stats_size(), 1);
  const tensorflow::NodeExecStats& row = device.node_stats(0);
  EXPECT_EQ(row.node_name(), "RecvTensor");
  EXPECT_THAT(row.timeline_label(),
              AllOf(HasSubstr("[8B] edge_"),
                    HasSubstr(absl::StrCat(" from ", a_.device(), " to ", b_.device()))));
  EXPECT_EQ(row.output(0).tensor_description().allocation_description().requested_bytes(), 8);
  EXPECT_GT(row.all_start_micros(), 1'600'000'000'000'000);
  // They are reported once.
  EXPECT_TRUE(Fetch(b_, {2, 3}).empty());
  // At a only y: fed tensors came from no worker.
  const auto at_a = Fetch(a_, {3});
  ASSERT_EQ(at_a.size(), 1u);
  ASSERT_EQ(at_a[0].step_stats().dev_stats_size(), 1);
  EXPECT_EQ(at_a[0].step_stats().dev_stats(0).node_stats_size(), 1);
}

TEST_F(WorkerCalls, LoggingIsClearedAndSwitchedOffByOldMastersToo) {
  Switch(true);
  ASSERT_THAT(master_.Run(1, {Floats({1})}), IsOk());
  tensorflow::LoggingRequest clear;
  clear.set_clear(true);
  // It requests neither on nor off, which is how old masters switch it off.
  Log(b_, clear);
  EXPECT_FALSE(b_.worker().transfer_log().is_on());
  EXPECT_TRUE(Fetch(b_, {1}).empty());
  ASSERT_THAT(master_.Run(2, {Floats({1})}), IsOk());
  EXPECT_TRUE(Fetch(b_, {2}).empty());
}

tensorflow::CompleteGroupRequest GroupRequest(const WorkerEnd& worker) {
  tensorflow::CompleteGroupRequest request;
  request.set_group_key(1);
  request.set_group_size(2);
  request.set_device_type("CPU");
  request.mutable_device_attributes()->set_name(worker.device());
  request.mutable_device_attributes()->set_incarnation(worker.incarnation());
  return request;
}

// As the leader of their groups; its answers wait for all members.
TEST_F(WorkerCalls, GroupsOfTensorFlowsWorkersAreCompleted) {
  const coord::PendingCall first = a_.Start("CompleteGroup", GroupRequest(b_));
  const auto second = a_.Call<tensorflow::CompleteGroupResponse>("CompleteGroup", GroupRequest(a_));
  ASSERT_THAT(second, IsOk());
  tensorflow::CompleteGroupResponse response;
  ASSERT_TRUE(response.ParseFromString(first.Wait().body));
  for (const tensorflow::CompleteGroupResponse& each : {response, *second}) {
    ASSERT_EQ(each.device_attributes_size(), 2);
    EXPECT_EQ(each.device_attributes(0).name(), a_.device());
    EXPECT_EQ(each.device_attributes(1).name(), b_.device());
    EXPECT_EQ(each.num_tasks(), 2);
  }
  tensorflow::CompleteInstanceRequest instance;
  instance.set_group_key(1);
  instance.set_group_size(2);
  instance.set_instance_key(3);
  instance.set_type(1);
  instance.set_data_type(tensorflow::DT_FLOAT);
  instance.set_device(a_.device());
  const coord::PendingCall receiver = a_.Start("CompleteInstance", instance);
  instance.set_device(b_.device());
  instance.set_is_source(true);
  const auto source = a_.Call<tensorflow::CompleteInstanceResponse>("CompleteInstance", instance);
  ASSERT_THAT(source, IsOk());
  EXPECT_EQ(source->source_rank(), 1);
  EXPECT_EQ(receiver.Wait().code, absl::StatusCode::kOk);
}

TEST_F(WorkerCalls, StepSequencesAreNumberedPerKey) {
  tensorflow::GetStepSequenceRequest request;
  for (const int64_t key : {7, 8, 7}) request.add_graph_key(key);
  const auto one = a_.Call<tensorflow::GetStepSequenceResponse>("GetStepSequence", request);
  const auto again = a_.Call<tensorflow::GetStepSequenceResponse>("GetStepSequence", request);
  ASSERT_THAT(one, IsOk());
  ASSERT_EQ(one->step_sequence_size(), 3);
  EXPECT_EQ(one->step_sequence(1).graph_key(), 8);
  EXPECT_EQ(one->step_sequence(0).next_step_id(), one->step_sequence(2).next_step_id());
  EXPECT_NE(one->step_sequence(0).next_step_id(), one->step_sequence(1).next_step_id());
  EXPECT_EQ(one->SerializeAsString(), again->SerializeAsString());
  // The topmost bits are free.
  for (const auto& each : one->step_sequence()) EXPECT_EQ(each.next_step_id() >> 56, 0);
}

// Every declared method is served: an empty request is refused for its content, not as an unknown
// method.
TEST_F(WorkerCalls, NoCallIsMissing) {
  const auto* const service = tensorflow::GetStatusRequest::descriptor()->file()->service(0);
  ASSERT_EQ(service->method_count(), 16);
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string& method = service->method(i)->name();
    const bool is_refused = method == "Tracing" || method == "RecvBuf";
    const coord::Answer answer = a_.Start(method, tensorflow::GetStatusRequest()).Wait();
    EXPECT_EQ(answer.code == absl::StatusCode::kUnimplemented, is_refused) << method;
  }
}

// TensorFlow's own worker answers so as well.
TEST_F(WorkerCalls, TracingIsUnimplemented) {
  EXPECT_THAT(a_.Start("Tracing", tensorflow::TracingRequest()).Wait(),
              Fails(absl::StatusCode::kUnimplemented, "Tracing"));
}

}  // namespace
}  // namespace ferry

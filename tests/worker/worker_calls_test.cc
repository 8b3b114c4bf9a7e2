// SPDX-License-Identifier: Apache-2.0
// What TensorFlow's masters and workers ask of a worker beside running graphs: Logging, Tracing.
#include <string>

#include "worker/transfer_log.h"
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

TEST(TransferLog, IsOnForAsLongAsAnyoneWantsIt) {
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

TEST(TransferLog, GivesAStepOnceWithAllOfItsRuns) {
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

TEST_F(WorkerCalls, LoggingTellsWhatCameFromOtherWorkersWhileItWasOn) {
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
  // y is no transfer, and z comes to the other worker.
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
  // They are told once.
  EXPECT_TRUE(Fetch(b_, {2, 3}).empty());
  // At a nothing but y: what was fed came from no worker.
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
  // It says neither on nor off, which is how old masters switch it off.
  Log(b_, clear);
  EXPECT_FALSE(b_.worker().transfer_log().is_on());
  EXPECT_TRUE(Fetch(b_, {1}).empty());
  ASSERT_THAT(master_.Run(2, {Floats({1})}), IsOk());
  EXPECT_TRUE(Fetch(b_, {2}).empty());
}

// TensorFlow's own worker answers so as well.
TEST_F(WorkerCalls, TracingIsUnimplemented) {
  EXPECT_THAT(a_.Start("Tracing", tensorflow::TracingRequest()).Wait(),
              Fails(absl::StatusCode::kUnimplemented, "Tracing"));
}

}  // namespace
}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// Collectives of graphs on three workers, with everything but a coordinator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker_fixture.h"

namespace ferry {
namespace {

using coord::Fails;
using ::testing::HasSubstr;

class WorkerCollectivesTest : public ::testing::Test {
 protected:
  static std::string Task(int task) { return absl::StrCat("/job:worker/task:", task); }

  // "r0", "r1", "r2" of the placeholder "x".
  void AddReduces(int group_size = 3, float timeout_s = 0) {
    writer_.Placeholder("x", Task(0));
    for (int task = 0; task < 3; ++task) {
      tensorflow::NodeDef& node =
          writer_.AddFloat(absl::StrCat("r", task), "CollectiveReduce", {"x"}, Task(task));
      auto& attr = *node.mutable_attr();
      attr["group_size"].set_i(group_size);
      attr["group_key"].set_i(task < group_size ? 1 : 2);
      attr["instance_key"].set_i(1);
      attr["merge_op"].set_s("Add");
      attr["final_op"].set_s("Id");
      attr["subdiv_offsets"].mutable_list()->add_i(0);
      attr["timeout_seconds"].set_f(timeout_s);
    }
  }
  void MakeMaster() {
    master_ =
        std::make_unique<SmallMaster>(std::vector<WorkerClient*>{&a_, &b_, &c_}, writer_,
                                      graph::StepRequest{{"x:0"}, {"r0:0", "r1:0", "r2:0"}, {}});
    ASSERT_TRUE(master_->status.ok()) << master_->status;
  }

  Directory directory_;
  WorkerEnd a_{directory_, 0};
  WorkerEnd b_{directory_, 1};
  WorkerEnd c_{directory_, 2};
  graph::GraphWriter writer_;
  std::unique_ptr<SmallMaster> master_;
};

TEST_F(WorkerCollectivesTest, WorkInEveryStep) {
  AddReduces();
  MakeMaster();
  for (int step = 1; step <= 20; ++step) {
    // Small ones go directly, large ones in a ring.
    const std::vector<float> row(step % 2 == 0 ? 100'000 : 10, static_cast<float>(step));
    const auto got = master_->Run(step, {Floats(row)});
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_EQ(got->size(), 3u);
    for (const Tensor& each : *got) {
      EXPECT_EQ(ToFloats(each), std::vector<float>(row.size(), static_cast<float>(3 * step)));
    }
  }
  a_.ExpectClean();
  b_.ExpectClean();
  c_.ExpectClean();
}

TEST_F(WorkerCollectivesTest, TimeoutEndsOneAndTheNextStepWorks) {
  AddReduces(/*group_size=*/2, /*timeout_s=*/0.3F);
  MakeMaster();
  // The third one is in a group of its own, which no other worker joins.
  const auto got = master_->Run(1, {Floats({1})});
  EXPECT_THAT(got, Fails(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr("1 of 2 members have come to instance 1 of group 2")));
  a_.ExpectClean();
  c_.ExpectClean();
}

}  // namespace
}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// Resets and the master's end, while sessions are being closed.
#include <string>
#include <vector>

#include "tests/tensorflow/master/master_fixture.h"

namespace ferry::master {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// The effects of a step after a container was cleared would be visible to the next client: a reset
// waits for steps that another client is ending as well.
class EndingTest : public StepTest {
 protected:
  EndingTest() {
    cluster_.worker(1).hangs = true;
    step_ = Start(&Master::RunStep, RunB());
    cluster_.Pump();
    EXPECT_EQ(cluster_.worker(1).steps.size(), 1u);
  }
  std::shared_ptr<Answer<tensorflow::ResetResponse>> StartReset(const std::string& container) {
    tensorflow::ResetRequest request;
    request.add_container(container);
    return Start(&Master::Reset, request);
  }
  // Nothing runs any more at a worker that clears a container.
  void PumpAndLook() {
    while (cluster_.event_count() > 0) {
      cluster_.Step();
      for (int i = 0; i < cluster_.size(); ++i) {
        if (cluster_.worker(i).resets.empty()) continue;
        EXPECT_THAT(cluster_.worker(i).steps, IsEmpty());
        EXPECT_THAT(cluster_.worker(i).sessions, IsEmpty());
      }
    }
  }
  std::vector<std::string> Cleared(int worker) {
    std::vector<std::string> containers;
    for (const auto& reset : cluster_.worker(worker).resets) {
      containers.insert(containers.end(), reset.container().begin(), reset.container().end());
    }
    return containers;
  }

  std::shared_ptr<Answer<tensorflow::RunStepResponse>> step_;
};

TEST_F(EndingTest, TwoConcurrentResets_BothWaitForSteps) {
  const auto one = StartReset("a");
  const auto other = StartReset("b");
  PumpAndLook();
  EXPECT_EQ(one->count, 1);
  EXPECT_EQ(other->count, 1);
  EXPECT_TRUE(one->status().ok() && other->status().ok());
  EXPECT_THAT(step_->status(), Fails(absl::StatusCode::kCancelled, HasSubstr("Session::Reset()")));
  for (int i = 0; i < cluster_.size(); ++i) {
    EXPECT_THAT(Cleared(i), UnorderedElementsAre("a", "b"));
  }
}

TEST_F(EndingTest, Reset_WaitsForASessionThatItsClientCloses) {
  tensorflow::CloseSessionRequest close;
  close.set_session_handle(session_);
  const auto closed = Start(&Master::CloseSession, close);
  const auto reset = StartReset("a");
  PumpAndLook();
  EXPECT_EQ(closed->count, 1);
  EXPECT_EQ(reset->count, 1);
  EXPECT_THAT(Cleared(1), ElementsAre("a"));
}

TEST_F(EndingTest, MastersEnd_WaitsForASessionThatItsClientCloses) {
  tensorflow::CloseSessionRequest close;
  close.set_session_handle(session_);
  const auto closed = Start(&Master::CloseSession, close);
  bool is_told = false;
  master_.Stop([&] {
    is_told = true;
    EXPECT_EQ(cluster_.Leftovers(), "");
  });
  EXPECT_FALSE(is_told);
  PumpAndLook();
  EXPECT_TRUE(is_told);
  EXPECT_EQ(closed->count, 1);
}

}  // namespace
}  // namespace ferry::master

// SPDX-License-Identifier: Apache-2.0
// The workers' records of the last steps, and the offsets of their clocks.
#include "tensorflow/master/trace_collection.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ferry::master {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A round trip: its duration in each direction, in nanoseconds.
struct Trip {
  int64_t there_ns = 0;
  int64_t back_ns = 0;
};

// A worker whose clock is ahead by so much.
class ClockLink final : public WorkerLink {
 public:
  ClockLink(int64_t& now_ns, int64_t ahead_ns, std::deque<Trip> trips)
      : now_ns_(now_ns), ahead_ns_(ahead_ns), trips_(std::move(trips)) {}

  std::string boot_id = "elsewhere";
  absl::Status error;
  std::vector<ferry::v1::GetStepsRequest> requests;

  void GetSteps(const ferry::v1::GetStepsRequest& request, CallLimits,
                Done<ferry::v1::GetStepsResponse> done) override {
    requests.push_back(request);
    if (!error.ok()) return std::move(done)(error);
    Trip trip;
    if (!trips_.empty()) {
      trip = trips_.front();
      trips_.pop_front();
    }
    now_ns_ += trip.there_ns;
    ferry::v1::GetStepsResponse response;
    ferry::v1::TraceProcess& process = *response.add_processes();
    process.set_name("whatever it says");
    process.set_boot_id(boot_id);
    process.set_now_ns(now_ns_ + ahead_ns_);
    for (const uint64_t id : request.step_ids()) process.add_steps()->set_step_id(id);
    now_ns_ += trip.back_ns;
    std::move(done)(std::move(response));
  }

  void CreateWorkerSession(const tensorflow::CreateWorkerSessionRequest&, CallLimits,
                           Done<tensorflow::CreateWorkerSessionResponse>) override {}
  void DeleteWorkerSession(const tensorflow::DeleteWorkerSessionRequest&, CallLimits,
                           Done<tensorflow::DeleteWorkerSessionResponse>) override {}
  void RegisterGraph(const tensorflow::RegisterGraphRequest&, CallLimits,
                     Done<tensorflow::RegisterGraphResponse>) override {}
  void DeregisterGraph(const tensorflow::DeregisterGraphRequest&, CallLimits,
                       Done<tensorflow::DeregisterGraphResponse>) override {}
  void RunGraph(const tensorflow::RunGraphRequest&, CallLimits,
                Done<tensorflow::RunGraphResponse>) override {}
  void CleanupGraph(const tensorflow::CleanupGraphRequest&, CallLimits,
                    Done<tensorflow::CleanupGraphResponse>) override {}
  void CleanupAll(const tensorflow::CleanupAllRequest&, CallLimits,
                  Done<tensorflow::CleanupAllResponse>) override {}

 private:
  int64_t& now_ns_;
  const int64_t ahead_ns_;
  std::deque<Trip> trips_;
};

class TraceCollectionTest : public ::testing::Test {
 protected:
  std::shared_ptr<ClockLink> AddWorker(const std::string& name, int64_t ahead_ns,
                                       std::deque<Trip> trips) {
    auto link = std::make_shared<ClockLink>(now_ns_, ahead_ns, std::move(trips));
    ClusterWorker worker;
    worker.name = name;
    worker.link = link;
    cluster_.workers.push_back(std::move(worker));
    return link;
  }

  ferry::v1::GetStepsResponse Collect(std::vector<LoggedStep> steps = {}) {
    TraceCollection::Context context;
    context.now = [this] { return absl::FromUnixNanos(now_ns_ - kBoot); };
    context.wall_ns = [this] { return now_ns_; };
    context.host = "here";
    context.boot_id = "ours";
    context.kept = 64;
    std::optional<absl::StatusOr<ferry::v1::GetStepsResponse>> answer;
    std::make_shared<TraceCollection>(std::move(context), std::move(steps),
                                      [&answer](auto response) { answer = std::move(response); })
        ->Start(cluster_, nullptr);
    EXPECT_TRUE(answer.has_value() && answer->ok());
    return **answer;
  }

  // The machine's clock counts from when it was started.
  static constexpr int64_t kBoot = 1'000'000'000'000;
  int64_t now_ns_ = 1'700'000'000'000'000'000;
  Cluster cluster_;
};

TEST_F(TraceCollectionTest, ShortestTripDeterminesAWorkersClock) {
  AddWorker("w", 5'000'000,
            {{90'000, 10'000}, {40'000, 4'000}, {2'000, 3'000}, {70'000, 70'000}, {9'000, 1'000}});
  const ferry::v1::GetStepsResponse response = Collect();
  const ferry::v1::TraceProcess& worker = response.processes(1);
  // Half of 5 us; in truth it was read after 2 us of them.
  EXPECT_EQ(worker.offset_ns(), -5'000'000 + 500);
  EXPECT_EQ(worker.error_ns(), 2'500);
}

TEST_F(TraceCollectionTest, OneMachineHasOneClock) {
  AddWorker("w", 0, {{50'000, 10'000}})->boot_id = "ours";
  const ferry::v1::GetStepsResponse response = Collect();
  EXPECT_EQ(response.processes(1).offset_ns(), 0);
  EXPECT_EQ(response.processes(1).error_ns(), 0);
}

TEST_F(TraceCollectionTest, WorkersAreAskedForTheMastersSteps) {
  const auto link = AddWorker("w", 0, {});
  LoggedStep step;
  step.step_id = 77;
  step.start = absl::FromUnixNanos(now_ns_ - kBoot - 9'000);
  step.end = absl::FromUnixNanos(now_ns_ - kBoot - 2'000);
  step.code = absl::StatusCode::kAborted;
  step.calls = {{"w", step.start, step.end}};
  const ferry::v1::GetStepsResponse response = Collect({step});
  ASSERT_EQ(response.processes_size(), 2);
  const ferry::v1::TraceProcess& master = response.processes(0);
  EXPECT_EQ(master.steps(0).start_ns(), now_ns_ - 9'000);
  EXPECT_EQ(master.steps(0).end_ns(), now_ns_ - 2'000);
  EXPECT_EQ(master.steps(0).code(), static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_EQ(master.steps(0).calls(0).end_ns(), now_ns_ - 2'000);
  EXPECT_EQ(response.processes(1).name(), "w");
  EXPECT_EQ(response.processes(1).steps(0).step_id(), 77);
  // First the clock alone.
  ASSERT_EQ(link->requests.size(), 6);
  EXPECT_THAT(link->requests[0].step_ids(), IsEmpty());
  EXPECT_THAT(link->requests[5].step_ids(), ElementsAre(77));
}

TEST_F(TraceCollectionTest, UnresponsiveWorkerIsNamed) {
  AddWorker("a", 0, {})->error = absl::DeadlineExceededError("too slow");
  AddWorker("b", 0, {});
  cluster_.missing.push_back({{}, "c", "has not joined"});
  const ferry::v1::GetStepsResponse response = Collect();
  ASSERT_EQ(response.processes_size(), 4);
  EXPECT_THAT(response.processes(1).missing(), HasSubstr("too slow"));
  EXPECT_EQ(response.processes(2).missing(), "");
  EXPECT_EQ(response.processes(3).name(), "c");
  EXPECT_EQ(response.processes(3).missing(), "has not joined");
}

TEST(StepLog, KeepsTheNewest) {
  StepLog log(3);
  for (int64_t id = 1; id <= 5; ++id) {
    LoggedStep step;
    step.step_id = id;
    log.Add(std::move(step));
  }
  std::vector<int64_t> ids;
  for (const LoggedStep& step : log.Last(10)) ids.push_back(step.step_id);
  EXPECT_THAT(ids, ElementsAre(3, 4, 5));
  EXPECT_EQ(log.Last(1)[0].step_id, 5);
  EXPECT_THAT(log.Last(0), IsEmpty());
}

}  // namespace
}  // namespace ferry::master

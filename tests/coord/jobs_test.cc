// SPDX-License-Identifier: Apache-2.0
// Names and numbers of tasks, and the payload of errors.
#include "coord/core/jobs.h"

#include <string>
#include <utility>
#include <vector>

#include "tests/coord/coordinator_fixture.h"

namespace ferry::coord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Pair;

Jobs OneJob() { return *Jobs::Create({{"jax_worker", 8}}); }
Jobs TwoJobs() { return *Jobs::Create({{"worker", 4}, {"ps", 2}}); }

// A typing error in the command line must not start a job that no task can join.
TEST(Jobs, RefusesInvalidNamesAndCounts) {
  EXPECT_THAT(Jobs::Create({{"", 1}}), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Jobs::Create({{"a", 1}, {"a", 2}}), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Jobs::Create({{"a", 0}}), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Jobs::Create({{"a", -1}}), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Jobs::Create({{"a", 1'000'001}}), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Jobs::Create({}), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Jobs::Create({{"a", 1'000'000}}), IsOk());
}

// TensorFlow's workers and parameter servers both count from 0.
TEST(Jobs, TaskIdsContinueFromOneJobToTheNext) {
  const Jobs jobs = TwoJobs();
  EXPECT_EQ(jobs.size(), 6);
  EXPECT_EQ(*jobs.Resolve("worker", 3), TaskId(3));
  EXPECT_EQ(*jobs.Resolve("ps", 0), TaskId(4));
  EXPECT_EQ(*jobs.Resolve("ps", 1), TaskId(5));
  EXPECT_THAT(jobs.Locate(TaskId(3)), Pair("worker", 3));
  EXPECT_THAT(jobs.Locate(TaskId(4)), Pair("ps", 0));
}

// Newer clients know only numbers.
TEST(Jobs, PlainNumbersAreTaskIds) {
  EXPECT_EQ(*OneJob().Resolve(7), TaskId(7));
  EXPECT_EQ(*TwoJobs().Resolve(5), TaskId(5));
  for (const int64_t number : {int64_t{-1}, int64_t{8}, int64_t{1} << 32, INT64_MAX, INT64_MIN}) {
    EXPECT_THAT(OneJob().Resolve(number), Fails(absl::StatusCode::kInvalidArgument)) << number;
  }
}

// The message lists the existing jobs, for a user who mistyped one.
TEST(Jobs, UnknownTaskIsRefusedWithTheNamesThatExist) {
  const Jobs jobs = TwoJobs();
  EXPECT_THAT(jobs.Resolve("wroker", 0), Fails(absl::StatusCode::kInvalidArgument,
                                               AllOf(HasSubstr("worker"), HasSubstr("ps"))));
  EXPECT_THAT(jobs.Resolve("ps", 2), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(jobs.Resolve("ps", -1), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(jobs.Resolve("ps", int64_t{1} << 32), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(jobs.HasJob("ps"));
  EXPECT_FALSE(jobs.HasJob("p"));
}

TEST(Jobs, ContainsExactlyItsTasks) {
  const Jobs jobs = TwoJobs();
  EXPECT_FALSE(jobs.Contains(kNoTask));
  EXPECT_TRUE(jobs.Contains(TaskId(0)));
  EXPECT_TRUE(jobs.Contains(TaskId(5)));
  EXPECT_FALSE(jobs.Contains(TaskId(6)));
}

// Clients' own messages use this form; people search for it in logs.
TEST(Jobs, NamesTasksAsTensorFlowDoes) {
  EXPECT_EQ(TwoJobs().Name(TaskId(3)), "/job:worker/replica:0/task:3");
  EXPECT_EQ(TwoJobs().Name(TaskId(5)), "/job:ps/replica:0/task:1");
}

// The message must be short and complete.
TEST(Jobs, WritesTasksAsRanges) {
  EXPECT_EQ(OneJob().Ranges(Tasks({3, 4, 5, 7})), "3-5,7");
  EXPECT_EQ(TwoJobs().Ranges(Tasks({1, 2, 3, 4})), "worker 1-3; ps 0");
  EXPECT_EQ(TwoJobs().Ranges(Tasks({5})), "ps 1");
}

// A hundred jobs of scattered tasks must still fit an RPC's trailer.
TEST(Jobs, RangesAreBoundedForManyJobs) {
  std::vector<JobSpec> specs;
  for (int i = 0; i < 200; ++i) specs.push_back({absl::StrCat("job_number_", i), 1000});
  const Jobs jobs = *Jobs::Create(specs);
  std::vector<TaskId> odd;
  for (int i = 1; i < jobs.size(); i += 2) odd.push_back(TaskId(i));
  EXPECT_LT(jobs.Ranges(odd).size(), 2048u);
}

// Parts of a job join, use barriers and leave together.
TEST(Jobs, SeveralPartsMakeOneJob) {
  CoordinatorOptions options = PlainOptions(0);
  options.jobs = {{"worker", 2}, {"ps", 1}};
  options.register_barrier = true;
  options.shutdown_timeout = absl::Minutes(1);
  TestJob job(options);
  std::vector<StatusCall> joins;
  for (int i = 0; i < 2; ++i) joins.push_back(job.Register(i));
  EXPECT_FALSE(joins[0].done());
  EXPECT_THAT(job.Register(2).result(), IsOk());
  EXPECT_THAT(joins[0].result(), IsOk());
  std::vector<StatusCall> partings;
  for (int i = 1; i < 3; ++i) partings.push_back(job.Shutdown(i));
  EXPECT_FALSE(partings[0].done());
  EXPECT_THAT(job.Shutdown(0).result(), IsOk());
  EXPECT_THAT(partings[1].result(), IsOk());
}

// Clients retry unmarked errors.
TEST(Errors, AMarkedStatusKeepsItsCodeMessageAndOrigin) {
  const absl::Status plain = absl::InternalError("broken");
  EXPECT_FALSE(GetErrorOrigin(plain).has_value());
  const absl::Status marked = CoordinationError(plain, {true, TaskId(3)});
  EXPECT_THAT(marked, Fails(absl::StatusCode::kInternal, "broken"));
  ASSERT_TRUE(GetErrorOrigin(marked).has_value());
  EXPECT_TRUE(GetErrorOrigin(marked)->is_reported);
  EXPECT_EQ(GetErrorOrigin(marked)->source, TaskId(3));
}

// The mark without a source is an empty value on the wire: it must still be there.
TEST(Errors, AMarkWithoutASourceIsAMark) {
  const absl::Status marked = CoordinationError(absl::AbortedError("x"));
  ASSERT_TRUE(GetErrorOrigin(marked).has_value());
  EXPECT_FALSE(GetErrorOrigin(marked)->is_reported);
  EXPECT_EQ(GetErrorOrigin(marked)->source, kNoTask);
  EXPECT_EQ(GetErrorOrigin(CoordinationError(absl::AbortedError("x"), {false, TaskId(0)}))->source,
            TaskId(0));
}

TEST(Errors, OkStaysOk) {
  EXPECT_EQ(CoordinationError(absl::OkStatus()), absl::OkStatus());
  EXPECT_FALSE(GetErrorOrigin(absl::OkStatus()).has_value());
}

TEST(Errors, CarryTheMissingTasks) {
  const absl::Status status =
      WithMissingTasks(CoordinationError(absl::DeadlineExceededError("late")), "3-6,17");
  EXPECT_EQ(GetMissingTasks(status), "3-6,17");
  EXPECT_TRUE(GetErrorOrigin(status).has_value());
  EXPECT_EQ(GetMissingTasks(absl::DeadlineExceededError("late")), "");
}

// The limit is one of the whole, which parts that are within it can exceed together.
TEST(Jobs, RefusesPartsThatAreTooManyTogether) {
  EXPECT_THAT(Jobs::Create({{"a", 999'999}, {"b", 1}}), IsOk());
  EXPECT_THAT(Jobs::Create({{"a", 1'000'000}, {"b", 1}}),
              Fails(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace ferry::coord

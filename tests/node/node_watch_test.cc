// SPDX-License-Identifier: Apache-2.0
// Answers that arrive while the watcher still exists, and after it has been destroyed.
#include "node/node_watch.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;

coord::NodeTable TableOf(int64_t version) {
  coord::NodeTable table;
  table.version = version;
  return table;
}

// A fake agent: keeps requests until the test answers them.
struct Agent {
  NodeWatch::Ask ask() {
    return [this](int64_t version, NodeWatch::Answer answer) {
      asked.push_back(version);
      answers.push_back(std::move(answer));
    };
  }
  void Answer(absl::StatusOr<coord::NodeTable> table) {
    NodeWatch::Answer answer = std::move(answers.back());
    answers.pop_back();
    std::move(answer)(std::move(table));
  }

  std::vector<int64_t> asked;
  std::vector<NodeWatch::Answer> answers;
};

NodeWatch::Pause NoRetry() {
  return [](const absl::AnyInvocable<void() &&>&) { ADD_FAILURE() << "an error is not final"; };
}

TEST(NodeWatch, RequestsTheVersionAfterTheLastAnswer) {
  Agent agent;
  std::vector<int64_t> heard;
  NodeWatch watch(agent.ask(), nullptr, NoRetry(),
                  [&](const coord::NodeTable& table) { heard.push_back(table.version); });
  agent.Answer(TableOf(4));
  agent.Answer(TableOf(9));
  agent.Answer(absl::UnavailableError("the coordinator is lost"));
  EXPECT_THAT(heard, ElementsAre(4, 9));
  EXPECT_THAT(agent.asked, ElementsAre(-1, 4, 9));
}

TEST(NodeWatch, PausesBetweenTwoRequests) {
  Agent agent;
  std::vector<absl::AnyInvocable<void() &&>> paused;
  NodeWatch watch(
      agent.ask(), [&](absl::AnyInvocable<void() &&> again) { paused.push_back(std::move(again)); },
      NoRetry(), [](const coord::NodeTable&) {});
  agent.Answer(TableOf(4));
  EXPECT_THAT(agent.asked, ElementsAre(-1));
  std::move(paused.back())();
  EXPECT_THAT(agent.asked, ElementsAre(-1, 4));
}

// A client that is slow to read a large value is refused, and a request ends that has seen no
// change for days; deaths must be noticed after that all the same.
TEST(NodeWatch, ErrorThatMayPass_IsRepeatedAfterAPause) {
  Agent agent;
  std::vector<absl::AnyInvocable<void() &&>> retried;
  std::vector<int64_t> heard;
  NodeWatch watch(
      agent.ask(), nullptr,
      [&](absl::AnyInvocable<void() &&> again) { retried.push_back(std::move(again)); },
      [&](const coord::NodeTable& table) { heard.push_back(table.version); });
  agent.Answer(TableOf(4));
  agent.Answer(absl::ResourceExhaustedError("70000000 bytes of earlier answers wait"));
  EXPECT_THAT(agent.asked, ElementsAre(-1, 4));
  ASSERT_EQ(retried.size(), 1u);
  std::move(retried.back())();
  agent.Answer(absl::DeadlineExceededError("waited 168h for a change of the job's nodes"));
  ASSERT_EQ(retried.size(), 2u);
  std::move(retried.back())();
  EXPECT_THAT(agent.asked, ElementsAre(-1, 4, 4, 4));
  agent.Answer(TableOf(9));
  EXPECT_THAT(heard, ElementsAre(4, 9));
  watch.Stop();
  agent.Answer(absl::ResourceExhaustedError("70000000 bytes of earlier answers wait"));
  EXPECT_EQ(retried.size(), 2u);
}

TEST(NodeWatch, ErrorThatIsFinal_EndsTheRequests) {
  for (const absl::StatusCode code : {absl::StatusCode::kUnavailable, absl::StatusCode::kCancelled,
                                      absl::StatusCode::kAborted, absl::StatusCode::kInternal}) {
    Agent agent;
    NodeWatch watch(agent.ask(), nullptr, NoRetry(), [](const coord::NodeTable&) {});
    agent.Answer(absl::Status(code, "over"));
    EXPECT_THAT(agent.asked, ElementsAre(-1)) << code;
  }
}

// An agent that is leaked, since a hanging thread may still use the store, reports a node's death
// when the node that watched is gone.
TEST(NodeWatch, LateAnswer_IsDropped) {
  Agent agent;
  std::vector<absl::AnyInvocable<void() &&>> paused;
  int heard = 0;
  const auto pause = [&](absl::AnyInvocable<void() &&> again) {
    paused.push_back(std::move(again));
  };
  {
    NodeWatch watch(agent.ask(), pause, NoRetry(), [&](const coord::NodeTable&) { ++heard; });
    agent.Answer(TableOf(1));
    std::move(paused.back())();
  }
  EXPECT_EQ(heard, 1);
  agent.Answer(TableOf(2));
  EXPECT_EQ(heard, 1);
  EXPECT_EQ(paused.size(), 1u);
  {
    NodeWatch watch(agent.ask(), pause, NoRetry(), [&](const coord::NodeTable&) { ++heard; });
    agent.Answer(TableOf(3));
  }
  // So does the end of a pause.
  std::move(paused.back())();
  EXPECT_THAT(agent.asked, ElementsAre(-1, 1, -1));
}

TEST(NodeWatch, ItsDestructor_WaitsForARunningCallback) {
  Agent agent;
  absl::Notification is_inside;
  absl::Notification go;
  std::atomic<bool> is_over = false;
  NodeWatch watch(agent.ask(), nullptr, NoRetry(), [&](const coord::NodeTable&) {
    is_inside.Notify();
    go.WaitForNotification();
    is_over = true;
  });
  std::thread teller([&] { agent.Answer(TableOf(1)); });
  is_inside.WaitForNotification();
  std::thread stopper([&] {
    watch.Stop();
    EXPECT_TRUE(is_over);
  });
  // A destructor that does not wait has enough time to be detected.
  absl::SleepFor(absl::Milliseconds(30));
  go.Notify();
  stopper.join();
  teller.join();
}

}  // namespace
}  // namespace ferry

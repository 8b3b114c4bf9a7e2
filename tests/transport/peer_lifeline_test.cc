// SPDX-License-Identifier: Apache-2.0
// PeerLifeline: what an owner of memory learns of the process that has it mapped.
#include "transport/cuda_ipc/peer_lifeline.h"

#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "net/event_loop.h"
#include "transport/cuda_ipc/deferred_release_queue.h"

namespace ferry {
namespace {

using State = PeerLifeline::State;

TEST(PeerLifelineTest, HeldUntilTheLastMappingIsClosed) {
  auto made = PeerLifeline::Make();
  ASSERT_TRUE(made.ok()) << made.status();
  auto received = std::make_shared<ReceivedLifelines>();
  received->Add(std::move(made->to_send));
  std::shared_ptr<const void> mapping = received;
  received = nullptr;
  EXPECT_EQ(made->line.Look(), State::kHeld);
  mapping = nullptr;
  EXPECT_EQ(made->line.Look(), State::kClosed);
  EXPECT_EQ(made->line.Look(), State::kClosed);
}

// A peer that is probed again and again, or floods this process with probes.
TEST(PeerLifelineTest, OneEndIsKeptOfMany) {
  auto received = std::make_unique<ReceivedLifelines>();
  std::vector<PeerLifeline> lines;
  for (int i = 0; i < 3; ++i) {
    auto made = PeerLifeline::Make();
    ASSERT_TRUE(made.ok()) << made.status();
    received->Add(std::move(made->to_send));
    lines.push_back(std::move(made->line));
  }
  EXPECT_EQ(lines[0].Look(), State::kHeld);
  EXPECT_EQ(lines[1].Look(), State::kDied);
  EXPECT_EQ(lines[2].Look(), State::kDied);
  received = nullptr;
  EXPECT_EQ(lines[0].Look(), State::kClosed);
}

TEST(PeerLifelineTest, ProcessThatDiesSaysNothing) {
  auto made = PeerLifeline::Make();
  ASSERT_TRUE(made.ok()) << made.status();
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char said = 0;
    const ssize_t got = read(go[0], &said, 1);
    _exit(got == 1 ? 0 : 1);
  }
  // Sent to it.
  made->to_send.Reset();
  EXPECT_EQ(made->line.Look(), State::kHeld);
  ASSERT_EQ(write(go[1], "x", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(made->line.Look(), State::kDied);
  close(go[0]);
  close(go[1]);
}

TEST(DeferredReleaseQueueTest, KeepsUntilItIsOver) {
  auto loop = *EventLoop::Create({});
  bool is_over = false;
  int looks = 0;
  bool has_ended = false;
  auto kept = std::make_shared<int>(1);
  const std::weak_ptr<int> weak = kept;
  {
    DeferredReleaseQueue queue(*loop);
    queue.KeepUntil(
        [&] {
          ++looks;
          return is_over;
        },
        [&, kept = std::move(kept)] { has_ended = true; });
    const auto wait = [&](auto condition) {
      return loop->WaitUntil(condition, SteadyClock().Now() + absl::Seconds(30));
    };
    EXPECT_TRUE(wait([&] { return looks >= 3; }));
    EXPECT_FALSE(weak.expired());
    loop->Post([&] { is_over = true; });
    EXPECT_TRUE(wait([&] { return has_ended; }));
    EXPECT_TRUE(wait([&] { return weak.expired(); }));
  }
  loop->Stop();
}

}  // namespace
}  // namespace ferry

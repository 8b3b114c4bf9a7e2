// SPDX-License-Identifier: Apache-2.0
// AnyLoop: a parameter of tests that run on both event loops.
#ifndef FERRY_TESTS_NET_ANY_LOOP_H_
#define FERRY_TESTS_NET_ANY_LOOP_H_

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "net/event_loop.h"
#include "net/loop.h"
#include "net/socket_loop.h"

namespace ferry {

// Far more than any of them takes.
inline constexpr absl::Duration kTimeout = absl::Seconds(20);

enum class LoopKind { kEventLoop, kSocketLoop };

inline std::shared_ptr<Loop> MakeLoop(LoopKind kind) {
  if (kind == LoopKind::kEventLoop) return *EventLoop::Create({});
  return *SocketLoop::Create("test");
}

class AnyLoopTest : public ::testing::TestWithParam<LoopKind> {
 protected:
  // Returns when the loop has run everything that was posted before, and has destroyed it.
  void Settle() {
    for (int i = 0; i < 2; ++i) {
      absl::Notification ran;
      loop_->Post([&ran] { ran.Notify(); });
      ASSERT_TRUE(ran.WaitForNotificationWithTimeout(kTimeout));
    }
  }

  std::shared_ptr<Loop> loop_ = MakeLoop(GetParam());
};

inline std::string LoopName(const ::testing::TestParamInfo<LoopKind>& info) {
  return info.param == LoopKind::kEventLoop ? "EventLoop" : "SocketLoop";
}

}  // namespace ferry

#define FERRY_ON_BOTH_LOOPS(suite) \
  INSTANTIATE_TEST_SUITE_P(        \
      Both, suite, ::testing::Values(LoopKind::kEventLoop, LoopKind::kSocketLoop), LoopName)

#endif  // FERRY_TESTS_NET_ANY_LOOP_H_

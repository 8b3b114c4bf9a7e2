// SPDX-License-Identifier: Apache-2.0
// Occupies the loop with a function that waits.
#include "net/paused_loop.h"

#include "absl/synchronization/notification.h"

namespace ferry {

struct PausedLoop::Shared {
  absl::Notification is_paused;
  absl::Notification is_over;
};

PausedLoop::PausedLoop(Loop& loop) : shared_(std::make_shared<Shared>()) {
  loop.Post([&loop, shared = shared_] {
    loop.Post([shared] {
      shared->is_paused.Notify();
      shared->is_over.WaitForNotification();
    });
  });
  shared_->is_paused.WaitForNotification();
}

PausedLoop::~PausedLoop() {
  if (shared_ != nullptr) shared_->is_over.Notify();
}

}  // namespace ferry

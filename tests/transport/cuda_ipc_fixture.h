// SPDX-License-Identifier: Apache-2.0
// One process's part in transfers between GPU processes, with the fake driver.
#ifndef FERRY_TESTS_TRANSPORT_CUDA_IPC_FIXTURE_H_
#define FERRY_TESTS_TRANSPORT_CUDA_IPC_FIXTURE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#include "base/clock.h"
#include "gpu/cuda/ready_tensor.h"
#include "gpu/gpus.h"
#include "net/event_loop.h"
#include "tests/gpu/cuda_fixture.h"
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/transport.h"

namespace ferry {

// Far longer than anything here takes.
inline constexpr absl::Duration kPatience = absl::Seconds(30);

class CudaIpcTest : public ::testing::Test {
 protected:
  explicit CudaIpcTest(const GpusOptions& options = {}) {
    gpus_ = *Gpus::Create(cuda::StrictApi(), AllocateHeapBuffer, nullptr, options);
    loop_ = *EventLoop::Create({});
    gpu_ = *gpus_->Get(0);
    environment_.loop = loop_.get();
    environment_.gpus = gpus_.get();
    environment_.incarnation = 1;
    peer_.peer = {2, 2000};
  }
  ~CudaIpcTest() override {
    Finish();
    reinterpret_cast<void (*)()>(cuda::StrictSymbol("strict_cuda_clear_faults"))();
  }
  // Before what the test made is destroyed, and after what uses the GPUs.
  void Finish() {
    if (gpus_ == nullptr) return;
    loop_->Stop();
    gpus_->Stop();
    gpus_ = nullptr;
    EXPECT_EQ(reinterpret_cast<int (*)()>(cuda::StrictSymbol("strict_cuda_violations"))(), 0);
  }

  // Blocks until what was posted before has run.
  static void Flush(cuda::DeviceExecutor& executor) {
    absl::Notification has_run;
    ASSERT_TRUE(executor.Post([&has_run] { has_run.Notify(); }).ok());
    ASSERT_TRUE(has_run.WaitForNotificationWithTimeout(kPatience));
  }
  // Holds the executor while `what` runs here.
  template <typename Function>
  static void WhileHeld(cuda::DeviceExecutor& executor, Function what) {
    absl::Notification is_held;
    absl::Notification go;
    ASSERT_TRUE(executor
                    .Post([&] {
                      is_held.Notify();
                      go.WaitForNotification();
                    })
                    .ok());
    is_held.WaitForNotification();
    what();
    go.Notify();
    Flush(executor);
  }

  // The same, and the executor takes no more then.
  template <typename Function>
  static void WhileFull(cuda::DeviceExecutor& executor, Function what) {
    absl::Notification go;
    ASSERT_TRUE(executor.Post([&] { go.WaitForNotification(); }).ok());
    while (executor.Post([] {}).ok()) {
    }
    what();
    go.Notify();
    while (executor.waiting_count() > 1000) absl::SleepFor(absl::Milliseconds(1));
    Flush(executor);
  }

  std::unique_ptr<Gpus> gpus_;
  std::unique_ptr<EventLoop> loop_;
  Gpu* gpu_ = nullptr;
  TransportEnvironment environment_;
  Endpoint peer_;
};

}  // namespace ferry

#endif  // FERRY_TESTS_TRANSPORT_CUDA_IPC_FIXTURE_H_

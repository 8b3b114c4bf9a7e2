// SPDX-License-Identifier: Apache-2.0
// A link to a worker, over a wire that breaks.
#include <memory>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

#include "tensorflow/master/grpc_worker_link.h"
#include "tests/support/tcp_proxy.h"
#include "tests/tensorflow/master/wire_worker.h"

namespace ferry::master {
namespace {

// A machine that has lost its power closes no connection; a step there may be meant to take hours.
TEST(WorkerLink, DetectsASilentConnection) {
  WireWorker worker;
  TcpProxy proxy(worker.port());
  GrpcWorkerLinks links({absl::Milliseconds(100), absl::Milliseconds(300)});
  const std::shared_ptr<WorkerLink> link = links.Connect(proxy.address());
  tensorflow::RunGraphRequest request;
  request.set_graph_handle("hang");
  absl::Notification is_over;
  absl::Status status;
  link->RunGraph(request, {}, [&](absl::StatusOr<tensorflow::RunGraphResponse> response) {
    status = response.status();
    is_over.Notify();
  });
  ASSERT_TRUE(worker.hangs.WaitForNotificationWithTimeout(absl::Seconds(30)));
  // As long as the probes are answered the step may take any time.
  EXPECT_FALSE(is_over.WaitForNotificationWithTimeout(absl::Seconds(1)));
  proxy.SetStalled(true);
  EXPECT_TRUE(is_over.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  proxy.SetStalled(false);
}

}  // namespace
}  // namespace ferry::master

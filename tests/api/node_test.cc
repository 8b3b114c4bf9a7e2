// SPDX-License-Identifier: Apache-2.0
// Joining, leaving and shutting down.
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "absl/synchronization/notification.h"

#include "job.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(NodeTest, Join_ReportsRankAndTopology) {
  TestCoordinator coordinator(2);
  const auto nodes = coordinator.Join({0, 1});
  for (int rank = 0; rank < 2; ++rank) {
    Node& node = *nodes[static_cast<size_t>(rank)];
    EXPECT_EQ(node.rank(), rank);
    EXPECT_EQ(node.num_nodes(), 2);
    const Topology& topology = node.topology();
    ASSERT_EQ(topology.nodes().size(), 2);
    EXPECT_EQ(topology.nodes()[1].rank, 1);
    EXPECT_TRUE(topology.IsSameHost(0, 1));
    EXPECT_FALSE(topology.IsSameHost(0, 2));
    const std::optional<int> host = topology.FindDevice(1, Device::Host());
    ASSERT_TRUE(host.has_value());
    const DeviceInfo& info = topology.devices()[static_cast<size_t>(*host)];
    EXPECT_EQ(info.global_id, *host);
    EXPECT_EQ(info.rank, 1);
    EXPECT_EQ(info.device, Device::Host());
    EXPECT_EQ(topology.LinkBetween(*host, *host)->type, LinkType::kLoc);
    EXPECT_EQ(topology.LinkBetween(0, 99).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(topology.FindDevice(1, Device::Gpu(63)), std::nullopt);
    EXPECT_EQ(topology.FindDevice(5, Device::Host()), std::nullopt);
  }
  EXPECT_EQ(nodes[0]->topology().nodes(), nodes[1]->topology().nodes());
  EXPECT_EQ(nodes[0]->topology().devices(), nodes[1]->topology().devices());
}

TEST(NodeTest, Join_OtherNodeIsMissing_NamesIt) {
  TestCoordinator coordinator(2);
  NodeOptions options = coordinator.OptionsOf(0);
  options.connect_timeout = absl::Milliseconds(200);
  const absl::Status status = Node::Join(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("missing tasks: 1"));
}

// A node that is refused tells the others, within the time that it has.
TEST(NodeTest, Join_Refused_EndsWithinTheTimeToConnect) {
  TestCoordinator coordinator(2);
  NodeOptions of_node_7 = coordinator.OptionsOf(7);
  NodeOptions of_three = coordinator.OptionsOf(0);
  of_three.num_nodes = 3;
  NodeOptions of_none = coordinator.OptionsOf(0);
  of_none.num_nodes = 0;
  std::vector<std::future<absl::Status>> joining;
  for (NodeOptions* options : {&of_node_7, &of_three, &of_none}) {
    options->connect_timeout = absl::Milliseconds(300);
    joining.push_back(
        std::async(std::launch::async, [options] { return Node::Join(*options).status(); }));
  }
  for (auto& each : joining) {
    // They would tell others for 20 s.
    EXPECT_EQ(each.wait_for(std::chrono::seconds(10)), std::future_status::ready);
    EXPECT_THAT(each.get().code(),
                AnyOf(absl::StatusCode::kInvalidArgument, absl::StatusCode::kFailedPrecondition));
  }
}

TEST(NodeTest, Join_Cancelled_EndsWithTheReason) {
  TestCoordinator coordinator(2);
  NodeOptions options = coordinator.OptionsOf(0);
  options.cancellation.emplace();
  CancellationToken cancellation = *options.cancellation;
  auto joining = std::async(std::launch::async, [&] { return Node::Join(options).status(); });
  EXPECT_TRUE(cancellation.Cancel(absl::CancelledError("the user gave up")));
  EXPECT_THAT(std::string(joining.get().message()), HasSubstr("the user gave up"));
}

TEST(NodeTest, Destructor_LeavesTheJobWithoutTheOthers) {
  TestCoordinator coordinator(2);
  auto nodes = coordinator.Join({0, 1});
  nodes[1].reset();
  CoordinatorClient& client = nodes[0]->coordinator();
  EXPECT_TRUE(Becomes(client, 1, NodeState::kLeft));
  // The job goes on.
  EXPECT_EQ(client.JobStatus(), absl::OkStatus());
  EXPECT_EQ(client.Set("still", "here"), absl::OkStatus());
}

TEST(NodeTest, Leave_IsLocalToo) {
  TestCoordinator coordinator(2);
  auto nodes = coordinator.Join({0, 1});
  EXPECT_EQ(nodes[1]->Leave(), absl::OkStatus());
  EXPECT_TRUE(Becomes(nodes[0]->coordinator(), 1, NodeState::kLeft));
}

TEST(NodeTest, ShutdownCollective_BlocksUntilAllHaveCalledIt) {
  TestCoordinator coordinator(2);
  auto nodes = coordinator.Join({0, 1});
  std::atomic<bool> last_has_called{false};
  std::promise<void> begins;
  auto first = std::async(std::launch::async, [&] {
    begins.set_value();
    const absl::Status status = nodes[0]->ShutdownCollective();
    EXPECT_TRUE(last_has_called) << "it did not wait for node 1";
    return status;
  });
  begins.get_future().wait();
  // Several round trips, in which node 0 would have returned if it did not wait.
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(nodes[1]->coordinator().Set("key", "value", /*overwrite=*/true), absl::OkStatus());
  }
  last_has_called = true;
  EXPECT_EQ(nodes[1]->ShutdownCollective(), absl::OkStatus());
  EXPECT_EQ(first.get(), absl::OkStatus());
}

TEST(NodeTest, FailJob_OtherNode_IsTold) {
  TestCoordinator coordinator(2);
  absl::Notification told;
  std::string message;
  NodeOptions options = coordinator.OptionsOf(0);
  options.on_job_failure = [&](const absl::Status& error) {
    message = std::string(error.message());
    told.Notify();
  };
  auto joining = std::async(std::launch::async, [&] { return Node::Join(options); });
  auto failing = std::move(coordinator.Join({1})[0]);
  absl::StatusOr<std::unique_ptr<Node>> node = joining.get();
  ASSERT_TRUE(node.ok()) << node.status();
  failing->FailJob(absl::InternalError("the fan has stopped"));
  ASSERT_TRUE(told.WaitForNotificationWithTimeout(kLong));
  EXPECT_THAT(message, HasSubstr("the fan has stopped"));
}

TEST(NodeTest, Allocate_UnknownDevice_NamesThoseThatThereAre) {
  TestCoordinator coordinator(1);
  const auto nodes = coordinator.Join({0});
  const absl::Status status = nodes[0]->Allocate(Device::Gpu(63), DataType::kFloat, {2}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("gpu:63"), HasSubstr("host:0")));
  EXPECT_EQ(nodes[0]->Allocate(Device::Host(), DataType::kFloat, {-1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(NodeTest, Communicator_WithoutGpus_SaysWhy) {
  TestCoordinator coordinator(1);
  const auto nodes = coordinator.Join({0}, {.use_gpus = false});
  EXPECT_FALSE(nodes[0]->Communicator({0}).ok());
}

TEST(NodeTest, OpenStep_WithoutTransfers_IsRefused) {
  TestCoordinator coordinator(1);
  const auto nodes = coordinator.Join({0}, {.enabled = false});
  EXPECT_EQ(nodes[0]->OpenStep(1).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(nodes[0]->Allocate(Device::Host(), DataType::kFloat, {1}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(nodes[0]->Communicator({0}).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ferry

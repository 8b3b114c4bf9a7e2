// SPDX-License-Identifier: Apache-2.0
// A node that dies, comes back and dies again, as another node sees it.
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>

#include "absl/strings/match.h"

#include "node/node.h"
#include "tests/coord/wire/agent_fixture.h"

namespace ferry {
namespace {

// Node 1 is no more than a member of the job, and publishes no addresses.
class NodeDeathsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto member = coord::InBackground([this] { return JoinAsMember(); });
    NodeOptions options;
    options.coordinator = server_.address();
    options.node_id = 0;
    options.num_nodes = 2;
    absl::StatusOr<std::unique_ptr<Node>> node = Node::Join(options);
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
    member_ = coord::Await(member);
    ASSERT_NE(member_, nullptr);
  }

  std::unique_ptr<coord::Agent> JoinAsMember() {
    coord::AgentOptions options = coord::RankOptions(server_.address(), 1);
    options.recoverable = true;
    options.devices.emplace();
    options.devices->node_id = 1;
    absl::StatusOr<std::unique_ptr<coord::Agent>> agent = coord::Agent::Connect(options);
    EXPECT_TRUE(agent.ok()) << agent.status();
    return agent.ok() ? *std::move(agent) : nullptr;
  }
  // The result of a lookup of node 1's addresses.
  absl::Status Lookup() {
    return node_->Key("x", 1, 0, "host:0", "host:0", {.timeout = absl::Milliseconds(20)}).status();
  }

  coord::TestServer server_{2};
  std::unique_ptr<Node> node_;
  std::unique_ptr<coord::Agent> member_;
};

TEST_F(NodeDeathsTest, NodeThatComesBackAndDiesAgain_IsDeadAndAliveInTurn) {
  for (const char* const why : {"its fan stopped", "its disk is full"}) {
    if (member_ == nullptr) member_ = JoinAsMember();
    ASSERT_NE(member_, nullptr);
    EXPECT_TRUE(coord::Eventually([this] { return absl::IsDeadlineExceeded(Lookup()); }))
        << "it is not waited for: " << Lookup();
    ASSERT_TRUE(member_->ReportError(absl::InternalError(why)).ok());
    EXPECT_TRUE(coord::Eventually([this, why] {
      const absl::Status status = Lookup();
      return absl::IsUnavailable(status) && absl::StrContains(status.message(), why);
    })) << Lookup();
    // The process ends, and may be started again.
    EXPECT_TRUE(member_->Leave().ok());
    member_ = nullptr;
  }
}

}  // namespace
}  // namespace ferry

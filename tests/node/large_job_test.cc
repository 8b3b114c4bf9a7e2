// SPDX-License-Identifier: Apache-2.0
// A node among more peers than can be reported at once.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"

#include "node/node.h"
#include "tests/coord/wire/agent_fixture.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

constexpr int kNodes = 140;

// Nodes 1 and up are no more than members of the job.
class LargeJob : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::future<absl::StatusOr<std::unique_ptr<coord::Agent>>>> joining;
    for (int i = 1; i < kNodes; ++i) {
      coord::AgentOptions options = coord::RankOptions(server_.address(), i);
      options.recoverable = true;
      options.devices.emplace();
      options.devices->node_id = i;
      joining.push_back(coord::InBackground(
          [options = std::move(options)] { return coord::Agent::Connect(options); }));
    }
    NodeOptions options;
    options.coordinator = server_.address();
    options.node_id = 0;
    options.num_nodes = kNodes;
    absl::StatusOr<std::unique_ptr<Node>> node = Node::Join(options);
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
    for (auto& each : joining) {
      auto agent = coord::Await(each);
      ASSERT_TRUE(agent.ok()) << agent.status();
      agents_.push_back(*std::move(agent));
    }
  }

  coord::Agent& agent(int node) { return *agents_[static_cast<size_t>(node) - 1]; }

  coord::TestServer server_{kNodes};
  std::vector<std::unique_ptr<coord::Agent>> agents_;
  std::unique_ptr<Node> node_;
};

// There is no control channel that would report it.
TEST_F(LargeJob, DeathsAreReported) {
  for (const int dead : {77, 139}) {
    const absl::Status failure = absl::InternalError(absl::StrCat("the fan of ", dead, " stopped"));
    ASSERT_TRUE(agent(dead).ReportError(failure).ok());
    const auto key = node_->Key("x", dead, 0, "host:0", "host:0", {.timeout = coord::kTimeout});
    EXPECT_EQ(key.status().code(), absl::StatusCode::kUnavailable) << key.status();
    EXPECT_THAT(std::string(key.status().message()),
                HasSubstr(absl::StrCat("node ", dead, " has failed before")));
    EXPECT_THAT(std::string(key.status().message()), HasSubstr(failure.message()));
  }
}

}  // namespace
}  // namespace ferry

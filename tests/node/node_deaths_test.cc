// SPDX-License-Identifier: Apache-2.0
// A node that dies, comes back and dies again, as another node sees it.
#include <future>
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>

#include "absl/strings/match.h"

#include "net/listener.h"
#include "node/endpoint_record.h"
#include "node/node.h"
#include "tests/coord/wire/agent_fixture.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Node 1 is no more than a member of the job, and publishes its addresses only when it is told to.
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
  // Publishes an address at which connections are accepted and nothing is said.
  void Publish() {
    Endpoint endpoint;
    endpoint.peer = {1, member_->incarnation()};
    endpoint.host_name = "host1";
    endpoint.boot_id = "boot1";
    endpoint.channels.tcp = {silent_->address()};
    ASSERT_TRUE(member_->Set(EndpointKey(1), EncodeEndpoint(endpoint), /*overwrite=*/true).ok());
  }
  // The process ends, and is started again.
  void Restart() {
    ASSERT_TRUE(member_->Leave().ok());
    member_ = JoinAsMember();
    ASSERT_NE(member_, nullptr);
  }
  absl::StatusOr<RendezvousKey> LookupKey(absl::Duration timeout = absl::Milliseconds(20)) {
    return node_->Key("x", 1, 0, "host:0", "host:0", {.timeout = timeout});
  }
  // The result of a lookup of node 1's addresses.
  absl::Status Lookup() { return LookupKey().status(); }
  // The status of a receive from node 1 that has begun.
  std::future<absl::Status> Receive(int64_t step_id) {
    const absl::StatusOr<RendezvousKey> key = LookupKey(coord::kTimeout);
    EXPECT_TRUE(key.ok()) << key.status();
    absl::StatusOr<Step> step = node_->OpenStep(step_id);
    EXPECT_TRUE(step.ok()) << step.status();
    auto ended = std::make_shared<std::promise<absl::Status>>();
    step->RecvAsync(*key, {}, [ended](absl::Status status, const Received& received) {
      ended->set_value(std::move(status));
    });
    return ended->get_future();
  }

  coord::TestServer server_{2};
  const std::unique_ptr<Listener> silent_ = *Listener::OpenTcp("127.0.0.1:0");
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

// Another lookup must not return the address of a process that is gone.
TEST_F(NodeDeathsTest, AddressOfANodeThatFails_IsForgotten) {
  Publish();
  ASSERT_TRUE(LookupKey(coord::kTimeout).ok());
  ASSERT_TRUE(member_->ReportError(absl::InternalError("its disk is full")).ok());
  EXPECT_TRUE(coord::Eventually([this] { return absl::IsUnavailable(Lookup()); })) << Lookup();
}

TEST_F(NodeDeathsTest, AddressOfANodeThatRestarts_IsThatOfItsNextIncarnation) {
  Publish();
  const absl::StatusOr<RendezvousKey> before = LookupKey(coord::kTimeout);
  ASSERT_TRUE(before.ok()) << before.status();
  // It is kept, and not made again.
  EXPECT_EQ(&LookupKey()->text(), &before->text());
  Restart();
  // The record of the former incarnation is still in the store.
  EXPECT_TRUE(coord::Eventually([this] {
    const absl::Status status = Lookup();
    return absl::IsDeadlineExceeded(status) &&
           absl::StrContains(status.message(), "waited 20ms for the endpoint record of node 1");
  })) << Lookup();
  Publish();
  const absl::StatusOr<RendezvousKey> after = LookupKey(coord::kTimeout);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_NE(after->text(), before->text());
}

// Long before their own timeout.
TEST_F(NodeDeathsTest, ReceivesFromANodeThatFailsOrRestarts_FailWithThat) {
  Publish();
  std::future<absl::Status> restarted = Receive(1);
  Restart();
  const absl::Status aborted = coord::Await(restarted);
  EXPECT_TRUE(absl::IsAborted(aborted)) << aborted;
  EXPECT_THAT(std::string(aborted.message()), HasSubstr("node 1 was restarted"));
  Publish();
  std::future<absl::Status> failed = Receive(2);
  ASSERT_TRUE(member_->ReportError(absl::InternalError("its disk is full")).ok());
  const absl::Status unavailable = coord::Await(failed);
  EXPECT_TRUE(absl::IsUnavailable(unavailable)) << unavailable;
  EXPECT_THAT(std::string(unavailable.message()),
              AllOf(HasSubstr("node 1 has failed"), HasSubstr("its disk is full")));
}

}  // namespace
}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// Store, watches, barriers and membership, of a node and of a client that is none.
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ferry/error_details.h>
#include <gmock/gmock.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#include "job.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class CoordinatorClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    nodes_ = coordinator_.Join({0, 1}, {.enabled = false});
    for (const auto& node : nodes_) ASSERT_NE(node, nullptr);
  }
  CoordinatorClient& client(size_t rank) { return nodes_[rank]->coordinator(); }

  TestCoordinator coordinator_{2};
  std::vector<std::unique_ptr<Node>> nodes_;
};

TEST_F(CoordinatorClientTest, Get_WaitsForTheOtherNode) {
  auto getting = std::async(std::launch::async, [&] { return client(1).Get("late", kLong); });
  EXPECT_EQ(client(0).Set("late", "value"), absl::OkStatus());
  const absl::StatusOr<std::string> value = getting.get();
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(*value, "value");
}

TEST_F(CoordinatorClientTest, Get_TimesOut_NamesTheKey) {
  const absl::Status status = client(0).Get("never", absl::Milliseconds(20)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("never"));
}

TEST_F(CoordinatorClientTest, Store_SetsListsAddsAndDeletes) {
  EXPECT_EQ(client(0).TryGet("a/1").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client(0).SetAll({{"a/1", "one"}, {"a/2", "two"}}), absl::OkStatus());
  EXPECT_EQ(client(0).Set("a/1", "other").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(client(0).Set("a/1", "other", /*overwrite=*/true), absl::OkStatus());
  EXPECT_EQ(client(1).GetAll({"a/2", "a/1"}, kLong).value(),
            (std::vector<std::string>{"two", "other"}));
  const std::vector<KeyValue> entries = client(1).List("a/").value();
  ASSERT_EQ(entries.size(), 2);
  EXPECT_EQ(entries[0].key, "a/1");
  EXPECT_EQ(entries[0].value, "other");
  EXPECT_GT(entries[0].revision, entries[1].revision);
  EXPECT_EQ(client(0).Add("count", 2).value(), 2);
  EXPECT_EQ(client(1).Add("count", 3).value(), 5);
  EXPECT_EQ(client(0).Add("a/1", 1).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(client(0).CompareAndSet("a/2", "three", "x").value());
  EXPECT_TRUE(client(0).CompareAndSet("a/2", "two", "x").value());
  EXPECT_TRUE(client(0).CompareAndSet("a/3", std::nullopt, "y").value());
  EXPECT_EQ(client(0).Delete("a", /*is_prefix=*/true), absl::OkStatus());
  EXPECT_TRUE(client(1).List("a/").value().empty());
}

// Errors quote the keys and ids that a program chose.
TEST_F(CoordinatorClientTest, KeysAndIds_AreBytes_InErrorsToo) {
  for (const std::string& bytes : {std::string("\xff\xfe"), std::string("a\0b", 3)}) {
    EXPECT_EQ(client(0).Set(bytes, "v"), absl::OkStatus());
    EXPECT_EQ(client(0).Set(bytes, "w").code(), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(client(0).Add(bytes, 1).status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(client(1).List(bytes).value()[0].key, bytes);
    EXPECT_EQ(client(1).Delete(bytes), absl::OkStatus());
    EXPECT_EQ(client(1).TryGet(bytes).status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(client(1).Get(bytes, absl::Milliseconds(1)).status().code(),
              absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(client(0).Barrier(bytes, absl::Milliseconds(1)).code(),
              absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(client(1).CancelBarrier(bytes).code(), absl::StatusCode::kFailedPrecondition);
  }
  nodes_[1]->FailJob(absl::DataLossError("\xff"));
  EXPECT_THAT(std::string(client(0).JobStatus().message()), HasSubstr("\xff"));
}

TEST_F(CoordinatorClientTest, Get_WithoutTime_IsTooLate) {
  for (const absl::Duration timeout :
       {absl::ZeroDuration(), -absl::Seconds(1), -absl::InfiniteDuration()}) {
    EXPECT_EQ(client(0).Get("never", timeout).status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(client(0).GetAll({"never", "nor this"}, timeout).status().code(),
              absl::StatusCode::kDeadlineExceeded);
  }
}

TEST_F(CoordinatorClientTest, Watch_WithoutACallback_IsRefused) {
  EXPECT_EQ(client(0).Watch("w/", nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CoordinatorClientTest, Watch_ReportsExistingAndLaterEntries_UntilDestroyed) {
  ASSERT_EQ(client(0).Set("w/1", "one"), absl::OkStatus());
  absl::Mutex mu;
  std::vector<std::string> changes;
  const auto has = [&](size_t count) {
    absl::MutexLock lock(&mu);
    const auto is_there = [&] { return changes.size() >= count; };
    return mu.AwaitWithTimeout(absl::Condition(&is_there), kLong);
  };
  absl::StatusOr<KeyWatch> watch = client(1).Watch("w/", [&](const KeyChange& change) {
    absl::MutexLock lock(&mu);
    changes.push_back((change.is_deleted ? "-" : "+") + change.entry.key);
  });
  ASSERT_TRUE(watch.ok()) << watch.status();
  ASSERT_TRUE(has(1));
  ASSERT_EQ(client(0).Set("w/2", "two"), absl::OkStatus());
  ASSERT_EQ(client(0).Delete("w/1"), absl::OkStatus());
  ASSERT_TRUE(has(3));
  *watch = KeyWatch();
  ASSERT_EQ(client(0).Set("w/3", "three"), absl::OkStatus());
  // By the answer to this one an event of "w/3" would have come.
  EXPECT_TRUE(client(1).TryGet("w/3").ok());
  absl::MutexLock lock(&mu);
  EXPECT_THAT(changes, ElementsAre("+w/1", "+w/2", "-w/1"));
}

TEST_F(CoordinatorClientTest, Get_IsCancelled_EndsWithTheReason) {
  CancellationToken cancellation;
  auto getting = std::async(std::launch::async, [&] {
    return client(0).GetAll({"there", "never"}, kLong, cancellation).status();
  });
  // Cancelled before or while it waits.
  EXPECT_TRUE(cancellation.Cancel(absl::DataLossError("the user has gone")));
  EXPECT_EQ(getting.get(), absl::DataLossError("the user has gone"));
  EXPECT_EQ(client(0).Get("never", kLong, cancellation).status(),
            absl::DataLossError("the user has gone"));
  ASSERT_EQ(client(1).Set("there", "v"), absl::OkStatus());
  EXPECT_EQ(client(0).Get("there", kLong, CancellationToken()).value(), "v");
  EXPECT_EQ(client(0).Get("never", absl::Milliseconds(20), CancellationToken()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(CoordinatorClientTest, Barrier_AllArrive_ReleasesBoth) {
  auto waiting = std::async(std::launch::async, [&] { return client(1).Barrier("b", kLong); });
  EXPECT_EQ(client(0).Barrier("b", kLong), absl::OkStatus());
  EXPECT_EQ(waiting.get(), absl::OkStatus());
}

TEST_F(CoordinatorClientTest, Barrier_OneIsMissing_NamesIt) {
  const absl::Status status = client(0).Barrier("b", absl::Milliseconds(50));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("b"), HasSubstr("Missing tasks: 1"), HasSubstr("the first node 0"),
                    Not(HasSubstr("/job:"))));
  EXPECT_THAT(MissingRanks(status), ElementsAre(1));
  EXPECT_EQ(TransferPhase(status), "");
}

TEST_F(CoordinatorClientTest, LiveNodes_OneHasLeft_IsNotAmongThem) {
  auto asking = std::async(std::launch::async, [&] { return client(1).LiveNodes({0, 1}, kLong); });
  EXPECT_THAT(client(0).LiveNodes({0, 1}, kLong).value(), ElementsAre(0, 1));
  EXPECT_THAT(asking.get().value(), ElementsAre(0, 1));
  nodes_[1].reset();
  ASSERT_TRUE(Becomes(client(0), 1, NodeState::kLeft));
  EXPECT_THAT(client(0).LiveNodes({0, 1}, kLong).value(), ElementsAre(0));
}

TEST_F(CoordinatorClientTest, Nodes_ReportsEachState) {
  const std::vector<NodeStatus> nodes = client(0).Nodes().value();
  ASSERT_EQ(nodes.size(), 2);
  EXPECT_EQ(nodes[1].rank, 1);
  EXPECT_EQ(ToString(nodes[1].state), "joined");
  EXPECT_FALSE(nodes[1].host_name.empty());
  EXPECT_EQ(nodes[1].error, absl::OkStatus());
}

TEST_F(CoordinatorClientTest, Connect_ClientThatIsNoNode_UsesTheStore) {
  CoordinatorClientOptions options;
  options.address = coordinator_.address();
  absl::StatusOr<std::unique_ptr<CoordinatorClient>> tool = CoordinatorClient::Connect(options);
  ASSERT_TRUE(tool.ok()) << tool.status();
  EXPECT_EQ((*tool)->num_nodes(), 2);
  EXPECT_EQ((*tool)->Set("from", "outside"), absl::OkStatus());
  EXPECT_EQ(client(1).TryGet("from").value(), "outside");
  EXPECT_EQ((*tool)->Nodes()->size(), 2);
  EXPECT_EQ((*tool)->JobStatus(), absl::OkStatus());
  EXPECT_EQ((*tool)->Barrier("b", kLong).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CoordinatorClientConnect, NobodyListens_NamesTheAddress) {
  CoordinatorClientOptions options;
  options.address = "127.0.0.1:1";
  options.connect_timeout = absl::Milliseconds(200);
  const absl::Status status = CoordinatorClient::Connect(options).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1"));
}

}  // namespace
}  // namespace ferry

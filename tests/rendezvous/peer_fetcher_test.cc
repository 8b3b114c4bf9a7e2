// SPDX-License-Identifier: Apache-2.0
// PeerFetcher: requests for a node whose address is still being looked for.
#include "rendezvous/peer/peer_fetcher.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "tests/rendezvous/fake_connector.h"
#include "tests/rendezvous/recording_control_channel.h"
#include "tests/rendezvous/transfer_context_fixture.h"

namespace ferry {
namespace {

class PeerFetcherTest : public TransferContextTest {
 protected:
  PeerFetcherTest() {
    context_.self.peer = kConsumer;
    context_.manager = &manager_;
    context_.transports = &transports_;
    peers_ = std::make_unique<PeerFetcher>(context_, [this](int32_t node, ResolveCallback done) {
      nodes_.push_back(node);
      resolving_.push_back(std::move(done));
    });
    peers_->set_connector(&connector_);
  }
  ~PeerFetcherTest() override {
    peers_->Close(absl::CancelledError("over"));
    while (connector_.Step()) continue;
  }

  std::shared_ptr<RemoteFetch> Fetch(absl::string_view edge, absl::string_view task = "task:1",
                                     uint64_t incarnation = kProducer.incarnation) {
    const RendezvousKey key = *RendezvousKey::Parse(
        RendezvousKey::Text(absl::StrCat("/job:worker/", task, "/device:CPU:0"), incarnation,
                            "/job:worker/replica:0/task:2/device:CPU:0", edge));
    return peers_->Fetch(kStep, key, {}, [this](const absl::Status& status, const Received&) {
      statuses_.push_back(status);
    });
  }
  void Resolve(absl::StatusOr<Endpoint> endpoint) {
    ResolveCallback done = std::move(resolving_.back());
    resolving_.pop_back();
    std::move(done)(std::move(endpoint));
  }
  static Endpoint Producer() {
    Endpoint producer;
    producer.peer = kProducer;
    return producer;
  }
  // Requests that the client of the producer has.
  size_t Asked() {
    const auto requester = peers_->RequesterOf(kProducer);
    return requester == nullptr ? 0 : requester->InnerTableSizes()["requester.waiting"];
  }

  static std::shared_ptr<RecordingControlChannel> Open(ControlHandler& handler) {
    auto channel = std::make_shared<RecordingControlChannel>(kProducer);
    channel->keeps_pings = false;
    handler.OnOpen(channel);
    RecordingControlChannel producer(kConsumer);
    EXPECT_TRUE(SendHello(producer, {}).ok());
    EXPECT_TRUE(
        handler.OnFrame(static_cast<uint16_t>(PeerMessageType::kHello), producer.bodies[0], {})
            .ok());
    return channel;
  }
  // The edges of the requests in the order in which the producer gets them.
  static std::string RequestedEdges(const RecordingControlChannel& channel) {
    std::string edges;
    for (size_t i = 0; i < channel.types.size(); ++i) {
      if (channel.types[i] != PeerMessageType::kRequest) continue;
      absl::StrAppend(&edges, RendezvousKey::Parse(DecodeRequest(channel.bodies[i])->key)->edge(),
                      " ");
    }
    return edges;
  }
  std::string RequestedEdges() {
    const auto handler = connector_.Take(connector_.attempts.begin()->first);
    const std::string edges = RequestedEdges(*Open(*handler));
    handler->OnClosed(absl::UnavailableError("over"));
    return edges;
  }

  TransferContext context_;
  FakeConnector connector_;
  std::vector<int32_t> nodes_;
  std::vector<ResolveCallback> resolving_;
  std::vector<absl::Status> statuses_;
  std::unique_ptr<PeerFetcher> peers_;
};

TEST_F(PeerFetcherTest, NodeIsResolvedOnce_AndAllRequestsFollowInOrder) {
  std::vector<std::shared_ptr<RemoteFetch>> fetches;
  for (const char* edge : {"a", "b", "c"}) fetches.push_back(Fetch(edge));
  ASSERT_EQ(nodes_, std::vector<int32_t>{1});
  EXPECT_EQ(fetches[0]->Phase(), "looking for the address of node 1");
  Resolve(Producer());
  EXPECT_EQ(Asked(), 3u);
  EXPECT_EQ(fetches[0]->Phase(), "connecting to node 1");
  // The client is there now.
  fetches.push_back(Fetch("d"));
  EXPECT_EQ(nodes_.size(), 1u);
  ASSERT_EQ(connector_.attempts.size(), 1u);
  EXPECT_EQ(RequestedEdges(), "a b c d ");
  EXPECT_EQ(statuses_.size(), 4u);
}

// The requester is known before the requests that wait have been passed on to it. A request that
// overtook them would take the value of an earlier receive of its key.
TEST_F(PeerFetcherTest, RequestWhileTheConnectionIsOpened_FollowsThoseThatWait) {
  std::vector<std::shared_ptr<RemoteFetch>> fetches;
  for (const char* edge : {"a", "b"}) fetches.push_back(Fetch(edge));
  connector_.during_connect = [&] {
    ASSERT_NE(peers_->RequesterOf(kProducer), nullptr);
    fetches.push_back(Fetch("c"));
  };
  Resolve(Producer());
  ASSERT_EQ(fetches.size(), 3u);
  fetches.push_back(Fetch("d"));
  EXPECT_EQ(nodes_.size(), 1u);
  EXPECT_EQ(RequestedEdges(), "a b c d ");
}

TEST_F(PeerFetcherTest, PeerConnectsDuringTheResolution_RequestFollowsThoseThatWait) {
  std::vector<std::shared_ptr<RemoteFetch>> fetches;
  fetches.push_back(Fetch("a"));
  const std::shared_ptr<ControlHandler> handler = peers_->Serve(kProducer);
  const auto channel = Open(*handler);
  ASSERT_NE(peers_->RequesterOf(kProducer), nullptr);
  fetches.push_back(Fetch("b"));
  Resolve(Producer());
  fetches.push_back(Fetch("c"));
  EXPECT_EQ(RequestedEdges(*channel), "a b c ");
  handler->OnClosed(absl::UnavailableError("over"));
  EXPECT_EQ(statuses_.size(), 3u);
}

// One whose resolution fails is not joined by a request that its failure has caused.
TEST_F(PeerFetcherTest, RequestFromTheCallbackOfAFailedOne_ResolvesAgain) {
  const RendezvousKey key = *RendezvousKey::Parse(
      RendezvousKey::Text("/job:worker/task:1/device:CPU:0", kProducer.incarnation,
                          "/job:worker/replica:0/task:2/device:CPU:0", "a"));
  std::shared_ptr<RemoteFetch> again;
  const auto first = peers_->Fetch(
      kStep, key, {}, [&](const absl::Status&, const Received&) { again = Fetch("b"); });
  Resolve(absl::UnavailableError("node 1 has not joined"));
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(nodes_, (std::vector<int32_t>{1, 1}));
  Resolve(Producer());
  EXPECT_EQ(RequestedEdges(), "b ");
}

// It would be asked for a value that no receive needs, and for which another is waiting.
TEST_F(PeerFetcherTest, CancelledBeforeTheNodeIsFound_IsNeverRequested) {
  const std::shared_ptr<RemoteFetch> first = Fetch("a");
  const std::shared_ptr<RemoteFetch> second = Fetch("b");
  first->Cancel();
  ASSERT_EQ(statuses_.size(), 1u);
  EXPECT_EQ(statuses_[0].code(), absl::StatusCode::kCancelled);
  first->Cancel();
  Resolve(Producer());
  EXPECT_EQ(Asked(), 1u);
  EXPECT_EQ(statuses_.size(), 1u);
  // And one that has been passed on.
  second->Cancel();
  second->Cancel();
  ASSERT_EQ(statuses_.size(), 2u);
  EXPECT_EQ(statuses_[1].code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Asked(), 0u);
}

TEST_F(PeerFetcherTest, NodeIsNotFound_AllRequestsFailAndTheNextResolvesAgain) {
  const auto first = Fetch("a");
  const auto second = Fetch("b");
  const absl::Status why = absl::UnavailableError("node 1 has not joined");
  Resolve(why);
  EXPECT_EQ(statuses_, (std::vector<absl::Status>{why, why}));
  first->Cancel();
  EXPECT_EQ(statuses_.size(), 2u);
  const auto third = Fetch("c");
  EXPECT_EQ(nodes_, (std::vector<int32_t>{1, 1}));
  Resolve(Producer());
  EXPECT_EQ(Asked(), 1u);
}

// Each node is resolved separately; a slow one delays no other.
TEST_F(PeerFetcherTest, AnotherNode_IsResolvedMeanwhile) {
  const auto far = Fetch("a", "task:9");
  const auto near = Fetch("b");
  EXPECT_EQ(nodes_, (std::vector<int32_t>{9, 1}));
  Resolve(Producer());
  EXPECT_EQ(Asked(), 1u);
  EXPECT_EQ(far->Phase(), "looking for the address of node 9");
  Resolve(absl::UnavailableError("node 9 has not joined"));
  EXPECT_EQ(statuses_.size(), 1u);
}

// A client of the previous process would be asked for a value that only the new one has.
TEST_F(PeerFetcherTest, PeerWasRestarted_ItsNewIncarnationIsResolved) {
  const auto former = Fetch("a");
  Resolve(Producer());
  ASSERT_EQ(Asked(), 1u);
  const auto next = Fetch("a", "task:1", kProducer.incarnation + 1);
  EXPECT_EQ(nodes_, (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(Asked(), 1u);
  Endpoint restarted = Producer();
  ++restarted.peer.incarnation;
  Resolve(restarted);
  EXPECT_EQ(Asked(), 1u);
  const auto requester = peers_->RequesterOf(restarted.peer);
  ASSERT_NE(requester, nullptr);
  EXPECT_EQ(requester->InnerTableSizes()["requester.waiting"], 1u);
  // The former one is given up, and the new one is not.
  peers_->Forget(kProducer.node_id, absl::UnavailableError("node 1 was restarted"),
                 restarted.peer.incarnation);
  while (connector_.Step()) continue;
  EXPECT_EQ(statuses_.size(), 1u);
  EXPECT_EQ(peers_->RequesterOf(kProducer), nullptr);
  EXPECT_EQ(peers_->RequesterOf(restarted.peer), requester);
}

TEST_F(PeerFetcherTest, TasksThatAreNoNodes_AreNotResolved) {
  EXPECT_EQ(Fetch("a", "replica:1/task:1"), nullptr);
  ASSERT_EQ(statuses_.size(), 1u);
  EXPECT_EQ(statuses_[0].code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(nodes_.empty());
  EXPECT_NE(Fetch("a", "replica:0/task:2147483647"), nullptr);
  EXPECT_EQ(nodes_, std::vector<int32_t>{INT32_MAX});
  Resolve(absl::UnavailableError("there is none"));
}

TEST_F(PeerFetcherTest, Closed_LaterFetchesEndAtOnce) {
  peers_->Close(absl::CancelledError("this process is leaving"));
  EXPECT_EQ(Fetch("a"), nullptr);
  ASSERT_EQ(statuses_.size(), 1u);
  EXPECT_EQ(statuses_[0], absl::CancelledError("this process is leaving"));
  EXPECT_TRUE(nodes_.empty());
}

}  // namespace
}  // namespace ferry

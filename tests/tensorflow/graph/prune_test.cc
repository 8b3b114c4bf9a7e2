// SPDX-License-Identifier: Apache-2.0
// Pruning a graph to the nodes that a step needs, and wrong names. Texts that are compared in full
// are those of a server of TensorFlow 2.15.
#include "tensorflow/graph/prune.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rendezvous/key.h"
#include "tensorflow/graph/transfer.h"
#include "tests/tensorflow/graph/graph_fixture.h"

namespace ferry::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

constexpr auto kNotFound = absl::StatusCode::kNotFound;

class PruneTest : public ::testing::Test {
 protected:
  // a -> b -> c; n after a; p -> q; k after p.
  PruneTest() {
    writer_.Const("a", kTask1);
    writer_.AddFloat("b", "Identity", {"a"}, kTask1);
    writer_.AddFloat("c", "Identity", {"b"}, kTask1);
    writer_.Add("n", "NoOp", {"^a"});
    writer_.Placeholder("p");
    writer_.AddFloat("q", "Identity", {"p"});
    writer_.Add("k", "NoOp", {"^p", "^b"});
  }

  absl::StatusOr<StepGraph> Run(const StepRequest& request) {
    const Graph graph = *writer_.Create();
    return Prune(graph, *Place(graph, devices_, {}), devices_, request);
  }

  std::set<std::string> NodesOf(const StepRequest& request) {
    const absl::StatusOr<StepGraph> step = Run(request);
    EXPECT_EQ(step.status(), absl::OkStatus());
    std::set<std::string> names;
    if (!step.ok()) return names;
    for (int i = 0; i < step->graph.node_count(); ++i) names.insert(step->graph.node(i).name());
    return names;
  }

  // The names of the inputs of `node`.
  static std::vector<std::string> InputsOf(const StepGraph& step, const std::string& node) {
    std::vector<std::string> names;
    const int index = step.graph.Find(node);
    for (const Endpoint& input : step.graph.inputs(index)) {
      names.push_back(step.graph.node(input.node).name());
    }
    for (const int input : step.graph.control_inputs(index)) {
      names.push_back("^" + step.graph.node(input).name());
    }
    return names;
  }

  GraphWriter writer_;
  DeviceSet devices_ = Devices(2);
};

TEST_F(PruneTest, KeepsNodesThatFetchesNeed) {
  EXPECT_THAT(NodesOf({{}, {"b:0"}, {}}), UnorderedElementsAre("a", "b", "_send_b_0"));
  EXPECT_THAT(NodesOf({{}, {"b"}, {}}), UnorderedElementsAre("a", "b", "_send_b_0"));
}

TEST_F(PruneTest, KeepsNodesThatTargetsNeed) {
  EXPECT_THAT(NodesOf({{}, {}, {"n", "n"}}), UnorderedElementsAre("a", "n"));
  // Clients name tensors here too.
  EXPECT_THAT(NodesOf({{}, {}, {"c:0"}}), UnorderedElementsAre("a", "b", "c"));
}

TEST_F(PruneTest, FeedsReplaceComputedTensors) {
  const StepGraph step = *Run({{"b:0"}, {"c:0"}, {}});
  EXPECT_THAT(NodesOf({{"b:0"}, {"c:0"}, {}}), UnorderedElementsAre("_recv_b_0", "c", "_send_c_0"));
  EXPECT_THAT(InputsOf(step, "c"), ElementsAre("_recv_b_0"));
  EXPECT_THAT(InputsOf(step, "_send_c_0"), ElementsAre("c"));
}

// As in TensorFlow: a control dependency on a fed node waits for the node; for a placeholder, which
// cannot run, it waits for the feed.
TEST_F(PruneTest, ControlDependencyOnAPlaceholderWaitsForItsFeed) {
  const StepGraph step = *Run({{"p:0", "b:0"}, {}, {"k"}});
  EXPECT_THAT(InputsOf(step, "k"), UnorderedElementsAre("^_recv_p_0", "^b"));
  EXPECT_EQ(step.graph.Find("p"), -1);
  EXPECT_EQ(step.feeds[0].node, step.graph.Find("_recv_p_0"));
  EXPECT_EQ(step.feeds[1].node, -1);
}

TEST_F(PruneTest, AFedPlaceholderMayBeATarget) {
  EXPECT_THAT(NodesOf({{"p"}, {}, {"p"}}), UnorderedElementsAre("_recv_p_0"));
}

TEST_F(PruneTest, FeedsAndFetchesAreAtTheClientsDevice) {
  const StepGraph step = *Run({{"p"}, {"q:0", "c"}, {}});
  ASSERT_EQ(step.feeds.size(), 1u);
  EXPECT_EQ(step.feeds[0].name, "p");
  EXPECT_EQ(step.feeds[0].type, tensorflow::DT_FLOAT);
  const std::string client = "/job:worker/replica:0/task:0/device:CPU:0";
  EXPECT_EQ(step.feeds[0].key, RendezvousKey::Text(client, 0, client, "p:0"));
  ASSERT_EQ(step.fetches.size(), 2u);
  EXPECT_EQ(step.fetches[1].name, "c");
  EXPECT_EQ(step.fetches[1].key, RendezvousKey::Text(client, 0, client, "c:0"));
  const int recv = step.graph.Find("_recv_p_0");
  EXPECT_EQ(step.placement[static_cast<size_t>(recv)], devices_.client_device());
  const NodeDef& def = step.graph.node(recv).def;
  EXPECT_EQ(def.op(), "_Recv");
  EXPECT_TRUE(def.attr().at("client_terminated").b());
  EXPECT_EQ(*KeyOf(def), step.feeds[0].key);
  const NodeDef& send = step.graph.node(step.graph.Find("_send_c_0")).def;
  EXPECT_EQ(send.op(), "_Send");
  EXPECT_EQ(*KeyOf(send), step.fetches[1].key);
}

TEST_F(PruneTest, UnusedFeedsAreOmitted) {
  const StepGraph step = *Run({{"p:0"}, {"b:0"}, {}});
  EXPECT_EQ(step.feeds[0].node, -1);
  EXPECT_EQ(step.graph.Find("_recv_p_0"), -1);
}

// A server of TensorFlow 2.15 does not answer.
TEST_F(PruneTest, ATensorMayBeFetchedTwice) {
  const StepGraph step = *Run({{}, {"a:0", "a", "a:00"}, {}});
  ASSERT_EQ(step.fetches.size(), 3u);
  EXPECT_EQ(step.fetches[0].key, step.fetches[1].key);
  EXPECT_EQ(step.fetches[0].key, step.fetches[2].key);
  EXPECT_EQ(step.fetches[2].name, "a:00");
  for (const StepTensor& fetch : step.fetches) {
    EXPECT_EQ(fetch.node, step.graph.Find("_send_a_0"));
  }
  EXPECT_EQ(step.graph.node_count(), 2);
}

TEST_F(PruneTest, RefusesUnknownNames) {
  EXPECT_THAT(Run({{}, {"zz:0"}, {}}), Fails(kNotFound, "FetchOutputs node zz:0: not found"));
  EXPECT_THAT(Run({{}, {"a:x"}, {}}), Fails(kNotFound, "FetchOutputs node a:x: not found"));
  EXPECT_THAT(Run({{"zz:0"}, {"a:0"}, {}}),
              Fails(kNotFound, "FeedInputs: unable to find feed output zz:0"));
  EXPECT_THAT(Run({{}, {}, {"zz", "a", "yy"}}),
              Fails(kNotFound, "PruneForTargets: Some target nodes not found: zz yy "));
}

TEST_F(PruneTest, RefusesMissingOutputs) {
  EXPECT_THAT(Run({{}, {"a:1"}, {}}),
              Fails(kInvalid, "FetchOutputs a:1: output index too large, must be < 1"));
  EXPECT_THAT(Run({{"a:3"}, {"b"}, {}}),
              Fails(kInvalid, "FeedInputs: a:3 should have output index < 1"));
  EXPECT_THAT(Run({{}, {"a:99999999999999999999"}, {}}), Fails(kInvalid, ::testing::_));
  EXPECT_THAT(Run({{}, {"n:0"}, {}}),
              Fails(kInvalid,
                    "Tried to fetch data for 'n:0', which produces no output.  To run to a node "
                    "but not fetch any data, pass 'n:0' as an argument to the 'target_node_names' "
                    "argument of the Session::Run API."));
  EXPECT_THAT(Run({{}, {"^a"}, {}}), Fails(kInvalid, ::testing::HasSubstr("produces no output")));
}

TEST_F(PruneTest, RefusesContradictorySteps) {
  EXPECT_THAT(Run({}), Fails(kInvalid, "Must specify at least one target to fetch or execute."));
  EXPECT_THAT(Run({{"a:0", "a"}, {"b:0"}, {}}),
              Fails(kInvalid, "Endpoint \"a\" fed more than once."));
  EXPECT_THAT(Run({{"a:0"}, {"a:0"}, {}}), Fails(kInvalid, "a:0 is both fed and fetched."));
}

}  // namespace
}  // namespace ferry::graph

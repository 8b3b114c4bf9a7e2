// SPDX-License-Identifier: Apache-2.0
// Graphs as clients send them, and mistakes of every kind. Texts that are compared in full are
// those of a server of TensorFlow 2.15.
#include "tensorflow/graph/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tensorflow/graph/op_registry.h"
#include "tests/tensorflow/graph/graph_fixture.h"

namespace ferry::graph {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(Graph, IsParsedWithItsEdges) {
  GraphWriter writer;
  writer.AddFloat("sum", "AddV2", {"a", "b:0", "^n", "^n", "^a"});
  writer.Const("a");
  writer.Const("b");
  writer.Add("n", "NoOp");
  writer.def().mutable_versions()->set_producer(1395);
  const absl::StatusOr<Graph> graph = writer.Create();
  ASSERT_EQ(graph.status(), absl::OkStatus());
  EXPECT_EQ(graph->node_count(), 4);
  EXPECT_EQ(graph->Find("b"), 2);
  EXPECT_EQ(graph->Find("c"), -1);
  EXPECT_THAT(graph->inputs(0), ElementsAre(Endpoint{1, 0}, Endpoint{2, 0}));
  EXPECT_THAT(graph->control_inputs(0), ElementsAre(1, 3));
  EXPECT_THAT(graph->inputs(1), IsEmpty());
  EXPECT_THAT(graph->topological_order(), ElementsAre(1, 2, 3, 0));
  EXPECT_EQ(graph->versions().producer(), 1395);
}

TEST(Graph, FillsInDefaults) {
  GraphWriter writer;
  writer.Placeholder("p");
  const Graph graph = *writer.Create();
  EXPECT_TRUE(graph.node(0).def.attr().at("shape").shape().unknown_rank());
}

TEST(Graph, MayBeEmpty) {
  const Graph graph = *GraphWriter().Create();
  EXPECT_EQ(graph.node_count(), 0);
  EXPECT_EQ(graph.Find(""), -1);
}

absl::StatusOr<Graph> WithName(const std::string& name) {
  GraphWriter writer;
  writer.Add(name, "NoOp");
  return writer.Create();
}

TEST(Graph, RefusesIllegalNames) {
  EXPECT_THAT(WithName("a:b"), Fails(kInvalid, "Illegal op name 'a:b'\n\t [[{{node a:b}}]]"));
  EXPECT_THAT(WithName("a:0"), Fails(kInvalid, StartsWith("Illegal op name 'a:0'")));
  EXPECT_THAT(WithName("_a"), Fails(kInvalid, StartsWith("Illegal op name '_a'")));
  EXPECT_THAT(WithName(""), Fails(kInvalid, StartsWith("Illegal op name ''")));
  EXPECT_THAT(WithName("\xff\x01"), Fails(kInvalid, StartsWith("Illegal op name '\\377\\001'")));
  EXPECT_EQ(WithName("a>b").status(), absl::OkStatus());
}

// A graph that was pruned and cut reaches a worker with the names that were added.
TEST(Graph, AcceptsNamesOfAddedNodesWhereTheyAreExpected) {
  GraphWriter writer;
  writer.Const("_recv_x_0");
  writer.AddFloat("y", "Identity", {"_recv_x_0:0"});
  writer.Add("_", "NoOp");
  GraphLimits limits;
  limits.allow_internal_names = true;
  EXPECT_THAT(Graph::Create(writer.def(), "the test", limits),
              Fails(kInvalid, StartsWith("Illegal op name '_'")));
  writer.def().mutable_node()->RemoveLast();
  EXPECT_EQ(Graph::Create(writer.def(), "the test", limits).status(), absl::OkStatus());
  writer.def().mutable_node(1)->set_input(0, "__recv");
  EXPECT_THAT(Graph::Create(writer.def(), "the test", limits),
              Fails(kInvalid, StartsWith("Illegal op input name '__recv'")));
}

absl::StatusOr<Graph> WithInput(const std::string& input) {
  GraphWriter writer;
  writer.Const("a");
  writer.AddFloat("b", "Identity", {input});
  return writer.Create();
}

TEST(Graph, RefusesIllegalInputs) {
  for (const char* input : {"a:first", "_a", "_a:0", "a:01", "^_a", "^a:0", ""}) {
    EXPECT_THAT(WithInput(input), Fails(kInvalid, absl::StrCat("Illegal op input name '", input,
                                                               "'\n\t [[{{node b}}]]")));
  }
}

TEST(Graph, RefusesMissingInputs) {
  EXPECT_THAT(WithInput("q"), Fails(kInvalid, "Node 'b': Unknown input node 'q'"));
  EXPECT_THAT(WithInput("^q"), Fails(kInvalid, "Node 'b': Unknown input node '^q'"));
  EXPECT_THAT(WithInput("a:1"), Fails(kInvalid,
                                      "Node 'b': Connecting to invalid output 1 of "
                                      "source node a which has 1 outputs."));
  EXPECT_THAT(WithInput("a:99999999999"), Fails(kInvalid, HasSubstr("invalid output")));
}

TEST(Graph, ControlInputsComeLast) {
  GraphWriter writer;
  writer.Const("a");
  writer.AddFloat("b", "Identity", {"^a", "a"});
  EXPECT_THAT(writer.Create(), Fails(kInvalid,
                                     "All control inputs must follow all data inputs\n\t "
                                     "[[{{node b}}]]"));
}

TEST(Graph, CountsInputs) {
  GraphWriter more;
  more.Const("a");
  more.AddFloat("b", "Identity", {"a", "a"});
  EXPECT_THAT(more.Create(),
              Fails(kInvalid, "Input 1 of node b does not exist. Node only has 1 inputs."));
  // A server of TensorFlow 2.15 ends here.
  GraphWriter fewer;
  fewer.AddFloat("b", "Identity");
  EXPECT_THAT(fewer.Create(), Fails(kInvalid, HasSubstr("expected 1 inputs, 0 inputs specified")));
}

TEST(Graph, ComparesTypes) {
  GraphWriter writer;
  writer.Const("a");
  (*writer.Add("b", "Identity", {"a"}).mutable_attr())["T"].set_type(tensorflow::DT_INT32);
  EXPECT_THAT(writer.Create(), Fails(kInvalid,
                                     "Input 0 of node b was passed float from a:0 "
                                     "incompatible with expected int32."));
}

TEST(Graph, NamesAreUnique) {
  GraphWriter writer;
  writer.Const("a");
  writer.Const("a");
  EXPECT_THAT(writer.Create(), Fails(kInvalid, "Node 'a' is not unique"));
}

TEST(Graph, RefusesUnknownOps) {
  GraphWriter writer;
  writer.Add("x", "FooBar");
  EXPECT_THAT(writer.Create(),
              Fails(absl::StatusCode::kNotFound,
                    AllOf(StartsWith("Op type not registered 'FooBar' in binary running on the "
                                     "test."),
                          HasSubstr("node 'x'"))));
}

TEST(Graph, FindsCycles) {
  GraphWriter data;
  data.AddFloat("x", "Identity", {"y"});
  data.AddFloat("y", "Identity", {"x"});
  data.AddFloat("downstream", "Identity", {"y"});
  EXPECT_THAT(data.Create(),
              Fails(kInvalid, AllOf(StartsWith("Graph is invalid, contains a cycle with 2 nodes, "
                                               "including: "),
                                    HasSubstr("x"), ::testing::Not(HasSubstr("down")))));
  GraphWriter self;
  self.AddFloat("x", "Identity", {"x"});
  EXPECT_THAT(self.Create(), Fails(kInvalid, HasSubstr("a cycle with 1 nodes, including: x")));
  GraphWriter control;
  control.Const("a");
  control.Add("n", "NoOp", {"^a", "^m"});
  control.Add("m", "NoOp", {"^n"});
  EXPECT_THAT(control.Create(), Fails(kInvalid, HasSubstr("a cycle with 2 nodes")));
}

absl::StatusOr<Graph> WithAttr(const std::string& op, const std::string& attr,
                               const tensorflow::AttrValue* value) {
  GraphWriter writer;
  NodeDef& node = writer.AddFloat("b", op);
  if (value == nullptr) {
    node.mutable_attr()->erase(attr);
  } else {
    (*node.mutable_attr())[attr] = *value;
  }
  return writer.Create();
}

TEST(Graph, ChecksAttributes) {
  EXPECT_THAT(
      WithAttr("Identity", "T", nullptr),
      Fails(absl::StatusCode::kNotFound, "No attr named 'T' in NodeDef:\n\t [[{{node b}}]]"));
  tensorflow::AttrValue value;
  value.set_i(1);
  EXPECT_THAT(WithAttr("Identity", "T", &value),
              Fails(kInvalid, StartsWith("AttrValue had value with type 'int' when 'type' "
                                         "expected\n\t for attr 'T'")));
  value.set_type(tensorflow::DT_STRING);
  EXPECT_THAT(
      WithAttr("Sqrt", "T", &value),
      Fails(kInvalid, StartsWith("Value for attr 'T' of string is not in the list of allowed "
                                 "values: bfloat16, half, float, double, complex64, "
                                 "complex128")));
  value.set_type(static_cast<tensorflow::DataType>(999));
  EXPECT_THAT(WithAttr("Identity", "T", &value), Fails(kInvalid, HasSubstr("enum: 999")));
  value.set_type(tensorflow::DT_FLOAT_REF);
  EXPECT_THAT(WithAttr("Identity", "T", &value), Fails(kInvalid, HasSubstr("float_ref")));
  value.set_i(0);
  EXPECT_THAT(WithAttr("AddN", "N", &value),
              Fails(kInvalid, StartsWith("Value for attr 'N' of 0 must be at least minimum 1")));
  value.mutable_list();
  EXPECT_THAT(WithAttr("IdentityN", "T", &value),
              Fails(kInvalid, StartsWith("Length for attr 'T' of 0 must be at least minimum 1")));
  value.mutable_list()->add_i(3);
  EXPECT_THAT(WithAttr("IdentityN", "T", &value), Fails(kInvalid, HasSubstr("list of other")));
  value.mutable_list()->Clear();
  value.mutable_list()->add_type(tensorflow::DT_INVALID);
  EXPECT_THAT(WithAttr("IdentityN", "T", &value), Fails(kInvalid, HasSubstr("enum: 0")));
}

TEST(Graph, ChecksStringsWithAListOfAllowedValues) {
  GraphWriter writer;
  writer.Const("a");
  NodeDef& node = writer.AddFloat("r", "CollectiveReduce", {"a"});
  for (const char* attr : {"group_size", "group_key", "instance_key"}) {
    (*node.mutable_attr())[attr].set_i(1);
  }
  (*node.mutable_attr())["merge_op"].set_s("Foo");
  (*node.mutable_attr())["final_op"].set_s("Id");
  (*node.mutable_attr())["subdiv_offsets"].mutable_list();
  EXPECT_THAT(
      writer.Create(),
      Fails(kInvalid, HasSubstr("'merge_op' of \"Foo\" is not in the list of allowed values: "
                                "\"Min\", \"Max\", \"Mul\", \"Add\"")));
}

// Newer clients send attributes that are unknown here, and all clients those that begin with _.
TEST(Graph, ToleratesUnknownAttributes) {
  GraphWriter writer;
  NodeDef& node = writer.Const("a");
  (*node.mutable_attr())["_output_shapes"].mutable_list();
  (*node.mutable_attr())["newer"].set_i(1);
  EXPECT_EQ(writer.Create().status(), absl::OkStatus());
}

TEST(Graph, RefusesLoopsAndFunctions) {
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  for (const char* op : {"Enter", "Exit", "NextIteration", "Switch", "Merge", "While", "If"}) {
    GraphWriter writer;
    writer.Const("a");
    writer.AddFloat("b", op, {"a"});
    EXPECT_THAT(writer.Create(),
                Fails(kUnimplemented, AllOf(HasSubstr(op), HasSubstr("node 'b'"))));
  }
  GraphWriter call;
  call.AddFloat("c", "PartitionedCall");
  EXPECT_THAT(call.Create(), Fails(kUnimplemented, HasSubstr("'PartitionedCall' of node 'c'")));
  GraphWriter named;
  named.def().mutable_library()->add_function()->mutable_signature()->set_name("my_function");
  // Clients send their whole library, whether it is used or not.
  EXPECT_EQ(named.Create().status(), absl::OkStatus());
  named.Add("d", "my_function");
  EXPECT_THAT(named.Create(), Fails(kUnimplemented, HasSubstr("'my_function' of node 'd'")));
}

TEST(Graph, RefusesGraphsForOthers) {
  GraphWriter newer;
  newer.def().mutable_versions()->set_min_consumer(5000);
  EXPECT_THAT(newer.Create(),
              Fails(kInvalid, HasSubstr("GraphDef min consumer version 5000 above")));
  GraphWriter bad;
  bad.def().mutable_versions()->add_bad_consumers(1645);
  EXPECT_THAT(bad.Create(), Fails(kInvalid, HasSubstr("disallows consumer version 1645")));
  GraphWriter older;
  older.def().mutable_versions()->set_producer(-1);
  EXPECT_THAT(older.Create(),
              Fails(kInvalid, HasSubstr("GraphDef producer version -1 below min producer 0")));
}

TEST(Graph, HasLimits) {
  GraphWriter writer;
  writer.Const("a");
  writer.Add("n", "NoOp", {"^a"});
  GraphLimits limits;
  limits.max_nodes = 1;
  EXPECT_THAT(Graph::Create(writer.def(), "here", limits),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("2 nodes")));
  limits.max_nodes = 2;
  limits.max_inputs = 0;
  EXPECT_THAT(Graph::Create(writer.def(), "here", limits),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("inputs")));
}

// The parts of a key are divided by semicolons.
TEST(Graph, RefusesTransfersWithKeysOfTheirOwn) {
  GraphWriter writer;
  NodeDef& node = writer.Add("r", "_Recv");
  auto& attrs = *node.mutable_attr();
  attrs["tensor_type"].set_type(tensorflow::DT_FLOAT);
  attrs["tensor_name"].set_s("x;y");
  attrs["send_device"].set_s("/job:a/task:0/cpu:0");
  attrs["recv_device"].set_s("/job:a/task:0/cpu:0");
  attrs["send_device_incarnation"].set_i(1);
  EXPECT_THAT(writer.Create(), Fails(kInvalid, HasSubstr("'tensor_name' has a ';'")));
  attrs["tensor_name"].set_s("x");
  EXPECT_EQ(writer.Create().status(), absl::OkStatus());
}

// A recursion would not come back from there.
TEST(Graph, MayBeDeep) {
  GraphWriter writer;
  writer.Const("n0");
  constexpr int kDepth = 200000;
  for (int i = 1; i < kDepth; ++i) {
    writer.AddFloat(absl::StrCat("n", i), "Identity", {absl::StrCat("n", i - 1)});
  }
  EXPECT_EQ(writer.Create().status(), absl::OkStatus());
  *writer.def().mutable_node(1)->mutable_input(0) = absl::StrCat("n", kDepth - 1);
  EXPECT_THAT(writer.Create(), Fails(kInvalid, HasSubstr("a cycle with 199999 nodes")));
}

TEST(GraphExtension, AddsNodesWithInputsFromTheExistingOnes) {
  GraphWriter first;
  first.Const("a");
  const Graph graph = *first.Create();
  GraphWriter second;
  second.AddFloat("c", "Identity", {"b"});
  second.AddFloat("b", "Identity", {"a"});
  const absl::StatusOr<Graph> extended = graph.Extended(second.def());
  ASSERT_EQ(extended.status(), absl::OkStatus());
  EXPECT_EQ(extended->node_count(), 3);
  EXPECT_THAT(extended->inputs(2), ElementsAre(Endpoint{0, 0}));
  EXPECT_THAT(extended->topological_order(), ElementsAre(0, 2, 1));
  // A step that runs on the old graph is not affected.
  EXPECT_EQ(graph.node_count(), 1);
  EXPECT_EQ(graph.Find("b"), -1);
  EXPECT_EQ(&graph.node(0), &extended->node(0));
}

TEST(GraphExtension, MayNotRedefineANode) {
  GraphWriter writer;
  writer.Const("b");
  const Graph graph = *writer.Create();
  EXPECT_THAT(graph.Extended(writer.def()),
              Fails(kInvalid,
                    "GraphDef argument to Extend includes node 'b', which was created by a "
                    "previous call to Create or Extend in this session."));
}

TEST(GraphExtension, IsCheckedLikeAWholeGraph) {
  GraphWriter writer;
  writer.Const("a");
  const Graph graph = *writer.Create();
  GraphWriter bad;
  bad.AddFloat("x", "Identity", {"nobody"});
  EXPECT_THAT(graph.Extended(bad.def()), Fails(kInvalid, HasSubstr("Unknown input node 'nobody'")));
  GraphWriter cycle;
  cycle.AddFloat("x", "Identity", {"y"});
  cycle.AddFloat("y", "Identity", {"x"});
  EXPECT_THAT(graph.Extended(cycle.def()), Fails(kInvalid, HasSubstr("a cycle with 2 nodes")));
  GraphWriter illegal;
  illegal.Add("_x", "NoOp");
  EXPECT_THAT(graph.Extended(illegal.def()), Fails(kInvalid, HasSubstr("Illegal op name")));
}

}  // namespace
}  // namespace ferry::graph

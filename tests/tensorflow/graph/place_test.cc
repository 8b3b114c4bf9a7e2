// SPDX-License-Identifier: Apache-2.0
// Placement of nodes, compared with a server of TensorFlow 2.15 for the same graphs.
#include "tensorflow/graph/place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tensorflow/graph/graph_fixture.h"

namespace ferry::graph {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::StatusOr<std::vector<int>> TryPlace(const GraphWriter& writer, const DeviceSet& devices,
                                          bool is_soft = false) {
  const absl::StatusOr<Graph> graph = writer.Create();
  EXPECT_EQ(graph.status(), absl::OkStatus());
  if (!graph.ok()) return graph.status();
  PlaceOptions options;
  options.allow_soft_placement = is_soft;
  return Place(*graph, devices, options);
}

GraphWriter OneConst(const std::string& device) {
  GraphWriter writer;
  writer.Const("a", device);
  return writer;
}

TEST(Place, PutsNodesWithoutADeviceAtTheClient) {
  EXPECT_EQ(PlaceOfNode(OneConst(""), Devices(3), "a"), "task:0/device:CPU:0");
}

TEST(Place, MatchesPartialNames) {
  const DeviceSet devices = Devices(2);
  for (const char* spec :
       {"/task:1", "/job:worker/task:1", "/job:worker/task:1/device:CPU:0",
        "/job:worker/replica:*/task:1/device:*:*", "/job:worker/task:01/cpu:0"}) {
    EXPECT_EQ(PlaceOfNode(OneConst(spec), devices, "a"), "task:1/device:CPU:0") << spec;
  }
  for (const char* spec : {"/cpu:0", "/device:CPU:*", "/job:worker", "/job:*", "/replica:0", "/"}) {
    EXPECT_EQ(PlaceOfNode(OneConst(spec), devices, "a"), "task:0/device:CPU:0") << spec;
  }
}

TEST(Place, PrefersAGpuWhereThereIsAKernel) {
  const DeviceSet devices = Devices(2, 2);
  EXPECT_EQ(PlaceOfNode(OneConst("/job:worker/task:1"), devices, "a"), "task:1/device:GPU:0");
  GraphWriter writer;
  writer.Const("a", kTask1);
  writer.AddFloat("m", "MatMul", {"a", "a"}, kTask1);
  EXPECT_EQ(PlaceOfNode(writer, devices, "m"), "task:1/device:CPU:0");
}

// GPUs of a worker that has no kernels for them.
TEST(Place, LastDevicesAreUsedOnlyByName) {
  const std::string task = "/job:worker/replica:0/task:0/device:";
  const std::vector<std::pair<std::string, uint64_t>> names = {{task + "CPU:0", 1},
                                                               {task + "GPU:0", 1}};
  const DeviceSet devices = *DeviceSet::Create(names, task + "CPU:0", {task + "GPU:0"});
  EXPECT_EQ(PlaceOfNode(OneConst(""), devices, "a"), "task:0/device:CPU:0");
  EXPECT_EQ(PlaceOfNode(OneConst("/job:worker/task:0"), devices, "a"), "task:0/device:CPU:0");
  EXPECT_EQ(PlaceOfNode(OneConst("/device:GPU:0"), devices, "a"), "task:0/device:GPU:0");
  EXPECT_EQ(PlaceOfNode(OneConst(""), *DeviceSet::Create(names, task + "CPU:0"), "a"),
            "task:0/device:GPU:0");
}

TEST(Place, ListsTheDevicesIfTheNamedOneDoesNotExist) {
  const DeviceSet devices = Devices(2);
  EXPECT_THAT(
      TryPlace(OneConst("/job:ps/task:0"), devices),
      Fails(
          kInvalid,
          "Cannot assign a device for operation a: {{node a}} was explicitly assigned to "
          "/job:ps/task:0 but available devices are [ /job:worker/replica:0/task:0/device:CPU:0, "
          "/job:worker/replica:0/task:1/device:CPU:0 ]. Make sure the device specification refers "
          "to a valid device.\n\t [[{{node a}}]]"));
  for (const char* spec : {"/job:worker/task:1/device:GPU:0", "/job:worker/task:7/device:CPU:0",
                           "/device:cpu:0", "/job:WORKER/task:1", "/cpu:5"}) {
    EXPECT_THAT(TryPlace(OneConst(spec), devices),
                Fails(kInvalid, HasSubstr(absl::StrCat("explicitly assigned to ", spec))));
  }
}

TEST(Place, RefusesMalformedDevices) {
  EXPECT_THAT(
      TryPlace(OneConst("gpu"), Devices(1)),
      Fails(kInvalid, StartsWith("Malformed device specification 'gpu' in node: {{node a}}")));
  EXPECT_THAT(TryPlace(OneConst("/job:worker/foo"), Devices(1), true),
              Fails(kInvalid, StartsWith("Malformed device specification")));
}

TEST(Place, SoftlyReplacesDevicesOfATaskButNotTasks) {
  const DeviceSet devices = Devices(2);
  EXPECT_EQ(PlaceOfNode(OneConst("/job:worker/task:1/device:GPU:0"), devices, "a", true),
            "task:1/device:CPU:0");
  EXPECT_EQ(PlaceOfNode(OneConst("/job:worker/task:1/device:CPU:5"), devices, "a", true),
            "task:1/device:CPU:0");
  EXPECT_EQ(PlaceOfNode(OneConst("/device:GPU:0"), devices, "a", true), "task:0/device:CPU:0");
  EXPECT_EQ(PlaceOfNode(OneConst("/task:1/cpu:99999999999"), devices, "a", true),
            "task:1/device:CPU:0");
  // 2^32: not cpu:0.
  for (const char* spec : {"/cpu:99999999999", "/cpu:4294967296"}) {
    EXPECT_THAT(TryPlace(OneConst(spec), devices),
                Fails(kInvalid, HasSubstr(absl::StrCat("was explicitly assigned to ", spec,
                                                       " but available devices are"))));
  }
  for (const char* spec :
       {"/job:ps/task:0", "/job:worker/task:7/device:CPU:0", "/job:worker/task:4294967297"}) {
    EXPECT_THAT(TryPlace(OneConst(spec), devices, true),
                Fails(kInvalid, HasSubstr("available devices are")));
  }
}

TEST(Place, RefusesOpsWithoutAKernelOnTheDevice) {
  GraphWriter writer;
  writer.Const("a");
  writer.AddFloat("m", "MatMul", {"a", "a"}, "/device:GPU:0");
  EXPECT_THAT(
      TryPlace(writer, Devices(1, 1)),
      Fails(kInvalid, AllOf(StartsWith("Cannot assign a device for operation m: Could not satisfy "
                                       "explicit device specification '/device:GPU:0' because no "
                                       "supported kernel for GPU devices is available."),
                            HasSubstr("device='CPU'"))));
  EXPECT_EQ(PlaceOfNode(writer, Devices(1, 1), "m", true), "task:0/device:CPU:0");
}

TEST(Place, RefusesTypesWithoutAKernel) {
  GraphWriter writer;
  (*writer.Placeholder("h").mutable_attr())["dtype"].set_type(tensorflow::DT_HALF);
  (*writer.Add("b", "Range", {"h", "h", "h"}).mutable_attr())["Tidx"].set_type(tensorflow::DT_HALF);
  EXPECT_THAT(TryPlace(writer, Devices(1)),
              Fails(kInvalid,
                    AllOf(StartsWith("No OpKernel was registered to support Op 'Range' used by "
                                     "{{node b}} with these attrs: [Tidx=DT_HALF]\nRegistered "
                                     "devices: [CPU]\nRegistered kernels:\n  device='CPU'; Tidx in "
                                     "[DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64]"))));
}

TEST(Place, PutsGeneratorsWhereTheyAreUsed) {
  const DeviceSet devices = Devices(3);
  GraphWriter writer;
  writer.Const("a");
  writer.AddFloat("b", "Identity", {"a"}, kTask1);
  writer.AddFloat("c", "Identity", {"a"}, kTask1);
  EXPECT_EQ(PlaceOfNode(writer, devices, "a"), "task:1/device:CPU:0");
  writer.AddFloat("d", "Identity", {"a"}, "/job:worker/task:2");
  EXPECT_EQ(PlaceOfNode(writer, devices, "a"), "task:0/device:CPU:0");
}

TEST(Place, KeepsGeneratorsOnTheirNamedDevice) {
  GraphWriter writer;
  writer.Const("a", kTask0);
  writer.AddFloat("b", "Identity", {"a"}, kTask1);
  EXPECT_EQ(PlaceOfNode(writer, Devices(2), "a"), "task:0/device:CPU:0");
  EXPECT_EQ(PlaceOfNode(writer, Devices(2), "b"), "task:1/device:CPU:0");
}

TEST(Place, PutsShapeOpsAtTheTensor) {
  GraphWriter writer;
  writer.Const("a", kTask1);
  writer.AddFloat("b", "Identity", {"a"}, kTask1);
  writer.AddFloat("s", "Shape", {"b"});
  EXPECT_EQ(PlaceOfNode(writer, Devices(2), "s"), "task:1/device:CPU:0");
}

TEST(Place, ColocatesClasses) {
  GraphWriter writer;
  writer.Const("a", kTask1);
  SetClass(writer.AddFloat("b", "Identity", {"a"}), {"loc:@a"});
  SetClass(writer.AddFloat("c", "Identity", {"b"}), {"loc:@b"});
  EXPECT_EQ(PlaceOfNode(writer, Devices(2), "c"), "task:1/device:CPU:0");
}

// A class need not be a node's name.
TEST(Place, ColocatesClassesThatNoNodeIsNamedAfter) {
  GraphWriter writer;
  writer.Const("a");
  SetClass(writer.AddFloat("b", "Identity", {"a"}), {"loc:@group", "other"});
  SetClass(writer.AddFloat("c", "Identity", {"a"}, kTask1), {"loc:@group"});
  EXPECT_EQ(PlaceOfNode(writer, Devices(2), "b"), "task:1/device:CPU:0");
  GraphWriter alone;
  alone.Const("a");
  SetClass(alone.AddFloat("b", "Identity", {"a"}), {"loc:@nobody"});
  EXPECT_EQ(PlaceOfNode(alone, Devices(2), "b"), "task:0/device:CPU:0");
}

TEST(Place, ReportsWhyNodesCannotBeColocated) {
  GraphWriter writer;
  writer.Const("a", kTask0);
  SetClass(writer.AddFloat("b", "Identity", {"a"}, kTask1), {"loc:@a"});
  for (const bool is_soft : {false, true}) {
    EXPECT_THAT(
        TryPlace(writer, Devices(2), is_soft),
        Fails(kInvalid,
              "Cannot colocate nodes {{colocation_node b}} and {{colocation_node a}}: Cannot "
              "merge devices with incompatible tasks: '/job:worker/task:1' and "
              "'/job:worker/task:0'\n\t [[{{node b}}]]"));
  }
  GraphWriter types;
  types.Const("a", "/device:CPU:0");
  SetClass(types.AddFloat("b", "Identity", {"a"}, "/device:GPU:0"), {"loc:@a"});
  EXPECT_THAT(
      TryPlace(types, Devices(1, 1)),
      Fails(kInvalid, HasSubstr("incompatible types: '/device:GPU:0' and '/device:CPU:0'")));
  EXPECT_EQ(TryPlace(types, Devices(1, 1), true).status(), absl::OkStatus());
}

// A group is placed where all of it can run.
TEST(Place, PutsAGroupWhereAllOfItHasKernels) {
  GraphWriter writer;
  writer.Const("a", kTask1);
  SetClass(writer.AddFloat("m", "MatMul", {"a", "a"}), {"loc:@a"});
  EXPECT_EQ(PlaceOfNode(writer, Devices(2, 1), "a"), "task:1/device:CPU:0");
}

GraphWriter VariableAnd(const std::string& variable_device, const std::string& user_device) {
  GraphWriter writer;
  writer.Variable("v", variable_device);
  writer.Const("a");
  NodeDef& assign = writer.Add("assign", "AssignVariableOp", {"v", "a"}, user_device);
  (*assign.mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
  return writer;
}

TEST(Place, PutsUsersOfVariablesAtTheVariable) {
  EXPECT_EQ(PlaceOfNode(VariableAnd(kTask1, ""), Devices(2), "assign"), "task:1/device:CPU:0");
  EXPECT_EQ(PlaceOfNode(VariableAnd("", kTask1), Devices(2), "v"), "task:1/device:CPU:0");
  // Whichever device they name.
  EXPECT_EQ(PlaceOfNode(VariableAnd(kTask1, kTask0), Devices(2), "assign"), "task:1/device:CPU:0");
}

// Variables would be lost otherwise.
TEST(Place, LeavesPlacedNodesInPlace) {
  const DeviceSet devices = Devices(2);
  GraphWriter first;
  first.Variable("v");
  const Graph graph = *first.Create();
  const std::vector<int> placed = *Place(graph, devices, {});
  EXPECT_EQ(ShortName(devices, placed[0]), "task:0/device:CPU:0");
  GraphWriter second;
  NodeDef& read = second.Add("r", "ReadVariableOp", {"v"}, kTask1);
  (*read.mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
  const Graph extended = *graph.Extended(second.def());
  const std::vector<int> both = *Place(extended, devices, {}, placed);
  EXPECT_EQ(both[0], placed[0]);
  EXPECT_EQ(both[1], placed[0]);
  GraphWriter third;
  SetClass(third.Const("c", kTask1), {"loc:@v"});
  EXPECT_THAT(Place(*graph.Extended(third.def()), devices, {}, placed),
              Fails(kInvalid, HasSubstr("incompatible tasks")));
}

TEST(Place, DoesNotColocateANodeWhereItHasNoKernel) {
  const DeviceSet devices = Devices(1, 1);
  GraphWriter first;
  first.Const("a");
  const Graph graph = *first.Create();
  const std::vector<int> placed = *Place(graph, devices, {});
  EXPECT_EQ(ShortName(devices, placed[0]), "task:0/device:GPU:0");
  GraphWriter second;
  SetClass(second.AddFloat("m", "MatMul", {"a", "a"}), {"loc:@a"});
  EXPECT_THAT(Place(*graph.Extended(second.def()), devices, {}, placed),
              Fails(kInvalid, HasSubstr("no supported kernel")));
}

// A node that only generates follows its consumer, but a colocation constraint is stronger.
TEST(Place, GeneratorInColocationGroup_StaysWithItsGroup) {
  GraphWriter writer;
  writer.Const("a");
  SetClass(writer.AddFloat("b", "Identity", {"c"}), {"loc:@a"});
  writer.Const("c", kTask0);
  writer.AddFloat("d", "Identity", {"a"}, kTask1);
  EXPECT_EQ(PlaceOfNode(writer, Devices(2), "b"), "task:0/device:CPU:0");
  EXPECT_EQ(PlaceOfNode(writer, Devices(2), "a"), "task:0/device:CPU:0");
}

}  // namespace
}  // namespace ferry::graph

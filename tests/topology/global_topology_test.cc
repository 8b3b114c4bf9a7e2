// SPDX-License-Identifier: Apache-2.0
// Global ids, partitions and counts; and paths between nodes.
#include "topology/global_topology.h"

#include "tests/topology/topology_test_util.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kFabricA[] = "0aaaaaaa-0000-0000-0000-000000000000/1";
constexpr char kFabricB[] = "0bbbbbbb-0000-0000-0000-000000000000/1";

// A node with one GPU in `fabric` on the machine `boot_id`.
LocalTopology GpuNode(int32_t id, const std::string& fabric, const std::string& boot_id) {
  LocalTopology node = TestNode(id);
  node.boot_id = boot_id;
  node.devices.push_back(TestGpu(id % 8, absl::StrCat("GPU-", id), fabric));
  return node;
}

GlobalTopology Build(const std::vector<LocalTopology>& nodes) {
  absl::StatusOr<GlobalTopology> global = BuildGlobalTopology(nodes);
  EXPECT_TRUE(global.ok()) << global.status();
  return global.ok() ? *std::move(global) : GlobalTopology();
}

// Ten sorts before nine as text, but not as a number.
TEST(BuildGlobalTopology, NumbersDevicesDenselyInNumericNodeOrder) {
  LocalTopology two_devices = TestNode(9);
  two_devices.devices.push_back(TestGpu(0));
  const GlobalTopology global = Build({TestNode(10), two_devices, TestNode(2)});
  std::vector<std::string> names;
  for (size_t id = 0; id < global.devices().size(); ++id) {
    names.push_back(global.DeviceName(static_cast<int>(id)));
  }
  EXPECT_THAT(names, ElementsAre("node2/host:0", "node9/host:0", "node9/gpu:0", "node10/host:0"));
  EXPECT_EQ(global.GlobalId(1, 1), 2);
  EXPECT_EQ(global.NodeIndex(10), 2);
  EXPECT_EQ(global.NodeIndex(3), std::nullopt);
}

TEST(BuildGlobalTopology, AcceptsAJobWithoutNodes) {
  const GlobalTopology global = Build({});
  EXPECT_TRUE(global.devices().empty());
  EXPECT_EQ(global.counts(), (TopologyCounts{0, 0, 0}));
}

TEST(BuildGlobalTopology, RefusesANodeTwice) {
  EXPECT_THAT(BuildGlobalTopology({TestNode(1), TestNode(1)}),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("node 1 appears twice")));
}

TEST(BuildGlobalTopology, RefusesAnInvalidNode) {
  LocalTopology bad = TestNode(1);
  bad.devices.push_back(TestHost());
  EXPECT_THAT(BuildGlobalTopology({TestNode(0), bad}),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("node 1: device host:0")));
}

// Two pods with the same GPU would corrupt each other's memory silently.
TEST(BuildGlobalTopology, RefusesOneGpuOnTwoNodesAndNamesBoth) {
  LocalTopology again = GpuNode(5, "", "boot-5");
  again.devices[1].uuid = "GPU-2";
  EXPECT_THAT(BuildGlobalTopology({GpuNode(2, "", "boot-2"), again}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        AllOf(HasSubstr("nodes 2 (node-0002) and 5 (node-0005)"),
                              HasSubstr("GPU-2"), HasSubstr("as gpu:2 and gpu:5"))));
}

TEST(Partitions, RefusesIndexesOnSomeNodesOnly) {
  LocalTopology with = TestNode(0);
  with.partition_index = 4;
  EXPECT_THAT(
      BuildGlobalTopology({with, TestNode(1)}),
      FailsWith(absl::StatusCode::kInvalidArgument,
                AllOf(HasSubstr("node 0 names partition 4"), HasSubstr("node 1 names none"))));
}

// The user's partition index is used unchanged.
TEST(Partitions, KeepsExplicitIndexes) {
  LocalTopology a = GpuNode(0, kFabricA, "boot");
  LocalTopology b = GpuNode(1, kFabricA, "boot");
  a.partition_index = 7;
  b.partition_index = 3;
  EXPECT_THAT(Build({a, b}).partitions(), ElementsAre(7, 3));
}

TEST(Partitions, AreFabricsWhenEveryGpuIsInOne) {
  EXPECT_THAT(
      Build({GpuNode(0, kFabricB, "x"), GpuNode(1, kFabricA, "x"), GpuNode(2, kFabricB, "y")})
          .partitions(),
      ElementsAre(0, 1, 0));
}

TEST(Partitions, AreMachinesWhenOneGpuIsInNoFabric) {
  EXPECT_THAT(Build({GpuNode(0, kFabricA, "x"), GpuNode(1, "", "x"), GpuNode(2, kFabricA, "y")})
                  .partitions(),
              ElementsAre(0, 0, 1));
}

TEST(Partitions, AreMachinesWhenAClusterIsZero) {
  const char* const zero = "00000000-0000-0000-0000-000000000000/0";
  EXPECT_THAT(Build({GpuNode(0, zero, "x"), GpuNode(1, zero, "y")}).partitions(),
              ElementsAre(0, 1));
}

TEST(Partitions, AreNumberedByFirstAppearanceInNodeOrder) {
  EXPECT_THAT(
      Build({GpuNode(2, "", "x"), GpuNode(1, "", "y"), GpuNode(0, "", "z"), GpuNode(3, "", "y")})
          .partitions(),
      ElementsAre(0, 1, 2, 1));
}

// A data loader without GPUs, beside a trainer or alone, must not undo the fabrics of the others.
TEST(Partitions, PutHostOnlyNodesWithTheirMachine) {
  LocalTopology beside = TestNode(0);
  beside.boot_id = "x";
  LocalTopology alone = TestNode(2);
  alone.boot_id = "z";
  EXPECT_THAT(
      Build({beside, GpuNode(1, kFabricA, "x"), alone, GpuNode(3, kFabricA, "y")}).partitions(),
      ElementsAre(0, 0, 1, 0));
}

TEST(Partitions, KeepNodesWithoutABootIdApart) {
  LocalTopology a = TestNode(0);
  LocalTopology b = TestNode(1);
  a.boot_id.clear();
  b.boot_id.clear();
  const GlobalTopology global = Build({a, b});
  EXPECT_THAT(global.partitions(), ElementsAre(0, 1));
  EXPECT_FALSE(global.SameMachine(0, 1));
}

TEST(Counts, AreKnownForAnEvenJob) {
  EXPECT_EQ(
      Build({GpuNode(0, "", "x"), GpuNode(1, "", "x"), GpuNode(2, "", "y"), GpuNode(3, "", "y")})
          .counts(),
      (TopologyCounts{2, 2, 1}));
}

TEST(Counts, CountHostsWhereThereAreNoGpus) {
  EXPECT_EQ(Build({TestNode(0), TestNode(1), TestNode(2)}).counts(), (TopologyCounts{3, 1, 1}));
}

TEST(Counts, AreMinusOneWhenHostsOrDevicesAreUneven) {
  EXPECT_EQ(Build({GpuNode(0, "", "x"), GpuNode(1, "", "x"), GpuNode(2, "", "y")}).counts(),
            (TopologyCounts{-1, -1, -1}));
  LocalTopology two_gpus = GpuNode(1, "", "y");
  two_gpus.devices.push_back(TestGpu(7, "GPU-extra"));
  EXPECT_EQ(Build({GpuNode(0, "", "x"), two_gpus}).counts(), (TopologyCounts{-1, -1, -1}));
}

TEST(OneGpuOfEachNode, IsItsFirstOneAndLeavesOutNodesWithoutGpus) {
  LocalTopology two_gpus = GpuNode(0, "", "x");
  two_gpus.devices.push_back(TestGpu(1, "GPU-second"));
  const GlobalTopology global =
      Build({two_gpus, TestNode(1), GpuNode(2, "", "y"), GpuNode(3, "", "y")});
  std::vector<std::string> names;
  for (const int id : global.OneGpuOfEachNode()) names.push_back(global.DeviceName(id));
  EXPECT_THAT(names, ElementsAre("node0/gpu:0", "node2/gpu:2", "node3/gpu:3"));
  EXPECT_TRUE(Build({TestNode(0), TestNode(1)}).OneGpuOfEachNode().empty());
}

TEST(GlobalLinks, WithinANodeAreTheNodesOwn) {
  LocalTopology node = GpuNode(0, "", "x");
  node.devices.push_back(TestGpu(5, "GPU-five"));
  node.SetLink(1, 2, PlainLink(LinkType::kPxb));
  const GlobalTopology global = Build({node});
  EXPECT_EQ(global.LinkBetween(1, 2).type, LinkType::kPxb);
  EXPECT_EQ(global.LinkBetween(2, 1).type, LinkType::kPxb);
  EXPECT_EQ(global.LinkBetween(1, 1).type, LinkType::kLoc);
  EXPECT_EQ(global.LinkBetween(0, 1).type, LinkType::kDis);
}

// Device ids: 0 host, 1 gpu of node 0; 2 host, 3 gpu of node 1.
TEST(GlobalLinks, BetweenNodesOfOneMachineFollowItsNumaNodes) {
  const GlobalTopology near = Build({GpuNode(0, "", "x"), GpuNode(1, "", "x")});
  EXPECT_EQ(near.LinkBetween(0, 2).type, LinkType::kLoc);
  EXPECT_EQ(near.LinkBetween(0, 3).type, LinkType::kPhb);
  EXPECT_EQ(near.LinkBetween(1, 3).type, LinkType::kNode);
  const GlobalTopology far = Build({GpuNode(0, "", "x"), GpuNode(4, "", "x")});
  EXPECT_EQ(far.LinkBetween(1, 3).type, LinkType::kSys);
}

// Each process computes on one GPU but sees all of the machine's: then it knows the path.
TEST(GlobalLinks, BetweenNodesOfOneMachineUseLinksThatEitherNodeSees) {
  LocalTopology seeing = GpuNode(1, "", "x");
  Device other = TestGpu(0);  // the PCI device of node 0's GPU; no UUID, so it is not claimed
  seeing.devices.push_back(other);
  seeing.SetLink(1, 2, NvLink(18, true, LinkType::kNode, 9, 0));
  const GlobalTopology global = Build({GpuNode(0, "", "x"), seeing});
  EXPECT_EQ(LinkText(global.LinkBetween(1, 3)), "NV18");
  EXPECT_EQ(LinkText(global.LinkBetween(3, 1)), "NV18");
}

TEST(GlobalLinks, BetweenMachinesAreTheNetwork) {
  const GlobalTopology global = Build({GpuNode(0, kFabricA, "x"), GpuNode(1, kFabricB, "y")});
  EXPECT_EQ(global.LinkBetween(0, 2).type, LinkType::kNet);
  EXPECT_EQ(global.LinkBetween(0, 3).type, LinkType::kNet);
  EXPECT_EQ(global.LinkBetween(1, 3).type, LinkType::kNet);
}

// An NVL72 rack: the machines differ, the NVLink switches are one.
TEST(GlobalLinks, BetweenMachinesOfOneFabricAreNvlink) {
  const GlobalTopology global = Build({GpuNode(0, kFabricA, "x"), GpuNode(1, kFabricA, "y")});
  EXPECT_EQ(global.LinkBetween(1, 3).type, LinkType::kNvl);
  EXPECT_EQ(global.LinkBetween(1, 3).pcie, LinkType::kNet);
  EXPECT_EQ(global.LinkBetween(0, 3).type, LinkType::kNet);
}

}  // namespace
}  // namespace ferry

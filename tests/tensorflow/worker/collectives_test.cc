// SPDX-License-Identifier: Apache-2.0
// The results of a group's members, and the effect of one member's failure.
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"

#include "collective_world.h"
#include "tensorflow/worker/collectives/merge.h"
#include "tensorflow/worker/kernels/element_types.h"

namespace ferry::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

HostBackendOptions Ring() {
  HostBackendOptions options;
  options.max_direct_bytes = 0;
  return options;
}

// All of a group, with inputs of their own.
std::vector<int> RunReduce(CollectiveWorld& world, int count, int64_t elements, MergeOp merge,
                           bool divides = false) {
  std::vector<int> runs;
  for (int i = 0; i < count; ++i) {
    CollectiveNode node = world.NodeOf(i, CollectiveKind::kReduce);
    node.merge = merge;
    node.divides = divides;
    std::vector<float> row;
    for (int64_t at = 0; at < elements; ++at) row.push_back(static_cast<float>((at + 3 * i) % 11));
    runs.push_back(world.Run(std::move(node), FloatRow(row)));
  }
  return runs;
}

// A step in which nothing may be sent or received.
class NoTransfers final : public StepTransfers {
 public:
  absl::Status Send(const RendezvousKey& key, Tensor, bool) override {
    ADD_FAILURE() << "sends " << key.text();
    return absl::OkStatus();
  }
  void RecvAsync(const RendezvousKey& key, RecvArgs, RecvCallback) override {
    ADD_FAILURE() << "receives " << key.text();
  }
  void Abort(const absl::Status&) override {}
};

// There is no key between it and the others.
TEST(Collectives, MemberWithAnUnusableName_FailsTheCollectiveWithIt) {
  auto devices = std::make_shared<CollectiveDevices>();
  const std::string name = "/job:worker/replica:0/task:0/device:CPU:0";
  devices->push_back({name, *ParseDeviceName(name), 7});
  devices->push_back({"nobody", *ParseDeviceName("/job:worker/replica:0/task:1/device:CPU:0"), 8});
  for (const CollectiveKind kind :
       {CollectiveKind::kReduce, CollectiveKind::kGather, CollectiveKind::kBroadcast}) {
    CollectiveNode node;
    node.kind = kind;
    node.dtype = DataType::kFloat;
    node.devices = devices;
    const KernelEnvironment environment;
    CancellationToken cancellation;
    CollectiveWork work;
    work.node = &node;
    work.call.input = FloatRow({1, 2});
    work.call.shape = *Shape::Create({kind == CollectiveKind::kGather ? 4 : 2});
    work.call.group_size = 2;
    work.members = {0, 1};
    work.source_rank = 1;
    work.environment = &environment;
    work.cancellation = &cancellation;
    const Executor executor = [](absl::AnyInvocable<void() &&> task) { std::move(task)(); };
    HostBackend backend(std::make_shared<NoTransfers>(), &executor, {});
    std::vector<absl::Status> ended;
    backend.Run(std::move(work),
                [&ended](absl::Status status, Received) { ended.push_back(std::move(status)); });
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_EQ(ended[0].code(), absl::StatusCode::kInvalidArgument) << ended[0];
    EXPECT_THAT(std::string(ended[0].message()), HasSubstr("nobody"));
  }
}

TEST(Collectives, ReduceGivesAllMembersTheSame) {
  for (const HostBackendOptions& options : {HostBackendOptions(), Ring()}) {
    for (const int count : {1, 2, 3, 5}) {
      // Fewer elements than members, and pieces that do not come out even.
      for (const int64_t elements : {0, 1, 2, 17, 1000}) {
        SCOPED_TRACE(absl::StrCat(count, " members, ", elements, " elements"));
        CollectiveWorld world(count, options);
        world.StartLeader();
        const std::vector<int> runs = RunReduce(world, count, elements, MergeOp::kAdd);
        world.RunAll();
        for (const int run : runs) {
          ASSERT_EQ(world.outcome(run).done_count, 1);
          ASSERT_TRUE(world.outcome(run).status.ok()) << world.outcome(run).status;
          const std::vector<float> got = FloatsOf(world.outcome(run).tensor);
          ASSERT_EQ(got.size(), static_cast<size_t>(elements));
          for (int64_t at = 0; at < elements; ++at) {
            float sum = 0;
            for (int i = 0; i < count; ++i) sum += static_cast<float>((at + 3 * i) % 11);
            ASSERT_EQ(got[static_cast<size_t>(at)], sum) << "element " << at;
          }
        }
      }
    }
  }
}

TEST(Collectives, ReduceMergesAndDivides) {
  for (const HostBackendOptions& options : {HostBackendOptions(), Ring()}) {
    const std::vector<std::pair<MergeOp, std::vector<float>>> wanted = {
        {MergeOp::kAdd, {3, 4, 5}},
        {MergeOp::kMul, {0, 28 / 3.0F, 80 / 3.0F}},
        {MergeOp::kMax, {2, 7 / 3.0F, 8 / 3.0F}},
        {MergeOp::kMin, {0, 1 / 3.0F, 2 / 3.0F}}};
    for (const auto& [merge, values] : wanted) {
      CollectiveWorld world(3, options);
      world.StartLeader();
      // 0 1 2, 3 4 5, 6 7 8.
      const std::vector<int> runs = RunReduce(world, 3, 3, merge, /*divides=*/true);
      world.RunAll();
      for (const int run : runs) EXPECT_EQ(FloatsOf(world.outcome(run).tensor), values);
    }
  }
}

TEST(Collectives, InputsAreNotModified) {
  CollectiveWorld world(3, Ring());
  world.StartLeader();
  std::vector<Tensor> inputs;
  for (int i = 0; i < 3; ++i) {
    inputs.push_back(FloatRow(std::vector<float>(100, static_cast<float>(i))));
    world.Run(world.NodeOf(i, CollectiveKind::kReduce), inputs.back());
  }
  world.RunAll();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(FloatsOf(inputs[static_cast<size_t>(i)]),
              std::vector<float>(100, static_cast<float>(i)));
    EXPECT_EQ(world.outcome(i).path, "ring");
  }
}

TEST(Collectives, GatherIsByRank) {
  CollectiveWorld world(3);
  world.StartLeader();
  for (const int worker : {2, 0, 1}) {
    world.Run(world.NodeOf(worker, CollectiveKind::kGather),
              FloatRow({static_cast<float>(worker), 10}));
  }
  world.RunAll();
  for (const auto& outcome : world.outcomes()) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_THAT(FloatsOf(outcome.tensor), ElementsAre(0, 10, 1, 10, 2, 10));
  }
}

TEST(Collectives, BroadcastReachesAll) {
  for (const int count : {1, 2, 3, 5, 6, 13}) {
    for (int source = 0; source < count; source += 2) {
      SCOPED_TRACE(absl::StrCat(count, " members, from ", source));
      CollectiveWorld world(count);
      world.StartLeader();
      for (int i = 0; i < count; ++i) {
        CollectiveNode node = world.NodeOf(i, CollectiveKind::kBroadcast);
        node.is_source = i == source;
        node.shape = *Shape::Create({2});
        world.Run(std::move(node),
                  i == source ? std::optional<Tensor>(FloatRow({4, 5})) : std::nullopt);
      }
      world.RunAll();
      for (const auto& outcome : world.outcomes()) {
        ASSERT_TRUE(outcome.status.ok()) << outcome.status;
        EXPECT_THAT(FloatsOf(outcome.tensor), ElementsAre(4, 5));
      }
    }
  }
}

// Two of five workers have theirs in a GPU's memory, which is copied before and after.
TEST(Collectives, MembersMayBeOnGpus) {
  for (const HostBackendOptions& options : {HostBackendOptions(), Ring()}) {
    const auto world_of = [&] {
      auto world = std::make_unique<CollectiveWorld>(
          5, options, std::vector<bool>{false, true, false, true, false});
      world->StartLeader();
      return world;
    };
    auto world = world_of();
    RunReduce(*world, 5, 100, MergeOp::kAdd);
    world->RunAll();
    for (int i = 0; i < 5; ++i) {
      ASSERT_TRUE(world->outcome(i).status.ok()) << world->outcome(i).status;
      EXPECT_EQ(FloatsOf(world->outcome(i).tensor)[0], 0 + 3 + 6 + 9 + 1);
      EXPECT_EQ(FloatsOf(world->outcome(i).tensor), FloatsOf(world->outcome(0).tensor));
    }
    const std::string way(world->outcome(0).path);
    EXPECT_THAT(world->outcome(1).path, StartsWith(absl::StrCat(way, ", staged (not by nccl: ")));

    world = world_of();
    for (int i = 0; i < 5; ++i) {
      world->Run(world->NodeOf(i, CollectiveKind::kGather), FloatRow({static_cast<float>(i)}));
    }
    world->RunAll();
    for (const auto& outcome : world->outcomes()) {
      ASSERT_TRUE(outcome.status.ok()) << outcome.status;
      EXPECT_THAT(FloatsOf(outcome.tensor), ElementsAre(0, 1, 2, 3, 4));
    }

    for (const int source : {0, 1}) {
      world = world_of();
      const Tensor input = FloatRow({4, 5});
      for (int i = 0; i < 5; ++i) {
        CollectiveNode node = world->NodeOf(i, CollectiveKind::kBroadcast);
        node.is_source = i == source;
        node.shape = *Shape::Create({2});
        world->Run(std::move(node), i == source ? std::optional<Tensor>(input) : std::nullopt);
      }
      world->RunAll();
      for (const auto& outcome : world->outcomes()) {
        ASSERT_TRUE(outcome.status.ok()) << outcome.status;
        EXPECT_THAT(FloatsOf(outcome.tensor), ElementsAre(4, 5));
      }
      // It has it already.
      EXPECT_EQ(world->outcome(source).tensor.data(), input.data());
    }
  }
}

TEST(Collectives, FailedCopiesEndAllMembers) {
  CollectiveWorld world(3, {}, {false, true, true});
  world.StartLeader();
  world.FailCopies(absl::ResourceExhaustedError("no memory"));
  RunReduce(world, 3, 10, MergeOp::kAdd);
  world.RunAll();
  for (const auto& outcome : world.outcomes()) {
    EXPECT_EQ(outcome.done_count, 1);
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kResourceExhausted) << outcome.status;
  }
}

TEST(Collectives, SingleMemberCopiesNothing) {
  CollectiveWorld world(1, {}, {true});
  world.StartLeader();
  world.FailCopies(absl::InternalError("somebody copies"));
  RunReduce(world, 1, 3, MergeOp::kAdd);
  world.RunAll();
  ASSERT_TRUE(world.outcome(0).status.ok()) << world.outcome(0).status;
  EXPECT_THAT(FloatsOf(world.outcome(0).tensor), ElementsAre(0, 1, 2));
}

TEST(Collectives, InputsOnOtherDevicesAreRefused) {
  CollectiveWorld world(1, {}, {true});
  const CollectiveNode node = world.NodeOf(0, CollectiveKind::kReduce);
  EXPECT_THAT(ReadCall(node, {FloatRow({1})}).status().message(),
              HasSubstr("a collective on gpu:0 cannot take float[1] in memory of host"));
}

TEST(Collectives, KeysMayBeInputs) {
  CollectiveWorld world(2);
  world.StartLeader();
  const auto scalar = [](int32_t value) {
    return *Row<int32_t>(DataType::kInt32, {value}).Reshape(Shape());
  };
  CollectiveNode node = world.NodeOf(0, CollectiveKind::kGather);
  node.has_key_inputs = true;
  const auto read = [&](const std::vector<Tensor>& inputs) { return ReadCall(node, inputs); };
  const auto call = read({FloatRow({1}), scalar(2), scalar(8), scalar(-9)});
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->group_size, 2);
  EXPECT_EQ(call->group_key, 8);
  EXPECT_EQ(call->instance_key, -9);
  EXPECT_THAT(call->shape.dims(), ElementsAre(2));
  EXPECT_THAT(read({FloatRow({1}), scalar(0), scalar(8), scalar(9)}).status().message(),
              HasSubstr("group_size must be positive integer but got 0"));
  EXPECT_THAT(read({FloatRow({1}), Row<int32_t>(DataType::kInt32, {2}), scalar(8), scalar(9)})
                  .status()
                  .message(),
              HasSubstr("Unexpected dimensions on input group_size, got [1]"));
  EXPECT_THAT(
      read({*FloatRow({1}).Reshape(Shape()), scalar(2), scalar(8), scalar(9)}).status().message(),
      HasSubstr("input should have rank > 0, received 0"));
}

TEST(Collectives, NansPropagateInMax) {
  const float none = std::numeric_limits<float>::quiet_NaN();
  Tensor out = FloatRow({0, 0, 0});
  Merge(MergeOp::kMax, FloatRow({1, none, 3}), FloatRow({none, 2, 2}), out);
  EXPECT_TRUE(FloatsOf(out)[0] != FloatsOf(out)[0]);
  EXPECT_TRUE(FloatsOf(out)[1] != FloatsOf(out)[1]);
  EXPECT_EQ(FloatsOf(out)[2], 3);
}

TEST(Collectives, AllTypesMerge) {
  const auto check = [](auto tag, DataType dtype, double quotient) {
    using T = typename decltype(tag)::Type;
    ASSERT_TRUE(CanMerge(dtype));
    Tensor out = Row<T>(dtype, std::vector<T>(3000, T(0)));
    Merge(MergeOp::kAdd, Row<T>(dtype, std::vector<T>(3000, T(-3))),
          Row<T>(dtype, std::vector<T>(3000, T(-4))), out);
    EXPECT_EQ(static_cast<double>(out.elements<T>()[2999]), -7);
    DivideBy(2, out);
    EXPECT_EQ(static_cast<double>(out.elements<T>()[2999]), quotient);
  };
  check(TypeTag<float>(), DataType::kFloat, -3.5);
  check(TypeTag<double>(), DataType::kDouble, -3.5);
  check(TypeTag<Half>(), DataType::kHalf, -3.5);
  check(TypeTag<Bfloat16>(), DataType::kBfloat16, -3.5);
  // Towards 0.
  check(TypeTag<int32_t>(), DataType::kInt32, -3);
  check(TypeTag<int64_t>(), DataType::kInt64, -3);
  EXPECT_FALSE(CanMerge(DataType::kBool));
}

TEST(Collectives, TimeoutNamesTheMissing) {
  CollectiveWorld world(3);
  world.StartLeader();
  for (const int worker : {1, 2}) {
    CollectiveNode node = world.NodeOf(worker, CollectiveKind::kReduce);
    node.timeout = absl::Seconds(2);
    world.Run(std::move(node), FloatRow({1}));
  }
  world.RunAll();
  world.Advance(absl::Milliseconds(1900));
  EXPECT_EQ(world.outcome(0).done_count, 0);
  world.Advance(absl::Milliseconds(200));
  for (const auto& outcome : world.outcomes()) {
    ASSERT_EQ(outcome.done_count, 1);
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(
        std::string(outcome.status.message()),
        AllOf(HasSubstr("2 of 3 members"), HasSubstr(absl::StrCat("; not ", world.NameOf(0)))));
  }
}

TEST(Collectives, SilentLeader_IsWaitedForUntilTheTimeout) {
  CollectiveWorld world(2);
  CollectiveNode node = world.NodeOf(1, CollectiveKind::kReduce);
  node.timeout = absl::Seconds(2);
  world.Run(std::move(node), FloatRow({1}));
  world.Advance(absl::Seconds(3));
  EXPECT_EQ(world.outcome(0).done_count, 0) << "the leader is to speak first";
  world.Advance(absl::Seconds(2));
  EXPECT_EQ(world.outcome(0).status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(world.outcome(0).status.message()),
              HasSubstr(absl::StrCat(world.NameOf(0), ", which leads")));
}

TEST(Collectives, DeathIsReportedToAllByName) {
  for (const int dead : {0, 1, 2}) {
    CollectiveWorld world(3, Ring());
    world.StartLeader();
    for (int i = 0; i < 3; ++i) {
      if (i != dead) world.Run(world.NodeOf(i, CollectiveKind::kReduce), FloatRow({1, 2, 3}));
    }
    world.RunAll();
    world.Kill(dead);
    world.RunAll();
    for (const auto& outcome : world.outcomes()) {
      ASSERT_EQ(outcome.done_count, 1);
      EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(std::string(outcome.status.message()),
                  HasSubstr(absl::StrCat("node ", dead, " has died")));
    }
  }
}

TEST(Collectives, CancellingOneEndsAll) {
  CollectiveWorld world(3);
  world.StartLeader();
  for (int i = 0; i < 2; ++i) {
    world.Run(world.NodeOf(i, CollectiveKind::kReduce), FloatRow({1}));
  }
  world.RunAll();
  world.Cancel(1);
  world.RunAll();
  EXPECT_EQ(world.outcome(1).status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(IsDerived(world.outcome(0).status)) << world.outcome(0).status;
}

TEST(Collectives, IncompatibleShapesEndAllMembers) {
  CollectiveWorld world(3);
  world.StartLeader();
  world.Run(world.NodeOf(0, CollectiveKind::kReduce), FloatRow({1}));
  world.Run(world.NodeOf(1, CollectiveKind::kReduce), FloatRow({1, 2}));
  world.Run(world.NodeOf(2, CollectiveKind::kReduce), FloatRow({1}));
  world.RunAll();
  for (const auto& outcome : world.outcomes()) {
    EXPECT_EQ(outcome.done_count, 1);
    EXPECT_FALSE(outcome.status.ok());
  }
  // Each fails by itself, or because another has.
  EXPECT_EQ(world.outcome(0).status.code(), absl::StatusCode::kInvalidArgument);
}

// A worker of another version, or a malicious one: no member copies beyond the end of the received
// bytes, or takes them for elements of another type.
TEST(Collectives, PartsThatDoNotFitAreRefusedByName) {
  const std::vector<Tensor> wrong = {FloatRow({1}), FloatRow(std::vector<float>(1000)),
                                     Row<int32_t>(DataType::kInt32, std::vector<int32_t>(100))};
  for (const HostBackendOptions& options : {HostBackendOptions(), Ring()}) {
    for (const CollectiveKind kind :
         {CollectiveKind::kReduce, CollectiveKind::kGather, CollectiveKind::kBroadcast}) {
      for (const Tensor& part : wrong) {
        SCOPED_TRACE(absl::StrCat("kind ", static_cast<int>(kind), ", ", ToString(part)));
        CollectiveWorld world(3, options);
        world.alters_sent = [&part](int worker, const Tensor& tensor) {
          return worker == 1 ? part : tensor;
        };
        world.StartLeader();
        for (int i = 0; i < 3; ++i) {
          CollectiveNode node = world.NodeOf(i, kind);
          const bool is_broadcast = kind == CollectiveKind::kBroadcast;
          node.is_source = is_broadcast && i == 1;
          if (is_broadcast) node.shape = *Shape::Create({100});
          std::optional<Tensor> input = FloatRow(std::vector<float>(100));
          if (is_broadcast && i != 1) input = std::nullopt;
          world.Run(std::move(node), std::move(input));
        }
        world.RunAll();
        int named = 0;
        for (const auto& outcome : world.outcomes()) {
          EXPECT_EQ(outcome.done_count, 1);
          named += outcome.status.code() == absl::StatusCode::kInternal &&
                   absl::StrContains(outcome.status.message(), "task:1/device:CPU:0 has sent");
        }
        EXPECT_GE(named, 1);
      }
    }
  }
}

// A peer may send any number of bytes, and protocol buffers take the number as an int: 4 GiB would
// be zero, and 2 GiB a negative number.
TEST(CollectiveMessages, MoreThanTwoGibibytes_AreRefused) {
  v1::CollectiveJoin join;
  join.set_group_key(7);
  v1::CollectiveJoin read;
  ASSERT_TRUE(FromTensor(ToTensor(join), read));
  EXPECT_EQ(read.group_key(), 7);
  ASSERT_TRUE(FromTensor(ToTensor(v1::CollectiveJoin()), read)) << "it has no bytes";
  char byte = 0;
  constexpr int64_t kBytes = int64_t{1} << 32;
  // Never read.
  const Tensor huge = *Tensor::Create(DataType::kUint8, *Shape::Create({kBytes}),
                                      WrapForeignBuffer(&byte, size_t{kBytes}, nullptr));
  EXPECT_FALSE(FromTensor(huge, read));
  EXPECT_FALSE(FromTensor(FloatRow({1}), read));
  EXPECT_FALSE(FromTensor(Tensor(), read));
}

}  // namespace
}  // namespace ferry::worker

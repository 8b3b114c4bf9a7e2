// SPDX-License-Identifier: Apache-2.0
// Graphs over the GPUs of two workers: collectives.
#include <algorithm>
#include <functional>

#include "tests/tensorflow/worker/worker_gpu_pair.h"

namespace ferry {
namespace {

using coord::Fails;
using coord::IsOk;
using graph::GraphWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct CollectiveOptions {
  std::string op = "CollectiveReduce";
  int group = 1;
  std::string merge = "Add";
  std::string final_op = "Id";
  float timeout_s = 0;
  // For gathers.
  int length = 0;
};

// "r0", "r1", ... if that is the name: of each one's input, which is "x" times its number from 1
// on.
void AddCollective(GraphWriter& writer, const std::string& name,
                   const std::vector<std::string>& devices, const CollectiveOptions& options = {}) {
  for (size_t i = 0; i < devices.size(); ++i) {
    const std::string number = absl::StrCat(name, "k", i);
    const std::string product = absl::StrCat(name, "p", i);
    writer.Const(number, devices[i], static_cast<float>(i + 1));
    writer.AddFloat(product, "Mul", {"x", number}, devices[i]);
    auto& node = writer.AddFloat(absl::StrCat(name, i), options.op, {product}, devices[i]);
    auto& attr = *node.mutable_attr();
    attr["group_size"].set_i(static_cast<int>(devices.size()));
    attr["group_key"].set_i(options.group);
    attr["instance_key"].set_i(1);
    attr["timeout_seconds"].set_f(options.timeout_s);
    if (options.op == "CollectiveReduce") {
      attr["merge_op"].set_s(options.merge);
      attr["final_op"].set_s(options.final_op);
      attr["subdiv_offsets"].mutable_list()->add_i(0);
    } else {
      attr["shape"].mutable_shape()->add_dim()->set_size(options.length);
    }
  }
}

std::vector<std::string> Names(const std::string& name, size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(absl::StrCat(name, i));
  return names;
}

// Rows of collectives, by their labels.
std::vector<std::string> WaysOf(const SmallMaster::Step& step,
                                const std::string& kind = "reduce by ") {
  std::vector<std::string> ways;
  for (const auto& result : step.results) {
    if (!result.ok()) continue;
    for (const auto& device : result->step_stats().dev_stats()) {
      for (const auto& row : device.node_stats()) {
        const std::string& label = row.timeline_label();
        const size_t at = label.find(kind);
        if (at != std::string::npos)
          ways.push_back(label.substr(at + 10, label.find(" (") - at - 10));
      }
    }
  }
  std::sort(ways.begin(), ways.end());
  return ways;
}

// A host and four GPUs in two processes.
TEST_F(WorkerGpuPair, CollectivesIncludeHostsAndGpusOfBoth) {
  RunGpuPair(
      {.transfer = TransferOptionsWithWorker()},
      [](GpuPeer& peer) {
        const size_t gpus = static_cast<size_t>(peer.gpus().count());
        WorkerClient a = ClientOf(peer.transfer_engine().self(), gpus);
        WorkerClient b = ClientOf(peer.PeerEndpoint(), gpus);
        GraphWriter writer;
        writer.Placeholder("x", a.devices()[0]);
        AddCollective(
            writer, "r",
            {b.devices()[0], a.devices()[1], a.devices()[2], b.devices()[1], b.devices()[2]});
        SmallMaster master({&a, &b}, writer, {{"x"}, Names("r", 5), {}});
        ASSERT_THAT(master.status, IsOk());
        for (int id = 1; id <= 6; ++id) {
          const bool is_small = id % 2 == 0;
          const std::vector<float> row(is_small ? 10 : 100'000, static_cast<float>(id));
          SmallMaster::Step step = master.Start(id, {Floats(row)}, /*record=*/true);
          const auto fetched = step.Wait();
          ASSERT_THAT(fetched, IsOk());
          for (const Tensor& each : *fetched) {
            EXPECT_EQ(ToFloats(each), std::vector<float>(row.size(), static_cast<float>(15 * id)));
          }
          const std::string way = is_small ? "direct" : "ring";
          const std::string staged = way + ", staged";
          EXPECT_THAT(WaysOf(step), ElementsAre(way, staged, staged, staged, staged));
        }
        Leave(peer);
      },
      Leave);
}

// Two machines with two GPUs each, which find together through a store.
GpuPairOptions FourGpus() {
  GpuPairOptions options{.transfer = TransferOptionsWithWorker(),
                         .environment = {{"STRICT_CUDA_DEVICES", "4"}},
                         .producer_environment = {{"CUDA_VISIBLE_DEVICES", "0,1"}},
                         .consumer_environment = {{"CUDA_VISIBLE_DEVICES", "2,3"}}};
  options.is_apart = true;
  return options;
}

struct FourWorkers {
  explicit FourWorkers(GpuPeer& peer)
      : a(ClientOf(peer.transfer_engine().self(), 2)), b(ClientOf(peer.PeerEndpoint(), 2)) {}

  WorkerClient a;
  WorkerClient b;
  const std::vector<std::string> gpus = {a.devices()[1], a.devices()[2], b.devices()[1],
                                         b.devices()[2]};
};

// `run` is given a graph with "x" in it.
void RunFourGpus(const std::function<void(FourWorkers& four, GraphWriter& writer)>& run) {
  RunGpuPair(
      FourGpus(),
      [&run](GpuPeer& peer) {
        FourWorkers four(peer);
        GraphWriter writer;
        writer.Placeholder("x", four.a.devices()[0]);
        run(four, writer);
        Leave(peer);
      },
      Leave);
}

TEST_F(WorkerGpuPair, CollectivesOfGpusUseNccl) {
  NEEDS_FAKE_DRIVER("has four GPUs");
  RunFourGpus([](FourWorkers& four, GraphWriter& writer) {
    AddCollective(writer, "sum", four.gpus, {.group = 1});
    AddCollective(writer, "mean", four.gpus, {.group = 2, .final_op = "Div"});
    AddCollective(writer, "least", four.gpus, {.group = 3, .merge = "Min"});
    AddCollective(writer, "most", four.gpus, {.group = 4, .merge = "Max"});
    AddCollective(writer, "all", four.gpus, {.op = "CollectiveGather", .group = 5, .length = 12});
    std::vector<std::string> fetches;
    for (const char* name : {"sum", "mean", "least", "most", "all"}) {
      for (const std::string& each : Names(name, 4)) fetches.push_back(each);
    }
    SmallMaster master({&four.a, &four.b}, writer, {{"x"}, fetches, {}});
    ASSERT_THAT(master.status, IsOk());
    for (int id = 1; id <= 10; ++id) {
      const auto one = static_cast<float>(id);
      SmallMaster::Step step = master.Start(id, {Floats({one, 0, -one})}, /*record=*/true);
      const auto fetched = step.Wait();
      ASSERT_THAT(fetched, IsOk());
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_THAT(ToFloats((*fetched)[i]), ElementsAre(10 * one, 0, -10 * one));
        EXPECT_THAT(ToFloats((*fetched)[4 + i]), ElementsAre(2.5F * one, 0, -2.5F * one));
        EXPECT_THAT(ToFloats((*fetched)[8 + i]), ElementsAre(one, 0, -4 * one));
        EXPECT_THAT(ToFloats((*fetched)[12 + i]), ElementsAre(4 * one, 0, -one));
        EXPECT_THAT(ToFloats((*fetched)[16 + i]),
                    ElementsAre(one, 0, -one, 2 * one, 0, -2 * one, 3 * one, 0, -3 * one, 4 * one,
                                0, -4 * one));
      }
      EXPECT_EQ(WaysOf(step), std::vector<std::string>(16, "nccl"));
      EXPECT_EQ(WaysOf(step, "gather by "), std::vector<std::string>(4, "nccl"));
    }
  });
}

// Groups that overlap, in many steps at once, which come to each GPU in any order.
TEST_F(WorkerGpuPair, CollectivesOfManyStepsAtOnceDoNotWaitForEachOther) {
  NEEDS_FAKE_DRIVER("has four GPUs");
  RunFourGpus([](FourWorkers& four, GraphWriter& writer) {
    const auto& gpus = four.gpus;
    AddCollective(writer, "p", {gpus[0], gpus[2]}, {.group = 1});
    AddCollective(writer, "q", {gpus[0], gpus[1], gpus[3]}, {.group = 2});
    AddCollective(writer, "r", {gpus[1], gpus[2], gpus[3]}, {.group = 3});
    SmallMaster master({&four.a, &four.b}, writer,
                       {{"x"}, {"p0", "p1", "q0", "q1", "q2", "r0", "r1", "r2"}, {}});
    ASSERT_THAT(master.status, IsOk());
    for (int round = 0; round < 5; ++round) {
      std::vector<SmallMaster::Step> steps;
      for (int i = 1; i <= 8; ++i) {
        steps.push_back(master.Start(100 * round + i, {Floats({static_cast<float>(i)})}));
      }
      for (int i = 1; i <= 8; ++i) {
        const auto fetched = steps[static_cast<size_t>(i - 1)].Wait();
        ASSERT_THAT(fetched, IsOk());
        for (size_t at = 0; at < fetched->size(); ++at) {
          EXPECT_THAT(ToFloats((*fetched)[at]),
                      ElementsAre(static_cast<float>((at < 2 ? 3 : 6) * i)));
        }
      }
    }
  });
}

// The other worker's sends stop half way, then continue.
TEST_F(WorkerGpuPair, NcclCollectiveThatHangsTimesOutAndTheNextOneWorks) {
  NEEDS_FAKE_DRIVER("can be made to hang");
  RunGpuPair(
      FourGpus(),
      [](GpuPeer& peer) {
        FourWorkers four(peer);
        GraphWriter writer;
        writer.Placeholder("x", four.a.devices()[0]);
        AddCollective(writer, "r", four.gpus, {.timeout_s = 2});
        SmallMaster master({&four.a, &four.b}, writer, {{"x"}, Names("r", 4), {}});
        ASSERT_THAT(master.status, IsOk());
        const std::vector<float> row(100'000, 1);
        ASSERT_THAT(master.Run(1, {Floats(row)}), IsOk());
        for (int id = 2; id <= 6; id += 2) {
          peer.Meet();
          peer.Meet();
          EXPECT_THAT(master.Run(id, {Floats(row)}),
                      Fails(absl::StatusCode::kDeadlineExceeded,
                            HasSubstr("Collective has timed out during execution. By NCCL")));
          peer.Meet();
          peer.Meet();
          const auto fetched = master.Run(id + 1, {Floats(row)});
          ASSERT_THAT(fetched, IsOk());
          EXPECT_EQ(ToFloats((*fetched)[3]), std::vector<float>(row.size(), 10));
        }
        Leave(peer);
      },
      [](GpuPeer& peer) {
        const auto stop_after = peer.Control<void (*)(long long)>("strict_cuda_nccl_stop_after");
        for (int i = 0; i < 3; ++i) {
          peer.Meet();
          stop_after(1000);
          peer.Meet();
          peer.Meet();
          stop_after(-1);
          peer.Meet();
        }
        Leave(peer);
      });
}

TEST_F(WorkerGpuPair, WorkerThatDiesInAnNcclCollectiveEndsItAndTheOthersContinue) {
  NEEDS_FAKE_DRIVER("can be made to hang");
  GpuPairOptions options = FourGpus();
  options.consumer_dies = true;
  const int killed = RunGpuPair(
      options,
      [](GpuPeer& peer) {
        FourWorkers four(peer);
        GraphWriter writer;
        writer.Placeholder("x", four.a.devices()[0]);
        AddCollective(writer, "r", four.gpus);
        SmallMaster master({&four.a, &four.b}, writer, {{"x"}, Names("r", 4), {}});
        ASSERT_THAT(master.status, IsOk());
        const std::vector<float> row(100'000, 1);
        ASSERT_THAT(master.Run(1, {Floats(row)}), IsOk());
        peer.Meet();
        peer.Meet();
        SmallMaster::Step step = master.Start(2, {Floats(row)});
        // The other one ends when it is at it.
        step.workers = {&four.a};
        const auto fetched = step.Wait();
        // The error for the dead worker; the master makes ABORTED of it.
        EXPECT_THAT(fetched, Fails(absl::StatusCode::kUnavailable, HasSubstr("node 1 ")));
        // The local parts have been notified.
        EXPECT_EQ(step.results.size(), step.calls.size());
        GraphWriter own;
        own.Placeholder("x", four.a.devices()[0]);
        AddCollective(own, "r", {four.gpus[0], four.gpus[1]});
        SmallMaster alone({&four.a}, own, {{"x"}, Names("r", 2), {}});
        ASSERT_THAT(alone.status, IsOk());
        SmallMaster::Step next = alone.Start(3, {Floats(row)}, /*record=*/true);
        const auto sums = next.Wait();
        ASSERT_THAT(sums, IsOk());
        EXPECT_EQ(ToFloats((*sums)[0]), std::vector<float>(row.size(), 3));
        EXPECT_THAT(WaysOf(next), ElementsAre("nccl", "nccl"));
        EXPECT_EQ(OwnWorker()->worker().step_count(), 0u);
        EXPECT_TRUE(peer.transfer_engine().Stop().ok());
        OwnWorker().reset();
      },
      [](GpuPeer& peer) {
        const auto stop_after = peer.Control<void (*)(long long)>("strict_cuda_nccl_stop_after");
        peer.Meet();
        stop_after(1000);
        peer.Meet();
        // Until it has begun, and somewhat longer.
        absl::SleepFor(absl::Milliseconds(500));
        raise(SIGKILL);
      });
  EXPECT_EQ(killed, 1);
}

}  // namespace
}  // namespace ferry

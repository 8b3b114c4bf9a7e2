// SPDX-License-Identifier: Apache-2.0
// Graphs on the GPUs of one worker.
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"

#include "gpu/discovery.h"
#include "tests/support/kernel_image.h"
#include "tests/tensorflow/worker/worker_fixture.h"

namespace ferry {
namespace {

using absl::StatusCode;
using coord::Fails;
using coord::IsOk;
using graph::GraphWriter;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kCpu[] = "/job:worker/task:0/device:CPU:0";
constexpr char kGpu0[] = "/job:worker/task:0/device:GPU:0";
constexpr char kGpu1[] = "/job:worker/task:0/device:GPU:1";

// Before anything else looks for a driver.
const std::vector<Device>& DevicesHere() {
  static const auto* const devices = [] {
    if (!OnRealGpu()) setenv("FERRY_CUDA_LIBRARY", STRICT_CUDA_LIBRARY, /*overwrite=*/1);
    return new std::vector<Device>(DiscoverLocal().topology.devices);
  }();
  return *devices;
}

TransferEngineOptions Options() {
  TransferEngineOptions options;
  options.kernel_image = KernelImage();
  return options;
}
NodeWorkerOptions WithGpus() {
  NodeWorkerOptions options;
  options.devices = DevicesHere();
  return options;
}

class WorkerGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (KernelImage().empty()) GTEST_SKIP() << "this build has no kernels: there was no nvcc";
    if (a_.devices().size() < 3) GTEST_SKIP() << "this machine shows one GPU";
  }
  // When nothing runs on them.
  size_t UsedBytes() {
    a_.transfer_engine().gpus()->WaitIdle(SteadyClock().Now() + absl::Seconds(10));
    size_t bytes = 0;
    for (int i = 0; i < 2; ++i)
      bytes += (*a_.transfer_engine().gpus()->Get(i))->arena->stats().used_bytes;
    return bytes;
  }
  // Calls it for each step from 1 on; after the tenth one no more memory is in use.
  template <typename Run>
  void ExpectNoGrowth(int steps, Run run) {
    size_t used = 0;
    for (int step = 1; step <= steps && !HasFatalFailure(); ++step) {
      run(step);
      if (step == 10) used = UsedBytes();
    }
    EXPECT_LE(UsedBytes(), used);
    a_.ExpectClean();
  }

  Directory directory_;
  WorkerEnd a_{directory_, 0, Options(), WithGpus()};
};

TEST_F(WorkerGpu, IsListedWithItsMemoryAndItsName) {
  auto status = a_.Call<tensorflow::GetStatusResponse>("GetStatus", tensorflow::GetStatusRequest());
  ASSERT_THAT(status, IsOk());
  ASSERT_EQ(status->device_attributes_size(), static_cast<int>(DevicesHere().size()));
  EXPECT_EQ(status->device_attributes(0).device_type(), "CPU");
  for (int i = 1; i < status->device_attributes_size(); ++i) {
    const tensorflow::DeviceAttributes& gpu = status->device_attributes(i);
    const Device& device = DevicesHere()[static_cast<size_t>(i)];
    EXPECT_EQ(gpu.name(), absl::StrCat("/job:worker/replica:0/task:0/device:GPU:", i - 1));
    EXPECT_EQ(gpu.device_type(), "GPU");
    EXPECT_EQ(gpu.memory_limit(), static_cast<int64_t>(device.memory_bytes));
    EXPECT_EQ(gpu.incarnation(), a_.incarnation());
    EXPECT_EQ(gpu.physical_device_desc(),
              absl::StrCat(
                  "device: ", i - 1, ", name: ", device.name, ", pci bus id: ", device.pci_bus_id,
                  ", compute capability: ", device.compute_major, ".", device.compute_minor));
  }
}

TEST_F(WorkerGpu, GraphsRunOverBothAndTheHost) {
  GraphWriter writer;
  writer.Placeholder("x", kCpu);
  writer.Const("three", kGpu0, 3);
  writer.AddFloat("product", "Mul", {"x", "three"}, kGpu0);
  writer.AddFloat("sum", "AddV2", {"product", "x"}, kGpu1);
  writer.AddFloat("root", "Sqrt", {"sum"}, kGpu0);
  writer.AddFloat("host", "Identity", {"root"}, kCpu);
  SmallMaster master({&a_}, writer, {{"x"}, {"sum", "root", "host"}, {}});
  ASSERT_THAT(master.status, IsOk());
  for (int step = 1; step < 20; ++step) {
    const auto value = static_cast<float>(step * step);
    const auto fetched = master.Run(step, {Floats({value, 0, 100})});
    ASSERT_THAT(fetched, IsOk());
    EXPECT_THAT(ToFloats((*fetched)[0]), ElementsAre(4 * value, 0, 400));
    EXPECT_THAT(ToFloats((*fetched)[1]), ElementsAre(static_cast<float>(2 * step), 0, 20));
    EXPECT_THAT(ToFloats((*fetched)[2]), ElementsAre(static_cast<float>(2 * step), 0, 20));
  }
  a_.ExpectClean();
}

// int32 is in host memory, except for the input and output of Cast.
TEST_F(WorkerGpu, TensorsMoveBetweenMemoriesWithinOneDevice) {
  GraphWriter writer;
  writer.Placeholder("x", kCpu);
  writer.AddFloat("on_gpu", "Neg", {"x"}, kGpu0);
  auto& shape = writer.AddFloat("shape", "Shape", {"on_gpu"}, kGpu0);
  (*shape.mutable_attr())["out_type"].set_type(tensorflow::DT_INT32);
  auto& twice = writer.Add("twice", "AddV2", {"shape", "shape"}, kGpu0);
  (*twice.mutable_attr())["T"].set_type(tensorflow::DT_INT32);
  auto& cast = writer.Add("cast", "Cast", {"twice"}, kGpu0);
  (*cast.mutable_attr())["SrcT"].set_type(tensorflow::DT_INT32);
  (*cast.mutable_attr())["DstT"].set_type(tensorflow::DT_FLOAT);
  auto& back = writer.Add("back", "Cast", {"cast"}, kGpu0);
  (*back.mutable_attr())["SrcT"].set_type(tensorflow::DT_FLOAT);
  (*back.mutable_attr())["DstT"].set_type(tensorflow::DT_INT32);
  auto& again = writer.Add("again", "AddV2", {"back", "shape"}, kGpu0);
  (*again.mutable_attr())["T"].set_type(tensorflow::DT_INT32);
  SmallMaster master({&a_}, writer, {{"x"}, {"cast", "again"}, {}});
  ASSERT_THAT(master.status, IsOk());
  const auto fetched = master.Run(1, {Floats({1, 2, 3, 4, 5})});
  ASSERT_THAT(fetched, IsOk());
  EXPECT_THAT(ToFloats((*fetched)[0]), ElementsAre(10));
  EXPECT_THAT((*fetched)[1].elements<int32_t>(), ElementsAre(15));
}

TEST_F(WorkerGpu, VariablesStayInItsMemoryBetweenSteps) {
  GraphWriter writer;
  writer.Variable("v", kGpu1);
  writer.Placeholder("x", kCpu);
  const auto typed = [&writer](const char* name, const char* op,
                               const std::vector<std::string>& inputs) {
    auto& node = writer.Add(name, op, inputs, kGpu1);
    (*node.mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
  };
  typed("assign", "AssignVariableOp", {"v", "x"});
  typed("add", "AssignAddVariableOp", {"v", "x"});
  typed("read", "ReadVariableOp", {"v"});
  SmallMaster assign({&a_}, writer, {{"x"}, {}, {"assign"}});
  SmallMaster add({&a_}, writer, {{"x"}, {}, {"add"}});
  SmallMaster read({&a_}, writer, {{}, {"read"}, {}});
  ASSERT_THAT(assign.status, IsOk());
  ASSERT_THAT(add.status, IsOk());
  ASSERT_THAT(read.status, IsOk());
  EXPECT_THAT(read.Run(1), Fails(StatusCode::kFailedPrecondition));
  EXPECT_THAT(assign.Run(2, {Floats({1, 2})}), IsOk());
  for (int step = 3; step < 8; ++step) EXPECT_THAT(add.Run(step, {Floats({10, 20})}), IsOk());
  const auto fetched = read.Run(9);
  ASSERT_THAT(fetched, IsOk());
  EXPECT_THAT(ToFloats((*fetched)[0]), ElementsAre(51, 102));
  EXPECT_EQ(a_.worker().variable_count(), 1);
}

// "c0", "c1", ... of inputs of the same names with an "x", one on each device; in a group of their
// own.
void AddCollectives(GraphWriter& writer, const std::string& name, const std::string& op, int group,
                    tensorflow::DataType type, const std::vector<std::string>& devices) {
  const bool has_key_inputs = absl::EndsWith(op, "V2");
  const bool is_broadcast = op.find("Bcast") != std::string::npos;
  const auto integer = [&writer](const std::string& key, const std::string& device, int value) {
    auto& node = writer.Const(key, device, 0, tensorflow::DT_INT32);
    auto& tensor = *(*node.mutable_attr())["value"].mutable_tensor();
    tensor.clear_float_val();
    tensor.add_int_val(value);
  };
  for (size_t i = 0; i < devices.size(); ++i) {
    const std::string self = absl::StrCat(name, i);
    const bool has_input = !is_broadcast || i == 1;
    std::vector<std::string> inputs;
    if (has_input) inputs.push_back(absl::StrCat(name, "x", i));
    if (has_key_inputs) {
      const std::vector<std::pair<const char*, int>> keys = {
          {"_size", static_cast<int>(devices.size())}, {"_group", group}, {"_instance", 5}};
      for (const auto& [key, value] : keys) {
        integer(absl::StrCat(self, key), devices[i], value);
        inputs.push_back(absl::StrCat(self, key));
      }
      if (!has_input) inputs.push_back("shape");
    }
    auto& node =
        writer.Add(self,
                   !is_broadcast ? op
                   : has_input   ? absl::StrCat("CollectiveBcastSend", has_key_inputs ? "V2" : "")
                                 : absl::StrCat("CollectiveBcastRecv", has_key_inputs ? "V2" : ""),
                   inputs, devices[i]);
    auto& attr = *node.mutable_attr();
    attr["T"].set_type(type);
    if (op.find("Reduce") != std::string::npos) {
      attr["merge_op"].set_s("Add");
      attr["final_op"].set_s("Div");
    }
    if (has_key_inputs) {
      if (!has_input) attr["Tshape"].set_type(tensorflow::DT_INT32);
      continue;
    }
    attr["group_size"].set_i(static_cast<int>(devices.size()));
    attr["group_key"].set_i(group);
    attr["instance_key"].set_i(5);
    if (op == "CollectiveReduce") attr["subdiv_offsets"].mutable_list()->add_i(0);
    if (op != "CollectiveReduce") attr["shape"].mutable_shape()->add_dim()->set_size(4);
  }
}

// Over the CPU and both GPUs, of each type that they support; and back on the host as floats.
TEST_F(WorkerGpu, CollectivesIncludeHostsAndGpus) {
  const std::vector<std::string> devices = {kCpu, kGpu0, kGpu1};
  GraphWriter writer;
  writer.Placeholder("x", kCpu);
  auto& shape = writer.AddFloat("shape", "Shape", {"x"}, kCpu);
  (*shape.mutable_attr())["out_type"].set_type(tensorflow::DT_INT32);
  std::vector<std::string> fetches;
  std::vector<std::vector<float>> wanted;
  int group = 0;
  const auto cast = [&writer](const std::string& name, const std::string& from,
                              const std::string& device, tensorflow::DataType src,
                              tensorflow::DataType dst) {
    auto& node = writer.Add(name, "Cast", {from}, device);
    (*node.mutable_attr())["SrcT"].set_type(src);
    (*node.mutable_attr())["DstT"].set_type(dst);
  };
  for (const std::string op : {"CollectiveReduceV2", "CollectiveReduce", "CollectiveGatherV2",
                               "CollectiveGather", "CollectiveBcastV2", "CollectiveBcast"}) {
    for (const auto type : {tensorflow::DT_FLOAT, tensorflow::DT_HALF, tensorflow::DT_DOUBLE,
                            tensorflow::DT_INT64, tensorflow::DT_INT32}) {
      const std::string name = absl::StrCat("c", ++group, "_");
      for (size_t i = 0; i < devices.size(); ++i) {
        const std::string scaled = absl::StrCat(name, "scaled", i);
        writer.Const(absl::StrCat(name, "k", i), devices[i], static_cast<float>(2 * i + 1));
        writer.AddFloat(scaled, "Mul", {"x", absl::StrCat(name, "k", i)}, devices[i]);
        cast(absl::StrCat(name, "x", i), scaled, devices[i], tensorflow::DT_FLOAT, type);
        cast(absl::StrCat(name, "y", i), absl::StrCat(name, i), devices[i], type,
             tensorflow::DT_FLOAT);
        fetches.push_back(absl::StrCat(name, "y", i));
        // 1, 3 and 5 times that.
        wanted.push_back(op.find("Gather") != std::string::npos
                             ? std::vector<float>{2, 4, 6, 8, 6, 12, 18, 24, 10, 20, 30, 40}
                             // (2 + 6 + 10) / 3 and so on; from GPU:0.
                             : std::vector<float>{6, 12, 18, 24});
      }
      AddCollectives(writer, name, op, group, type, devices);
    }
  }
  SmallMaster master({&a_}, writer, {{"x"}, fetches, {}});
  ASSERT_THAT(master.status, IsOk());
  for (int step = 1; step <= 3; ++step) {
    const auto fetched = master.Run(step, {Floats({2, 4, 6, 8})});
    ASSERT_THAT(fetched, IsOk());
    for (size_t i = 0; i < fetches.size(); ++i) {
      EXPECT_EQ(ToFloats((*fetched)[i]), wanted[i]) << fetches[i];
    }
  }
  a_.ExpectClean();
}

// c0 and c1 on a GPU each: the mean of both inputs, which is -x.
GraphWriter MeanOfTwoGpus() {
  GraphWriter writer;
  writer.Placeholder("x", kCpu);
  for (const int i : {0, 1}) {
    writer.AddFloat(absl::StrCat("cx", i), "Neg", {"x"}, i == 0 ? kGpu0 : kGpu1);
  }
  AddCollectives(writer, "c", "CollectiveReduce", 1, tensorflow::DT_FLOAT, {kGpu0, kGpu1});
  return writer;
}

TEST_F(WorkerGpu, CollectivesOfGpusLeaveNothingInItsMemory) {
  SmallMaster master({&a_}, MeanOfTwoGpus(), {{"x"}, {"c0", "c1"}, {}});
  ASSERT_THAT(master.status, IsOk());
  ExpectNoGrowth(60, [&master](int step) {
    // Small ones directly, large ones in a ring.
    const std::vector<float> row(step % 2 == 0 ? 200'000 : 100, static_cast<float>(step));
    const auto fetched = master.Run(step, {Floats(row)});
    ASSERT_THAT(fetched, IsOk());
    EXPECT_EQ(ToFloats((*fetched)[1]), std::vector<float>(row.size(), static_cast<float>(-step)));
  });
}

// No other member joins the second one's group.
TEST_F(WorkerGpu, CollectivesOfGpusEndAtTheTimeout) {
  GraphWriter writer = MeanOfTwoGpus();
  for (auto& node : *writer.def().mutable_node()) {
    if (node.op() != "CollectiveReduce") continue;
    (*node.mutable_attr())["timeout_seconds"].set_f(0.3F);
    if (node.name() == "c1") (*node.mutable_attr())["group_key"].set_i(2);
  }
  SmallMaster master({&a_}, writer, {{"x"}, {"c0", "c1"}, {}});
  ASSERT_THAT(master.status, IsOk());
  EXPECT_THAT(master.Run(1, {Floats({1})}),
              Fails(StatusCode::kDeadlineExceeded, HasSubstr("1 of 2 members have come")));
  a_.ExpectClean();
}

TEST_F(WorkerGpu, StepsLeaveNothingInItsMemory) {
  GraphWriter writer;
  writer.Placeholder("x", kCpu);
  writer.AddFloat("a", "Neg", {"x"}, kGpu0);
  writer.AddFloat("b", "Mul", {"a", "x"}, kGpu1);
  SmallMaster master({&a_}, writer, {{"x"}, {"b"}, {}});
  ASSERT_THAT(master.status, IsOk());
  ExpectNoGrowth(100, [&master](int step) {
    ASSERT_THAT(master.Run(step, {Floats(std::vector<float>(1000, 2))}), IsOk());
  });
}

TEST_F(WorkerGpu, OpsWithoutAGpuKernelAreRefusedInTensorFlowsWords) {
  GraphWriter writer;
  writer.Const("c", a_.devices()[1]);
  writer.AddFloat("m", "MatMul", {"c", "c"}, a_.devices()[1]);
  EXPECT_THAT(a_.Register(writer.def()),
              Fails(StatusCode::kNotFound,
                    HasSubstr("No registered 'MatMul' OpKernel for 'GPU' devices compatible with "
                              "node {{node m}}")));
}

// A master that has not cut the graph would have the host read a GPU's memory, or a GPU the host's.
TEST_F(WorkerGpu, EdgesBetweenTwoMemoriesAreRefused) {
  for (const bool to_host : {false, true}) {
    GraphWriter writer;
    const std::string& gpu = a_.devices()[1];
    auto& source = writer.Add("source", "_Recv", {}, gpu);
    (*source.mutable_attr())["tensor_type"].set_type(tensorflow::DT_INT32);
    if (!to_host) source.set_op("_HostRecv");
    for (const char* attr : {"send_device", "recv_device"}) {
      (*source.mutable_attr())[attr].set_s(gpu);
    }
    (*source.mutable_attr())["tensor_name"].set_s("t");
    (*source.mutable_attr())["send_device_incarnation"].set_i(1);
    if (to_host) {
      auto& sum = writer.Add("sum", "AddV2", {"source", "source"}, gpu);
      (*sum.mutable_attr())["T"].set_type(tensorflow::DT_INT32);
    } else {
      auto& cast = writer.Add("cast", "Cast", {"source"}, gpu);
      (*cast.mutable_attr())["SrcT"].set_type(tensorflow::DT_INT32);
      (*cast.mutable_attr())["DstT"].set_type(tensorflow::DT_FLOAT);
    }
    EXPECT_THAT(a_.Register(writer.def()),
                Fails(StatusCode::kInvalidArgument,
                      HasSubstr("an edge goes from one memory to another, from node 'source'")));
  }
}

// Not all masters fetch at the host.
TEST_F(WorkerGpu, TensorSentToAGpuCanBeFetched) {
  GraphWriter writer;
  const std::string& gpu = a_.devices()[1];
  writer.Const("c", gpu, 7);
  auto& send = writer.AddFloat("send", "_Send", {"c"}, gpu);
  for (const char* attr : {"send_device", "recv_device"}) (*send.mutable_attr())[attr].set_s(gpu);
  (*send.mutable_attr())["tensor_name"].set_s("t");
  (*send.mutable_attr())["send_device_incarnation"].set_i(static_cast<int64_t>(a_.incarnation()));
  const auto handle = a_.Register(writer.def());
  ASSERT_THAT(handle, IsOk());
  tensorflow::RunGraphRequest request = RunRequestOf(*handle, 1);
  request.add_recv_key(RendezvousKey::Text(gpu, a_.incarnation(), gpu, "t"));
  const auto result = a_.Run(request);
  ASSERT_THAT(result, IsOk());
  ASSERT_EQ(result->recv_size(), 1);
  EXPECT_THAT(ToFloats(*TensorFromProto(result->recv(0).tensor())), ElementsAre(7));
  EXPECT_THAT(a_.Cleanup(1), IsOk());
}

TEST(WorkerWithoutKernels, RefusesArithmeticOnGpusAndMovesTensors) {
  Directory directory;
  TransferEngineOptions options = Options();
  options.kernel_image = {};
  WorkerEnd worker(directory, 0, options, WithGpus());
  GraphWriter writer;
  writer.Placeholder("x", kCpu);
  writer.AddFloat("moved", "Identity", {"x"}, kGpu0);
  writer.AddFloat("sum", "AddV2", {"moved", "moved"}, kGpu0);
  SmallMaster refused({&worker}, writer, {{"x"}, {"sum"}, {}});
  EXPECT_THAT(refused.status,
              Fails(StatusCode::kUnimplemented,
                    AllOf(HasSubstr("Op AddV2 of node sum cannot be run on GPUs here"),
                          HasSubstr("made without nvcc"))));
  SmallMaster moving({&worker}, writer, {{"x"}, {"moved"}, {}});
  ASSERT_THAT(moving.status, IsOk());
  const auto fetched = moving.Run(1, {Floats({4, 5})});
  ASSERT_THAT(fetched, IsOk());
  EXPECT_THAT(ToFloats((*fetched)[0]), ElementsAre(4, 5));
}

}  // namespace
}  // namespace ferry

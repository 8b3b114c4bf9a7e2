// SPDX-License-Identifier: Apache-2.0
// Devices, tensors, ids and DLPack, without a job.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include <ferry/cancellation_token.h>
#include <ferry/device.h>
#include <ferry/dlpack.h>
#include <ferry/tensor.h>
#include <ferry/tensor_id.h>
#include <ferry/topology.h>

namespace ferry {
namespace {

using ::testing::ElementsAre;

TEST(DeviceTest, NamesAreParsedAndWritten) {
  EXPECT_EQ(ToString(Device::Host()), "host:0");
  EXPECT_EQ(ToString(Device::Gpu(3)), "gpu:3");
  EXPECT_EQ(Device::Parse("gpu:3").value(), Device::Gpu(3));
  EXPECT_EQ(Device::Parse("host:0").value(), Device::Host());
  for (const char* name : {"", "gpu", "gpu:", "gpu:-1", "gpu:x", "tpu:0", "gpu:+1", "gpu: 1",
                           "gpu:1 ", "gpu:01", "gpu:-0", "gpu:2147483648", "host:00"}) {
    EXPECT_EQ(Device::Parse(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST(TensorIdTest, IsAPlainValue) {
  const TensorId id = {
      .name = "w", .source = 1, .destination = 2, .destination_device = Device::Gpu(0)};
  EXPECT_EQ(ToString(id), "\"w\" from node1/host:0 to node2/gpu:0");
  TensorId other = id;
  EXPECT_EQ(other, id);
  other.source_device = Device::Gpu(1);
  EXPECT_NE(other, id);
}

TEST(TensorTest, Allocate_ViewsShareTheBuffer) {
  Tensor tensor = Tensor::Allocate(DataType::kInt32, {3, 2}).value();
  EXPECT_EQ(tensor.dtype(), DataType::kInt32);
  EXPECT_THAT(tensor.shape(), ElementsAre(3, 2));
  EXPECT_EQ(tensor.element_count(), 6);
  EXPECT_EQ(tensor.size_bytes(), 24);
  EXPECT_EQ(tensor.device(), Device::Host());
  EXPECT_EQ(ToString(tensor), "int32[3,2]");
  absl::Span<int32_t> elements = tensor.mutable_elements<int32_t>();
  for (size_t i = 0; i < 6; ++i) elements[i] = static_cast<int32_t>(i);
  EXPECT_THAT(tensor.Slice(1, 2)->elements<int32_t>(), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(tensor.Reshape({6})->shape(), ElementsAre(6));
  EXPECT_EQ(tensor.Reshape({5}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tensor.Slice(3, 1).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Tensor::Allocate(DataType::kFloat, {-1}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Tensor::Allocate(DataType::kString, {1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(TensorTest, Invalid_IsEmpty) {
  Tensor tensor;
  EXPECT_FALSE(tensor.is_valid());
  EXPECT_EQ(tensor.dtype(), DataType::kInvalid);
  EXPECT_EQ(tensor.element_count(), 0);
  EXPECT_EQ(tensor.size_bytes(), 0);
  EXPECT_EQ(tensor.data(), nullptr);
  EXPECT_EQ(tensor.mutable_data(), nullptr);
  EXPECT_TRUE(tensor.strings().empty());
  EXPECT_EQ(ToString(tensor), "no tensor");
  EXPECT_FALSE(tensor.Slice(0, 0).ok());
  EXPECT_FALSE(tensor.Reshape({}).ok());
}

TEST(TensorTest, Wrap_ReleasesOnceWithTheLastView) {
  alignas(8) float memory[4] = {1, 2, 3, 4};
  int released = 0;
  {
    Tensor tensor = Tensor::Wrap(DataType::kFloat, {4}, memory, [&] { ++released; }).value();
    EXPECT_EQ(tensor.data(), memory);
    Tensor rows = tensor.Slice(2, 1).value();
    tensor = Tensor();
    EXPECT_EQ(released, 0);
    EXPECT_THAT(rows.elements<float>(), ElementsAre(3));
  }
  EXPECT_EQ(released, 1);
  const auto count = [&] { ++released; };
  EXPECT_FALSE(Tensor::Wrap(DataType::kFloat, {-4}, memory, count).ok());
  EXPECT_FALSE(Tensor::Wrap(DataType::kFloat, {4}, nullptr, count).ok());
  char* const odd = reinterpret_cast<char*>(memory) + 1;
  EXPECT_FALSE(Tensor::Wrap(DataType::kFloat, {2}, odd, count).ok());
  EXPECT_FALSE(Tensor::Wrap(DataType::kString, {4}, memory, count).ok());
  void* const last = reinterpret_cast<void*>(~uintptr_t{0} - 63);
  EXPECT_FALSE(Tensor::Wrap(DataType::kUint8, {64}, last, count).ok());
  for (const Device device :
       {Device::Gpu(-1), Device{DeviceKind::kHost, 1}, Device{static_cast<DeviceKind>(7), 0}}) {
    EXPECT_FALSE(Tensor::Wrap(DataType::kFloat, {4}, memory, count, device).ok());
  }
  EXPECT_EQ(released, 1);
}

TEST(TensorTest, Strings) {
  const Tensor tensor = Tensor::FromStrings({2}, {"a", "bc"}).value();
  EXPECT_THAT(tensor.strings(), ElementsAre("a", "bc"));
  EXPECT_EQ(tensor.size_bytes(), 3);
  EXPECT_EQ(tensor.data(), nullptr);
  EXPECT_EQ(Tensor::FromStrings({3}, {"a"}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(DlpackTest, ExportAndImport_ShareMemory) {
  Tensor tensor = Tensor::Allocate(DataType::kFloat, {2, 3}).value();
  absl::StatusOr<DLManagedTensorVersioned*> exported = ExportDlpack(tensor);
  ASSERT_TRUE(exported.ok()) << exported.status();
  absl::StatusOr<Tensor> imported = ImportDlpack(*exported);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data(), tensor.data());
  EXPECT_THAT(imported->shape(), ElementsAre(2, 3));
  EXPECT_EQ(ImportDlpack(nullptr).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ExportDlpack(Tensor()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(DataTypeTest, SizesAndNames) {
  EXPECT_EQ(ElementBytes(DataType::kBfloat16), 2);
  EXPECT_EQ(ElementBytes(DataType::kString), 0);
  EXPECT_EQ(ToString(DataType::kBfloat16), "bfloat16");
}

TEST(TopologyTest, Default_IsEmpty) {
  const Topology topology;
  EXPECT_TRUE(topology.nodes().empty());
  EXPECT_TRUE(topology.devices().empty());
  EXPECT_TRUE(topology.OneGpuOfEachNode().empty());
  EXPECT_EQ(ToString(LinkType::kNvl), "NVL");
}

TEST(TopologyTest, MovedFrom_IsACopy) {
  Topology topology;
  const Topology moved = std::move(topology);  // NOLINT(performance-move-const-arg)
  EXPECT_TRUE(topology.nodes().empty());       // NOLINT: a move is a copy
  EXPECT_FALSE(topology.LinkBetween(0, 0).ok());
}

TEST(CancellationTokenTest, CopiesAreOneToken) {
  CancellationToken token;
  CancellationToken copy = token;
  EXPECT_FALSE(copy.is_cancelled());
  EXPECT_EQ(copy.status(), absl::OkStatus());
  EXPECT_FALSE(token.Cancel(absl::OkStatus()));
  EXPECT_TRUE(token.Cancel(absl::AbortedError("why")));
  EXPECT_TRUE(copy.is_cancelled());
  EXPECT_EQ(copy.status(), absl::AbortedError("why"));
}

TEST(CancellationTokenTest, MovedFrom_IsACopy) {
  CancellationToken token;
  const CancellationToken moved = std::move(token);  // NOLINT(performance-move-const-arg)
  EXPECT_TRUE(token.Cancel());                       // NOLINT: a move is a copy
  EXPECT_TRUE(moved.is_cancelled());
}

}  // namespace
}  // namespace ferry

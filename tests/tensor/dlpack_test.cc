// SPDX-License-Identifier: Apache-2.0
// Tensors of other frameworks, well made and not.
#include "tensor/dlpack.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::dlpack {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A float[2,3] of another framework, that counts how often it is deleted.
struct Foreign {
  Foreign() {
    managed.version = {1, 0};
    managed.manager_ctx = this;
    managed.deleter = [](ManagedTensor* self) {
      ++static_cast<Foreign*>(self->manager_ctx)->deleted;
    };
    managed.flags = 0;
    managed.dl_tensor = {data.data(), {kDeviceCpu, 0}, 2, {2, 32, 1}, shape.data(), nullptr, 0};
  }

  std::array<float, 7> data = {0, 1, 2, 3, 4, 5, 6};
  std::array<int64_t, 2> shape = {2, 3};
  std::array<int64_t, 2> strides = {3, 1};
  ManagedTensor managed;
  int deleted = 0;
};

TEST(DLPack, IsImportedWithoutACopyAndDeletedOnce) {
  Foreign foreign;
  {
    const Tensor tensor = *Import(&foreign.managed);
    EXPECT_EQ(tensor.data(), foreign.data.data());
    EXPECT_EQ(ToString(tensor), "float[2,3]");
    const Tensor copy = tensor;  // NOLINT(performance-unnecessary-copy-initialization)
    EXPECT_EQ(foreign.deleted, 0);
  }
  EXPECT_EQ(foreign.deleted, 1);
}

TEST(DLPack, HeedsOffsetsAndStrides) {
  Foreign foreign;
  foreign.managed.dl_tensor.byte_offset = 4;
  foreign.managed.dl_tensor.strides = foreign.strides.data();
  EXPECT_THAT(Import(&foreign.managed)->elements<float>(), ElementsAre(1, 2, 3, 4, 5, 6));
}

// A mask that another framework made by reinterpreting bytes.
TEST(DLPack, BooleansThatAreNeither0Nor1_AreRefusedAndStayTheCallers) {
  Foreign foreign;
  auto* const bytes = reinterpret_cast<uint8_t*>(foreign.data.data());
  for (int i = 0; i < 6; ++i) bytes[i] = i % 2;
  foreign.managed.dl_tensor.dtype = {6, 8, 1};
  EXPECT_TRUE(Import(&foreign.managed).ok());
  EXPECT_EQ(foreign.deleted, 1);
  bytes[4] = 128;
  const absl::Status status = Import(&foreign.managed).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("element 4 of the DLPack tensor bool[2,3] is 128"));
  EXPECT_EQ(foreign.deleted, 1);
  // Bytes before the offset are not checked, and memory of a GPU cannot be.
  foreign.managed.dl_tensor.byte_offset = 5;
  bytes[5] = bytes[6] = bytes[7] = bytes[8] = bytes[9] = bytes[10] = 1;
  EXPECT_TRUE(Import(&foreign.managed).ok());
  foreign.managed.dl_tensor.byte_offset = 0;
  foreign.managed.dl_tensor.device = {kDeviceCuda, 0};
  EXPECT_TRUE(Import(&foreign.managed).ok());
}

TEST(DLPack, StrideOfAnExtentOfOneDoesNotMatter) {
  Foreign foreign;
  foreign.shape = {1, 3};
  foreign.strides = {77, 1};
  foreign.managed.dl_tensor.strides = foreign.strides.data();
  EXPECT_TRUE(Import(&foreign.managed).ok());
}

TEST(DLPack, UnsupportedTensorsStayWithTheirOwner) {
  const auto refuses = [](auto change, absl::StatusCode code, const char* why) {
    Foreign foreign;
    change(foreign);
    const absl::Status status = Import(&foreign.managed).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(status.message(), HasSubstr(why));
    EXPECT_EQ(foreign.deleted, 0);
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  refuses([](Foreign& f) { f.managed.version.major = 2; }, kInvalid, "version 2.0");
  refuses([](Foreign& f) { f.managed.dl_tensor.byte_offset = uint64_t{0} - 8; }, kInvalid,
          "more than any memory has");
  refuses([](Foreign& f) { f.managed.dl_tensor.byte_offset = 2; }, kInvalid,
          "not aligned to 4 bytes");
  refuses([](Foreign& f) { f.managed.dl_tensor.device.device_type = 10; }, kInvalid, "type 10");
  refuses([](Foreign& f) { f.managed.dl_tensor.device = {2, -1}; }, kInvalid, "device -1");
  refuses([](Foreign& f) { f.managed.dl_tensor.dtype.lanes = 4; }, kUnimplemented, "4 lanes");
  refuses([](Foreign& f) { f.managed.dl_tensor.dtype = {0, 4, 1}; }, kUnimplemented, "packed");
  refuses([](Foreign& f) { f.managed.dl_tensor.dtype = {99, 32, 1}; }, kUnimplemented, "code 99");
  refuses([](Foreign& f) { f.managed.dl_tensor.ndim = -1; }, kInvalid, "no shape");
  refuses([](Foreign& f) { f.managed.dl_tensor.shape = nullptr; }, kInvalid, "no shape");
  refuses([](Foreign& f) { f.shape[0] = -2; }, kInvalid, "negative");
  refuses([](Foreign& f) { f.managed.dl_tensor.data = nullptr; }, kInvalid, "no data");
  // Column-major.
  refuses(
      [](Foreign& f) {
        f.strides = {1, 2};
        f.managed.dl_tensor.strides = f.strides.data();
      },
      kInvalid, "row-major");
  EXPECT_EQ(Import(nullptr).status().code(), kInvalid);
}

TEST(DLPack, IsExportedReadOnlyAndKeepsTheTensorAlive) {
  Tensor tensor = *Tensor::Allocate(DataType::kBfloat16, *Shape::Create({2, 0, 3}));
  ManagedTensor* exported = *Export(tensor);
  EXPECT_EQ(exported->version.major, 1u);
  EXPECT_EQ(exported->flags, kFlagReadOnly);
  EXPECT_EQ(exported->dl_tensor.dtype.code, 4);
  EXPECT_EQ(exported->dl_tensor.dtype.bits, 16);
  EXPECT_EQ(exported->dl_tensor.ndim, 3);
  EXPECT_EQ(exported->dl_tensor.shape[2], 3);
  EXPECT_EQ(tensor.buffer().use_count(), 2);
  exported->deleter(exported);
  EXPECT_EQ(tensor.buffer().use_count(), 1);
  exported = *Export(tensor, /*writable=*/true);
  EXPECT_EQ(exported->flags, 0u);
  exported->deleter(exported);
}

// The address is one of the device: reading it on the host crashes.
TEST(DLPack, DeviceMemoryKeepsItsLocationInBothDirections) {
  for (const int32_t type : {kDeviceCuda, kDeviceCudaManaged}) {
    Foreign foreign;
    foreign.managed.dl_tensor.data = reinterpret_cast<void*>(0x7f0000000000);
    foreign.managed.dl_tensor.device = {type, 3};
    {
      const Tensor tensor = *Import(&foreign.managed);
      EXPECT_EQ(tensor.location(), (TensorLocation{MemorySpace::kCuda, 3}));
      EXPECT_EQ(ToString(tensor.location()), "gpu:3");
      ManagedTensor* exported = *Export(tensor);
      EXPECT_EQ(exported->dl_tensor.device.device_type, kDeviceCuda);
      EXPECT_EQ(exported->dl_tensor.device.device_id, 3);
      EXPECT_EQ(exported->dl_tensor.data, foreign.managed.dl_tensor.data);
      exported->deleter(exported);
    }
    EXPECT_EQ(foreign.deleted, 1);
  }
}

TEST(DLPack, EveryKnownTypeRoundTrips) {
  int count = 0;
  for (int number = 1; number < 34; ++number) {
    const std::optional<DataType> type = DataTypeOfNumber(number);
    if (!type.has_value() || !IsFixedSize(*type)) continue;
    Tensor tensor = *Tensor::Allocate(*type, *Shape::Create({5}));
    // Legal values, booleans among them.
    std::memset(tensor.mutable_data(), 0, tensor.bytes());
    const absl::StatusOr<ManagedTensor*> exported = Export(tensor);
    if (!exported.ok()) {
      EXPECT_THAT(std::string(DataTypeName(*type)), HasSubstr("int")) << exported.status();
      continue;
    }
    ++count;
    const Tensor back = *Import(*exported);
    EXPECT_EQ(back.dtype(), *type);
    EXPECT_EQ(back.shape().element_count(), 5);
  }
  EXPECT_EQ(count, 25);
  EXPECT_EQ(Export(*Tensor::OfStrings(Shape(), {"a"})).status().code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(Export(Tensor()).status().code(), absl::StatusCode::kInvalidArgument);
}

// Without elements nothing is strided over, and of a scalar there is nothing to stride.
TEST(DLPack, StridesOfEmptyTensors_DoNotMatter) {
  for (const std::array<int64_t, 2>& shape : {std::array<int64_t, 2>{0, 3}, {3, 0}, {0, 0}}) {
    Foreign foreign;
    foreign.shape = shape;
    foreign.strides = {77, -5};
    foreign.managed.dl_tensor.strides = foreign.strides.data();
    foreign.managed.dl_tensor.data = nullptr;
    const absl::StatusOr<Tensor> tensor = Import(&foreign.managed);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(tensor->bytes(), 0u);
  }
  Foreign scalar;
  scalar.managed.dl_tensor.ndim = 0;
  scalar.managed.dl_tensor.shape = nullptr;
  EXPECT_THAT(Import(&scalar.managed)->elements<float>(), ElementsAre(0));
}

// The last byte of memory that an object may have, and one beyond.
TEST(DLPack, OffsetUpToTheLargestObject_IsTaken) {
  Foreign foreign;
  foreign.managed.dl_tensor.device = {kDeviceCuda, 0};
  // Never read.
  foreign.managed.dl_tensor.data = reinterpret_cast<void*>(0x1001);
  foreign.managed.dl_tensor.byte_offset = uint64_t{PTRDIFF_MAX} - 24;
  EXPECT_TRUE(Import(&foreign.managed).ok());
  EXPECT_EQ(foreign.deleted, 1);
  ++foreign.managed.dl_tensor.byte_offset;
  EXPECT_THAT(std::string(Import(&foreign.managed).status().message()),
              HasSubstr("more than any memory has"));
  EXPECT_EQ(foreign.deleted, 1);
}

}  // namespace
}  // namespace ferry::dlpack

// SPDX-License-Identifier: Apache-2.0
// Variables, and the kernels that use them. The texts were printed by TensorFlow 2.15.1.
#include "tensorflow/worker/variables.h"

#include <thread>

#include "tests/tensorflow/worker/kernel_fixture.h"

namespace ferry::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class VariableKernels : public ::testing::Test {
 protected:
  VariableKernels() { environment_.variables = &variables_; }

  absl::StatusOr<Tensor> ComputeHere(const NodeWriter& node, const std::vector<Tensor>& inputs) {
    return Compute(node, inputs, environment_);
  }
  Tensor Handle(const std::string& name, const std::string& container = "") {
    NodeWriter node("VarHandleOp");
    node.Type("dtype", DataType::kInt32).String("shared_name", name).String("container", container);
    node["shape"].mutable_shape();
    return *ComputeHere(node, {});
  }
  absl::Status Assign(const Tensor& handle, const Tensor& value, bool validates_shape = false) {
    return ComputeHere(NodeWriter("AssignVariableOp")
                           .Type("dtype", value.dtype())
                           .Bool("validate_shape", validates_shape),
                       {handle, value})
        .status();
  }
  absl::Status AssignAdd(const Tensor& handle, const Tensor& value) {
    return ComputeHere(NodeWriter("AssignAddVariableOp").Type("dtype", value.dtype()),
                       {handle, value})
        .status();
  }
  absl::StatusOr<Tensor> Read(const Tensor& handle, DataType dtype = DataType::kInt32) {
    return ComputeHere(NodeWriter("ReadVariableOp").Type("dtype", dtype), {handle});
  }
  bool IsInitialized(const Tensor& handle) {
    return *static_cast<const bool*>(
        ComputeHere(NodeWriter("VarIsInitializedOp"), {handle})->data());
  }

  Variables variables_{"/job:worker/replica:0/task:0/device:CPU:0"};
  KernelEnvironment environment_;
};

TEST_F(VariableKernels, KeepTheirValues) {
  const Tensor handle = Handle("v");
  EXPECT_FALSE(IsInitialized(handle));
  ASSERT_TRUE(Assign(handle, Ints({1, 2})).ok());
  EXPECT_TRUE(IsInitialized(handle));
  ASSERT_TRUE(AssignAdd(handle, Ints({10, 20})).ok());
  EXPECT_THAT(ElementsOf<int32_t>(*Read(handle)), ElementsAre(11, 22));
  EXPECT_TRUE(Assign(handle, Ints({7})).ok());
  EXPECT_THAT(ElementsOf<int32_t>(*Read(handle)), ElementsAre(7));
}

// A value that a step has read does not change, whatever later steps do.
TEST_F(VariableKernels, AreWrittenInPlaceOnlyWhenUnshared) {
  const Tensor handle = Handle("v");
  const Tensor first = Ints({1});
  ASSERT_TRUE(Assign(handle, first).ok());
  ASSERT_TRUE(AssignAdd(handle, Ints({1})).ok());
  EXPECT_THAT(ElementsOf<int32_t>(first), ElementsAre(1));
  const Tensor second = *Read(handle);
  ASSERT_TRUE(AssignAdd(handle, Ints({1})).ok());
  EXPECT_THAT(ElementsOf<int32_t>(second), ElementsAre(2));
  const void* data = Read(handle)->data();
  ASSERT_TRUE(AssignAdd(handle, Ints({1})).ok());
  EXPECT_EQ(Read(handle)->data(), data);
  EXPECT_THAT(ElementsOf<int32_t>(*Read(handle)), ElementsAre(4));
}

// The value is unshared, but its memory must not be written, such as a peer's shared memory, which
// is mapped for reading only. That the variable owned its previous value does not count.
TEST_F(VariableKernels, ForeignMemoryIsNotWrittenAfterASum) {
  const Tensor handle = Handle("v");
  ASSERT_TRUE(Assign(handle, Ints({1})).ok());
  ASSERT_TRUE(AssignAdd(handle, Ints({1})).ok());
  alignas(kBufferAlignment) int32_t number = 5;
  ASSERT_TRUE(Assign(handle, *Tensor::Create(DataType::kInt32, *Shape::Create({1}),
                                             WrapForeignBuffer(&number, sizeof(number), [] {})))
                  .ok());
  ASSERT_TRUE(AssignAdd(handle, Ints({1})).ok());
  EXPECT_THAT(ElementsOf<int32_t>(*Read(handle)), ElementsAre(6));
  EXPECT_EQ(number, 5);
}

TEST_F(VariableKernels, FailLikeTensorFlows) {
  const Tensor handle = Handle("v");
  EXPECT_THAT(
      Read(handle),
      Fails(absl::StatusCode::kFailedPrecondition,
            "Could not find variable v. This could mean that the variable has been deleted. In "
            "TF1, it can also mean the variable is uninitialized. Debug info: "
            "container=worker, status error message=Container worker does not exist. (Could "
            "not find resource: worker/v)"));
  EXPECT_THAT(AssignAdd(handle, Ints({1})),
              Fails(absl::StatusCode::kNotFound,
                    "Container worker does not exist. (Could not find resource: worker/v)"));
  ASSERT_TRUE(Assign(Handle("w"), Ints({1, 2})).ok());
  EXPECT_THAT(
      AssignAdd(handle, Ints({1})),
      Fails(absl::StatusCode::kNotFound, "Resource worker/v/N10tensorflow3VarE does not exist."));
  ASSERT_TRUE(Assign(handle, Ints({1, 2})).ok());
  EXPECT_THAT(AssignAdd(handle, Ints({1, 2, 3})),
              Fails(kInvalid,
                    "Cannot update variable with shape [2] using a Tensor with shape [3], shapes "
                    "must be equal."));
  EXPECT_THAT(AssignAdd(handle, TensorOf<float>({3}, {1, 2, 3})),
              Fails(kInvalid, HasSubstr("Cannot update variable with shape [2]")));
  EXPECT_THAT(AssignAdd(handle, TensorOf<float>({2}, {1, 2})),
              Fails(kInvalid, "DType of variable handle and value does not match."));
  EXPECT_THAT(
      Assign(handle, TensorOf<float>({2}, {1, 2})),
      Fails(kInvalid, "Trying to assign variable with wrong dtype. Expected int32 got float"));
  EXPECT_THAT(
      Read(handle, DataType::kFloat),
      Fails(kInvalid, "Trying to read variable with wrong dtype. Expected float got int32"));
  EXPECT_THAT(Assign(handle, Ints({1, 2, 3}), true),
              Fails(kInvalid,
                    "Trying to assign to variable with tensor with wrong shape. Expected [2] got "
                    "[3]"));
}

TEST_F(VariableKernels, AreClearedByContainer) {
  ASSERT_TRUE(Assign(Handle("v"), Ints({1})).ok());
  ASSERT_TRUE(Assign(Handle("v", "a"), Ints({2})).ok());
  ASSERT_TRUE(Assign(Handle("v", "b"), Ints({3})).ok());
  variables_.Clear({"a", "unknown"});
  EXPECT_EQ(variables_.variable_count(), 2);
  EXPECT_FALSE(IsInitialized(Handle("v", "a")));
  EXPECT_THAT(ElementsOf<int32_t>(*Read(Handle("v", "b"))), ElementsAre(3));
  variables_.Clear({});
  EXPECT_FALSE(IsInitialized(Handle("v")));
  EXPECT_TRUE(IsInitialized(Handle("v", "b")));
}

TEST_F(VariableKernels, OnAnotherDeviceAreRefused) {
  const Tensor handle = HandleToTensor({"/job:worker/replica:0/task:1/device:CPU:0", "c", "v"});
  EXPECT_THAT(Assign(handle, Ints({1})),
              Fails(kInvalid, HasSubstr("Trying to access resource v located in device")));
  EXPECT_EQ(variables_.variable_count(), 0);
}

TEST_F(VariableKernels, NeedADeviceWithVariables) {
  environment_.variables = nullptr;
  EXPECT_THAT(Read(HandleToTensor({"d", "c", "v"})),
              Fails(absl::StatusCode::kFailedPrecondition, HasSubstr("")));
  EXPECT_THAT(ComputeHere(NodeWriter("VarIsInitializedOp"), {HandleToTensor({"d", "c", "v"})}),
              Fails(absl::StatusCode::kFailedPrecondition, "this device keeps no variables"));
}

// Clients feed strings where a handle is wanted.
TEST(ResourceHandles, AreParsedOnlyFromTensorsThatHoldOne) {
  const ResourceHandle handle = {"d:1", std::string("c\0:", 3), ""};
  EXPECT_EQ(*HandleFromTensor(HandleToTensor(handle)), handle);
  for (const char* text : {"", "x", "ferry.resource:", "ferry.resource:1:", "ferry.resource:9:1:d",
                           "ferry.resource:1:18446744073709551615:d", "ferry.resource:1:1:d",
                           "ferry.resource:-1:0:", "ferry.resource:1:x:d"}) {
    EXPECT_THAT(HandleFromTensor(Strings({}, {text})),
                Fails(kInvalid, HasSubstr("holds no handle")))
        << text;
  }
  EXPECT_THAT(HandleFromTensor(Ints({1})), Fails(kInvalid, HasSubstr("int32[1]")));
  EXPECT_THAT(HandleFromTensor(Strings({2}, {"a", "b"})), Fails(kInvalid, HasSubstr("")));
}

// Every addition counts, and no reader sees half of one.
TEST_F(VariableKernels, AddAtomically) {
  const Tensor handle = Handle("v");
  constexpr size_t kCount = 1000;
  ASSERT_TRUE(Assign(handle, Ints(std::vector<int32_t>(kCount, 0))).ok());
  const Tensor ones = Ints(std::vector<int32_t>(kCount, 1));
  constexpr int kThreads = 3;
  constexpr int kRounds = 200;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, &handle, &ones] {
      for (int round = 0; round < kRounds; ++round) {
        EXPECT_TRUE(AssignAdd(handle, ones).ok());
        const std::vector<int32_t> seen = ElementsOf<int32_t>(*Read(handle));
        EXPECT_THAT(seen, ::testing::Each(seen[0]));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(ElementsOf<int32_t>(*Read(handle)), ::testing::Each(kThreads * kRounds));
}

// It is written in place only while it is the variable's own and not shared.
TEST(Variable, InPlaceOnlyWhenItsOwnAndUnshared) {
  Variable variable(DataType::kInt32);
  const auto was_own = [&variable] {
    bool was = false;
    EXPECT_TRUE(variable
                    .Modify([&was](const Tensor&, bool is_own) -> absl::StatusOr<Tensor> {
                      was = is_own;
                      return Ints({1});
                    })
                    .ok());
    return was;
  };
  EXPECT_FALSE(was_own()) << "it had none";
  EXPECT_TRUE(was_own());
  {
    const Tensor seen = variable.value();
    EXPECT_FALSE(was_own());
  }
  EXPECT_TRUE(was_own());
  variable.Assign(Ints({2}));
  EXPECT_FALSE(was_own()) << "its memory may be somebody else's";
  EXPECT_TRUE(was_own());
}

TEST(Variable, UpdateFails_TheValueStays) {
  Variable variable(DataType::kInt32);
  variable.Assign(Ints({5}));
  const void* const data = variable.value().data();
  const auto fail = [](const Tensor&, bool is_own) -> absl::StatusOr<Tensor> {
    EXPECT_FALSE(is_own);
    return absl::InternalError("no");
  };
  // A failure means that it is owned by no one.
  for (int i = 0; i < 2; ++i) EXPECT_EQ(variable.Modify(fail).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(variable.value().data(), data);
  EXPECT_THAT(ElementsOf<int32_t>(variable.value()), ElementsAre(5));
}

// Kernels in progress finish with it; later ones find none, or make a new one.
TEST(Variables, ClearedWhileOneIsUsed_TheNextIsAnother) {
  Variables variables("d");
  const ResourceHandle handle = {"d", "c", "v"};
  const std::shared_ptr<Variable> former = *variables.FindOrCreate(handle, DataType::kInt32);
  former->Assign(Ints({1}));
  EXPECT_EQ(*variables.FindOrCreate(handle, DataType::kFloat), former) << "whatever its type";
  variables.Clear({"c"});
  EXPECT_THAT(variables.Find(handle), Fails(absl::StatusCode::kNotFound, HasSubstr("c")));
  EXPECT_THAT(ElementsOf<int32_t>(former->value()), ElementsAre(1));
  const std::shared_ptr<Variable> next = *variables.FindOrCreate(handle, DataType::kFloat);
  EXPECT_NE(next, former);
  EXPECT_EQ(next->dtype(), DataType::kFloat);
  EXPECT_FALSE(next->value().is_valid());
  EXPECT_EQ(variables.variable_count(), 1);
}

// A handle is parsed as far as its lengths state, and the name is the rest.
TEST(ResourceHandles, LengthsUpToTheEnd_AreAccepted) {
  EXPECT_EQ(*HandleFromTensor(Strings({}, {"ferry.resource:0:0:"})), (ResourceHandle{"", "", ""}));
  EXPECT_EQ(*HandleFromTensor(Strings({}, {"ferry.resource:2:1:ddc"})),
            (ResourceHandle{"dd", "c", ""}));
  EXPECT_EQ(*HandleFromTensor(Strings({1}, {"ferry.resource:0:1:cv"})),
            (ResourceHandle{"", "c", "v"}));
  EXPECT_THAT(HandleFromTensor(Strings({}, {"ferry.resource:2:2:ddc"})),
              Fails(kInvalid, HasSubstr("holds no handle")));
  EXPECT_THAT(HandleFromTensor(Strings({}, {"ferry.resource:4:0:ddc"})),
              Fails(kInvalid, HasSubstr("holds no handle")));
}

}  // namespace
}  // namespace ferry::worker

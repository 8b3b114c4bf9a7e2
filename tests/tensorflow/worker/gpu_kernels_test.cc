// SPDX-License-Identifier: Apache-2.0
// Kernels of nodes on GPUs, against those for CPUs, which are compared with TensorFlow's.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/clock.h"
#include "gpu/gpus.h"
#include "tensorflow/worker/kernels/gpu_families.h"
#include "tensorflow/worker/variables.h"
#include "tests/gpu/cuda_fixture.h"
#include "tests/support/kernel_image.h"
#include "tests/tensorflow/worker/kernel_fixture.h"

namespace ferry::worker {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;

class GpuKernels : public cuda::CudaTest {
 protected:
  GpuKernels() { Open(KernelImage()); }
  void SetUp() override {
    if (KernelImage().empty()) GTEST_SKIP() << "this build has no kernels: there was no nvcc";
  }
  void Open(cuda::CompiledKernels image) {
    gpus_ = *Gpus::Create(cuda::StrictApi(), AllocateHeapBuffer, nullptr, {}, image);
    compute_ = (*gpus_->Get(0))->compute.get();
  }

  KernelOr Make(const NodeWriter& node) {
    return MakeKernel(node.Complete(), "GPU", [this]() -> absl::StatusOr<KernelGpu> {
      return KernelGpu{gpus_.get(), compute_};
    });
  }
  Tensor Moved(const Tensor& tensor, TensorLocation to) {
    if (!IsFixedSize(tensor.dtype())) return tensor;
    MoveRequest move;
    move.tensor = tensor;
    move.to = to;
    move.deadline = SteadyClock().Now() + absl::Seconds(30);
    move.what = "test";
    absl::StatusOr<Tensor> moved = gpus_->MoveAndWait(std::move(move));
    EXPECT_TRUE(moved.ok()) << moved.status();
    return moved.value_or(Tensor());
  }
  Tensor OnGpu(const Tensor& tensor) { return Moved(tensor, {MemorySpace::kCuda, 0}); }

  // The first output, wherever it is. Inputs are copied to the memory that the op expects.
  absl::StatusOr<Tensor> Run(const NodeWriter& node, std::vector<Tensor> inputs) {
    const tensorflow::NodeDef def = node.Complete();
    const graph::OpSchema& op = *graph::FindOp(def.op());
    const graph::Signature signature = *graph::SignatureOf(op, def);
    KernelOr kernel = Make(node);
    if (!kernel.ok()) return kernel.status();
    const graph::KernelSchema& schema = *graph::FindKernel(op, def, "GPU");
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const graph::ArgSchema& arg = op.inputs[static_cast<size_t>(signature.inputs.arg(at))];
      if (!graph::IsInHostMemory(schema, arg.name, signature.inputs.type(at))) {
        inputs[i] = OnGpu(inputs[i]);
      }
    }
    KernelContext context(environment_, inputs, static_cast<int>(signature.outputs.size()));
    const absl::Status status = (*kernel)->Compute(context);
    if (!status.ok()) return status;
    return context.outputs().empty() ? Tensor() : context.outputs()[0];
  }
  // On the GPU, compared with the CPU.
  void ExpectSame(const NodeWriter& node, const std::vector<Tensor>& inputs) {
    const absl::StatusOr<Tensor> expected = Compute(node, inputs);
    const absl::StatusOr<Tensor> computed = Run(node, inputs);
    const std::string about = node.Complete().ShortDebugString();
    ASSERT_EQ(computed.status().ToString(), expected.status().ToString()) << about;
    if (!expected.ok()) return;
    EXPECT_EQ(computed->location(), (TensorLocation{MemorySpace::kCuda, 0})) << about;
    const Tensor host = Moved(*computed, {});
    ASSERT_EQ(host.dtype(), expected->dtype()) << about;
    ASSERT_EQ(host.shape(), expected->shape()) << about;
    WithType(NumberTypes() + TypeSet<bool>(), host.dtype(), [&](auto tag) {
      using T = typename decltype(tag)::Type;
      const T* const got = static_cast<const T*>(host.data());
      const T* const wanted = static_cast<const T*>(expected->data());
      for (int64_t i = 0; i < host.shape().element_count(); ++i) {
        // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): it is the bits that are compared.
        if (std::memcmp(&got[i], &wanted[i], sizeof(T)) == 0) continue;
        // The bits of a NaN depend on the processor.
        if (got[i] != got[i] && wanted[i] != wanted[i]) continue;
        FAIL() << about << ": element " << i << " is " << static_cast<double>(RealOf(got[i]))
               << ", not " << static_cast<double>(RealOf(wanted[i]));
      }
    });
  }
  template <typename T>
  static auto RealOf(T x) {
    if constexpr (kIsComplex<T>) {
      return x.real();
    } else {
      return x;
    }
  }

  // Numbers of all magnitudes, and those at which something changes.
  Tensor Random(DataType dtype, const std::vector<int64_t>& dims) {
    Tensor tensor = *Tensor::Allocate(dtype, *Shape::Create(dims));
    WithType(OrderedTypes() + TypeSet<bool>(), dtype, [&](auto tag) {
      using T = typename decltype(tag)::Type;
      T* const out = static_cast<T*>(tensor.mutable_data());
      for (int64_t i = 0; i < tensor.shape().element_count(); ++i) {
        if constexpr (std::is_same_v<T, bool>) {
          out[i] = random_() % 2 != 0;
        } else if constexpr (kIsFloat<T>) {
          const double choices[] = {
              0.0,           -0.0,   1.0,     -1.5,   255.9, -128.5, 65504, 65520,    2147483648.0,
              -2147483649.0, 9.3e18, -9.3e18, 1.9e19, 1e-7,  1e300,  NAN,   INFINITY, -INFINITY};
          const double magnitude = std::ldexp(1 + static_cast<double>(random_() % 100000) / 1e5,
                                              static_cast<int>(random_() % 60) - 30);
          const double value = random_() % 4 == 0   ? choices[random_() % std::size(choices)]
                               : random_() % 2 == 0 ? magnitude
                                                    : -magnitude;
          out[i] = static_cast<T>(static_cast<float>(value));
          if constexpr (std::is_same_v<T, double>) out[i] = value;
        } else {
          const uint64_t bits = (uint64_t{random_()} << 32 | random_()) >> random_() % 64;
          out[i] = static_cast<T>(random_() % 2 != 0 ? bits : ~bits);
        }
      }
    });
    return tensor;
  }

  std::unique_ptr<Gpus> gpus_;
  GpuCompute* compute_ = nullptr;
  KernelEnvironment environment_;
  std::mt19937 random_{7};
};

constexpr DataType kFloats[] = {DataType::kHalf, DataType::kBfloat16, DataType::kFloat,
                                DataType::kDouble};
constexpr DataType kArithmetic[] = {DataType::kHalf, DataType::kBfloat16, DataType::kFloat,
                                    DataType::kDouble, DataType::kInt64};

TEST_F(GpuKernels, ArithmeticOfAllTypesAndShapesMatchesCpus) {
  const std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> shapes = {
      {{500}, {500}},
      {{}, {300}},
      {{40, 7}, {}},
      {{4, 1, 6}, {5, 1}},
      {{0, 3}, {3}},
      {{2, 3}, {3, 2}},
      {{1}, {1, 1}},
      {{3, 4, 5, 6}, {4, 1, 6}},
      {{1, 2, 1, 2, 1, 2, 1, 2}, {2, 1, 2, 1, 2, 1, 2, 1}},
      {{7, 1}, {1, 9}}};
  for (const DataType dtype : kArithmetic) {
    for (const char* op : {"Add", "AddV2", "Sub", "Mul", "RealDiv", "Maximum", "Minimum"}) {
      if (dtype == DataType::kInt64 && op == std::string("RealDiv")) continue;
      for (const auto& [x, y] : shapes) {
        ExpectSame(NodeWriter(op).Type("T", dtype), {Random(dtype, x), Random(dtype, y)});
      }
    }
    for (const char* op : {"Neg", "Sqrt"}) {
      if (dtype == DataType::kInt64 && op == std::string("Sqrt")) continue;
      ExpectSame(NodeWriter(op).Type("T", dtype), {Random(dtype, {700})});
    }
  }
}

TEST_F(GpuKernels, SumsOfManyAreRoundedAsOnCpus) {
  for (const DataType dtype : kArithmetic) {
    for (const int count : {1, 2, 3, 9, 10, 17, 18}) {
      std::vector<Tensor> inputs;
      for (int i = 0; i < count; ++i) inputs.push_back(Random(dtype, {50}));
      ExpectSame(NodeWriter("AddN").Type("T", dtype).Int("N", count), inputs);
    }
  }
  ExpectSame(NodeWriter("AddN").Type("T", DataType::kFloat).Int("N", 2),
             {Random(DataType::kFloat, {2}), Random(DataType::kFloat, {3})});
}

TEST_F(GpuKernels, CastsBetweenAllTypesMatchCpus) {
  constexpr DataType kTypes[] = {
      DataType::kHalf,   DataType::kBfloat16, DataType::kFloat, DataType::kDouble, DataType::kUint8,
      DataType::kInt8,   DataType::kUint16,   DataType::kInt16, DataType::kUint32, DataType::kInt32,
      DataType::kUint64, DataType::kInt64,    DataType::kBool};
  for (const DataType from : kTypes) {
    for (const DataType to : kTypes) {
      for (const bool truncates : {false, true}) {
        ExpectSame(
            NodeWriter("Cast").Type("SrcT", from).Type("DstT", to).Bool("Truncate", truncates),
            {Random(from, {600})});
      }
    }
  }
  EXPECT_THAT(
      Make(NodeWriter("Cast").Type("SrcT", DataType::kFloat).Type("DstT", DataType::kString)),
      Fails(StatusCode::kUnimplemented,
            HasSubstr("Cast float to string is not supported on GPUs")));
}

TEST_F(GpuKernels, CreateValuesLikeCpus) {
  for (const DataType dtype : {DataType::kHalf, DataType::kBfloat16, DataType::kFloat,
                               DataType::kDouble, DataType::kInt64, DataType::kBool}) {
    ExpectSame(NodeWriter("ZerosLike").Type("T", dtype), {Random(dtype, {3, 100})});
    ExpectSame(NodeWriter("OnesLike").Type("T", dtype), {Random(dtype, {3, 100})});
    ExpectSame(NodeWriter("Fill").Type("T", dtype).Type("index_type", DataType::kInt32),
               {Ints({5, 2, 3}), Random(dtype, {})});
    ExpectSame(NodeWriter("Fill").Type("T", dtype).Type("index_type", DataType::kInt32),
               {Ints({5, -2}), Random(dtype, {})});
  }
  for (const DataType dtype : {DataType::kComplex64, DataType::kComplex128}) {
    Tensor input = *Tensor::Allocate(dtype, *Shape::Create({33}));
    std::memset(input.mutable_data(), 7, input.bytes());
    ExpectSame(NodeWriter("OnesLike").Type("T", dtype), {input});
    ExpectSame(NodeWriter("Fill").Type("T", dtype).Type("index_type", DataType::kInt32),
               {Ints({5}), *(*input.Slice(0, 1)).Reshape(Shape())});
  }
  NodeWriter constant("Const");
  constant.Type("dtype", DataType::kDouble)["value"].mutable_tensor()->set_dtype(
      tensorflow::DT_DOUBLE);
  constant["value"].mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(4);
  constant["value"].mutable_tensor()->add_double_val(2.5);
  ExpectSame(constant, {});
}

TEST_F(GpuKernels, ShapesChangeInPlace) {
  const Tensor x = Random(DataType::kFloat, {2, 3, 1});
  ExpectSame(NodeWriter("Reshape").Type("T", DataType::kFloat).Type("Tshape", DataType::kInt32),
             {x, Ints({-1, 2})});
  ExpectSame(NodeWriter("ExpandDims").Type("T", DataType::kFloat).Type("Tdim", DataType::kInt32),
             {x, Ints({1})});
  ExpectSame(NodeWriter("Squeeze").Type("T", DataType::kFloat), {x});
  const Tensor shape =
      *Run(NodeWriter("Shape").Type("T", DataType::kFloat).Type("out_type", DataType::kInt32), {x});
  EXPECT_EQ(ElementsOf<int32_t>(shape), (std::vector<int32_t>{2, 3, 1}));
  EXPECT_TRUE(shape.is_on_host());
}

TEST_F(GpuKernels, VariablesAreInDeviceMemory) {
  Variables variables("/job:worker/replica:0/task:0/device:GPU:0");
  environment_.variables = &variables;
  NodeWriter handle_node("VarHandleOp");
  handle_node.Type("dtype", DataType::kFloat).String("shared_name", "v")["shape"].mutable_shape();
  const Tensor handle = *Run(handle_node, {});
  const NodeWriter assign = NodeWriter("AssignVariableOp").Type("dtype", DataType::kFloat);
  const NodeWriter add = NodeWriter("AssignAddVariableOp").Type("dtype", DataType::kFloat);
  const NodeWriter read = NodeWriter("ReadVariableOp").Type("dtype", DataType::kFloat);
  ASSERT_TRUE(Run(assign, {handle, TensorOf<float>({2}, {1, 2})}).ok());
  const Tensor before = *Run(read, {handle});
  ASSERT_TRUE(Run(add, {handle, TensorOf<float>({2}, {10, 20})}).ok());
  ASSERT_TRUE(Run(add, {handle, TensorOf<float>({2}, {100, 200})}).ok());
  EXPECT_EQ(ElementsOf<float>(Moved(*Run(read, {handle}), {})), (std::vector<float>{111, 222}));
  // A reader keeps the previous value.
  EXPECT_EQ(ElementsOf<float>(Moved(before, {})), (std::vector<float>{1, 2}));
  EXPECT_THAT(Run(add, {handle, TensorOf<float>({3}, {1, 2, 3})}),
              Fails(StatusCode::kInvalidArgument, HasSubstr("shapes must be equal")));
  const absl::StatusOr<Tensor> is_there = Run(NodeWriter("VarIsInitializedOp"), {handle});
  ASSERT_TRUE(is_there.ok()) << is_there.status();
  EXPECT_TRUE(*static_cast<const bool*>(is_there->data()));
}

TEST_F(GpuKernels, MoreThanTheMemoryIsRefused) {
  EXPECT_THAT(
      Run(NodeWriter("Fill").Type("T", DataType::kFloat).Type("index_type", DataType::kInt32),
          {Ints({1 << 20, 1 << 12}), ScalarOf(1.0f)}),
      Fails(StatusCode::kResourceExhausted,
            HasSubstr("OOM when allocating tensor with shape[1048576,4096] and type "
                      "float: ")));
}

TEST_F(GpuKernels, BuildWithoutKernelsRefusesTheNode) {
  Open({});
  for (const char* op : {"AddV2", "Sqrt"}) {
    EXPECT_THAT(Make(NodeWriter(op).Type("T", DataType::kFloat)),
                Fails(StatusCode::kUnimplemented,
                      AllOf(HasSubstr(absl::StrCat("Op ", op,
                                                   " of node node cannot be run on GPUs "
                                                   "here: this build of Ferry has no "
                                                   "kernels: it was made without "
                                                   "nvcc")))));
  }
  // Ops that only move tensors need none.
  EXPECT_TRUE(Make(NodeWriter("Identity").Type("T", DataType::kFloat)).ok());
}

}  // namespace
}  // namespace ferry::worker

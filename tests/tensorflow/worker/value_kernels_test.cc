// SPDX-License-Identifier: Apache-2.0
// Kernels that hand values on, and which kernels there are.
#include <algorithm>
#include <set>
#include <string>

#include "tensor/tensor_proto.h"
#include "tests/tensorflow/worker/kernel_fixture.h"

namespace ferry::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

NodeWriter ConstNode(const Tensor& value) {
  NodeWriter node("Const");
  node.Type("dtype", value.dtype());
  *node["value"].mutable_tensor() = *TensorToProto(value);
  return node;
}

// An op that graphs may contain but that has no kernel would only be noticed in the middle of a
// step.
TEST(Kernels, ExistForEveryOpAndType) {
  const std::set<std::string> kElsewhere = {"_Send", "_Recv", "_HostSend", "_HostRecv"};
  int made = 0;
  for (const graph::OpSchema* op : graph::AllOps()) {
    if (kElsewhere.contains(op->name) || op->name.starts_with("Collective")) continue;
    for (const graph::KernelSchema& kernel : op->kernels) {
      if (kernel.device_type != "CPU") continue;
      std::vector<tensorflow::DataType> types = kernel.types;
      if (kernel.type_attr.empty()) types = {tensorflow::DT_FLOAT};
      for (const tensorflow::DataType type : types) {
        tensorflow::NodeDef node;
        node.set_name("n");
        node.set_op(op->name);
        for (const graph::AttrSchema& attr : op->attrs) {
          tensorflow::AttrValue& value = (*node.mutable_attr())[attr.name];
          if (attr.is_list) {
            value.mutable_list();
            if (attr.kind == graph::AttrKind::kType) value.mutable_list()->add_type(type);
          } else if (attr.kind == graph::AttrKind::kType) {
            const auto& allowed = attr.allowed_types;
            const bool fits =
                allowed.empty() || std::find(allowed.begin(), allowed.end(), type) != allowed.end();
            value.set_type(fits ? type : allowed[0]);
          } else if (attr.default_value.has_value()) {
            value = *attr.default_value;
          } else if (attr.kind == graph::AttrKind::kInt) {
            value.set_i(std::max<int64_t>(1, attr.minimum));
          } else if (attr.kind == graph::AttrKind::kShape) {
            value.mutable_shape();
          } else if (attr.kind == graph::AttrKind::kTensor) {
            *value.mutable_tensor() = *TensorToProto(ScalarOf<float>(1));
          }
        }
        const auto result = MakeKernel(node, "CPU");
        EXPECT_TRUE(result.ok()) << op->name << " " << graph::TypeName(type) << ": "
                                 << result.status();
        ++made;
      }
    }
  }
  EXPECT_GT(made, 300);
}

TEST(Kernels, AreRefusedByNameWhereThereIsNone) {
  tensorflow::NodeDef node = NodeWriter("Sqrt").Type("T", DataType::kFloat).Complete();
  EXPECT_TRUE(MakeKernel(node, "CPU").ok());
  EXPECT_THAT(MakeKernel(node, "GPU"),
              Fails(absl::StatusCode::kUnimplemented, HasSubstr("Sqrt of node node")));
  EXPECT_THAT(MakeKernel(node, "TPU"),
              Fails(absl::StatusCode::kNotFound,
                    HasSubstr("No registered 'Sqrt' OpKernel for 'TPU' devices compatible")));
  node = NodeWriter("Range").Type("Tidx", DataType::kHalf).Complete();
  EXPECT_THAT(MakeKernel(node, "CPU"), Fails(absl::StatusCode::kNotFound, HasSubstr("DT_HALF")));
  node.set_op("Conv2D");
  EXPECT_THAT(MakeKernel(node, "CPU"), Fails(absl::StatusCode::kNotFound, HasSubstr("Conv2D")));
  node = NodeWriter("CollectiveGather").Type("T", DataType::kFloat).Int("group_size", 2).Complete();
  for (const char* attr : {"group_key", "instance_key"}) (*node.mutable_attr())[attr].set_i(1);
  (*node.mutable_attr())["shape"].mutable_shape();
  EXPECT_THAT(MakeKernel(node, "CPU"),
              Fails(absl::StatusCode::kUnimplemented, HasSubstr("CollectiveGather")));
}

TEST(Kernels, HostMemoryOpsOnAGpuMatchTensorFlows) {
  EXPECT_TRUE(MakeKernel(NodeWriter("AddV2").Type("T", DataType::kInt32).Complete(), "GPU").ok());
  EXPECT_TRUE(
      MakeKernel(NodeWriter("Identity").Type("T", DataType::kFloat).Complete(), "GPU").ok());
  EXPECT_FALSE(MakeKernel(NodeWriter("AddV2").Type("T", DataType::kFloat).Complete(), "GPU").ok());
}

TEST(Kernels, AttributesAreCheckedAgain) {
  tensorflow::NodeDef node = NodeWriter("Pack").Type("T", DataType::kFloat).Complete();
  EXPECT_THAT(MakeKernel(node, "CPU"), Fails(absl::StatusCode::kNotFound, HasSubstr("'N'")));
}

TEST(Placeholder, NamesTheMissingFeed) {
  NodeWriter node("Placeholder");
  node.Type("dtype", DataType::kFloat);
  auto* shape = node["shape"].mutable_shape();
  shape->add_dim()->set_size(2);
  shape->add_dim()->set_size(-1);
  EXPECT_THAT(Compute(node, {}),
              Fails(absl::StatusCode::kInvalidArgument,
                    "You must feed a value for placeholder tensor 'node' with dtype "
                    "float and shape [2,?]"));
  node["shape"].mutable_shape()->Clear();
  node["shape"].mutable_shape()->set_unknown_rank(true);
  EXPECT_THAT(Compute(node, {}),
              Fails(absl::StatusCode::kInvalidArgument,
                    "You must feed a value for placeholder tensor 'node' with dtype float"));
}

TEST(Const, IsDecodedOnceAndShared) {
  const auto kernel = MakeCpuKernel(ConstNode(TensorOf<float>({2}, {1, 2})));
  ASSERT_TRUE(kernel.ok());
  const void* data = nullptr;
  for (int i = 0; i < 2; ++i) {
    const KernelEnvironment environment;
    KernelContext context(environment, {}, 1);
    ASSERT_TRUE((*kernel)->Compute(context).ok());
    EXPECT_THAT(ElementsOf<float>(context.outputs()[0]), ElementsAre(1, 2));
    EXPECT_TRUE(data == nullptr || context.outputs()[0].data() == data);
    data = context.outputs()[0].data();
  }
}

TEST(Const, Strings) {
  const auto tensor = Compute(ConstNode(Strings({2}, {"a", ""})), {});
  ASSERT_TRUE(tensor.ok());
  EXPECT_THAT(tensor->strings(), ElementsAre("a", ""));
}

// A few bytes from a client may stand for any number of elements.
TEST(Const, TooLargeOrInvalidIsRefused) {
  NodeWriter node = ConstNode(ScalarOf<float>(1));
  auto* proto = node["value"].mutable_tensor();
  proto->clear_tensor_content();
  proto->add_float_val(1);
  proto->mutable_tensor_shape()->add_dim()->set_size(int64_t{1} << 40);
  EXPECT_THAT(MakeCpuKernel(node), Fails(absl::StatusCode::kResourceExhausted, HasSubstr("bytes")));
  proto->mutable_tensor_shape()->mutable_dim(0)->set_size(-1);
  EXPECT_THAT(MakeCpuKernel(node), Fails(absl::StatusCode::kInvalidArgument, HasSubstr("")));
  node = ConstNode(ScalarOf<float>(1));
  node.Type("dtype", DataType::kInt32);
  EXPECT_THAT(MakeCpuKernel(node), Fails(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("Type mismatch between value (float) and dtype "
                                                   "(int32)")));
}

TEST(Identity, SharesTheBuffer) {
  const Tensor input = TensorOf<float>({2}, {1, 2});
  const auto output = Compute(NodeWriter("Identity").Type("T", DataType::kFloat), {input});
  ASSERT_TRUE(output.ok());
  EXPECT_EQ(output->data(), input.data());
}

TEST(Errors, NameTheNodeOnce) {
  const absl::Status status = absl::InvalidArgumentError("bad");
  const absl::Status once = AttachNode(status, "x");
  EXPECT_EQ(once.message(), "bad\n\t [[{{node x}}]]");
  EXPECT_EQ(AttachNode(once, "y").message(), "bad\n\t [[{{node x}}]]\n\t [[y]]");
  EXPECT_TRUE(AttachNode(absl::OkStatus(), "x").ok());
}

}  // namespace
}  // namespace ferry::worker

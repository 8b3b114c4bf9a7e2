// SPDX-License-Identifier: Apache-2.0
// Every op is declared as TensorFlow declares it.
#include "tensorflow/graph/op_registry.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "tensorflow/graph/signature.h"
#include "tests/tensorflow/graph/graph_fixture.h"

namespace ferry::graph {
namespace {

using ::testing::UnorderedElementsAreArray;

std::string KindText(const AttrSchema& attr) {
  const char* const names[] = {"string", "int", "float", "bool", "type", "shape", "tensor", "func"};
  const std::string name = names[static_cast<int>(attr.kind)];
  return attr.is_list ? absl::StrCat("list(", name, ")") : name;
}

std::string ArgText(const char* direction, const ArgSchema& arg) {
  return absl::StrCat(direction, " ", arg.name,
                      " type=", arg.type == tensorflow::DT_INVALID ? "" : TypeName(arg.type),
                      " type_attr=", arg.type_attr, " number_attr=", arg.number_attr,
                      " list_attr=", arg.type_list_attr);
}

std::string AttrText(const AttrSchema& attr) {
  std::vector<std::string> allowed = attr.allowed_strings;
  for (const DataType type : attr.allowed_types) allowed.push_back(TypeName(type));
  if (attr.kind == AttrKind::kType) std::sort(allowed.begin(), allowed.end());
  std::sort(allowed.begin(), allowed.end());
  std::string least = "-";
  if (attr.minimum != std::numeric_limits<int64_t>::min()) least = absl::StrCat(attr.minimum);
  std::string preset = "-";
  if (attr.default_value.has_value()) preset = attr.default_value->ShortDebugString();
  return absl::StrCat("attr ", attr.name, " kind=", KindText(attr), " min=", least,
                      " allowed=", absl::StrJoin(allowed, ","), " default=", preset);
}

// A different default gives a different result without an error.
TEST(OpRegistry, HasTensorFlowsSignatures) {
  std::map<std::string, std::vector<std::string>> expected;
  std::ifstream file(absl::StrCat(FERRY_SOURCE_DIR, "/tests/tensorflow/graph/tensorflow_ops.txt"));
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.find(' ');
    expected[line.substr(0, space)].push_back(line.substr(space + 1));
  }
  std::set<std::string> names;
  for (const OpSchema* op : AllOps()) {
    names.insert(op->name);
    std::vector<std::string> lines = {absl::StrCat("stateful=", op->is_stateful ? 1 : 0)};
    for (const ArgSchema& arg : op->inputs) lines.push_back(ArgText("in", arg));
    for (const ArgSchema& arg : op->outputs) lines.push_back(ArgText("out", arg));
    for (const AttrSchema& attr : op->attrs) lines.push_back(AttrText(attr));
    EXPECT_THAT(lines, UnorderedElementsAreArray(expected[op->name])) << op->name;
  }
  EXPECT_EQ(names.size(), expected.size());
  EXPECT_GE(names.size(), 56u);
}

TEST(OpRegistry, KernelsNameExistingAttributesAndArguments) {
  for (const OpSchema* op : AllOps()) {
    ASSERT_FALSE(op->kernels.empty()) << op->name;
    EXPECT_EQ(op->kernels[0].device_type, "CPU") << op->name;
    for (const KernelSchema& kernel : op->kernels) {
      if (!kernel.type_attr.empty()) {
        const AttrSchema* attr = op->FindAttr(kernel.type_attr);
        ASSERT_NE(attr, nullptr) << op->name;
        EXPECT_TRUE(attr->kind == AttrKind::kType && !attr->is_list) << op->name;
        EXPECT_FALSE(kernel.types.empty()) << op->name;
        for (const DataType type : kernel.types) {
          EXPECT_TRUE(attr->allowed_types.empty() ||
                      std::count(attr->allowed_types.begin(), attr->allowed_types.end(), type) >
                          0 ||
                      kernel.device_type == "GPU")
              << op->name << " " << TypeName(type);
        }
      }
      for (const std::string& name : kernel.host_args) {
        const auto is_named = [&name](const ArgSchema& arg) { return arg.name == name; };
        EXPECT_TRUE(name == "*" || std::any_of(op->inputs.begin(), op->inputs.end(), is_named) ||
                    std::any_of(op->outputs.begin(), op->outputs.end(), is_named))
            << op->name << " " << name;
      }
    }
  }
}

TEST(OpRegistry, CollectivesOfGpusHaveTheirKeysOnTheHost) {
  for (const char* op : {"CollectiveReduceV2", "CollectiveGatherV2", "CollectiveBcastSendV2",
                         "CollectiveBcastRecvV2"}) {
    for (const DataType type :
         {tensorflow::DT_FLOAT, tensorflow::DT_BFLOAT16, tensorflow::DT_INT32}) {
      tensorflow::NodeDef node;
      node.set_op(op);
      (*node.mutable_attr())["T"].set_type(type);
      const KernelSchema* const kernel = FindKernel(*FindOp(op), node, "GPU");
      ASSERT_NE(kernel, nullptr) << op << " of " << TypeName(type);
      for (const char* key : {"group_size", "group_key", "instance_key"}) {
        EXPECT_TRUE(IsInHostMemory(*kernel, key, tensorflow::DT_INT32)) << op << " " << key;
      }
      const bool is_count = type == tensorflow::DT_INT32;
      EXPECT_EQ(IsInHostMemory(*kernel, "input", type), is_count) << op;
      EXPECT_EQ(IsInHostMemory(*kernel, "data", type), is_count) << op;
    }
  }
}

TEST(OpRegistry, GpusMoveTensorsAndDoElementwiseArithmetic) {
  std::set<std::string> on_gpus;
  for (const OpSchema* op : AllOps()) {
    for (const KernelSchema& kernel : op->kernels) {
      if (kernel.device_type == "GPU") on_gpus.insert(op->name);
    }
  }
  for (const char* op : {"Const",
                         "Identity",
                         "Cast",
                         "Add",
                         "AddV2",
                         "AddN",
                         "Sub",
                         "Mul",
                         "RealDiv",
                         "Maximum",
                         "Minimum",
                         "Neg",
                         "Sqrt",
                         "_Send",
                         "_Recv",
                         "_HostSend",
                         "_HostRecv",
                         "NoOp",
                         "CollectiveReduceV2",
                         "Reshape",
                         "Shape",
                         "Fill",
                         "VarHandleOp",
                         "ReadVariableOp"}) {
    EXPECT_EQ(on_gpus.count(op), 1u) << op;
  }
  for (const char* op : {"MatMul", "Sum", "Transpose", "ConcatV2", "RandomUniform"}) {
    EXPECT_EQ(on_gpus.count(op), 0u) << op;
  }
}

TEST(Signature, FollowsFromAttributes) {
  GraphWriter writer;
  NodeDef& node = writer.AddFloat("c", "ConcatV2");
  (*node.mutable_attr())["N"].set_i(3);
  FillDefaults(*FindOp("ConcatV2"), node);
  ASSERT_EQ(CheckAttrs(*FindOp("ConcatV2"), node), absl::OkStatus());
  const Signature signature = *SignatureOf(*FindOp("ConcatV2"), node);
  ASSERT_EQ(signature.inputs.size(), 4);
  EXPECT_EQ(signature.inputs.type(0), tensorflow::DT_FLOAT);
  EXPECT_EQ(signature.inputs.type(2), tensorflow::DT_FLOAT);
  EXPECT_EQ(signature.inputs.type(3), tensorflow::DT_INT32);
  EXPECT_EQ(signature.inputs.arg(2), 0);
  EXPECT_EQ(signature.inputs.arg(3), 1);
  EXPECT_EQ(signature.outputs.size(), 1);
}

// A node of forty bytes must not cost gigabytes.
TEST(Signature, ManyOutputsTakeNoMemory) {
  GraphWriter writer;
  NodeDef& node = writer.AddFloat("u", "Unpack");
  (*node.mutable_attr())["num"].set_i(2147483647);
  FillDefaults(*FindOp("Unpack"), node);
  const Signature signature = *SignatureOf(*FindOp("Unpack"), node);
  EXPECT_EQ(signature.outputs.size(), 2147483647);
  EXPECT_EQ(signature.outputs.runs().size(), 1u);
  EXPECT_EQ(signature.outputs.type(2147483646), tensorflow::DT_FLOAT);
  (*node.mutable_attr())["num"].set_i(int64_t{1} << 40);
  EXPECT_THAT(SignatureOf(*FindOp("Unpack"), node),
              Fails(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("'num'")));
}

TEST(TypeName, IsTensorFlows) {
  EXPECT_EQ(TypeName(tensorflow::DT_FLOAT), "float");
  EXPECT_EQ(TypeName(tensorflow::DT_RESOURCE), "resource");
  EXPECT_EQ(TypeName(tensorflow::DT_FLOAT_REF), "float_ref");
  EXPECT_EQ(TypeName(tensorflow::DT_INVALID), "INVALID");
  EXPECT_EQ(TypeName(static_cast<DataType>(77)), "INVALID");
  EXPECT_EQ(TypeName(static_cast<DataType>(-3)), "INVALID");
}

}  // namespace
}  // namespace ferry::graph

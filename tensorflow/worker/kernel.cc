// SPDX-License-Identifier: Apache-2.0
// Looks up a node's kernel by its op.
#include "tensorflow/worker/kernel.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/usable_resources.h"
#include "tensorflow/graph/op_registry.h"
#include "tensorflow/graph/signature.h"
#include "tensorflow/worker/kernels/families.h"
#include "tensorflow/worker/kernels/gpu_families.h"

namespace ferry::worker {
namespace {

using Maker = KernelOr (*)(const NodeAttrs&);

const absl::flat_hash_map<absl::string_view, Maker>& Makers() {
  static const auto* const kMakers = new absl::flat_hash_map<absl::string_view, Maker>{
      {"Placeholder", MakePlaceholder},
      {"PlaceholderWithDefault", MakeForward},
      {"Const", MakeConst},
      {"Identity", MakeForward},
      {"IdentityN", MakeForward},
      {"NoOp", MakeNoOp},
      {"Reshape", MakeReshape},
      {"ExpandDims", MakeExpandDims},
      {"Squeeze", MakeSqueeze},
      {"Shape", MakeShape},
      {"Rank", MakeRank},
      {"Fill", MakeFill},
      {"ZerosLike", MakeZerosLike},
      {"OnesLike", MakeOnesLike},
      {"Range", MakeRange},
      {"Pack", MakePack},
      {"ConcatV2", MakeConcat},
      {"Unpack", MakeUnpack},
      {"Split", MakeSplit},
      {"Slice", MakeSlice},
      {"Transpose", MakeTranspose},
      {"Add", MakeAdd},
      {"AddV2", MakeAdd},
      {"AddN", MakeAddN},
      {"Sub", MakeSub},
      {"Mul", MakeMul},
      {"RealDiv", MakeRealDiv},
      {"Maximum", MakeMaximum},
      {"Minimum", MakeMinimum},
      {"Neg", MakeNeg},
      {"Sqrt", MakeSqrt},
      {"Cast", MakeCast},
      {"MatMul", MakeMatMul},
      {"Sum", MakeSum},
      {"Mean", MakeMean},
      {"Max", MakeMax},
      {"Min", MakeMin},
      {"RandomUniform", MakeRandomUniform},
      {"RandomStandardNormal", MakeRandomStandardNormal},
      {"VarHandleOp", MakeVarHandle},
      {"AssignVariableOp", MakeAssignVariable},
      {"AssignAddVariableOp", MakeAssignAddVariable},
      {"ReadVariableOp", MakeReadVariable},
      {"VarIsInitializedOp", MakeVarIsInitialized},
  };
  return *kMakers;
}

// True if a device's node does not use the device: its tensors are in host memory, are only
// forwarded, or only their shape is read.
bool NeedsNoDevice(const graph::KernelSchema& kernel, absl::string_view op) {
  if (kernel.device_type == "CPU") return true;
  constexpr absl::string_view kNeedNone[] = {"Placeholder",    "PlaceholderWithDefault",
                                             "Identity",       "IdentityN",
                                             "NoOp",           "Reshape",
                                             "ExpandDims",     "Squeeze",
                                             "Shape",          "Rank",
                                             "VarHandleOp",    "AssignVariableOp",
                                             "ReadVariableOp", "VarIsInitializedOp"};
  if (std::find(std::begin(kNeedNone), std::end(kNeedNone), op) != std::end(kNeedNone)) return true;
  return std::find(kernel.host_args.begin(), kernel.host_args.end(), "*") != kernel.host_args.end();
}

}  // namespace

size_t MemoryBytes() {
  constexpr size_t kUnknown = size_t{16} << 30;
  const size_t bytes = Usable().memory_bytes;
  return bytes == 0 ? kUnknown : bytes;
}

absl::Status KernelContext::CheckBytes(size_t bytes) const {
  if (bytes <= environment_.max_tensor_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("OOM when allocating ", bytes,
                                                   " bytes for a tensor; the limit "
                                                   "(max_tensor_bytes) is ",
                                                   environment_.max_tensor_bytes));
}

absl::StatusOr<Tensor> KernelContext::Allocate(DataType dtype, const Shape& shape) const {
  const absl::StatusOr<size_t> bytes = TensorBytes(dtype, shape);
  // A size that overflows exceeds the limit as well.
  absl::Status status = bytes.ok() || !IsFixedSize(dtype)
                            ? bytes.status()
                            : absl::ResourceExhaustedError(bytes.status().message());
  if (status.ok()) status = CheckBytes(*bytes);
  if (status.ok()) {
    absl::StatusOr<std::shared_ptr<Buffer>> buffer =
        environment_.allocate ? environment_.allocate(*bytes) : AllocateHeapBuffer(*bytes);
    if (buffer.ok()) return Tensor::Create(dtype, shape, *std::move(buffer));
    status = buffer.status();
  }
  return AsOutOfMemory(status, dtype, shape);
}

absl::Status AsOutOfMemory(const absl::Status& status, DataType dtype, const Shape& shape) {
  if (status.code() != absl::StatusCode::kResourceExhausted) return status;
  return absl::ResourceExhaustedError(absl::StrCat("OOM when allocating tensor with shape",
                                                   ToString(shape), " and type ",
                                                   DataTypeName(dtype), ": ", status.message()));
}

absl::StatusOr<std::unique_ptr<Kernel>> MakeKernel(const tensorflow::NodeDef& node,
                                                   absl::string_view device_type,
                                                   const OpenGpu& open_gpu) {
  const graph::OpSchema* const op = graph::FindOp(node.op());
  if (op == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("Op type not registered '", node.op(), "' in node ", node.name()));
  }
  FERRY_RETURN_IF_ERROR(graph::CheckAttrs(*op, node));
  const graph::KernelSchema* const kernel = graph::FindKernel(*op, node, device_type);
  if (kernel == nullptr) {
    return absl::NotFoundError(absl::StrCat("No registered '", node.op(), "' OpKernel for '",
                                            device_type, "' devices compatible with node {{node ",
                                            node.name(),
                                            "}}\n\t (OpKernel was found, but "
                                            "attributes didn't match) Requested Attributes: ",
                                            graph::TypeAttrsText(*op, node)));
  }
  const auto maker = Makers().find(node.op());
  if (maker == Makers().end()) {
    return absl::UnimplementedError(
        absl::StrCat("Op ", node.op(), " of node ", node.name(), " has no kernel of its own"));
  }
  if (NeedsNoDevice(*kernel, node.op())) return maker->second(NodeAttrs(node));
  const GpuMaker gpu_maker = device_type == "GPU" && open_gpu ? FindGpuMaker(node.op()) : nullptr;
  if (gpu_maker == nullptr) {
    return absl::UnimplementedError(absl::StrCat("Op ", node.op(), " of node ", node.name(),
                                                 " has no kernel for ", device_type,
                                                 " devices; place it on a CPU"));
  }
  FERRY_ASSIGN_OR_RETURN(const KernelGpu gpu, open_gpu());
  return gpu_maker(NodeAttrs(node), gpu);
}

absl::Status AttachNode(const absl::Status& status, absl::string_view node_name) {
  if (status.ok()) return status;
  // TensorFlow marks only the first node.
  const bool is_marked = absl::StrContains(status.message(), "{{node ");
  absl::Status attached(status.code(),
                        absl::StrCat(status.message(), "\n\t [[", is_marked ? "" : "{{node ",
                                     node_name, is_marked ? "" : "}}", "]]"));
  status.ForEachPayload([&attached](absl::string_view url, const absl::Cord& payload) {
    attached.SetPayload(url, payload);
  });
  return attached;
}

}  // namespace ferry::worker

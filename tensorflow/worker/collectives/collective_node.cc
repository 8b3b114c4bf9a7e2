// SPDX-License-Identifier: Apache-2.0
// Reads attributes (first versions of the ops) and inputs (second versions).
#include "tensorflow/worker/collectives/collective_node.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "tensorflow/graph/collective.h"
#include "tensorflow/graph/names.h"
#include "tensorflow/worker/kernels/node_attrs.h"

namespace ferry::worker {
namespace {

constexpr int32_t kMaxGroupSize = 1 << 16;

absl::Status CheckGroupSize(int32_t size) {
  if (size <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("group_size must be positive integer but got ", size));
  }
  if (size > kMaxGroupSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("a group of ", size, " members: more than ", kMaxGroupSize));
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> Int32Of(const NodeAttrs& attrs, absl::string_view name) {
  const int64_t value = attrs.Int(name);
  if (value == static_cast<int32_t>(value)) return static_cast<int32_t>(value);
  return absl::InvalidArgumentError(
      absl::StrCat("Attr ", name, " has value ", value, " out of range for an int32"));
}

absl::StatusOr<Shape> ShapeOf(const tensorflow::TensorShapeProto& proto) {
  std::vector<int64_t> dims;
  for (const auto& dim : proto.dim()) dims.push_back(dim.size());
  return Shape::Create(dims);
}

absl::StatusOr<CollectiveDevice> DeviceOf(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ';');
  std::optional<TaskDevice> device;
  if (parts.size() == 2) device = ParseDeviceName(parts[0]);
  uint64_t incarnation = 0;
  if (!device.has_value() || !absl::SimpleHexAtoi(parts[1], &incarnation)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(text), " in ", graph::kCollectiveDevices, " is no device"));
  }
  return CollectiveDevice{parts[0], *device, incarnation};
}

absl::Status ReadDevices(const tensorflow::NodeDef& node, absl::string_view device,
                         CollectiveNode& result) {
  const auto found = node.attr().find(std::string(graph::kCollectiveDevices));
  if (found == node.attr().end()) {
    return absl::InvalidArgumentError(absl::StrCat("a collective without the attribute ",
                                                   graph::kCollectiveDevices,
                                                   ", by which masters tell who may take part"));
  }
  auto devices = std::make_shared<CollectiveDevices>();
  const std::optional<TaskDevice> own = ParseDeviceName(device);
  result.self = -1;
  for (const std::string& text : found->second.list().s()) {
    FERRY_ASSIGN_OR_RETURN(CollectiveDevice each, DeviceOf(text));
    if (own.has_value() && each.device == *own) result.self = static_cast<int>(devices->size());
    devices->push_back(std::move(each));
  }
  if (result.self < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(device), " is not among the devices of ", graph::kCollectiveDevices));
  }
  result.devices = std::move(devices);
  return absl::OkStatus();
}

absl::StatusOr<int32_t> KeyOf(absl::string_view name, const Tensor& tensor) {
  if (tensor.shape().rank() > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Unexpected dimensions on input ", name, ", got ", ToString(tensor.shape())));
  }
  if (tensor.dtype() != DataType::kInt32) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", ToString(tensor)));
  }
  return tensor.elements<int32_t>()[0];
}

absl::Status CheckInput(const CollectiveNode& node, const Tensor& input) {
  if (node.memory.space == MemorySpace::kHost) return CheckOnHost(input, "run a collective with");
  if (input.bytes() == 0 || input.location() == node.memory) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a collective on ", ToString(node.memory),
                                          " cannot take ", ToString(input), " in memory of ",
                                          ToString(input.location())));
}

absl::StatusOr<Shape> ShapeIn(const Tensor& tensor) {
  if (tensor.shape().rank() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("shape must be a vector of {int32,int64}, got ",
                                                   "shape ", ToString(tensor.shape())));
  }
  std::vector<int64_t> dims;
  if (tensor.dtype() == DataType::kInt32) {
    for (const int32_t dim : tensor.elements<int32_t>()) dims.push_back(dim);
  } else {
    for (const int64_t dim : tensor.elements<int64_t>()) dims.push_back(dim);
  }
  return Shape::Create(dims);
}

absl::StatusOr<Shape> GatheredShape(const Shape& input, int32_t group_size) {
  if (input.rank() == 0) {
    return absl::InvalidArgumentError("input should have rank > 0, received 0");
  }
  std::vector<int64_t> dims(input.dims().begin(), input.dims().end());
  if (dims[0] > std::numeric_limits<int64_t>::max() / group_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(group_size, " times ", ToString(input), " is too large"));
  }
  dims[0] *= group_size;
  return Shape::Create(dims);
}

}  // namespace

absl::StatusOr<CollectiveNode> ReadCollective(const tensorflow::NodeDef& node,
                                              absl::string_view device) {
  const NodeAttrs attrs(node);
  CollectiveNode result;
  result.name = node.name();
  result.has_key_inputs = absl::EndsWith(node.op(), "V2");
  if (absl::StrContains(node.op(), "Bcast")) {
    result.kind = CollectiveKind::kBroadcast;
    result.is_source = absl::StrContains(node.op(), "Send");
  } else if (absl::StrContains(node.op(), "Gather")) {
    result.kind = CollectiveKind::kGather;
  } else {
    const std::string& merge = attrs.String("merge_op");
    result.merge = merge == "Mul"   ? MergeOp::kMul
                   : merge == "Max" ? MergeOp::kMax
                   : merge == "Min" ? MergeOp::kMin
                                    : MergeOp::kAdd;
    result.divides = attrs.String("final_op") == "Div";
  }
  result.dtype = attrs.Type("T");
  result.hint = attrs.String("communication_hint");
  const float timeout_s = attrs.Get("timeout_seconds").f();
  if (timeout_s > 0) result.timeout = absl::Seconds(static_cast<double>(timeout_s));
  if (!result.has_key_inputs) {
    FERRY_ASSIGN_OR_RETURN(result.group_size, Int32Of(attrs, "group_size"));
    FERRY_RETURN_IF_ERROR(CheckGroupSize(result.group_size));
    FERRY_ASSIGN_OR_RETURN(result.group_key, Int32Of(attrs, "group_key"));
    FERRY_ASSIGN_OR_RETURN(result.instance_key, Int32Of(attrs, "instance_key"));
    if (result.kind == CollectiveKind::kBroadcast) {
      FERRY_ASSIGN_OR_RETURN(result.shape, ShapeOf(attrs.Get("shape").shape()));
    }
  }
  FERRY_RETURN_IF_ERROR(ReadDevices(node, device, result));
  return result;
}

absl::StatusOr<CollectiveCall> ReadCall(const CollectiveNode& node,
                                        absl::Span<const Tensor> inputs) {
  const bool has_input = node.kind != CollectiveKind::kBroadcast || node.is_source;
  CollectiveCall call{node.group_size, node.group_key, node.instance_key, node.shape, {}};
  if (has_input) {
    call.input = inputs[0];
    FERRY_RETURN_IF_ERROR(CheckInput(node, call.input));
  }
  if (node.has_key_inputs) {
    const absl::Span<const Tensor> keys = inputs.subspan(has_input ? 1 : 0);
    FERRY_ASSIGN_OR_RETURN(call.group_size, KeyOf("group_size", keys[0]));
    FERRY_ASSIGN_OR_RETURN(call.group_key, KeyOf("group_key", keys[1]));
    FERRY_ASSIGN_OR_RETURN(call.instance_key, KeyOf("instance_key", keys[2]));
    FERRY_RETURN_IF_ERROR(CheckGroupSize(call.group_size));
    if (!has_input) {
      FERRY_ASSIGN_OR_RETURN(call.shape, ShapeIn(keys[3]));
    }
  } else if (has_input && node.kind == CollectiveKind::kBroadcast &&
             !(call.input.shape() == node.shape)) {
    return absl::InternalError(absl::StrCat("Declared shape of op ", node.name,
                                            ": Broadcast(1) does not match shape of input"));
  }
  if (node.kind == CollectiveKind::kGather) {
    FERRY_ASSIGN_OR_RETURN(call.shape, GatheredShape(call.input.shape(), call.group_size));
  } else if (has_input) {
    call.shape = call.input.shape();
  }
  return call;
}

absl::StatusOr<RendezvousKey> CollectiveKey(const CollectiveDevices& devices, int src, int dst,
                                            absl::string_view edge) {
  const CollectiveDevice& from = devices[static_cast<size_t>(src)];
  const CollectiveDevice& to = devices[static_cast<size_t>(dst)];
  if (from.device.type == "CPU" && to.device.type == "CPU") {
    return RendezvousKey::Parse(RendezvousKey::Text(from.name, from.incarnation, to.name, edge));
  }
  // Sent between hosts, which may own several of the devices: the edge names the pair of devices.
  const auto host_of = [](const CollectiveDevice& device) {
    return ToString(TaskDevice{device.device.task, "CPU", 0});
  };
  return RendezvousKey::Parse(RendezvousKey::Text(host_of(from), from.incarnation, host_of(to),
                                                  absl::StrCat(edge, " ", src, ">", dst)));
}

}  // namespace ferry::worker

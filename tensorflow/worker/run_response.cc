// SPDX-License-Identifier: Apache-2.0
// Writes tags and lengths by hand, and adds elements as slices.
#include "tensorflow/worker/run_response.h"

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "rendezvous/recv_tensor/tensor_coding.h"
#include "rendezvous/recv_tensor/wire.h"
#include "tensor/tensor_proto.h"

namespace ferry::worker {
namespace {

using tensorflow::NamedTensorProto;
using tensorflow::RunGraphResponse;
using tensorflow::TensorProto;
using wire::AppendVarint;
using wire::BytesTag;
using wire::VarintBytes;

// Returns the encoding that precedes the elements of a large tensor.
std::string Prefix(const std::string& name, const Tensor& tensor) {
  TensorProto header;
  FillTensorHeader(tensor, header);
  std::string inner = header.SerializeAsString();
  AppendVarint(BytesTag(TensorProto::kTensorContentFieldNumber), inner);
  AppendVarint(tensor.bytes(), inner);
  std::string named;
  AppendVarint(BytesTag(NamedTensorProto::kNameFieldNumber), named);
  AppendVarint(name.size(), named);
  named += name;
  AppendVarint(BytesTag(NamedTensorProto::kTensorFieldNumber), named);
  AppendVarint(inner.size() + tensor.bytes(), named);
  named += inner;
  std::string prefix;
  AppendVarint(BytesTag(RunGraphResponse::kRecvFieldNumber), prefix);
  AppendVarint(named.size() + tensor.bytes(), prefix);
  return prefix + named;
}

}  // namespace

absl::StatusOr<grpc::ByteBuffer> EncodeRunResponse(
    const tensorflow::RunGraphResponse& response,
    absl::Span<const std::pair<std::string, Tensor>> fetched) {
  // Concatenation is valid: fields may be in any order, and repeated fields may be split.
  size_t total = response.ByteSizeLong();
  for (const auto& [name, tensor] : fetched) {
    FERRY_RETURN_IF_ERROR(CheckOnHost(tensor, "encode"));
    total += tensor.bytes();
  }
  if (total > kMaxUnaryBytes) {
    return absl::InvalidArgumentError(absl::StrCat("what a step fetches from one worker has ",
                                                   total, " bytes; a RunGraphResponse holds ",
                                                   kMaxUnaryBytes, ". Fetch less at once"));
  }
  std::vector<grpc::Slice> slices;
  std::string small = response.SerializeAsString();
  for (const auto& [name, tensor] : fetched) {
    if (IsFixedSize(tensor.dtype()) && tensor.bytes() > kMaxCopiedBytes) {
      small += Prefix(name, tensor);
      slices.emplace_back(small);
      small.clear();
      slices.push_back(SliceOf(tensor));
      continue;
    }
    RunGraphResponse one;
    NamedTensorProto& named = *one.add_recv();
    named.set_name(name);
    FERRY_ASSIGN_OR_RETURN(*named.mutable_tensor(), TensorToProto(tensor));
    small += one.SerializeAsString();
  }
  if (!small.empty() || slices.empty()) slices.emplace_back(small);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace ferry::worker

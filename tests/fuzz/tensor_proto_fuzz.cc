// SPDX-License-Identifier: Apache-2.0
// TensorProto messages as any peer may send them.
#include <climits>
#include <cstddef>
#include <cstdint>

#include <google/protobuf/stubs/logging.h>

#include "base/status_macros.h"
#include "tensor/tensor_proto.h"

namespace ferry {
namespace {

constexpr size_t kMaxBytes = 1 << 16;

void Check(const uint8_t* data, size_t size) {
  // It logs a line about every name that is not UTF-8.
  [[maybe_unused]] static const bool kIsSilent =
      google::protobuf::SetLogHandler(nullptr) != nullptr;
  tensorflow::TensorProto proto;
  if (size > INT_MAX || !proto.ParseFromArray(data, static_cast<int>(size))) return;
  const absl::StatusOr<Tensor> tensor = TensorFromProto(proto, kMaxBytes);
  if (!tensor.ok()) {
    FERRY_CHECK(absl::IsInvalidArgument(tensor.status()) ||
                absl::IsResourceExhausted(tensor.status()));
    return;
  }
  FERRY_CHECK(tensor->is_valid());
  // Repeated strings are limited by themselves; those that are there were in the message.
  FERRY_CHECK(tensor->bytes() <= kMaxBytes + (tensor->dtype() == DataType::kString ? size : 0));
  const absl::StatusOr<tensorflow::TensorProto> written = TensorToProto(*tensor);
  FERRY_CHECK(written.ok());
  tensorflow::TensorProto sent;
  FERRY_CHECK(sent.ParseFromString(written->SerializeAsString()));
  const absl::StatusOr<Tensor> read = TensorFromProto(sent, kMaxBytes);
  FERRY_CHECK(read.ok());
  FERRY_CHECK(IsEqual(*read, *tensor));
}

}  // namespace
}  // namespace ferry

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ferry::Check(data, size);
  return 0;
}

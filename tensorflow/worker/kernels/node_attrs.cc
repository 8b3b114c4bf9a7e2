// SPDX-License-Identifier: Apache-2.0
// Reads attributes.
#include "tensorflow/worker/kernels/node_attrs.h"

#include "base/status_macros.h"

namespace ferry::worker {

const tensorflow::AttrValue& NodeAttrs::Get(absl::string_view attr) const {
  const auto found = node_.attr().find(std::string(attr));
  FERRY_CHECK(found != node_.attr().end());
  return found->second;
}

DataType NodeAttrs::Type(absl::string_view attr) const {
  return DataTypeOfNumber(static_cast<int>(Get(attr).type())).value_or(DataType::kInvalid);
}

std::vector<int64_t> NodeAttrs::Ints(absl::string_view attr) const {
  const auto& values = Get(attr).list().i();
  return {values.begin(), values.end()};
}

}  // namespace ferry::worker

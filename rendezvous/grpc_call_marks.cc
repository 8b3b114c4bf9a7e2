// SPDX-License-Identifier: Apache-2.0
// Checksums of requests and of values, as text.
#include "rendezvous/grpc_call_marks.h"

#include <vector>

#include "absl/strings/str_cat.h"

#include "tensor/checksum.h"

namespace ferry {
namespace {

constexpr char kWhatToDo[] =
    "Memory or a network card of one of the two machines changes bits: look for memory errors in "
    "their kernels' logs (`dmesg | grep -i -E 'edac|mce|hardware error'`), run the step again, and "
    "take the machine out of the job if it happens again";

template <typename Number>
absl::string_view BytesOf(const Number& number) {
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

std::string AsText(uint64_t sum) { return absl::StrCat(absl::Hex(sum, absl::kZeroPad16)); }

}  // namespace

std::string ChecksumMark(const TensorCall& call) {
  return AsText(Checksum({BytesOf(call.step_id), BytesOf(call.request_id), call.key}, 0));
}

std::string ChecksumMark(const ServedValue& value) {
  if (value.is_dead) return "dead";
  const Tensor& tensor = value.tensor;
  const auto dtype = static_cast<int32_t>(tensor.dtype());
  const auto dims = tensor.shape().dims();
  std::vector<absl::string_view> parts = {
      BytesOf(dtype), {reinterpret_cast<const char*>(dims.data()), dims.size() * sizeof(dims[0])}};
  std::vector<uint64_t> lengths;
  if (tensor.dtype() == DataType::kString) {
    for (const std::string& each : tensor.strings()) lengths.push_back(each.size());
    parts.emplace_back(reinterpret_cast<const char*>(lengths.data()),
                       lengths.size() * sizeof(uint64_t));
    for (const std::string& each : tensor.strings()) parts.push_back(each);
  } else {
    parts.emplace_back(static_cast<const char*>(tensor.data()), tensor.bytes());
  }
  return AsText(Checksum(parts, 0));
}

std::optional<absl::string_view> FindMark(const CallMetadata& metadata, absl::string_view name) {
  const grpc::string_ref key(name.data(), name.size());
  if (metadata.count(key) != 1) return std::nullopt;
  const grpc::string_ref found = metadata.find(key)->second;
  return absl::string_view(found.data(), found.size());
}

absl::Status CheckCall(const CallMetadata& metadata, const TensorCall& call) {
  const std::optional<absl::string_view> sent = FindMark(metadata, kChecksumMark);
  if (!sent.has_value()) return absl::OkStatus();
  const std::string here = ChecksumMark(call);
  if (*sent == here) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the request for a tensor has changed on its way: its checksum is ", here,
                   ", and it was sent with ", sent->substr(0, 32), ". ", kWhatToDo));
}

absl::Status CheckValue(const CallMetadata& trailer, const ServedValue& value, bool must_have) {
  const std::optional<absl::string_view> sent = FindMark(trailer, kChecksumMark);
  if (!sent.has_value()) {
    if (!must_have) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("the tensor has lost its checksum on its way. ", kWhatToDo));
  }
  const std::string here = ChecksumMark(value);
  if (*sent == here) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(value.is_dead ? "a dead value" : ToString(value.tensor),
                                          " has checksum ", here, ", and was sent with ",
                                          sent->substr(0, 32), ". ", kWhatToDo));
}

}  // namespace ferry

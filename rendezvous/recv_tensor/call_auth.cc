// SPDX-License-Identifier: Apache-2.0
// Text encoding of checksums and authentication tags.
#include "rendezvous/recv_tensor/call_auth.h"

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "tensor/checksum.h"
#include "transport/control/auth_handshake.h"

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

absl::Status MissingAuthTag() {
  return absl::UnauthenticatedError(
      "the call is not authenticated with the job's token, which this node requires "
      "(--require-auth). Ferry's nodes authenticate their calls when they have the same token "
      "(FERRY_JOB_TOKEN); TensorFlow's workers cannot");
}

absl::Status WrongAuthTag() {
  return absl::UnauthenticatedError(
      "the caller does not know the job's token, or repeats what another one has said: is it of "
      "another job (FERRY_JOB_TOKEN)?");
}

// Checks the authentication tag itself only if there is a token to check it with.
absl::Status CheckAuthTag(const CallMetadata& metadata, const AuthPolicy& policy,
                          int64_t request_id, absl::FunctionRef<std::string()> auth_tag) {
  if (policy.token.empty()) return absl::OkStatus();
  const std::optional<absl::string_view> sent = FindMetadata(metadata, kAuthTagMetadata);
  if (!sent.has_value()) {
    if (!policy.is_required) return absl::OkStatus();
    return MissingAuthTag();
  }
  // Without an id, an intercepted authentication tag could be replayed any number of times.
  if (policy.is_required && request_id == 0) {
    return absl::UnauthenticatedError("a call without a request id cannot be authenticated");
  }
  if (IsSameAuthTag(*sent, auth_tag())) return absl::OkStatus();
  return WrongAuthTag();
}

}  // namespace

std::string AuthTag(absl::string_view token, const TensorCall& call) {
  return absl::BytesToHexString(HmacSha256(
      token,
      absl::StrCat("ferry RecvTensor", BytesOf(call.step_id), BytesOf(call.request_id), call.key)));
}

std::string AuthTag(absl::string_view token, int64_t finished_request_id) {
  return absl::BytesToHexString(
      HmacSha256(token, absl::StrCat("ferry MarkRecvFinished", BytesOf(finished_request_id))));
}

absl::Status CheckAuthTag(const CallMetadata& metadata, const AuthPolicy& policy,
                          const TensorCall& call) {
  return CheckAuthTag(metadata, policy, call.request_id,
                      [&] { return AuthTag(policy.token, call); });
}

absl::Status CheckAuthTag(const CallMetadata& metadata, const AuthPolicy& policy,
                          int64_t finished_request_id) {
  return CheckAuthTag(metadata, policy, finished_request_id,
                      [&] { return AuthTag(policy.token, finished_request_id); });
}

std::string MethodAuthTag(absl::string_view token, absl::string_view method, int64_t nonce) {
  return absl::StrCat(absl::Hex(nonce, absl::kZeroPad16),
                      absl::BytesToHexString(
                          HmacSha256(token, absl::StrCat("ferry call", BytesOf(nonce), method))));
}

absl::StatusOr<int64_t> CheckMethodAuthTag(const CallMetadata& metadata, absl::string_view token,
                                           absl::string_view method) {
  const std::optional<absl::string_view> sent = FindMetadata(metadata, kAuthTagMetadata);
  if (!sent.has_value()) return MissingAuthTag();
  uint64_t nonce = 0;
  if (sent->size() > 16 && absl::SimpleHexAtoi(sent->substr(0, 16), &nonce) && nonce != 0 &&
      IsSameAuthTag(*sent, MethodAuthTag(token, method, static_cast<int64_t>(nonce)))) {
    return static_cast<int64_t>(nonce);
  }
  return WrongAuthTag();
}

std::string ChecksumText(const TensorCall& call) {
  return AsText(Checksum({BytesOf(call.step_id), BytesOf(call.request_id), call.key}, 0));
}

std::string ChecksumText(const ServedValue& value) {
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

std::optional<absl::string_view> FindMetadata(const CallMetadata& metadata,
                                              absl::string_view name) {
  const grpc::string_ref key(name.data(), name.size());
  if (metadata.count(key) != 1) return std::nullopt;
  const grpc::string_ref found = metadata.find(key)->second;
  return absl::string_view(found.data(), found.size());
}

absl::Status CheckCallChecksum(const CallMetadata& metadata, const TensorCall& call) {
  const std::optional<absl::string_view> sent = FindMetadata(metadata, kChecksumMetadata);
  if (!sent.has_value()) return absl::OkStatus();
  const std::string here = ChecksumText(call);
  if (*sent == here) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the request for a tensor has changed on its way: its checksum is ", here,
                   ", and it was sent with ", sent->substr(0, 32), ". ", kWhatToDo));
}

absl::Status CheckValueChecksum(const CallMetadata& trailer, const ServedValue& value,
                                bool must_have) {
  const std::optional<absl::string_view> sent = FindMetadata(trailer, kChecksumMetadata);
  if (!sent.has_value()) {
    if (!must_have) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("the tensor has lost its checksum on its way. ", kWhatToDo));
  }
  const std::string here = ChecksumText(value);
  if (*sent == here) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(value.is_dead ? "a dead value" : ToString(value.tensor),
                                          " has checksum ", here, ", and was sent with ",
                                          sent->substr(0, 32), ". ", kWhatToDo));
}

}  // namespace ferry

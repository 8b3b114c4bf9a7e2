// SPDX-License-Identifier: Apache-2.0
// Metadata of calls for tensors, which TensorFlow's workers ignore: authentication tags and
// checksums.
#ifndef FERRY_RENDEZVOUS_RECV_TENSOR_CALL_AUTH_H_
#define FERRY_RENDEZVOUS_RECV_TENSOR_CALL_AUTH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <grpcpp/support/string_ref.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "rendezvous/auth_policy.h"
#include "rendezvous/response_cache.h"

namespace ferry {

using CallMetadata = std::multimap<grpc::string_ref, grpc::string_ref>;

// The value requested.
struct TensorCall {
  int64_t step_id = 0;
  int64_t request_id = 0;
  absl::string_view key;
};

// In a request: the checksum of its fields. It also requests the response's checksum, which is sent
// in the trailing metadata under the same name.
inline constexpr char kChecksumMetadata[] = "ferry-checksum";

std::string ChecksumText(const TensorCall& call);
// Covers type, shape and elements.
std::string ChecksumText(const ServedValue& value);

// In a request: HMAC-SHA256, with the job's token, of the worker's incarnation, step, key and
// request id: valid only for this request, which no worker serves twice.
inline constexpr char kAuthTagMetadata[] = "ferry-proof";

// REQUIRES: a token.
std::string AuthTag(absl::string_view token, const TensorCall& call);
// For MarkRecvFinished.
std::string AuthTag(absl::string_view token, int64_t finished_request_id);

// For a call that is not about a tensor: "/tensorflow.WorkerService/RunGraph". The tag contains
// `nonce`, which must be different each time.
std::string MethodAuthTag(absl::string_view token, absl::string_view method, int64_t nonce);
// Server side, where an authentication tag is required. Returns the nonce, which the caller must
// check for reuse.
//   Errors: UNAUTHENTICATED for no authentication tag, or one not made with this token for this
//   method.
absl::StatusOr<int64_t> CheckMethodAuthTag(const CallMetadata& metadata, absl::string_view token,
                                           absl::string_view method);

// The value under that name; nothing if it is missing, or present more than once.
std::optional<absl::string_view> FindMetadata(const CallMetadata& metadata, absl::string_view name);

// Server side; a call without a checksum is accepted.
//   Errors: DATA_LOSS saying what to do.
absl::Status CheckCallChecksum(const CallMetadata& metadata, const TensorCall& call);
// Server side.
//   Errors: UNAUTHENTICATED for an authentication tag not made with this token, or not for this
//   call; or for none, if it is required.
absl::Status CheckAuthTag(const CallMetadata& metadata, const AuthPolicy& policy,
                          const TensorCall& call);
absl::Status CheckAuthTag(const CallMetadata& metadata, const AuthPolicy& policy,
                          int64_t finished_request_id);

// Client side.
//   must_have: whether the server sends checksums.
//   Errors: DATA_LOSS saying what to do.
absl::Status CheckValueChecksum(const CallMetadata& trailer, const ServedValue& value,
                                bool must_have);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RECV_TENSOR_CALL_AUTH_H_

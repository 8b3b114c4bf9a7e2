// SPDX-License-Identifier: Apache-2.0
// Metadata of calls for tensors, which TensorFlow's workers ignore.
#ifndef FERRY_RENDEZVOUS_RECV_TENSOR_CALL_MARKS_H_
#define FERRY_RENDEZVOUS_RECV_TENSOR_CALL_MARKS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <grpcpp/support/string_ref.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "rendezvous/proof_policy.h"
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
inline constexpr char kChecksumMark[] = "ferry-checksum";

std::string ChecksumMark(const TensorCall& call);
// Covers type, shape and elements.
std::string ChecksumMark(const ServedValue& value);

// In a request: HMAC-SHA256, with the job's token, of the worker's incarnation, step, key and
// request id: valid only for this request, which no worker serves twice.
inline constexpr char kProofMark[] = "ferry-proof";

// REQUIRES: a token.
std::string ProofMark(absl::string_view token, const TensorCall& call);
// For MarkRecvFinished.
std::string ProofMark(absl::string_view token, int64_t finished_request_id);

// For a call that is not about a tensor: "/tensorflow.WorkerService/RunGraph". The mark contains
// `nonce`, which must be different each time.
std::string MethodProofMark(absl::string_view token, absl::string_view method, int64_t nonce);
// Server side, where a proof is required. Returns the nonce, which the caller must check for reuse.
//   Errors: UNAUTHENTICATED for no proof, or one not made with this token for this method.
absl::StatusOr<int64_t> CheckMethodProof(const CallMetadata& metadata, absl::string_view token,
                                         absl::string_view method);

// The value of a mark; nothing if it is missing, or present more than once.
std::optional<absl::string_view> FindMark(const CallMetadata& metadata, absl::string_view name);

// Server side; a call without the mark is accepted.
//   Errors: DATA_LOSS saying what to do.
absl::Status CheckCall(const CallMetadata& metadata, const TensorCall& call);
// Server side.
//   Errors: UNAUTHENTICATED for a proof not made with this token, or not for this call; or for
//   none, if it is required.
absl::Status CheckProof(const CallMetadata& metadata, const ProofPolicy& policy,
                        const TensorCall& call);
absl::Status CheckProof(const CallMetadata& metadata, const ProofPolicy& policy,
                        int64_t finished_request_id);

// Client side.
//   must_have: whether the server supports the mark.
//   Errors: DATA_LOSS saying what to do.
absl::Status CheckValue(const CallMetadata& trailer, const ServedValue& value, bool must_have);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RECV_TENSOR_CALL_MARKS_H_

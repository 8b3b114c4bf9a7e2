// SPDX-License-Identifier: Apache-2.0
// What calls for tensors say in their metadata, which TensorFlow's workers do not look at.
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

// What is asked for.
struct TensorCall {
  int64_t step_id = 0;
  int64_t request_id = 0;
  absl::string_view key;
};

// Of a request: the checksum of what it asks for. It also asks for the answer's, which then comes
// in the trailing metadata under the same name.
inline constexpr char kChecksumMark[] = "ferry-checksum";

std::string ChecksumMark(const TensorCall& call);
// Over type, shape and elements.
std::string ChecksumMark(const ServedValue& value);

// Of a request: HMAC-SHA256, with the job's token, of the worker's life, step, key and request id:
// good for this request alone, which no worker serves twice.
inline constexpr char kProofMark[] = "ferry-proof";

// REQUIRES: a token.
std::string ProofMark(absl::string_view token, const TensorCall& call);
// For MarkRecvFinished.
std::string ProofMark(absl::string_view token, int64_t finished_request_id);

// For a call that is not about a tensor: "/tensorflow.WorkerService/RunGraph". The mark has `nonce`
// in it, which is to be another one each time.
std::string MethodProofMark(absl::string_view token, absl::string_view method, int64_t nonce);
// At the server, where a proof is required. Returns the nonce, which must not have come before.
//   Errors: UNAUTHENTICATED for no proof, or one that was not made with this token for this method.
absl::StatusOr<int64_t> CheckMethodProof(const CallMetadata& metadata, absl::string_view token,
                                         absl::string_view method);

// The value of a mark; nothing if there is none, or more than one.
std::optional<absl::string_view> FindMark(const CallMetadata& metadata, absl::string_view name);

// At the server; a call without the mark is as good as any.
//   Errors: DATA_LOSS saying what to do.
absl::Status CheckCall(const CallMetadata& metadata, const TensorCall& call);
// At the server.
//   Errors: UNAUTHENTICATED for a proof that was not made with this token, or not of this call; or
//   for none, if it is required.
absl::Status CheckProof(const CallMetadata& metadata, const ProofPolicy& policy,
                        const TensorCall& call);
absl::Status CheckProof(const CallMetadata& metadata, const ProofPolicy& policy,
                        int64_t finished_request_id);

// At the client.
//   must_have: whether the server understands the mark.
//   Errors: DATA_LOSS saying what to do.
absl::Status CheckValue(const CallMetadata& trailer, const ServedValue& value, bool must_have);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RECV_TENSOR_CALL_MARKS_H_

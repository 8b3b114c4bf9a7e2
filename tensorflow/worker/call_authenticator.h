// SPDX-License-Identifier: Apache-2.0
// CallAuthenticator: authenticates calls of a worker's service.
#ifndef FERRY_TENSORFLOW_WORKER_CALL_AUTHENTICATOR_H_
#define FERRY_TENSORFLOW_WORKER_CALL_AUTHENTICATOR_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "rendezvous/auth_policy.h"
#include "rendezvous/recent_request_ids.h"
#include "rendezvous/recv_tensor/call_auth.h"

namespace ferry::worker {

// Thread-safe. Accepts every call unless AuthPolicy::is_required.
class CallAuthenticator final {
 public:
  explicit CallAuthenticator(AuthPolicy policy) : policy_(std::move(policy)) {}

  //   Errors: UNAUTHENTICATED.
  absl::Status Check(const CallMetadata& metadata, absl::string_view method) {
    if (!policy_.is_required) return absl::OkStatus();
    const absl::StatusOr<int64_t> nonce = CheckMethodAuthTag(metadata, policy_.token, method);
    if (!nonce.ok()) return nonce.status();
    if (seen_.TrackUnique(*nonce, method).ok()) return absl::OkStatus();
    return absl::UnauthenticatedError(
        "the caller repeats the authentication tag of an earlier call");
  }

 private:
  const AuthPolicy policy_;
  RecentRequestIds seen_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_CALL_AUTHENTICATOR_H_

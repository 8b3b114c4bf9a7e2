// SPDX-License-Identifier: Apache-2.0
// HMACs over the coordinator's incarnation.
#include "cli/end_job_auth.h"

#include <optional>

#include "node/endpoint_record.h"
#include "node/identity.h"
#include "node/transfer_engine.h"
#include "rendezvous/recv_tensor/call_auth.h"
#include "transport/control/auth_handshake.h"

namespace ferry::cli {

std::string EndJobAuthTag(absl::string_view token, uint64_t coordinator_incarnation) {
  return MethodAuthTag(token, "/ferry.v1.Control/EndJob",
                       static_cast<int64_t>(coordinator_incarnation));
}

void RequireEndJobAuth(coord::ServerOptions& options) {
  // Errors of reading a token file are left to the nodes to report.
  options.check_end_job = [own = FindToken({}, ProcessEnv).value_or("")](
                              const coord::Coordinator& coordinator, absl::string_view auth_tag) {
    std::string token = own;
    if (token.empty()) {
      const std::optional<coord::StoreEntry> stored = coordinator.store().Find(kJobTokenKey);
      if (stored.has_value()) token = *stored->value;
    }
    if (token.empty() ||
        IsSameAuthTag(auth_tag, EndJobAuthTag(token, coordinator.incarnation().value()))) {
      return absl::OkStatus();
    }
    return absl::PermissionDeniedError(
        "the job has a token, and this request is not authenticated with it: set FERRY_JOB_TOKEN "
        "or "
        "FERRY_JOB_TOKEN_FILE to that of the coordinator and the nodes");
  };
}

}  // namespace ferry::cli

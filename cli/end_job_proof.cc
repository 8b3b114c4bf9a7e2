// SPDX-License-Identifier: Apache-2.0
// HMACs over the coordinator's incarnation.
#include "cli/end_job_proof.h"

#include <optional>

#include "node/endpoint_record.h"
#include "node/identity.h"
#include "node/transfer_engine.h"
#include "rendezvous/recv_tensor/call_marks.h"
#include "transport/control/handshake.h"

namespace ferry::cli {

std::string EndJobProof(absl::string_view token, uint64_t coordinator_incarnation) {
  return MethodProofMark(token, "/ferry.v1.Control/EndJob",
                         static_cast<int64_t>(coordinator_incarnation));
}

void RequireEndJobProof(coord::ServerOptions& options) {
  // Errors of reading a token file are left to the nodes to report.
  options.check_end_job = [own = FindToken({}, ProcessEnv).value_or("")](
                              const coord::Coordinator& coordinator, absl::string_view proof) {
    std::string token = own;
    if (token.empty()) {
      const std::optional<coord::StoreEntry> stored = coordinator.store().Find(kExchangeTokenKey);
      if (stored.has_value()) token = *stored->value;
    }
    if (token.empty() ||
        IsSameProof(proof, EndJobProof(token, coordinator.incarnation().value()))) {
      return absl::OkStatus();
    }
    return absl::PermissionDeniedError(
        "the job has a token, and this is no proof of it: set FERRY_JOB_TOKEN or "
        "FERRY_JOB_TOKEN_FILE to that of the coordinator and the nodes");
  };
}

}  // namespace ferry::cli

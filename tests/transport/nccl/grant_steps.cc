// SPDX-License-Identifier: Apache-2.0
// Interned endpoints and steps, found by their content.
#include "tests/transport/nccl/grant_steps.h"

#include <variant>

namespace ferry::grant_test {

KnownEndpoint::KnownEndpoint(BatchAgreementEndpoint value, int device_count)
    : endpoint(std::move(value)), hash(absl::HashOf(endpoint.self(), endpoint)), whole_hash(hash) {
  for (int peer = 0; peer < device_count; ++peer) {
    whole_hash = absl::HashOf(whole_hash, endpoint.last_serial(DeviceId(peer)));
  }
}

const KnownEndpoint* GrantSteps::Know(BatchAgreementEndpoint endpoint) {
  auto known = std::make_unique<const KnownEndpoint>(std::move(endpoint), device_count_);
  const size_t hash = known->whole_hash;
  return endpoints_.try_emplace(hash, std::move(known)).first->second.get();
}

void GrantSteps::Complete(const KnownEndpoint& before, BatchAgreementEndpoint after,
                          GrantStep& step) {
  step.after = Know(std::move(after));
  step.changes_nothing = step.actions.empty() && step.after->hash == before.hash;
  for (const GrantAction& action : step.actions) {
    if (const auto* send = std::get_if<SendMessage>(&action)) {
      step.hashes.push_back(absl::HashOf(send->message));
    } else if (const auto* launch = std::get_if<LaunchBatch>(&action)) {
      step.hashes.push_back(absl::HashOf(launch->batch));
    } else {
      step.hashes.push_back(0);
    }
  }
}

}  // namespace ferry::grant_test

// SPDX-License-Identifier: Apache-2.0
// GrantSteps: the steps of endpoints, each computed once for all worlds of a search.
#ifndef FERRY_TESTS_TRANSPORT_NCCL_GRANT_STEPS_H_
#define FERRY_TESTS_TRANSPORT_NCCL_GRANT_STEPS_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"

#include "transport/nccl/batch_agreement_endpoint.h"

namespace ferry::grant_test {

// The state of an endpoint at some moment, in any number of worlds.
struct KnownEndpoint {
  KnownEndpoint(BatchAgreementEndpoint value, int device_count);

  const BatchAgreementEndpoint endpoint;
  const size_t hash;
  // Also of the grants that it will not take a second time.
  size_t whole_hash;
};

struct GrantStep {
  const KnownEndpoint* after = nullptr;
  absl::Status status;
  BatchAgreementActions actions;
  // The message or batch of each action.
  std::vector<size_t> hashes;
  bool changes_nothing = false;
};

// There are many worlds, but few different endpoints in them. The results of Take and Know live as
// long as this object. Not thread-safe.
class GrantSteps final {
 public:
  explicit GrantSteps(int device_count) : device_count_(device_count) {}

  const KnownEndpoint* Know(BatchAgreementEndpoint endpoint);
  // The effect of `call(endpoint, actions)` on `before`. REQUIRES: `input` differs where the call
  // does.
  template <typename Call>
  const GrantStep& Take(const KnownEndpoint& before, size_t input, Call call) {
    std::unique_ptr<GrantStep>& step = steps_[absl::HashOf(before.whole_hash, input)];
    if (step == nullptr) {
      step = std::make_unique<GrantStep>();
      BatchAgreementEndpoint after = before.endpoint;
      step->status = call(after, step->actions);
      Complete(before, std::move(after), *step);
    }
    return *step;
  }

 private:
  void Complete(const KnownEndpoint& before, BatchAgreementEndpoint after, GrantStep& step);

  int device_count_;
  absl::flat_hash_map<size_t, std::unique_ptr<const KnownEndpoint>> endpoints_;
  absl::flat_hash_map<size_t, std::unique_ptr<GrantStep>> steps_;
};

}  // namespace ferry::grant_test

#endif  // FERRY_TESTS_TRANSPORT_NCCL_GRANT_STEPS_H_

// SPDX-License-Identifier: Apache-2.0
// A coordinator, and nodes that join its job in this process, for tests of the public API.
#ifndef FERRY_TESTS_API_JOB_H_
#define FERRY_TESTS_API_JOB_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include <ferry/node.h>

namespace ferry {

// For waits that must not fail: much longer than they take.
inline constexpr absl::Duration kLong = absl::Minutes(1);

class TestCoordinator final {
 public:
  explicit TestCoordinator(int num_nodes);

  const std::string& address() const { return address_; }
  // Options of a node of its job.
  NodeOptions OptionsOf(int rank) const;
  // Joins all of `ranks` at once; fails the test, and returns nulls, for those that cannot.
  std::vector<std::unique_ptr<Node>> Join(const std::vector<int>& ranks,
                                          const TransferOptions& transfer = {}) const;

 private:
  const int num_nodes_;
  std::string address_;
  std::shared_ptr<void> server_;
};

// Polls until the coordinator reports `rank` in `state`; false after kLong.
bool Becomes(CoordinatorClient& client, int rank, NodeState state);

}  // namespace ferry

#endif  // FERRY_TESTS_API_JOB_H_

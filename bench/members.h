// SPDX-License-Identifier: Apache-2.0
// BenchMembers: many nodes of a job, simulated in one process.
#ifndef FERRY_BENCH_MEMBERS_H_
#define FERRY_BENCH_MEMBERS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "coord/client/agent.h"
#include "topology/global_topology.h"

namespace ferry::cli {

// Each has its own connection, as a process would, and a device and an endpoint that all others
// receive. Not thread-safe.
class BenchMembers final {
 public:
  // Joins all members concurrently, each on a thread of its own, until each has all devices.
  //   Errors: those of coord::Agent::Connect, of the first that failed.
  static absl::StatusOr<std::unique_ptr<BenchMembers>> Join(const std::string& coordinator,
                                                            int count);
  ~BenchMembers();

  coord::Agent& agent(int node) { return *agents_[static_cast<size_t>(node)]; }
  int count() const { return static_cast<int>(agents_.size()); }
  // Time from releasing all threads until the last one had everything.
  absl::Duration join_time() const { return join_time_; }

  // Returns how many endpoints are missing or wrong, over all nodes; a node without topology counts
  // as missing all.
  size_t CountWrongEndpoints() const;
  // All members leave.
  absl::Status Leave();

 private:
  explicit BenchMembers(int count);

  absl::Duration join_time_;
  std::vector<std::unique_ptr<coord::Agent>> agents_;
  std::vector<absl::StatusOr<GlobalTopology>> topologies_;
};

// Checks that the file descriptor limit allows this many connections, and some files.
//   Errors: FAILED_PRECONDITION naming the limit and what to do.
absl::Status CheckFileLimit(int connections);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_MEMBERS_H_

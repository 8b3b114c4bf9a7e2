// SPDX-License-Identifier: Apache-2.0
// BenchMembers: many nodes of a job that live in this one process.
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

// Each has a connection of its own, as a process would, and a device and an endpoint, which all
// others learn. Not thread-safe.
class BenchMembers final {
 public:
  // All at once, each on a thread of its own, until each holds everyone's devices.
  //   Errors: those of coord::Agent::Connect, of the first of them that failed.
  static absl::StatusOr<std::unique_ptr<BenchMembers>> Join(const std::string& coordinator,
                                                            int count);
  ~BenchMembers();

  coord::Agent& agent(int node) { return *agents_[static_cast<size_t>(node)]; }
  int count() const { return static_cast<int>(agents_.size()); }
  // From when all threads were let go until the last of them held everything.
  absl::Duration join_time() const { return join_time_; }

  // How many of all endpoints are missing or wrong, at all nodes; a node that holds no topology
  // misses all of them.
  size_t CountWrongEndpoints() const;
  // All leave.
  absl::Status Leave();

 private:
  explicit BenchMembers(int count);

  absl::Duration join_time_;
  std::vector<std::unique_ptr<coord::Agent>> agents_;
  std::vector<absl::StatusOr<GlobalTopology>> topologies_;
};

// Whether this machine lets a process have so many connections, and some files.
//   Errors: FAILED_PRECONDITION naming the limit and what to do.
absl::Status CheckFileLimit(int connections);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_MEMBERS_H_

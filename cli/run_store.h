// SPDX-License-Identifier: Apache-2.0
// RunStore: the PyTorch store that the coordinator serves for one `ferry run`.
#ifndef FERRY_CLI_RUN_STORE_H_
#define FERRY_CLI_RUN_STORE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

#include "coord/client/agent.h"

namespace ferry::cli {

// Open while it exists. Its scope is new, so that no key of an earlier job or attempt is in it.
class RunStore final {
 public:
  // Opens one through `agent`, which outlives it. `coordinator` is HOST:PORT.
  //   Errors: as Agent::OpenStore.
  static absl::StatusOr<std::unique_ptr<RunStore>> Open(coord::Agent& agent,
                                                        const std::string& coordinator);
  // Connects to the coordinator first.
  //   Errors: also as Agent::Connect, after seconds.
  static absl::StatusOr<std::unique_ptr<RunStore>> Open(const std::string& coordinator);
  // The port closes. Ranks that are connected, also those of other machines, keep the store.
  ~RunStore();

  RunStore(const RunStore&) = delete;
  RunStore& operator=(const RunStore&) = delete;

  const std::string& run_id() const { return run_id_; }
  // HOST:PORT, with the host at which this machine reaches the coordinator.
  const std::string& address() const { return address_; }

 private:
  RunStore(coord::Agent& agent, std::string run_id) : agent_(agent), run_id_(std::move(run_id)) {}

  // Null if the agent is another's.
  std::unique_ptr<coord::Agent> own_agent_;
  coord::Agent& agent_;
  const std::string run_id_;
  std::string address_;
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_RUN_STORE_H_

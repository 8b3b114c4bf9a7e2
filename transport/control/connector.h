// SPDX-License-Identifier: Apache-2.0
// Connector: what opening a control channel needs from the process: connections and timers.
#ifndef FERRY_TRANSPORT_CONTROL_CONNECTOR_H_
#define FERRY_TRANSPORT_CONTROL_CONNECTOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "transport/control/control_channel.h"

namespace ferry {

// Addresses at which a process can be reached.
struct PeerAddresses {
  // Name of its Unix socket, for processes on the same host; empty: none.
  std::string unix_name;
  // HOST:PORT, tried in this order.
  std::vector<std::string> tcp;
};

// Thread-safe.
class Connector {
 public:
  using AttemptId = uint64_t;

  virtual ~Connector() = default;
  // Opens a control channel to `peer`: through its Unix socket if `use_unix`, else over the first
  // TCP address that answers. The handler's OnOpen or OnClosed follows, on the loop; the error
  // lists what failed for each address. May block for as long as a host name takes to resolve.
  virtual AttemptId Connect(const PeerId& peer, const PeerAddresses& addresses, bool use_unix,
                            std::shared_ptr<ControlHandler> handler) = 0;
  // Ends the attempt with `why`, unless it has succeeded. 0 is no attempt.
  virtual void CancelConnect(AttemptId attempt, const absl::Status& why) = 0;
  // Runs `function` on the loop, `delay` from now.
  virtual void RunAfter(absl::Duration delay, absl::AnyInvocable<void() &&> function) = 0;
  // The clock for delays.
  virtual absl::Time Now() const = 0;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_CONNECTOR_H_

// SPDX-License-Identifier: Apache-2.0
// Connector: what opening a control channel takes of a process: connections, and time.
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

// Where a process can be reached.
struct PeerAddresses {
  // Of its Unix socket, for processes of the same host; empty: none.
  std::string unix_name;
  // HOST:PORT, tried in this order.
  std::vector<std::string> tcp;
};

// Thread-safe.
class Connector {
 public:
  using AttemptId = uint64_t;

  virtual ~Connector() = default;
  // A control channel to `peer`: through its Unix socket if `use_unix`, else over the first TCP
  // address that answers. The handler's OnOpen or OnClosed follows, on the loop. What went wrong
  // with each address is in the error. May block as long as a host name takes to resolve.
  virtual AttemptId Connect(const PeerId& peer, const PeerAddresses& addresses, bool use_unix,
                            std::shared_ptr<ControlHandler> handler) = 0;
  // The attempt ends with `why`, unless it has been successful. 0 is no attempt.
  virtual void CancelConnect(AttemptId attempt, const absl::Status& why) = 0;
  // Runs `function` on the loop, `delay` from now.
  virtual void RunAfter(absl::Duration delay, absl::AnyInvocable<void() &&> function) = 0;
  // The time by which delays are counted.
  virtual absl::Time Now() const = 0;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_CONNECTOR_H_

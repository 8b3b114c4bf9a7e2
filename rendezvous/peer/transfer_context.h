// SPDX-License-Identifier: Apache-2.0
// TransferContext: what all connections of a process share.
#ifndef FERRY_RENDEZVOUS_PEER_TRANSFER_CONTEXT_H_
#define FERRY_RENDEZVOUS_PEER_TRANSFER_CONTEXT_H_

#include <string>

#include "absl/time/time.h"

#include "base/clock.h"
#include "gpu/gpus.h"
#include "rendezvous/rendezvous_manager.h"
#include "transport/transports.h"

namespace ferry {

class EagerPeers;

// Shared by both ends of all control channels; outlives them.
struct TransferContext {
  Endpoint self;
  RendezvousManager* manager = nullptr;
  TransportList* transports = nullptr;
  PathPolicy policy;
  // Why this process cannot share memory with others on its host; empty: it can.
  std::string shared_memory_unavailable_reason;
  // Every transfer carries a checksum of its bytes, and so does every frame of a control channel.
  // Either side can enable it for a control channel, in both directions; a consumer for everything
  // that it receives.
  bool checksum = false;
  // For tensors in GPU memory; null: this process uses no GPUs.
  Gpus* gpus = nullptr;
  // For values that are sent before they are requested; null: all are requested.
  EagerPeers* eager = nullptr;
  // Clock for cost measurements.
  const Clock* clock = &SteadyClock();
  // Timeout for a peer's HELLO, and for an obstacle to a control channel to disappear.
  absl::Duration connect_timeout = absl::Seconds(10);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_TRANSFER_CONTEXT_H_

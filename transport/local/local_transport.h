// SPDX-License-Identifier: Apache-2.0
// LocalTransport: within a process, where the receiver gets the sender's tensor itself.
#ifndef FERRY_TRANSPORT_LOCAL_LOCAL_TRANSPORT_H_
#define FERRY_TRANSPORT_LOCAL_LOCAL_TRANSPORT_H_

#include <memory>

#include "transport/transport.h"

namespace ferry {

// It moves nothing: what a process sends itself its rendezvous hands over before any transport is
// asked. Here it has a name, a cost, and a reason why it is not for two processes.
class LocalTransport final : public Transport {
 public:
  // `exchange`: what a send and its receive take here, as measured; zero: nobody has.
  explicit LocalTransport(absl::Duration exchange = absl::ZeroDuration()) : exchange_(exchange) {}

  absl::string_view name() const override { return "local"; }
  absl::string_view summary() const override { return "hands tensors over within a process"; }
  bool leaves_process() const override { return false; }
  // In a GPU's memory too.
  bool moves_gpu_memory() const override { return true; }
  absl::StatusOr<PathCost> Cost(const PathQuery& query) const override;
  // Halves that refuse: two ends of a lane are two processes, and who offers by this transport
  // does not keep to the protocol.
  std::shared_ptr<Outlet> MakeOutlet(const Endpoint& peer) override;
  std::shared_ptr<Inlet> MakeInlet(const Endpoint& peer, ReleaseCallback release) override;

 private:
  const absl::Duration exchange_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_LOCAL_LOCAL_TRANSPORT_H_

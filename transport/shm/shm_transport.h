// SPDX-License-Identifier: Apache-2.0
// ShmTransport: host memory handed from process to process, not copied.
#ifndef FERRY_TRANSPORT_SHM_SHM_TRANSPORT_H_
#define FERRY_TRANSPORT_SHM_SHM_TRANSPORT_H_

#include <memory>

#include "transport/transport.h"

namespace ferry {

// A tensor in the sender's arena is handed over by its place: the receiver has mapped the segment,
// for reading only, when it first heard of it. The sender keeps the memory until the receiver lets
// go of it, or dies. What lies elsewhere is copied into the arena first, once. A receiver that
// wants it in a buffer of its own copies it there, on as many cores as it has.
class ShmTransport final : public Transport {
 public:
  // Measures what a copy takes.
  explicit ShmTransport(TransportEnvironment environment);

  absl::string_view name() const override { return "shm"; }
  absl::string_view summary() const override { return "hands memory over within a host"; }
  bool outlives_producer() const override { return true; }
  bool latency_is_control_rtt(bool lane_passes_descriptors) const override {
    return lane_passes_descriptors;
  }
  absl::StatusOr<PathCost> Cost(const PathQuery& query) const override;
  std::shared_ptr<TransportSender> CreateSender(const Endpoint& peer) override;
  std::shared_ptr<TransportReceiver> CreateReceiver(const Endpoint& peer,
                                                    ReleaseCallback release) override;

 private:
  // Those that there are; shared with the arena's listener.
  struct Outlets;

  const TransportEnvironment environment_;
  const absl::Status support_;
  double copy_bytes_per_second_ = 0;
  const std::shared_ptr<Outlets> senders_;
  // The arena's listener.
  const std::shared_ptr<void> segments_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_SHM_SHM_TRANSPORT_H_

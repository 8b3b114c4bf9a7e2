// SPDX-License-Identifier: Apache-2.0
// ShmTransport: shares host memory between processes instead of copying it.
#ifndef FERRY_TRANSPORT_SHM_SHM_TRANSPORT_H_
#define FERRY_TRANSPORT_SHM_SHM_TRANSPORT_H_

#include <memory>

#include "transport/transport.h"

namespace ferry {

// A tensor in the sender's arena is passed by its location: the receiver has mapped the segment
// read-only when it was announced. The sender keeps the memory until the receiver releases it or
// dies. Tensors elsewhere are copied into the arena first, once. For a destination of its own, the
// receiver copies the tensor there, on as many cores as it has.
class ShmTransport final : public Transport {
 public:
  static constexpr TransportInfo kInfo = {.name = "shm",
                                          .summary = "shares memory within a host",
                                          .capabilities = {.outlives_producer = true,
                                                           .has_fd_channel_latency = true,
                                                           .fd_optional = true,
                                                           .shares_memory = true,
                                                           .needs_fd_channel = true}};

  // Measures copy bandwidth.
  explicit ShmTransport(TransportEnvironment environment);

  absl::StatusOr<PathCost> Cost(const PathQuery& query) const override;
  std::shared_ptr<TransportSender> CreateSender(const Endpoint& peer) override;
  std::shared_ptr<TransportReceiver> CreateReceiver(const Endpoint& peer,
                                                    ReleaseCallback release) override;

 private:
  // The live senders; shared with the arena's listener.
  struct Senders;

  const TransportEnvironment environment_;
  const absl::Status support_;
  double copy_bytes_per_second_ = 0;
  const std::shared_ptr<Senders> senders_;
  // The arena's listener.
  const std::shared_ptr<void> segments_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_SHM_SHM_TRANSPORT_H_

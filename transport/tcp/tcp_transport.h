// SPDX-License-Identifier: Apache-2.0
// TcpTransport: tensors between any two processes that can connect over TCP.
#ifndef FERRY_TRANSPORT_TCP_TCP_TRANSPORT_H_
#define FERRY_TRANSPORT_TCP_TCP_TRANSPORT_H_

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

#include "transport/tcp/data_plane.h"
#include "transport/tcp/tcp_sender.h"
#include "transport/transport.h"

namespace ferry {

struct TcpTransportOptions {
  // For each pair and direction, besides the near one. One connection can use one core.
  int connections = 2;
};

// The receiver opens connections to the sender when it fetches the first tensor over TCP; the
// sender cuts tensors into slices, and each connection takes the next one when it is free. Slices
// are received directly into their target. A slow reader slows only its own sender. One more
// connection, on the control channels' loop, is for tensors of up to 1 MiB that are sent one at a
// time: no other thread has to be woken for those.
class TcpTransport final : public Transport {
 public:
  static constexpr TransportInfo kInfo = {.name = "tcp",
                                          .summary = "slices over several connections",
                                          .capabilities = {.measurable = true,
                                                           .has_plain_channel_latency = true,
                                                           .uses_data_connections = true,
                                                           .moves_over_tcp = true}};

  //   Errors: RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<TcpTransport>> Create(TransportEnvironment environment,
                                                              TcpTransportOptions options);
  ~TcpTransport() override;

  absl::StatusOr<PathCost> Cost(const PathQuery& query) const override;
  std::shared_ptr<TransportSender> CreateSender(const Endpoint& peer) override
      ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<TransportReceiver> CreateReceiver(const Endpoint& peer,
                                                    ReleaseCallback release) override;
  bool OnDataConnection(DataConnection& connection) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  TcpTransport(TransportEnvironment environment, std::unique_ptr<DataPlane> plane);

  const TransportEnvironment environment_;
  // Used by senders and receivers until they are aborted.
  const std::unique_ptr<DataPlane> plane_;
  // Cost on this machine, if it could be measured.
  const absl::StatusOr<PathCost> loopback_;
  absl::Mutex mu_;
  // By node and incarnation: to assign incoming connections.
  absl::flat_hash_map<std::pair<int32_t, uint64_t>, std::weak_ptr<TcpSender>> senders_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_TCP_TCP_TRANSPORT_H_

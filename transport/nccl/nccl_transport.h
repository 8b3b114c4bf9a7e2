// SPDX-License-Identifier: Apache-2.0
// NcclTransport: tensors between GPUs of any two processes that NCCL connects.
#ifndef FERRY_TRANSPORT_NCCL_NCCL_TRANSPORT_H_
#define FERRY_TRANSPORT_NCCL_NCCL_TRANSPORT_H_

#include <memory>

#include "transport/nccl/nccl_node.h"
#include "transport/transport.h"

namespace ferry {

// Keyed transfers over communicators of two ranks each, in an order that both sides agree on
// (docs/nccl.md). A tensor is exposed when its bytes are ready, and delivered when they have
// arrived. Thread-safe.
class NcclTransport final : public Transport {
 public:
  NcclTransport(const TransportEnvironment& environment, const NcclTransportOptions& options);
  ~NcclTransport() override;

  absl::string_view name() const override { return "nccl"; }
  absl::string_view summary() const override { return "NCCL between two GPUs, in agreed batches"; }
  bool moves_gpu_memory() const override { return true; }
  bool is_retryable() const override { return true; }
  absl::StatusOr<PathCost> Cost(const PathQuery& query) const override;
  std::shared_ptr<TransportSender> CreateSender(const Endpoint& peer) override;
  std::shared_ptr<TransportReceiver> CreateReceiver(const Endpoint& peer,
                                                    ReleaseCallback release) override;
  // As NcclDevice::CommunicatorWith, for this process's GPU `ordinal`.
  std::shared_ptr<NcclCommunicator> CommunicatorWith(int ordinal, DeviceId peer) const;
  absl::Status Stop(const absl::Status& why) override { return node_.Stop(why); }

 private:
  // True if this process is one of the two, rather than a third one such as ferry topo.
  bool IsParty(const PathQuery& query) const;
  //   Errors: FAILED_PRECONDITION unless both have the same NCCL version.
  absl::Status CheckVersions(const PathQuery& query) const;

  const TransportEnvironment environment_;
  const absl::Duration latency_;
  std::atomic<double> bytes_per_second_;
  NcclNode node_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_NCCL_TRANSPORT_H_

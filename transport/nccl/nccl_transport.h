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
  static constexpr TransportInfo kInfo = {
      .name = "nccl",
      .summary = "NCCL between two GPUs, in agreed batches",
      .capabilities = {.moves_gpu_memory = true, .retryable = true}};

  NcclTransport(const TransportEnvironment& environment, const NcclTransportOptions& options,
                const NcclJob& job);
  ~NcclTransport() override;

  // This process's NCCL version; nothing if it does not use NCCL.
  std::string local_descriptor() const override;
  absl::StatusOr<PathCost> Cost(const PathQuery& query) const override;
  std::shared_ptr<TransportSender> CreateSender(const Endpoint& peer) override;
  std::shared_ptr<TransportReceiver> CreateReceiver(const Endpoint& peer,
                                                    ReleaseCallback release) override;
  // As NcclDevice::CommunicatorWith, for this process's GPU `ordinal`.
  std::shared_ptr<NcclCommunicator> CommunicatorWith(int ordinal, DeviceId peer) const;
  // As NcclDevice::PutRefusal, for this process's GPU `ordinal`.
  absl::Status PutRefusal(int ordinal, DeviceId peer) const;
  absl::Status Stop(const absl::Status& why) override { return node_.Stop(why); }

 private:
  // True if this process is one of the two, rather than a third one such as ferry topo.
  bool IsParty(const PathQuery& query) const;
  // The value of ncclGetVersion that both have.
  //   Errors: FAILED_PRECONDITION unless both have the same NCCL version.
  absl::StatusOr<int> CommonVersion(const PathQuery& query) const;

  const TransportEnvironment environment_;
  const NcclJob job_;
  // 0: this process does not use NCCL.
  const int version_;
  const uint64_t put_bytes_;
  const absl::Duration latency_;
  std::atomic<double> bytes_per_second_;
  NcclNode node_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_NCCL_TRANSPORT_H_

// SPDX-License-Identifier: Apache-2.0
// DevicePuts: the one-sided transfers of a GPU of this process.
#ifndef FERRY_TRANSPORT_NCCL_DEVICE_PUTS_H_
#define FERRY_TRANSPORT_NCCL_DEVICE_PUTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/clock.h"
#include "transport/nccl/batch_runner.h"
#include "transport/nccl/nccl_context.h"
#include "transport/nccl/put_endpoint.h"
#include "transport/nccl/put_host.h"
#include "transport/nccl/put_memory.h"
#include "transport/nccl/put_memory_maker.h"

namespace ferry {

// The protocol's endpoint, whose actions it performs through the host, its pool, and the windows of
// communicators over it. Not thread-safe: the host calls it under its lock, except where it says
// otherwise.
class DevicePuts final {
 public:
  // All must outlive it.
  DevicePuts(DeviceId self, int ordinal, const NcclTransportOptions& options, const Clock& clock,
             PutHost& host)
      : self_(self),
        ordinal_(ordinal),
        options_(options),
        host_(host),
        endpoint_(self, options.put_bytes, clock) {}

  const PutEndpoint& endpoint() const { return endpoint_; }
  // Calls `change`, and then performs the endpoint's actions. What they do to the batches is done
  // at once, and appended to `batches`.
  void Change(absl::FunctionRef<void(PutEndpoint& endpoint, PutActions& actions)> change,
              BatchAgreementActions& batches);
  // As PutEndpoint::Offer. The block of the pool is the endpoint's to know.
  std::optional<CommunicatorName> Offer(const TransferKey& key, uint64_t bytes,
                                        absl::Time deadline) {
    uint64_t offset = 0;
    return endpoint_.Offer(key, bytes, deadline, offset);
  }
  // Gives the endpoint the blocks that were freed.
  void CollectBlocks(BatchAgreementActions& batches);

  // A communicator's part of it.
  struct Made {
    std::shared_ptr<PutMemory> memory;
    std::shared_ptr<cuda::CudaStream> stream;
  };
  // A window's needs, or why there are no one-sided transfers with that peer. Blocks.
  static absl::StatusOr<Made> Make(Gpu& gpu, const nccl::NcclApi& api,
                                   const NcclTransportOptions& options, bool peer_has_puts,
                                   PutMemoryMaker& maker);

  // --- Windows ---

  // The transfer that stands for the set-up of a window: it has a place in the agreed order, and
  // both devices know its key.
  TransferKey WindowKey(DeviceId peer, const CommunicatorName& name) const;
  // Why no window is to be set up with the peer; OK: one may be.
  absl::Status WindowRefusal(DeviceId peer) const;
  // It begins to be set up on that communicator.
  void AddWindow(const CommunicatorName& name, Made made);
  // That has ended. OK: it is registered, if the library has it.
  //   is_open: the communicator is.
  void OnWindow(DeviceId peer, const CommunicatorName& name, const absl::Status& status,
                uint64_t peer_bytes, bool is_open);
  // There is none with the peer, for this reason.
  void SetRefusal(DeviceId peer, const absl::Status& why) { refusals_[peer] = why; }
  // The communicator is gone, or was never opened.
  void DropWindow(const CommunicatorName& name) { windows_.erase(name); }
  // Null: none.
  std::shared_ptr<PutWindow> FindWindow(const CommunicatorName& name) const;
  size_t window_count() const { return windows_.size(); }
  // As NcclDevice::PutRefusal.
  absl::Status Refusal(DeviceId peer) const;

 private:
  // The following run without the lock.
  void Perform(PutAction action);
  // Launches the operation that `make` makes under the lock, if the communicator is open and it
  // makes one. `end` then tells the endpoint how it has ended.
  using MakeBatch = absl::FunctionRef<absl::StatusOr<RunnableBatch>(
      std::shared_ptr<NcclCommunicator> communicator, std::shared_ptr<PutWindow> window)>;
  using End = std::function<void(PutEndpoint& endpoint, bool is_lost, const absl::Status& status,
                                 PutActions& actions)>;
  void Launch(DeviceId peer, const CommunicatorName& name, MakeBatch make, End end);
  void LaunchPut(const IssuePut& put);
  void LaunchWait(const IssueWait& wait);

  const DeviceId self_;
  const int ordinal_;
  const NcclTransportOptions& options_;
  PutHost& host_;
  PutEndpoint endpoint_;
  // Null until a communicator needs it.
  std::shared_ptr<PutMemory> memory_;
  absl::btree_map<CommunicatorName, std::shared_ptr<PutWindow>> windows_;
  // How often the set-up with a peer has failed, and why there is no window.
  absl::btree_map<DeviceId, int> failures_;
  absl::btree_map<DeviceId, absl::Status> refusals_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_DEVICE_PUTS_H_

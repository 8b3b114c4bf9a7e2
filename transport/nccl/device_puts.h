// SPDX-License-Identifier: Apache-2.0
// DevicePuts: the one-sided transfers of a GPU of this process.
#ifndef FERRY_TRANSPORT_NCCL_DEVICE_PUTS_H_
#define FERRY_TRANSPORT_NCCL_DEVICE_PUTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"

#include "base/clock.h"
#include "transport/nccl/batch_runner.h"
#include "transport/nccl/nccl_context.h"
#include "transport/nccl/put_endpoint.h"
#include "transport/nccl/put_memory.h"

namespace ferry {

// The protocol's endpoint, its pool, and the windows of communicators over it. NcclDevice holds it
// under its lock, performs the endpoint's actions, and says which communicators there are. Calls
// neither NCCL nor CUDA, but for the events of returned blocks. Not thread-safe.
class DevicePuts final {
 public:
  // `options` and `clock` must outlive it.
  DevicePuts(DeviceId self, const NcclTransportOptions& options, const Clock& clock)
      : self_(self), options_(options), endpoint_(self, options.put_bytes, clock) {}

  PutEndpoint& endpoint() { return endpoint_; }
  const PutEndpoint& endpoint() const { return endpoint_; }
  // Gives the endpoint the blocks that were freed.
  void CollectBlocks(PutActions& actions);

  // --- Windows ---

  // The transfer that stands for the set-up of a window: it has a place in the agreed order, and
  // both devices know its key.
  TransferKey WindowKey(DeviceId peer, const CommunicatorName& name) const;
  // Why no window is to be set up with the peer; OK: one may be.
  absl::Status WindowRefusal(DeviceId peer) const;
  // It begins to be set up on that communicator.
  std::shared_ptr<PutWindow> AddWindow(const CommunicatorName& name,
                                       std::shared_ptr<PutMemory> memory,
                                       std::shared_ptr<cuda::CudaStream> stream);
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

  // --- Its operations; the caller adds what to call at their ends ---

  // Nothing: there is no such window.
  std::optional<RunnableBatch> MakePut(const IssuePut& put,
                                       std::shared_ptr<NcclCommunicator> communicator,
                                       const Tensor& source) const;
  std::optional<RunnableBatch> MakeWait(const IssueWait& wait,
                                        std::shared_ptr<NcclCommunicator> communicator) const;
  // The memory of a delivered tensor. REQUIRES: a block of the pool.
  std::shared_ptr<Buffer> BufferAt(uint64_t offset, uint64_t bytes) const {
    return memory_->BufferAt(offset, bytes);
  }

 private:
  const DeviceId self_;
  const NcclTransportOptions& options_;
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

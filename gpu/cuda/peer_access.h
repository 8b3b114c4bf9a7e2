// SPDX-License-Identifier: Apache-2.0
// PeerAccess: enables access between two GPUs of this process before the first copy between them.
#ifndef FERRY_GPU_CUDA_PEER_ACCESS_H_
#define FERRY_GPU_CUDA_PEER_ACCESS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "gpu/cuda/cuda_device.h"
#include "gpu/cuda/sync_gate.h"

namespace ferry::cuda {

// Without it the driver copies memory of cuMemAlloc between two GPUs through host memory, at a
// fraction of the speed of NVLink or PCIe. Only pairs in use are enabled: enabling maps all memory
// of one device for the other, as does every later allocation, and some machines limit the number
// of peers. Thread-safe.
class PeerAccess final {
 public:
  //   gate: enabling may synchronize both devices.
  //   retry: time after which a pair is tried again if NCCL work was in flight all the time.
  PeerAccess(std::shared_ptr<SyncGate> gate, PeerMatrix peers, absl::Duration retry);

  PeerAccess(const PeerAccess&) = delete;
  PeerAccess& operator=(const PeerAccess&) = delete;

  // Enables it in both directions, as far as the machine has it. Waits for the gate, at most 5 ms;
  // a call that has not got it leaves the pair to a call after `retry`. A failure is logged, and
  // not tried again: copies then work as they do without peer access.
  void Enable(const CudaDevice& one, const CudaDevice& other) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Pair {
    bool is_settled = false;
    absl::Time retry_at = absl::InfinitePast();
  };

  size_t IndexOf(const CudaDevice& one, const CudaDevice& other) const;
  absl::Status EnableOneWay(const CudaDevice& from, const CudaDevice& to) const;

  const std::shared_ptr<SyncGate> gate_;
  const PeerMatrix peers_;
  const absl::Duration retry_;

  absl::Mutex mu_;
  std::vector<Pair> pairs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_PEER_ACCESS_H_

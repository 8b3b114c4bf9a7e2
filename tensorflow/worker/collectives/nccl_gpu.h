// SPDX-License-Identifier: Apache-2.0
// NcclGpus: a worker's GPUs for NCCL collectives.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_NCCL_GPU_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_NCCL_GPU_H_

#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "gpu/gpus.h"
#include "tensorflow/worker/collectives/collective_gpu.h"
#include "transport/nccl/nccl_context.h"

namespace ferry::worker {

class NcclGpu;

// Thread-safe. Each GPU has a thread ("ferry-coll0") that launches its collectives one after the
// other, creates communicators, and waits until keyed transfers are idle.
class NcclGpus final : public CollectiveGpus {
 public:
  // Both must outlive it.
  NcclGpus(Gpus& gpus, const NcclJob& job);
  // Aborts pending work. REQUIRES: no collective is in progress.
  ~NcclGpus() override;

  // Opens the GPU; may block.
  NcclOffer Offer(const CollectiveNode& node) override ABSL_LOCKS_EXCLUDED(mu_);
  CollectiveGpu& gpu(int ordinal) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status Open(int ordinal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Gpus& gpus_;
  const NcclJob& job_;
  absl::Mutex mu_;
  std::map<int, std::unique_ptr<NcclGpu>> opened_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_NCCL_GPU_H_

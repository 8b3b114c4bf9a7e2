// SPDX-License-Identifier: Apache-2.0
// CommunicatorWarmUp: the first transfer of data between the ranks of a communicator.
#ifndef FERRY_GPU_COMMUNICATOR_COMMUNICATOR_WARM_UP_H_
#define FERRY_GPU_COMMUNICATOR_COMMUNICATOR_WARM_UP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu/communicator/communicator_key.h"
#include "gpu/communicator/warm_up_sequencer.h"
#include "gpu/cuda/cuda_event.h"
#include "gpu/cuda/device_buffer.h"
#include "gpu/gpus.h"
#include "gpu/nccl/nccl_api.h"
#include "gpu/nccl_arbiter.h"

namespace ferry {

// One rank's part. It waits for its place in the device's queue, then for its turn (NcclArbiter),
// then for NCCL. Used on one thread.
class CommunicatorWarmUp final {
 public:
  // Runs `call` on the device's executor and waits for it.
  using OnDevice = std::function<absl::Status(std::function<absl::Status()> call)>;

  // Allocates memory, which may synchronize the device, so call it before this warm-up is in
  // flight.
  //   gpus, gpu: outlive the result.
  static absl::StatusOr<std::unique_ptr<CommunicatorWarmUp>> Create(
      std::shared_ptr<const nccl::NcclApi> api, Gpus& gpus, Gpu& gpu, OnDevice on_device, int rank,
      int size);
  // REQUIRES: as End.
  ~CommunicatorWarmUp() { End(); }

  CommunicatorWarmUp(const CommunicatorWarmUp&) = delete;
  CommunicatorWarmUp& operator=(const CommunicatorWarmUp&) = delete;

  // Returns the number to publish to the other ranks.
  uint64_t ProposeSequenceNumber(const CommunicatorKey& key, uint32_t generation);
  // REQUIRES: ProposeSequenceNumber, and all ranks have published. `number` is the largest.
  void Begin(nccl::Communicator comm, uint64_t number);
  // Advances the warm-up. Returns nullopt while in progress. After an error, call End.
  std::optional<absl::Status> Poll();
  // Releases place and turn; memory of operations in flight when their stream has passed them.
  // REQUIRES: nothing is in flight, or the communicator has been aborted.
  void End();
  bool is_in_flight() const { return is_in_flight_; }
  // Describes the operation that it waits for, for messages.
  std::string Describe() const;

 private:
  enum class Phase { kIdle, kQueued, kAwaitingTurn, kEnqueueing, kFinishing };

  CommunicatorWarmUp(std::shared_ptr<const nccl::NcclApi> api, Gpus& gpus, Gpu& gpu,
                     OnDevice on_device, int rank, int size);
  absl::StatusOr<bool> Advance();
  // Enqueues the next group.
  absl::Status EnqueueNext();
  absl::Status Enqueue(int first_distance, int last_distance);

  const std::shared_ptr<const nccl::NcclApi> api_;
  Gpus& gpus_;
  Gpu& gpu_;
  const OnDevice on_device_;
  const int rank_;
  const int size_;
  const std::shared_ptr<NcclArbiter> arbiter_;
  // One byte to and one byte from each rank.
  std::shared_ptr<cuda::DeviceBuffer> bytes_;
  std::unique_ptr<cuda::CudaStream> stream_;

  Phase phase_ = Phase::kIdle;
  nccl::Communicator comm_ = nullptr;
  std::unique_ptr<WarmUpSequencer::Place> place_;
  bool has_asked_ = false;
  bool is_in_flight_ = false;
  int next_distance_ = 1;
  std::shared_ptr<const cuda::ReadyEvent> over_;
};

}  // namespace ferry

#endif  // FERRY_GPU_COMMUNICATOR_COMMUNICATOR_WARM_UP_H_

// SPDX-License-Identifier: Apache-2.0
// FirstExchange: the ranks of a communicator say something to each other for the first time.
#ifndef FERRY_GPU_CLIQUE_FIRST_EXCHANGE_H_
#define FERRY_GPU_CLIQUE_FIRST_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu/clique/clique_key.h"
#include "gpu/clique/first_use_sequencer.h"
#include "gpu/cuda/cuda_event.h"
#include "gpu/cuda/device_buffer.h"
#include "gpu/gpus.h"
#include "gpu/nccl/nccl_api.h"
#include "gpu/nccl_arbiter.h"

namespace ferry {

// One rank's part. It waits for its place in the device's line, then for its turn (NcclArbiter),
// then for NCCL. Of one thread.
class FirstExchange final {
 public:
  // Runs it on the device's executor, and waits for that.
  using OnDevice = std::function<absl::Status(std::function<absl::Status()> call)>;

  // Gets the memory: that may wait for the device, so before anything of this is in flight.
  //   gpus, gpu: outlive it.
  static absl::StatusOr<std::unique_ptr<FirstExchange>> Create(
      std::shared_ptr<const nccl::NcclApi> api, Gpus& gpus, Gpu& gpu, OnDevice on_device, int rank,
      int size);
  // REQUIRES: as End.
  ~FirstExchange() { End(); }

  FirstExchange(const FirstExchange&) = delete;
  FirstExchange& operator=(const FirstExchange&) = delete;

  // Returns the number to tell the other ranks.
  uint64_t LineUp(const CliqueKey& key, uint32_t generation);
  // REQUIRES: LineUp, and all ranks have told. `number` is the largest.
  void Begin(nccl::Communicator comm, uint64_t number);
  // Goes on with what Begin has begun. Nothing: it is not over. After an error, End is due.
  std::optional<absl::Status> Look();
  // Gives up place and turn. REQUIRES: nothing is under way, or the communicator has been aborted.
  void End();
  // What it waits for.
  std::string Describe() const;

 private:
  enum class Phase { kIdle, kInLine, kAwaitingTurn, kEnqueueing, kFinishing };

  FirstExchange(std::shared_ptr<const nccl::NcclApi> api, Gpus& gpus, Gpu& gpu, OnDevice on_device,
                int rank, int size);
  absl::StatusOr<bool> Advance();
  // The next group of it.
  absl::Status EnqueueNext();
  absl::Status Enqueue(int first_distance, int last_distance);

  const std::shared_ptr<const nccl::NcclApi> api_;
  Gpus& gpus_;
  Gpu& gpu_;
  const OnDevice on_device_;
  const int rank_;
  const int size_;
  const std::shared_ptr<NcclArbiter> turns_;
  // A byte to, and a byte from, each rank.
  std::shared_ptr<cuda::DeviceBuffer> bytes_;
  std::unique_ptr<cuda::CudaStream> stream_;

  Phase phase_ = Phase::kIdle;
  nccl::Communicator comm_ = nullptr;
  std::unique_ptr<FirstUseSequencer::Place> place_;
  bool has_asked_ = false;
  bool is_in_flight_ = false;
  int next_distance_ = 1;
  std::shared_ptr<const cuda::ReadyEvent> over_;
};

}  // namespace ferry

#endif  // FERRY_GPU_CLIQUE_FIRST_EXCHANGE_H_

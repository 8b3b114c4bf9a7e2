// SPDX-License-Identifier: Apache-2.0
// Hardware queues: streams of a context share a few, so that one's pending wait delays another.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_HARDWARE_QUEUES_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_HARDWARE_QUEUES_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace strict_cuda {

// Commands begin in the order of submission. Thread-safe.
class HardwareQueue final {
 public:
  // The next command's turn.
  uint64_t Submit();
  // Waits until all earlier commands have begun.
  void AwaitTurn(uint64_t turn);
  // The command whose turn it is has begun: the next one may.
  void Begun();

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  uint64_t submitted_ = 0;  // guarded by mu_
  uint64_t begun_ = 0;      // guarded by mu_
};

// The queues of a stream; null: the stream shares none.
struct StreamQueues {
  HardwareQueue* kernels = nullptr;  // also for fills, waits and host functions
  HardwareQueue* copies = nullptr;
};

// The queues of one context. Streams of different priorities share none.
class HardwareQueues final {
 public:
  // Those of a new stream: each queue of the priority in turn. REQUIRES: one caller at a time.
  StreamQueues Next(int priority);

 private:
  struct OfPriority {
    std::vector<std::unique_ptr<HardwareQueue>> kernels;
    std::vector<std::unique_ptr<HardwareQueue>> copies;
    size_t next = 0;
  };

  std::map<int, OfPriority> queues_;
};

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_HARDWARE_QUEUES_H_

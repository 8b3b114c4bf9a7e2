// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: identical to TensorFlow's for the same seeds.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_RANDOM_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_RANDOM_H_

#include <array>
#include <cstdint>

namespace ferry::worker {

// Philox 4x32 with ten rounds. A value; each number depends only on the key and its position.
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
class Philox final {
 public:
  using Block = std::array<uint32_t, 4>;

  Philox(uint64_t key, uint64_t stream)
      : key_{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)}, stream_(stream) {}

  // Returns the next four numbers.
  Block Next();
  // Equivalent to `count` calls of Next.
  void Skip(uint64_t count);

 private:
  const std::array<uint32_t, 2> key_;
  // The upper and lower halves of the counter.
  uint64_t stream_ = 0;
  uint64_t place_ = 0;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_RANDOM_H_

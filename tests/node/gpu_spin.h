// SPDX-License-Identifier: Apache-2.0
// A kernel that runs until it is stopped, on a GPU of the fake driver.
#ifndef FERRY_TESTS_NODE_GPU_SPIN_H_
#define FERRY_TESTS_NODE_GPU_SPIN_H_

#include <cstdint>

#include "tests/node/gpu_pair.h"

namespace ferry {

class GpuSpin final {
 public:
  GpuSpin(GpuPeer& peer, int ordinal) : gpu_(peer.gpu(ordinal)) {
    const cuda::ScopedCurrent current(*gpu_.device);
    const cuda::CudaTable& table = gpu_.device->table();
    // Streams of another priority share no hardware queue with it: work that is enqueued behind the
    // kernel does not keep it from being stopped.
    constexpr int kOwnPriority = -5;
    FERRY_CHECK(table.stream_create_with_priority(&control_, cuda::kStreamNonBlocking,
                                                  kOwnPriority) == cuda::kSuccess);
    FERRY_CHECK(table.module_load_data(&module_, ".version 7.0\n.visible .entry spin() {}\n") ==
                cuda::kSuccess);
    FERRY_CHECK(table.module_get_function(&function_, module_, "spin") == cuda::kSuccess);
    FERRY_CHECK(table.memory_alloc(&flag_, sizeof(uint32_t)) == cuda::kSuccess);
    Set(0);
  }

  // Work enqueued on `stream` from now on waits for Stop.
  void Start(cuda::Stream stream) {
    const cuda::ScopedCurrent current(*gpu_.device);
    void* parameters[] = {&flag_};
    FERRY_CHECK(gpu_.device->table().launch_kernel(function_, 1, 1, 1, 1, 1, 1, 0, stream,
                                                   parameters, nullptr) == cuda::kSuccess);
  }
  void Stop() { Set(1); }

 private:
  void Set(uint32_t value) {
    const cuda::ScopedCurrent current(*gpu_.device);
    const cuda::CudaTable& table = gpu_.device->table();
    FERRY_CHECK(table.copy_to_device_async(flag_, &value, sizeof(value), control_) ==
                cuda::kSuccess);
    FERRY_CHECK(table.stream_synchronize(control_) == cuda::kSuccess);
  }

  Gpu& gpu_;
  cuda::Stream control_ = nullptr;
  cuda::Module module_ = nullptr;
  cuda::Function function_ = nullptr;
  cuda::DevicePointer flag_ = 0;
};

}  // namespace ferry

#endif  // FERRY_TESTS_NODE_GPU_SPIN_H_

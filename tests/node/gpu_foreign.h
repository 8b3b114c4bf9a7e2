// SPDX-License-Identifier: Apache-2.0
// Memory of every kind that the driver gives, and tensors in it, for tests of two processes.
#ifndef FERRY_TESTS_NODE_GPU_FOREIGN_H_
#define FERRY_TESTS_NODE_GPU_FOREIGN_H_

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/node/gpu_pair.h"

namespace ferry {

inline constexpr size_t kLarge = 5 * 1000 * 1000 + 3;
inline constexpr size_t kGranule = size_t{2} << 20;

// A tensor on the producer's side: GPU memory from the driver.
struct Foreign {
  cuda::DevicePointer pointer = 0;
  size_t bytes = 0;
};

inline Tensor Wrap(const Foreign& memory, size_t offset, size_t bytes,
                   std::function<void()> freed = {}) {
  auto buffer = WrapForeignBuffer(cuda::AsHostPointer(memory.pointer + offset), bytes,
                                  [freed = std::move(freed)] {
                                    if (freed) freed();
                                  },
                                  {MemorySpace::kCuda, 0});
  return *Tensor::Create(DataType::kUint8, *Shape::Create({static_cast<int64_t>(bytes)}),
                         std::move(buffer));
}

// Sends each tensor with its own pattern, and waits until all have arrived.
inline void SendAll(GpuPeer& peer, const std::vector<Tensor>& tensors,
                    const std::string& to = "GPU:0") {
  const auto stream = peer.NewStream(0);
  Step step = peer.Open();
  std::vector<Tensor> patterns;
  for (size_t i = 0; i < tensors.size(); ++i) {
    patterns.push_back(GpuPeer::Pattern(tensors[i].bytes(), static_cast<uint32_t>(i)));
    peer.Write(tensors[i], patterns.back(), stream->get());
    ASSERT_TRUE(step.Send(KeyOf(static_cast<int>(i), to), tensors[i], stream->get()).ok());
  }
  const absl::Status closed = step.Close(kTimeout);
  EXPECT_TRUE(closed.ok()) << closed;
  peer.Meet();
}

// The path of each, whose bytes must be right.
inline std::vector<std::string> ReceiveAll(GpuPeer& peer, const std::vector<size_t>& sizes,
                                           int gpu = 0) {
  const auto stream = peer.NewStream(gpu);
  const std::string to = absl::StrCat("GPU:", gpu);
  Step step = peer.Open();
  std::vector<std::string> paths;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto received = step.RecvValue(KeyOf(static_cast<int>(i), to), kTimeout);
    EXPECT_TRUE(received.ok()) << received.status();
    if (!received.ok()) continue;
    paths.emplace_back(received->path);
    if (const auto ready = cuda::ReadyOf(received->tensor); ready != nullptr) {
      EXPECT_TRUE(ready->EnqueueWait(*peer.gpu(gpu).device, stream->get()).ok());
    }
    EXPECT_TRUE(Holds(peer.Read(received->tensor, stream->get()),
                      GpuPeer::Pattern(sizes[i], static_cast<uint32_t>(i))))
        << "tensor " << i << " is not what was sent";
  }
  return paths;
}

inline Foreign MakePlain(GpuPeer& peer, size_t bytes) {
  Gpu& gpu = peer.gpu(0);
  const cuda::ScopedCurrent current(*gpu.device);
  Foreign memory = {0, bytes};
  FERRY_CHECK(gpu.device->table().memory_alloc(&memory.pointer, bytes) == cuda::kSuccess);
  return memory;
}

inline Foreign MakeFromPool(GpuPeer& peer, bool is_exportable) {
  Gpu& gpu = peer.gpu(0);
  const cuda::CudaTable& table = gpu.device->table();
  const cuda::ScopedCurrent current(*gpu.device);
  cuda::MemoryPool pool = nullptr;
  if (is_exportable) {
    cuda::PoolProperties properties = {};
    properties.allocation_type = cuda::kAllocationTypePinned;
    properties.handle_types = cuda::kHandleTypePosixFd;
    properties.location = {cuda::kLocationTypeDevice, 0};
    FERRY_CHECK(table.pool_create(&pool, &properties) == cuda::kSuccess);
  } else {
    FERRY_CHECK(table.device_get_default_pool(&pool, gpu.device->handle()) == cuda::kSuccess);
  }
  const auto stream = peer.NewStream(0);
  Foreign memory = {0, kLarge + 100};
  FERRY_CHECK(table.pool_alloc_async(&memory.pointer, memory.bytes, pool, stream->get()) ==
              cuda::kSuccess);
  FERRY_CHECK(table.stream_synchronize(stream->get()) == cuda::kSuccess);
  return memory;
}

// An expandable segment of so many granules.
inline Foreign MakeMapped(GpuPeer& peer, size_t granules, int handle_types) {
  Gpu& gpu = peer.gpu(0);
  const cuda::CudaTable& table = gpu.device->table();
  const cuda::ScopedCurrent current(*gpu.device);
  Foreign memory = {0, granules * kGranule};
  FERRY_CHECK(table.address_reserve(&memory.pointer, memory.bytes, 0, 0, 0) == cuda::kSuccess);
  for (size_t i = 0; i < granules; ++i) {
    cuda::AllocationProperties properties = {};
    properties.type = cuda::kAllocationTypePinned;
    properties.requested_handle_types = handle_types;
    properties.location = {cuda::kLocationTypeDevice, 0};
    cuda::AllocationHandle handle = 0;
    FERRY_CHECK(table.memory_create(&handle, kGranule, &properties, 0) == cuda::kSuccess);
    FERRY_CHECK(table.memory_map(memory.pointer + i * kGranule, kGranule, 0, handle, 0) ==
                cuda::kSuccess);
  }
  const cuda::AccessDescription access = {{cuda::kLocationTypeDevice, 0}, cuda::kAccessReadWrite};
  FERRY_CHECK(table.memory_set_access(memory.pointer, memory.bytes, &access, 1) == cuda::kSuccess);
  return memory;
}

}  // namespace ferry

#endif  // FERRY_TESTS_NODE_GPU_FOREIGN_H_

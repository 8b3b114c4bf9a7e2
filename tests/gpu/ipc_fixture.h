// SPDX-License-Identifier: Apache-2.0
// Tests of device memory between processes, with the fake driver: a producer and a
// consumer with its cache, in processes of their own, joined by a socket.
#ifndef FERRY_TESTS_GPU_IPC_FIXTURE_H_
#define FERRY_TESTS_GPU_IPC_FIXTURE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#include "gpu/cuda/gpu_arena.h"
#include "gpu/cuda/interprocess_events.h"
#include "gpu/cuda/ipc_export.h"
#include "gpu/cuda/ipc_import_cache.h"
#include "tests/support/real_gpu.h"
#include "tests/support/strict_cuda/fake_driver_test.h"

namespace ferry::cuda {

using strict_cuda::Wire;

inline constexpr size_t kMiB = size_t{1} << 20;
inline constexpr uint64_t kProducer = 11;
inline constexpr uint64_t kConsumer = 22;

// In a child a status that is not OK ends it with a line that the parent shows.
#define REQUIRE_OK(expression)                                \
  do {                                                        \
    const absl::Status& require_ok_status = (expression);     \
    if (!require_ok_status.ok()) {                            \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, \
                   require_ok_status.ToString().c_str());     \
      std::_Exit(1);                                          \
    }                                                         \
  } while (false)

// One end: a device of a process of its own.
struct Process {
  explicit Process(int ordinal = 0) {
    absl::StatusOr<std::unique_ptr<CudaApi>> loaded = CudaApi::Load();
    REQUIRE_OK(loaded.status());
    api = *std::move(loaded);
    absl::StatusOr<std::shared_ptr<CudaDevice>> opened = CudaDevice::Open(api, ordinal);
    REQUIRE_OK(opened.status());
    device = *std::move(opened);
    stream = *CudaStream::Create(device);
  }

  DevicePointer Alloc(size_t bytes) const {
    const ScopedCurrent current(*device);
    DevicePointer pointer = 0;
    REQUIRE(device->table().memory_alloc(&pointer, bytes) == kSuccess);
    return pointer;
  }
  void Free(DevicePointer pointer) const {
    const ScopedCurrent current(*device);
    REQUIRE(device->table().memory_free(pointer) == kSuccess);
  }
  void Write(DevicePointer to, const std::string& text) const {
    const ScopedCurrent current(*device);
    REQUIRE(device->table().copy_to_device_async(to, text.data(), text.size(), stream->get()) ==
            kSuccess);
    Sync();
  }
  std::string Read(DevicePointer from, size_t bytes) const {
    const ScopedCurrent current(*device);
    std::string text(bytes, '?');
    REQUIRE(device->table().copy_to_host_async(text.data(), from, bytes, stream->get()) ==
            kSuccess);
    Sync();
    return text;
  }
  void Sync() const {
    const ScopedCurrent current(*device);
    REQUIRE(device->table().stream_synchronize(stream->get()) == kSuccess);
  }

  std::shared_ptr<const CudaApi> api;
  std::shared_ptr<CudaDevice> device;
  std::unique_ptr<CudaStream> stream;
};

// A consumer with its cache; records the releases that it reports.
struct Consumer : Process {
  explicit Consumer(int ordinal = 0, IpcImportCacheOptions options = {}) : Process(ordinal) {
    options.own_incarnation = kConsumer;
    side = std::make_unique<DeviceExecutor>(device);
    cache = std::make_unique<IpcImportCache>(*side, gate, options);
  }

  absl::StatusOr<ImportedMemory> Open(const IpcDescriptor& descriptor, UniqueFd fd,
                                      absl::Duration timeout = absl::Seconds(10)) {
    absl::Notification ended;
    absl::StatusOr<ImportedMemory> result = absl::UnknownError("not called");
    REQUIRE_OK(cache->Open({kProducer, descriptor.allocation_id}, descriptor, std::move(fd),
                           SteadyClock().Now() + timeout,
                           [&](absl::StatusOr<ImportedMemory> opened) {
                             result = std::move(opened);
                             ended.Notify();
                           }));
    ended.WaitForNotification();
    return result;
  }
  void WaitClosed(int64_t count) const {
    while (cache->stats().closed < count) absl::SleepFor(absl::Milliseconds(1));
  }

  std::shared_ptr<SyncGate> gate = std::make_shared<SyncGate>();
  std::unique_ptr<DeviceExecutor> side;
  std::unique_ptr<IpcImportCache> cache;
};

inline void Put(const Wire& wire, const ExportedPiece& piece) {
  const std::string bytes = EncodeIpcDescriptor(piece.descriptor);
  wire.Send(bytes.data(), bytes.size());
  wire.Put(piece.descriptor.pool_id);
  wire.Put(piece.fd.valid());
  if (piece.fd.valid()) wire.SendFd(piece.fd.get());
}

inline ExportedPiece Get(const Wire& wire) {
  std::string bytes(kIpcDescriptorBytes, '\0');
  wire.Recv(bytes.data(), bytes.size());
  absl::StatusOr<IpcDescriptor> descriptor = DecodeIpcDescriptor(bytes);
  REQUIRE_OK(descriptor.status());
  ExportedPiece piece;
  piece.descriptor = *descriptor;
  piece.descriptor.pool_id = wire.Get<uint64_t>();
  if (wire.Get<bool>()) piece.fd = UniqueFd(wire.RecvFd());
  return piece;
}

inline ExportedPiece ExportOne(const Process& process, DevicePointer pointer, size_t bytes) {
  absl::StatusOr<std::vector<ExportedPiece>> pieces =
      ExportMemory(*process.device, AsHostPointer(pointer), bytes);
  REQUIRE_OK(pieces.status());
  REQUIRE(pieces->size() == 1);
  return std::move((*pieces)[0]);
}

class IpcProcessTest : public strict_cuda::FakeDriverTest {
 protected:
  IpcProcessTest() : FakeDriverTest(OnRealGpu()) {
    if (OnRealGpu()) return;
    setenv("FERRY_CUDA_LIBRARY", STRICT_CUDA_LIBRARY, 1);
    for (const char* name : {"STRICT_CUDA_ATTRIBUTES", "STRICT_CUDA_FAIL"}) unsetenv(name);
  }

  void ExpectBoth(const std::function<void(const Wire&)>& producer,
                  const std::function<void(const Wire&)>& consumer) {
    const auto outcomes = RunPair(producer, consumer);
    ExpectSuccess(outcomes[0]);
    ExpectSuccess(outcomes[1]);
  }
};

}  // namespace ferry::cuda

#endif  // FERRY_TESTS_GPU_IPC_FIXTURE_H_

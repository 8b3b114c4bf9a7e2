// SPDX-License-Identifier: Apache-2.0
// Tests in one process with the fake driver: a device, and after each test the check
// that no rule was violated and nothing was left behind.
#ifndef FERRY_TESTS_GPU_CUDA_FIXTURE_H_
#define FERRY_TESTS_GPU_CUDA_FIXTURE_H_

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/cuda/cuda_api.h"
#include "gpu/cuda/cuda_device.h"
#include "gpu/cuda/cuda_event.h"
#include "tests/support/real_gpu.h"

namespace ferry::cuda {

inline constexpr size_t kMiB = size_t{1} << 20;

#define ASSERT_OK(expression)                               \
  do {                                                      \
    const absl::Status& assert_ok_status = (expression);    \
    ASSERT_TRUE(assert_ok_status.ok()) << assert_ok_status; \
  } while (false)
#define EXPECT_OK(expression)                               \
  do {                                                      \
    const absl::Status& expect_ok_status = (expression);    \
    EXPECT_TRUE(expect_ok_status.ok()) << expect_ok_status; \
  } while (false)

// The fake driver's own functions, for tests.
inline void* StrictSymbol(const char* name) {
  static void* const library = dlopen(FERRY_STRICT_CUDA, RTLD_NOW | RTLD_LOCAL);
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr) std::abort();
  return symbol;
}
inline void FailNext(const char* symbol, Result error, int after_n = 0) {
  reinterpret_cast<void (*)(const char*, int, int)>(StrictSymbol("strict_cuda_fail_next"))(
      symbol, error, after_n);
}

// At the beginning of a test of a process that uses CUDA itself.
#define NEEDS_TWO_GPUS() \
  if (GpuCount() < 2) GTEST_SKIP() << "this machine shows one GPU"

// The driver is loaded once for the whole process, as it should be.
inline const std::shared_ptr<const CudaApi>& StrictApi() {
  static const auto* const api = [] {
    if (!OnRealGpu()) setenv("FERRY_CUDA_LIBRARY", FERRY_STRICT_CUDA, /*overwrite=*/1);
    absl::StatusOr<std::unique_ptr<CudaApi>> api = CudaApi::Load();
    if (!api.ok()) {
      std::fprintf(stderr, "%s\n", api.status().ToString().c_str());
      std::_Exit(1);
    }
    return new std::shared_ptr<const CudaApi>(*std::move(api));
  }();
  return *api;
}

inline int GpuCount() {
  int count = 0;
  StrictApi()->table().device_get_count(&count);
  return count;
}

inline std::shared_ptr<CudaDevice> OpenDevice(int ordinal = 0) {
  return *CudaDevice::Open(StrictApi(), ordinal);
}

class CudaTest : public ::testing::Test {
 protected:
  CudaTest() : device_(OpenDevice()), events_(EventPool::Create(device_)) {
    free_before_ = FreeBytes();
  }
  ~CudaTest() override {
    // The driver's own memory cannot be distinguished from that of other processes.
    if (OnRealGpu()) return;
    EXPECT_EQ(FreeBytes(), free_before_) << "device memory was left behind";
    // A stream counts a record as done a moment after a query of the event returns that it is.
    const auto outstanding = reinterpret_cast<int (*)()>(StrictSymbol("strict_cuda_outstanding"));
    for (int i = 0; i < 5000 && outstanding() != 0; ++i) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(outstanding(), 0);
    EXPECT_EQ(reinterpret_cast<int (*)()>(StrictSymbol("strict_cuda_violations"))(), 0);
    reinterpret_cast<void (*)()>(StrictSymbol("strict_cuda_clear_faults"))();
  }

  const CudaTable& table() const { return device_->table(); }

  size_t FreeBytes() const {
    const ScopedCurrent current(*device_);
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    EXPECT_EQ(table().memory_get_info(&free_bytes, &total_bytes), kSuccess);
    return free_bytes;
  }

  DevicePointer Alloc(size_t bytes) const {
    const ScopedCurrent current(*device_);
    DevicePointer pointer = 0;
    EXPECT_EQ(table().memory_alloc(&pointer, bytes), kSuccess);
    return pointer;
  }
  void Free(DevicePointer pointer) const {
    const ScopedCurrent current(*device_);
    EXPECT_EQ(table().memory_free(pointer), kSuccess);
  }
  void Write(DevicePointer to, absl::string_view text) const {
    const std::unique_ptr<CudaStream> stream = *CudaStream::Create(device_);
    const ScopedCurrent current(*device_);
    EXPECT_EQ(table().copy_to_device_async(to, text.data(), text.size(), stream->get()), kSuccess);
    EXPECT_EQ(table().stream_synchronize(stream->get()), kSuccess);
  }
  std::string Read(DevicePointer from, size_t bytes) const {
    std::string text(bytes, '?');
    const std::unique_ptr<CudaStream> stream = *CudaStream::Create(device_);
    const ScopedCurrent current(*device_);
    EXPECT_EQ(table().copy_to_host_async(text.data(), from, bytes, stream->get()), kSuccess);
    EXPECT_EQ(table().stream_synchronize(stream->get()), kSuccess);
    return text;
  }

  const std::shared_ptr<CudaDevice> device_;
  const std::shared_ptr<EventPool> events_;

 private:
  size_t free_before_ = 0;
};

// A stream whose work waits until Go() is called, as behind a long kernel.
class HeldStream final {
 public:
  explicit HeldStream(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {
    stream_ = *CudaStream::Create(device_);
    const ScopedCurrent current(*device_);
    EXPECT_EQ(
        device_->table().launch_host_function(
            stream_->get(),
            [](void* go) { static_cast<absl::Notification*>(go)->WaitForNotification(); }, &go_),
        kSuccess);
  }
  ~HeldStream() {
    Go();
    Finish();
  }

  Stream get() const { return stream_->get(); }
  const std::shared_ptr<CudaStream>& shared() const { return stream_; }
  void Go() {
    if (!go_.HasBeenNotified()) go_.Notify();
  }
  void Finish() {
    const ScopedCurrent current(*device_);
    EXPECT_EQ(device_->table().stream_synchronize(stream_->get()), kSuccess);
  }

 private:
  const std::shared_ptr<CudaDevice> device_;
  absl::Notification go_;
  std::shared_ptr<CudaStream> stream_;
};

}  // namespace ferry::cuda

#endif  // FERRY_TESTS_GPU_CUDA_FIXTURE_H_

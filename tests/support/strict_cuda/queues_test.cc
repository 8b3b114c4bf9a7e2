// SPDX-License-Identifier: Apache-2.0
// Hardware queues that streams share: what stands behind a pending wait, and what does not.
#include <chrono>
#include <string>

#include "tests/support/strict_cuda/fake_driver_test.h"

namespace strict_cuda {
namespace {

class QueuesTest : public FakeDriverTest {};

// Work of device 1 that ends when it is told to, and an event behind it.
class Blocker final {
 public:
  Blocker() : context_(UseDevice(1)) {
    CUmodule module = nullptr;
    OK(CU(cuModuleLoadData)(&module, ".version 7.0\n.visible .entry spin() {}"));
    CUfunction spin = nullptr;
    OK(CU(cuModuleGetFunction)(&spin, module, "spin"));
    OK(CU(cuMemHostAlloc)(reinterpret_cast<void**>(&flag_), 4, 0));
    void* parameters[] = {&flag_};
    const CUstream stream = NewStream();
    OK(CU(cuLaunchKernel)(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
    OK(CU(cuEventCreate)(&event_, CU_EVENT_DISABLE_TIMING));
    OK(CU(cuEventRecord)(event_, stream));
    UseDevice(0);
    memory_ = Alloc(64);
  }
  void HoldUp(CUstream stream) const { OK(CU(cuStreamWaitEvent)(stream, event_, 0)); }
  void End() const { __atomic_store_n(flag_, 1, __ATOMIC_RELEASE); }
  void Fill(CUstream stream) const { OK(CU(cuMemsetD8Async)(memory_, 1, 16, stream)); }
  void Copy(CUstream stream) const {
    OK(CU(cuMemcpyDtoDAsync_v2)(memory_ + 32, memory_, 16, stream));
  }

 private:
  const CUcontext context_;
  uint32_t* flag_ = nullptr;
  CUevent event_ = nullptr;
  CUdeviceptr memory_ = 0;
};

// The stream's work ends within seconds.
bool Passes(CUstream stream) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < end) {
    const CUresult result = CU(cuStreamQuery)(stream);
    if (result == CUDA_SUCCESS) return true;
    REQUIRE(result == CUDA_ERROR_NOT_READY);
    usleep(1000);
  }
  return false;
}

// The stream's work does not end while other streams, which were given theirs later, do nothing.
bool IsHeld(CUstream stream) {
  usleep(50000);
  return CU(cuStreamQuery)(stream) == CUDA_ERROR_NOT_READY;
}

TEST_F(QueuesTest, PendingWait_HoldsTheOtherStreamsOfItsQueue) {
  setenv("STRICT_CUDA_CONNECTIONS", "1", 1);
  ExpectSuccess(RunAlone([] {
    const Blocker blocker;
    const CUstream waiting = NewStream();
    const CUstream other = NewStream();
    blocker.HoldUp(waiting);
    blocker.Fill(other);
    REQUIRE(IsHeld(other));
    blocker.End();
    REQUIRE(Passes(other));
    REQUIRE(Passes(waiting));
  }));
}

TEST_F(QueuesTest, WorkBeforeTheWait_IsNotHeld) {
  setenv("STRICT_CUDA_CONNECTIONS", "1", 1);
  ExpectSuccess(RunAlone([] {
    const Blocker blocker;
    const CUstream waiting = NewStream();
    const CUstream other = NewStream();
    blocker.Fill(other);
    blocker.HoldUp(waiting);
    REQUIRE(Passes(other));
    blocker.End();
  }));
}

TEST_F(QueuesTest, WithZero_EachStreamHasAQueue) {
  setenv("STRICT_CUDA_CONNECTIONS", "0", 1);
  ExpectSuccess(RunAlone([] {
    const Blocker blocker;
    const CUstream waiting = NewStream();
    blocker.HoldUp(waiting);
    for (int i = 0; i < 40; ++i) {
      const CUstream other = NewStream();
      blocker.Fill(other);
      REQUIRE(Passes(other));
    }
    blocker.End();
  }));
}

// By default there are eight.
TEST_F(QueuesTest, StreamsTakeTheQueuesInTurn) {
  unsetenv("STRICT_CUDA_CONNECTIONS");
  ExpectSuccess(RunAlone([] {
    const Blocker blocker;
    CUstream streams[9] = {};
    for (CUstream& stream : streams) stream = NewStream();
    blocker.HoldUp(streams[0]);
    for (int i = 1; i <= 8; ++i) blocker.Fill(streams[i]);
    for (int i = 1; i <= 7; ++i) REQUIRE(Passes(streams[i]));
    REQUIRE(IsHeld(streams[8]));
    blocker.End();
    REQUIRE(Passes(streams[8]));
  }));
}

TEST_F(QueuesTest, ProgramsVariableIsHonoured) {
  for (const char* machine : {"0", "8"}) {
    setenv("STRICT_CUDA_CONNECTIONS", machine, 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    ExpectSuccess(RunAlone([] {
      const Blocker blocker;
      const CUstream waiting = NewStream();
      const CUstream other = NewStream();
      blocker.HoldUp(waiting);
      blocker.Fill(other);
      REQUIRE(IsHeld(other));
      blocker.End();
      REQUIRE(Passes(other));
    }));
  }
}

TEST_F(QueuesTest, CopiesHaveQueuesOfTheirOwn) {
  setenv("STRICT_CUDA_CONNECTIONS", "1", 1);
  ExpectSuccess(RunAlone([] {
    const Blocker blocker;
    const CUstream waiting = NewStream();
    const CUstream first = NewStream();
    const CUstream second = NewStream();
    blocker.HoldUp(waiting);
    blocker.Copy(first);
    REQUIRE(Passes(first));
    // A copy that stands behind the wait in its stream holds the copies' queue as well.
    blocker.Copy(waiting);
    blocker.Copy(second);
    REQUIRE(IsHeld(second));
    blocker.End();
    REQUIRE(Passes(second));
  }));
}

TEST_F(QueuesTest, StreamsOfOtherPriority_HaveOtherQueues) {
  setenv("STRICT_CUDA_CONNECTIONS", "1", 1);
  ExpectSuccess(RunAlone([] {
    const Blocker blocker;
    const CUstream waiting = NewStream();
    CUstream urgent = nullptr;
    OK(CU(cuStreamCreateWithPriority)(&urgent, CU_STREAM_NON_BLOCKING, -1));
    blocker.HoldUp(waiting);
    blocker.Fill(urgent);
    REQUIRE(Passes(urgent));
    blocker.End();
  }));
}

TEST_F(QueuesTest, RunningKernel_HoldsOnlyWhatStandsBehindItInItsStream) {
  setenv("STRICT_CUDA_CONNECTIONS", "1", 1);
  ExpectSuccess(RunAlone([] {
    UseDevice();
    CUmodule module = nullptr;
    OK(CU(cuModuleLoadData)(&module, ".version 7.0\n.visible .entry spin() {}"));
    CUfunction spin = nullptr;
    OK(CU(cuModuleGetFunction)(&spin, module, "spin"));
    uint32_t* flag = nullptr;
    OK(CU(cuMemHostAlloc)(reinterpret_cast<void**>(&flag), 4, 0));
    void* parameters[] = {&flag};
    const CUdeviceptr memory = Alloc(16);
    const CUstream busy = NewStream();
    const CUstream other = NewStream();
    OK(CU(cuLaunchKernel)(spin, 1, 1, 1, 1, 1, 1, 0, busy, parameters, nullptr));
    OK(CU(cuMemsetD8Async)(memory, 1, 16, other));
    REQUIRE(Passes(other));
    // It cannot begin before the kernel has ended, and holds the queue until then.
    OK(CU(cuMemsetD8Async)(memory, 2, 16, busy));
    OK(CU(cuMemsetD8Async)(memory, 3, 16, other));
    REQUIRE(IsHeld(other));
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    REQUIRE(Passes(other));
  }));
}

TEST_F(QueuesTest, HostFunction_HoldsItsQueue) {
  setenv("STRICT_CUDA_CONNECTIONS", "1", 1);
  ExpectSuccess(RunAlone([] {
    UseDevice();
    static uint32_t ends = 0;
    const CUhostFn wait = [](void*) {
      while (__atomic_load_n(&ends, __ATOMIC_ACQUIRE) == 0) usleep(1000);
    };
    const CUdeviceptr memory = Alloc(16);
    const CUstream busy = NewStream();
    const CUstream other = NewStream();
    OK(CU(cuLaunchHostFunc)(busy, wait, nullptr));
    OK(CU(cuMemsetD8Async)(memory, 1, 16, other));
    REQUIRE(IsHeld(other));
    __atomic_store_n(&ends, 1, __ATOMIC_RELEASE);
    REQUIRE(Passes(other));
  }));
}

// The legacy stream's rules are waits of the device.
TEST_F(QueuesTest, LegacyStreamStillWaitsForBlockingOnes) {
  setenv("STRICT_CUDA_CONNECTIONS", "1", 1);
  setenv("STRICT_CUDA_DELAY_US", "20000", 1);
  ExpectSuccess(RunAlone([] {
    UseDevice();
    const CUdeviceptr memory = Alloc(16);
    CUstream stream = nullptr;
    OK(CU(cuStreamCreate)(&stream, CU_STREAM_DEFAULT));
    for (char value = 1; value < 5; ++value) {
      OK(CU(cuMemsetD8Async)(memory, static_cast<unsigned char>(value), 16, stream));
      REQUIRE(ReadText(memory, 1)[0] == value);
    }
  }));
}

}  // namespace
}  // namespace strict_cuda

// SPDX-License-Identifier: Apache-2.0
// Programs of one process that break one rule of the driver each, and must be caught.
#include <string>

#include "tests/support/strict_cuda/fake_driver_test.h"

namespace strict_cuda {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class ViolationTest : public FakeDriverTest {
 protected:
  void ExpectCaught(const std::string& rule, const std::function<void()>& body) {
    ExpectViolation(RunAlone(body), rule);
  }
};

CUmemAllocationProp Prop() {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return prop;
}

TEST_F(ViolationTest, ReportsAreKeptAndCanBeCounted) {
  setenv("STRICT_CUDA_ON_BREACH", "record", 1);
  const Outcome outcome = RunAlone([] {
    UseDevice();
    const CUdeviceptr memory = Alloc(16);
    OK(CU(cuMemFree_v2)(memory));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree_v2)(memory));
    REQUIRE(CU(strict_cuda_violations)() == 1);
    REQUIRE(CU(strict_cuda_violations_of)("double-free") == 1);
    REQUIRE(std::string(CU(strict_cuda_last_violation)()) == "double-free");
    CU(strict_cuda_clear_violations)();
    REQUIRE(CU(strict_cuda_violations)() == 0);
  });
  ExpectSuccess(outcome);
  FILE* const file = std::fopen((session_ + "/violations.log").c_str(), "r");
  ASSERT_NE(file, nullptr);
  char line[256] = "";
  EXPECT_NE(std::fgets(line, sizeof(line), file), nullptr);
  std::fclose(file);
  EXPECT_THAT(line, ::testing::HasSubstr("violation of \"double-free\" in cuMemFree_v2"));
}

// In the driver's unit of size, and not of the allocation.
TEST_F(ViolationTest, BytesBehindTheRequestedOnes) {
  ExpectCaught("use-after-free", [] {
    UseDevice();
    const CUdeviceptr memory = Alloc(1000);
    CU(cuMemsetD8_v2)(memory, 1, 1001);
  });
}

TEST_F(ViolationTest, Fork) {
  ExpectCaught("fork", [] {
    UseDevice();
    const pid_t child = fork();
    if (child == 0) {
      Alloc(16);
      std::_Exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) std::abort();
  });
}

TEST_F(ViolationTest, HostFunctionThatCallsCuda) {
  ExpectCaught("host-function", [] {
    UseDevice();
    const CUstream stream = NewStream();
    OK(CU(cuLaunchHostFunc)(
        stream, [](void*) { Alloc(16); }, nullptr));
    OK(CU(cuStreamSynchronize)(stream));
  });
}

TEST_F(ViolationTest, CopyFromFreedMemory) {
  ExpectCaught("use-after-free", [] {
    UseDevice();
    const CUdeviceptr memory = Alloc(4 * kMiB);
    OK(CU(cuMemFree_v2)(memory));
    char byte = 0;
    CU(cuMemcpyDtoH_v2)(&byte, memory, 1);
  });
}

// The memory is freed when the stream gets there, not yet when the copy is enqueued.
TEST_F(ViolationTest, CopyAfterAsynchronousFree) {
  ExpectCaught("use-after-free", [] {
    UseDevice();
    const CUstream stream = NewStream();
    CUdeviceptr memory = 0;
    OK(CU(cuMemAllocAsync)(&memory, 16, stream));
    OK(CU(cuMemFreeAsync)(memory, stream));
    CU(cuMemsetD8Async)(memory, 1, 16, stream);
  });
}

TEST_F(ViolationTest, CopyPastTheEnd) {
  ExpectCaught("use-after-free", [] {
    UseDevice();
    CU(cuMemsetD8_v2)(Alloc(100), 1, 101);
  });
}

TEST_F(ViolationTest, UseOfADestroyedStream) {
  ExpectCaught("use-after-destroy", [] {
    UseDevice();
    const CUstream stream = NewStream();
    OK(CU(cuStreamDestroy_v2)(stream));
    CU(cuStreamSynchronize)(stream);
  });
}

TEST_F(ViolationTest, UseOfMemoryThatIsNotAllocatedYet) {
  setenv("STRICT_CUDA_DELAY_US", "20000", 1);
  ExpectCaught("use-before-ready", [] {
    UseDevice();
    const CUstream first = NewStream();
    const CUstream second = NewStream();
    const CUdeviceptr other = Alloc(16);
    OK(CU(cuMemsetD8Async)(other, 1, 16, first));
    CUdeviceptr memory = 0;
    OK(CU(cuMemAllocAsync)(&memory, 16, first));
    OK(CU(cuMemsetD8Async)(memory, 1, 16, second));
    OK(CU(cuStreamSynchronize)(second));
  });
}

TEST_F(ViolationTest, FreeOfAnInnerPointer) {
  ExpectCaught("double-free", [] {
    UseDevice();
    CU(cuMemFree_v2)(Alloc(100) + 8);
  });
}

TEST_F(ViolationTest, FreeWhileAnotherDeviceReads) {
  ExpectCaught("free-in-use", [] {
    const CUcontext first = UseDevice(0);
    const CUdeviceptr memory = Alloc(16);
    OK(CU(cuMemsetD8_v2)(memory, 0, 16));
    UseDevice(1);
    OK(CU(cuCtxEnablePeerAccess)(first, 0));
    CUmodule module = nullptr;
    OK(CU(cuModuleLoadData)(&module, ".version 7.0 .entry spin"));
    CUfunction spin = nullptr;
    OK(CU(cuModuleGetFunction)(&spin, module, "spin"));
    CUdeviceptr flag = memory;
    void* parameters[] = {&flag};
    OK(CU(cuLaunchKernel)(spin, 1, 1, 1, 1, 1, 1, 0, NewStream(), parameters, nullptr));
    usleep(50000);
    OK(CU(cuCtxSetCurrent)(first));
    CU(cuMemFree_v2)(memory);
  });
}

TEST_F(ViolationTest, MappedMemoryWithoutAccess) {
  ExpectCaught("no-access", [] {
    UseDevice();
    const CUmemAllocationProp prop = Prop();
    CUmemGenericAllocationHandle handle = 0;
    OK(CU(cuMemCreate)(&handle, 2 * kMiB, &prop, 0));
    CUdeviceptr base = 0;
    OK(CU(cuMemAddressReserve)(&base, 2 * kMiB, 0, 0, 0));
    OK(CU(cuMemMap)(base, 2 * kMiB, 0, handle, 0));
    CU(cuMemsetD8_v2)(base, 1, 1);
  });
}

TEST_F(ViolationTest, KernelOnAPeerWithoutPeerAccess) {
  ExpectCaught("no-access", [] {
    UseDevice(0);
    CUdeviceptr flag = Alloc(4);
    UseDevice(1);
    CUmodule module = nullptr;
    OK(CU(cuModuleLoadData)(&module, ".version 7.0 .entry spin"));
    CUfunction spin = nullptr;
    OK(CU(cuModuleGetFunction)(&spin, module, "spin"));
    void* parameters[] = {&flag};
    const CUstream stream = NewStream();
    OK(CU(cuLaunchKernel)(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
    CU(cuStreamSynchronize)(stream);
  });
}

TEST_F(ViolationTest, ReservationFreedWhileMapped) {
  ExpectCaught("vmm", [] {
    UseDevice();
    const CUmemAllocationProp prop = Prop();
    CUmemGenericAllocationHandle handle = 0;
    OK(CU(cuMemCreate)(&handle, 2 * kMiB, &prop, 0));
    CUdeviceptr base = 0;
    OK(CU(cuMemAddressReserve)(&base, 2 * kMiB, 0, 0, 0));
    OK(CU(cuMemMap)(base, 2 * kMiB, 0, handle, 0));
    CU(cuMemAddressFree)(base, 2 * kMiB);
  });
}

TEST_F(ViolationTest, HalfAMappingUnmapped) {
  ExpectCaught("vmm", [] {
    UseDevice();
    const CUmemAllocationProp prop = Prop();
    CUmemGenericAllocationHandle handle = 0;
    OK(CU(cuMemCreate)(&handle, 4 * kMiB, &prop, 0));
    CUdeviceptr base = 0;
    OK(CU(cuMemAddressReserve)(&base, 4 * kMiB, 0, 0, 0));
    OK(CU(cuMemMap)(base, 4 * kMiB, 0, handle, 0));
    CU(cuMemUnmap)(base, 2 * kMiB);
  });
}

}  // namespace
}  // namespace strict_cuda

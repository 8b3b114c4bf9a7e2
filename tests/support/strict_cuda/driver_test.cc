// SPDX-License-Identifier: Apache-2.0
// Correct use of the fake driver, in one process.
#include <atomic>
#include <string>

#include "tests/support/strict_cuda/fake_driver_test.h"

namespace strict_cuda {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class DriverTest : public FakeDriverTest {};

TEST_F(DriverTest, ShowsTheDevicesOfTheEnvironment) {
  setenv("STRICT_CUDA_DEVICES", "4", 1);
  setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
  ExpectSuccess(RunAlone([] {
    OK(CU(cuInit)(0));
    int count = 0;
    OK(CU(cuDeviceGetCount)(&count));
    REQUIRE(count == 2);
    char bus_id[32] = "";
    OK(CU(cuDeviceGetPCIBusId)(bus_id, sizeof(bus_id), 0));
    REQUIRE(std::string(bus_id) == "0000:1d:00.0");
    CUuuid uuid = {};
    OK(CU(cuDeviceGetUuid_v2)(&uuid, 1));
    REQUIRE(uuid.bytes[15] == 0);
    EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, CU(cuDeviceGetUuid_v2)(&uuid, 2));
  }));
}

TEST_F(DriverTest, CopiesInBothDirections) {
  ExpectSuccess(RunAlone([] {
    UseDevice();
    const CUdeviceptr a = Alloc(3 * kMiB);
    const CUdeviceptr b = Alloc(100);
    WriteText(a + 17, "through the device");
    OK(CU(cuMemcpyDtoD_v2)(b, a + 17, 18));
    REQUIRE(ReadText(b, 18) == "through the device");
    OK(CU(cuMemFree_v2)(a));
    OK(CU(cuMemFree_v2)(b));
  }));
}

TEST_F(DriverTest, UnawaitedWorkHasNotHappened) {
  setenv("STRICT_CUDA_DELAY_US", "50000", 1);
  ExpectSuccess(RunAlone([] {
    UseDevice();
    const CUdeviceptr from = Alloc(16);
    WriteText(from, "0123456789abcdef");
    void* to = nullptr;
    OK(CU(cuMemHostAlloc)(&to, 16, 0));
    const CUstream stream = NewStream();
    OK(CU(cuMemcpyDtoHAsync_v2)(to, from, 16, stream));
    // Read behind the back of the thread sanitizer, which would rightly see a race.
    const int self = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    char seen = 1;
    REQUIRE(pread(self, &seen, 1, static_cast<off_t>(reinterpret_cast<uintptr_t>(to))) == 1);
    REQUIRE(seen == 0);
    EXPECT_CU(CUDA_ERROR_NOT_READY, CU(cuStreamQuery)(stream));
    OK(CU(cuStreamSynchronize)(stream));
    REQUIRE(std::memcmp(to, "0123456789abcdef", 16) == 0);
  }));
}

TEST_F(DriverTest, EventsOrderStreams) {
  ExpectSuccess(RunAlone([] {
    UseDevice();
    const CUdeviceptr memory = Alloc(2 * kMiB);
    const CUstream first = NewStream();
    const CUstream second = NewStream();
    CUevent event = nullptr;
    OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    for (int round = 0; round < 20; ++round) {
      OK(CU(cuMemsetD8Async)(memory, static_cast<unsigned char>(round), 2 * kMiB, first));
      OK(CU(cuEventRecord)(event, first));
      OK(CU(cuStreamWaitEvent)(second, event, 0));
      OK(CU(cuMemcpyDtoDAsync_v2)(memory, memory + kMiB, kMiB, second));
      OK(CU(cuStreamSynchronize)(second));
      REQUIRE(ReadText(memory + 5, 1)[0] == static_cast<char>(round));
    }
    OK(CU(cuEventDestroy_v2)(event));
    OK(CU(cuStreamDestroy_v2)(first));
    OK(CU(cuStreamDestroy_v2)(second));
  }));
}

TEST_F(DriverTest, LegacyStreamWaitsForBlockingOnes) {
  setenv("STRICT_CUDA_DELAY_US", "20000", 1);
  ExpectSuccess(RunAlone([] {
    UseDevice();
    const CUdeviceptr memory = Alloc(16);
    CUstream stream = nullptr;
    OK(CU(cuStreamCreate)(&stream, CU_STREAM_DEFAULT));
    OK(CU(cuMemsetD8Async)(memory, 7, 16, stream));
    REQUIRE(ReadText(memory, 1)[0] == 7);
  }));
}

TEST_F(DriverTest, AddressesAreReusedWithOtherBufferIds) {
  ExpectSuccess(RunAlone([] {
    UseDevice();
    uint64_t ids[2] = {};
    CUdeviceptr at[2] = {};
    for (int i = 0; i < 2; ++i) {
      at[i] = Alloc(4 * kMiB);
      OK(CU(cuPointerGetAttribute)(&ids[i], CU_POINTER_ATTRIBUTE_BUFFER_ID, at[i]));
      OK(CU(cuMemFree_v2)(at[i]));
    }
    REQUIRE(at[0] == at[1]);
    REQUIRE(ids[0] != ids[1]);
  }));
}

TEST_F(DriverTest, DistinguishesTheKindsOfMemory) {
  ExpectSuccess(RunAlone([] {
    UseDevice();
    const auto type_of = [](CUdeviceptr pointer) {
      unsigned int type = 0;
      OK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer));
      return type;
    };
    const auto flag_of = [](CUpointer_attribute attribute, CUdeviceptr pointer) {
      uint64_t flag = 0;
      OK(CU(cuPointerGetAttribute)(&flag, attribute, pointer));
      return flag;
    };
    const CUdeviceptr device = Alloc(100);
    REQUIRE(type_of(device + 99) == CU_MEMORYTYPE_DEVICE);
    REQUIRE(flag_of(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, device) == 1);
    REQUIRE(flag_of(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, device + 9) == device);
    REQUIRE(flag_of(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, device) == 0);
    void* host = nullptr;
    OK(CU(cuMemHostAlloc)(&host, 100, 0));
    REQUIRE(type_of(reinterpret_cast<CUdeviceptr>(host)) == CU_MEMORYTYPE_HOST);
    CUdeviceptr managed = 0;
    OK(CU(cuMemAllocManaged)(&managed, 100, CU_MEM_ATTACH_GLOBAL));
    REQUIRE(flag_of(CU_POINTER_ATTRIBUTE_IS_MANAGED, managed) == 1);
    REQUIRE(flag_of(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, managed) == 0);
    CUdeviceptr pooled = 0;
    OK(CU(cuMemAllocAsync)(&pooled, 100, nullptr));
    REQUIRE(flag_of(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pooled) != 0);
    REQUIRE(flag_of(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, pooled) == 0);
    REQUIRE(flag_of(CU_POINTER_ATTRIBUTE_CONTEXT, pooled) == 0);
    char pageable = 0;
    unsigned int type = 0;
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
              CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        reinterpret_cast<CUdeviceptr>(&pageable)));
  }));
}

TEST_F(DriverTest, MapsPhysicalMemoryIntoReservations) {
  ExpectSuccess(RunAlone([] {
    UseDevice();
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUdeviceptr base = 0;
    OK(CU(cuMemAddressReserve)(&base, 8 * kMiB, 0, 0, 0));
    CUmemGenericAllocationHandle chunks[2] = {};
    for (int i = 0; i < 2; ++i) {
      OK(CU(cuMemCreate)(&chunks[i], 2 * kMiB, &prop, 0));
      OK(CU(cuMemMap)(base + i * 2 * kMiB, 2 * kMiB, 0, chunks[i], 0));
      OK(CU(cuMemRelease)(chunks[i]));
    }
    const CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(CU(cuMemSetAccess)(base, 4 * kMiB, &access, 1));
    // Across the two chunks.
    WriteText(base + 2 * kMiB - 4, "01234567");
    REQUIRE(ReadText(base + 2 * kMiB - 4, 8) == "01234567");
    CUdeviceptr chunk = 0;
    size_t bytes = 0;
    OK(CU(cuMemGetAddressRange_v2)(&chunk, &bytes, base + 3 * kMiB));
    REQUIRE(chunk == base + 2 * kMiB && bytes == 2 * kMiB);
    OK(CU(cuMemUnmap)(base, 4 * kMiB));
    OK(CU(cuMemAddressFree)(base, 8 * kMiB));
  }));
}

TEST_F(DriverTest, SizesAreInUnits) {
  const auto body = [] {
    UseDevice();
    const CUdeviceptr memory = Alloc(1000);
    CUdeviceptr base = 0;
    size_t bytes = 0;
    OK(CU(cuMemGetAddressRange_v2)(&base, &bytes, memory + 999));
    REQUIRE(base == memory);
    const bool is_exact = std::getenv("STRICT_CUDA_SIZE_UNIT") != nullptr;
    REQUIRE(bytes == (is_exact ? 1000 : 1024));
    size_t range_bytes = 0;
    OK(CU(cuPointerGetAttribute)(&range_bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory));
    REQUIRE(range_bytes == bytes);
  };
  ExpectSuccess(RunAlone(body));
  setenv("STRICT_CUDA_SIZE_UNIT", "1", 1);
  ExpectSuccess(RunAlone(body));
  unsetenv("STRICT_CUDA_SIZE_UNIT");
}

TEST_F(DriverTest, ReservedAddressesHaveAttributes) {
  ExpectSuccess(RunAlone([] {
    UseDevice();
    CUdeviceptr base = 0;
    OK(CU(cuMemAddressReserve)(&base, 8 * kMiB, 0, 0, 0));
    CUdeviceptr start = 0;
    size_t bytes = 0;
    char is_mapped = 1;
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_MAPPED};
    void* values[] = {&start, &bytes, &is_mapped};
    OK(CU(cuPointerGetAttributes)(3, names, values, base + 5 * kMiB));
    REQUIRE(start == base && bytes == 8 * kMiB && is_mapped == 0);
    EXPECT_CU(CUDA_ERROR_NOT_FOUND, CU(cuMemGetAddressRange_v2)(&start, &bytes, base));
    OK(CU(cuMemAddressFree)(base, 8 * kMiB));
    OK(CU(cuPointerGetAttributes)(3, names, values, base));
    REQUIRE(start == 0 && bytes == 0);
    const CUdeviceptr memory = Alloc(16);
    OK(CU(cuPointerGetAttributes)(3, names, values, memory));
    REQUIRE(is_mapped == 1);
  }));
}

TEST_F(DriverTest, RunsOutOfMemory) {
  setenv("STRICT_CUDA_MEMORY", "16777216", 1);
  ExpectSuccess(RunAlone([] {
    UseDevice();
    const CUdeviceptr most = Alloc(12 * kMiB);
    CUdeviceptr more = 0;
    EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemAlloc_v2)(&more, 8 * kMiB));
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    OK(CU(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
    REQUIRE(free_bytes == 4 * kMiB && total_bytes == 16 * kMiB);
    OK(CU(cuMemFree_v2)(most));
    Alloc(8 * kMiB);
  }));
}

TEST_F(DriverTest, RunsKnownKernels) {
  ExpectSuccess(RunAlone([] {
    UseDevice();
    CUmodule module = nullptr;
    OK(CU(cuModuleLoadData)(
        &module,
        ".version 7.0\n.visible .entry ferry_pattern_fill() {}\n"
        ".visible .entry ferry_pattern_compare() {}\n.visible .entry spin() {}"));
    CUfunction fill = nullptr;
    CUfunction compare = nullptr;
    CUfunction spin = nullptr;
    CUfunction none = nullptr;
    OK(CU(cuModuleGetFunction)(&fill, module, "ferry_pattern_fill"));
    OK(CU(cuModuleGetFunction)(&compare, module, "ferry_pattern_compare"));
    OK(CU(cuModuleGetFunction)(&spin, module, "spin"));
    EXPECT_CU(CUDA_ERROR_NOT_FOUND, CU(cuModuleGetFunction)(&none, module, "ferry_checksum"));
    const CUstream stream = NewStream();
    const CUdeviceptr data = Alloc(1000);
    const CUdeviceptr wrong = Alloc(8);
    uint32_t* flag = nullptr;
    OK(CU(cuMemHostAlloc)(reinterpret_cast<void**>(&flag), 4, 0));
    void* flag_parameter[] = {&flag};
    OK(CU(cuLaunchKernel)(spin, 1, 1, 1, 1, 1, 1, 0, stream, flag_parameter, nullptr));
    uint64_t bytes = 1000;
    uint64_t seed = 42;
    CUdeviceptr to = data;
    void* fill_parameters[] = {&to, &bytes, &seed};
    OK(CU(cuMemsetD8Async)(wrong, 0, 8, stream));
    OK(CU(cuLaunchKernel)(fill, 1, 1, 1, 256, 1, 1, 0, stream, fill_parameters, nullptr));
    OK(CU(cuMemsetD8Async)(data + 999, 1, 1, stream));
    CUdeviceptr count = wrong;
    void* compare_parameters[] = {&to, &bytes, &seed, &count};
    OK(CU(cuLaunchKernel)(compare, 1, 1, 1, 256, 1, 1, 0, stream, compare_parameters, nullptr));
    usleep(20000);
    EXPECT_CU(CUDA_ERROR_NOT_READY, CU(cuStreamQuery)(stream));
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    OK(CU(cuStreamSynchronize)(stream));
    REQUIRE(ReadText(wrong, 8) == std::string("\1\0\0\0\0\0\0\0", 8));
  }));
}

CUfunction LoadKernel(const char* name) {
  CUmodule module = nullptr;
  const std::string image = std::string(".version 7.0\n.visible .entry ") + name;
  OK(CU(cuModuleLoadData)(&module, image.c_str()));
  CUfunction function = nullptr;
  OK(CU(cuModuleGetFunction)(&function, module, name));
  return function;
}

TEST_F(DriverTest, ScalesAndAdds) {
  ExpectSuccess(RunAlone([] {
    UseDevice();
    CUdeviceptr to = Alloc(8);
    CUdeviceptr from = Alloc(8);
    const float values[] = {1.5f, 2.0f, 10.0f, 20.0f};
    OK(CU(cuMemcpyHtoD_v2)(to, values, 8));
    OK(CU(cuMemcpyHtoD_v2)(from, values + 2, 8));
    uint64_t count = 2;
    float scale = 2.0f;
    void* parameters[] = {&to, &from, &count, &scale};
    OK(CU(cuLaunchKernel)(LoadKernel("ferry_scale_add"), 1, 1, 1, 32, 1, 1, 0, nullptr, parameters,
                          nullptr));
    float sums[2] = {};
    OK(CU(cuMemcpyDtoH_v2)(sums, to, 8));
    REQUIRE(sums[0] == 13.0f && sums[1] == 24.0f);
  }));
}

TEST_F(DriverTest, KernelsNeedAlignedWords) {
  ExpectSuccess(RunAlone([] {
    UseDevice();
    CUdeviceptr to = Alloc(64) + 4;
    uint64_t bytes = 8;
    uint64_t seed = 1;
    void* parameters[] = {&to, &bytes, &seed};
    OK(CU(cuLaunchKernel)(LoadKernel("ferry_pattern_fill"), 1, 1, 1, 32, 1, 1, 0, nullptr,
                          parameters, nullptr));
    EXPECT_CU(CUDA_ERROR_MISALIGNED_ADDRESS, CU(cuCtxSynchronize)());
  }));
}

// Nothing of the driver can be used in the process any more.
void ExpectAllCallsFail(CUresult error, CUdeviceptr memory, CUstream stream) {
  CUdeviceptr pointer = 0;
  EXPECT_CU(error, CU(cuMemAlloc_v2)(&pointer, 16));
  EXPECT_CU(error, CU(cuMemFree_v2)(memory));
  EXPECT_CU(error, CU(cuStreamQuery)(stream));
  EXPECT_CU(error, CU(cuMemsetD8Async)(memory, 1, 1, stream));
  uint64_t id = 0;
  EXPECT_CU(error, CU(cuPointerGetAttribute)(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, memory));
  EXPECT_CU(error, CU(cuCtxSynchronize)());
  EXPECT_CU(error, CU(cuDevicePrimaryCtxRelease_v2)(0));
  // Nor on the other device.
  CUcontext context = nullptr;
  EXPECT_CU(error, CU(cuDevicePrimaryCtxRetain)(&context, 1));
}

TEST_F(DriverTest, IllegalAccessesOnDemand_EndTheUseOfTheDriver) {
  ExpectSuccess(RunAlone([] {
    UseDevice();
    const CUdeviceptr memory = Alloc(64);
    const CUstream stream = NewStream();
    CU(strict_cuda_fail_next)("cuMemcpyDtoDAsync_v2", -3, 1);
    OK(CU(cuMemcpyDtoDAsync_v2)(memory + 8, memory, 8, stream));
    OK(CU(cuStreamSynchronize)(stream));
    OK(CU(cuMemcpyDtoDAsync_v2)(memory + 8, memory, 8, stream));
    EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuStreamSynchronize)(stream));
    ExpectAllCallsFail(CUDA_ERROR_ILLEGAL_ADDRESS, memory, stream);
  }));
  ExpectSuccess(RunAlone([] {
    UseDevice();
    const CUdeviceptr memory = Alloc(64);
    const CUstream stream = NewStream();
    CU(strict_cuda_fail_next)("cuMemcpyHtoD_v2", -3, 0);
    EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuMemcpyHtoD_v2)(memory, "text", 4));
    ExpectAllCallsFail(CUDA_ERROR_ILLEGAL_ADDRESS, memory, stream);
  }));
}

TEST_F(DriverTest, MisalignedAccesses_EndTheUseOfTheDriver) {
  ExpectSuccess(RunAlone([] {
    UseDevice();
    CUdeviceptr to = Alloc(64) + 4;
    const CUstream stream = NewStream();
    uint64_t bytes = 8;
    uint64_t seed = 1;
    void* parameters[] = {&to, &bytes, &seed};
    OK(CU(cuLaunchKernel)(LoadKernel("ferry_pattern_fill"), 1, 1, 1, 32, 1, 1, 0, stream,
                          parameters, nullptr));
    EXPECT_CU(CUDA_ERROR_MISALIGNED_ADDRESS, CU(cuStreamSynchronize)(stream));
    ExpectAllCallsFail(CUDA_ERROR_MISALIGNED_ADDRESS, to, stream);
  }));
}

// Without the abort that usually ends the process.
TEST_F(DriverTest, KernelOnFreedMemory_EndsTheUseOfTheDriver) {
  setenv("STRICT_CUDA_ON_BREACH", "record", 1);
  ExpectSuccess(RunAlone([] {
    UseDevice();
    CUdeviceptr to = Alloc(64);
    const CUdeviceptr other = Alloc(64);
    const CUstream stream = NewStream();
    OK(CU(cuMemFree_v2)(to));
    uint64_t bytes = 8;
    uint64_t seed = 1;
    void* parameters[] = {&to, &bytes, &seed};
    OK(CU(cuLaunchKernel)(LoadKernel("ferry_pattern_fill"), 1, 1, 1, 32, 1, 1, 0, stream,
                          parameters, nullptr));
    EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuStreamSynchronize)(stream));
    REQUIRE(CU(strict_cuda_violations_of)("use-after-free") == 1);
    ExpectAllCallsFail(CUDA_ERROR_ILLEGAL_ADDRESS, other, stream);
  }));
}

TEST_F(DriverTest, InjectedFaultsFail) {
  setenv("STRICT_CUDA_FAIL", "cuStreamCreate:2:1", 1);
  ExpectSuccess(RunAlone([] {
    UseDevice();
    NewStream();
    CUstream stream = nullptr;
    EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, CU(cuStreamCreate)(&stream, 0));
    NewStream();
    CU(strict_cuda_fail_next)("cuMemAlloc_v2", CUDA_ERROR_UNKNOWN, 0);
    CUdeviceptr pointer = 0;
    EXPECT_CU(CUDA_ERROR_UNKNOWN, CU(cuMemAlloc_v2)(&pointer, 1));
    Alloc(1);
  }));
}

TEST_F(DriverTest, PeersReachEachOtherByTheMatrix) {
  setenv("STRICT_CUDA_DEVICES", "3", 1);
  setenv("STRICT_CUDA_PEERS", "0-1", 1);
  ExpectSuccess(RunAlone([] {
    const CUcontext second = UseDevice(1);
    const CUcontext third = UseDevice(2);
    UseDevice(0);
    int can = 0;
    OK(CU(cuDeviceCanAccessPeer)(&can, 0, 1));
    REQUIRE(can == 1);
    OK(CU(cuDeviceCanAccessPeer)(&can, 0, 2));
    REQUIRE(can == 0);
    OK(CU(cuCtxEnablePeerAccess)(second, 0));
    EXPECT_CU(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, CU(cuCtxEnablePeerAccess)(second, 0));
    EXPECT_CU(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, CU(cuCtxEnablePeerAccess)(third, 0));
  }));
}

// The CPU must not be able to read device memory that no stream has copied.
TEST_F(DriverTest, CpuCannotAccessDeviceMemory) {
  const Outcome outcome = RunAlone([] {
    UseDevice();
    *reinterpret_cast<volatile char*>(Alloc(16)) = 1;
  });
  EXPECT_FALSE(outcome.Succeeded());
  EXPECT_THAT(outcome.text, ::testing::AnyOf(::testing::HasSubstr("the CPU touched device memory"),
                                             ::testing::HasSubstr("SEGV")));
}

}  // namespace
}  // namespace strict_cuda

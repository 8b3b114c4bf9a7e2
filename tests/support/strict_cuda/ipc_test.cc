// SPDX-License-Identifier: Apache-2.0
// Memory and events between processes, used as they should be.
#include <string>

#include "tests/support/strict_cuda/ipc_handles.h"

namespace strict_cuda {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class IpcTest : public FakeDriverTest {};

TEST_F(IpcTest, HandleShowsTheWholeAllocation) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice();
        Alloc(300);  // a neighbour in the same block
        const CUdeviceptr memory = Alloc(1000);
        WriteText(memory + 990, "the end");
        wire.Put(Export(memory + 990));
        wire.Get<char>();
        REQUIRE(ReadText(memory, 4) == "back");
        OK(CU(cuMemFree_v2)(memory));
      },
      [](const Wire& wire) {
        UseDevice(1);  // a peer
        const auto handle = wire.Get<CUipcMemHandle>();
        const CUdeviceptr memory = Open(handle);
        REQUIRE(Open(handle) == memory);  // counted
        REQUIRE(ReadText(memory + 990, 7) == "the end");
        size_t bytes = 0;
        OK(CU(cuMemGetAddressRange_v2)(nullptr, &bytes, memory));
        REQUIRE(bytes == 1024);
        WriteText(memory, "back");
        OK(CU(cuIpcCloseMemHandle)(memory));
        OK(CU(cuIpcCloseMemHandle)(memory));
        wire.Put('x');
      });
  ExpectSuccess(outcomes[0]);
  ExpectSuccess(outcomes[1]);
}

// The driver need not write all 64 bytes: a cache that hashes them must clear them before.
TEST_F(IpcTest, HandlesHavePadding) {
  ExpectSuccess(RunAlone([] {
    UseDevice();
    const CUdeviceptr memory = Alloc(1000);
    CUipcMemHandle a;
    CUipcMemHandle b;
    std::memset(&a, 1, sizeof(a));
    std::memset(&b, 2, sizeof(b));
    OK(CU(cuIpcGetMemHandle)(&a, memory));
    OK(CU(cuIpcGetMemHandle)(&b, memory));
    REQUIRE(std::memcmp(&a, &b, 32) == 0);
    REQUIRE(std::memcmp(&a, &b, sizeof(a)) != 0);
  }));
}

TEST_F(IpcTest, FreedMemoryCannotBeOpened) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice();
        const CUdeviceptr memory = Alloc(4 * kMiB);
        const CUipcMemHandle handle = Export(memory);
        OK(CU(cuMemFree_v2)(memory));
        wire.Put(handle);
        wire.Get<char>();
      },
      [](const Wire& wire) {
        UseDevice();
        CUdeviceptr pointer = 0;
        EXPECT_CU(CUDA_ERROR_MAP_FAILED,
                  CU(cuIpcOpenMemHandle_v2)(&pointer, wire.Get<CUipcMemHandle>(), 1));
        wire.Put('x');
      });
  ExpectSuccess(outcomes[0]);
  ExpectSuccess(outcomes[1]);
}

TEST_F(IpcTest, WithoutPeerAccess_ImportIsRefused) {
  setenv("STRICT_CUDA_PEERS", "none", 1);
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice(0);
        wire.Put(Export(Alloc(100)));
        wire.Get<char>();
      },
      [](const Wire& wire) {
        UseDevice(1);
        CUdeviceptr pointer = 0;
        EXPECT_CU(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
                  CU(cuIpcOpenMemHandle_v2)(&pointer, wire.Get<CUipcMemHandle>(), 1));
        wire.Put('x');
      });
  ExpectSuccess(outcomes[0]);
  ExpectSuccess(outcomes[1]);
}

TEST_F(IpcTest, EventsOrderStreamsOfTwoProcesses) {
  setenv("STRICT_CUDA_DELAY_US", "20000", 1);
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice();
        const CUdeviceptr memory = Alloc(4 * kMiB);
        CUevent event = nullptr;
        OK(CU(cuEventCreate)(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
        CUipcEventHandle handle = {};
        OK(CU(cuIpcGetEventHandle)(&handle, event));
        const CUstream stream = NewStream();
        for (int round = 1; round <= 3; ++round) {
          OK(CU(cuMemsetD8Async)(memory, static_cast<unsigned char>(round), 4 * kMiB, stream));
          OK(CU(cuEventRecord)(event, stream));
          if (round == 1) wire.Put(Export(memory));
          if (round == 1) wire.Put(handle);
          wire.Put('r');
          wire.Get<char>();
        }
        wire.Get<char>();
        OK(CU(cuEventDestroy_v2)(event));
        OK(CU(cuMemFree_v2)(memory));
      },
      [](const Wire& wire) {
        UseDevice();
        const CUdeviceptr memory = Open(wire.Get<CUipcMemHandle>());
        CUevent event = nullptr;
        OK(CU(cuIpcOpenEventHandle)(&event, wire.Get<CUipcEventHandle>()));
        const CUstream stream = NewStream();
        for (int round = 1; round <= 3; ++round) {
          wire.Get<char>();
          OK(CU(cuStreamWaitEvent)(stream, event, 0));
          char* seen = nullptr;
          OK(CU(cuMemHostAlloc)(reinterpret_cast<void**>(&seen), 1, 0));
          OK(CU(cuMemcpyDtoHAsync_v2)(seen, memory + 3 * kMiB, 1, stream));
          OK(CU(cuStreamSynchronize)(stream));
          REQUIRE(*seen == round);
          wire.Put('a');
        }
        OK(CU(cuEventDestroy_v2)(event));
        OK(CU(cuIpcCloseMemHandle)(memory));
        wire.Put('x');
      });
  ExpectSuccess(outcomes[0]);
  ExpectSuccess(outcomes[1]);
}

TEST_F(IpcTest, VmmMemoryIsPassedByDescriptorAndOutlivesItsCreator) {
  const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const CUmemAccessDesc access = {location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const auto map = [access](CUmemGenericAllocationHandle handle) {
    CUdeviceptr base = 0;
    OK(CU(cuMemAddressReserve)(&base, 4 * kMiB, 0, 0, 0));
    OK(CU(cuMemMap)(base, 4 * kMiB, 0, handle, 0));
    OK(CU(cuMemSetAccess)(base, 4 * kMiB, &access, 1));
    return base;
  };
  const auto outcomes = RunPair(
      [&](const Wire& wire) {
        UseDevice();
        CUmemAllocationProp prop = {};
        prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location = location;
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        CUmemGenericAllocationHandle handle = 0;
        OK(CU(cuMemCreate)(&handle, 4 * kMiB, &prop, 0));
        WriteText(map(handle) + 3 * kMiB, "by descriptor");
        int fd = -1;
        OK(CU(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            0));
        wire.SendFd(fd);
      },
      [&](const Wire& wire) {
        UseDevice();
        const int fd = wire.RecvFd();
        CUmemGenericAllocationHandle handle = 0;
        OK(CU(cuMemImportFromShareableHandle)(&handle,
                                              reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        const CUdeviceptr base = map(handle);
        REQUIRE(ReadText(base + 3 * kMiB, 13) == "by descriptor");
        OK(CU(cuMemRelease)(handle));
        OK(CU(cuMemUnmap)(base, 4 * kMiB));
        OK(CU(cuMemAddressFree)(base, 4 * kMiB));
      });
  ExpectSuccess(outcomes[0]);
  ExpectSuccess(outcomes[1]);
}

TEST_F(IpcTest, PoolMemoryIsPassedByPoolAndPointer) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice();
        int fd = -1;
        const CUmemoryPool pool = NewExportablePool(&fd);
        wire.SendFd(fd);
        const CUstream stream = NewStream();
        CUdeviceptr memory = 0;
        OK(CU(cuMemAllocFromPoolAsync)(&memory, 5000, pool, stream));
        OK(CU(cuStreamSynchronize)(stream));
        WriteText(memory + 4990, "pool");
        CUmemPoolPtrExportData data = {};
        OK(CU(cuMemPoolExportPointer)(&data, memory));
        wire.Put(data);
        wire.Get<char>();
        OK(CU(cuMemFreeAsync)(memory, stream));
        OK(CU(cuStreamSynchronize)(stream));
        OK(CU(cuMemPoolDestroy)(pool));
        CUmemoryPool standard = nullptr;
        OK(CU(cuDeviceGetDefaultMemPool)(&standard, 0));
        EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
                  CU(cuMemPoolExportToShareableHandle)(
                      &fd, standard, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
      },
      [](const Wire& wire) {
        UseDevice();
        const CUmemoryPool pool = ImportPool(wire.RecvFd());
        const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                        CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        OK(CU(cuMemPoolSetAccess)(pool, &access, 1));
        auto data = wire.Get<CUmemPoolPtrExportData>();
        CUdeviceptr memory = 0;
        OK(CU(cuMemPoolImportPointer)(&memory, pool, &data));
        REQUIRE(ReadText(memory + 4990, 4) == "pool");
        OK(CU(cuMemFree_v2)(memory));
        wire.Put('x');
      });
  ExpectSuccess(outcomes[0]);
  ExpectSuccess(outcomes[1]);
}

TEST_F(IpcTest, PoolIsImportedOnceAtATime) {
  setenv("STRICT_CUDA_POOL_IMPORTS", "once", 1);
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice();
        int fd = -1;
        NewExportablePool(&fd);
        wire.SendFd(fd);
        wire.Get<char>();
      },
      [](const Wire& wire) {
        UseDevice();
        const int fd = wire.RecvFd();
        const CUmemoryPool first = ImportPool(fd);
        CUmemoryPool second = nullptr;
        EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
                  CU(cuMemPoolImportFromShareableHandle)(
                      &second, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        OK(CU(cuMemPoolDestroy)(first));
        ImportPool(fd);
        wire.Put('x');
      });
  unsetenv("STRICT_CUDA_POOL_IMPORTS");
  ExpectSuccess(outcomes[0]);
  ExpectSuccess(outcomes[1]);
}

// The memory of a device is the sum over all processes.
TEST_F(IpcTest, ProcessesShareTheMemoryOfADevice) {
  setenv("STRICT_CUDA_MEMORY", "16777216", 1);
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice();
        Alloc(12 * kMiB);
        wire.Put('a');
        wire.Get<char>();
      },
      [](const Wire& wire) {
        UseDevice();
        wire.Get<char>();
        CUdeviceptr pointer = 0;
        EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemAlloc_v2)(&pointer, 8 * kMiB));
        wire.Put('x');
      });
  ExpectSuccess(outcomes[0]);
  ExpectSuccess(outcomes[1]);
}

}  // namespace
}  // namespace strict_cuda

// SPDX-License-Identifier: Apache-2.0
// Programs that break one rule of the driver each, and must be caught.
#include <string>

#include "tests/support/strict_cuda/double_test.h"

namespace strict_cuda {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class BreachTest : public DoubleTest {
 protected:
  void ExpectCaught(const std::string& rule, const std::function<void()>& body) {
    ExpectBreach(RunAlone(body), rule);
  }
  // The first process is the one to be caught; the other must do nothing wrong.
  void ExpectFirstCaught(const std::string& rule, const std::function<void(const Wire&)>& first,
                         const std::function<void(const Wire&)>& second) {
    const auto outcomes = RunPair(first, second);
    ExpectBreach(outcomes[0], rule);
    ExpectSuccess(outcomes[1]);
  }
};

CUipcMemHandle Export(CUdeviceptr pointer) {
  CUipcMemHandle handle = {};
  OK(CU(cuIpcGetMemHandle)(&handle, pointer));
  return handle;
}

CUdeviceptr Open(const CUipcMemHandle& handle) {
  CUdeviceptr pointer = 0;
  OK(CU(cuIpcOpenMemHandle_v2)(&pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  return pointer;
}

CUevent NewIpcEvent() {
  CUevent event = nullptr;
  OK(CU(cuEventCreate)(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  return event;
}

CUipcEventHandle Export(CUevent event) {
  CUipcEventHandle handle = {};
  OK(CU(cuIpcGetEventHandle)(&handle, event));
  return handle;
}

CUmemAllocationProp Prop() {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return prop;
}

TEST_F(BreachTest, ReportsAreKeptAndCanBeCounted) {
  setenv("STRICT_CUDA_ON_BREACH", "record", 1);
  const Outcome outcome = RunAlone([] {
    UseDevice();
    const CUdeviceptr memory = Alloc(16);
    OK(CU(cuMemFree_v2)(memory));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree_v2)(memory));
    REQUIRE(CU(strict_cuda_breaches)() == 1);
    REQUIRE(CU(strict_cuda_breaches_of)("double-free") == 1);
    REQUIRE(std::string(CU(strict_cuda_last_breach)()) == "double-free");
    CU(strict_cuda_clear_breaches)();
    REQUIRE(CU(strict_cuda_breaches)() == 0);
  });
  ExpectSuccess(outcome);
  FILE* const file = std::fopen((session_ + "/breaches.log").c_str(), "r");
  ASSERT_NE(file, nullptr);
  char line[256] = "";
  EXPECT_NE(std::fgets(line, sizeof(line), file), nullptr);
  std::fclose(file);
  EXPECT_THAT(line, ::testing::HasSubstr("breach of \"double-free\" in cuMemFree_v2"));
}

TEST_F(BreachTest, Fork) {
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

TEST_F(BreachTest, HostFunctionThatCallsCuda) {
  ExpectCaught("host-function", [] {
    UseDevice();
    const CUstream stream = NewStream();
    OK(CU(cuLaunchHostFunc)(
        stream, [](void*) { Alloc(16); }, nullptr));
    OK(CU(cuStreamSynchronize)(stream));
  });
}

TEST_F(BreachTest, HandleOpenedInItsOwnProcess) {
  ExpectCaught("ipc-same-process", [] {
    UseDevice();
    Open(Export(Alloc(16)));
  });
}

TEST_F(BreachTest, LegacyHandleOfOtherMemory) {
  ExpectCaught("ipc-memory-kind", [] {
    UseDevice();
    CUdeviceptr memory = 0;
    OK(CU(cuMemAllocAsync)(&memory, 16, nullptr));
    CUipcMemHandle handle = {};
    CU(cuIpcGetMemHandle)(&handle, memory);
  });
}

TEST_F(BreachTest, ImportClosedTwice) {
  ExpectFirstCaught(
      "ipc-double-close",
      [](const Wire& wire) {
        UseDevice();
        const CUdeviceptr memory = Open(wire.Get<CUipcMemHandle>());
        OK(CU(cuIpcCloseMemHandle)(memory));
        wire.Put('c');
        CU(cuIpcCloseMemHandle)(memory);
      },
      [](const Wire& wire) {
        UseDevice();
        wire.Put(Export(Alloc(16)));
        wire.Get<char>();
      });
}

TEST_F(BreachTest, ImportClosedByAnInnerPointer) {
  ExpectFirstCaught(
      "ipc-double-close",
      [](const Wire& wire) {
        UseDevice();
        const CUdeviceptr memory = Open(wire.Get<CUipcMemHandle>());
        wire.Put('c');
        CU(cuIpcCloseMemHandle)(memory + 8);
      },
      [](const Wire& wire) {
        UseDevice();
        wire.Put(Export(Alloc(16)));
        wire.Get<char>();
      });
}

TEST_F(BreachTest, FreeWhileImported) {
  ExpectFirstCaught(
      "free-while-imported",
      [](const Wire& wire) {
        UseDevice();
        const CUdeviceptr memory = Alloc(16);
        wire.Put(Export(memory));
        wire.Get<char>();
        wire.Put('g');
        CU(cuMemFree_v2)(memory);
      },
      [](const Wire& wire) {
        UseDevice();
        Open(wire.Get<CUipcMemHandle>());
        wire.Put('o');
        wire.Get<char>();
        usleep(100000);
      });
}

// A dead importer holds nothing.
TEST_F(BreachTest, FreeAfterTheImporterDiedIsFine) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice();
        const CUdeviceptr memory = Alloc(16);
        wire.Put(Export(memory));
        const auto importer = wire.Get<pid_t>();
        // It stays as a zombie until the test asks for it.
        while (true) {
          char path[64];
          std::snprintf(path, sizeof(path), "/proc/%d/stat", importer);
          FILE* const file = std::fopen(path, "r");
          if (file == nullptr) break;
          char state = 0;
          const int read = std::fscanf(file, "%*d %*s %c", &state);
          std::fclose(file);
          if (read == 1 && state == 'Z') break;
          usleep(1000);
        }
        OK(CU(cuMemFree_v2)(memory));
      },
      [](const Wire& wire) {
        UseDevice();
        Open(wire.Get<CUipcMemHandle>());
        wire.Put(getpid());
        kill(getpid(), SIGKILL);
      });
  ExpectSuccess(outcomes[0]);
}

TEST_F(BreachTest, PoolMemoryFreedWhileImported) {
  ExpectFirstCaught(
      "free-while-imported",
      [](const Wire& wire) {
        UseDevice();
        CUmemPoolProps props = {};
        props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        CUmemoryPool pool = nullptr;
        OK(CU(cuMemPoolCreate)(&pool, &props));
        int fd = -1;
        OK(CU(cuMemPoolExportToShareableHandle)(&fd, pool, props.handleTypes, 0));
        CUdeviceptr memory = 0;
        OK(CU(cuMemAllocFromPoolAsync)(&memory, 16, pool, nullptr));
        CUmemPoolPtrExportData data = {};
        OK(CU(cuMemPoolExportPointer)(&data, memory));
        wire.SendFd(fd);
        wire.Put(data);
        wire.Get<char>();
        wire.Put('g');
        OK(CU(cuMemFreeAsync)(memory, nullptr));
        OK(CU(cuStreamSynchronize)(nullptr));
      },
      [](const Wire& wire) {
        UseDevice();
        CUmemoryPool pool = nullptr;
        OK(CU(cuMemPoolImportFromShareableHandle)(
            &pool, reinterpret_cast<void*>(static_cast<intptr_t>(wire.RecvFd())),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        auto data = wire.Get<CUmemPoolPtrExportData>();
        CUdeviceptr memory = 0;
        OK(CU(cuMemPoolImportPointer)(&memory, pool, &data));
        wire.Put('o');
        wire.Get<char>();
        usleep(100000);
      });
}

// The pointer has come, the allocation has not: the importer waits for no event.
TEST_F(BreachTest, ImportUsedBeforeItIsAllocated) {
  setenv("STRICT_CUDA_DELAY_US", "200000", 1);
  ExpectFirstCaught(
      "use-before-ready",
      [](const Wire& wire) {
        setenv("STRICT_CUDA_DELAY_US", "0", 1);
        UseDevice();
        CUmemoryPool pool = nullptr;
        OK(CU(cuMemPoolImportFromShareableHandle)(
            &pool, reinterpret_cast<void*>(static_cast<intptr_t>(wire.RecvFd())),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        auto data = wire.Get<CUmemPoolPtrExportData>();
        CUdeviceptr memory = 0;
        OK(CU(cuMemPoolImportPointer)(&memory, pool, &data));
        wire.Put('g');
        CU(cuMemsetD8_v2)(memory, 1, 1);
      },
      [](const Wire& wire) {
        UseDevice();
        CUmemPoolProps props = {};
        props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        CUmemoryPool pool = nullptr;
        OK(CU(cuMemPoolCreate)(&pool, &props));
        int fd = -1;
        OK(CU(cuMemPoolExportToShareableHandle)(&fd, pool, props.handleTypes, 0));
        wire.SendFd(fd);
        CUdeviceptr memory = 0;
        OK(CU(cuMemAllocFromPoolAsync)(&memory, 16, pool, nullptr));
        CUmemPoolPtrExportData data = {};
        OK(CU(cuMemPoolExportPointer)(&data, memory));
        wire.Put(data);
        wire.Get<char>();
        usleep(100000);
      });
}

TEST_F(BreachTest, ImportedPoolAllocates) {
  ExpectFirstCaught(
      "pool-imported-alloc",
      [](const Wire& wire) {
        UseDevice();
        CUmemoryPool pool = nullptr;
        OK(CU(cuMemPoolImportFromShareableHandle)(
            &pool, reinterpret_cast<void*>(static_cast<intptr_t>(wire.RecvFd())),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        wire.Put('g');
        CUdeviceptr memory = 0;
        CU(cuMemAllocFromPoolAsync)(&memory, 16, pool, nullptr);
      },
      [](const Wire& wire) {
        UseDevice();
        CUmemPoolProps props = {};
        props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        CUmemoryPool pool = nullptr;
        OK(CU(cuMemPoolCreate)(&pool, &props));
        int fd = -1;
        OK(CU(cuMemPoolExportToShareableHandle)(&fd, pool, props.handleTypes, 0));
        wire.SendFd(fd);
        wire.Get<char>();
      });
}

TEST_F(BreachTest, EventOpenedInItsOwnProcess) {
  ExpectCaught("event-same-process", [] {
    UseDevice();
    CUevent event = nullptr;
    CU(cuIpcOpenEventHandle)(&event, Export(NewIpcEvent()));
  });
}

TEST_F(BreachTest, InterprocessEventWithTiming) {
  ExpectCaught("event-interprocess-timing", [] {
    UseDevice();
    CUevent event = nullptr;
    CU(cuEventCreate)(&event, CU_EVENT_INTERPROCESS);
  });
}

TEST_F(BreachTest, HandleOfAnOrdinaryEvent) {
  ExpectCaught("event-not-interprocess", [] {
    UseDevice();
    CUevent event = nullptr;
    OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    CUipcEventHandle handle = {};
    CU(cuIpcGetEventHandle)(&handle, event);
  });
}

TEST_F(BreachTest, EventDestroyedWhileImported) {
  ExpectFirstCaught(
      "event-destroyed-while-imported",
      [](const Wire& wire) {
        UseDevice();
        const CUevent event = NewIpcEvent();
        wire.Put(Export(event));
        wire.Get<char>();
        wire.Put('g');
        CU(cuEventDestroy_v2)(event);
      },
      [](const Wire& wire) {
        UseDevice();
        CUevent event = nullptr;
        OK(CU(cuIpcOpenEventHandle)(&event, wire.Get<CUipcEventHandle>()));
        wire.Put('o');
        wire.Get<char>();
        usleep(100000);
      });
}

// The message came before the record.
TEST_F(BreachTest, EventAwaitedBeforeItsRecord) {
  ExpectFirstCaught(
      "event-wait-before-record",
      [](const Wire& wire) {
        UseDevice();
        CUevent event = nullptr;
        OK(CU(cuIpcOpenEventHandle)(&event, wire.Get<CUipcEventHandle>()));
        const CUstream stream = NewStream();
        wire.Put('g');
        CU(cuStreamWaitEvent)(stream, event, 0);
      },
      [](const Wire& wire) {
        UseDevice();
        wire.Put(Export(NewIpcEvent()));
        wire.Get<char>();
      });
}

TEST_F(BreachTest, EventRecordedAgainBeforeThePeerHasPassed) {
  setenv("STRICT_CUDA_DELAY_US", "100000", 1);
  ExpectFirstCaught(
      "event-reuse",
      [](const Wire& wire) {
        UseDevice();
        const CUdeviceptr memory = Alloc(16);
        const CUevent event = NewIpcEvent();
        const CUstream stream = NewStream();
        OK(CU(cuMemsetD8Async)(memory, 1, 16, stream));
        OK(CU(cuEventRecord)(event, stream));
        wire.Put(Export(event));
        wire.Get<char>();
        wire.Put('g');
        CU(cuEventRecord)(event, stream);
      },
      [](const Wire& wire) {
        UseDevice();
        CUevent event = nullptr;
        OK(CU(cuIpcOpenEventHandle)(&event, wire.Get<CUipcEventHandle>()));
        OK(CU(cuStreamWaitEvent)(NewStream(), event, 0));
        wire.Put('w');
        wire.Get<char>();
        usleep(300000);
      });
}

TEST_F(BreachTest, CopyFromFreedMemory) {
  ExpectCaught("use-after-free", [] {
    UseDevice();
    const CUdeviceptr memory = Alloc(4 * kMiB);
    OK(CU(cuMemFree_v2)(memory));
    char byte = 0;
    CU(cuMemcpyDtoH_v2)(&byte, memory, 1);
  });
}

// The memory is gone when the stream gets there, not yet when the copy is enqueued.
TEST_F(BreachTest, CopyAfterAsynchronousFree) {
  ExpectCaught("use-after-free", [] {
    UseDevice();
    const CUstream stream = NewStream();
    CUdeviceptr memory = 0;
    OK(CU(cuMemAllocAsync)(&memory, 16, stream));
    OK(CU(cuMemFreeAsync)(memory, stream));
    CU(cuMemsetD8Async)(memory, 1, 16, stream);
  });
}

TEST_F(BreachTest, CopyPastTheEnd) {
  ExpectCaught("use-after-free", [] {
    UseDevice();
    CU(cuMemsetD8_v2)(Alloc(100), 1, 101);
  });
}

// Addresses differ between processes: a pointer that was sent as a number is caught.
TEST_F(BreachTest, PointerOfAnotherProcess) {
  ExpectFirstCaught(
      "use-after-free",
      [](const Wire& wire) {
        UseDevice();
        const auto pointer = wire.Get<CUdeviceptr>();
        wire.Put('g');
        CU(cuMemsetD8_v2)(pointer, 1, 1);
      },
      [](const Wire& wire) {
        UseDevice();
        wire.Put(Alloc(16) + (CUdeviceptr{1} << 36));
        wire.Get<char>();
      });
}

TEST_F(BreachTest, UseOfADestroyedStream) {
  ExpectCaught("use-after-destroy", [] {
    UseDevice();
    const CUstream stream = NewStream();
    OK(CU(cuStreamDestroy_v2)(stream));
    CU(cuStreamSynchronize)(stream);
  });
}

TEST_F(BreachTest, UseOfMemoryThatIsNotAllocatedYet) {
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

TEST_F(BreachTest, FreeOfAnInnerPointer) {
  ExpectCaught("double-free", [] {
    UseDevice();
    CU(cuMemFree_v2)(Alloc(100) + 8);
  });
}

TEST_F(BreachTest, FreeWhileAnotherDeviceReads) {
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

TEST_F(BreachTest, MappedMemoryWithoutAccess) {
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

TEST_F(BreachTest, KernelOnAPeerWithoutPeerAccess) {
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

TEST_F(BreachTest, ReservationFreedWhileMapped) {
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

TEST_F(BreachTest, HalfAMappingUnmapped) {
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

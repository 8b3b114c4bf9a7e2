// SPDX-License-Identifier: Apache-2.0
// Programs that break one rule of sharing between processes each, and must be caught.
#include <string>

#include "tests/support/strict_cuda/ipc_handles.h"

namespace strict_cuda {
namespace {

class IpcViolationTest : public FakeDriverTest {
 protected:
  void ExpectCaught(const std::string& rule, const std::function<void()>& body) {
    ExpectViolation(RunAlone(body), rule);
  }
  // The first process is the one to be caught; the other must do nothing wrong.
  void ExpectFirstCaught(const std::string& rule, const std::function<void(const Wire&)>& first,
                         const std::function<void(const Wire&)>& second) {
    const auto outcomes = RunPair(first, second);
    ExpectViolation(outcomes[0], rule);
    ExpectSuccess(outcomes[1]);
  }
};

TEST_F(IpcViolationTest, HandleOpenedInItsOwnProcess) {
  ExpectCaught("ipc-same-process", [] {
    UseDevice();
    Open(Export(Alloc(16)));
  });
}

TEST_F(IpcViolationTest, LegacyHandleOfOtherMemory) {
  ExpectCaught("ipc-memory-kind", [] {
    UseDevice();
    CUdeviceptr memory = 0;
    OK(CU(cuMemAllocAsync)(&memory, 16, nullptr));
    CUipcMemHandle handle = {};
    CU(cuIpcGetMemHandle)(&handle, memory);
  });
}

TEST_F(IpcViolationTest, ImportClosedTwice) {
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

TEST_F(IpcViolationTest, ImportClosedByAnInnerPointer) {
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

TEST_F(IpcViolationTest, FreeWhileImported) {
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
TEST_F(IpcViolationTest, FreeAfterTheImporterDiedIsAllowed) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice();
        const CUdeviceptr memory = Alloc(16);
        wire.Put(Export(memory));
        const auto importer = wire.Get<pid_t>();
        // It stays as a zombie until the test reaps it.
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

TEST_F(IpcViolationTest, PoolMemoryFreedWhileImported) {
  ExpectFirstCaught(
      "free-while-imported",
      [](const Wire& wire) {
        UseDevice();
        int fd = -1;
        const CUmemoryPool pool = NewExportablePool(&fd);
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
        const CUmemoryPool pool = ImportPool(wire.RecvFd());
        auto data = wire.Get<CUmemPoolPtrExportData>();
        CUdeviceptr memory = 0;
        OK(CU(cuMemPoolImportPointer)(&memory, pool, &data));
        wire.Put('o');
        wire.Get<char>();
        usleep(100000);
      });
}

// The pointer has come, the allocation has not: the importer waits for no event.
TEST_F(IpcViolationTest, ImportUsedBeforeItIsAllocated) {
  setenv("STRICT_CUDA_DELAY_US", "200000", 1);
  ExpectFirstCaught(
      "use-before-ready",
      [](const Wire& wire) {
        setenv("STRICT_CUDA_DELAY_US", "0", 1);
        UseDevice();
        const CUmemoryPool pool = ImportPool(wire.RecvFd());
        auto data = wire.Get<CUmemPoolPtrExportData>();
        CUdeviceptr memory = 0;
        OK(CU(cuMemPoolImportPointer)(&memory, pool, &data));
        wire.Put('g');
        CU(cuMemsetD8_v2)(memory, 1, 1);
      },
      [](const Wire& wire) {
        UseDevice();
        int fd = -1;
        const CUmemoryPool pool = NewExportablePool(&fd);
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

TEST_F(IpcViolationTest, ImportedPoolAllocates) {
  ExpectFirstCaught(
      "pool-imported-alloc",
      [](const Wire& wire) {
        UseDevice();
        const CUmemoryPool pool = ImportPool(wire.RecvFd());
        wire.Put('g');
        CUdeviceptr memory = 0;
        CU(cuMemAllocFromPoolAsync)(&memory, 16, pool, nullptr);
      },
      [](const Wire& wire) {
        UseDevice();
        int fd = -1;
        NewExportablePool(&fd);
        wire.SendFd(fd);
        wire.Get<char>();
      });
}

TEST_F(IpcViolationTest, EventOpenedInItsOwnProcess) {
  ExpectCaught("event-same-process", [] {
    UseDevice();
    CUevent event = nullptr;
    CU(cuIpcOpenEventHandle)(&event, Export(NewIpcEvent()));
  });
}

TEST_F(IpcViolationTest, InterprocessEventWithTiming) {
  ExpectCaught("event-interprocess-timing", [] {
    UseDevice();
    CUevent event = nullptr;
    CU(cuEventCreate)(&event, CU_EVENT_INTERPROCESS);
  });
}

TEST_F(IpcViolationTest, HandleOfAnOrdinaryEvent) {
  ExpectCaught("event-not-interprocess", [] {
    UseDevice();
    CUevent event = nullptr;
    OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    CUipcEventHandle handle = {};
    CU(cuIpcGetEventHandle)(&handle, event);
  });
}

TEST_F(IpcViolationTest, EventDestroyedWhileImported) {
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
TEST_F(IpcViolationTest, EventAwaitedBeforeItsRecord) {
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

TEST_F(IpcViolationTest, EventRecordedAgainBeforeThePeerHasPassed) {
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

// Addresses differ between processes: a pointer that was sent as a number is caught.
TEST_F(IpcViolationTest, PointerOfAnotherProcess) {
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

}  // namespace
}  // namespace strict_cuda

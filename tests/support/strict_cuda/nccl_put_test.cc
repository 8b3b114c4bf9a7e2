// SPDX-License-Identifier: Apache-2.0
// Windows and one-sided operations of the fake driver: what they do, and programs that break their
// rules.
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/support/strict_cuda/nccl_violation.h"

namespace strict_cuda {
namespace {

constexpr size_t kPool = 1 << 20;

// A rank with a pool that both have registered as a window.
struct PutRank {
  PairRank& pair;
  void* pool = nullptr;
  ncclWindow_t window = nullptr;

  explicit PutRank(PairRank& rank) : pair(rank) {
    OK(CU(ncclMemAlloc)(&pool, kPool));
    AwaitLaunch(CU(ncclCommWindowRegister)(pair.comm, pool, kPool, &window, 1), pair.comm);
  }
  CUdeviceptr at(size_t offset) const { return reinterpret_cast<CUdeviceptr>(pool) + offset; }
  ncclResult_t TryPut(const void* from, size_t bytes, size_t offset) const {
    return CU(ncclPutSignal)(from, bytes, ncclUint8, 1 - pair.rank, window, offset, 0, 0, 0,
                             pair.comm, pair.stream);
  }
  void Put(size_t from, size_t bytes, size_t offset) const {
    AwaitLaunch(TryPut(Buffer(at(from)), bytes, offset), pair.comm);
  }
  void Signal() const {
    AwaitLaunch(CU(ncclSignal)(1 - pair.rank, 0, 0, 0, pair.comm, pair.stream), pair.comm);
  }
  void Wait(int count) const {
    ncclWaitSignalDesc_t wait = {count, 1 - pair.rank, 0, 0};
    AwaitLaunch(CU(ncclWaitSignal)(1, &wait, pair.comm, pair.stream), pair.comm);
  }
  void Fill(size_t offset, char value) const {
    OK(CU(cuMemsetD8_v2)(at(offset), static_cast<unsigned char>(value), 64));
  }
  char Read(size_t offset) const {
    char value = 0;
    OK(CU(cuMemcpyDtoH_v2)(&value, at(offset), 1));
    return value;
  }
};

class NcclPutTest : public NcclViolationTest {
 protected:
  NcclPutTest() { setenv("STRICT_CUDA_NCCL_VERSION", "22907", 1); }
  ~NcclPutTest() override {
    for (const char* const variable :
         {"STRICT_CUDA_NCCL_VERSION", "STRICT_CUDA_NCCL_WINDOWS", "STRICT_CUDA_NCCL_EARLY_WAIT"}) {
      unsetenv(variable);
    }
  }

  // Two ranks in a process each, which must both succeed.
  void RunRanks(const std::function<void(PairRank& rank, const Wire& wire)>& first,
                const std::function<void(PairRank& rank, const Wire& wire)>& second) {
    const auto outcomes = RunPair(
        [&](const Wire& wire) {
          UseDevice(0);
          PairRank rank(0, MintFor(wire));
          Meet(wire);
          first(rank, wire);
        },
        [&](const Wire& wire) {
          UseDevice(1);
          PairRank rank(1, wire.Get<ncclUniqueId>());
          Meet(wire);
          second(rank, wire);
        });
    ExpectSuccess(outcomes[0]);
    ExpectSuccess(outcomes[1]);
  }
};

// Nothing of the receiver takes part but its wait, and signals are counted.
TEST_F(NcclPutTest, PutsArriveInOrderWithTheirSignals) {
  RunRanks(
      [](PairRank& pair, const Wire& wire) {
        const PutRank rank(pair);
        rank.Signal();
        rank.Fill(0, 'a');
        rank.Fill(64, 'b');
        rank.Put(0, 64, 4096);
        rank.Put(64, 64, 8192);
        pair.Synchronize();
        wire.Put('p');
        wire.Get<char>();
        OK(CU(ncclCommAbort)(pair.comm));
      },
      [](PairRank& pair, const Wire& wire) {
        const PutRank rank(pair);
        rank.Fill(4096, '-');
        rank.Fill(8192, '-');
        rank.Signal();
        wire.Get<char>();
        rank.Wait(2);
        rank.Wait(1);
        pair.Synchronize();
        REQUIRE(rank.Read(4096) == 'a');
        REQUIRE(rank.Read(8192) == 'b');
        wire.Put('d');
        OK(CU(ncclCommAbort)(pair.comm));
      });
}

TEST_F(NcclPutTest, WaitHoldsItsStreamUntilThePut) {
  RunRanks(
      [](PairRank& pair, const Wire& wire) {
        const PutRank rank(pair);
        rank.Signal();
        wire.Get<char>();
        rank.Fill(0, 'x');
        rank.Put(0, 64, 64);
        pair.Synchronize();
        wire.Get<char>();
      },
      [](PairRank& pair, const Wire& wire) {
        const PutRank rank(pair);
        rank.Wait(2);
        usleep(20000);
        EXPECT_CU(CUDA_ERROR_NOT_READY, CU(cuStreamQuery)(pair.stream));
        wire.Put('w');
        pair.Synchronize();
        REQUIRE(rank.Read(64) == 'x');
        wire.Put('d');
      });
}

// As all collective calls on hosts: an abort ends it.
TEST_F(NcclPutTest, RegistrationWaitsForAllRanks) {
  RunRanks(
      [](PairRank& pair, const Wire& wire) {
        void* pool = nullptr;
        OK(CU(ncclMemAlloc)(&pool, kPool));
        ncclWindow_t window = nullptr;
        EXPECT_CU(ncclInProgress, CU(ncclCommWindowRegister)(pair.comm, pool, kPool, &window, 1));
        usleep(20000);
        ncclResult_t state = ncclSuccess;
        OK(CU(ncclCommGetAsyncError)(pair.comm, &state));
        REQUIRE(state == ncclInProgress && window == nullptr);
        OK(CU(ncclCommAbort)(pair.comm));
        wire.Put('a');
      },
      [](PairRank& pair, const Wire& wire) {
        wire.Get<char>();
        OK(CU(ncclCommAbort)(pair.comm));
      });
}

TEST_F(NcclPutTest, PropertiesTellWhetherPutsWork) {
  for (const char* const windows : {"puts", "only", "none"}) {
    SCOPED_TRACE(windows);
    setenv("STRICT_CUDA_NCCL_WINDOWS", windows, 1);
    const std::string mode = windows;
    const auto body = [&mode](PairRank& pair, const Wire&) {
      ncclCommProperties_t properties = {};
      properties.size = sizeof(properties);
      EXPECT_CU(ncclInvalidUsage, CU(ncclCommQueryProperties)(pair.comm, &properties));
      properties.magic = kNcclConfigMagic;
      properties.version = 22908;  // newer than the library
      EXPECT_CU(ncclInvalidUsage, CU(ncclCommQueryProperties)(pair.comm, &properties));
      properties.version = 22907;
      OK(CU(ncclCommQueryProperties)(pair.comm, &properties));
      REQUIRE(properties.hostRmaSupport == (mode == "puts"));
      const PutRank rank(pair);
      REQUIRE((rank.window != nullptr) == (mode != "none"));
      if (mode == "puts") return;
      // A refused operation leaves a non-blocking communicator in error.
      REQUIRE(CU(ncclSignal)(1 - pair.rank, 0, 0, 0, pair.comm, pair.stream) ==
              ncclInvalidArgument);
      REQUIRE(Settle(pair.comm) == ncclInvalidArgument);
    };
    RunRanks(body, body);
  }
}

TEST_F(NcclPutTest, ViolationSourceOutsideAnyWindow) {
  const auto register_pool = [](PairRank& pair) { const PutRank rank(pair); };
  ExpectCaught(
      "nccl-window",
      [](PairRank& pair) {
        const PutRank rank(pair);
        rank.TryPut(Buffer(Alloc(64)), 64, 0);
      },
      register_pool);
}

TEST_F(NcclPutTest, ViolationBeyondThePeersWindow) {
  const auto register_pool = [](PairRank& pair) { const PutRank rank(pair); };
  ExpectCaught(
      "nccl-window",
      [](PairRank& pair) {
        const PutRank rank(pair);
        rank.TryPut(rank.pool, 64, kPool - 63);
      },
      register_pool);
}

TEST_F(NcclPutTest, ViolationPutIntoADeregisteredWindow) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice(0);
        PairRank pair(0, MintFor(wire));
        const PutRank rank(pair);
        wire.Get<char>();
        rank.TryPut(rank.pool, 64, 0);
      },
      [](const Wire& wire) {
        UseDevice(1);
        PairRank pair(1, wire.Get<ncclUniqueId>());
        const PutRank rank(pair);
        OK(CU(ncclCommWindowDeregister)(pair.comm, rank.window));
        wire.Put('d');
        AwaitEnd(wire);
      });
  ExpectViolation(outcomes[0], "nccl-window");
}

TEST_F(NcclPutTest, ViolationRegisteredTwice) {
  ExpectCaught(
      "nccl-window",
      [](PairRank& pair) {
        const PutRank rank(pair);
        ncclWindow_t again = nullptr;
        CU(ncclCommWindowRegister)(pair.comm, rank.pool, 4096, &again, 1);
      },
      [](PairRank& pair) { const PutRank rank(pair); });
}

TEST_F(NcclPutTest, ViolationCollectiveCallsInAnotherOrder) {
  ExpectCaught(
      "nccl-window",
      [](PairRank& pair) {
        CU(ncclSignal)(1, 0, 0, 0, pair.comm, pair.stream);
        Settle(pair.comm);
      },
      [](PairRank& pair) {
        void* pool = nullptr;
        OK(CU(ncclMemAlloc)(&pool, kPool));
        ncclWindow_t window = nullptr;
        CU(ncclCommWindowRegister)(pair.comm, pool, kPool, &window, 1);
      });
}

TEST_F(NcclPutTest, ViolationWindowsMemoryFreedBeforeTheCommunicator) {
  const auto outcomes = RunPair(
      [](const Wire& wire) {
        UseDevice(0);
        PairRank pair(0, MintFor(wire));
        const PutRank rank(pair);
        OK(CU(ncclMemFree)(rank.pool));
        CU(ncclCommAbort)(pair.comm);
      },
      [](const Wire& wire) {
        UseDevice(1);
        PairRank pair(1, wire.Get<ncclUniqueId>());
        const PutRank rank(pair);
        AwaitEnd(wire);
      });
  ExpectViolation(outcomes[0], "use-after-free");
}

// The peer lives or not: an abort does not end a stream's wait.
TEST_F(NcclPutTest, ViolationAbortWhileAStreamWaits) {
  ExpectCaught(
      "nccl-wait-signal",
      [](PairRank& pair) {
        const PutRank rank(pair);
        rank.Wait(2);
        CU(ncclCommAbort)(pair.comm);
      },
      [](PairRank& pair) {
        const PutRank rank(pair);
        rank.Signal();
      });
}

TEST_F(NcclPutTest, ViolationWaitBeforeTheSignalWhereThatIsWatched) {
  setenv("STRICT_CUDA_NCCL_EARLY_WAIT", "violation", 1);
  ExpectCaught(
      "nccl-wait-signal",
      [](PairRank& pair) {
        const PutRank rank(pair);
        rank.Wait(1);
      },
      [](PairRank& pair) { const PutRank rank(pair); });
}

}  // namespace
}  // namespace strict_cuda

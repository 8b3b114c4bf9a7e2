// SPDX-License-Identifier: Apache-2.0
// Correct use of the fake NCCL.
#include <string>
#include <thread>

#include "tests/support/strict_cuda/nccl_pair.h"

namespace strict_cuda {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class NcclTest : public FakeDriverTest {
 protected:
  // Rank 0 mints; both bodies get their warmed up rank of a communicator of two.
  void RunRanks(const std::function<void(const PairRank&, const Wire&)>& first,
                const std::function<void(const PairRank&, const Wire&)>& second) {
    const auto outcomes = RunPair(
        [&](const Wire& wire) {
          UseDevice(0);
          const PairRank rank(0, MintFor(wire));
          Meet(wire);
          first(rank, wire);
          wire.Put('e');
          wire.Get<char>();
        },
        [&](const Wire& wire) {
          UseDevice(1);
          const PairRank rank(1, wire.Get<ncclUniqueId>());
          Meet(wire);
          second(rank, wire);
          wire.Put('e');
          wire.Get<char>();
        });
    ExpectSuccess(outcomes[0]);
    ExpectSuccess(outcomes[1]);
  }
};

TEST_F(NcclTest, SendsMatchByPosition) {
  RunRanks(
      [](const PairRank& rank, const Wire&) {
        const CUdeviceptr data = Alloc(20 * kMiB);
        WriteText(data, "first");
        WriteText(data + 5, "second");
        OK(CU(cuMemsetD8Async)(data + 11, 3, 20 * kMiB - 11, rank.stream));
        OK(CU(ncclGroupStart)());
        rank.Send(data, 5);
        rank.Send(data + 5, 6);
        EndGroup(rank.comm);
        rank.Send(data + 11, 20 * kMiB - 11);
        rank.Synchronize();
        OK(CU(ncclCommDestroy)(rank.comm));
      },
      [](const PairRank& rank, const Wire&) {
        const CUdeviceptr data = Alloc(20 * kMiB);
        rank.Recv(data, 5);
        rank.Recv(data + 5, 6);
        rank.Recv(data + 11, 20 * kMiB - 11);
        rank.Synchronize();
        REQUIRE(ReadText(data, 12) == "firstsecond\3");
        REQUIRE(ReadText(data + 20 * kMiB - 1, 1) == "\3");
        OK(CU(ncclCommDestroy)(rank.comm));
      });
}

// Like a kernel, a send stays on its stream until the receiver has joined.
TEST_F(NcclTest, OperationBlocksItsStreamUntilThePeerJoins) {
  RunRanks(
      [](const PairRank& rank, const Wire& wire) {
        const CUdeviceptr data = Alloc(8);
        rank.Send(data, 8);
        usleep(50000);
        EXPECT_CU(CUDA_ERROR_NOT_READY, CU(cuStreamQuery)(rank.stream));
        wire.Put('g');
        rank.Synchronize();
      },
      [](const PairRank& rank, const Wire& wire) {
        const CUdeviceptr data = Alloc(8);
        wire.Get<char>();
        rank.Recv(data, 8);
        rank.Synchronize();
      });
}

// As the library, which launches each group of such a communicator in a thread of its own.
TEST_F(NcclTest, GroupOfANonBlockingCommunicatorIsInProgress) {
  setenv("STRICT_CUDA_NCCL_LAUNCH_US", "300000", 1);
  const auto body = [](const PairRank& rank, const Wire&) {
    const CUdeviceptr data = Alloc(16);
    WriteText(data, rank.rank == 0 ? "zero" : "more");
    // The pair has exchanged before.
    OK(CU(ncclGroupStart)());
    rank.Send(data, 4);
    rank.Recv(data + 8, 4);
    EXPECT_CU(ncclInProgress, CU(ncclGroupEnd)());
    ncclResult_t state = ncclSuccess;
    OK(CU(ncclCommGetAsyncError)(rank.comm, &state));
    REQUIRE(state == ncclInProgress);
    REQUIRE(Settle(rank.comm) == ncclSuccess);
    rank.Synchronize();
    REQUIRE(ReadText(data + 8, 4) == (rank.rank == 0 ? "more" : "zero"));
    // An operation alone is a group.
    EXPECT_CU(ncclInProgress, CU(ncclAllReduce)(Buffer(data), Buffer(data), 4, ncclUint8, ncclMax,
                                                rank.comm, rank.stream));
    REQUIRE(Settle(rank.comm) == ncclSuccess);
    rank.Synchronize();
    REQUIRE(ReadText(data, 4) == "zoro");
  };
  RunRanks(body, body);
  unsetenv("STRICT_CUDA_NCCL_LAUNCH_US");
}

TEST_F(NcclTest, ExchangesInBothDirectionsInAGroup) {
  const auto body = [](const PairRank& rank, const Wire&) {
    const CUdeviceptr data = Alloc(8 * kMiB);
    OK(CU(cuMemsetD8Async)(data, static_cast<unsigned char>(rank.rank + 1), 4 * kMiB, rank.stream));
    OK(CU(ncclGroupStart)());
    rank.Send(data, 4 * kMiB);
    rank.Recv(data + 4 * kMiB, 4 * kMiB);
    EndGroup(rank.comm);
    rank.Synchronize();
    REQUIRE(ReadText(data + 8 * kMiB - 1, 1)[0] == 2 - rank.rank);
  };
  RunRanks(body, body);
}

TEST_F(NcclTest, Collectives) {
  const auto body = [](const PairRank& rank, const Wire&) {
    const CUdeviceptr data = Alloc(64);
    const float own[] = {1.5f, static_cast<float>(rank.rank)};
    OK(CU(cuMemcpyHtoD_v2)(data, own, sizeof(own)));
    AwaitLaunch(CU(ncclAllReduce)(Buffer(data), Buffer(data), 2, ncclFloat32, ncclSum, rank.comm,
                                  rank.stream),
                rank.comm);
    AwaitLaunch(CU(ncclAllGather)(Buffer(data + 4), Buffer(data + 16), 1, ncclInt32, rank.comm,
                                  rank.stream),
                rank.comm);
    const unsigned char mark = static_cast<unsigned char>(7 + rank.rank);
    OK(CU(cuMemsetD8Async)(data + 32, mark, 1, rank.stream));
    AwaitLaunch(CU(ncclBroadcast)(Buffer(data + 32), Buffer(data + 33), 1, ncclInt8, 1, rank.comm,
                                  rank.stream),
                rank.comm);
    rank.Synchronize();
    float sums[6] = {};
    OK(CU(cuMemcpyDtoH_v2)(sums, data, sizeof(sums)));
    REQUIRE(sums[0] == 3.0f && sums[1] == 1.0f);
    REQUIRE(sums[4] == 1.0f && sums[5] == 1.0f);
    REQUIRE(ReadText(data + 33, 1)[0] == 8);
  };
  RunRanks(body, body);
}

// 1 + 2 and 1 - 4, as halves and as bfloat16.
TEST_F(NcclTest, SmallFloatsAreReduced) {
  const auto body = [](const PairRank& rank, const Wire&) {
    const CUdeviceptr data = Alloc(64);
    const uint16_t own[2][4] = {{0x3c00, 0x3c00, 0x3f80, 0x3f80}, {0x4000, 0xc400, 0x4000, 0xc080}};
    OK(CU(cuMemcpyHtoD_v2)(data, own[rank.rank], sizeof(own[0])));
    AwaitLaunch(CU(ncclAllReduce)(Buffer(data), Buffer(data + 16), 2, ncclFloat16, ncclSum,
                                  rank.comm, rank.stream),
                rank.comm);
    AwaitLaunch(CU(ncclAllReduce)(Buffer(data + 4), Buffer(data + 20), 2, ncclBfloat16, ncclSum,
                                  rank.comm, rank.stream),
                rank.comm);
    AwaitLaunch(CU(ncclAllReduce)(Buffer(data), Buffer(data + 24), 2, ncclFloat16, ncclMin,
                                  rank.comm, rank.stream),
                rank.comm);
    rank.Synchronize();
    uint16_t sums[6] = {};
    OK(CU(cuMemcpyDtoH_v2)(sums, data + 16, sizeof(sums)));
    REQUIRE(sums[0] == 0x4200 && sums[1] == 0xc200);
    REQUIRE(sums[2] == 0x4040 && sums[3] == 0xc040);
    REQUIRE(sums[4] == 0x3c00 && sums[5] == 0xc400);
  };
  RunRanks(body, body);
}

// Rank 1 comes first in the child, by its key.
TEST_F(NcclTest, SplitReordersTheRanks) {
  const auto body = [](const PairRank& rank, const Wire&) {
    ncclComm_t child = nullptr;
    EXPECT_CU(ncclInProgress,
              CU(ncclCommSplit)(rank.comm, 3, rank.rank == 0 ? 9 : 1, &child, nullptr));
    // The parent settles: there is no child yet.
    REQUIRE(Settle(rank.comm) == ncclSuccess);
    REQUIRE(Settle(child) == ncclSuccess);
    int child_rank = -1;
    OK(CU(ncclCommUserRank)(child, &child_rank));
    REQUIRE(child_rank == 1 - rank.rank);
    WarmUp(child, 1 - child_rank, rank.stream);
    OK(CU(ncclCommDestroy)(child));
  };
  RunRanks(body, body);
}

// The receiver's data comes after its own finalize: it is in progress until then.
TEST_F(NcclTest, FinalizeFlushesWhatWasIssued) {
  RunRanks(
      [](const PairRank& rank, const Wire& wire) {
        wire.Get<char>();
        rank.Send(Alloc(8), 8);
        rank.Synchronize();
        EXPECT_CU(ncclInProgress, CU(ncclCommFinalize)(rank.comm));
        REQUIRE(Settle(rank.comm) == ncclSuccess);
        OK(CU(ncclCommDestroy)(rank.comm));
      },
      [](const PairRank& rank, const Wire& wire) {
        rank.Recv(Alloc(8), 8);
        EXPECT_CU(ncclInProgress, CU(ncclCommFinalize)(rank.comm));
        ncclResult_t state = ncclSuccess;
        OK(CU(ncclCommGetAsyncError)(rank.comm, &state));
        REQUIRE(state == ncclInProgress);
        wire.Put('r');
        REQUIRE(Settle(rank.comm) == ncclSuccess);
        rank.Synchronize();
        OK(CU(ncclCommDestroy)(rank.comm));
      });
}

TEST_F(NcclTest, RevokeStopsAnOperationWithoutAPartner) {
  RunRanks(
      [](const PairRank& rank, const Wire&) {
        rank.Recv(Alloc(8), 8);
        EXPECT_CU(ncclInProgress, CU(ncclCommRevoke)(rank.comm, 0));
        REQUIRE(Settle(rank.comm) == ncclSuccess);
        rank.Synchronize();
        OK(CU(ncclCommDestroy)(rank.comm));
      },
      [](const PairRank&, const Wire&) {});
}

// It writes until it has left the stream, and the abort does not wait for that.
TEST_F(NcclTest, AbortMayReturnBeforeTheKernelHasLeft) {
  setenv("STRICT_CUDA_NCCL_ABORT_LINGER_MS", "1000", 1);
  RunRanks(
      [](const PairRank& rank, const Wire&) {
        const CUdeviceptr memory = Alloc(8);
        OK(CU(cuMemsetD8Async)(memory, 1, 8, rank.stream));
        rank.Synchronize();
        rank.Recv(memory, 8);
        OK(CU(ncclCommAbort)(rank.comm));
        REQUIRE(CU(cuStreamQuery)(rank.stream) == CUDA_ERROR_NOT_READY);
        rank.Synchronize();
        REQUIRE(ReadText(memory, 8) == std::string(8, '\xDD'));
      },
      [](const PairRank&, const Wire&) {});
  unsetenv("STRICT_CUDA_NCCL_ABORT_LINGER_MS");
}

TEST_F(NcclTest, ShrinkKeepsTheSurvivors) {
  RunRanks(
      [](const PairRank& rank, const Wire&) {
        rank.Send(Alloc(8), 8);  // the other does not come any more
        int excluded[] = {1};
        ncclComm_t child = nullptr;
        CU(ncclCommShrink)(rank.comm, excluded, 1, &child, nullptr, NCCL_SHRINK_ABORT);
        REQUIRE(Settle(rank.comm) == ncclSuccess);
        REQUIRE(Settle(child) == ncclSuccess);
        rank.Synchronize();
        int count = 0;
        OK(CU(ncclCommCount)(child, &count));
        REQUIRE(count == 1);
      },
      [](const PairRank&, const Wire&) {});
}

// Two devices of one process, made in a group.
TEST_F(NcclTest, RanksOfOneProcess) {
  ExpectSuccess(RunAlone([] {
    CUcontext contexts[2] = {UseDevice(0), UseDevice(1)};
    ncclUniqueId id = {};
    OK(CU(ncclGetUniqueId)(&id));
    ncclComm_t comms[2] = {};
    CUstream streams[2] = {};
    CUdeviceptr data[2] = {};
    OK(CU(ncclGroupStart)());
    for (int rank = 0; rank < 2; ++rank) {
      OK(CU(cuCtxSetCurrent)(contexts[rank]));
      streams[rank] = NewStream();
      data[rank] = Alloc(200);
      WriteText(data[rank], rank == 0 ? "from 0" : "from 1");
      OK(CU(ncclCommInitRank)(&comms[rank], 2, id, rank));
    }
    OK(CU(ncclGroupEnd)());
    // The first exchange of blocking communicators holds its host thread: one thread each.
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        OK(CU(cuCtxSetCurrent)(contexts[rank]));
        OK(CU(ncclGroupStart)());
        OK(CU(ncclSend)(Buffer(data[rank]), 6, ncclInt8, 1 - rank, comms[rank], streams[rank]));
        OK(CU(ncclRecv)(Buffer(data[rank] + 100), 6, ncclInt8, 1 - rank, comms[rank],
                        streams[rank]));
        OK(CU(ncclGroupEnd)());
        OK(CU(cuStreamSynchronize)(streams[rank]));
        REQUIRE(ReadText(data[rank] + 100, 6) == (rank == 0 ? "from 1" : "from 0"));
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (ncclComm_t comm : comms) OK(CU(ncclCommDestroy)(comm));
  }));
}

// Four ranks, two of them in each process, driven by a thread per device: exchanges of all pairs in
// groups and between them sums, many of them, with no false alarm.
TEST_F(NcclTest, ManyGroupsInOneOrderDoNotDeadlock) {
  setenv("STRICT_CUDA_DEVICES", "4", 1);
  setenv("STRICT_CUDA_DEADLOCK_MS", "500", 1);
  constexpr int kRanks = 4;
  constexpr int kRounds = 60;
  const auto drive = [](int rank, const ncclUniqueId& id) {
    UseDevice(rank);
    const CUstream stream = NewStream();
    const CUdeviceptr memory = Alloc(64 * 1024);
    const ncclComm_t comm = Init(kRanks, id, rank);
    for (int round = 0; round < kRounds; ++round) {
      const size_t bytes = static_cast<size_t>(1 + 137 * round);
      const unsigned char mark = static_cast<unsigned char>(16 * rank + round);
      OK(CU(cuMemsetD8Async)(memory, mark, bytes, stream));
      OK(CU(ncclGroupStart)());
      for (int peer = 0; peer < kRanks; ++peer) {
        CU(ncclSend)(Buffer(memory), bytes, ncclUint8, peer, comm, stream);
        CU(ncclRecv)(Buffer(memory + 16384 + 10000 * peer), bytes, ncclUint8, peer, comm, stream);
      }
      EndGroup(comm);
      if (round % 5 == 0) {
        AwaitLaunch(CU(ncclAllReduce)(Buffer(memory), Buffer(memory + 60000), 1, ncclUint8, ncclMax,
                                      comm, stream),
                    comm);
      }
      if (round % 7 != 0) continue;  // not always waiting in between
      OK(CU(cuStreamSynchronize)(stream));
      for (int peer = 0; peer < kRanks; ++peer) {
        const CUdeviceptr end = memory + 16384 + 10000 * peer + bytes - 1;
        REQUIRE(ReadText(end, 1)[0] == static_cast<char>(16 * peer + round));
      }
    }
    OK(CU(cuStreamSynchronize)(stream));
    return comm;
  };
  const auto both = [&drive](int first, const ncclUniqueId& id) {
    UseDevice(first);
    ncclComm_t comms[2] = {};
    std::thread other([&] { comms[1] = drive(first + 1, id); });
    comms[0] = drive(first, id);
    other.join();
    // Not before both devices are idle: it frees memory.
    for (ncclComm_t comm : comms) OK(CU(ncclCommDestroy)(comm));
  };
  const auto outcomes = RunPair(
      [&](const Wire& wire) {
        both(0, MintFor(wire));
        wire.Get<char>();
      },
      [&](const Wire& wire) {
        both(2, wire.Get<ncclUniqueId>());
        wire.Put('e');
      });
  ExpectSuccess(outcomes[0]);
  ExpectSuccess(outcomes[1]);
  unsetenv("STRICT_CUDA_DEADLOCK_MS");
}

TEST_F(NcclTest, RankThatNeverJoinsIsAborted) {
  ExpectSuccess(RunAlone([] {
    UseDevice();
    ncclUniqueId id = {};
    OK(CU(ncclGetUniqueId)(&id));
    ncclConfig_t config = NonBlocking();
    ncclComm_t comm = nullptr;
    EXPECT_CU(ncclInProgress, CU(ncclCommInitRankConfig)(&comm, 2, id, 0, &config));
    usleep(20000);
    ncclResult_t state = ncclSuccess;
    OK(CU(ncclCommGetAsyncError)(comm, &state));
    REQUIRE(state == ncclInProgress);
    OK(CU(ncclCommAbort)(comm));
  }));
}

TEST_F(NcclTest, AbortEndsHangingOperations) {
  RunRanks(
      [](const PairRank& rank, const Wire& wire) {
        rank.Send(Alloc(8), 8);
        usleep(10000);
        OK(CU(ncclCommAbort)(rank.comm));
        rank.Synchronize();
        wire.Put('a');
      },
      [](const PairRank& rank, const Wire& wire) {
        wire.Get<char>();
        OK(CU(ncclCommAbort)(rank.comm));
      });
}

// It is aborted while the operation of the other rank runs.
TEST_F(NcclTest, PeerThatStopsInMidTransferHangsUntilTheAbort) {
  setenv("STRICT_CUDA_NCCL_PEER_ABORT", "ignore", 1);
  RunRanks(
      [](const PairRank& rank, const Wire& wire) {
        const CUdeviceptr data = Alloc(4 * kMiB);
        CU(strict_cuda_nccl_stop_after)(1000);
        rank.Send(data, 4 * kMiB);
        wire.Get<char>();
        EXPECT_CU(CUDA_ERROR_NOT_READY, CU(cuStreamQuery)(rank.stream));
        OK(CU(ncclCommAbort)(rank.comm));
      },
      [](const PairRank& rank, const Wire& wire) {
        const CUdeviceptr data = Alloc(4 * kMiB);
        rank.Recv(data, 4 * kMiB);
        usleep(50000);
        EXPECT_CU(CUDA_ERROR_NOT_READY, CU(cuStreamQuery)(rank.stream));
        OK(CU(ncclCommAbort)(rank.comm));
        wire.Put('a');
      });
  unsetenv("STRICT_CUDA_NCCL_PEER_ABORT");
}

// Behind shared memory a peer's death is not seen; behind a socket it is.
TEST_F(NcclTest, DeadPeerHangsOrIsAnError) {
  for (const bool is_error : {false, true}) {
    setenv("STRICT_CUDA_NCCL_PEER_DEATH", is_error ? "error" : "spin", 1);
    const auto outcomes = RunPair(
        [is_error](const Wire& wire) {
          UseDevice(0);
          const PairRank rank(0, MintFor(wire));
          Meet(wire);
          rank.Recv(Alloc(8), 8);
          char byte = 0;
          // Until the peer is dead.
          REQUIRE(read(wire.fd(), &byte, 1) == 0);
          ncclResult_t state = ncclSuccess;
          if (is_error) {
            while (state == ncclSuccess) {
              usleep(200);
              OK(CU(ncclCommGetAsyncError)(rank.comm, &state));
            }
            REQUIRE(state == ncclRemoteError);
            // Its operations leave the stream.
            rank.Synchronize();
          } else {
            usleep(100000);
            OK(CU(ncclCommGetAsyncError)(rank.comm, &state));
            REQUIRE(state == ncclSuccess);
          }
          const CUresult query = CU(cuStreamQuery)(rank.stream);
          REQUIRE(query == (is_error ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY));
          OK(CU(ncclCommAbort)(rank.comm));
        },
        [](const Wire& wire) {
          UseDevice(1);
          const PairRank rank(1, wire.Get<ncclUniqueId>());
          Meet(wire);
          kill(getpid(), SIGKILL);
        });
    ExpectSuccess(outcomes[0]);
  }
  unsetenv("STRICT_CUDA_NCCL_PEER_DEATH");
}

TEST_F(NcclTest, TwoRanksOnOneDeviceNeedTwoHostIds) {
  const auto body = [](bool differ, int rank, const ncclUniqueId& id) {
    if (differ) setenv("NCCL_HOSTID", rank == 0 ? "a" : "b", 1);
    UseDevice(0);
    ncclConfig_t config = NonBlocking();
    ncclComm_t comm = nullptr;
    CU(ncclCommInitRankConfig)(&comm, 2, id, rank, &config);
    REQUIRE(Settle(comm) == (differ ? ncclSuccess : ncclInvalidUsage));
    if (!differ) {
      REQUIRE(std::string(CU(ncclGetLastError)(comm)).find("Duplicate GPU") != std::string::npos);
    }
    OK(CU(ncclCommAbort)(comm));
  };
  for (const bool differ : {false, true}) {
    const auto outcomes = RunPair(
        [&](const Wire& wire) {
          body(differ, 0, MintFor(wire));
          wire.Get<char>();
        },
        [&](const Wire& wire) {
          body(differ, 1, wire.Get<ncclUniqueId>());
          wire.Put('e');
        });
    ExpectSuccess(outcomes[0]);
    ExpectSuccess(outcomes[1]);
  }
}

TEST_F(NcclTest, AllocatesExportableMemory) {
  ExpectSuccess(RunAlone([] {
    UseDevice();
    void* memory = nullptr;
    OK(CU(ncclMemAlloc)(&memory, 100));
    int types = 0;
    OK(CU(cuPointerGetAttribute)(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                 reinterpret_cast<CUdeviceptr>(memory)));
    REQUIRE(types == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    OK(CU(ncclMemFree)(memory));
  }));
}

// Memory of cuMemAlloc has no window. Releasing a handle synchronises nothing, even in flight.
TEST_F(NcclTest, WindowsNeedMappedMemory) {
  const auto use = [](const PairRank& rank, const Wire& wire) {
    void* memory = nullptr;
    OK(CU(ncclMemAlloc)(&memory, 100));
    ncclWindow_t window = nullptr;
    AwaitLaunch(CU(ncclCommWindowRegister)(rank.comm, memory, 100, &window, 1), rank.comm);
    REQUIRE(window != nullptr);
    OK(CU(ncclCommWindowDeregister)(rank.comm, window));
    const CUdeviceptr plain = Alloc(100);
    OK(CU(ncclCommWindowRegister)(rank.comm, Buffer(plain), 100, &window, 0));
    REQUIRE(window == nullptr);
    CUmemGenericAllocationHandle handle = 0;
    OK(CU(cuMemRetainAllocationHandle)(&handle, memory));
    if (rank.rank == 0) {
      rank.Send(plain, 8);
      OK(CU(cuMemRelease)(handle));
      wire.Put('r');
    } else {
      wire.Get<char>();
      rank.Recv(plain, 8);
    }
    rank.Synchronize();
    OK(CU(ncclCommDestroy)(rank.comm));
  };
  RunRanks(use, use);
}

}  // namespace
}  // namespace strict_cuda

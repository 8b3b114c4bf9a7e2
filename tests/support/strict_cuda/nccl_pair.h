// SPDX-License-Identifier: Apache-2.0
// Communicators for tests of the fake driver: non-blocking ones, made and warmed up correctly.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_NCCL_PAIR_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_NCCL_PAIR_H_

#include <string>

#include "tests/support/strict_cuda/fake_driver_test.h"
#include "tests/support/strict_cuda/nccl_abi.h"

namespace strict_cuda {

inline ncclConfig_t NonBlocking() {
  ncclConfig_t config = {};
  config.size = sizeof(config);
  config.magic = kNcclConfigMagic;
  config.version = 22809;
  config.blocking = 0;
  for (int* field :
       {&config.cgaClusterSize, &config.minCTAs, &config.maxCTAs, &config.splitShare,
        &config.trafficClass, &config.collnetEnable, &config.CTAPolicy, &config.shrinkShare,
        &config.nvlsCTAs, &config.nChannelsPerNetPeer, &config.nvlinkCentricSched}) {
    *field = NCCL_CONFIG_UNDEF_INT;
  }
  return config;
}

// Until the communicator is no longer in progress.
inline ncclResult_t Settle(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    OK(CU(ncclCommGetAsyncError)(comm, &state));
    usleep(200);
  }
  return state;
}

// The operations of a call on the communicator are launched when this returns.
inline void AwaitLaunch(ncclResult_t result, ncclComm_t comm) {
  REQUIRE(result == ncclSuccess || result == ncclInProgress);
  Settle(comm);
}

inline void EndGroup(ncclComm_t comm) {
  const ncclResult_t result = CU(ncclGroupEnd)();
  REQUIRE(result == ncclSuccess || result == ncclInProgress);
  REQUIRE(Settle(comm) == ncclSuccess);
}

inline ncclUniqueId MintFor(const Wire& wire) {
  ncclUniqueId id = {};
  OK(CU(ncclGetUniqueId)(&id));
  wire.Put(id);
  return id;
}

inline ncclComm_t Init(int count, const ncclUniqueId& id, int rank) {
  ncclConfig_t config = NonBlocking();
  ncclComm_t comm = nullptr;
  const ncclResult_t result = CU(ncclCommInitRankConfig)(&comm, count, id, rank, &config);
  REQUIRE(result == ncclSuccess || result == ncclInProgress);
  REQUIRE(Settle(comm) == ncclSuccess);
  return comm;
}

inline void* Buffer(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }

// One element in each direction.
inline void WarmUp(ncclComm_t comm, int peer, CUstream stream) {
  const CUdeviceptr byte = Alloc(2);
  OK(CU(ncclGroupStart)());
  CU(ncclSend)(Buffer(byte), 1, ncclUint8, peer, comm, stream);
  CU(ncclRecv)(Buffer(byte + 1), 1, ncclUint8, peer, comm, stream);
  EndGroup(comm);
  OK(CU(cuStreamSynchronize)(stream));
  OK(CU(cuMemFree_v2)(byte));
}

// Both processes have come here. A rank whose warm-up has ended does not know that its peer's has:
// a peer's operation may still run, during which much is forbidden.
inline void Meet(const Wire& wire) {
  wire.Put('m');
  wire.Get<char>();
}

// A rank of a warmed up communicator of two, on the device of its rank.
struct PairRank {
  int rank = 0;
  ncclComm_t comm = nullptr;
  CUstream stream = nullptr;

  PairRank(int own_rank, const ncclUniqueId& id) : rank(own_rank) {
    comm = Init(2, id, rank);
    stream = NewStream();
    WarmUp(comm, 1 - rank, stream);
  }
  void Send(CUdeviceptr from, size_t bytes) const {
    AwaitLaunch(CU(ncclSend)(Buffer(from), bytes, ncclUint8, 1 - rank, comm, stream), comm);
  }
  void Recv(CUdeviceptr to, size_t bytes) const {
    AwaitLaunch(CU(ncclRecv)(Buffer(to), bytes, ncclUint8, 1 - rank, comm, stream), comm);
  }
  void Synchronize() const { OK(CU(cuStreamSynchronize)(stream)); }
};

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_NCCL_PAIR_H_

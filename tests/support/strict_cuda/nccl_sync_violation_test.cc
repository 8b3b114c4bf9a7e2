// SPDX-License-Identifier: Apache-2.0
// Programs that may wait for the device while an operation of NCCL is in flight.
#include <functional>

#include "tests/support/strict_cuda/nccl_violation.h"

namespace strict_cuda {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST_F(NcclViolationTest, MemoryIsAllocatedInFlight) {
  ExpectCaught("implicit-sync-in-flight", [](PairRank& rank) {
    const CUdeviceptr memory = Alloc(16);
    rank.Send(memory, 8);
    Alloc(16);
  });
}

TEST_F(NcclViolationTest, MemoryIsFreedInFlight) {
  ExpectCaught("implicit-sync-in-flight", [](PairRank& rank) {
    const CUdeviceptr memory = Alloc(16);
    rank.Send(memory, 8);
    CU(cuMemFree_v2)(memory);
  });
}

// All other calls that may wait for the device: pinning, mapping, unmapping, loading, making pools.
TEST_F(NcclViolationTest, SynchronisingCallsAreCaughtInFlight) {
  struct Call {
    const char* name;
    std::function<void()> make;
  };
  static CUmemGenericAllocationHandle chunk = 0;
  static CUdeviceptr reserved = 0;
  static CUdeviceptr mapped = 0;
  static void* pinned = nullptr;
  static char pageable[8192];
  const Call calls[] = {
      {"cuMemHostAlloc",
       [] {
         void* memory = nullptr;
         CU(cuMemHostAlloc)(&memory, 4096, 0);
       }},
      {"cuMemFreeHost",
       [] {
         CU(cuMemFreeHost)
         (pinned);
       }},
      {"cuMemHostRegister",
       [] {
         CU(cuMemHostRegister_v2)
         (pageable, sizeof(pageable), 0);
       }},
      {"cuMemMap",
       [] {
         CU(cuMemMap)
         (reserved, 2 * kMiB, 0, chunk, 0);
       }},
      {"cuMemUnmap",
       [] {
         CU(cuMemUnmap)
         (mapped, 2 * kMiB);
       }},
      {"cuModuleLoadData",
       [] {
         CUmodule module = nullptr;
         CU(cuModuleLoadData)(&module, ".version 7.0");
       }},
      {"cuIpcOpenMemHandle",
       [] {
         CUdeviceptr memory = 0;
         CU(cuIpcOpenMemHandle_v2)(&memory, CUipcMemHandle{}, 1);
       }},
  };
  for (const Call& call : calls) {
    SCOPED_TRACE(call.name);
    ExpectCaught("implicit-sync-in-flight", [&call](PairRank& rank) {
      CUmemAllocationProp prop = {};
      prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
      prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
      OK(CU(cuMemAddressReserve)(&reserved, 2 * kMiB, 0, 0, 0));
      OK(CU(cuMemAddressReserve)(&mapped, 2 * kMiB, 0, 0, 0));
      OK(CU(cuMemCreate)(&chunk, 2 * kMiB, &prop, 0));
      OK(CU(cuMemMap)(mapped, 2 * kMiB, 0, chunk, 0));
      OK(CU(cuMemHostAlloc)(&pinned, 4096, 0));
      rank.Send(Alloc(16), 8);
      call.make();
    });
  }
}

}  // namespace
}  // namespace strict_cuda

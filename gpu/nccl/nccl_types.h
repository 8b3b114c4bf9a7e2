// SPDX-License-Identifier: Apache-2.0
// The types and constants of NCCL's ABI that Ferry uses, declared here so that no NCCL header is
// needed to build; as of NCCL 2.28. If a header is installed, tests/gpu/nccl_types_test compares
// each of them with it.
#ifndef FERRY_GPU_NCCL_NCCL_TYPES_H_
#define FERRY_GPU_NCCL_NCCL_TYPES_H_

#include <climits>
#include <cstddef>

#include "gpu/cuda/driver_types.h"

// NCCL's own names for the targets of its handles, so that a communicator of Ferry's has the user's
// type without a cast.
struct ncclComm;
struct ncclWindow_vidmem;

namespace ferry::nccl {

using Result = int;                    // ncclResult_t
using Communicator = ::ncclComm*;      // ncclComm_t
using Window = ::ncclWindow_vidmem*;   // ncclWindow_t
using Stream = ::ferry::cuda::Stream;  // cudaStream_t is CUstream

struct UniqueId {  // ncclUniqueId
  char bytes[128];
};

inline constexpr Result kSuccess = 0;
inline constexpr Result kUnhandledCudaError = 1;
inline constexpr Result kSystemError = 2;
inline constexpr Result kInternalError = 3;
inline constexpr Result kInvalidArgument = 4;
inline constexpr Result kInvalidUsage = 5;
inline constexpr Result kRemoteError = 6;
inline constexpr Result kInProgress = 7;
inline constexpr Result kTimeout = 8;  // since 2.30.3

// ncclDataType_t. Ferry moves bytes; the others are for reductions.
enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

inline constexpr int kReduceSum = 0;        // ncclRedOp_t
inline constexpr int kReduceProduct = 1;    //
inline constexpr int kReduceMax = 2;        //
inline constexpr int kReduceMin = 3;        //
inline constexpr int kSplitNoColor = -1;    // of ncclCommSplit
inline constexpr int kShrinkDefault = 0;    // flags of ncclCommShrink
inline constexpr int kShrinkAbort = 1;      //
inline constexpr int kRevokeDefault = 0;    // flags of ncclCommRevoke
inline constexpr int kWindowDefault = 0;    // flags of ncclCommWindowRegister
inline constexpr int kWindowSymmetric = 1;  //
inline constexpr int kUndefined = INT_MIN;  // a field of Config that NCCL chooses

// ncclConfig_t of 2.28. A library copies min(size, its own size) bytes and sets to default the
// fields that `version` does not know, and fields have only been added at the end since 2.18; so
// this one layout works with older and newer libraries. Source: nccl/src/init.cc, parseCommConfig.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 22800;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
  const char* comm_name = nullptr;
  int collnet_enable = kUndefined;
  int cta_policy = kUndefined;
  int shrink_share = kUndefined;
  int nvls_ctas = kUndefined;
  int channels_per_net_peer = kUndefined;
  int nvlink_centric_sched = kUndefined;
};

// One-sided operations (docs/nccl.md): since 2.29.2, with the property host_rma since 2.29.7.

struct WaitSignalDescriptor {  // ncclWaitSignalDesc_t
  int count = 0;
  int peer = 0;
  int signal_index = 0;  // 0 is the only one up to 2.31
  int context = 0;       // 0 is the only one
};

// ncclCommProperties_t of 2.29.7, for ncclCommQueryProperties: a newer library, whose struct begins
// with the same fields, fills in those that `version` has.
struct CommunicatorProperties {
  size_t size = sizeof(CommunicatorProperties);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 22907;
  int rank = 0;
  int rank_count = 0;
  int cuda_device = 0;
  int nvml_device = 0;
  bool has_device_api = false;
  bool has_multimem = false;
  int gin_type = 0;
  int lsa_team_count = 0;
  bool has_host_rma = false;  // ncclPutSignal, ncclSignal and ncclWaitSignal work
  int railed_gin_type = 0;
};

}  // namespace ferry::nccl

#endif  // FERRY_GPU_NCCL_NCCL_TYPES_H_

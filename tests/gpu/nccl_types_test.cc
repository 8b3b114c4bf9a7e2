// SPDX-License-Identifier: Apache-2.0
// Our declarations of NCCL's interface against its own header, at compile time. Built only where
// there is one, of NCCL 2.18 or newer; what a later version has added is compared from that version
// on.
#include <nccl.h>
// Not part of nccl.h. Packages of some distributions have nccl.h alone.
#if NCCL_VERSION_CODE >= 22907 && __has_include(<nccl_device/core.h>)
#define FERRY_HAS_NCCL_PROPERTIES 1
#if __has_include(<nccl_device/host.h>)
#include <nccl_device/host.h>
#else
#include <nccl_device/core.h>
#endif
#endif

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <gtest/gtest.h>

#include "gpu/nccl/nccl_api.h"
#include "tests/gpu/same_call.h"

namespace ferry {
template <>
struct SizedStruct<nccl::Config> {
  using Theirs = ncclConfig_t;
};
#ifdef FERRY_HAS_NCCL_PROPERTIES
template <>
struct SizedStruct<nccl::CommunicatorProperties> {
  using Theirs = ncclCommProperties_t;
};
#endif
}  // namespace ferry

namespace ferry::nccl {
namespace {

FERRY_SAME_CALL(NcclTable, ncclGetUniqueId, get_unique_id);
FERRY_SAME_CALL(NcclTable, ncclGetErrorString, get_error_string);
FERRY_SAME_CALL(NcclTable, ncclGetLastError, get_last_error);
FERRY_SAME_CALL(NcclTable, ncclCommInitRankConfig, init_rank_config);
FERRY_SAME_CALL(NcclTable, ncclCommFinalize, finalize);
FERRY_SAME_CALL(NcclTable, ncclCommDestroy, destroy);
FERRY_SAME_CALL(NcclTable, ncclCommAbort, abort);
FERRY_SAME_CALL(NcclTable, ncclCommGetAsyncError, get_async_error);
FERRY_SAME_CALL(NcclTable, ncclCommCount, count);
FERRY_SAME_CALL(NcclTable, ncclCommCuDevice, cuda_device);
FERRY_SAME_CALL(NcclTable, ncclCommUserRank, user_rank);
FERRY_SAME_CALL(NcclTable, ncclGroupStart, group_start);
FERRY_SAME_CALL(NcclTable, ncclGroupEnd, group_end);
FERRY_SAME_CALL(NcclTable, ncclSend, send);
FERRY_SAME_CALL(NcclTable, ncclRecv, recv);
FERRY_SAME_CALL(NcclTable, ncclAllReduce, all_reduce);
FERRY_SAME_CALL(NcclTable, ncclBroadcast, broadcast);
FERRY_SAME_CALL(NcclTable, ncclAllGather, all_gather);
#if NCCL_VERSION_CODE >= 21901
FERRY_SAME_CALL(NcclTable, ncclMemAlloc, memory_alloc);
FERRY_SAME_CALL(NcclTable, ncclMemFree, memory_free);
FERRY_SAME_CALL(NcclTable, ncclCommRegister, register_buffer);
FERRY_SAME_CALL(NcclTable, ncclCommDeregister, deregister_buffer);
#endif
#if NCCL_VERSION_CODE >= 22304
FERRY_SAME_CALL(NcclTable, ncclCommInitRankScalable, init_rank_scalable);
#endif
#if NCCL_VERSION_CODE >= 22703
FERRY_SAME_CALL(NcclTable, ncclCommShrink, shrink);
#endif
// In 2.27 the target of the pointer ncclWindow_t had another name.
#if NCCL_VERSION_CODE >= 22803
FERRY_SAME_CALL(NcclTable, ncclCommWindowRegister, register_window);
FERRY_SAME_CALL(NcclTable, ncclCommWindowDeregister, deregister_window);
#endif
#if NCCL_VERSION_CODE >= 22807
FERRY_SAME_CALL(NcclTable, ncclCommRevoke, revoke);
#endif
#if NCCL_VERSION_CODE >= 22902
FERRY_SAME_CALL(NcclTable, ncclCommGetUniqueId, get_grow_id);
FERRY_SAME_CALL(NcclTable, ncclCommGrow, grow);
FERRY_SAME_CALL(NcclTable, ncclPutSignal, put_signal);
FERRY_SAME_CALL(NcclTable, ncclSignal, signal);
FERRY_SAME_CALL(NcclTable, ncclWaitSignal, wait_signal);
FERRY_SAME_FIELD(WaitSignalDescriptor, count, ncclWaitSignalDesc_t, opCnt);
FERRY_SAME_FIELD(WaitSignalDescriptor, peer, ncclWaitSignalDesc_t, peer);
FERRY_SAME_FIELD(WaitSignalDescriptor, signal_index, ncclWaitSignalDesc_t, sigIdx);
FERRY_SAME_FIELD(WaitSignalDescriptor, context, ncclWaitSignalDesc_t, ctx);
#endif
#ifdef FERRY_HAS_NCCL_PROPERTIES
FERRY_SAME_CALL(NcclTable, ncclCommQueryProperties, query_properties);
FERRY_SAME_FIELD(CommunicatorProperties, size, ncclCommProperties_t, size);
FERRY_SAME_FIELD(CommunicatorProperties, magic, ncclCommProperties_t, magic);
FERRY_SAME_FIELD(CommunicatorProperties, version, ncclCommProperties_t, version);
FERRY_SAME_FIELD(CommunicatorProperties, rank, ncclCommProperties_t, rank);
FERRY_SAME_FIELD(CommunicatorProperties, rank_count, ncclCommProperties_t, nRanks);
FERRY_SAME_FIELD(CommunicatorProperties, cuda_device, ncclCommProperties_t, cudaDev);
FERRY_SAME_FIELD(CommunicatorProperties, nvml_device, ncclCommProperties_t, nvmlDev);
FERRY_SAME_FIELD(CommunicatorProperties, has_device_api, ncclCommProperties_t, deviceApiSupport);
FERRY_SAME_FIELD(CommunicatorProperties, has_multimem, ncclCommProperties_t, multimemSupport);
FERRY_SAME_FIELD(CommunicatorProperties, gin_type, ncclCommProperties_t, ginType);
FERRY_SAME_FIELD(CommunicatorProperties, lsa_team_count, ncclCommProperties_t, nLsaTeams);
FERRY_SAME_FIELD(CommunicatorProperties, has_host_rma, ncclCommProperties_t, hostRmaSupport);
FERRY_SAME_FIELD(CommunicatorProperties, railed_gin_type, ncclCommProperties_t, railedGinType);
static_assert(sizeof(CommunicatorProperties) <= sizeof(ncclCommProperties_t));
#endif
FERRY_SAME_CALL(NcclTable, ncclGetVersion, get_version);

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
FERRY_SAME_FIELD(Config, size, ncclConfig_t, size);
FERRY_SAME_FIELD(Config, magic, ncclConfig_t, magic);
FERRY_SAME_FIELD(Config, version, ncclConfig_t, version);
FERRY_SAME_FIELD(Config, blocking, ncclConfig_t, blocking);
FERRY_SAME_FIELD(Config, cga_cluster_size, ncclConfig_t, cgaClusterSize);
FERRY_SAME_FIELD(Config, min_ctas, ncclConfig_t, minCTAs);
FERRY_SAME_FIELD(Config, max_ctas, ncclConfig_t, maxCTAs);
FERRY_SAME_FIELD(Config, net_name, ncclConfig_t, netName);
FERRY_SAME_FIELD(Config, split_share, ncclConfig_t, splitShare);
#if NCCL_VERSION_CODE >= 22602
FERRY_SAME_FIELD(Config, traffic_class, ncclConfig_t, trafficClass);
#endif
#if NCCL_VERSION_CODE >= 22703
FERRY_SAME_FIELD(Config, comm_name, ncclConfig_t, commName);
FERRY_SAME_FIELD(Config, collnet_enable, ncclConfig_t, collnetEnable);
FERRY_SAME_FIELD(Config, cta_policy, ncclConfig_t, CTAPolicy);
FERRY_SAME_FIELD(Config, shrink_share, ncclConfig_t, shrinkShare);
FERRY_SAME_FIELD(Config, nvls_ctas, ncclConfig_t, nvlsCTAs);
#endif
#if NCCL_VERSION_CODE >= 22803
FERRY_SAME_FIELD(Config, channels_per_net_peer, ncclConfig_t, nChannelsPerNetPeer);
FERRY_SAME_FIELD(Config, nvlink_centric_sched, ncclConfig_t, nvlinkCentricSched);
static_assert(sizeof(Config) <= sizeof(ncclConfig_t));
#endif
#if NCCL_VERSION_CODE / 100 == 228
static_assert(sizeof(Config) == sizeof(ncclConfig_t));
#endif
FERRY_SAME_NUMBER(kSuccess, ncclSuccess);
FERRY_SAME_NUMBER(kUnhandledCudaError, ncclUnhandledCudaError);
FERRY_SAME_NUMBER(kSystemError, ncclSystemError);
FERRY_SAME_NUMBER(kInternalError, ncclInternalError);
FERRY_SAME_NUMBER(kInvalidArgument, ncclInvalidArgument);
FERRY_SAME_NUMBER(kInvalidUsage, ncclInvalidUsage);
FERRY_SAME_NUMBER(kRemoteError, ncclRemoteError);
FERRY_SAME_NUMBER(kInProgress, ncclInProgress);
#if NCCL_VERSION_CODE >= 23003
FERRY_SAME_NUMBER(kTimeout, ncclTimeout);
#endif
FERRY_SAME_NUMBER(kInt8, ncclInt8);
FERRY_SAME_NUMBER(kUint8, ncclUint8);
FERRY_SAME_NUMBER(kInt32, ncclInt32);
FERRY_SAME_NUMBER(kUint32, ncclUint32);
FERRY_SAME_NUMBER(kInt64, ncclInt64);
FERRY_SAME_NUMBER(kUint64, ncclUint64);
FERRY_SAME_NUMBER(kFloat16, ncclFloat16);
FERRY_SAME_NUMBER(kFloat32, ncclFloat32);
FERRY_SAME_NUMBER(kFloat64, ncclFloat64);
FERRY_SAME_NUMBER(kBfloat16, ncclBfloat16);
FERRY_SAME_NUMBER(kReduceSum, ncclSum);
FERRY_SAME_NUMBER(kReduceProduct, ncclProd);
FERRY_SAME_NUMBER(kReduceMax, ncclMax);
FERRY_SAME_NUMBER(kReduceMin, ncclMin);
FERRY_SAME_NUMBER(kSplitNoColor, NCCL_SPLIT_NOCOLOR);
#if NCCL_VERSION_CODE >= 22703
FERRY_SAME_NUMBER(kShrinkDefault, NCCL_SHRINK_DEFAULT);
FERRY_SAME_NUMBER(kShrinkAbort, NCCL_SHRINK_ABORT);
FERRY_SAME_NUMBER(kWindowDefault, NCCL_WIN_DEFAULT);
FERRY_SAME_NUMBER(kWindowSymmetric, NCCL_WIN_COLL_SYMMETRIC);
#endif
#if NCCL_VERSION_CODE >= 22807
FERRY_SAME_NUMBER(kRevokeDefault, NCCL_REVOKE_DEFAULT);
#endif
FERRY_SAME_NUMBER(kUndefined, NCCL_CONFIG_UNDEF_INT);

// Not at compile time: a newer NCCL's header must not keep Ferry from being built.
TEST(NcclTypes, EveryResultHasItsStatus) {
  EXPECT_LE(ncclNumResults, kTimeout + 1)
      << "NcclApi::Check takes the new ones for internal errors";
}

// A field that NCCL does not find undefined would be taken for the user's choice.
TEST(NcclTypes, TheConfigurationIsTheInitializer) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const Config ours;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_EQ(ours.size, sizeof(Config));
  EXPECT_EQ(ours.version, 22800u);
  // All other fields that both have.
  constexpr size_t kFirst = offsetof(Config, blocking);
#if NCCL_VERSION_CODE >= 22602
  constexpr size_t kEnd = std::min(sizeof(ncclConfig_t), sizeof(Config));
#else  // the rest is padding
  constexpr size_t kEnd = offsetof(Config, traffic_class);
#endif
  EXPECT_EQ(std::memcmp(reinterpret_cast<const char*>(&ours) + kFirst,
                        reinterpret_cast<const char*>(&theirs) + kFirst, kEnd - kFirst),
            0);
}

#ifdef FERRY_HAS_NCCL_PROPERTIES
TEST(NcclTypes, ThePropertiesAreTheInitializer) {
  const ncclCommProperties_t theirs = NCCL_COMM_PROPERTIES_INITIALIZER;
  const CommunicatorProperties ours;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_EQ(ours.size, sizeof(CommunicatorProperties));
  EXPECT_LE(ours.version, theirs.version);
}
#endif

}  // namespace
}  // namespace ferry::nccl

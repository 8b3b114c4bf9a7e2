// SPDX-License-Identifier: Apache-2.0
// Sends, receives and collectives: their arguments.
#include "tests/support/strict_cuda/nccl_comm.h"
#include "tests/support/strict_cuda/nccl_reduce.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

ncclResult_t Add(Op op, CUstream handle, const char* call) {
  if (const ncclResult_t result = CheckUsable(op.comm, call); result != 0) return result;
  if (TypeBytes(op.type) == 0 || op.peer < 0 || op.peer >= op.comm->count) {
    return ncclInvalidArgument;
  }
  if (FindStream(handle, call, &op.stream) != CUDA_SUCCESS) return ncclUnhandledCudaError;
  return AddOp(op, call);
}

CUdeviceptr Address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace

size_t TypeBytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
  }
  return 0;
}

extern "C" {

STRICT_CUDA_EXPORT ncclResult_t ncclSend(const void* buffer, size_t count, ncclDataType_t type,
                                         int peer, ncclComm_t comm, CUstream stream) {
  Op op;
  op.kind = OpKind::kSend;
  op.comm = comm;
  op.from = Address(buffer);
  op.count = count;
  op.type = type;
  op.peer = peer;
  return Add(op, stream, __func__);
}

STRICT_CUDA_EXPORT ncclResult_t ncclRecv(void* buffer, size_t count, ncclDataType_t type, int peer,
                                         ncclComm_t comm, CUstream stream) {
  Op op;
  op.kind = OpKind::kRecv;
  op.comm = comm;
  op.to = Address(buffer);
  op.count = count;
  op.type = type;
  op.peer = peer;
  return Add(op, stream, __func__);
}

STRICT_CUDA_EXPORT ncclResult_t ncclAllReduce(const void* from, void* to, size_t count,
                                              ncclDataType_t type, ncclRedOp_t reduction,
                                              ncclComm_t comm, CUstream stream) {
  if (reduction < ncclSum || reduction > ncclAvg) return ncclInvalidArgument;
  // Types that the fake driver cannot add must not look like a success.
  if (!IsReducible(type)) return ncclInvalidArgument;
  Op op;
  op.kind = OpKind::kAllReduce;
  op.comm = comm;
  op.from = Address(from);
  op.to = Address(to);
  op.count = count;
  op.type = type;
  op.reduction = reduction;
  return Add(op, stream, __func__);
}

STRICT_CUDA_EXPORT ncclResult_t ncclBroadcast(const void* from, void* to, size_t count,
                                              ncclDataType_t type, int root, ncclComm_t comm,
                                              CUstream stream) {
  Op op;
  op.kind = OpKind::kBroadcast;
  op.comm = comm;
  op.from = Address(from);
  op.to = Address(to);
  op.count = count;
  op.type = type;
  op.peer = root;
  return Add(op, stream, __func__);
}

STRICT_CUDA_EXPORT ncclResult_t ncclAllGather(const void* from, void* to, size_t count,
                                              ncclDataType_t type, ncclComm_t comm,
                                              CUstream stream) {
  Op op;
  op.kind = OpKind::kAllGather;
  op.comm = comm;
  op.from = Address(from);
  op.to = Address(to);
  op.count = count;
  op.type = type;
  return Add(op, stream, __func__);
}

}  // extern "C"

}  // namespace strict_cuda

// SPDX-License-Identifier: Apache-2.0
// How the mark of derived errors is sent between workers over gRPC.
#ifndef FERRY_RENDEZVOUS_RECV_TENSOR_DERIVED_H_
#define FERRY_RENDEZVOUS_RECV_TENSOR_DERIVED_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace ferry {

// As coord::ToGrpcStatus; a derived error also has the payload by which workers of TensorFlow
// recognize it, since they no longer look for a mark in the text.
// Source: tsl/platform/status.cc (kDerivedStatusProtoUrl) and
// tsl/distributed_runtime/rpc/grpc_util.h (SerializePayloads) of TensorFlow 2.15.
grpc::Status ToGrpcAnswer(const absl::Status& status);

// As coord::FromGrpcStatus; an error with that payload is marked as derived.
absl::Status FromGrpcAnswer(const grpc::Status& status);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RECV_TENSOR_DERIVED_H_

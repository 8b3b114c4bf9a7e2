// SPDX-License-Identifier: Apache-2.0
// Encodes the derived mark as one entry of a payload container.
#include "rendezvous/recv_tensor/derived.h"

#include "coord/wire/errors.h"
#include "proto/tsl_payloads.pb.h"
#include "rendezvous/value.h"

namespace ferry {
namespace {

using tensorflow::distributed_runtime::GrpcPayloadContainer;

constexpr char kDerivedUrl[] = "type.googleapis.com/tensorflow.DerivedStatus";

}  // namespace

grpc::Status ToGrpcAnswer(const absl::Status& status) {
  grpc::Status answer = coord::ToGrpcStatus(status);
  if (!IsDerived(status)) return answer;
  GrpcPayloadContainer container;
  // The entry's presence is the mark.
  (*container.mutable_payloads())[kDerivedUrl] = "";
  return grpc::Status(answer.error_code(), answer.error_message(), container.SerializeAsString());
}

absl::Status FromGrpcAnswer(const grpc::Status& status) {
  absl::Status result = coord::FromGrpcStatus(status);
  if (result.ok() || status.error_details().empty()) return result;
  GrpcPayloadContainer container;
  const bool is_derived = container.ParseFromString(status.error_details()) &&
                          container.payloads().contains(kDerivedUrl);
  return is_derived ? MakeDerived(result) : result;
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// One call of ferry.v1.Trace.
#include "cli/trace_session.h"

#include <grpcpp/client_context.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "coord/wire/errors.h"
#include "proto/ferry_trace.grpc.pb.h"
#include "rendezvous/recv_tensor/tensor_channel.h"

namespace ferry::cli {
namespace {

constexpr absl::Duration kReachTimeout = absl::Seconds(10);
// The coordinator waits for each worker for five seconds, twice.
constexpr absl::Duration kTimeout = absl::Seconds(30);

}  // namespace

absl::StatusOr<ferry::v1::GetStepsResponse> FetchSteps(const std::string& coordinator, int count) {
  const std::shared_ptr<grpc::Channel> channel = MakeTensorChannel(coordinator);
  if (!channel->WaitForConnected(absl::ToChronoTime(absl::Now() + kReachTimeout))) {
    return absl::UnavailableError(absl::StrCat("no response from ", coordinator, " within ",
                                               absl::FormatDuration(kReachTimeout),
                                               "; is that where ferry coordinator listens?"));
  }
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kTimeout));
  ferry::v1::GetStepsRequest request;
  request.set_count(count);
  ferry::v1::GetStepsResponse response;
  const grpc::Status status =
      ferry::v1::Trace::NewStub(channel)->GetSteps(&context, request, &response);
  if (status.ok()) return response;
  if (status.error_code() != grpc::StatusCode::UNIMPLEMENTED) return coord::FromGrpcStatus(status);
  return absl::UnimplementedError(
      absl::StrCat("the server at ", coordinator,
                   " records no steps: a ferry run with --no-graphs, or no coordinator"));
}

}  // namespace ferry::cli

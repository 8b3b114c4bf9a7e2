// SPDX-License-Identifier: Apache-2.0
// The two methods of torchft.LighthouseService, and the timers of the lighthouse.
#include "coord/server/lighthouse_server.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

#include "coord/wire/bytes.h"
#include "coord/wire/errors.h"
#include "proto/torchft_lighthouse.pb.h"

namespace ferry::coord {
namespace {

// A call times out this much before the client's deadline, so that the reply arrives in time, but
// not before this fraction of the client's timeout. At the deadline torchft's client fails by
// itself (tonic's GrpcTimeout), with an error that does not say who is missing.
constexpr absl::Duration kReplyMargin = absl::Milliseconds(100);
constexpr double kMinTimeFraction = 0.9;

absl::Duration ServerTimeout(absl::Duration time_left) {
  return std::max(time_left - kReplyMargin, time_left * kMinTimeFraction);
}

grpc::Status Unparsable() {
  return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the request cannot be parsed");
}

QuorumMember ReadMember(const ::torchft::QuorumMember& member) {
  return {.replica_id = member.replica_id(),
          .address = member.address(),
          .step = member.step(),
          .world_size = member.world_size(),
          .shrink_only = member.shrink_only(),
          .commit_failures = member.commit_failures(),
          .encoded = member.SerializeAsString()};
}

}  // namespace

void LighthouseServer::Serve(Frontend& frontend, GenericMethodTable& methods,
                             std::shared_ptr<Loop> loop) {
  loop_ = std::move(loop);
  frontend.SetCancelQuorum([this](WaitId wait) {
    return Run([wait](Lighthouse& lighthouse) { return lighthouse.Cancel(wait); });
  });
  methods.Add("/torchft.LighthouseService/Quorum",
              [this](UnaryCall& call, grpc::ByteBuffer& bytes) { Join(call, bytes); });
  methods.Add("/torchft.LighthouseService/Heartbeat",
              [this](UnaryCall& call, grpc::ByteBuffer& bytes) { Heartbeat(call, bytes); });
}

void LighthouseServer::Join(UnaryCall& call, grpc::ByteBuffer& bytes) {
  ::torchft::LighthouseQuorumRequest request;
  if (!ParseMessage(bytes, request)) return call.Finish(Unparsable());
  if (!request.has_requester()) {
    return call.Finish(
        grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the request has no requester"));
  }
  const absl::Duration timeout = ServerTimeout(call.TimeLeft());
  call.Park(*this, [&](Lighthouse& lighthouse, DeferredCall* parked) {
    return lighthouse.Join(ReadMember(request.requester()), timeout,
                           [this, parked](absl::StatusOr<QuorumPtr> quorum) {
                             if (!quorum.ok()) return parked->Finish(ToGrpcStatus(quorum.status()));
                             grpc::Slice response = ResponseOf(*quorum);
                             parked->Answer(grpc::Status::OK, grpc::ByteBuffer(&response, 1));
                           });
  });
}

void LighthouseServer::Heartbeat(UnaryCall& call, grpc::ByteBuffer& bytes) {
  ::torchft::LighthouseHeartbeatRequest request;
  if (!ParseMessage(bytes, request)) return call.Finish(Unparsable());
  const absl::Status status = Run(
      [&request](Lighthouse& lighthouse) { return lighthouse.Heartbeat(request.replica_id()); });
  if (!status.ok()) return call.Finish(ToGrpcStatus(status));
  call.Reply(::torchft::LighthouseHeartbeatResponse());
}

grpc::Slice LighthouseServer::ResponseOf(const QuorumPtr& quorum) {
  absl::MutexLock lock(&response_mu_);
  if (response_of_ == quorum) return response_;
  ::torchft::LighthouseQuorumResponse response;
  ::torchft::Quorum& out = *response.mutable_quorum();
  out.set_quorum_id(quorum->id);
  for (const QuorumMember& member : quorum->members) {
    out.add_participants()->ParseFromString(member.encoded);
  }
  // clock_ is monotonic, while `created` is wall-clock time.
  const absl::Time created = absl::Now() - (clock_.Now() - quorum->created);
  const int64_t seconds = absl::ToUnixSeconds(created);
  out.mutable_created()->set_seconds(seconds);
  out.mutable_created()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(created - absl::FromUnixSeconds(seconds))));
  response_ = Flatten(SerializeMessage(response));
  response_of_ = quorum;
  return response_;
}

void LighthouseServer::Stop() {
  Run([](Lighthouse& lighthouse) { lighthouse.Stop(); });
}

void LighthouseServer::NoticePause() {
  const absl::Time now = clock_.Now();
  if (timer_ == absl::InfiniteFuture()) return;
  const absl::Duration stalled = pause_detector_.EndWait(now);
  if (stalled == absl::ZeroDuration()) return;
  lighthouse_.ExtendHeartbeatDeadlines(stalled);
  // The late timer has been accounted for.
  SetTimer();
}

std::vector<Completion> LighthouseServer::FinishRun() {
  if (lighthouse_.NextDeadline() < timer_) SetTimer();
  return completions_.Take();
}

void LighthouseServer::SetTimer() {
  const absl::Time deadline = lighthouse_.NextDeadline();
  timer_ = absl::InfiniteFuture();
  ++timer_number_;
  if (deadline == absl::InfiniteFuture() || loop_ == nullptr) return;
  timer_ = pause_detector_.BeginWait(clock_.Now(), deadline);
  loop_->PostAt(timer_, [this, number = timer_number_] { OnTimer(number); });
}

void LighthouseServer::OnTimer(uint64_t number) {
  std::vector<Completion> due;
  {
    absl::MutexLock lock(&mu_);
    if (number != timer_number_) return;
    NoticePause();
    lighthouse_.Advance();
    SetTimer();
    due = completions_.Take();
  }
  RunAll(due);
}

}  // namespace ferry::coord

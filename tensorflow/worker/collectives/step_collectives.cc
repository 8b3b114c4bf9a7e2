// SPDX-License-Identifier: Apache-2.0
// Joins the group through the leader, then runs the backend.
#include "tensorflow/worker/collectives/step_collectives.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "proto/ferry_collective.pb.h"
#include "tensorflow/worker/collectives/leader.h"

namespace ferry::worker {
namespace {

// Extra time for the leader's own timeout error, which names the missing members, to arrive first.
constexpr absl::Duration kLeaderTimeout = absl::Seconds(2);

v1::CollectiveJoin JoinOf(const CollectiveNode& node, const CollectiveCall& call) {
  v1::CollectiveJoin join;
  join.set_group_key(call.group_key);
  join.set_instance_key(call.instance_key);
  join.set_group_size(call.group_size);
  join.set_kind(static_cast<int>(node.kind));
  join.set_dtype(static_cast<int>(node.dtype));
  for (const int64_t dim : call.shape.dims()) join.add_dim(dim);
  join.set_merge(static_cast<int>(node.merge));
  join.set_divides(node.divides);
  join.set_is_source(node.is_source);
  join.set_why_not_nccl(node.nccl.why_not);
  join.set_gpu(node.nccl.gpu);
  if (node.timeout < absl::InfiniteDuration()) {
    join.set_timeout_ms(std::max<int64_t>(1, absl::ToInt64Milliseconds(node.timeout)));
  }
  return join;
}

}  // namespace

struct StepCollectives::Joining {
  CollectiveWork work;
  RecvCallback done;
  // Deadline for the leader's answer.
  absl::Time deadline = absl::InfiniteFuture();
};

void StepCollectives::Run(const CollectiveNode& node, const KernelEnvironment& environment,
                          absl::Span<const Tensor> inputs, CancellationToken* cancellation,
                          RecvCallback done) {
  auto joining = std::make_shared<Joining>();
  joining->done = std::move(done);
  absl::StatusOr<CollectiveCall> call = ReadCall(node, inputs);
  if (!call.ok()) return std::move(joining->done)(call.status(), {});
  CollectiveWork& work = joining->work;
  work.node = &node;
  work.call = *std::move(call);
  work.environment = &environment;
  work.cancellation = cancellation;
  if (absl::Status status = Join(joining); !status.ok()) {
    std::move(joining->done)(std::move(status), {});
  }
}

absl::Status StepCollectives::Join(const std::shared_ptr<Joining>& joining) {
  const CollectiveNode& node = *joining->work.node;
  const CollectiveCall& call = joining->work.call;
  FERRY_ASSIGN_OR_RETURN(const RendezvousKey join_key,
                         CollectiveKey(*node.devices, node.self, kLeader, kJoinEdge));
  FERRY_ASSIGN_OR_RETURN(
      const RendezvousKey members_key,
      CollectiveKey(*node.devices, kLeader, node.self,
                    CollectiveEdge(call.group_key, call.instance_key, kMembersEdge)));
  FERRY_RETURN_IF_ERROR(
      transfers_->Send(join_key, ToTensor(JoinOf(node, call)), /*is_dead=*/false));
  RecvArgs args;
  args.cancellation = joining->work.cancellation;
  if (node.timeout < absl::InfiniteDuration()) {
    args.deadline = clock_.Now() + node.timeout + kLeaderTimeout;
    joining->deadline = args.deadline;
  }
  // The run keeps this object, and does not end before its nodes have.
  transfers_->RecvAsync(members_key, std::move(args),
                        [this, joining](absl::Status status, Received received) {
                          OnMembers(*joining, std::move(status), received);
                        });
  return absl::OkStatus();
}

void StepCollectives::OnMembers(Joining& joining, absl::Status status, const Received& received) {
  CollectiveWork& work = joining.work;
  const CollectiveNode& node = *work.node;
  v1::CollectiveMembers members;
  // If another member timed out first, its error says why.
  if (absl::IsDeadlineExceeded(status) && clock_.Now() >= joining.deadline) {
    status = absl::DeadlineExceededError(absl::StrCat(
        "Collective has timed out waiting for other workers. ", node.devices->front().name,
        ", which leads the collectives of this step, has "
        "not answered"));
  } else if (status.ok() && !FromTensor(received.tensor, members)) {
    status = absl::InternalError("the leader has sent a malformed CollectiveMembers");
  } else if (status.ok()) {
    status = absl::Status(static_cast<absl::StatusCode>(members.code()), members.error());
  }
  if (status.ok()) {
    work.rank = -1;
    for (const int32_t member : members.member()) {
      if (member < 0 || static_cast<size_t>(member) >= node.devices->size()) {
        status = absl::InternalError(absl::StrCat("there is no device ", member));
        break;
      }
      if (member == node.self) work.rank = static_cast<int>(work.members.size());
      work.members.push_back(member);
    }
    work.source_rank = members.source_rank();
    work.by_nccl = members.by_nccl();
    work.why_not_nccl = members.why_not_nccl();
    const bool has_source = work.source_rank >= 0 && work.source_rank < members.member_size();
    if (status.ok() && work.by_nccl && !node.nccl.why_not.empty()) {
      status =
          absl::InternalError(absl::StrCat("the leader has chosen NCCL, but ", node.nccl.why_not));
    }
    if (status.ok() &&
        (work.rank < 0 || (node.kind == CollectiveKind::kBroadcast && !has_source))) {
      status = absl::InternalError("the leader has told of a group that this is no member of");
    }
  }
  if (!status.ok()) return std::move(joining.done)(std::move(status), {});
  if (node.timeout < absl::InfiniteDuration()) work.deadline = clock_.Now() + node.timeout;
  carrier_->Run(std::move(work), std::move(joining.done));
}

}  // namespace ferry::worker

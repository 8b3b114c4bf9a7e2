// SPDX-License-Identifier: Apache-2.0
// Connects the group table to the step's transfers.
#include "tensorflow/worker/collectives/leader.h"

#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry::worker {
namespace {

std::vector<std::string> NamesOf(const CollectiveDevices& devices) {
  std::vector<std::string> names;
  for (const CollectiveDevice& device : devices) names.push_back(device.name);
  return names;
}

}  // namespace

Tensor ToTensor(const google::protobuf::MessageLite& message) {
  const size_t bytes = message.ByteSizeLong();
  absl::StatusOr<Shape> shape = Shape::Create({static_cast<int64_t>(bytes)});
  FERRY_CHECK(shape.ok());
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(DataType::kUint8, *std::move(shape));
  FERRY_CHECK(tensor.ok());
  message.SerializeToArray(tensor->mutable_data(), static_cast<int>(bytes));
  return *std::move(tensor);
}

bool FromTensor(const Tensor& tensor, google::protobuf::MessageLite& message) {
  return tensor.is_valid() && tensor.dtype() == DataType::kUint8 && tensor.is_on_host() &&
         tensor.bytes() <= static_cast<size_t>(std::numeric_limits<int>::max()) &&
         message.ParseFromArray(tensor.data(), static_cast<int>(tensor.bytes()));
}

std::string CollectiveEdge(int32_t group_key, int32_t instance_key, absl::string_view what) {
  return absl::StrCat("collective/", group_key, ":", instance_key, "/", what);
}

CollectiveLeader::CollectiveLeader(std::shared_ptr<StepTransfers> transfers,
                                   std::shared_ptr<const CollectiveDevices> devices,
                                   const Clock& clock)
    : transfers_(std::move(transfers)),
      devices_(std::move(devices)),
      clock_(clock),
      table_(NamesOf(*devices_)) {}

void CollectiveLeader::Start(std::shared_ptr<StepTransfers> transfers,
                             std::shared_ptr<const CollectiveDevices> devices, const Clock& clock) {
  const std::shared_ptr<CollectiveLeader> leader(
      new CollectiveLeader(std::move(transfers), std::move(devices), clock));
  for (size_t i = 0; i < leader->devices_->size(); ++i) leader->Listen(static_cast<int>(i));
}

void CollectiveLeader::Listen(int device) {
  const auto key = CollectiveKey(*devices_, device, kLeader, kJoinEdge);
  FERRY_CHECK(key.ok());
  // Pending receives keep the leader alive.
  transfers_->RecvAsync(
      *key, {}, [self = shared_from_this(), device](absl::Status status, Received received) {
        self->OnJoin(device, status, received);
      });
}

void CollectiveLeader::OnJoin(int device, const absl::Status& status, const Received& received) {
  v1::CollectiveJoin join;
  std::vector<GroupTable::Answer> answers;
  const bool is_join = status.ok() && FromTensor(received.tensor, join);
  {
    absl::MutexLock lock(&mu_);
    if (!status.ok()) {
      answers = table_.Fail(status);
    } else if (!is_join) {
      answers = table_.Fail(absl::InternalError(absl::StrCat(
          (*devices_)[static_cast<size_t>(device)].name, " has sent a malformed CollectiveJoin")));
    } else {
      answers = table_.Join(device, join, clock_.Now());
    }
  }
  Send(answers);
  SetAlarm();
  if (is_join) Listen(device);
}

void CollectiveLeader::Send(const std::vector<GroupTable::Answer>& answers) {
  for (const GroupTable::Answer& answer : answers) {
    v1::CollectiveMembers members;
    members.set_code(static_cast<int>(answer.status.code()));
    members.set_error(std::string(answer.status.message()));
    for (const int member : answer.members) members.add_member(member);
    members.set_source_rank(answer.source_rank);
    members.set_by_nccl(answer.by_nccl);
    members.set_why_not_nccl(answer.why_not_nccl);
    const auto key =
        CollectiveKey(*devices_, kLeader, answer.device,
                      CollectiveEdge(answer.group_key, answer.instance_key, kMembersEdge));
    FERRY_CHECK(key.ok());
    // On failure the step is over, and the members' own receives fail with the step.
    transfers_->Send(*key, ToTensor(members), /*is_dead=*/false).IgnoreError();
  }
}

void CollectiveLeader::SetAlarm() {
  absl::Time at;
  std::string edge;
  {
    absl::MutexLock lock(&mu_);
    at = table_.NextDeadline();
    if (at >= alarm_) return;
    alarm_ = at;
    edge = absl::StrCat("collective/alarm/", ++alarm_count_);
  }
  // A timer: nothing is ever sent under this key, and the receive ends at its deadline or with the
  // step.
  const auto key = CollectiveKey(*devices_, kLeader, kLeader, edge);
  FERRY_CHECK(key.ok());
  RecvArgs args;
  args.deadline = at;
  transfers_->RecvAsync(*key, std::move(args),
                        [self = shared_from_this(), at](absl::Status status, Received) {
                          if (!absl::IsDeadlineExceeded(status)) return;
                          std::vector<GroupTable::Answer> answers;
                          {
                            absl::MutexLock lock(&self->mu_);
                            if (self->alarm_ == at) self->alarm_ = absl::InfiniteFuture();
                            answers = self->table_.Expire(self->clock_.Now());
                          }
                          self->Send(answers);
                          self->SetAlarm();
                        });
}

}  // namespace ferry::worker

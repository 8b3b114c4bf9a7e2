// SPDX-License-Identifier: Apache-2.0
// Consistency checks of joins, and their error texts.
#include "tensorflow/worker/collectives/group_table.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "tensorflow/worker/collectives/collective_node.h"

namespace ferry::worker {
namespace {

// Limit on the devices named in an error.
constexpr size_t kMaxNames = 16;

std::string ShapeText(const v1::CollectiveJoin& join) {
  return absl::StrCat("[", absl::StrJoin(join.dim(), ","), "]");
}

absl::string_view MergeName(int merge) {
  switch (static_cast<MergeOp>(merge)) {
    case MergeOp::kAdd:
      return "Add";
    case MergeOp::kMul:
      return "Mul";
    case MergeOp::kMax:
      return "Max";
    case MergeOp::kMin:
      return "Min";
  }
  return "none";
}

std::string HowText(const v1::CollectiveJoin& join) {
  return absl::StrCat(MergeName(join.merge()), " and then ", join.divides() ? "Div" : "Id");
}

}  // namespace

absl::Status GroupTable::CheckGroup(int device, const v1::CollectiveJoin& join,
                                    Group& group) const {
  if (!group.status.ok()) return group.status;
  if (group.size == 0) group.size = join.group_size();
  const std::string about = absl::StrCat(" (group_key=", join.group_key(), ")");
  if (join.group_size() != group.size) {
    return absl::InternalError(absl::StrCat("Device ", NameOf(device),
                                            " is joining a group with size ", join.group_size(),
                                            ", but that group has size ", group.size, about));
  }
  if (static_cast<size_t>(join.group_size()) > devices_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Device ", NameOf(device), " is joining a group of ", join.group_size(),
        " members, but only ", devices_.size(),
        " devices have collectives in this step, and a step of one session has to have all of them",
        about));
  }
  if (!group.members.contains(device)) {
    if (group.members.size() == static_cast<size_t>(group.size)) {
      return absl::InternalError(absl::StrCat("Device ", NameOf(device),
                                              " is joining a group that is already full", about));
    }
    group.members.insert(device);
  }
  return absl::OkStatus();
}

absl::Status GroupTable::CheckInstance(int device, const v1::CollectiveJoin& join,
                                       const Instance& instance) const {
  if (!instance.status.ok()) return instance.status;
  const std::string name = absl::StrCat("the collective instance ", join.instance_key());
  if (instance.is_complete || instance.waiting.contains(device)) {
    return absl::InternalError(absl::StrCat(
        "Device ", NameOf(device), " comes twice to ", name, " of group ", join.group_key(),
        " in one step: each collective needs an instance_key of "
        "its own"));
  }
  const v1::CollectiveJoin& first = instance.first;
  if (join.kind() != first.kind() || join.dtype() != first.dtype()) {
    return absl::InternalError(
        absl::StrCat("Collective instance ", join.instance_key(), " expected type ", first.kind(),
                     " and data_type ", first.dtype(), " but got type ", join.kind(),
                     " and data_type ", join.dtype(), " from ", NameOf(device)));
  }
  if (!std::equal(join.dim().begin(), join.dim().end(), first.dim().begin(), first.dim().end())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Shape mismatch in ", name, ". Op at device ", NameOf(device), " expected shape ",
        ShapeText(join), " but another member in the group expected shape ", ShapeText(first),
        ". This is likely due to different input shapes at different members of the collective "
        "op."));
  }
  if (join.merge() != first.merge() || join.divides() != first.divides()) {
    return absl::InvalidArgumentError(absl::StrCat("In ", name, " ", NameOf(device),
                                                   " is to merge by ", HowText(join),
                                                   ", but another member by ", HowText(first)));
  }
  if (join.is_source() && instance.source >= 0) {
    return absl::InternalError(absl::StrCat("Instance ", join.instance_key(),
                                            " already has source ", NameOf(instance.source),
                                            ", received second claim from ", NameOf(device)));
  }
  return absl::OkStatus();
}

void GroupTable::NoteNccl(int device, const v1::CollectiveJoin& join, Instance& instance) const {
  std::string& why_not = instance.why_not_nccl;
  if (!why_not.empty()) return;
  const bool is_empty =
      std::any_of(join.dim().begin(), join.dim().end(), [](int64_t dim) { return dim == 0; });
  const auto [found, is_new] = instance.gpus.emplace(join.gpu(), device);
  if (!join.why_not_nccl().empty()) {
    why_not = absl::StrCat(NameOf(device), ": ", join.why_not_nccl());
  } else if (join.gpu().empty()) {
    why_not = absl::StrCat(NameOf(device), " has not said which GPU it is");
  } else if (join.group_size() == 1) {
    why_not = "it is alone";
  } else if (is_empty) {
    why_not = "there are no elements";
  } else if (!is_new) {
    why_not = absl::StrCat(NameOf(found->second), " and ", NameOf(device),
                           " are one GPU, and NCCL takes one rank of each");
  }
}

void GroupTable::End(const Key& key, Instance& instance, const absl::Status& why,
                     std::vector<Answer>& answers) {
  instance.status.Update(why);
  instance.deadline = absl::InfiniteFuture();
  for (const int device : instance.waiting) {
    answers.push_back({device, key.first, key.second, why, {}, -1, false, {}});
  }
  instance.waiting.clear();
}

void GroupTable::FailGroup(int32_t group_key, const absl::Status& why,
                           std::vector<Answer>& answers) {
  groups_[group_key].status.Update(why);
  const Key first{group_key, std::numeric_limits<int32_t>::min()};
  for (auto it = instances_.lower_bound(first);
       it != instances_.end() && it->first.first == group_key; ++it) {
    if (!it->second.is_complete) End(it->first, it->second, why, answers);
  }
}

std::vector<GroupTable::Answer> GroupTable::Join(int device, const v1::CollectiveJoin& join,
                                                 absl::Time now) {
  std::vector<Answer> answers;
  const Key key{join.group_key(), join.instance_key()};
  const auto refuse = [&](const absl::Status& why) {
    answers.push_back({device, key.first, key.second, why, {}, -1, false, {}});
    return answers;
  };
  if (!status_.ok()) return refuse(status_);
  Group& group = groups_[key.first];
  if (absl::Status status = CheckGroup(device, join, group); !status.ok()) {
    FailGroup(key.first, status, answers);
    return refuse(status);
  }
  Instance& instance = instances_[key];
  if (instance.waiting.empty() && !instance.is_complete && instance.status.ok()) {
    instance.first = join;
  }
  if (absl::Status status = CheckInstance(device, join, instance); !status.ok()) {
    End(key, instance, status, answers);
    return refuse(status);
  }
  instance.waiting.insert(device);
  if (join.is_source()) instance.source = device;
  NoteNccl(device, join, instance);
  if (join.timeout_ms() > 0) {
    instance.deadline = std::min(instance.deadline, now + absl::Milliseconds(join.timeout_ms()));
  }
  if (instance.waiting.size() < static_cast<size_t>(group.size)) return answers;
  if (join.kind() == static_cast<int>(CollectiveKind::kBroadcast) && instance.source < 0) {
    End(key, instance,
        absl::InternalError(absl::StrCat("Instance ", key.second,
                                         " found no source for broadcast. "
                                         "This could mean that there were group_size=",
                                         group.size, " BcastRecvs but no BcastSend.")),
        answers);
    return answers;
  }
  const std::vector<int> members(instance.waiting.begin(), instance.waiting.end());
  const auto source = std::find(members.begin(), members.end(), instance.source);
  for (const int member : members) {
    answers.push_back({member, key.first, key.second, absl::OkStatus(), members,
                       source == members.end() ? -1 : static_cast<int>(source - members.begin()),
                       instance.why_not_nccl.empty(), instance.why_not_nccl});
  }
  instance.waiting.clear();
  instance.is_complete = true;
  instance.deadline = absl::InfiniteFuture();
  return answers;
}

std::vector<GroupTable::Answer> GroupTable::Fail(const absl::Status& why) {
  std::vector<Answer> answers;
  status_.Update(why);
  for (auto& [key, instance] : instances_) {
    if (!instance.is_complete) End(key, instance, why, answers);
  }
  return answers;
}

std::string GroupTable::Missing(const Key& key, const Instance& instance) const {
  const Group& group = groups_.at(key.first);
  const size_t count = static_cast<size_t>(group.size) - instance.waiting.size();
  const bool is_full = group.members.size() == static_cast<size_t>(group.size);
  std::vector<absl::string_view> names;
  size_t others = 0;
  for (size_t i = 0; i < devices_.size(); ++i) {
    const int device = static_cast<int>(i);
    if (instance.waiting.contains(device)) continue;
    if (is_full && !group.members.contains(device)) continue;
    if (names.size() < kMaxNames) {
      names.push_back(devices_[i]);
    } else {
      ++others;
    }
  }
  std::string text = absl::StrCat(names.size() + others == count ? "" : absl::StrCat(count, " of "),
                                  absl::StrJoin(names, ", "));
  if (others > 0) absl::StrAppend(&text, " and ", others, " others");
  return text;
}

std::vector<GroupTable::Answer> GroupTable::Expire(absl::Time now) {
  std::vector<Answer> answers;
  for (auto& [key, instance] : instances_) {
    if (instance.deadline > now) continue;
    const int32_t size = groups_.at(key.first).size;
    End(key, instance,
        absl::DeadlineExceededError(
            absl::StrCat("Collective has timed out waiting for other workers. ",
                         instance.waiting.size(), " of ", size, " members have come to instance ",
                         key.second, " of group ", key.first, "; not ", Missing(key, instance))),
        answers);
  }
  return answers;
}

absl::Time GroupTable::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [key, instance] : instances_) next = std::min(next, instance.deadline);
  return next;
}

size_t GroupTable::waiting_count() const {
  size_t count = 0;
  for (const auto& [key, instance] : instances_) count += instance.waiting.size();
  return count;
}

}  // namespace ferry::worker

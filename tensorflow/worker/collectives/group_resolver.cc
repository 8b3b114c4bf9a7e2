// SPDX-License-Identifier: Apache-2.0
// Append-only tables, with TensorFlow's error texts.
#include "tensorflow/worker/collectives/group_resolver.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <tuple>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

#include "tensorflow/worker/collectives/collective_node.h"

namespace ferry::worker {
namespace {

using tensorflow::CompleteGroupRequest;
using tensorflow::CompleteGroupResponse;
using tensorflow::CompleteInstanceRequest;
using tensorflow::CompleteInstanceResponse;

std::string ShapeText(const tensorflow::TensorShapeProto& shape) {
  return absl::StrCat(
      "[",
      absl::StrJoin(shape.dim(), ",",
                    [](std::string* text, const auto& dim) { absl::StrAppend(text, dim.size()); }),
      "]");
}

bool IsSameShape(const tensorflow::TensorShapeProto& a, const tensorflow::TensorShapeProto& b) {
  return std::equal(a.dim().begin(), a.dim().end(), b.dim().begin(), b.dim().end(),
                    [](const auto& one, const auto& other) { return one.size() == other.size(); });
}

// Returns "/job:worker/replica:0/task:1" from the name of a device of that task.
absl::string_view TaskOf(absl::string_view device) {
  return device.substr(0, device.rfind("/device:"));
}

absl::Status TooMany(absl::string_view what, size_t count) {
  return absl::ResourceExhaustedError(
      absl::StrCat(count, " ", what, " of collectives are known here, the limit"));
}

}  // namespace

bool GroupResolver::ByParts::operator()(const std::string& a, const std::string& b) const {
  const std::optional<TaskDevice> one = ParseDeviceName(a);
  const std::optional<TaskDevice> other = ParseDeviceName(b);
  // Malformed names sort first.
  if (!one.has_value() || !other.has_value()) {
    return one.has_value() != other.has_value() ? other.has_value() : a < b;
  }
  const auto place = [](const TaskDevice& device) {
    return std::tie(device.task.job, device.task.replica, device.task.task, device.type,
                    device.index);
  };
  return place(*one) < place(*other);
}

absl::Status GroupResolver::Join(const CompleteGroupRequest& request, Group& group) {
  const tensorflow::DeviceAttributes& device = request.device_attributes();
  const std::string about = absl::StrCat("Device ", device.name(), " is joining a group ");
  const std::string key = absl::StrCat(" (group_key=", request.group_key(), ")");
  if (group.device_type != request.device_type()) {
    return absl::InternalError(
        absl::StrCat(about, "with incompatible device type", group.device_type, key));
  }
  if (group.size != request.group_size()) {
    return absl::InternalError(absl::StrCat(about, "with size", request.group_size(),
                                            ", but that group has size ", group.size, key));
  }
  const auto found = group.members.find(device.name());
  if (found == group.members.end()) {
    if (group.members.size() == static_cast<size_t>(group.size)) {
      return absl::InternalError(absl::StrCat(about, "that is already full", key));
    }
    group.members.emplace(device.name(), device);
  } else if (found->second.incarnation() != device.incarnation()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Device ", device.name(),
        " current incarnation doesn't match with one in the group. This usually means this worker "
        "has restarted but the collective leader hasn't, or this worker connects to a wrong "
        "cluster."));
  }
  return absl::OkStatus();
}

GroupResolver::Ticket GroupResolver::CompleteGroup(const CompleteGroupRequest& request,
                                                   GroupDone done) {
  Waiting<CompleteGroupResponse> ready;
  absl::StatusOr<CompleteGroupResponse> result;
  Ticket ticket = 0;
  {
    absl::MutexLock lock(&mu_);
    ticket = ++last_ticket_;
    if (!request.has_device_attributes()) {
      result = absl::InternalError(
          "CompleteGroupRequest device_attributes is not set. Make sure you're running the same "
          "version of Tensorflow on all workers.");
      ready.emplace_back(ticket, std::move(done));
    } else if (groups_.size() >= kMaxGroups && !groups_.contains(request.group_key())) {
      result = TooMany("groups", kMaxGroups);
      ready.emplace_back(ticket, std::move(done));
    } else {
      const auto [found, is_new] = groups_.try_emplace(request.group_key());
      Group& group = found->second;
      if (is_new) {
        group.size = request.group_size();
        group.device_type = request.device_type();
      }
      if (group.status.ok()) group.status = Join(request, group);
      group.waiting.emplace_back(ticket, std::move(done));
      if (group.status.ok() && group.members.size() < static_cast<size_t>(group.size)) {
        return ticket;
      }
      ready = std::move(group.waiting);
      group.waiting.clear();
      if (!group.status.ok()) {
        result = group.status;
      } else {
        CompleteGroupResponse response;
        response.set_group_key(request.group_key());
        response.set_group_size(group.size);
        response.set_device_type(group.device_type);
        absl::btree_set<absl::string_view> tasks;
        for (const auto& [name, attributes] : group.members) {
          tasks.insert(TaskOf(name));
          *response.add_device_attributes() = attributes;
        }
        response.set_num_tasks(static_cast<int32_t>(tasks.size()));
        result = std::move(response);
      }
    }
  }
  for (auto& [each, call] : ready) std::move(call)(result);
  return ticket;
}

absl::Status GroupResolver::Join(const CompleteInstanceRequest& request, const Group& group,
                                 Instance& instance) {
  const CompleteInstanceRequest& first = instance.first;
  if (request.type() != first.type() || request.data_type() != first.data_type()) {
    return absl::InternalError(absl::StrCat(
        "Collective instance ", request.instance_key(), " expected type ", first.type(),
        " and data_type ", static_cast<int>(first.data_type()), " but got type ", request.type(),
        " and data_type ", static_cast<int>(request.data_type())));
  }
  if (!IsSameShape(request.shape(), first.shape())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Shape mismatch in the collective instance ", request.instance_key(), ". Op at device ",
        request.device(), " expected shape ", ShapeText(request.shape()),
        " but another member in the group expected shape ", ShapeText(first.shape()),
        ". This is likely due to different input shapes at different members of the collective "
        "op."));
  }
  const auto member = group.members.find(request.device());
  if (member == group.members.end()) {
    return absl::InternalError(absl::StrCat(
        "Device ", request.device(), " is not in the group of instance ", request.instance_key()));
  }
  if (!instance.known.insert(request.device()).second || !request.is_source()) {
    return absl::OkStatus();
  }
  const int rank = static_cast<int>(std::distance(group.members.begin(), member));
  if (instance.source_rank >= 0) {
    return absl::InternalError(absl::StrCat("Instance ", request.instance_key(),
                                            " already has source ", instance.source_rank,
                                            ", received second claim from ", rank));
  }
  instance.source_rank = rank;
  return absl::OkStatus();
}

GroupResolver::Ticket GroupResolver::CompleteInstance(const CompleteInstanceRequest& request,
                                                      InstanceDone done) {
  Waiting<CompleteInstanceResponse> ready;
  absl::StatusOr<CompleteInstanceResponse> result;
  Ticket ticket = 0;
  {
    absl::MutexLock lock(&mu_);
    ticket = ++last_ticket_;
    const std::pair<int32_t, int32_t> key{request.group_key(), request.instance_key()};
    const auto group = groups_.find(request.group_key());
    if (group == groups_.end()) {
      result = absl::FailedPreconditionError(
          absl::StrCat("group ", request.group_key(),
                       " not found. This normally means the server has restarted"));
      ready.emplace_back(ticket, std::move(done));
    } else if (!group->second.status.ok() ||
               group->second.members.size() != static_cast<size_t>(group->second.size)) {
      result = absl::FailedPreconditionError(
          absl::StrCat("group ", request.group_key(),
                       " failed to resolve. This normally means the server has restarted"));
      ready.emplace_back(ticket, std::move(done));
    } else if (instances_.size() >= kMaxInstances && !instances_.contains(key)) {
      result = TooMany("instances", kMaxInstances);
      ready.emplace_back(ticket, std::move(done));
    } else {
      const auto [found, is_new] = instances_.try_emplace(key);
      Instance& instance = found->second;
      if (is_new) instance.first = request;
      if (instance.status.ok()) instance.status = Join(request, group->second, instance);
      const bool is_broadcast = request.type() == static_cast<int>(CollectiveKind::kBroadcast);
      const bool is_complete = instance.known.size() == group->second.members.size();
      instance.waiting.emplace_back(ticket, std::move(done));
      if (instance.status.ok() && is_broadcast && !is_complete) return ticket;
      if (instance.status.ok() && is_broadcast && instance.source_rank < 0) {
        instance.status =
            absl::InternalError(absl::StrCat("Instance ", request.instance_key(),
                                             " found no source for broadcast.  This could mean "
                                             "that there were group_size=",
                                             group->second.size, " BcastRecvs but no BcastSend."));
      }
      ready = std::move(instance.waiting);
      instance.waiting.clear();
      if (!instance.status.ok()) {
        result = instance.status;
      } else {
        CompleteInstanceResponse response;
        response.set_instance_key(request.instance_key());
        response.set_source_rank(instance.source_rank);
        result = std::move(response);
      }
    }
  }
  for (auto& [each, call] : ready) std::move(call)(result);
  return ticket;
}

void GroupResolver::Cancel(Ticket ticket) {
  GroupDone group_done;
  InstanceDone instance_done;
  const auto take = [ticket](auto& waiting, auto& done) {
    for (auto it = waiting.begin(); it != waiting.end(); ++it) {
      if (it->first != ticket) continue;
      done = std::move(it->second);
      waiting.erase(it);
      return;
    }
  };
  {
    absl::MutexLock lock(&mu_);
    for (auto& [key, group] : groups_) take(group.waiting, group_done);
    for (auto& [key, instance] : instances_) take(instance.waiting, instance_done);
  }
  const absl::Status why = absl::CancelledError("the caller has gone");
  if (group_done) std::move(group_done)(why);
  if (instance_done) std::move(instance_done)(why);
}

}  // namespace ferry::worker

// SPDX-License-Identifier: Apache-2.0
// GroupTable: tracks which members have joined the collectives of a step.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_GROUP_TABLE_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_GROUP_TABLE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "proto/ferry_collective.pb.h"

namespace ferry::worker {

// Not thread-safe; pure, without a clock or I/O. Each join is answered exactly once: when all
// members of its instance have joined, when the instance fails, when a member's timeout expires, or
// by Fail.
//
// A group has the same devices in all its instances. An error in a group is reported to all members
// waiting in it and to later joins; an error in an instance to all its joins.
class GroupTable final {
 public:
  struct Answer {
    int device = 0;
    int32_t group_key = 0;
    int32_t instance_key = 0;
    absl::Status status;
    // If OK: devices by rank.
    std::vector<int> members;
    int source_rank = -1;
    // True for NCCL; else the reason.
    bool by_nccl = false;
    std::string why_not_nccl;
  };

  // `devices`: the names of all devices that may join.
  explicit GroupTable(std::vector<std::string> devices) : devices_(std::move(devices)) {}

  //   device: index of one of them.
  //   Errors, in answers: TensorFlow's about conflicting parameters; INVALID_ARGUMENT if the group
  //   is larger than the number of devices, or members disagree about the reduction.
  std::vector<Answer> Join(int device, const v1::CollectiveJoin& join, absl::Time now);
  // Fails all pending and future joins.
  std::vector<Answer> Fail(const absl::Status& why);
  // Fails the instances with an expired timeout with DEADLINE_EXCEEDED, naming the members that
  // joined and those missing.
  std::vector<Answer> Expire(absl::Time now);
  absl::Time NextDeadline() const;

  size_t waiting_count() const;

 private:
  struct Group {
    int32_t size = 0;
    absl::btree_set<int> members;
    absl::Status status;
  };
  struct Instance {
    // The request of the first member to join.
    v1::CollectiveJoin first;
    absl::btree_set<int> waiting;
    int source = -1;
    // The first reason that a member reported.
    std::string why_not_nccl;
    // UUIDs of the joined members' GPUs, and the devices that use them.
    absl::btree_map<std::string, int> gpus;
    absl::Time deadline = absl::InfiniteFuture();
    absl::Status status;
    bool is_complete = false;
  };
  using Key = std::pair<int32_t, int32_t>;

  const std::string& NameOf(int device) const { return devices_[static_cast<size_t>(device)]; }
  absl::Status CheckGroup(int device, const v1::CollectiveJoin& join, Group& group) const;
  // Updates whether the instance can use NCCL.
  void NoteNccl(int device, const v1::CollectiveJoin& join, Instance& instance) const;
  absl::Status CheckInstance(int device, const v1::CollectiveJoin& join,
                             const Instance& instance) const;
  // Returns the names of the devices that an instance waits for.
  std::string Missing(const Key& key, const Instance& instance) const;
  void End(const Key& key, Instance& instance, const absl::Status& why,
           std::vector<Answer>& answers);
  void FailGroup(int32_t group_key, const absl::Status& why, std::vector<Answer>& answers);

  const std::vector<std::string> devices_;
  absl::Status status_;
  absl::btree_map<int32_t, Group> groups_;
  // Ordered, so that a group's instances are adjacent; references remain valid.
  std::map<Key, Instance> instances_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_GROUP_TABLE_H_

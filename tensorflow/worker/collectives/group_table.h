// SPDX-License-Identifier: Apache-2.0
// GroupTable: who has come to which collective of a step, and whom that makes complete.
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

// Not thread-safe; knows no clock and sends nothing. Every join is answered once: when all members
// of its instance have come, when it cannot be any more, when somebody's time is up, or by Fail.
//
// A group is the same devices in all its instances. A mistake in a group is told to all who wait in
// it, and to all who come to it later; one about an instance to all who come to that.
class GroupTable final {
 public:
  struct Answer {
    int device = 0;
    int32_t group_key = 0;
    int32_t instance_key = 0;
    absl::Status status;
    // If it is OK: devices by rank.
    std::vector<int> members;
    int source_rank = -1;
    // By NCCL; else why not.
    bool by_nccl = false;
    std::string why_not_nccl;
  };

  // `devices`: the names of all that may come.
  explicit GroupTable(std::vector<std::string> devices) : devices_(std::move(devices)) {}

  //   device: a number of one of them.
  //   Errors, in answers: TensorFlow's about what does not fit; INVALID_ARGUMENT when the group is
  //   larger than all devices together, or members want to merge in different ways.
  std::vector<Answer> Join(int device, const v1::CollectiveJoin& join, absl::Time now);
  // Ends all that wait, and all that come later.
  std::vector<Answer> Fail(const absl::Status& why);
  // DEADLINE_EXCEEDED, with the names of who is there and who is not, to the instances in which
  // somebody's time is up.
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
    // Of who came first.
    v1::CollectiveJoin first;
    absl::btree_set<int> waiting;
    int source = -1;
    // The first reason that somebody had.
    std::string why_not_nccl;
    // Of those that have come, and whose they are.
    absl::btree_map<std::string, int> gpus;
    absl::Time deadline = absl::InfiniteFuture();
    absl::Status status;
    bool is_complete = false;
  };
  using Key = std::pair<int32_t, int32_t>;

  const std::string& NameOf(int device) const { return devices_[static_cast<size_t>(device)]; }
  absl::Status CheckGroup(int device, const v1::CollectiveJoin& join, Group& group) const;
  // Whether NCCL can do it, so far.
  void NoteNccl(int device, const v1::CollectiveJoin& join, Instance& instance) const;
  absl::Status CheckInstance(int device, const v1::CollectiveJoin& join,
                             const Instance& instance) const;
  // Names of the devices that an instance waits for.
  std::string Missing(const Key& key, const Instance& instance) const;
  void End(const Key& key, Instance& instance, const absl::Status& why,
           std::vector<Answer>& answers);
  void FailGroup(int32_t group_key, const absl::Status& why, std::vector<Answer>& answers);

  const std::vector<std::string> devices_;
  absl::Status status_;
  absl::btree_map<int32_t, Group> groups_;
  // Those of a group lie together. References to them stay good.
  std::map<Key, Instance> instances_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_GROUP_TABLE_H_

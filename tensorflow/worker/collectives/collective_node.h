// SPDX-License-Identifier: Apache-2.0
// CollectiveNode: what a node says of the collective that it takes part in.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_COLLECTIVE_NODE_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_COLLECTIVE_NODE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "proto/tf_node.pb.h"
#include "rendezvous/key.h"
#include "tensor/tensor.h"

namespace ferry::worker {

// With TensorFlow's numbers.
enum class CollectiveKind : int { kReduce = 0, kBroadcast = 1, kGather = 2 };
enum class MergeOp : int { kAdd = 0, kMul = 1, kMax = 2, kMin = 3 };

// What a node says to the leader about NCCL.
struct NcclOffer {
  // Empty: it can take part by it.
  std::string why_not = "this worker has no NCCL";
  // Then: which GPU it is, by its UUID.
  std::string gpu;
};

// A device that has collectives in a step.
struct CollectiveDevice {
  // "/job:worker/replica:0/task:1/device:CPU:0".
  std::string name;
  TaskDevice device;
  uint64_t incarnation = 0;
};

// All of them, in the order of ranks; the first is the leader, which finds out who belongs to whom.
// The master writes them into every collective node (graph::kCollectiveDevices).
using CollectiveDevices = std::vector<CollectiveDevice>;

// Immutable.
struct CollectiveNode {
  std::string name;
  CollectiveKind kind = CollectiveKind::kReduce;
  // Of a broadcast: has what the others get.
  bool is_source = false;
  MergeOp merge = MergeOp::kAdd;
  // By the size of the group, when all has been merged.
  bool divides = false;
  DataType dtype = DataType::kInvalid;
  // Where its tensor is, and where it gives one; other inputs are in the host's memory.
  TensorLocation memory;
  NcclOffer nccl;
  // "auto", "ring", "nccl", or whatever the program says.
  std::string hint;
  // Group and instance are inputs, as in the second versions of the ops.
  bool has_key_inputs = false;
  int32_t group_size = 0;
  int32_t group_key = 0;
  int32_t instance_key = 0;
  // Of broadcasts of the first version.
  Shape shape;
  // For the others to come, and then for their parts; infinite: as long as the step.
  absl::Duration timeout = absl::InfiniteDuration();

  std::shared_ptr<const CollectiveDevices> devices;
  // Which of them it is on.
  int self = 0;
};

//   node: of one of the eight ops, its attributes complete.
//   device: full name of where it is.
//   Errors: TensorFlow's about attributes; INVALID_ARGUMENT if it was not told which devices may
//   take part, or they are none of the kind.
absl::StatusOr<CollectiveNode> ReadCollective(const tensorflow::NodeDef& node,
                                              absl::string_view device);

// What a node asks for in a step.
struct CollectiveCall {
  int32_t group_size = 0;
  int32_t group_key = 0;
  int32_t instance_key = 0;
  // Of what it gets.
  Shape shape;
  // Of no receiver of a broadcast.
  Tensor input;
};

//   Errors: TensorFlow's.
absl::StatusOr<CollectiveCall> ReadCall(const CollectiveNode& node,
                                        absl::Span<const Tensor> inputs);

// What goes from one of the devices to another in a step, whatever they are from the memory of the
// one's host to that of the other's.
absl::StatusOr<RendezvousKey> CollectiveKey(const CollectiveDevices& devices, int src, int dst,
                                            absl::string_view edge);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_COLLECTIVE_NODE_H_

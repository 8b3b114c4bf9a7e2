// SPDX-License-Identifier: Apache-2.0
// CollectiveNode: the parameters of a collective node.
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

// TensorFlow's values.
enum class CollectiveKind : int { kReduce = 0, kBroadcast = 1, kGather = 2 };
enum class MergeOp : int { kAdd = 0, kMul = 1, kMax = 2, kMin = 3 };

// A node's NCCL capability, as reported to the leader.
struct NcclOffer {
  // Empty: it can use NCCL.
  std::string why_not = "this worker has no NCCL";
  // If so, the UUID of its GPU.
  std::string gpu;
};

// A device that runs collectives in a step.
struct CollectiveDevice {
  // "/job:worker/replica:0/task:1/device:CPU:0".
  std::string name;
  TaskDevice device;
  uint64_t incarnation = 0;
};

// All devices of the step with collectives, by rank; the first is the leader, which resolves group
// membership. The master writes them into every collective node (graph::kCollectiveDevices).
using CollectiveDevices = std::vector<CollectiveDevice>;

// Immutable.
struct CollectiveNode {
  std::string name;
  CollectiveKind kind = CollectiveKind::kReduce;
  // The source of a broadcast.
  bool is_source = false;
  MergeOp merge = MergeOp::kAdd;
  // Divide the reduced result by the group size.
  bool divides = false;
  DataType dtype = DataType::kInvalid;
  // Location of its input and output tensor; other inputs are in host memory.
  TensorLocation memory;
  NcclOffer nccl;
  // "auto", "ring", "nccl", or any other hint of the program.
  std::string hint;
  // Group and instance are inputs (second versions of the ops).
  bool has_key_inputs = false;
  int32_t group_size = 0;
  int32_t group_key = 0;
  int32_t instance_key = 0;
  // Only for broadcasts of the first version.
  Shape shape;
  // Limit for the members to join, and then for their parts; infinite: until the step ends.
  absl::Duration timeout = absl::InfiniteDuration();

  std::shared_ptr<const CollectiveDevices> devices;
  // Index of its own device in `devices`.
  int self = 0;
};

//   node: of one of the eight ops, with complete attributes.
//   device: full name of its device.
//   Errors: TensorFlow's about attributes; INVALID_ARGUMENT if the attribute that lists the
//   participating devices is missing or malformed.
absl::StatusOr<CollectiveNode> ReadCollective(const tensorflow::NodeDef& node,
                                              absl::string_view device);

// The arguments of a collective in a step.
struct CollectiveCall {
  int32_t group_size = 0;
  int32_t group_key = 0;
  int32_t instance_key = 0;
  // Shape of the result.
  Shape shape;
  // Invalid for a receiver of a broadcast.
  Tensor input;
};

//   Errors: TensorFlow's.
absl::StatusOr<CollectiveCall> ReadCall(const CollectiveNode& node,
                                        absl::Span<const Tensor> inputs);

// Returns the key for a tensor between two of the devices in a step. It always goes from host
// memory to host memory, whatever the devices are.
absl::StatusOr<RendezvousKey> CollectiveKey(const CollectiveDevices& devices, int src, int dst,
                                            absl::string_view edge);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_COLLECTIVE_NODE_H_

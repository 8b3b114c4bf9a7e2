// SPDX-License-Identifier: Apache-2.0
// NodeService: a gRPC service that a node serves on a port of its own, beside its tensors.
#ifndef FERRY_NODE_NODE_SERVICE_H_
#define FERRY_NODE_NODE_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"

#include "rendezvous/auth_policy.h"
#include "topology/device.h"

namespace grpc {
class Service;
}

namespace ferry {

class TransferEngine;

// Created by its factory while the node joins, and destroyed before the node's transfers end.
class NodeService {
 public:
  virtual ~NodeService() = default;
  // Outlived by this object.
  virtual grpc::Service& service() = 0;
};

struct NodeServiceContext {
  // Outlives the service.
  TransferEngine& engine;
  // Callers must authenticate with the job's token.
  AuthPolicy auth;
  // This node's devices.
  std::vector<Device> devices;
  // Looks up a node's endpoint, so that gRPC can reach it; may block. Null: not needed.
  //   Errors: NOT_FOUND if there is no such node; as Node::Key.
  std::function<absl::Status(int64_t node)> find_node;
};

using NodeServiceFactory = std::function<std::unique_ptr<NodeService>(NodeServiceContext context)>;

}  // namespace ferry

#endif  // FERRY_NODE_NODE_SERVICE_H_

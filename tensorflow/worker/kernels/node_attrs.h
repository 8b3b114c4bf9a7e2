// SPDX-License-Identifier: Apache-2.0
// NodeAttrs: a kernel's access to its node's attributes.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_NODE_ATTRS_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_NODE_ATTRS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "proto/tf_node.pb.h"
#include "tensor/data_type.h"

namespace ferry::worker {

// A reference to a node. Requested attributes must exist, with that kind: the op's schema was
// checked when the graph was received.
class NodeAttrs final {
 public:
  explicit NodeAttrs(const tensorflow::NodeDef& node) : node_(node) {}

  const std::string& name() const { return node_.name(); }
  const std::string& op() const { return node_.op(); }
  const tensorflow::NodeDef& node() const { return node_; }

  const tensorflow::AttrValue& Get(absl::string_view attr) const;
  // Returns kInvalid for resources and variants.
  DataType Type(absl::string_view attr) const;
  int64_t Int(absl::string_view attr) const { return Get(attr).i(); }
  bool Bool(absl::string_view attr) const { return Get(attr).b(); }
  const std::string& String(absl::string_view attr) const { return Get(attr).s(); }
  std::vector<int64_t> Ints(absl::string_view attr) const;

 private:
  const tensorflow::NodeDef& node_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_NODE_ATTRS_H_

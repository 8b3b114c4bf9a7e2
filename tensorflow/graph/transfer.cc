// SPDX-License-Identifier: Apache-2.0
// Converts transfers to and from the attributes and keys of _Send and _Recv.
#include "tensorflow/graph/transfer.h"

#include "absl/strings/str_cat.h"

#include "rendezvous/key.h"
#include "tensorflow/graph/names.h"

namespace ferry::graph {
namespace {

constexpr char kTensorName[] = "tensor_name";
constexpr char kSendDevice[] = "send_device";
constexpr char kIncarnation[] = "send_device_incarnation";
constexpr char kRecvDevice[] = "recv_device";
constexpr char kClientTerminated[] = "client_terminated";

void FillBoth(const Transfer& transfer, const DeviceSet& devices, tensorflow::NodeDef& node) {
  const SessionDevice& src = devices.device(transfer.src_device);
  auto& attrs = *node.mutable_attr();
  attrs[kTensorName].set_s(transfer.tensor_name);
  attrs[kSendDevice].set_s(src.name);
  attrs[kIncarnation].set_i(static_cast<int64_t>(src.incarnation));
  attrs[kRecvDevice].set_s(devices.device(transfer.dst_device).name);
  attrs[kClientTerminated].set_b(transfer.is_client);
}

}  // namespace

void FillSend(const Transfer& transfer, const DeviceSet& devices, bool is_on_host,
              tensorflow::NodeDef& node) {
  node.set_op(is_on_host ? "_HostSend" : "_Send");
  node.set_device(devices.device(transfer.src_device).name);
  (*node.mutable_attr())["T"].set_type(transfer.type);
  FillBoth(transfer, devices, node);
}

void FillRecv(const Transfer& transfer, const DeviceSet& devices, bool is_on_host,
              tensorflow::NodeDef& node) {
  node.set_op(is_on_host ? "_HostRecv" : "_Recv");
  node.set_device(devices.device(transfer.dst_device).name);
  (*node.mutable_attr())["tensor_type"].set_type(transfer.type);
  FillBoth(transfer, devices, node);
}

std::string KeyOf(const Transfer& transfer, const DeviceSet& devices) {
  const SessionDevice& src = devices.device(transfer.src_device);
  return RendezvousKey::Text(src.name, src.incarnation, devices.device(transfer.dst_device).name,
                             transfer.tensor_name);
}

absl::StatusOr<std::string> KeyOf(const tensorflow::NodeDef& node) {
  const auto& attrs = node.attr();
  for (const char* attr : {kTensorName, kSendDevice, kIncarnation, kRecvDevice}) {
    if (attrs.contains(attr)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("No attr named '", attr, "' in NodeDef:", AboutNode(node.name())));
  }
  return RendezvousKey::Text(attrs.at(kSendDevice).s(),
                             static_cast<uint64_t>(attrs.at(kIncarnation).i()),
                             attrs.at(kRecvDevice).s(), attrs.at(kTensorName).s());
}

}  // namespace ferry::graph

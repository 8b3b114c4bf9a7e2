// SPDX-License-Identifier: Apache-2.0
// Endpoint records to and from their wire form.
#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "node/endpoint_record.h"
#include "node/peer_record_proto.h"
#include "transport/transports.h"

namespace ferry {
namespace {

constexpr size_t kMaxEndpointBytes = size_t{256} << 10;

// Addresses and names go to log lines, errors and system calls.
bool HasControlCharacter(absl::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) { return absl::ascii_iscntrl(c); });
}

}  // namespace

std::string EncodeEndpoint(const Endpoint& endpoint) {
  auto record = NewPeerRecord<peer::v1::EndpointRecord>();
  record.set_node_id(endpoint.peer.node_id);
  record.set_incarnation(endpoint.peer.incarnation);
  record.set_boot_id(endpoint.boot_id);
  record.set_host_name(endpoint.host_name);
  record.set_unix_name(endpoint.channels.unix_name);
  for (const std::string& address : endpoint.channels.tcp) record.add_tcp_addresses(address);
  record.set_grpc_address(endpoint.grpc_address);
  for (const std::string& uuid : endpoint.gpus) record.add_gpu_uuids(uuid);
  record.set_has_gpu_kernels(endpoint.has_gpu_kernels);
  for (const TransportDescription& each : endpoint.transports) {
    peer::v1::TransportRecord& transport = *record.add_transports();
    transport.set_name(each.name);
    transport.set_local_descriptor(each.descriptor);
  }
  return record.SerializeAsString();
}

absl::StatusOr<Endpoint> DecodeEndpoint(absl::string_view bytes, int64_t node,
                                        absl::string_view key) {
  const PeerRecordName name = {
      .kind = "endpoint record",
      .node = node,
      .key = key.empty() ? EndpointKey(static_cast<int32_t>(node)) : std::string(key)};
  peer::v1::EndpointRecord record;
  FERRY_RETURN_IF_ERROR(ParsePeerRecord(bytes, kMaxEndpointBytes, name, record));
  if (!record.has_node_id() || !record.has_incarnation()) {
    return InvalidPeerRecord(name, "it does not say whose it is");
  }
  if (record.node_id() < 0) {
    return InvalidPeerRecord(name, absl::StrCat("its node_id is ", record.node_id()));
  }
  for (const auto& [field, list] : {std::pair("tcp_addresses", &record.tcp_addresses()),
                                    std::pair("gpu_uuids", &record.gpu_uuids())}) {
    if (list->size() > kMaxEndpointItems) {
      return InvalidPeerRecord(name, absl::StrCat("it has ", list->size(), " ", field,
                                                  ", over the limit of ", kMaxEndpointItems));
    }
    if (std::any_of(list->begin(), list->end(), HasControlCharacter)) {
      return InvalidPeerRecord(name, absl::StrCat("a control character in its ", field));
    }
  }
  for (const auto& [field, text] :
       {std::pair("boot_id", &record.boot_id()), std::pair("host_name", &record.host_name()),
        std::pair("unix_name", &record.unix_name()),
        std::pair("grpc_address", &record.grpc_address())}) {
    if (HasControlCharacter(*text)) {
      return InvalidPeerRecord(name, absl::StrCat("a control character in its ", field));
    }
  }
  Endpoint endpoint;
  endpoint.peer = {record.node_id(), record.incarnation()};
  endpoint.boot_id = record.boot_id();
  endpoint.host_name = record.host_name();
  endpoint.channels.unix_name = record.unix_name();
  endpoint.channels.tcp = {record.tcp_addresses().begin(), record.tcp_addresses().end()};
  endpoint.grpc_address = record.grpc_address();
  endpoint.gpus = {record.gpu_uuids().begin(), record.gpu_uuids().end()};
  endpoint.has_gpu_kernels = record.has_gpu_kernels();
  for (const peer::v1::TransportRecord& each : record.transports()) {
    endpoint.transports.push_back({each.name(), each.local_descriptor()});
  }
  if (const absl::Status status = CheckDescriptions(endpoint.transports); !status.ok()) {
    return InvalidPeerRecord(name, status.message());
  }
  return endpoint;
}

}  // namespace ferry

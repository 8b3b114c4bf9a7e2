// SPDX-License-Identifier: Apache-2.0
// Endpoint records, and parsing of addresses written by hand.
#include "node/endpoint_record.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/text.h"

namespace ferry {

std::string EndpointKey(int32_t node_id) { return absl::StrCat("ferry/exchange/", node_id); }

std::string EncodeEndpoint(const Endpoint& endpoint) {
  std::string text =
      absl::StrCat("node ", endpoint.peer.node_id, "\nincarnation ", endpoint.peer.incarnation,
                   "\nboot_id ", endpoint.boot_id, "\nhost ", endpoint.host_name, "\n");
  if (!endpoint.channels.unix_name.empty())
    absl::StrAppend(&text, "unix ", endpoint.channels.unix_name, "\n");
  for (const std::string& address : endpoint.channels.tcp)
    absl::StrAppend(&text, "tcp ", address, "\n");
  if (!endpoint.grpc_address.empty()) absl::StrAppend(&text, "grpc ", endpoint.grpc_address, "\n");
  for (const std::string& gpu : endpoint.gpus) absl::StrAppend(&text, "gpu ", gpu, "\n");
  if (endpoint.has_gpu_kernels) absl::StrAppend(&text, "gpu_kernels yes\n");
  if (endpoint.nccl_version != 0) absl::StrAppend(&text, "nccl ", endpoint.nccl_version, "\n");
  return text;
}

absl::StatusOr<Endpoint> DecodeEndpoint(absl::string_view text) {
  Endpoint endpoint;
  bool has_node = false;
  bool has_incarnation = false;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    const auto [name, value] = parts;
    bool is_good = true;
    if (name == "node") {
      is_good = has_node = absl::SimpleAtoi(value, &endpoint.peer.node_id);
    } else if (name == "incarnation") {
      is_good = has_incarnation = absl::SimpleAtoi(value, &endpoint.peer.incarnation);
    } else if (name == "boot_id") {
      endpoint.boot_id = std::string(value);
    } else if (name == "host") {
      endpoint.host_name = std::string(value);
    } else if (name == "unix") {
      endpoint.channels.unix_name = std::string(value);
    } else if (name == "tcp") {
      endpoint.channels.tcp.emplace_back(value);
    } else if (name == "grpc") {
      endpoint.grpc_address = std::string(value);
    } else if (name == "gpu") {
      endpoint.gpus.emplace_back(value);
    } else if (name == "gpu_kernels") {
      endpoint.has_gpu_kernels = value == "yes";
    } else if (name == "nccl") {
      is_good = absl::SimpleAtoi(value, &endpoint.nccl_version);
    }
    if (!is_good) {
      return absl::InvalidArgumentError(
          absl::StrCat("a node's address record says ", Quoted(line)));
    }
  }
  if (!has_node || !has_incarnation) {
    return absl::InvalidArgumentError("a node's address record does not say whose it is");
  }
  return endpoint;
}

absl::StatusOr<std::string> CompleteAddress(absl::string_view address, int port) {
  const auto refuse = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(address),
                     " is not an address that peers can be told: HOST, HOST:PORT, IPV6 or "
                     "[IPV6]:PORT (--advertise)"));
  };
  const auto is_ipv6 = [](absl::string_view text) {
    in6_addr parsed;
    // A link-local address may carry its interface ("%eth0").
    return inet_pton(AF_INET6, std::string(text.substr(0, text.find('%'))).c_str(), &parsed) == 1;
  };
  if (is_ipv6(address)) return absl::StrCat("[", address, "]:", port);
  absl::string_view host = address;
  absl::string_view after = "";
  if (const size_t end = address.find(']'); !address.empty() && address.front() == '[') {
    if (end == address.npos || !is_ipv6(address.substr(1, end - 1))) return refuse();
    host = address.substr(0, end + 1);
    after = address.substr(end + 1);
  } else if (const size_t colon = address.find(':'); colon != address.npos) {
    host = address.substr(0, colon);
    after = address.substr(colon);
  }
  uint32_t own_port = static_cast<uint32_t>(port);
  if (host.find_first_of(" \t\r\n") != host.npos) return refuse();
  const bool is_port_good =
      after.empty() || (after.front() == ':' && absl::SimpleAtoi(after.substr(1), &own_port) &&
                        own_port > 0 && own_port <= 65535);
  if (host.empty() || !is_port_good) return refuse();
  return absl::StrCat(host, ":", own_port);
}

}  // namespace ferry

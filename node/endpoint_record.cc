// SPDX-License-Identifier: Apache-2.0
// Keys of endpoint records, and parsing of addresses written by hand.
#include "node/endpoint_record.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/text.h"

namespace ferry {

std::string EndpointKey(int32_t node_id) { return absl::StrCat("ferry/exchange/", node_id); }

absl::StatusOr<std::string> CompleteAddress(absl::string_view address, int port) {
  const auto refuse = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(address),
                     " is not an address that peers can be told: HOST, HOST:PORT, IPV6 or "
                     "[IPV6]:PORT (--advertise, in programs TransferOptions::advertised_address)"));
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

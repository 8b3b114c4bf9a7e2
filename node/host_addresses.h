// SPDX-License-Identifier: Apache-2.0
// The addresses of this host that are published to the other nodes, in the order in which they are
// tried.
#ifndef FERRY_NODE_HOST_ADDRESSES_H_
#define FERRY_NODE_HOST_ADDRESSES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ferry {

// One address of one network interface; an interface with several comes several times, in the
// kernel's order.
struct InterfaceAddress {
  std::string name;         // "eth0"
  std::string address;      // "10.0.0.7", "fe80::1"
  bool is_running = false;  // the link has a carrier
  bool is_ipv6 = false;
  bool is_loopback = false;    // the address, not the interface
  bool is_link_local = false;  // fe80::/10, 169.254.0.0/16
  bool is_up = true;           // not switched off by an administrator
};

// How likely other hosts can reach this one at an address, the likeliest first.
enum class AddressRank : uint8_t {
  // This host's end of its connection to the coordinator, which every node reaches.
  kToCoordinator,
  // On the interface of that connection.
  kSameInterface,
  kOrdinary,
  // fe80::/10, published only if the coordinator is reached through such an address, and with this
  // host's interface name, which is right where hosts name their interfaces alike.
  kIpv6LinkLocal,
  // Bridges and virtual links of this machine, by their names: docker0, virbr0, br-..., veth...
  kMachineInternal,
  // No carrier, or 169.254.0.0/16, which hosts assign themselves when they receive no address.
  kUnlikely,
  kLoopback,
};

struct OfferedAddress {
  std::string address;  // "10.0.0.7", "fd00::7", "fe80::1%eth0"; no brackets
  std::string interface;
  AddressRank rank = AddressRank::kOrdinary;
  bool is_ipv6 = false;
};

// Returns the addresses to publish to peers, the likeliest first. Among equals the family of the
// coordinator's connection (IPv4 if unknown) comes first, then the kernel's order applies.
// Addresses of interfaces that are down, and of fe80::/10 in most cases, are left out.
//   local_end: this host's address in its connection to the coordinator, without a port; empty if
//   unknown. A loopback address is ignored.
std::vector<OfferedAddress> OrderAddresses(absl::Span<const InterfaceAddress> all,
                                           absl::string_view local_end);

// True if NCCL would use an interface of this name only for want of another one, or if it is a
// virtual link of the same kind.
bool IsMachineInternal(absl::string_view interface);

// The addresses of this host's interfaces; IPv6 ones only if the kernel can create IPv6 sockets.
//   Errors: UNAVAILABLE.
absl::StatusOr<std::vector<InterfaceAddress>> ReadInterfaces();

// This host's address in its connection to the coordinator, for OrderAddresses.
//   observed: as the coordinator sees this process, "ipv4:10.0.0.3:41234" or
//   "ipv6:%5Bfd00::3%5D:41234". Behind address translation (NAT) that is none of `all`; then the
//   kernel's source address for `coordinator` is looked up, without sending anything. Blocks while
//   the coordinator's name is resolved.
// Returns an empty string if unknown.
std::string FindLocalEnd(absl::Span<const InterfaceAddress> all, const std::string& observed,
                         const std::string& coordinator);

// Returns HOST:PORT or [IPV6]:PORT of each.
std::vector<std::string> WithPort(absl::Span<const OfferedAddress> offered, int port);

// The addresses for gRPC clients, which do not verify which process answers: only those of the
// likeliest ranks, since an address such as 172.17.0.1 leads each host to itself.
std::vector<OfferedAddress> LikelyReachable(absl::Span<const OfferedAddress> offered);

}  // namespace ferry

#endif  // FERRY_NODE_HOST_ADDRESSES_H_

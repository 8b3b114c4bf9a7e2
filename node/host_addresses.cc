// SPDX-License-Identifier: Apache-2.0
// Ranks of addresses, and the kernel's address list.
#include "node/host_addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

#include "base/address_family.h"
#include "base/unique_fd.h"
#include "net/resolver.h"

namespace ferry {
namespace {

bool IsLoopback(absl::string_view address) {
  return address == "::1" || absl::StartsWith(address, "127.");
}

absl::string_view WithoutScope(absl::string_view address) {
  return address.substr(0, address.find('%'));
}

AddressRank RankOf(const InterfaceAddress& each, absl::string_view local_end,
                   absl::string_view local_interface) {
  if (each.is_loopback) return AddressRank::kLoopback;
  if (each.is_ipv6 && each.is_link_local) return AddressRank::kIpv6LinkLocal;
  if (!local_end.empty() && each.address == local_end) return AddressRank::kToCoordinator;
  if (!each.is_running || each.is_link_local) return AddressRank::kUnlikely;
  if (each.name == local_interface) return AddressRank::kSameInterface;
  return IsMachineInternal(each.name) ? AddressRank::kMachineInternal : AddressRank::kOrdinary;
}

InterfaceAddress Describe(const ifaddrs& entry) {
  InterfaceAddress out;
  out.name = entry.ifa_name;
  out.is_up = (entry.ifa_flags & IFF_UP) != 0;
  out.is_running = (entry.ifa_flags & IFF_RUNNING) != 0;
  out.is_ipv6 = entry.ifa_addr->sa_family == AF_INET6;
  char text[INET6_ADDRSTRLEN] = "";
  if (out.is_ipv6) {
    const auto& address = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr;
    inet_ntop(AF_INET6, &address, text, sizeof(text));
    out.is_loopback = IN6_IS_ADDR_LOOPBACK(&address);
    out.is_link_local = IN6_IS_ADDR_LINKLOCAL(&address);
  } else {
    const auto& address = reinterpret_cast<const sockaddr_in*>(entry.ifa_addr)->sin_addr;
    inet_ntop(AF_INET, &address, text, sizeof(text));
    const uint32_t number = ntohl(address.s_addr);
    out.is_loopback = number >> 24 == IN_LOOPBACKNET;
    out.is_link_local = number >> 16 == 0xa9fe;
  }
  out.address = text;
  return out;
}

// "10.0.0.3" of "10.0.0.3:41234", "fe80::1%eth0" of "[fe80::1%eth0]:41234".
std::string HostOf(absl::string_view address) {
  absl::string_view host = address.substr(0, address.rfind(':'));
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return std::string(host);
}

bool Has(absl::Span<const InterfaceAddress> all, absl::string_view address) {
  return std::any_of(all.begin(), all.end(), [address](const InterfaceAddress& each) {
    return each.address == WithoutScope(address);
  });
}

// The source address that this host would use to send to `to`; empty if there is no route.
std::string SourceAddress(const SocketAddress& to) {
  const UniqueFd fd(socket(to.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Connecting a datagram socket looks up the route without sending anything.
  if (!fd.valid() ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.bytes) != 0) {
    return "";
  }
  SocketAddress from;
  from.bytes = sizeof(from.storage);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&from.storage), &from.bytes) != 0) {
    return "";
  }
  return HostOf(ShowAddress(from));
}

}  // namespace

bool IsMachineInternal(absl::string_view interface) {
  // The first three are NCCL's ("^docker,lo,virbr"); the others are names used by the same and
  // similar programs.
  for (const absl::string_view prefix : {"docker", "virbr", "lo", "br-", "veth", "cni", "podman",
                                         "lxcbr", "lxdbr", "vmnet", "vboxnet", "cali", "flannel"}) {
    if (!absl::StartsWith(interface, prefix)) continue;
    if (prefix != "lo" || interface == "lo") return true;
  }
  return false;
}

std::vector<OfferedAddress> OrderAddresses(absl::Span<const InterfaceAddress> all,
                                           absl::string_view local_end) {
  if (IsLoopback(local_end)) local_end = "";
  const absl::string_view plain_end = WithoutScope(local_end);
  // Two interfaces may have the same link-local address; its scope tells them apart.
  absl::string_view local_interface =
      plain_end.size() < local_end.size() ? local_end.substr(plain_end.size() + 1) : "";
  for (const InterfaceAddress& each : all) {
    if (local_interface.empty() && !plain_end.empty() && each.address == plain_end) {
      local_interface = each.name;
    }
  }
  const bool prefers_ipv6 = absl::StrContains(local_end, ':');
  const bool has_link_local_end = prefers_ipv6 && absl::StartsWith(local_end, "fe80:");
  std::vector<OfferedAddress> offered;
  for (const InterfaceAddress& each : all) {
    if (!each.is_up) continue;
    const AddressRank rank = RankOf(each, plain_end, local_interface);
    if (rank == AddressRank::kIpv6LinkLocal &&
        (!has_link_local_end || each.name != local_interface)) {
      continue;
    }
    offered.push_back({rank == AddressRank::kIpv6LinkLocal
                           ? absl::StrCat(each.address, "%", each.name)
                           : each.address,
                       each.name, rank, each.is_ipv6});
  }
  std::stable_sort(offered.begin(), offered.end(),
                   [prefers_ipv6](const OfferedAddress& a, const OfferedAddress& b) {
                     return std::make_tuple(a.rank, a.is_ipv6 != prefers_ipv6) <
                            std::make_tuple(b.rank, b.is_ipv6 != prefers_ipv6);
                   });
  return offered;
}

absl::StatusOr<std::vector<InterfaceAddress>> ReadInterfaces() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) {
    return absl::UnavailableError(absl::StrCat("getifaddrs: ", std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(found, freeifaddrs);
  const bool has_ipv6 = HasAddressFamily(AF_INET6);
  std::vector<InterfaceAddress> out;
  for (const ifaddrs* at = found; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    const int family = at->ifa_addr->sa_family;
    if (family == AF_INET || (family == AF_INET6 && has_ipv6)) out.push_back(Describe(*at));
  }
  return out;
}

std::string FindLocalEnd(absl::Span<const InterfaceAddress> all, const std::string& observed,
                         const std::string& coordinator) {
  const std::string decoded = absl::StrReplaceAll(observed.substr(observed.find(':') + 1),
                                                  {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  if (const std::string host = HostOf(decoded); Has(all, host) && !IsLoopback(host)) {
    // The coordinator does not know the interface of a link-local address.
    if (!absl::StartsWith(host, "fe80:")) return host;
  }
  const auto addresses = ResolveAddress(coordinator);
  if (!addresses.ok()) return "";
  for (const SocketAddress& address : *addresses) {
    const std::string source = SourceAddress(address);
    if (!source.empty()) return IsLoopback(source) ? "" : source;
  }
  return "";
}

std::vector<std::string> WithPort(absl::Span<const OfferedAddress> offered, int port) {
  std::vector<std::string> addresses;
  for (const OfferedAddress& each : offered) {
    addresses.push_back(each.is_ipv6 ? absl::StrCat("[", each.address, "]:", port)
                                     : absl::StrCat(each.address, ":", port));
  }
  return addresses;
}

std::vector<OfferedAddress> LikelyReachable(absl::Span<const OfferedAddress> offered) {
  std::vector<OfferedAddress> likely;
  for (const OfferedAddress& each : offered) {
    // gRPC 1.51 does not connect to addresses with a scope.
    if (each.rank == AddressRank::kIpv6LinkLocal) continue;
    if (each.rank > AddressRank::kOrdinary && !likely.empty() && each.rank != likely[0].rank) break;
    likely.push_back(each);
  }
  return likely;
}

}  // namespace ferry

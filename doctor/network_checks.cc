// SPDX-License-Identifier: Apache-2.0
// Interfaces in NCCL's order, and RDMA devices as reported by the kernel.
#include "doctor/network_checks.h"

#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/text.h"
#include "doctor/nccl_interfaces.h"
#include "node/host_addresses.h"

namespace ferry::doctor {
namespace {

constexpr char kRdmaFolder[] = "/sys/class/infiniband";

// "eth0, lo"
std::string Names(const std::vector<InterfaceAddress>& all) {
  std::vector<std::string> names;
  for (const InterfaceAddress& each : all) {
    if (!each.is_running) continue;
    if (std::find(names.begin(), names.end(), each.name) == names.end()) names.push_back(each.name);
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

// Returns "mlx5_0 400 Gb/sec (4X NDR)" for a device with an active port, or an empty string.
std::string ActivePort(const HostReader& host, const std::string& device) {
  const std::string folder = absl::StrCat(kRdmaFolder, "/", device, "/ports");
  const auto ports = host.ListFolder(folder);
  if (!ports.ok()) return "";
  for (const std::string& port : *ports) {
    const auto state = host.ReadFile(absl::StrCat(folder, "/", port, "/state"));
    if (!state.ok() || !absl::StrContains(*state, "ACTIVE")) continue;
    const auto rate = host.ReadFile(absl::StrCat(folder, "/", port, "/rate"));
    return rate.ok() ? absl::StrCat(device, " ", *rate) : device;
  }
  return "";
}

// "10.0.0.7 (eth0), fd00::7 (eth0)"
std::string Addresses(absl::Span<const OfferedAddress> offered) {
  return absl::StrJoin(offered, ", ", [](std::string* out, const OfferedAddress& each) {
    absl::StrAppend(out, each.address, " (", each.interface, ")");
  });
}

}  // namespace

Finding CheckFamilies(const HostReader& host) {
  const bool has_ipv4 = host.HasFamily(AF_INET);
  const bool has_ipv6 = host.HasFamily(AF_INET6);
  if (!has_ipv4 && !has_ipv6) {
    return Wrong("ip families", "neither IPv4 nor IPv6 sockets can be created",
                 "allow them: see the seccomp profile of the container");
  }
  if (!has_ipv6) {
    return Ok("ip families",
              "IPv4; the kernel has no IPv6, so what listens by default listens on 0.0.0.0");
  }
  if (!has_ipv4) return Ok("ip families", "IPv6; the kernel has no IPv4");
  const auto is_set = [&host](const char* path) {
    return host.ReadFile(path).value_or("0") == "1";
  };
  std::string seen = "IPv4 and IPv6";
  if (is_set("/proc/sys/net/ipv6/conf/all/disable_ipv6")) {
    absl::StrAppend(&seen, ", of which addresses are switched off (disable_ipv6 is 1)");
  }
  if (is_set("/proc/sys/net/ipv6/bindv6only")) {
    absl::StrAppend(&seen, "; bindv6only is 1, which Ferry's sockets do not need to be 0");
  }
  return Ok("ip families", seen);
}

Finding CheckAddresses(const HostReader& host) {
  const auto all = host.Interfaces();
  if (!all.ok()) return Skipped("addresses", std::string(all.status().message()));
  // The coordinator's address, which would allow a better check, is unknown here.
  const std::vector<OfferedAddress> offered = OrderAddresses(*all, /*local_end=*/"");
  if (offered.empty()) {
    return Wrong("addresses", "no interface that is up has an address",
                 "bring an interface up, lo at least");
  }
  const AddressRank best = offered.front().rank;
  const std::string seen = absl::StrCat("other nodes try, in this order: ", Addresses(offered));
  if (best == AddressRank::kLoopback) {
    return Warning("addresses", absl::StrCat(seen, ", which no other machine reaches"),
                   "for jobs of several machines give an interface an address");
  }
  if (best > AddressRank::kOrdinary) {
    return Warning("addresses", absl::StrCat(seen, ": none appears to be reachable by others"),
                   "pass --advertise=ADDRESS with one at which the others reach this machine");
  }
  return Ok("addresses", seen);
}

Finding CheckInterfaces(const HostReader& host) {
  const auto all = host.Interfaces();
  if (!all.ok()) return Skipped("interfaces", std::string(all.status().message()));
  const NcclInterfaceSettings settings = {host.Environment("NCCL_SOCKET_IFNAME").value_or(""),
                                          host.Environment("NCCL_SOCKET_FAMILY").value_or("")};
  const std::vector<InterfaceAddress> taken = NcclInterfaces(*all, settings);
  const std::string by =
      settings.socket_ifname.empty()
          ? ""
          : absl::StrCat(" (NCCL_SOCKET_IFNAME=", Quoted(settings.socket_ifname), ")");
  if (taken.empty()) {
    return Wrong("interfaces", absl::StrCat("NCCL would find none", by, "; running: ", Names(*all)),
                 by.empty() ? "bring an interface up, lo at least"
                            : "name one that is running, as a prefix or exactly (=eth0)");
  }
  std::vector<std::string> texts;
  for (const InterfaceAddress& each : taken) {
    texts.push_back(absl::StrCat(each.name, " ", each.address));
  }
  const std::string seen = absl::StrCat("NCCL takes ", absl::StrJoin(texts, ", "), by);
  const InterfaceAddress& first = taken.front();
  if (first.is_loopback) {
    return Warning("interfaces", absl::StrCat(seen, ", which no other machine reaches"),
                   "for jobs of several machines set NCCL_SOCKET_IFNAME to the interface between "
                   "them");
  }
  if (IsMachineInternal(first.name)) {
    return Warning("interfaces", absl::StrCat(seen, ": ranks meet on a bridge of this machine"),
                   "set NCCL_SOCKET_IFNAME to the interface between the machines");
  }
  if (first.is_link_local) {
    return Warning("interfaces", absl::StrCat(seen, ": an address that holds on one link only"),
                   "give the interface an address, or set NCCL_SOCKET_IFNAME to another one");
  }
  return Ok("interfaces", seen);
}

Finding CheckRdma(const HostReader& host) {
  const auto devices = host.ListFolder(kRdmaFolder);
  if (!devices.ok() || devices->empty()) {
    return Ok("rdma", "no devices: between machines NCCL goes over TCP sockets");
  }
  if (host.Environment("NCCL_IB_DISABLE") == "1") {
    return Ok("rdma", absl::StrCat(absl::StrJoin(*devices, ", "), ", not used: NCCL_IB_DISABLE=1"));
  }
  std::vector<std::string> active;
  for (const std::string& device : *devices) {
    std::string port = ActivePort(host, device);
    if (!port.empty()) active.push_back(std::move(port));
  }
  if (active.empty()) {
    return Warning("rdma",
                   absl::StrCat("no port of ", absl::StrJoin(*devices, ", "),
                                " is active: NCCL "
                                "goes over TCP sockets"),
                   "see ibstat: a cable, a subnet manager; or set NCCL_IB_DISABLE=1");
  }
  const auto verbs = host.ListFolder("/dev/infiniband");
  std::string usable;
  if (verbs.ok()) {
    for (const std::string& name : *verbs) {
      if (!absl::StartsWith(name, "uverbs")) continue;
      if (host.MayReadAndWrite(absl::StrCat("/dev/infiniband/", name)).ok()) usable = name;
    }
  }
  if (usable.empty()) {
    return Wrong("rdma",
                 absl::StrCat(absl::StrJoin(active, ", "),
                              ", but this process may open no /dev/infiniband/uverbs*"),
                 "give the container the devices (--device=/dev/infiniband, or the cluster's RDMA "
                 "plug-in), or set NCCL_IB_DISABLE=1");
  }
  const bool has_peermem = host.ListFolder("/sys/module/nvidia_peermem").ok();
  return Ok("rdma", absl::StrCat(absl::StrJoin(active, ", "),
                                 has_peermem ? ", nvidia_peermem is loaded" : ""));
}

std::vector<Finding> CheckNetwork(const HostReader& host) {
  return {CheckFamilies(host), CheckAddresses(host), CheckInterfaces(host), CheckRdma(host)};
}

}  // namespace ferry::doctor

// SPDX-License-Identifier: Apache-2.0
// Which network interfaces NCCL takes for its sockets, by its own rules.
#ifndef FERRY_DOCTOR_NCCL_INTERFACES_H_
#define FERRY_DOCTOR_NCCL_INTERFACES_H_

#include <string>
#include <vector>

#include "absl/types/span.h"

#include "doctor/host_reader.h"

namespace ferry::doctor {

// As NCCL reads them; empty where they are not set.
struct NcclInterfaceSettings {
  std::string socket_ifname;  // NCCL_SOCKET_IFNAME
  std::string socket_family;  // NCCL_SOCKET_FAMILY
};

// One address of each interface that NCCL takes, in its order: the first is where ranks meet, all
// carry data. Empty: NCCL's start fails.
//
// NCCL_SOCKET_IFNAME lists prefixes of names ("eth,ib"), exact names ("=eth0"), or what not to take
// ("^docker", "^=eth1"), each perhaps with ":port", which does not matter here. Without it: "ib"
// first; else everything but docker, lo and virbr; else docker; else lo; else virbr. Interfaces
// that are not running and ::1 are never taken.
// Source: NCCL's src/misc/socket.cc, 2.28. That NCCL_COMM_ID may name the subnet is left out: Ferry
// does not use it.
std::vector<InterfaceAddress> NcclInterfaces(absl::Span<const InterfaceAddress> all,
                                             const NcclInterfaceSettings& settings);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_NCCL_INTERFACES_H_

// SPDX-License-Identifier: Apache-2.0
// The network interfaces that NCCL selects for its sockets, by its own rules.
#ifndef FERRY_DOCTOR_NCCL_INTERFACES_H_
#define FERRY_DOCTOR_NCCL_INTERFACES_H_

#include <string>
#include <vector>

#include "absl/types/span.h"

#include "doctor/host_reader.h"

namespace ferry::doctor {

// The variables as NCCL reads them; empty if not set.
struct NcclInterfaceSettings {
  std::string socket_ifname;  // NCCL_SOCKET_IFNAME
  std::string socket_family;  // NCCL_SOCKET_FAMILY
};

// Returns one address of each interface that NCCL selects, in its order: the first is used for
// bootstrap, all for data. Empty: NCCL's initialization fails.
//
// NCCL_SOCKET_IFNAME lists prefixes of names ("eth,ib"), exact names ("=eth0"), or exclusions
// ("^docker", "^=eth1"), each optionally with ":port", which does not matter here. Without it: "ib"
// first; else everything but docker, lo and virbr; else docker; else lo; else virbr. Interfaces
// that are not running and ::1 are never selected.
// Source: NCCL's src/misc/socket.cc, 2.28. Omits that NCCL_COMM_ID may select the subnet, which
// Ferry does not use.
std::vector<InterfaceAddress> NcclInterfaces(absl::Span<const InterfaceAddress> all,
                                             const NcclInterfaceSettings& settings);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_NCCL_INTERFACES_H_

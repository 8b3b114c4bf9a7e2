// SPDX-License-Identifier: Apache-2.0
// Tests which internet address families the kernel supports.
#ifndef FERRY_BASE_ADDRESS_FAMILY_H_
#define FERRY_BASE_ADDRESS_FAMILY_H_

#include <string>

namespace ferry {

// Returns true if the kernel supports sockets of this family, AF_INET or AF_INET6. Not cached.
bool HasAddressFamily(int family);

// A hint to append to the error of listening on an IPv6 address where the kernel has no IPv6.
std::string NoIpv6Hint(int port);

// Explains EADDRNOTAVAIL of bind(): only addresses of this host are possible, and where they are
// listed.
std::string NotOfThisHostHint();

}  // namespace ferry

#endif  // FERRY_BASE_ADDRESS_FAMILY_H_

// SPDX-License-Identifier: Apache-2.0
// Probes a family by creating a socket of it.
#include "base/address_family.h"

#include <sys/socket.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

#include "base/unique_fd.h"

namespace ferry {

bool HasAddressFamily(int family) {
  const UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd.valid() || errno != EAFNOSUPPORT;
}

std::string NoIpv6Hint(int port) {
  return absl::StrCat("this kernel has no IPv6: listen on 0.0.0.0:", port, ", or on :", port,
                      ", which takes the families that there are");
}

std::string NotOfThisHostHint() {
  return "it is no address of this host (`ferry doctor` lists them)";
}

}  // namespace ferry

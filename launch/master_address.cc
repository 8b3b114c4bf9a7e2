// SPDX-License-Identifier: Apache-2.0
// The choice of MASTER_ADDR and MASTER_PORT, and the port probes it needs.
#include "launch/master_address.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

#include "base/file_limit.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "net/resolver.h"

namespace ferry {
namespace {

constexpr char kAddr[] = "MASTER_ADDR";
constexpr char kPort[] = "MASTER_PORT";

absl::string_view WithoutBrackets(absl::string_view host) {
  absl::string_view inside = host;
  const bool is_bracketed = absl::ConsumePrefix(&inside, "[") && absl::ConsumeSuffix(&inside, "]");
  return is_bracketed ? inside : host;
}

// Binds all addresses of a family; returns the port, or -1 with errno set.
int BindAll(int family, int port) {
  const UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return -1;
  const int yes = 1;
  const int no = 0;
  // Servers set it too, so that connections of the last run in TIME_WAIT do not block the port.
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_storage storage = {};
  socklen_t size = 0;
  if (family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
    auto& address = reinterpret_cast<sockaddr_in6&>(storage);
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(static_cast<uint16_t>(port));
    size = sizeof(address);
  } else {
    auto& address = reinterpret_cast<sockaddr_in&>(storage);
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    size = sizeof(address);
  }
  auto* const address = reinterpret_cast<sockaddr*>(&storage);
  // With SO_REUSEADDR, listen() rather than bind() fails if another socket listens there.
  if (bind(fd.get(), address, size) != 0 || listen(fd.get(), 1) != 0 ||
      getsockname(fd.get(), address, &size) != 0) {
    return -1;
  }
  return ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port
                                  : reinterpret_cast<sockaddr_in&>(storage).sin_port);
}

}  // namespace

absl::StatusOr<int> FreePort(int port) {
  // PyTorch's store listens on both families at once where possible.
  int found = BindAll(AF_INET6, port);
  if (found < 0 && errno != EADDRINUSE) found = BindAll(AF_INET, port);
  if (found >= 0) return found;
  return absl::InternalError(absl::StrCat("no free TCP port: ", ErrorWithFileLimit(errno)));
}

bool IsOwnAddress(const std::string& host) {
  const auto addresses = ResolveHost({host, 0});
  if (!addresses.ok()) return false;
  for (const SocketAddress& each : *addresses) {
    const UniqueFd fd(socket(each.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd.valid() && bind(fd.get(), each.get(), each.bytes) == 0) return true;
  }
  return false;
}

bool IsLoopbackHost(absl::string_view host) {
  host = WithoutBrackets(host);
  return host == "localhost" || host == "::1" || absl::StartsWith(host, "127.") ||
         absl::StartsWith(host, "::ffff:127.");
}

std::string HostOfPeer(absl::string_view peer) {
  const std::string decoded = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
  absl::string_view host = decoded;
  if (!absl::ConsumePrefix(&host, "ipv4:")) absl::ConsumePrefix(&host, "ipv6:");
  host = WithoutBrackets(host.substr(0, host.rfind(':')));
  // A dual-stack server sees IPv4 peers in this form.
  absl::ConsumePrefix(&host, "::ffff:");
  return std::string(host);
}

std::string JoinHostPort(absl::string_view host, int port) {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
}

MasterRequest ReadMasterWish(GetEnv get_env) {
  const auto read = [get_env](const char* name) { return get_env(name).value_or(""); };
  MasterRequest wish;
  if (IsRankOfFerryRun(get_env) || !read("TORCHELASTIC_RUN_ID").empty()) return wish;
  const std::string host(WithoutBrackets(read(kAddr)));
  if (host.find_first_of(" \t/[]") != std::string::npos) {
    wish.notes.push_back(absl::StrCat(kAddr, "=", Quoted(host), " is not a host name or address"));
  } else if (!host.empty()) {
    wish.host = host;
  }
  const std::string text = read(kPort);
  int port = 0;
  if (text.find_first_not_of("0123456789") == std::string::npos && absl::SimpleAtoi(text, &port) &&
      port >= 1 && port <= 65535) {
    wish.port = port;
  } else if (!text.empty()) {
    wish.notes.push_back(
        absl::StrCat(kPort, "=", Quoted(text), " is not a port number",
                     absl::StartsWith(text, "tcp://")
                         ? " (Kubernetes sets it so where a service is called \"master\")"
                         : ""));
  }
  return wish;
}

absl::StatusOr<MasterAddress> ChooseMaster(const MasterRequest& wish, const std::string& own_host,
                                           int machine_count, const PortProbe& probe) {
  MasterAddress master{.host = own_host, .port = 0, .notes = wish.notes};
  if (wish.host) {
    const std::string shown = absl::StrCat(kAddr, "=", *wish.host);
    if (machine_count > 1 && IsLoopbackHost(*wish.host) && !IsLoopbackHost(own_host)) {
      master.notes.push_back(
          absl::StrCat(shown, " is a different machine on each machine of the job"));
    } else if (machine_count == 1 && !probe.is_own(*wish.host)) {
      master.notes.push_back(
          absl::StrCat(shown, " is not an address of this machine, where all ranks run"));
    } else {
      // In a job of several machines the first may be behind a service or a router with that
      // address.
      master.host = *wish.host;
    }
  }
  if (wish.port) {
    const absl::StatusOr<int> wished = probe.free_port(*wish.port);
    if (wished.ok()) {
      master.port = *wished;
    } else {
      master.notes.push_back(absl::StrCat(
          kPort, "=", *wish.port, " cannot be listened on by rank 0: ", wished.status().message()));
    }
  }
  if (master.port == 0) {
    FERRY_ASSIGN_OR_RETURN(master.port, probe.free_port(0));
  }
  if (!master.notes.empty()) {
    master.notes.back() += absl::StrCat("; ranks get ", JoinHostPort(master.host, master.port));
  }
  return master;
}

}  // namespace ferry

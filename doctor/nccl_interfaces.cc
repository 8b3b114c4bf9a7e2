// SPDX-License-Identifier: Apache-2.0
// Prefix lists, and the order in which NCCL tries them.
#include "doctor/nccl_interfaces.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace ferry::doctor {
namespace {

// Source: NCCL's MAX_IFS.
constexpr size_t kMaxInterfaces = 16;

struct NameList {
  bool is_exclusion = false;
  bool is_exact = false;
  std::vector<std::string> names;

  bool Takes(absl::string_view interface) const {
    // NCCL treats an empty list as matching every name.
    const bool is_listed =
        names.empty() || std::any_of(names.begin(), names.end(), [&](const std::string& name) {
          return is_exact ? interface == name : absl::StartsWith(interface, name);
        });
    return is_listed != is_exclusion;
  }
};

NameList ParseNames(absl::string_view text) {
  NameList list;
  list.is_exclusion = absl::ConsumePrefix(&text, "^");
  list.is_exact = absl::ConsumePrefix(&text, "=");
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    const absl::string_view name = entry.substr(0, entry.find(':'));
    if (!name.empty()) list.names.emplace_back(name);
  }
  return list;
}

std::vector<InterfaceAddress> Matching(absl::Span<const InterfaceAddress> all,
                                       absl::string_view names, absl::string_view family) {
  const NameList list = ParseNames(names);
  std::vector<InterfaceAddress> taken;
  for (const InterfaceAddress& each : all) {
    if (taken.size() == kMaxInterfaces) break;
    if (!each.is_running || (each.is_ipv6 && each.is_loopback)) continue;
    if (family == "AF_INET" && each.is_ipv6) continue;
    if (family == "AF_INET6" && !each.is_ipv6) continue;
    if (!list.Takes(each.name)) continue;
    const bool is_there = std::any_of(taken.begin(), taken.end(),
                                      [&](const auto& other) { return other.name == each.name; });
    if (!is_there) taken.push_back(each);
  }
  return taken;
}

}  // namespace

std::vector<InterfaceAddress> NcclInterfaces(absl::Span<const InterfaceAddress> all,
                                             const NcclInterfaceSettings& settings) {
  // NCCL ignores a single character.
  if (settings.socket_ifname.size() > 1) {
    return Matching(all, settings.socket_ifname, settings.socket_family);
  }
  for (const char* names : {"ib", "^docker,lo,virbr", "docker", "lo", "virbr"}) {
    std::vector<InterfaceAddress> taken = Matching(all, names, settings.socket_family);
    if (!taken.empty()) return taken;
  }
  return {};
}

}  // namespace ferry::doctor

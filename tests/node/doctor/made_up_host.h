// SPDX-License-Identifier: Apache-2.0
// MadeUpHost: a machine whose files, limits and interfaces a test writes down.
#ifndef FERRY_TESTS_NODE_DOCTOR_MADE_UP_HOST_H_
#define FERRY_TESTS_NODE_DOCTOR_MADE_UP_HOST_H_

#include <sys/resource.h>
#include <sys/socket.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "doctor/host_reader.h"

namespace ferry::doctor {

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

// At first a sound machine without RDMA and GPUs.
struct MadeUpHost final : public HostReader {
  std::map<std::string, std::string> files = {
      {"/proc/meminfo", "MemTotal:       33554432 kB\nMemFree:               1 kB\n"},
      {"/proc/sys/kernel/osrelease", "6.1.0-13-amd64"},
      {"/proc/sys/kernel/random/boot_id", "0b1e"},
      {"/proc/self/status", "Name:\tferry\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n"},
      {"/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never"},
  };
  std::map<std::string, std::string> links = {{"/proc/self/ns/pid", "pid:[4026531836]"}};
  std::map<std::string, FileSystemSpace> spaces = {{"/dev/shm", {32 * kGiB, 30 * kGiB}}};
  std::map<int, ResourceLimit> limits = {{RLIMIT_MEMLOCK, {kUnlimited, kUnlimited}},
                                         {RLIMIT_NOFILE, {65536, 65536}}};
  std::vector<InterfaceAddress> interfaces = {At("lo", "127.0.0.1"), At("eth0", "10.0.0.7")};
  std::set<int> families = {AF_INET, AF_INET6};
  std::map<std::string, std::string> environment;
  std::map<std::string, absl::Status> access;
  absl::StatusOr<PageKind> shared_memory = PageKind::kTransparent;

  static InterfaceAddress At(std::string name, std::string address) {
    InterfaceAddress made = {std::move(name), std::move(address), /*is_running=*/true};
    made.is_ipv6 = absl::StrContains(made.address, ":");
    made.is_loopback = made.address == "127.0.0.1" || made.address == "::1";
    made.is_link_local = absl::StartsWith(made.address, "fe80:");
    return made;
  }

  static absl::Status Absent(const std::string& path) {
    return absl::NotFoundError(absl::StrCat(path, ": No such file or directory"));
  }

  absl::StatusOr<std::string> ReadFile(const std::string& path) const override {
    const auto found = files.find(path);
    if (found == files.end()) return Absent(path);
    return found->second;
  }
  // The content of each file, by path.
  absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path) const override {
    std::vector<std::string> names;
    const std::string prefix = absl::StrCat(path, "/");
    for (const auto& [file, text] : files) {
      if (!absl::StartsWith(file, prefix)) continue;
      const std::string rest = file.substr(prefix.size());
      const std::string name = rest.substr(0, rest.find('/'));
      if (names.empty() || names.back() != name) names.push_back(name);
    }
    if (names.empty()) return Absent(path);
    return names;
  }
  absl::StatusOr<std::string> ReadLink(const std::string& path) const override {
    const auto found = links.find(path);
    if (found == links.end()) return Absent(path);
    return found->second;
  }
  absl::Status MayReadAndWrite(const std::string& path) const override {
    const auto found = access.find(path);
    if (found != access.end()) return found->second;
    return files.count(path) > 0 ? absl::OkStatus() : Absent(path);
  }
  absl::StatusOr<FileSystemSpace> Space(const std::string& path) const override {
    const auto found = spaces.find(path);
    if (found == spaces.end()) return Absent(path);
    return found->second;
  }
  absl::StatusOr<ResourceLimit> Limit(int resource) const override {
    const auto found = limits.find(resource);
    if (found == limits.end()) return absl::UnavailableError("getrlimit: Invalid argument");
    return found->second;
  }
  absl::StatusOr<std::vector<InterfaceAddress>> Interfaces() const override { return interfaces; }
  bool HasFamily(int family) const override { return families.count(family) > 0; }
  std::optional<std::string> Environment(const std::string& name) const override {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  }
  absl::StatusOr<PageKind> SharedMemoryPages() const override { return shared_memory; }
};

}  // namespace ferry::doctor

#endif  // FERRY_TESTS_NODE_DOCTOR_MADE_UP_HOST_H_

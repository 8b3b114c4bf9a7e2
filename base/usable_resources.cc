// SPDX-License-Identifier: Apache-2.0
// Reads control groups of both versions, and the limits of the process.
#include "base/usable_resources.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace ferry {
namespace {

using Reader = absl::FunctionRef<std::string(const std::string& path)>;

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<int64_t> ReadNumber(Reader read, const std::string& path) {
  const std::string text = read(path);
  int64_t number = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &number)) return std::nullopt;
  return number;
}

// A mounted cgroup hierarchy.
struct Hierarchy {
  bool is_v2 = false;
  // Control groups version 1.
  std::vector<std::string> controllers;
  // The group visible at its mount point, and the mount point.
  std::string shown;
  std::string mount_point;
};

// Source: proc(5), /proc/[pid]/mountinfo; cgroups(7).
std::vector<Hierarchy> ReadHierarchies(Reader read) {
  std::vector<Hierarchy> found;
  const std::string text = read("/proc/self/mountinfo");
  // /proc is hidden: assume the mount point that all distributions use.
  if (text.empty()) return {{.is_v2 = true, .shown = "/", .mount_point = "/sys/fs/cgroup"}};
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() != 2) continue;
    const std::vector<absl::string_view> mount = absl::StrSplit(halves[0], ' ');
    const std::vector<absl::string_view> type = absl::StrSplit(halves[1], ' ');
    if (mount.size() < 5 || type.size() < 3) continue;
    if (type[0] != "cgroup" && type[0] != "cgroup2") continue;
    found.push_back({.is_v2 = type[0] == "cgroup2",
                     .controllers = absl::StrSplit(type[2], ','),
                     .shown = std::string(mount[3]),
                     .mount_point = std::string(mount[4])});
  }
  return found;
}

// The directories of the process's own group in the hierarchy of `controller` and of all its
// visible ancestors, innermost first.
std::vector<std::string> GroupsOf(Reader read, const Hierarchy& hierarchy,
                                  absl::string_view controller) {
  const std::string text = read("/proc/self/cgroup");
  std::string group;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    // "4:memory:/a/b", "0::/a/b"
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    const bool is_it = hierarchy.is_v2 ? parts[0] == "0" && parts[1].empty()
                                       : std::find(controllers.begin(), controllers.end(),
                                                   controller) != controllers.end();
    if (is_it) group = std::string(parts[2]);
  }
  // In a container the process's own group is at the mount point, while the path may be the
  // host's.
  absl::string_view below = group;
  if (hierarchy.shown != "/" && !absl::ConsumePrefix(&below, hierarchy.shown)) below = "";
  // Outside of what the cgroup namespace shows.
  if (absl::StrContains(below, "..")) below = "";
  std::vector<std::string> names = absl::StrSplit(below, '/', absl::SkipEmpty());
  std::vector<std::string> groups;
  for (size_t left = names.size() + 1; left-- > 0;) {
    std::string folder = hierarchy.mount_point;
    for (size_t i = 0; i < left; ++i) absl::StrAppend(&folder, "/", names[i]);
    groups.push_back(std::move(folder));
  }
  return groups;
}

bool Has(const Hierarchy& hierarchy, absl::string_view controller) {
  return hierarchy.is_v2 || std::find(hierarchy.controllers.begin(), hierarchy.controllers.end(),
                                      controller) != hierarchy.controllers.end();
}

// Calls `visit` with the directory of each group that may limit `controller`.
template <typename Visit>
void ForEachGroup(Reader read, const std::vector<Hierarchy>& hierarchies,
                  absl::string_view controller, Visit visit) {
  for (const Hierarchy& hierarchy : hierarchies) {
    if (!Has(hierarchy, controller)) continue;
    for (const std::string& group : GroupsOf(read, hierarchy, controller)) {
      visit(group, hierarchy.is_v2);
    }
  }
}

// Lowers the usable memory to `bytes`, if that is less.
//   limit: what sets it.
void LimitMemoryTo(uint64_t bytes, const std::string& limit, UsableResources& usable) {
  if (usable.memory_bytes != 0 && bytes >= usable.memory_bytes) return;
  // More than any machine has: no limit.
  if (usable.memory_bytes == 0 && bytes > uint64_t{1} << 60) return;
  usable.memory_bytes = bytes;
  usable.memory_limit = limit;
}

// Both limits count mapped memory, not used memory; usage can never exceed them.
struct OwnLimit {
  int resource;
  // The name in /proc/self/limits.
  const char* name;
  const char* command;
};
constexpr OwnLimit kOwnLimits[] = {{RLIMIT_AS, "Max address space", "ulimit -v"},
                                   {RLIMIT_DATA, "Max data size", "ulimit -d"}};

// Source: proc(5), /proc/[pid]/limits: name, soft limit, hard limit, unit.
void LimitMemoryToOwn(Reader read, UsableResources& usable) {
  const std::string text = read("/proc/self/limits");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    for (const OwnLimit& own : kOwnLimits) {
      absl::string_view values = line;
      if (!absl::ConsumePrefix(&values, own.name)) continue;
      const std::vector<absl::string_view> words = absl::StrSplit(values, ' ', absl::SkipEmpty());
      uint64_t bytes = 0;
      // "unlimited" is not a number.
      if (words.empty() || !absl::SimpleAtoi(words[0], &bytes) || bytes == 0) continue;
      LimitMemoryTo(bytes, own.command, usable);
    }
  }
}

void LimitMemory(Reader read, const std::vector<Hierarchy>& hierarchies, UsableResources& usable) {
  ForEachGroup(read, hierarchies, "memory", [&](const std::string& group, bool is_v2) {
    const std::vector<const char*> names =
        is_v2 ? std::vector<const char*>{"memory.max", "memory.high"}
              : std::vector<const char*>{"memory.limit_in_bytes"};
    for (const char* const name : names) {
      const std::string path = absl::StrCat(group, "/", name);
      // "max" is not a number; version 1 reports nearly 2^63 for no limit.
      const std::optional<int64_t> limit = ReadNumber(read, path);
      if (!limit || *limit <= 0) continue;
      LimitMemoryTo(static_cast<uint64_t>(*limit), path, usable);
    }
  });
}

void LimitProcessors(Reader read, const std::vector<Hierarchy>& hierarchies,
                     UsableResources& usable) {
  ForEachGroup(read, hierarchies, "cpu", [&](const std::string& group, bool is_v2) {
    const std::string path = absl::StrCat(group, is_v2 ? "/cpu.max" : "/cpu.cfs_quota_us");
    double quota = 0;
    double period = 0;
    if (is_v2) {
      const std::string text = read(path);
      const std::vector<absl::string_view> words =
          absl::StrSplit(absl::StripAsciiWhitespace(text), ' ');
      if (words.size() != 2 || !absl::SimpleAtod(words[0], &quota) ||
          !absl::SimpleAtod(words[1], &period)) {
        return;
      }
    } else {
      quota = static_cast<double>(ReadNumber(read, path).value_or(-1));
      period = static_cast<double>(
          ReadNumber(read, absl::StrCat(group, "/cpu.cfs_period_us")).value_or(0));
    }
    if (!(quota > 0) || !(period > 0)) return;
    if (usable.processor_quota > 0 && quota / period >= usable.processor_quota) return;
    usable.processor_quota = quota / period;
    usable.processor_limit = path;
  });
}

void LimitThreads(Reader read, const std::vector<Hierarchy>& hierarchies, UsableResources& usable) {
  ForEachGroup(read, hierarchies, "pids", [&](const std::string& group, bool) {
    const std::string path = absl::StrCat(group, "/pids.max");
    const std::optional<int64_t> limit = ReadNumber(read, path);
    if (!limit || *limit <= 0 || (usable.threads > 0 && *limit >= usable.threads)) return;
    usable.threads = *limit;
    usable.thread_limit = path;
  });
}

// The count of numbers in a list such as "0-3,8"; 0 if it is malformed.
int CountList(absl::string_view list) {
  int count = 0;
  for (const absl::string_view range : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(range, absl::MaxSplits('-', 1));
    int first = 0;
    int last = 0;
    if (!absl::SimpleAtoi(ends.first, &first)) return 0;
    if (!absl::SimpleAtoi(ends.second.empty() ? ends.first : ends.second, &last)) return 0;
    if (first < 0 || last < first || last > 1 << 20) return 0;
    count += last - first + 1;
  }
  return count;
}

// Returns the value of a line "Name:  value", or "" if there is none.
std::string FieldOf(const std::string& text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, name) || !absl::ConsumePrefix(&line, ":")) continue;
    return std::string(absl::StripAsciiWhitespace(line));
  }
  return "";
}

}  // namespace

int UsableResources::WithinQuota(int allowed) const {
  if (processor_quota <= 0 || processor_quota >= allowed) return allowed;
  return std::max(1, static_cast<int>(std::ceil(processor_quota)));
}

UsableResources ReadUsableResources(Reader read) {
  UsableResources usable;
  const std::string memory = FieldOf(read("/proc/meminfo"), "MemTotal");
  uint64_t kib = 0;
  if (absl::SimpleAtoi(absl::StripSuffix(memory, " kB"), &kib)) usable.memory_bytes = kib << 10;
  usable.machine_memory_bytes = usable.memory_bytes;
  const std::string status = read("/proc/self/status");
  usable.allowed_processors = CountList(FieldOf(status, "Cpus_allowed_list"));
  const std::vector<Hierarchy> hierarchies = ReadHierarchies(read);
  LimitMemory(read, hierarchies, usable);
  LimitMemoryToOwn(read, usable);
  LimitProcessors(read, hierarchies, usable);
  LimitThreads(read, hierarchies, usable);
  usable.processors = usable.WithinQuota(std::max(1, usable.allowed_processors));
  return usable;
}

const UsableResources& Usable() {
  static const UsableResources* const usable = [] {
    auto* read = new UsableResources(ReadUsableResources(ReadWhole));
    // Where /proc is hidden, system calls still report the machine's resources.
    if (read->memory_bytes == 0) {
      const int64_t pages = sysconf(_SC_PHYS_PAGES);
      const int64_t page_bytes = sysconf(_SC_PAGESIZE);
      if (pages > 0 && page_bytes > 0) {
        read->memory_bytes = static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes);
        read->machine_memory_bytes = read->memory_bytes;
      }
      for (const OwnLimit& own : kOwnLimits) {
        rlimit limit = {};
        if (getrlimit(static_cast<__rlimit_resource>(own.resource), &limit) != 0) continue;
        if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur > 0) {
          LimitMemoryTo(limit.rlim_cur, own.command, *read);
        }
      }
    }
    if (read->allowed_processors == 0) {
      cpu_set_t cores;
      const bool is_known = sched_getaffinity(0, sizeof(cores), &cores) == 0;
      read->allowed_processors = std::max(
          1, is_known ? CPU_COUNT(&cores) : static_cast<int>(std::thread::hardware_concurrency()));
      read->processors = read->WithinQuota(read->allowed_processors);
    }
    return read;
  }();
  return *usable;
}

size_t ShareOfMemory(size_t most, int parts) {
  const uint64_t memory = Usable().memory_bytes;
  if (memory == 0) return most;
  return static_cast<size_t>(std::min<uint64_t>(most, memory / static_cast<uint64_t>(parts)));
}

}  // namespace ferry

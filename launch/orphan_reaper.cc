// SPDX-License-Identifier: Apache-2.0
// OrphanReaper: one pass over /proc, then a traversal down from our children.
#include "launch/orphan_reaper.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/ranges.h"

namespace ferry {
namespace {

// Running processes by parent.
using Children = std::map<pid_t, std::vector<pid_t>>;

Children ReadChildren() {
  Children children;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc"), closedir);
  if (folder == nullptr) return children;
  while (const dirent* entry = readdir(folder.get())) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid)) continue;
    const std::string path = absl::StrCat("/proc/", pid, "/stat");
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"),
                                                               std::fclose);
    char text[512] = {};
    if (file == nullptr || std::fread(text, 1, sizeof(text) - 1, file.get()) == 0) continue;
    // "17 (name) S 1 ...": the name may contain any character, including parentheses.
    const absl::string_view line = text;
    const size_t name_end = line.rfind(") ");
    char state = 0;
    int parent = 0;
    if (name_end == absl::string_view::npos) continue;
    if (std::sscanf(text + name_end, ") %c %d", &state, &parent) != 2) continue;
    if (state != 'Z' && state != 'X') children[parent].push_back(pid);
  }
  return children;
}

}  // namespace

OrphanReaper::OrphanReaper() {
  const Children children = ReadChildren();
  const auto ours = children.find(getpid());
  if (ours != children.end()) children_before_ = {ours->second.begin(), ours->second.end()};
  prctl(PR_GET_CHILD_SUBREAPER, &subreaper_before_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

OrphanReaper::~OrphanReaper() { prctl(PR_SET_CHILD_SUBREAPER, subreaper_before_); }

void OrphanReaper::Reap(absl::FunctionRef<bool(pid_t)> is_ours) const {
  while (true) {
    siginfo_t info = {};
    // WNOWAIT: the next exited child may be one that others wait for; SIGCHLD or the end of the job
    // then leads here again.
    const bool has_ended =
        waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
    if (!has_ended || is_ours(info.si_pid) || children_before_.count(info.si_pid) > 0) return;
    waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

std::vector<pid_t> OrphanReaper::FindOnce() const {
  const Children children = ReadChildren();
  std::vector<pid_t> found;
  std::vector<pid_t> parents = {getpid()};
  while (!parents.empty()) {
    const auto next = children.find(parents.back());
    parents.pop_back();
    if (next == children.end()) continue;
    for (const pid_t pid : next->second) {
      if (children_before_.count(pid) > 0) continue;
      found.push_back(pid);
      parents.push_back(pid);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<pid_t> OrphanReaper::Find() const {
  while (true) {
    Reap([](pid_t) { return false; });
    siginfo_t info = {};
    // Every job gets here, most of them without children.
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD) return {};
    std::vector<pid_t> found = FindOnce();
    if (!found.empty()) return found;
    // A process that exited meanwhile must be reaped, and may have left children that were seen as
    // its descendants and not as ours.
    info = {};
    const bool has_ended =
        waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
    if (!has_ended || children_before_.count(info.si_pid) > 0) return {};
  }
}

std::string ProgramOf(pid_t pid) {
  // Source: getauxval(3): AT_RANDOM, AT_EXECFN and others are addresses, new with each execve.
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(absl::StrCat("/proc/", pid, "/auxv").c_str(), "re"), std::fclose);
  char bytes[1024];
  if (file == nullptr) return "";
  return std::string(bytes, std::fread(bytes, 1, sizeof(bytes), file.get()));
}

std::string FormatPids(const std::vector<pid_t>& pids) {
  constexpr size_t kMaxBytes = 120;
  return absl::StrCat(pids.size() == 1 ? "pid " : "pids ", FormatRanges(pids, kMaxBytes));
}

}  // namespace ferry

// SPDX-License-Identifier: Apache-2.0
// Checks the watched processes whenever the text is requested.
#include "bench/stage.h"

#include <cstdio>

#include "absl/strings/str_cat.h"

namespace ferry::cli {

bool IsStoppedStat(absl::string_view stat) {
  // "17 (name) S 1 ...": the name may contain anything, including parentheses.
  const size_t name_end = stat.rfind(") ");
  if (name_end == absl::string_view::npos || name_end + 2 >= stat.size()) return false;
  const char state = stat[name_end + 2];
  return state == 'T' || state == 't';
}

bool IsStopped(pid_t pid) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(absl::StrCat("/proc/", pid, "/stat").c_str(), "re"), std::fclose);
  char text[512];
  if (file == nullptr) return false;
  return IsStoppedStat(absl::string_view(text, std::fread(text, 1, sizeof(text), file.get())));
}

std::string BenchStage::Get() const {
  std::string text;
  std::vector<std::shared_ptr<const BenchWatched>> all;
  {
    absl::MutexLock lock(&mu_);
    text = text_;
    for (const auto& each : watched_) {
      if (auto watched = each.lock()) all.push_back(std::move(watched));
    }
  }
  for (const auto& each : all) {
    if (!is_stopped_(each->pid)) continue;
    absl::StrAppend(&text, "; ", each->name, " (pid ", each->pid, ") is stopped: kill -CONT ",
                    each->pid, " lets it go on");
  }
  return text;
}

std::shared_ptr<const BenchWatched> BenchStage::Watch(std::string name, pid_t pid) {
  auto watched = std::make_shared<const BenchWatched>(BenchWatched{std::move(name), pid});
  absl::MutexLock lock(&mu_);
  std::erase_if(watched_, [](const auto& each) { return each.expired(); });
  watched_.push_back(watched);
  return watched;
}

}  // namespace ferry::cli

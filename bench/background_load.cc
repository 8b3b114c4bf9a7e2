// SPDX-License-Identifier: Apache-2.0
// Differences of the kernel's CPU time counters.
#include "bench/background_load.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "base/clock.h"

namespace ferry::cli {
namespace {

// Index in the first line, "cpu", in ticks. Source: proc(5).
constexpr size_t kUser = 1;
constexpr size_t kNice = 2;
constexpr size_t kSystem = 3;
constexpr size_t kSteal = 8;

std::optional<double> WorkedSoFar() {
  std::ifstream file("/proc/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return WorkedSeconds(text, static_cast<double>(sysconf(_SC_CLK_TCK)));
}

double OwnSoFar() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage = {};
    getrusage(who, &usage);
    seconds += absl::ToDoubleSeconds(absl::DurationFromTimeval(usage.ru_utime) +
                                     absl::DurationFromTimeval(usage.ru_stime));
  }
  return seconds;
}

}  // namespace

std::optional<double> WorkedSeconds(absl::string_view proc_stat, double ticks_per_s) {
  const std::vector<absl::string_view> lines = absl::StrSplit(proc_stat, '\n');
  const std::vector<absl::string_view> words =
      absl::StrSplit(lines[0], ' ', absl::SkipWhitespace());
  if (words.size() <= kSteal || words[0] != "cpu" || !(ticks_per_s > 0)) return std::nullopt;
  double ticks = 0;
  for (const size_t index : {kUser, kNice, kSystem, kSteal}) {
    uint64_t each = 0;
    if (!absl::SimpleAtoi(words[index], &each)) return std::nullopt;
    ticks += static_cast<double>(each);
  }
  return ticks / ticks_per_s;
}

double OthersCores(double worked_s, double own_s, double elapsed_s) {
  return std::max(0.0, worked_s - own_s) / elapsed_s;
}

BackgroundLoad::BackgroundLoad()
    : start_(SteadyClock().Now()), worked_s_(WorkedSoFar()), own_s_(OwnSoFar()) {}

std::optional<double> BackgroundLoad::Cores() const {
  const std::optional<double> worked_s = WorkedSoFar();
  const double elapsed_s = absl::ToDoubleSeconds(SteadyClock().Now() - start_);
  if (!worked_s || !worked_s_ || !(elapsed_s > 0)) return std::nullopt;
  return OthersCores(*worked_s - *worked_s_, OwnSoFar() - own_s_, elapsed_s);
}

}  // namespace ferry::cli

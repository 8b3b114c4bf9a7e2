// SPDX-License-Identifier: Apache-2.0
// BackgroundLoad: the CPU use of other processes on this machine during a bench.
#ifndef FERRY_BENCH_BACKGROUND_LOAD_H_
#define FERRY_BENCH_BACKGROUND_LOAD_H_

#include <optional>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ferry::cli {

// Returns the seconds for which processors were busy, or stolen by the hypervisor, from the content
// of /proc/stat; nullopt if it cannot be parsed.
std::optional<double> WorkedSeconds(absl::string_view proc_stat, double ticks_per_s);

// Returns the average number of processors that other processes used during `elapsed_s`, in which
// the machine's processors were busy for `worked_s` and this process and its children for `own_s`.
// The kernel counts in ticks, so the own share may come out larger: then 0.
double OthersCores(double worked_s, double own_s, double elapsed_s);

// Measures from its construction on. Not thread-safe.
class BackgroundLoad final {
 public:
  BackgroundLoad();

  // Returns the average number of processors used by processes other than this one and its finished
  // children; nullopt if the kernel does not report it.
  std::optional<double> Cores() const;

 private:
  const absl::Time start_;
  const std::optional<double> worked_s_;
  const double own_s_;
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_BACKGROUND_LOAD_H_

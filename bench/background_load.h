// SPDX-License-Identifier: Apache-2.0
// How much of this machine's processors others have taken while a bench was measuring.
#ifndef FERRY_BENCH_BACKGROUND_LOAD_H_
#define FERRY_BENCH_BACKGROUND_LOAD_H_

#include <optional>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ferry::cli {

// Seconds for which processors have worked, or another machine has had them, by the kernel's
// /proc/stat; nothing if it says something else.
std::optional<double> WorkedSeconds(absl::string_view proc_stat, double ticks_per_s);

// Processors that others took, on an average, of `elapsed_s` in which all of the machine's have
// worked for `worked_s` and this process and its children for `own_s`. The kernel counts in ticks,
// so that the own share may come out as the larger one: none, then.
double OthersCores(double worked_s, double own_s, double elapsed_s);

// From when it is made on. Not thread-safe.
class BackgroundLoad final {
 public:
  BackgroundLoad();

  // Processors that neither this process nor those of its children that have ended took, on an
  // average; nothing where the kernel does not say.
  std::optional<double> Cores() const;

 private:
  const absl::Time start_;
  const std::optional<double> worked_s_;
  const double own_s_;
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_BACKGROUND_LOAD_H_

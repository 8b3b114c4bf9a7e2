// SPDX-License-Identifier: Apache-2.0
// RunSequence: runs parts one after the other within one time limit, and assembles the result.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_SEQUENCE_H_
#define FERRY_BENCHMARKS_GPU_CHECK_SEQUENCE_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "benchmarks/gpu/check_part.h"
#include "benchmarks/gpu/check_run.h"

namespace ferry::check {

// By default no part runs later than this after the start. With what may follow, the end of
// RunSequence is at most kMostAfterLimit later: eight minutes hold all of it.
inline constexpr absl::Duration kDefaultLimit = absl::Seconds(460);
inline constexpr absl::Duration kMostAfterLimit = absl::Seconds(14);

// The actions of a sequence outside its own process; the tests replace them.
struct SequenceActions {
  // Holds the driver's device files open from now on, and returns which, or why none.
  std::function<std::string(absl::Duration timeout)> open_driver;
  // Returns the part's report (part_report.h). May return kKillTimeout after `deadline`.
  std::function<Json(const Part& part, const Machine& machine, absl::Time deadline)> run_part;
  // Returns the free bytes of each GPU that parts use; empty: unknown. May return kKillTimeout
  // after `deadline`.
  std::function<std::vector<size_t>(absl::Time deadline)> free_bytes;
  // Hides all GPUs but the first `count` from later parts; returns their names.
  std::function<std::string(int count)> show_gpus;
  // Stores the result so far, in case that the next step does not end; false: it cannot.
  std::function<bool(const Json& result)> store;
  // Tells the user of a part that has ended.
  std::function<void(const Json& part)> print;
};

// Runs `parts` in order and fills `result`:
//
//   {..., "gpu_count", "no_gpu_reason", "device", "mps", "gpu_sharing", "is_double",
//    "double_library", "versions", "driver_kept_open", "gpus_of_parts", "parts", "checks",
//    "goals", "verdict", "seconds"}
//
// A part that the limit leaves no time for is skipped, and so is one that needs a GPU where there
// is none. The part "machine" always runs: its report tells whether there is a GPU.
//   result: "mode" is there: "quick" figures are not compared with goals.
// Returns false if the result cannot be stored.
bool RunSequence(const std::vector<Part>& parts, const Clock& clock, absl::Duration limit,
                 const SequenceActions& actions, Json& result);

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_SEQUENCE_H_

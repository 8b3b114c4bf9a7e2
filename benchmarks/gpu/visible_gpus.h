// SPDX-License-Identifier: Apache-2.0
// The value of CUDA_VISIBLE_DEVICES that shows fewer GPUs.
#ifndef FERRY_BENCHMARKS_GPU_VISIBLE_GPUS_H_
#define FERRY_BENCHMARKS_GPU_VISIBLE_GPUS_H_

#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace ferry::check {

// Returns the value that shows the first `count` of the GPUs that a process sees which has
// `current`, of which there are more; null: it is not set. Names (UUIDs, MIG instances) stay as
// they are.
inline std::string FirstVisibleGpus(const char* current, int count) {
  std::vector<std::string> names;
  if (current == nullptr) {
    for (int ordinal = 0; ordinal < count; ++ordinal) names.push_back(std::to_string(ordinal));
  } else {
    names = absl::StrSplit(current, absl::MaxSplits(',', count));
    if (names.size() > static_cast<size_t>(count)) names.resize(static_cast<size_t>(count));
  }
  return absl::StrJoin(names, ",");
}

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_VISIBLE_GPUS_H_

// SPDX-License-Identifier: Apache-2.0
// The report that people read, from the JSON that programs do.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_MARKDOWN_H_
#define FERRY_BENCHMARKS_GPU_CHECK_MARKDOWN_H_

#include <string>

#include "benchmarks/gpu/check_part.h"

namespace ferry::check {

//   result: as gpu_check writes it.
std::string Markdown(const Json& result);

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_MARKDOWN_H_

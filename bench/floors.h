// SPDX-License-Identifier: Apache-2.0
// What the machine gives to two processes that ask for nothing else: what a bench's rows are
// compared to. All times are one way.
#ifndef FERRY_BENCH_FLOORS_H_
#define FERRY_BENCH_FLOORS_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ferry::cli {

// A copy by one thread with memcpy; both are at least `bytes` long and have been touched.
absl::Duration MeasureMemcpy(void* to, const void* from, size_t bytes, int rounds);

// A look at every byte by one thread; it has been touched.
absl::Duration MeasureRead(const void* from, size_t bytes, int rounds);

// A word that one process writes and the other waits for, spinning, in turns.
//   file: both map its first page, which is zero at first, once for each floor. is_first: who
//   begins.
//   Errors: UNAVAILABLE with the kernel's reason; DEADLINE_EXCEEDED the other does not answer.
absl::StatusOr<absl::Duration> MeasureSpin(const std::string& file, bool is_first);

// The same with futexes: each sleeps until the other wakes it.
absl::StatusOr<absl::Duration> MeasureFutex(const std::string& file, bool is_first);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_FLOORS_H_

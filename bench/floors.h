// SPDX-License-Identifier: Apache-2.0
// Baselines: raw performance of the machine for two processes, to which a bench's rows are
// compared. All times are one way.
#ifndef FERRY_BENCH_FLOORS_H_
#define FERRY_BENCH_FLOORS_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ferry::cli {

// Single-threaded memcpy; both buffers have at least `bytes` and have been touched.
absl::Duration MeasureMemcpy(void* to, const void* from, size_t bytes, int rounds);

// Single-threaded read of every byte; the memory has been touched.
absl::Duration MeasureRead(const void* from, size_t bytes, int rounds);

// Ping-pong over a word in shared memory, spinning.
//   file: both map its first page, which is initially zero; usable once per baseline. is_first:
//   this process begins.
//   Errors: UNAVAILABLE with the kernel's reason; DEADLINE_EXCEEDED if the other process does not
//   respond.
absl::StatusOr<absl::Duration> MeasureSpin(const std::string& file, bool is_first);

// The same with futexes: each process sleeps until the other wakes it.
absl::StatusOr<absl::Duration> MeasureFutex(const std::string& file, bool is_first);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_FLOORS_H_

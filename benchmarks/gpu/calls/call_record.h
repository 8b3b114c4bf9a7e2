// SPDX-License-Identifier: Apache-2.0
// CallRecord: the calls of one process, read from the record that libferry_cuda_recorder.so wrote.
#ifndef FERRY_BENCHMARKS_GPU_CALLS_CALL_RECORD_H_
#define FERRY_BENCHMARKS_GPU_CALLS_CALL_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "benchmarks/gpu/calls/driver_calls.h"

namespace ferry::calls {

struct Value {
  std::string text;  // as written
  bool is_absent = false;
  int64_t number = 0;        // of a number, handle, address or descriptor
  std::string bytes;         // of a text, or bytes
  std::string file;          // of a descriptor: the identity of what it refers to
  std::vector<Value> items;  // of a list; the fields of a struct in their order
};

struct RecordedCall {
  int line = 0;
  int64_t began_ns = 0;
  int64_t ended_ns = 0;
  int64_t thread = 0;
  const DriverCall* description = nullptr;
  cuda::Result result = 0;
  std::vector<Value> values;  // as description->arguments; outputs are absent after a failure

  // Returns null if the function has no such argument.
  const Value* Find(absl::string_view name) const;
};

struct CallRecord {
  std::string name;  // for messages
  int64_t pid = 0;
  std::string program;
  std::vector<RecordedCall> calls;  // in the order in which they began
  std::optional<int64_t> ended_ns;  // empty if the process did not say
  // When records (their names) were seen to be of processes that had ended.
  std::vector<std::pair<int64_t, std::string>> gone;
  bool is_limited = false;  // the recorder stopped before the process did

  // Errors: INVALID_ARGUMENT, with the name of the record and the number of the line.
  static absl::StatusOr<CallRecord> Parse(absl::string_view name, absl::string_view text);
};

// Reads a line of a call.
absl::StatusOr<RecordedCall> ParseCall(absl::string_view line);

}  // namespace ferry::calls

#endif  // FERRY_BENCHMARKS_GPU_CALLS_CALL_RECORD_H_

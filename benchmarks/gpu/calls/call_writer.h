// SPDX-License-Identifier: Apache-2.0
// CallWriter: calls of the driver as lines of a record. Used inside the recorder, so that it needs
// nothing but the standard library.
#ifndef FERRY_BENCHMARKS_GPU_CALLS_CALL_WRITER_H_
#define FERRY_BENCHMARKS_GPU_CALLS_CALL_WRITER_H_

#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "benchmarks/gpu/calls/driver_calls.h"
#include "benchmarks/gpu/calls/kernel_shapes.h"

namespace ferry::calls {

inline constexpr int kRecordVersion = 1;
// The first line of a record, before its version.
inline constexpr char kRecordMagic[] = "ferry-cuda-calls ";

// An argument as one word: its value, or the address of a struct that is passed by value.
template <typename T>
uint64_t WordOf(const T& argument) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<uint64_t>(argument);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    return static_cast<uint64_t>(static_cast<int64_t>(argument));
  } else {
    static_assert(sizeof(T) == cuda::kIpcHandleBytes);
    return reinterpret_cast<uint64_t>(&argument);
  }
}

struct DoneCall {
  const DriverCall* description;
  const uint64_t* words;  // one for each argument
  cuda::Result result;
  int64_t began_ns;
  int64_t duration_ns;
  int64_t thread;
};

// Thread-safe.
class CallWriter final {
 public:
  // The first two lines.
  static void AppendHeader(std::string& text, int64_t pid, int64_t parent,
                           std::string_view program);
  static void AppendQuoted(std::string& text, std::string_view value);

  // Appends "TIME THREAD SYMBOL INPUT... = RESULT DURATION OUTPUT..." and a line feed.
  void Append(std::string& text, const DoneCall& call);

 private:
  void AppendArgument(std::string& text, const DoneCall& call, size_t i);
  void AppendKernelParameters(std::string& text, const DoneCall& call, size_t i);
  // Remembers the name of a new function.
  void Note(const DoneCall& call);

  std::mutex mutex_;
  std::unordered_map<uint64_t, const KernelShape*> functions_;
};

}  // namespace ferry::calls

#endif  // FERRY_BENCHMARKS_GPU_CALLS_CALL_WRITER_H_

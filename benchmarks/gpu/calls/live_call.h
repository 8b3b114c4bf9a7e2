// SPDX-License-Identifier: Apache-2.0
// LiveCall: the arguments of a recorded call as the replay passes them.
#ifndef FERRY_BENCHMARKS_GPU_CALLS_LIVE_CALL_H_
#define FERRY_BENCHMARKS_GPU_CALLS_LIVE_CALL_H_

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "benchmarks/gpu/calls/call_record.h"
#include "benchmarks/gpu/calls/handle_table.h"
#include "benchmarks/gpu/calls/host_memory.h"

namespace ferry::calls {

// A handle or a descriptor that a process of the replay has exported.
struct Foreign {
  std::string bytes;  // of a handle
  int descriptor = -1;
};

class LiveCall final {
 public:
  // Empty `foreign`: no process of the replay has exported what the call opens.
  // Errors: NOT_FOUND and FAILED_PRECONDITION if a handle has no meaning in the replay
  // (HandleTable), RESOURCE_EXHAUSTED for too much host memory.
  static absl::StatusOr<LiveCall> Build(const RecordedCall& call, const HandleTable& handles,
                                        HostMemory& host, const std::optional<Foreign>& foreign);

  // Valid as long as this object is. Copies share the memory behind outputs: there are none.
  LiveCall(LiveCall&&) = default;
  LiveCall& operator=(LiveCall&&) = default;

  const uint64_t* words() const { return words_.data(); }

 private:
  LiveCall() = default;

  absl::StatusOr<uint64_t> Word(const RecordedCall& call, size_t i, const HandleTable& handles,
                                HostMemory& host, const std::optional<Foreign>& foreign);
  absl::StatusOr<uint64_t> Address(const RecordedCall& call, size_t i, const HandleTable& handles,
                                   HostMemory& host);
  absl::StatusOr<uint64_t> KernelParameters(const Value& value, const HandleTable& handles);
  uint64_t Output(const RecordedCall& call, size_t i);
  // Returns the address of zeros.
  uint64_t Keep(size_t bytes);

  std::array<uint64_t, kMaxArguments> words_{};
  std::deque<std::vector<uint64_t>> kept_;
};

// Performs function `call`, which has the address `function`.
cuda::Result Invoke(const DriverCall& call, void* function, const uint64_t* words);

}  // namespace ferry::calls

#endif  // FERRY_BENCHMARKS_GPU_CALLS_LIVE_CALL_H_

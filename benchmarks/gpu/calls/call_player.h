// SPDX-License-Identifier: Apache-2.0
// CallPlayer: performs the calls of one record with a driver.
#ifndef FERRY_BENCHMARKS_GPU_CALLS_CALL_PLAYER_H_
#define FERRY_BENCHMARKS_GPU_CALLS_CALL_PLAYER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "benchmarks/gpu/calls/call_record.h"
#include "benchmarks/gpu/calls/call_writer.h"
#include "benchmarks/gpu/calls/handle_table.h"
#include "benchmarks/gpu/calls/host_memory.h"
#include "benchmarks/gpu/calls/live_call.h"

namespace ferry::calls {

struct PlayedCall {
  std::vector<std::string> differences;
  // Not empty: the call was not performed, and why. It is an error of the record, unless a call
  // that it depends on was different.
  std::string skipped;
  bool is_error = false;
  std::optional<Foreign> exported;
};

// Thread-safe. The caller decides on the order of calls and on their threads.
class CallPlayer final {
 public:
  // `library`: what dlopen returned for the driver; not closed. Both outlive the player.
  CallPlayer(const CallRecord& record, void* library, absl::Duration patience)
      : record_(record), library_(library), patience_(patience) {}

  // Performs record.calls[index] on this thread. A poll that succeeded in the record is repeated
  // until it succeeds, for at most `patience`.
  PlayedCall Play(size_t index, const std::optional<Foreign>& foreign);

 private:
  const CallRecord& record_;
  void* const library_;
  const absl::Duration patience_;
  CallWriter writer_;
  absl::Mutex mutex_;
  HandleTable handles_ ABSL_GUARDED_BY(mutex_);
  HostMemory host_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ferry::calls

#endif  // FERRY_BENCHMARKS_GPU_CALLS_CALL_PLAYER_H_

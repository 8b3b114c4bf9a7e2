// SPDX-License-Identifier: Apache-2.0
// DeviceExecutor: the thread that drives a device.
#ifndef FERRY_GPU_CUDA_DEVICE_EXECUTOR_H_
#define FERRY_GPU_CUDA_DEVICE_EXECUTOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/thread.h"
#include "gpu/cuda/cuda_event.h"

namespace ferry::cuda {

struct DeviceExecutorOptions {
  // At most 15 characters; empty: "ferry-dev0".
  std::string thread_name;
  // Busy-polling time after an event, before the thread sleeps between two polls.
  absl::Duration spin = absl::Microseconds(50);
  // The interval between unsuccessful polls grows up to this.
  absl::Duration longest_sleep = absl::Milliseconds(1);
  // Limit on pending functions and events; above it requests are rejected.
  size_t max_waiting = 100'000;
  // Maximum time for which the destructor waits for outstanding events.
  absl::Duration drain = absl::Seconds(10);
};

// Runs functions in the order in which they were posted, and calls back when events complete. The
// device's context is current on its thread. Functions may block, but on this device only;
// meanwhile events are not polled. Thread-safe.
class DeviceExecutor final {
 public:
  using Work = absl::AnyInvocable<void() &&>;
  using DoneCallback = absl::AnyInvocable<void(absl::Status) &&>;

  // An event, and the memory that must not be touched before it completes.
  struct Watched {
    std::shared_ptr<const ReadyEvent> event;
    // In place of an event: returns whether what is waited for has completed. Called on the thread,
    // with the device current; does not block.
    std::function<absl::StatusOr<bool>()> is_done;
    // With is_done: where the work is. Of an event: its own.
    StreamPosition position;
    // Optional: an error ends the wait with it, and releases `keep`. Called on the thread; does not
    // block.
    std::function<absl::Status()> check_wanted;
    absl::Time deadline = absl::InfiniteFuture();  // by the executor's clock
    std::string what;                              // for the message: "the copy of step 3 key x"
    // Released when the event has completed, not before, also if `done` was called with
    // DEADLINE_EXCEEDED, and if Watch returns an error: the device may still be writing.
    std::shared_ptr<const void> keep;
  };

  explicit DeviceExecutor(std::shared_ptr<CudaDevice> device, DeviceExecutorOptions options = {},
                          const Clock& clock = SteadyClock());
  // Runs posted functions and waits for watched events, for `drain` at most. Events that have not
  // completed by then fail UNAVAILABLE, and their `keep` is leaked.
  ~DeviceExecutor();
  // As the destructor: for several executors that use each other. Once it has returned nothing runs
  // any more, and Post and Watch fail.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  DeviceExecutor(const DeviceExecutor&) = delete;
  DeviceExecutor& operator=(const DeviceExecutor&) = delete;

  // Runs `work` on the thread, after the functions posted before it.
  //   Errors, except on the thread itself: RESOURCE_EXHAUSTED naming the option;
  //   FAILED_PRECONDITION once the destructor runs. `work` is then not run.
  absl::Status Post(Work work) ABSL_LOCKS_EXCLUDED(mu_);
  // The same without the limit, for work that must not be lost, such as completions.
  //   Errors: FAILED_PRECONDITION once the destructor runs.
  absl::Status PostAlways(Work work) ABSL_LOCKS_EXCLUDED(mu_);

  // The same, and blocks until `work` has returned, however long it runs: it may refer to the
  // caller's frame. REQUIRES: not on the thread itself.
  //   timeout: maximum time until `work` starts.
  //   what: for the message.
  //   Errors: also DEADLINE_EXCEEDED: it has not been run, and will not be.
  absl::Status PostAndWait(std::function<absl::Status()> work, absl::Duration timeout,
                           absl::string_view what) ABSL_LOCKS_EXCLUDED(mu_);

  // Calls `done` on the thread, with no lock held, when the event has completed: OK;
  // DEADLINE_EXCEEDED naming `what`; or the device's error.
  //   Errors: as Post; `done` is then not called.
  absl::Status Watch(Watched watched, DoneCallback done) ABSL_LOCKS_EXCLUDED(mu_);

  bool is_own_thread() const;
  const std::shared_ptr<CudaDevice>& device() const { return device_; }
  // Number of pending functions and events. Overdue events count until they complete.
  size_t waiting_count() const { return waiting_count_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    Watched watched;
    DoneCallback done;  // null once it has been called
  };

  void Run();
  // Queries the first event of each stream, and one of the others; returns whether any callback or
  // event was completed.
  //   turn: differs between calls.
  bool Poll(std::vector<Entry>& entries, size_t turn);
  void EndAll(std::vector<Entry>& entries);
  absl::Status Admit(size_t max_waiting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool has_news() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return is_stopping_ || !work_.empty() || !added_.empty();
  }

  // Constant after construction.
  const std::shared_ptr<CudaDevice> device_;
  const DeviceExecutorOptions options_;
  const Clock& clock_;

  std::atomic<size_t> waiting_count_{0};
  mutable absl::Mutex mu_;
  bool is_stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Work> work_ ABSL_GUARDED_BY(mu_);
  std::vector<Entry> added_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<Thread> thread_;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_DEVICE_EXECUTOR_H_

// SPDX-License-Identifier: Apache-2.0
// CompletionQueue: tells an event loop of Python which transfers are done.
#ifndef FERRY_PYTHON_SRC_COMPLETION_QUEUE_H_
#define FERRY_PYTHON_SRC_COMPLETION_QUEUE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include <nanobind/nanobind.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ferry::python {

// The threads that complete transfers must not wait for the GIL, and so cannot call the loop. They
// add a ticket here, and the first one makes an eventfd readable, which the loop watches.
// Thread-safe.
class CompletionQueue final {
 public:
  // Raises OSError if there are no more descriptors.
  static std::shared_ptr<CompletionQueue> Create();
  ~CompletionQueue();

  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  // Readable while there are tickets.
  int fd() const { return fd_; }
  // Needs no GIL.
  void Add(uint64_t ticket) ABSL_LOCKS_EXCLUDED(mu_);
  // All tickets that were added since the last call, in order.
  std::vector<uint64_t> Take() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit CompletionQueue(int fd) : fd_(fd) {}

  const int fd_;
  absl::Mutex mu_;
  std::vector<uint64_t> tickets_ ABSL_GUARDED_BY(mu_);
};

void DefineCompletionQueue(nanobind::module_& core);

}  // namespace ferry::python

#endif  // FERRY_PYTHON_SRC_COMPLETION_QUEUE_H_

// SPDX-License-Identifier: Apache-2.0
// One eventfd, written when the queue ceases to be empty.
#include "python/src/completion_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "python/src/deferred_release.h"

namespace ferry::python {
namespace nb = nanobind;

std::shared_ptr<CompletionQueue> CompletionQueue::Create() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) {
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  return std::shared_ptr<CompletionQueue>(new CompletionQueue(fd));
}

CompletionQueue::~CompletionQueue() { close(fd_); }

void CompletionQueue::Add(uint64_t ticket) {
  // Under the lock, so that Take never finds tickets without having seen their signal.
  absl::MutexLock lock(&mu_);
  tickets_.push_back(ticket);
  if (tickets_.size() == 1) eventfd_write(fd_, 1);
}

std::vector<uint64_t> CompletionQueue::Take() {
  absl::MutexLock lock(&mu_);
  eventfd_t count = 0;
  eventfd_read(fd_, &count);
  return std::exchange(tickets_, {});
}

void DefineCompletionQueue(nb::module_& core) {
  nb::class_<CompletionQueue>(core, "CompletionQueue")
      .def(nb::new_([] { return CompletionQueue::Create(); }))
      .def("fileno", &CompletionQueue::fd, "Readable while there are tickets to take.")
      .def(
          "take",
          [](CompletionQueue& self) {
            DeferredReleases::Get().Run();
            return self.Take();
          },
          "The tickets of transfers that are done, in order.");
}

}  // namespace ferry::python

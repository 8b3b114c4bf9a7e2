// SPDX-License-Identifier: Apache-2.0
// PyTransfer: the C++ state of ferry.Transfer.
#ifndef FERRY_PYTHON_SRC_TRANSFER_H_
#define FERRY_PYTHON_SRC_TRANSFER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ferry/request.h>
#include <ferry/step.h>
#include <nanobind/nanobind.h>

#include "python/src/arrays.h"
#include "python/src/completion_queue.h"
#include "python/src/node.h"

namespace ferry::python {

// One send or receive. REQUIRES: the GIL.
class PyTransfer final {
 public:
  struct Operation {
    std::shared_ptr<JoinedNode> node;
    int64_t step_id = 0;
    std::string key;
    int peer = 0;
    bool is_send = false;
    // That of a send.
    std::optional<Step> step;
    Request request;
    // The program's memory that is read or written; null: none.
    std::shared_ptr<BorrowedMemory> borrowed;
    // The array to receive into, or none.
    nanobind::object out;
    // The path that is required, or empty.
    std::string required_path;
    absl::Duration timeout;
  };

  explicit PyTransfer(Operation operation) : operation_(std::move(operation)) {}
  PyTransfer(PyTransfer&&) = default;
  ~PyTransfer();

  // The received tensor, or `out`; None for a send.
  //   said: the wait that errors tell of, of which this may be the last part.
  nanobind::object Wait(absl::Duration timeout, absl::Duration said);
  bool is_done() const;
  // The same, after the node's arrivals have been handled.
  bool Poll();
  // Raises what the receiver of a send has died of, if it has not taken all that was sent: its
  // death too ends the use of the memory.
  void CheckReceiver() const;
  void Cancel();
  std::string path() const { return operation_.request.path(); }
  // The program may change or free its memory: it will be neither read nor written any more.
  bool is_buffer_released() const;
  // Adds `ticket` to the queue once it is done. May be called by several that wait.
  void Notify(std::shared_ptr<CompletionQueue> queue, uint64_t ticket);
  const Operation& operation() const { return operation_; }

  // A receive that is done. Raises its error.
  static nanobind::object Result(absl::StatusOr<Tensor> tensor, const Request& request,
                                 const JoinedNode& node, const std::string& key, int peer,
                                 nanobind::handle out, const std::string& required_path,
                                 absl::Duration timeout);

 private:
  // Those that wait in event loops.
  class Waiters;

  ErrorContext context() const;
  // Waits until a send uses the memory no more. As AwaitRequest; and raises as CheckReceiver if it
  // had to wait.
  bool AwaitRelease(absl::Duration timeout) const;

  Operation operation_;
  // Null: there was none yet.
  std::shared_ptr<Waiters> waiters_;
};

// Waits until `request` is done. Raises what signal handlers raise; and the error of a node that
// has left the job meanwhile. Returns false once `timeout` has passed.
bool AwaitRequest(Request& request, const JoinedNode& node, absl::Duration timeout);

void DefineTransfer(nanobind::module_& core);

}  // namespace ferry::python

#endif  // FERRY_PYTHON_SRC_TRANSFER_H_

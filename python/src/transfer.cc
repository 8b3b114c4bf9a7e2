// SPDX-License-Identifier: Apache-2.0
// A receive is done when its request is; a send when it uses the program's memory no more.
#include "python/src/transfer.h"

#include <utility>

#include <ferry/error_details.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "python/src/deferred_release.h"
#include "python/src/errors.h"
#include "python/src/tensor.h"
#include "python/src/waits.h"

namespace ferry::python {
namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

// True for paths whose tensors are in memory of the receiver; others may be views of a peer's.
bool IsOwnCopy(absl::string_view path) {
  return path == "eager" || path == "inline" || path == "tcp" || path == "grpc" || path == "nccl";
}

// Why the receiver of a send in `step` will not take it; OK if it may.
absl::Status ReceiverFailure(Step& step, Node& node, int receiver) {
  // Of all sends of the step, of which another one's receiver may be the one that has died.
  const absl::Status status = step.Flush(absl::ZeroDuration());
  if (status.ok() || absl::IsDeadlineExceeded(status)) return absl::OkStatus();
  const absl::StatusOr<std::vector<NodeStatus>> nodes = node.coordinator().Nodes();
  if (!nodes.ok()) return nodes.status();
  for (const NodeStatus& each : *nodes) {
    if (each.rank == receiver && each.state == NodeState::kJoined) return absl::OkStatus();
  }
  return status;
}

}  // namespace

bool AwaitRequest(Request& request, const JoinedNode& node, absl::Duration timeout) {
  if (request.done()) return true;
  bool is_closed = false;
  const bool is_done = WaitInSlices(timeout, [&](absl::Duration slice) {
    (void)request.Wait(slice);
    if (request.done()) return true;
    const nb::gil_scoped_acquire acquire;
    is_closed = node.is_closed();
    return is_closed;
  });
  if (is_closed && !request.done()) Raise(node.ClosedError());
  return is_done;
}

void PyTransfer::CheckReceiver() const {
  if (operation_.node->is_closed()) return;
  const std::shared_ptr<Node> node = operation_.node->Use();
  Step step = *operation_.step;
  absl::Status failure;
  {
    const nb::gil_scoped_release release;
    failure = ReceiverFailure(step, *node, operation_.peer);
  }
  Check(failure, context());
}

bool PyTransfer::AwaitRelease(absl::Duration timeout) const {
  BorrowedMemory& borrowed = *operation_.borrowed;
  if (borrowed.is_released()) return true;
  bool is_closed = false;
  const bool is_done = WaitInSlices(timeout, [&](absl::Duration slice) {
    if (borrowed.AwaitRelease(slice)) return true;
    const nb::gil_scoped_acquire acquire;
    is_closed = operation_.node->is_closed();
    return is_closed;
  });
  // The node's end releases what it has borrowed, but views of its receivers may live on.
  if (is_closed && !borrowed.is_released()) Raise(operation_.node->ClosedError());
  if (is_done) CheckReceiver();
  return is_done;
}

// Shared with the callback of the request or of the memory, of which there is one.
class PyTransfer::Waiters final {
 public:
  void Add(std::shared_ptr<CompletionQueue> queue, uint64_t ticket) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (!is_done_) {
        waiting_.emplace_back(std::move(queue), ticket);
        return;
      }
    }
    queue->Add(ticket);
  }
  void Wake() ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<std::pair<std::shared_ptr<CompletionQueue>, uint64_t>> waiting;
    {
      absl::MutexLock lock(&mu_);
      is_done_ = true;
      waiting.swap(waiting_);
    }
    for (const auto& [queue, ticket] : waiting) queue->Add(ticket);
  }

 private:
  absl::Mutex mu_;
  bool is_done_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::pair<std::shared_ptr<CompletionQueue>, uint64_t>> waiting_ ABSL_GUARDED_BY(mu_);
};

PyTransfer::~PyTransfer() {
  if (operation_.node == nullptr || !operation_.node->is_inherited()) return;
  // A cancellation needs the parent's threads.
  [[maybe_unused]] auto* const leaked = new Request(std::move(operation_.request));
}

ErrorContext PyTransfer::context() const {
  return operation_.node->ContextOf(operation_.key, operation_.peer);
}

bool PyTransfer::Poll() { return operation_.is_send ? is_done() : operation_.request.Poll(); }

bool PyTransfer::is_done() const {
  if (!operation_.is_send) return operation_.request.done();
  return operation_.borrowed == nullptr || operation_.borrowed->is_released();
}

bool PyTransfer::is_buffer_released() const {
  if (operation_.is_send) return is_done();
  return operation_.borrowed == nullptr || operation_.request.done();
}

nb::object PyTransfer::Wait(absl::Duration timeout, absl::Duration said) {
  operation_.node->CheckNotForked();
  const auto what = [&] {
    return absl::StrCat("\"", operation_.key, "\" in step ", operation_.step_id);
  };
  if (operation_.is_send) {
    if (operation_.borrowed != nullptr && !AwaitRelease(timeout)) {
      ErrorContext error = context();
      error.waited = said;
      Raise(absl::DeadlineExceededError(absl::StrCat("rank ", operation_.peer, " has not received ",
                                                     what(), " within ", absl::FormatDuration(said),
                                                     "; its memory must not be changed yet "
                                                     "(Transfer.buffer_released)")),
            error);
    }
    return nb::none();
  }
  if (!AwaitRequest(operation_.request, *operation_.node, timeout)) {
    ErrorContext error = context();
    error.waited = said;
    const absl::Status status = operation_.request.Wait(absl::ZeroDuration()).status();
    if (!operation_.request.done()) {
      const std::string phase = TransferPhase(status);
      absl::Status late = absl::DeadlineExceededError(absl::StrCat(
          "waited ", absl::FormatDuration(said), " for ", what(), " from rank ", operation_.peer,
          ": ", phase, "; the receive goes on: wait again, or cancel it"));
      status.ForEachPayload([&late](absl::string_view url, const absl::Cord& payload) {
        late.SetPayload(url, payload);
      });
      Raise(late, error);
    }
  }
  return Result(operation_.request.Wait(absl::ZeroDuration()), operation_.request, *operation_.node,
                operation_.key, operation_.peer, operation_.out, operation_.required_path,
                operation_.timeout);
}

nb::object PyTransfer::Result(absl::StatusOr<Tensor> tensor, const Request& request,
                              const JoinedNode& node, const std::string& key, int peer,
                              nb::handle out, const std::string& required_path,
                              absl::Duration timeout) {
  if (!tensor.ok()) {
    ErrorContext error = node.ContextOf(key, peer);
    if (absl::IsDeadlineExceeded(tensor.status())) error.waited = timeout;
    Raise(tensor.status(), error);
  }
  if (!required_path.empty()) {
    if (const std::string path = request.path(); path.substr(0, path.find(',')) != required_path) {
      Raise(absl::FailedPreconditionError(absl::StrCat(
                "\"", key, "\" came by ", path, ", and require= is ", required_path,
                ": join with transport=\"", required_path, "\" to allow no other path")),
            node.ContextOf(key, peer));
    }
  }
  if (!out.is_none()) return nb::borrow(out);
  const bool is_writable = IsOwnCopy(request.path());
  return nb::cast(PyTensor(*std::move(tensor), is_writable));
}

void PyTransfer::Cancel() {
  operation_.node->CheckNotForked();
  if (!operation_.is_send) operation_.request.Cancel();
}

void PyTransfer::Notify(std::shared_ptr<CompletionQueue> queue, uint64_t ticket) {
  operation_.node->CheckNotForked();
  const bool is_first = waiters_ == nullptr;
  if (is_first) waiters_ = std::make_shared<Waiters>();
  waiters_->Add(std::move(queue), ticket);
  if (!is_first) return;
  auto notify = [waiters = waiters_] { waiters->Wake(); };
  if (!operation_.is_send) return operation_.request.Notify(std::move(notify));
  if (operation_.borrowed == nullptr) return notify();
  operation_.borrowed->NotifyRelease(std::move(notify));
}

void DefineTransfer(nb::module_& core) {
  nb::class_<PyTransfer>(core, "Transfer",
                         R"(One send or receive, made by Step.isend and Step.irecv.

Wait for it by wait(), or by await in a coroutine. Dropping the last reference cancels a receive that is
not done.)")
      .def(
          "wait",
          [](PyTransfer& self, nb::handle timeout) {
            const absl::Duration limit =
                Timeout::Parse(timeout, self.operation().node->default_timeout());
            return self.Wait(limit, limit);
          },
          "timeout"_a.none() = Timeout::Default(),
          nb::sig("def wait(self, timeout: float | datetime.timedelta = ...) -> typing.Any"),
          R"(Blocks until it is done, for `timeout` seconds at most (default: the job's timeout).

A receive is done when its elements are complete; returns the ferry.Tensor, or the array given as out=.
A send is done when the array's memory may be changed or freed; returns None. That is no proof of its
arrival: Step.flush is.

Raises what the operation fails with, or FerryTimeoutError, which does not end the operation.)")
      .def("done", &PyTransfer::Poll,
           "Whether wait() would return at once. Never blocks; handles what has arrived, so that a "
           "program may poll.")
      .def("cancel", &PyTransfer::Cancel,
           "Ends a receive that is not done: waits for it raise TransferCancelledError. Has no "
           "effect on a send, "
           "which ends with its step.")
      .def_prop_ro(
          "path",
          [](const PyTransfer& self) -> nb::object {
            const std::string path = self.path();
            return path.empty() ? nb::object(nb::none()) : nb::cast(path);
          },
          nb::sig("def path(self) -> str | None"),
          "The path by which a received tensor came: \"shm\", \"tcp\", \"cuda_ipc\", \"nccl\", "
          "\"local\" (this process); for small ones \"eager\" or \"inline\". A detail may follow "
          "after a comma: \"cuda_ipc, copy\". None for sends, and until it is done.")
      .def_prop_ro("buffer_released", &PyTransfer::is_buffer_released,
                   "Whether the memory of the array that was given (the one sent, or out=) is used "
                   "no more, so that it may be "
                   "changed or freed. Also meaningful after errors and timeouts.")
      .def_prop_ro(
          "key",
          [](const PyTransfer& self) {
            const std::string& key = self.operation().key;
            return nb::str(key.data(), key.size());
          },
          "The key by which both sides know it.")
      .def_prop_ro(
          "peer", [](const PyTransfer& self) { return self.operation().peer; },
          "The rank of the other side.")
      .def("_notify", &PyTransfer::Notify, "queue"_a, "ticket"_a)
      .def_prop_ro("_ends_by_itself",
                   [](const PyTransfer& self) { return !self.operation().is_send; })
      .def("_check_receiver", &PyTransfer::CheckReceiver,
           "Raises what the receiver of a send has died of, if it has not taken all that was sent.")
      .def(
          "_seconds",
          [](const PyTransfer& self, nb::handle timeout) {
            return absl::ToDoubleSeconds(
                Timeout::Parse(timeout, self.operation().node->default_timeout()));
          },
          "timeout"_a, "A timeout= argument in seconds, or the job's for `...`.")
      .def(
          "_result",
          [](PyTransfer& self, double waited) {
            return self.Wait(absl::ZeroDuration(), absl::Seconds(waited));
          },
          "waited"_a, "As wait(), of a wait that was `waited` seconds long and is over.")
      .def(
          "__await__",
          [](nb::handle self) {
            return nb::module_::import_("ferry._async").attr("await_transfer")(self);
          },
          nb::sig("def __await__(self) -> typing.Generator[typing.Any, None, typing.Any]"))
      .def("__repr__", [](const PyTransfer& self) {
        const PyTransfer::Operation& operation = self.operation();
        return absl::StrCat("<ferry.Transfer ", operation.is_send ? "send" : "receive", " of \"",
                            operation.key, operation.is_send ? "\" to rank " : "\" from rank ",
                            operation.peer, self.is_done() ? ", done>" : ", pending>");
      });
}

}  // namespace ferry::python

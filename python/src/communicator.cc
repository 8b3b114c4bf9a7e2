// SPDX-License-Identifier: Apache-2.0
// The arrays are kept by the communicator until a later call, since their work is only enqueued.
#include "python/src/communicator.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ferry/nccl_communicator.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "absl/strings/str_cat.h"
#include "python/src/arrays.h"
#include "python/src/deferred_release.h"
#include "python/src/node.h"
#include "python/src/waits.h"

namespace ferry::python {
namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

// The C++ state of ferry.Communicator.
struct PyCommunicator {
  std::shared_ptr<JoinedNode> joined;
  // Outlives the communicator, which is released before it.
  std::shared_ptr<Node> node;
  std::shared_ptr<NcclCommunicator> communicator;

  NcclCommunicator& Use() {
    joined->Use();
    if (communicator == nullptr)
      Raise(absl::FailedPreconditionError("the communicator was released"));
    return *communicator;
  }
  void Release() {
    std::shared_ptr<NcclCommunicator> released = std::move(communicator);
    std::shared_ptr<Node> owner = std::move(node);
    const nb::gil_scoped_release release;
    released = nullptr;
    owner = nullptr;
  }
};

ReduceOp ParseOp(const std::string& op) {
  if (op == "sum") return ReduceOp::kSum;
  if (op == "prod") return ReduceOp::kProduct;
  if (op == "max") return ReduceOp::kMax;
  if (op == "min") return ReduceOp::kMin;
  RaiseValueError(absl::StrCat("there is no operation \"", op, "\": sum, prod, max and min"));
}

// Calls `enqueue(communicator, stream)` without the GIL. The call returns once the work is
// enqueued.
template <typename Enqueue>
void Run(PyCommunicator& self, CUstream_st* stream, Enqueue enqueue) {
  NcclCommunicator& communicator = self.Use();
  const std::shared_ptr<NcclCommunicator> kept = self.communicator;
  absl::Status status;
  {
    const nb::gil_scoped_release release;
    status = enqueue(communicator, stream == nullptr ? communicator.stream() : stream);
  }
  DeferredReleases::Get().Run();
  Check(status);
}

}  // namespace

void DefineCommunicator(nb::module_& core) {
  nb::class_<PyCommunicator>(core, "Communicator",
                             R"(One rank of an NCCL communicator, made by Node.communicator.

All ranks issue the same operations in the same order. Operations enqueue work on a CUDA stream (default: that of the
array's package) and return; later work of the stream runs after it. Keep the arrays until it has completed.)")
      .def(
          "__init__",
          [](PyCommunicator* self, nb::handle node, std::vector<int> devices,
             std::optional<int> own_device, nb::handle timeout, int max_ctas) {
            std::shared_ptr<JoinedNode> joined = JoinedNodeOf(node);
            std::shared_ptr<Node> used = joined->Use();
            NcclCommunicatorOptions options;
            options.own_device = own_device;
            options.timeout = Timeout::Parse(timeout, joined->default_timeout());
            options.max_ctas = max_ctas;
            auto made =
                ValueOf(CallInterruptibly<absl::StatusOr<std::unique_ptr<NcclCommunicator>>>(
                    [used, devices = std::move(devices), options] {
                      return used->Communicator(devices, options);
                    }));
            new (self) PyCommunicator{std::move(joined), std::move(used), std::move(made)};
          },
          "node"_a, "devices"_a, nb::kw_only(), "own_device"_a = nb::none(),
          "timeout"_a.none() = Timeout::Default(), "max_ctas"_a = 0,
          nb::sig("def __init__(self, node: Node, devices: collections.abc.Sequence[int], *, "
                  "own_device: int | None = None, timeout: float | datetime.timedelta = ..., "
                  "max_ctas: int = 0) -> None"))
      .def("__del__", &PyCommunicator::Release)
      .def_prop_ro(
          "rank", [](PyCommunicator& self) { return self.Use().rank(); },
          "This process's rank in it.")
      .def_prop_ro(
          "size", [](PyCommunicator& self) { return self.Use().size(); },
          "The number of its ranks.")
      .def_prop_ro(
          "device", [](PyCommunicator& self) { return DeviceName(self.Use().device()); },
          "The GPU of this rank: \"cuda:0\".")
      .def_prop_ro(
          "stream",
          [](PyCommunicator& self) { return reinterpret_cast<uintptr_t>(self.Use().stream()); },
          "The handle of a stream of that GPU, for programs that have none of their own.")
      .def(
          "all_reduce",
          [](PyCommunicator& self, nb::handle input, nb::handle output, const std::string& op,
             nb::handle stream) {
            const ReduceOp reduce = ParseOp(op);
            ImportedArray in = ImportArray(input, ArrayUse::kRead, stream);
            ImportedArray out =
                ImportArray(output.is_none() ? input : output, ArrayUse::kWrite, stream);
            Run(self, out.stream, [&](NcclCommunicator& communicator, CUstream_st* on) {
              return communicator.AllReduce(in.tensor, out.tensor, reduce, on);
            });
          },
          "input"_a, "output"_a = nb::none(), nb::kw_only(), "op"_a = "sum",
          "stream"_a = nb::none(),
          nb::sig("def all_reduce(self, input: typing.Any, output: typing.Any = None, *, op: str = "
                  "'sum', "
                  "stream: typing.Any = None) -> None"),
          "Reduces element by element over all ranks: \"sum\", \"prod\", \"max\" or \"min\". "
          "Without output: in place.")
      .def(
          "broadcast",
          [](PyCommunicator& self, nb::handle array, int root, nb::handle stream) {
            ImportedArray imported = ImportArray(array, ArrayUse::kWrite, stream);
            Run(self, imported.stream, [&](NcclCommunicator& communicator, CUstream_st* on) {
              return communicator.Broadcast(imported.tensor, root, on);
            });
          },
          "array"_a, "root"_a, nb::kw_only(), "stream"_a = nb::none(),
          nb::sig("def broadcast(self, array: typing.Any, root: int, *, stream: typing.Any = None) "
                  "-> None"),
          "Copies the array of rank `root` to that of every other rank.")
      .def(
          "all_gather",
          [](PyCommunicator& self, nb::handle input, nb::handle output, nb::handle stream) {
            ImportedArray in = ImportArray(input, ArrayUse::kRead, stream);
            ImportedArray out = ImportArray(output, ArrayUse::kWrite, stream);
            Run(self, out.stream, [&](NcclCommunicator& communicator, CUstream_st* on) {
              return communicator.AllGather(in.tensor, out.tensor, on);
            });
          },
          "input"_a, "output"_a, nb::kw_only(), "stream"_a = nb::none(),
          nb::sig("def all_gather(self, input: typing.Any, output: typing.Any, *, stream: "
                  "typing.Any = None) -> None"),
          "Concatenates the inputs of all ranks; output has `size` times the elements of input.")
      .def(
          "check",
          [](PyCommunicator& self) {
            Run(self, nullptr,
                [](NcclCommunicator& communicator, CUstream_st*) { return communicator.Check(); });
          },
          "Raises if a rank has abandoned the communicator: operations in flight may then never "
          "complete.")
      .def(
          "abort",
          [](PyCommunicator& self, const std::string& reason) {
            Run(self, nullptr, [&reason](NcclCommunicator& communicator, CUstream_st*) {
              communicator.Abort(absl::CancelledError(reason));
              return absl::OkStatus();
            });
          },
          "reason"_a = "aborted by the program", "Aborts its operations on all ranks, permanently.")
      .def("release", &PyCommunicator::Release,
           "Gives it back: operations in flight must have completed. An idle one is kept for the "
           "next call.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Communicator"))
      .def(
          "__exit__", [](PyCommunicator& self, nb::args) { self.Release(); },
          nb::sig("def __exit__(self, *args: object) -> None"));
}

}  // namespace ferry::python

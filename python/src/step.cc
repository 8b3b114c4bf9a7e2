// SPDX-License-Identifier: Apache-2.0
// Sends lend the program's memory, unless it is so small that a copy costs less than a wait.
#include "python/src/step.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ferry/step.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "absl/strings/str_cat.h"
#include "python/src/arrays.h"
#include "python/src/deferred_release.h"
#include "python/src/node.h"
#include "python/src/packed_tree.h"
#include "python/src/tensor.h"
#include "python/src/transfer.h"
#include "python/src/waits.h"

namespace ferry::python {
namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

// Arrays in host memory of at most this size are copied, so that a send need not wait until the
// receiver has them: 64 KiB take a core about 5 us.
constexpr size_t kCopiedBytes = size_t{64} << 10;
// How much later than the receive itself its wait ends, if it does not.
constexpr absl::Duration kGrace = absl::Seconds(2);

// The C++ state of ferry.Step.
struct PyStep {
  std::shared_ptr<JoinedNode> joined;
  Step step;

  Step& Use(std::shared_ptr<Node>& node) {
    node = joined->Use();
    return step;
  }
};

struct Outgoing {
  SendOperation operation;
  // Null: the program may change its array.
  std::shared_ptr<BorrowedMemory> borrowed;
};

// The send of an array that was imported.
Outgoing OutgoingOf(const PyStep& self, ImportedArray imported, std::string key, const Peer& to) {
  Outgoing result;
  const Device device = imported.tensor.device();
  if (!imported.is_immutable) result.borrowed = std::move(imported.borrowed);
  result.operation = {.id = {.name = std::move(key),
                             .source = self.joined->rank(),
                             .destination = to.rank,
                             .source_device = device,
                             .destination_device = to.device.value_or(device)},
                      .tensor = std::move(imported.tensor),
                      .options = {.stream = imported.stream}};
  return result;
}

// Its transfer, for the program.
PyTransfer TransferOf(const PyStep& self, Outgoing& outgoing) {
  return PyTransfer({.node = self.joined,
                     .step_id = self.step.id(),
                     .key = outgoing.operation.id.name,
                     .peer = outgoing.operation.id.destination,
                     .is_send = true,
                     .step = self.step,
                     .borrowed = std::move(outgoing.borrowed),
                     .timeout = self.joined->default_timeout()});
}

// Its receivers may read the memory from now on.
void MarkSent(nb::handle array) {
  PyTensor* tensor = nullptr;
  if (nb::try_cast<PyTensor*>(array, tensor) && tensor != nullptr) tensor->MakeReadOnly();
}

// Sends, and returns the transfer.
PyTransfer Start(PyStep& self, nb::handle array, std::string key, nb::handle to,
                 nb::handle stream) {
  std::shared_ptr<Node> node;
  Step& step = self.Use(node);
  const Peer peer = ParsePeer(to);
  Outgoing outgoing = OutgoingOf(self, ImportArray(array, ArrayUse::kRead, stream, kCopiedBytes),
                                 std::move(key), peer);
  PyTransfer transfer = TransferOf(self, outgoing);
  // Never waits, except for the few locks of the transfer itself: not worth giving up the GIL.
  Request request = step.Send(outgoing.operation.id, std::move(outgoing.operation.tensor),
                              outgoing.operation.options);
  Check(request.Wait(absl::ZeroDuration()).status(),
        self.joined->ContextOf(outgoing.operation.id.name, peer.rank));
  MarkSent(array);
  return transfer;
}

struct Incoming {
  RecvOperation operation;
  int peer = 0;
  std::shared_ptr<BorrowedMemory> borrowed;
};

// The argument require=, or "".
std::string ParseRequired(const std::optional<std::string>& require) {
  if (!require.has_value()) return "";
  for (const char* const path :
       {"shm", "tcp", "cuda_ipc", "nccl", "local", "eager", "inline", "grpc"}) {
    if (*require == path) return *require;
  }
  RaiseValueError(absl::StrCat("require=\"", *require, "\" is no path; see Transfer.path"));
}

Incoming PrepareReceive(const PyStep& self, std::string key, const Peer& source,
                        absl::Duration timeout, nb::handle out, nb::handle stream,
                        nb::handle device) {
  Incoming result;
  result.peer = source.rank;
  Device here = Device::Host();
  RecvOptions& options = result.operation.options;
  options.timeout = timeout;
  if (!out.is_none()) {
    ImportedArray into = ImportArray(out, ArrayUse::kWrite, stream);
    here = into.tensor.device();
    options.into = std::move(into.tensor);
    options.stream = into.stream;
    result.borrowed = std::move(into.borrowed);
    if (!device.is_none() && ParseDevice(device) != here) {
      RaiseValueError(absl::StrCat("device= is not that of out=, which is on ", DeviceName(here)));
    }
  } else {
    if (!device.is_none()) here = ParseDevice(device);
    if (!stream.is_none()) options.stream = ParseStream(stream);
  }
  result.operation.id = {.name = std::move(key),
                         .source = source.rank,
                         .destination = self.joined->rank(),
                         .source_device = source.device.value_or(here),
                         .destination_device = here};
  return result;
}

nb::object Converted(nb::object received, nb::handle like) {
  if (like.is_none()) return received;
  return nb::module_::import_("ferry._numpy").attr("convert")(received, like);
}

nb::object Recv(PyStep& self, std::string key, nb::handle source, nb::handle timeout,
                nb::handle out, nb::handle like, nb::handle stream, nb::handle device,
                std::optional<std::string> require) {
  const std::string required = ParseRequired(require);
  if (!out.is_none() && !like.is_none()) RaiseTypeError("like= and out= exclude each other");
  std::shared_ptr<Node> node;
  Step& step = self.Use(node);
  const absl::Duration limit = Timeout::Parse(timeout, self.joined->default_timeout());
  Incoming incoming =
      PrepareReceive(self, std::move(key), ParsePeer(source), limit, out, stream, device);
  Request request = step.Recv(incoming.operation.id, std::move(incoming.operation.options));
  node = nullptr;
  if (!AwaitRequest(request, *self.joined, limit + kGrace)) {
    request.Cancel(absl::DeadlineExceededError(absl::StrCat(
        "the receive of \"", incoming.operation.id.name, "\" has not ended at its deadline")));
  }
  return Converted(
      PyTransfer::Result(request.Wait(kGrace), request, *self.joined, incoming.operation.id.name,
                         incoming.peer, out, required, limit),
      like);
}

PyTransfer Irecv(PyStep& self, std::string key, nb::handle source, nb::handle timeout,
                 nb::handle out, nb::handle stream, nb::handle device,
                 std::optional<std::string> require) {
  const std::string required = ParseRequired(require);
  std::shared_ptr<Node> node;
  Step& step = self.Use(node);
  const absl::Duration limit = Timeout::Parse(timeout, self.joined->default_timeout());
  Incoming incoming = PrepareReceive(self, key, ParsePeer(source), limit, out, stream, device);
  Request request = step.Recv(incoming.operation.id, std::move(incoming.operation.options));
  return PyTransfer({.node = self.joined,
                     .step_id = step.id(),
                     .key = std::move(key),
                     .peer = incoming.peer,
                     .request = std::move(request),
                     .borrowed = std::move(incoming.borrowed),
                     .out = nb::borrow(out),
                     .required_path = required,
                     .timeout = limit});
}

std::vector<PyTransfer> SendMany(PyStep& self, nb::handle items, nb::handle to) {
  std::shared_ptr<Node> node;
  Step& step = self.Use(node);
  const Peer peer = ParsePeer(to);
  std::vector<SendOperation> operations;
  std::vector<PyTransfer> transfers;
  std::vector<nb::object> arrays;
  for (const nb::handle item : nb::iter(items)) {
    const auto pair = nb::cast<nb::tuple>(item);
    if (pair.size() != 2) RaiseTypeError("arrays are given by their keys, as a mapping");
    Outgoing outgoing =
        OutgoingOf(self, ImportArray(pair[1], ArrayUse::kRead, nb::none(), kCopiedBytes),
                   nb::cast<std::string>(pair[0]), peer);
    transfers.push_back(TransferOf(self, outgoing));
    operations.push_back(std::move(outgoing.operation));
    arrays.push_back(pair[1]);
  }
  std::vector<Request> requests;
  {
    const nb::gil_scoped_release release;
    requests = step.SendMany(operations);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    Check(requests[i].Wait(absl::ZeroDuration()).status(),
          self.joined->ContextOf(operations[i].id.name, peer.rank));
    MarkSent(arrays[i]);
  }
  return transfers;
}

// The key of the message that describes a tree, and those of leaves that are not in it.
std::string TreeKey(absl::string_view key) { return absl::StrCat(key, "/tree"); }
std::string LeafKey(absl::string_view key, size_t index) { return absl::StrCat(key, "/", index); }

// Memory for a message: what receivers on this host read without a copy, where there is some.
absl::StatusOr<Tensor> AllocateMessage(Node& node, size_t bytes) {
  const int64_t shape[] = {static_cast<int64_t>(bytes)};
  if (bytes > kCopiedBytes) {
    absl::StatusOr<Tensor> tensor = node.Allocate(Device::Host(), DataType::kUint8, shape);
    if (tensor.ok()) return tensor;
  }
  return Tensor::Allocate(DataType::kUint8, shape);
}

std::vector<PyTransfer> SendTree(PyStep& self, nb::bytes description, nb::handle arrays,
                                 const std::string& key, nb::handle to) {
  std::shared_ptr<Node> node;
  Step& step = self.Use(node);
  const Peer peer = ParsePeer(to);
  const absl::string_view text(description.c_str(), description.size());
  std::vector<TreeLeaf> leaves;
  std::vector<SendOperation> operations(1);
  std::vector<PyTransfer> transfers;
  std::vector<nb::object> sent;
  for (const nb::handle array : nb::iter(arrays)) {
    ImportedArray imported = ImportArray(array, ArrayUse::kRead, nb::none());
    const bool is_packed =
        imported.tensor.device() == Device::Host() && imported.tensor.size_bytes() <= kCopiedBytes;
    leaves.push_back({.tensor = imported.tensor, .is_packed = is_packed});
    if (is_packed) continue;
    Outgoing outgoing =
        OutgoingOf(self, std::move(imported), LeafKey(key, leaves.size() - 1), peer);
    transfers.push_back(TransferOf(self, outgoing));
    operations.push_back(std::move(outgoing.operation));
    sent.push_back(nb::borrow(array));
  }
  const size_t bytes = PackedBytes(text, leaves);
  std::vector<Request> requests;
  absl::Status status;
  {
    const nb::gil_scoped_release release;
    absl::StatusOr<Tensor> message = AllocateMessage(*node, bytes);
    if (message.ok()) {
      WritePacked(text, leaves, static_cast<char*>(message->mutable_data()));
      leaves.clear();
      operations[0] = {
          .id = {.name = TreeKey(key), .source = self.joined->rank(), .destination = peer.rank},
          .tensor = *std::move(message)};
      requests = step.SendMany(operations);
    } else {
      status = message.status();
    }
  }
  DeferredReleases::Get().Run();
  Check(status, self.joined->ContextOf(key, peer.rank));
  for (size_t i = 0; i < requests.size(); ++i) {
    Check(requests[i].Wait(absl::ZeroDuration()).status(),
          self.joined->ContextOf(operations[i].id.name, peer.rank));
    if (i > 0) MarkSent(sent[i - 1]);
  }
  return transfers;
}

nb::tuple RecvTree(PyStep& self, const std::string& key, nb::handle source, nb::handle timeout,
                   nb::handle device, std::optional<std::string> require) {
  const absl::Duration limit = Timeout::Parse(timeout, self.joined->default_timeout());
  const absl::Time deadline = absl::Now() + limit;
  const Peer peer = ParsePeer(source);
  const std::string required = ParseRequired(require);
  std::shared_ptr<Node> node;
  Step& step = self.Use(node);
  const auto await = [&](Request& request, const TensorId& id) {
    if (!AwaitRequest(request, *self.joined,
                      std::max(deadline - absl::Now(), absl::ZeroDuration()) + kGrace)) {
      request.Cancel(absl::DeadlineExceededError("the receive has not ended at its deadline"));
    }
    absl::StatusOr<Tensor> tensor = request.Wait(kGrace);
    return PyTransfer::Result(std::move(tensor), request, *self.joined, id.name, peer.rank,
                              nb::none(), required, limit);
  };
  const TensorId id = {
      .name = TreeKey(key), .source = peer.rank, .destination = self.joined->rank()};
  Request request = step.Recv(id, {.timeout = limit});
  const nb::object message = await(request, id);
  const auto& packed = nb::cast<const PyTensor&>(message);
  PackedTree tree = ValueOf(ReadPacked(packed.tensor()), self.joined->ContextOf(key, peer.rank));
  std::vector<RecvOperation> operations;
  for (size_t i = 0; i < tree.leaves.size(); ++i) {
    if (tree.leaves[i].is_valid()) continue;
    operations.push_back(PrepareReceive(self, LeafKey(key, i), peer,
                                        std::max(deadline - absl::Now(), absl::ZeroDuration()),
                                        nb::none(), nb::none(), device)
                             .operation);
  }
  std::vector<Request> requests;
  if (!operations.empty()) {
    const nb::gil_scoped_release release;
    requests = step.RecvMany(operations);
  }
  node = nullptr;
  nb::list leaves;
  size_t next = 0;
  for (Tensor& leaf : tree.leaves) {
    if (leaf.is_valid()) {
      leaves.append(nb::cast(PyTensor(std::move(leaf), packed.is_writable())));
    } else {
      leaves.append(await(requests[next], operations[next].id));
      ++next;
    }
  }
  return nb::make_tuple(nb::bytes(tree.description.data(), tree.description.size()), leaves);
}

// One request for many, since Python's part of each would cost more than the transfer.
nb::list RecvMany(PyStep& self, nb::handle keys, nb::handle source, nb::handle timeout,
                  nb::handle outs, nb::handle device, std::optional<std::string> require) {
  const std::string required = ParseRequired(require);
  std::shared_ptr<Node> node;
  Step& step = self.Use(node);
  const absl::Duration limit = Timeout::Parse(timeout, self.joined->default_timeout());
  const Peer peer = ParsePeer(source);
  std::vector<RecvOperation> operations;
  std::vector<nb::object> arrays;
  if (!outs.is_none()) {
    for (const nb::handle out : nb::iter(outs)) arrays.push_back(nb::borrow(out));
  }
  for (const nb::handle key : nb::iter(keys)) {
    const size_t i = operations.size();
    if (!outs.is_none() && i >= arrays.size())
      RaiseValueError("there are fewer arrays in out= than keys");
    const nb::object out = outs.is_none() ? nb::object(nb::none()) : arrays[i];
    operations.push_back(
        PrepareReceive(self, nb::cast<std::string>(key), peer, limit, out, nb::none(), device)
            .operation);
  }
  std::vector<Request> requests;
  {
    const nb::gil_scoped_release release;
    requests = step.RecvMany(operations);
  }
  node = nullptr;
  const absl::Time deadline = absl::Now() + limit + kGrace;
  nb::list results;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!AwaitRequest(requests[i], *self.joined, deadline - absl::Now())) {
      requests[i].Cancel(absl::DeadlineExceededError("the receive has not ended at its deadline"));
    }
    results.append(PyTransfer::Result(
        requests[i].Wait(kGrace), requests[i], *self.joined, operations[i].id.name, peer.rank,
        outs.is_none() ? nb::handle(Py_None) : nb::handle(arrays[i]), required, limit));
  }
  return results;
}

// Flush waits in slices, and its message has the length of the last one: replaces it by `waited`.
absl::Status WithWholeWait(const absl::Status& status, absl::Duration waited) {
  if (!absl::IsDeadlineExceeded(status)) return status;
  const absl::string_view text = status.message();
  const size_t rest = text.find(" to flush step");
  if (rest == absl::string_view::npos) return status;
  return absl::DeadlineExceededError(
      absl::StrCat("waited ", absl::FormatDuration(waited), text.substr(rest)));
}

void Flush(PyStep& self, nb::handle timeout) {
  std::shared_ptr<Node> node;
  Step& step = self.Use(node);
  const absl::Duration limit = Timeout::Parse(timeout, self.joined->default_timeout());
  absl::Status status;
  WaitInSlices(limit, [&](absl::Duration slice) {
    status = step.Flush(slice);
    return !absl::IsDeadlineExceeded(status);
  });
  DeferredReleases::Get().Run();
  Check(WithWholeWait(status, limit), {.waited = limit});
}

void Close(PyStep& self, nb::handle timeout) {
  std::shared_ptr<Node> node;
  Step& step = self.Use(node);
  const absl::Duration limit = Timeout::Parse(timeout, self.joined->default_timeout());
  absl::Status status;
  try {
    WaitInSlices(limit, [&](absl::Duration slice) {
      status = step.Flush(slice);
      return !absl::IsDeadlineExceeded(status);
    });
  } catch (nb::python_error&) {
    step.Abort(absl::CancelledError("interrupted while the step was closed"));
    throw;
  }
  absl::Status closed;
  {
    const nb::gil_scoped_release release;
    closed = step.Close(absl::ZeroDuration());
  }
  DeferredReleases::Get().Run();
  if (status.ok()) status = closed;
  Check(WithWholeWait(status, limit), {.waited = limit});
}

}  // namespace

void DefineStep(nb::module_& core) {
  nb::class_<PyStep>(core, "Step")
      .def(
          "__init__",
          [](PyStep* self, nb::handle node, int64_t step_id) {
            std::shared_ptr<JoinedNode> joined = JoinedNodeOf(node);
            Step step = ValueOf(joined->Use()->OpenStep(step_id));
            new (self) PyStep{std::move(joined), std::move(step)};
          },
          "node"_a, "step_id"_a, nb::sig("def __init__(self, node: Node, step_id: int) -> None"))
      .def_prop_ro(
          "id", [](const PyStep& self) { return self.step.id(); }, "The step's number.")
      .def(
          "send",
          [](PyStep& self, nb::handle array, std::string key, nb::handle to, nb::handle timeout,
             nb::handle stream) {
            const absl::Duration limit = Timeout::Parse(timeout, self.joined->default_timeout());
            Start(self, array, std::move(key), to, stream).Wait(limit, limit);
          },
          "array"_a, "key"_a, "to"_a, nb::kw_only(), "timeout"_a.none() = Timeout::Default(),
          "stream"_a = nb::none(),
          nb::sig(
              "def send(self, array: typing.Any, key: str, to: int | tuple[int, typing.Any], *, "
              "timeout: float | datetime.timedelta = ..., stream: typing.Any = None) -> None"),
          R"(Sends an array to rank `to`, which receives it by the same key in the same step.

Returns when the array may be changed again: at once for ferry.Tensors, which must not be written any more,
for bytes, and for arrays in host memory of up to 64 KiB; for others when the receiver has them, so that two
nodes that send to each other first, and then receive, may wait for each other: use isend there.

array: anything with __dlpack__ or the buffer protocol, in host memory or that of a GPU. Arrays that are not
    contiguous are copied.
to: a rank, or a pair of a rank and the device there ((1, "cuda:0")); by default the one that has the name of
    the array's own.
stream: the CUDA stream that writes the array (default: its package's current stream). No thread waits for it.

Raises FerryTimeoutError if the receiver has not got it in time; PeerDiedError; StepClosedError.)")
      .def(
          "isend",
          [](PyStep& self, nb::handle array, std::string key, nb::handle to, nb::handle stream) {
            return Start(self, array, std::move(key), to, stream);
          },
          "array"_a, "key"_a, "to"_a, nb::kw_only(), "stream"_a = nb::none(),
          nb::sig(
              "def isend(self, array: typing.Any, key: str, to: int | tuple[int, typing.Any], *, "
              "stream: typing.Any = None) -> Transfer"),
          "As send, but returns at once. Do not change the array before the transfer is done.")
      .def("recv", Recv, "key"_a, "source"_a, nb::kw_only(),
           "timeout"_a.none() = Timeout::Default(), "out"_a = nb::none(), "like"_a = nb::none(),
           "stream"_a = nb::none(), "device"_a = nb::none(), "require"_a = nb::none(),
           nb::sig("def recv(self, key: str, source: int | tuple[int, typing.Any], *, "
                   "timeout: float | datetime.timedelta = ..., out: typing.Any = None, like: "
                   "typing.Any = None, "
                   "stream: typing.Any = None, device: typing.Any = None, require: str | None = "
                   "None) -> typing.Any"),
           R"(Receives the array that rank `source` sends by the same key in the same step.

Returns a ferry.Tensor, which may be a view of the sender's memory; or `out`, filled; or what `like` says.

source: a rank, or a pair of a rank and the array's device there; by default the one that has the name of
    `device`.
out: an array to receive into, of the same type and size.
like: "numpy", "torch", "jax", or one of these modules: the type of array to return.
stream: the CUDA stream that reads the array: it is then ordered behind the transfer, for which no thread waits.
device: where to receive it, if there is no out=; default: host memory.
require: the path by which it must have come, such as "shm"; see Transfer.path.

Raises FerryTimeoutError, whose `phase` says how far the transfer has got; PeerDiedError, whose `rank` and
`host` are the sender's; StepClosedError; ValueError if `out` is of another type or size.)")
      .def("irecv", Irecv, "key"_a, "source"_a, nb::kw_only(),
           "timeout"_a.none() = Timeout::Default(), "out"_a = nb::none(), "stream"_a = nb::none(),
           "device"_a = nb::none(), "require"_a = nb::none(),
           nb::sig("def irecv(self, key: str, source: int | tuple[int, typing.Any], *, "
                   "timeout: float | datetime.timedelta = ..., out: typing.Any = None, "
                   "stream: typing.Any = None, device: typing.Any = None, require: str | None = "
                   "None) -> Transfer"),
           "As recv, but returns at once. The receive fails `timeout` seconds after this call.")
      .def("_send_many", SendMany, "items"_a, "to"_a)
      .def("_send_tree", SendTree, "description"_a, "arrays"_a, "key"_a, "to"_a)
      .def("_recv_tree", RecvTree, "key"_a, "source"_a, nb::kw_only(),
           "timeout"_a.none() = Timeout::Default(), "device"_a = nb::none(),
           "require"_a = nb::none(),
           nb::sig("def _recv_tree(self, key: str, source: object, *, timeout: float | "
                   "datetime.timedelta = ..., "
                   "device: object = None, require: str | None = None) -> tuple[bytes, "
                   "list[typing.Any]]"))
      .def("_recv_many", RecvMany, "keys"_a, "source"_a, nb::kw_only(),
           "timeout"_a.none() = Timeout::Default(), "outs"_a = nb::none(), "device"_a = nb::none(),
           "require"_a = nb::none(),
           nb::sig("def _recv_many(self, keys: collections.abc.Iterable[str], source: object, *, "
                   "timeout: float | datetime.timedelta = ..., "
                   "outs: object = None, device: object = None, require: str | None = None) -> "
                   "list[typing.Any]"))
      .def("flush", Flush, nb::kw_only(), "timeout"_a.none() = Timeout::Default(),
           nb::sig("def flush(self, *, timeout: float | datetime.timedelta = ...) -> None"),
           R"(Blocks until everything that this node has sent in the step so far has been received.

Raises FerryTimeoutError naming what was not; PeerDiedError if a receiver has died.)")
      .def(
          "close", Close, nb::kw_only(), "timeout"_a.none() = Timeout::Default(),
          nb::sig("def close(self, *, timeout: float | datetime.timedelta = ...) -> None"),
          R"(Flushes, and closes the step on this node, in any case. Pending receives end with StepClosedError.

A node cannot open the number again. Raises as flush.)")
      .def(
          "abort",
          [](PyStep& self, const std::string& reason) {
            self.joined->CheckNotForked();
            // The end of a block, which must not hide the block's exception.
            if (self.joined->is_closed()) return;
            std::shared_ptr<Node> node;
            Step& step = self.Use(node);
            {
              const nb::gil_scoped_release release;
              step.Abort(absl::CancelledError(reason));
            }
            DeferredReleases::Get().Run();
          },
          "reason"_a = "aborted by the program",
          "Closes the step on this node at once: its pending operations fail with the reason.");
}

}  // namespace ferry::python

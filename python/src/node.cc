// SPDX-License-Identifier: Apache-2.0
// ferry.Node's base: joining a job, its members, barriers, and memory.
#include "python/src/node.h"

#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "absl/strings/str_cat.h"
#include "python/src/arrays.h"
#include "python/src/deferred_release.h"
#include "python/src/tensor.h"
#include "python/src/waits.h"

namespace ferry::python {
namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

// The C++ state of ferry.Node.
struct PyNode {
  std::shared_ptr<JoinedNode> joined;
};

std::shared_ptr<JoinedNode> Join(std::optional<std::string> address, std::optional<int> rank,
                                 std::optional<int> world_size, nb::handle timeout,
                                 nb::handle connect_timeout, std::string transport,
                                 std::string listen, std::string advertise, bool recoverable,
                                 bool checksums, bool use_gpus, bool eager, std::string job_token,
                                 bool transfers, double polling, bool share_gpus,
                                 bool gpus_wait_on_device, size_t gpu_reserve_bytes,
                                 size_t pinned_reserve_bytes, size_t max_host_bytes) {
  NodeOptions options;
  options.coordinator_address = address.value_or("");
  options.rank = rank;
  options.num_nodes = world_size;
  options.connect_timeout = Timeout::Parse(connect_timeout, options.connect_timeout);
  options.topology_timeout = options.connect_timeout;
  options.is_recoverable = recoverable;
  options.transfer.enabled = transfers;
  options.transfer.use_gpus = use_gpus;
  options.transfer.required_transport = std::move(transport);
  options.transfer.listen_address = std::move(listen);
  options.transfer.advertised_address = std::move(advertise);
  options.transfer.use_checksums = checksums;
  options.transfer.use_eager_sends = eager;
  options.transfer.job_token = std::move(job_token);
  options.transfer.polling_time = absl::Seconds(polling);
  options.share_gpus = share_gpus;
  options.transfer.gpus_wait_on_device = gpus_wait_on_device;
  options.transfer.gpu_reserve_bytes = gpu_reserve_bytes;
  options.transfer.pinned_reserve_bytes = pinned_reserve_bytes;
  options.transfer.max_host_bytes = max_host_bytes;
  const absl::Duration default_timeout = Timeout::Parse(timeout, absl::Minutes(5));
  CancellationToken cancellation;
  options.cancellation = cancellation;
  auto node = CallInterruptibly<absl::StatusOr<std::unique_ptr<Node>>>(
      [options] { return Node::Join(options); },
      [cancellation]() mutable { cancellation.Cancel(absl::CancelledError("interrupted")); });
  return std::make_shared<JoinedNode>(ValueOf(std::move(node), {.waited = options.connect_timeout}),
                                      default_timeout);
}

nb::object Statuses(const PyNode& self) {
  const std::shared_ptr<Node> node = self.joined->Use();
  const auto nodes = ValueOf(CallInterruptibly<absl::StatusOr<std::vector<NodeStatus>>>(
      [node] { return node->coordinator().Nodes(); }));
  nb::list result;
  for (const NodeStatus& each : nodes) {
    const nb::object age = each.heartbeat_age == absl::InfiniteDuration()
                               ? nb::object(nb::none())
                               : nb::float_(absl::ToDoubleSeconds(each.heartbeat_age));
    const nb::object error =
        each.error.ok() ? nb::object(nb::none()) : nb::cast(std::string(each.error.message()));
    result.append(nb::make_tuple(each.rank, ToString(each.state), each.host_name, error, age));
  }
  return result;
}

void Leave(PyNode& self) {
  std::shared_ptr<Node> node = self.joined->Close();
  if (node == nullptr) return;
  // Its threads may be releasing what the program has lent.
  {
    const nb::gil_scoped_release release;
    (void)node->Leave();
    node = nullptr;
  }
  DeferredReleases::Get().Run();
}

}  // namespace

JoinedNode::JoinedNode(std::unique_ptr<Node> node, absl::Duration default_timeout)
    : node_(std::move(node)),
      default_timeout_(default_timeout),
      rank_(node_->rank()),
      world_size_(node_->num_nodes()),
      topology_(node_->topology()) {}

JoinedNode::~JoinedNode() {
  if (node_ == nullptr) return;
  if (fork_guard_.is_inherited()) {
    // Its threads are the parent's.
    [[maybe_unused]] auto* const leaked = new std::shared_ptr<Node>(std::move(node_));
    return;
  }
  const nb::gil_scoped_release release;
  node_ = nullptr;
}

void JoinedNode::CheckNotForked() const {
  if (fork_guard_.is_inherited()) {
    Raise(absl::FailedPreconditionError(
        "this process was forked from one that has joined a job, and cannot use its node: join "
        "after the fork, or start processes by \"spawn\" (multiprocessing.set_start_method)"));
  }
}

std::shared_ptr<Node> JoinedNode::Use() const {
  CheckNotForked();
  DeferredReleases::Get().Run();
  if (node_ == nullptr) Raise(ClosedError());
  return node_;
}

absl::Status JoinedNode::ClosedError() const {
  return absl::FailedPreconditionError(absl::StrCat("node ", rank_, " has left the job"));
}

std::string JoinedNode::HostOf(int rank) const {
  for (const NodeInfo& node : topology_.nodes()) {
    if (node.rank == rank) return node.host_name;
  }
  return "";
}

ErrorContext JoinedNode::ContextOf(std::string key, std::optional<int> peer) const {
  return {.key = std::move(key), .rank = peer, .host = peer.has_value() ? HostOf(*peer) : ""};
}

std::shared_ptr<Node> JoinedNode::Close() {
  if (fork_guard_.is_inherited()) return nullptr;
  return std::exchange(node_, nullptr);
}

Peer ParsePeer(nb::handle peer) {
  if (PyTuple_Check(peer.ptr())) {
    const auto pair = nb::borrow<nb::tuple>(peer);
    if (pair.size() != 2) RaiseValueError("a peer is a rank, or a pair of a rank and a device");
    Peer result = ParsePeer(pair[0]);
    result.device = ParseDevice(pair[1]);
    return result;
  }
  // Integers of other packages too.
  PyObject* const index = PyNumber_Index(peer.ptr());
  if (index == nullptr) throw nb::python_error();
  return {.rank = nb::cast<int>(nb::steal(index))};
}

void DefineNode(nb::module_& core) {
  core.def(
      "_await_interrupted_calls",
      [](double seconds) {
        const nb::gil_scoped_release release;
        return AwaitInterruptedCalls(absl::Seconds(seconds));
      },
      "seconds"_a);
  nb::class_<PyNode>(core, "Node")
      .def(
          "__init__",
          [](PyNode* self, std::optional<std::string> address, std::optional<int> rank,
             std::optional<int> world_size, nb::handle timeout, nb::handle connect_timeout,
             std::string transport, std::string listen, std::string advertise, bool recoverable,
             bool checksums, bool use_gpus, bool eager, std::string job_token, bool transfers,
             double polling, bool share_gpus, bool gpus_wait_on_device, size_t gpu_reserve_bytes,
             size_t pinned_reserve_bytes, size_t max_host_bytes) {
            new (self) PyNode{Join(std::move(address), rank, world_size, timeout, connect_timeout,
                                   std::move(transport), std::move(listen), std::move(advertise),
                                   recoverable, checksums, use_gpus, eager, std::move(job_token),
                                   transfers, polling, share_gpus, gpus_wait_on_device,
                                   gpu_reserve_bytes, pinned_reserve_bytes, max_host_bytes)};
          },
          "address"_a = nb::none(), nb::kw_only(), "rank"_a = nb::none(),
          "world_size"_a = nb::none(), "timeout"_a.none() = Timeout::Default(),
          "connect_timeout"_a.none() = Timeout::Default(), "transport"_a = "", "listen"_a = ":0",
          "advertise"_a = "", "recoverable"_a = false, "checksums"_a = false, "use_gpus"_a = true,
          "eager"_a = true, "job_token"_a = "", "transfers"_a = true, "polling"_a = 20e-6,
          "share_gpus"_a = false, "gpus_wait_on_device"_a = false, "gpu_reserve_bytes"_a = 0,
          "pinned_reserve_bytes"_a = 0, "max_host_bytes"_a = 0,
          nb::sig("def __init__(self, address: str | None = None, *, rank: int | None = None, "
                  "world_size: int | None = None, timeout: float | datetime.timedelta = ..., "
                  "connect_timeout: float | datetime.timedelta = ..., transport: str = '', "
                  "listen: str = ':0', advertise: str = '', recoverable: bool = False, "
                  "checksums: bool = False, use_gpus: bool = True, eager: bool = True, "
                  "job_token: str = '', transfers: bool = True, polling: float = 20e-6, "
                  "share_gpus: bool = False, gpus_wait_on_device: bool = False, "
                  "gpu_reserve_bytes: int = 0, pinned_reserve_bytes: int = 0, max_host_bytes: int "
                  "= 0) -> None"))
      .def_prop_ro(
          "rank", [](const PyNode& self) { return self.joined->rank(); }, "This process's rank.")
      .def_prop_ro(
          "world_size", [](const PyNode& self) { return self.joined->world_size(); },
          "The number of the job's processes.")
      .def_prop_ro(
          "timeout",
          [](const PyNode& self) { return absl::ToDoubleSeconds(self.joined->default_timeout()); },
          "The deadline of waits that are not given one, in seconds.")
      .def_prop_ro(
          "closed", [](const PyNode& self) { return self.joined->is_closed(); },
          "Whether it has left the job.")
      .def_prop_ro(
          "topology", [](const PyNode& self) { return self.joined->Use()->topology(); },
          nb::sig("def topology(self) -> Topology"),
          "The devices of all nodes and the links between them, the same on each node.")
      .def("_statuses", Statuses,
           nb::sig("def _statuses(self) -> list[tuple[int, str, str, str | None, float | None]]"))
      .def(
          "barrier",
          [](PyNode& self, const std::string& name, nb::handle timeout, std::vector<int> ranks) {
            const std::shared_ptr<Node> node = self.joined->Use();
            const absl::Duration limit = Timeout::Parse(timeout, self.joined->default_timeout());
            ErrorContext context{.key = name, .waited = limit};
            Check(CallOfNode<absl::Status>(
                      *self.joined,
                      [node, name, limit, ranks] {
                        return node->coordinator().Barrier(name, limit, ranks);
                      },
                      [node, name] { (void)node->coordinator().CancelBarrier(name); }),
                  context);
          },
          "name"_a, nb::kw_only(), "timeout"_a.none() = Timeout::Default(),
          "ranks"_a = std::vector<int>(),
          nb::sig("def barrier(self, name: str, *, timeout: float | datetime.timedelta = ..., "
                  "ranks: collections.abc.Sequence[int] = ...) -> None"),
          R"(Blocks until every node, or every one of `ranks`, has called this with the same name.

A name can be used again. Raises BarrierTimeout, whose `missing` are the ranks that have not come.)")
      .def(
          "live_ranks",
          [](PyNode& self, std::optional<std::vector<int>> ranks, nb::handle timeout) {
            const std::shared_ptr<Node> node = self.joined->Use();
            const absl::Duration limit = Timeout::Parse(timeout, self.joined->default_timeout());
            if (!ranks.has_value()) {
              ranks.emplace();
              for (int rank = 0; rank < self.joined->world_size(); ++rank) ranks->push_back(rank);
            }
            return ValueOf(
                CallOfNode<absl::StatusOr<std::vector<int>>>(
                    *self.joined,
                    [node, ranks, limit] { return node->coordinator().LiveNodes(*ranks, limit); }),
                {.waited = limit});
          },
          "ranks"_a = nb::none(), nb::kw_only(), "timeout"_a.none() = Timeout::Default(),
          nb::sig("def live_ranks(self, ranks: collections.abc.Sequence[int] | None = None, *, "
                  "timeout: float | datetime.timedelta = ...) -> list[int]"),
          R"(The ranks of `ranks` (default: all) that are alive, the same on each of them.

Collective: blocks until each live node of `ranks` has called this.)")
      .def(
          "empty",
          [](PyNode& self, nb::handle shape, nb::handle dtype, nb::handle device) {
            const std::shared_ptr<Node> node = self.joined->Use();
            std::vector<int64_t> extents;
            if (PyLong_Check(shape.ptr())) {
              extents.push_back(nb::cast<int64_t>(shape));
            } else {
              for (const nb::handle extent : nb::iter(shape))
                extents.push_back(nb::cast<int64_t>(extent));
            }
            const DataType type = ParseDtype(dtype);
            const Device where = ParseDevice(device);
            absl::StatusOr<Tensor> tensor;
            {
              const nb::gil_scoped_release release;
              tensor = node->Allocate(where, type, extents);
            }
            return PyTensor(ValueOf(std::move(tensor)), /*is_writable=*/true);
          },
          "shape"_a, "dtype"_a = "float32", nb::kw_only(), "device"_a = "cpu",
          nb::sig("def empty(self, shape: int | collections.abc.Sequence[int], dtype: typing.Any = "
                  "'float32', *, "
                  "device: typing.Any = 'cpu') -> Tensor"),
          R"(An uninitialized tensor in memory that processes of this host receive without a copy.

Fill it (numpy.asarray(tensor)[:] = ...), send it, and do not write it afterwards: its receivers read the
same memory.)")
      .def(
          "explain_path",
          [](PyNode& self, nb::handle source, size_t nbytes, nb::handle device, bool allocated) {
            const std::shared_ptr<Node> node = self.joined->Use();
            const Peer peer = ParsePeer(source);
            const Device here = device.is_none() ? Device::Host() : ParseDevice(device);
            const TensorId id = {.name = "x",
                                 .source = peer.rank,
                                 .destination = self.joined->rank(),
                                 .source_device = peer.device.value_or(here),
                                 .destination_device = here};
            return ValueOf(
                CallInterruptibly<absl::StatusOr<std::string>>([node, id, nbytes, allocated] {
                  return node->ExplainPath(id, nbytes, allocated);
                }),
                self.joined->ContextOf("", peer.rank));
          },
          "source"_a, "nbytes"_a, nb::kw_only(), "device"_a = nb::none(), "allocated"_a = true,
          nb::sig("def explain_path(self, source: int | tuple[int, typing.Any], nbytes: int, *, "
                  "device: typing.Any = None, allocated: bool = True) -> str"),
          R"(The path that a tensor of that size would take to this node, and why the others were not selected, for people.

Small tensors may come "eager" or "inline" instead. allocated: it was made by the sender's Node.empty.)")
      .def(
          "prepare_gpu",
          [](PyNode& self, nb::handle device) {
            const std::shared_ptr<Node> node = self.joined->Use();
            const Device gpu = ParseDevice(device);
            Check(CallInterruptibly<absl::Status>([node, gpu] { return node->PrepareGpu(gpu); }));
          },
          "device"_a, nb::sig("def prepare_gpu(self, device: typing.Any) -> None"),
          "Opens a GPU of this process now, and not on its first use, which takes hundreds of "
          "milliseconds.")
      .def("close", &Leave,
           "Leaves the job; the other nodes continue. Close steps first: peers can no longer fetch "
           "what this node has "
           "sent. Received tensors stay valid. Has no effect the second time.")
      .def(
          "shutdown",
          [](PyNode& self) {
            const std::shared_ptr<Node> node = self.joined->Use();
            const absl::Status status =
                CallInterruptibly<absl::Status>([node] { return node->ShutdownCollective(); });
            Leave(self);
            Check(status);
          },
          "Leaves the job together with all other nodes: blocks until each has called this or has "
          "failed.")
      .def(
          "fail",
          [](PyNode& self, const std::string& reason) {
            const std::shared_ptr<Node> node = self.joined->Use();
            {
              const nb::gil_scoped_release release;
              node->FailJob(absl::UnknownError(reason));
            }
            Leave(self);
          },
          "reason"_a,
          "Leaves because of an error: the job fails, and operations of other nodes that wait for "
          "this one end with "
          "the reason.")
      .def(
          "job_error",
          [](PyNode& self) -> nb::object {
            const std::shared_ptr<Node> node = self.joined->Use();
            const auto status =
                CallInterruptibly<absl::Status>([node] { return node->coordinator().JobStatus(); });
            return status.ok() ? nb::object(nb::none()) : nb::cast(std::string(status.message()));
          },
          nb::sig("def job_error(self) -> str | None"), "Why the job has failed, or None.");
}

// For step.cc and store.cc, which are given a Python object.
std::shared_ptr<JoinedNode> JoinedNodeOf(nb::handle node) {
  return nb::cast<const PyNode&>(node).joined;
}

}  // namespace ferry::python

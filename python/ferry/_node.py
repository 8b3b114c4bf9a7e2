# SPDX-License-Identifier: Apache-2.0
"""Node: this process as a member of a job."""
import atexit
import types
import typing
import weakref

from ferry import _async, _core
from ferry._errors import text_of
from ferry._step import Step
from ferry._store import Store, Watch

# Left by a program that ends without leaving the job: the others would miss this node after the heartbeat timeout.
_open_nodes: "weakref.WeakSet[Node]" = weakref.WeakSet()


class NodeStatus(typing.NamedTuple):
    """A node as the coordinator sees it."""

    rank: int
    state: str
    """"not joined", "joined", "left" or "failed"."""
    host: str
    error: typing.Optional[str]
    """Why it has failed."""
    heartbeat_age: typing.Optional[float]
    """Seconds since its last sign of life; None if there was none."""


class Node(_core.Node):
    """This process as a member of a job; made by join().

    A context manager: its end leaves the job. An exception that leaves the block fails the job, so that the other
    nodes learn of it at once, with its text.

    Methods may be called by several threads. A child of os.fork cannot use it.
    """

    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None:
        super().__init__(*args, **kwargs)
        self.store = Store(self)
        """The job's key-value store."""
        _open_nodes.add(self)

    def step(self, step_id: int) -> Step:
        """Opens a step, a scope of sends and receives: what is sent in a step is received in the same one.

        Every node that takes part opens the same number, in any order; what arrives earlier waits.
        Raises StepClosedError if this node has closed it already.
        """
        return Step(self, step_id)

    def watch(self, prefix: str) -> Watch:
        """The changes of the store's keys that begin with `prefix`: first those that exist, then every change in order."""
        return Watch(self, prefix)

    def communicator(self, devices: typing.Sequence[int], **arguments: typing.Any) -> _core.Communicator:
        """An NCCL communicator of these GPUs, given by their global ids (Topology.devices) in the order of their ranks.

        Collective: every node that owns one of them calls this with the same list. own_device: the one of them for
        which the call is made, if several are this node's; timeout: how long to wait for the other ranks.
        Raises FerryTimeoutError naming the ranks that have not called this; InvalidArgumentError; PeerDiedError if NCCL was
        not found, naming where it was looked for, or a rank has died.
        """
        return _core.Communicator(self, devices, **arguments)

    def status(self) -> typing.List[NodeStatus]:
        """The state of every node, by rank. Not collective."""
        return [NodeStatus(*each) for each in self._statuses()]

    def alive(self) -> typing.List[int]:
        """The ranks that have joined and live, as the coordinator sees them. Not collective; see live_ranks."""
        return [each.rank for each in self.status() if each.state == "joined"]

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, kind: typing.Optional[typing.Type[BaseException]], error: typing.Optional[BaseException],
                 traceback: typing.Optional[types.TracebackType]) -> None:
        is_failure = error is not None and not (isinstance(error, SystemExit) and not error.code)
        if is_failure and not self.closed:
            self.fail(text_of(error))
        else:
            self.close()

    async def __aenter__(self) -> "Node":
        return self

    async def __aexit__(self, kind: typing.Optional[typing.Type[BaseException]],
                        error: typing.Optional[BaseException],
                        traceback: typing.Optional[types.TracebackType]) -> None:
        await _async.run_blocking(lambda: self.__exit__(kind, error, traceback))

    async def abarrier(self, name: str, **arguments: typing.Any) -> None:
        """barrier() for coroutines."""
        await _async.run_blocking(lambda: self.barrier(name, **arguments))

    def __repr__(self) -> str:
        return f"<ferry.Node rank {self.rank} of {self.world_size}{', closed' if self.closed else ''}>"


def join(*args: typing.Any, **kwargs: typing.Any) -> Node:
    """Joins a job, and blocks until all of its nodes have.

    address: the coordinator, "HOST:PORT". Without it, all comes from the environment of `ferry run`, torchrun,
        Open MPI, MPICH, Slurm or Kubernetes, or from FERRY_COORDINATOR, FERRY_NODE_ID and FERRY_NUM_NODES.
    rank, world_size: this process's rank, and the number of processes.
    timeout: the deadline, in seconds, of all waits of this node that are not given one; default: 300.
    connect_timeout: how long to wait for the coordinator and for the other nodes; default: 300.
    transport: the only transport that may be used, such as "tcp"; default: the cheapest for each pair.
    listen, advertise: the address on which other hosts connect, and by which they reach it.
    recoverable: this process may die and come back without failing the job.
    checksums: verify every tensor; on all nodes or none.
    use_gpus: whether tensors in the memory of GPUs are moved.
    polling: for how many seconds a wait polls before it sleeps; longer polling saves wake-ups, and takes a core.
    share_gpus: this node's GPUs may also be used by other nodes; on all of them.
    gpus_wait_on_device: streams of GPUs wait on the device for tensors that are not complete (docs/gpu.md); on both nodes.
    gpu_reserve_bytes, pinned_reserve_bytes: memory of each GPU that is used, and pinned host memory, to allocate when the
        GPU is opened.
    max_host_bytes: limit on the host memory of empty() that other processes can map.
    transfers: False: only the store, barriers and the topology are used.

    Raises InvalidArgumentError naming what is missing, after it has told the nodes that wait for this one, for which it
    takes 20 s at most if there are none; BarrierTimeout whose `missing` are the ranks that have not joined;
    FerryTimeoutError if the coordinator did not answer; KeyExistsError if the rank is taken.
    """
    return Node(*args, **kwargs)


@atexit.register
def _close_nodes() -> None:
    for node in list(_open_nodes):
        node.close()
    # Their threads end with the nodes' departure.
    _core._await_interrupted_calls(5.0)

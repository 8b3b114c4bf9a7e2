"""The C++ part of the package ferry, which has its public names."""

from collections.abc import Generator, Iterable, Sequence
import datetime
from typing import Any, final


class CompletionQueue:
    def __init__(self) -> None: ...

    def fileno(self) -> int:
        """Readable while there are tickets to take."""

    def take(self) -> list[int]:
        """The tickets of transfers that are done, in order."""

@final
class Tensor():
    """
    A dense, row-major array in host memory or in that of a GPU.

    Received tensors may be views of the sender's memory: they are read-only, and the sender's memory stays
    in use until the last view of it is gone, those that other packages hold included. Node.empty makes
    tensors that processes of the same host receive without a copy.

    Other packages view it without a copy: by DLPack (torch.from_dlpack, jax.dlpack.from_dlpack,
    numpy.from_dlpack), on the host by the buffer protocol (numpy.asarray, memoryview), on a GPU by the CUDA
    array interface (cupy.asarray).
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents; () for a scalar."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""

    @property
    def size(self) -> int:
        """The number of elements."""

    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes."""

    @property
    def dtype(self) -> str:
        """
        The type of the elements, by its name in NumPy or ml_dtypes: "float32", "bfloat16".
        """

    @property
    def device(self) -> str:
        """"cpu", or a GPU of this process: "cuda:0"."""

    @property
    def readonly(self) -> bool:
        """
        Whether the elements must not be written: they were sent, or are a peer's.
        """

    @property
    def data_ptr(self) -> int:
        """
        The address of the first element, valid while the tensor is not released.
        """

    def numpy(self) -> Any:
        """
        A NumPy array of the same memory. bfloat16 and float8 need the package ml_dtypes.

        Raises BufferError for memory of a GPU.
        """

    def torch(self) -> Any:
        """A torch.Tensor of the same memory."""

    def jax(self) -> Any:
        """A jax.Array of the same memory where JAX can view it, or of a copy."""

    def strings(self) -> list[bytes]:
        """The elements of a tensor of byte strings, in order."""

    def tobytes(self) -> bytes:
        """A copy of the elements' bytes."""

    def reshape(self, shape: Sequence[int]) -> Tensor:
        """
        The same elements in another shape, of the same memory. Raises ValueError unless the sizes agree.
        """

    def rows(self, first: int, count: int) -> Tensor:
        """
        Rows first to first + count - 1 of the first dimension, of the same memory.
        """

    def release(self) -> None:
        """
        Gives the memory up, unless other views of it exist. The tensor cannot be used afterwards. Deleting the last reference does the same.
        """

    def __enter__(self) -> Tensor: ...

    def __exit__(self, *args: object) -> None: ...

    def __len__(self) -> int: ...

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

    def __reduce__(self) -> Any: ...

    def __repr__(self) -> str: ...

    __dlpack_c_exchange_api__: object

class DeviceInfo:
    """A device of the job: the host memory or a GPU of a node."""

    @property
    def global_id(self) -> int:
        """Position in Topology.devices, the same on all nodes."""

    @property
    def rank(self) -> int:
        """The rank of its node."""

    @property
    def device(self) -> str:
        """Its name within the node: "cpu", "cuda:0"."""

    @property
    def model(self) -> str:
        """The name of the GPU or processor: "NVIDIA H200"."""

    @property
    def uuid(self) -> str:
        """Empty for hosts, shared GPUs, and if unknown."""

    @property
    def pci_bus_id(self) -> str:
        """Empty for hosts."""

    @property
    def compute_capability(self) -> tuple[int, int]:
        """(0, 0) for hosts."""

    @property
    def core_count(self) -> int:
        """Streaming multiprocessors of a GPU, physical cores of a host."""

    @property
    def memory_bytes(self) -> int:
        """0 if unknown."""

    @property
    def numa_node(self) -> int:
        """-1 if unknown, or if the host has several."""

    def __repr__(self) -> str: ...

class NodeInfo:
    """A node of the job."""

    @property
    def rank(self) -> int:
        """Its rank."""

    @property
    def host_name(self) -> str:
        """For display: two hosts may have the same name."""

    @property
    def partition(self) -> int:
        """
        Nodes whose GPUs share an NVLink fabric, or else a host, are in one partition.
        """

    @property
    def devices(self) -> list[int]:
        """Global ids of its devices."""

    def __repr__(self) -> str: ...

class Link:
    """The best path between two devices."""

    @property
    def type(self) -> str:
        """
        As nvidia-smi names it: "LOC" (the device itself), "NVL", "PIX", "PXB", "PHB", "NODE", "SYS", "NET", "DIS" (unknown).
        """

    @property
    def nvlink_count(self) -> int:
        """0 if there are none, or if unknown."""

    @property
    def bandwidth_bytes_per_s(self) -> int:
        """Nominal, in one direction; 0 if unknown."""

    def __repr__(self) -> str: ...

class Topology:
    """
    The devices of all nodes of a job, and the links between them; the same on every node.
    """

    @property
    def nodes(self) -> list[NodeInfo]:
        """By rank."""

    @property
    def devices(self) -> list[DeviceInfo]:
        """By global id."""

    def find_device(self, rank: int, device: Any) -> int | None:
        """The global id of a node's device, or None."""

    def same_host(self, rank_a: int, rank_b: int) -> bool:
        """Whether both nodes run on one host."""

    def link(self, a: int, b: int) -> Link:
        """
        The path between two devices, by their global ids. Raises ValueError if there is no such device.
        """

    def __repr__(self) -> str: ...

class Transfer:
    """
    One send or receive, made by Step.isend and Step.irecv.

    Wait for it by wait(), or by await in a coroutine. Dropping the last reference cancels a receive that is
    not done.
    """

    def wait(self, timeout: float | datetime.timedelta = ...) -> Any:
        """
        Blocks until it is done, for `timeout` seconds at most (default: the job's timeout).

        A receive is done when its elements are complete; returns the ferry.Tensor, or the array given as out=.
        A send is done when the array's memory may be changed or freed; returns None. That is no proof of its
        arrival: Step.flush is.

        Raises what the operation fails with, or FerryTimeoutError, which does not end the operation.
        """

    def done(self) -> bool:
        """
        Whether wait() would return at once. Never blocks; handles what has arrived, so that a program may poll.
        """

    def cancel(self) -> None:
        """
        Ends a receive that is not done: waits for it raise TransferCancelledError. Has no effect on a send, which ends with its step.
        """

    @property
    def path(self) -> str | None:
        """
        The path by which a received tensor came: "shm", "tcp", "cuda_ipc", "nccl", "local" (this process); for small ones "eager" or "inline". A detail may follow after a comma: "cuda_ipc, copy". None for sends, and until it is done.
        """

    @property
    def buffer_released(self) -> bool:
        """
        Whether the memory of the array that was given (the one sent, or out=) is used no more, so that it may be changed or freed. Also meaningful after errors and timeouts.
        """

    @property
    def key(self) -> str:
        """The key by which both sides know it."""

    @property
    def peer(self) -> int:
        """The rank of the other side."""

    def _notify(self, queue: CompletionQueue, ticket: int) -> None: ...

    @property
    def _ends_by_itself(self) -> bool: ...

    def _check_receiver(self) -> None:
        """
        Raises what the receiver of a send has died of, if it has not taken all that was sent.
        """

    def _seconds(self, timeout: object) -> float:
        """A timeout= argument in seconds, or the job's for `...`."""

    def _result(self, waited: float) -> object:
        """As wait(), of a wait that was `waited` seconds long and is over."""

    def __await__(self) -> Generator[Any, None, Any]: ...

    def __repr__(self) -> str: ...

def _await_interrupted_calls(seconds: float) -> bool: ...

class Node:
    def __init__(self, address: str | None = None, *, rank: int | None = None, world_size: int | None = None, timeout: float | datetime.timedelta = ..., connect_timeout: float | datetime.timedelta = ..., transport: str = '', listen: str = ':0', advertise: str = '', recoverable: bool = False, checksums: bool = False, use_gpus: bool = True, eager: bool = True, job_token: str = '', transfers: bool = True, polling: float = 20e-6, share_gpus: bool = False, gpus_wait_on_device: bool = False, gpu_reserve_bytes: int = 0, pinned_reserve_bytes: int = 0, max_host_bytes: int = 0) -> None: ...

    @property
    def rank(self) -> int:
        """This process's rank."""

    @property
    def world_size(self) -> int:
        """The number of the job's processes."""

    @property
    def timeout(self) -> float:
        """The deadline of waits that are not given one, in seconds."""

    @property
    def closed(self) -> bool:
        """Whether it has left the job."""

    @property
    def topology(self) -> Topology:
        """
        The devices of all nodes and the links between them, the same on each node.
        """

    def _statuses(self) -> list[tuple[int, str, str, str | None, float | None]]: ...

    def barrier(self, name: str, *, timeout: float | datetime.timedelta = ..., ranks: Sequence[int] = ...) -> None:
        """
        Blocks until every node, or every one of `ranks`, has called this with the same name.

        A name can be used again. Raises BarrierTimeout, whose `missing` are the ranks that have not come.
        """

    def live_ranks(self, ranks: Sequence[int] | None = None, *, timeout: float | datetime.timedelta = ...) -> list[int]:
        """
        The ranks of `ranks` (default: all) that are alive, the same on each of them.

        Collective: blocks until each live node of `ranks` has called this.
        """

    def empty(self, shape: int | Sequence[int], dtype: Any = 'float32', *, device: Any = 'cpu') -> Tensor:
        """
        An uninitialized tensor in memory that processes of this host receive without a copy.

        Fill it (numpy.asarray(tensor)[:] = ...), send it, and do not write it afterwards: its receivers read the
        same memory.
        """

    def explain_path(self, source: int | tuple[int, Any], nbytes: int, *, device: Any = None, allocated: bool = True) -> str:
        """
        The path that a tensor of that size would take to this node, and why the others were not selected, for people.

        Small tensors may come "eager" or "inline" instead. allocated: it was made by the sender's Node.empty.
        """

    def prepare_gpu(self, device: Any) -> None:
        """
        Opens a GPU of this process now, and not on its first use, which takes hundreds of milliseconds.
        """

    def close(self) -> None:
        """
        Leaves the job; the other nodes continue. Close steps first: peers can no longer fetch what this node has sent. Received tensors stay valid. Has no effect the second time.
        """

    def shutdown(self) -> None:
        """
        Leaves the job together with all other nodes: blocks until each has called this or has failed.
        """

    def fail(self, reason: str) -> None:
        """
        Leaves because of an error: the job fails, and operations of other nodes that wait for this one end with the reason.
        """

    def job_error(self) -> str | None:
        """Why the job has failed, or None."""

class Step:
    def __init__(self, node: Node, step_id: int) -> None: ...

    @property
    def id(self) -> int:
        """The step's number."""

    def send(self, array: Any, key: str, to: int | tuple[int, Any], *, timeout: float | datetime.timedelta = ..., stream: Any = None) -> None:
        """
        Sends an array to rank `to`, which receives it by the same key in the same step.

        Returns when the array may be changed again: at once for ferry.Tensors, which must not be written any more,
        for bytes, and for arrays in host memory of up to 64 KiB; for others when the receiver has them, so that two
        nodes that send to each other first, and then receive, may wait for each other: use isend there.

        array: anything with __dlpack__ or the buffer protocol, in host memory or that of a GPU. Arrays that are not
            contiguous are copied.
        to: a rank, or a pair of a rank and the device there ((1, "cuda:0")); by default the one that has the name of
            the array's own.
        stream: the CUDA stream that writes the array (default: its package's current stream). No thread waits for it.

        Raises FerryTimeoutError if the receiver has not got it in time; PeerDiedError; StepClosedError.
        """

    def isend(self, array: Any, key: str, to: int | tuple[int, Any], *, stream: Any = None) -> Transfer:
        """
        As send, but returns at once. Do not change the array before the transfer is done.
        """

    def recv(self, key: str, source: int | tuple[int, Any], *, timeout: float | datetime.timedelta = ..., out: Any = None, like: Any = None, stream: Any = None, device: Any = None, require: str | None = None) -> Any:
        """
        Receives the array that rank `source` sends by the same key in the same step.

        Returns a ferry.Tensor, which may be a view of the sender's memory; or `out`, filled; or what `like` says.

        source: a rank, or a pair of a rank and the array's device there; by default the one that has the name of
            `device`.
        out: an array to receive into, of the same type and size.
        like: "numpy", "torch", "jax", or one of these modules: the type of array to return.
        stream: the CUDA stream that reads the array: it is then ordered behind the transfer, for which no thread waits.
        device: where to receive it, if there is no out=; default: host memory.
        require: the path by which it must have come, such as "shm"; see Transfer.path.

        Raises FerryTimeoutError, whose `phase` says how far the transfer has got; PeerDiedError, whose `rank` and
        `host` are the sender's; StepClosedError; ValueError if `out` is of another type or size.
        """

    def irecv(self, key: str, source: int | tuple[int, Any], *, timeout: float | datetime.timedelta = ..., out: Any = None, stream: Any = None, device: Any = None, require: str | None = None) -> Transfer:
        """
        As recv, but returns at once. The receive fails `timeout` seconds after this call.
        """

    def _send_many(self, items: object, to: object) -> list[Transfer]: ...

    def _send_tree(self, description: bytes, arrays: object, key: str, to: object) -> list[Transfer]: ...

    def _recv_tree(self, key: str, source: object, *, timeout: float | datetime.timedelta = ..., device: object = None, require: str | None = None) -> tuple[bytes, list[Any]]: ...

    def _recv_many(self, keys: Iterable[str], source: object, *, timeout: float | datetime.timedelta = ..., outs: object = None, device: object = None, require: str | None = None) -> list[Any]: ...

    def flush(self, *, timeout: float | datetime.timedelta = ...) -> None:
        """
        Blocks until everything that this node has sent in the step so far has been received.

        Raises FerryTimeoutError naming what was not; PeerDiedError if a receiver has died.
        """

    def close(self, *, timeout: float | datetime.timedelta = ...) -> None:
        """
        Flushes, and closes the step on this node, in any case. Pending receives end with StepClosedError.

        A node cannot open the number again. Raises as flush.
        """

    def abort(self, reason: str = 'aborted by the program') -> None:
        """
        Closes the step on this node at once: its pending operations fail with the reason.
        """

class Store:
    def __init__(self, node: Node) -> None: ...

    def get(self, key: str | bytes, *, timeout: float | datetime.timedelta = ...) -> bytes:
        """
        The key's value. Waits until it exists; store[key] does not.

        Raises FerryTimeoutError naming the key.
        """

    def get_many(self, keys: Iterable[str | bytes], *, timeout: float | datetime.timedelta = ...) -> list[bytes]:
        """The values of all keys, in one round trip. Waits until all exist."""

    def _try_get(self, key: str | bytes) -> bytes | None: ...

    def _list(self, prefix: str | bytes) -> list[tuple[str, bytes]]: ...

    def set(self, key: str | bytes, value: str | bytes, *, overwrite: bool = True) -> None:
        """
        Sets the key. Raises KeyExistsError if it exists and overwrite is False.
        """

    def add(self, key: str | bytes, delta: int = 1) -> int:
        """
        Adds to the decimal number that the key holds, 0 if it does not exist, and returns the sum.
        """

    def compare_set(self, key: str | bytes, expected: str | bytes | None, desired: str | bytes) -> bool:
        """
        Sets the key if it holds `expected` (None: if it does not exist). Returns whether it did.
        """

    def delete(self, key: str | bytes, *, subtree: bool = False) -> None:
        """
        Deletes the key, if it exists; with `subtree` also all keys that begin with it and "/".
        """

class Watch:
    def __init__(self, node: object, prefix: object) -> None: ...

    def next(self, *, timeout: float | datetime.timedelta = ...) -> tuple[str, bytes | None, int]:
        """
        The next change, in order: the key, its value or None if it was deleted, and its revision, which grows with every
        change of the store.

        Raises FerryTimeoutError.
        """

    def _poll(self) -> tuple[str, bytes | None, int] | None: ...

    def _take_signal(self) -> None: ...

    def fileno(self) -> int:
        """A descriptor that is readable when there are changes."""

    def close(self) -> None:
        """Ends the watch."""

class Communicator:
    """
    One rank of an NCCL communicator, made by Node.communicator.

    All ranks issue the same operations in the same order. Operations enqueue work on a CUDA stream (default: that of the
    array's package) and return; later work of the stream runs after it. Keep the arrays until it has completed.
    """

    def __init__(self, node: Node, devices: Sequence[int], *, own_device: int | None = None, timeout: float | datetime.timedelta = ..., max_ctas: int = 0) -> None: ...

    def __del__(self) -> None: ...

    @property
    def rank(self) -> int:
        """This process's rank in it."""

    @property
    def size(self) -> int:
        """The number of its ranks."""

    @property
    def device(self) -> str:
        """The GPU of this rank: "cuda:0"."""

    @property
    def stream(self) -> int:
        """
        The handle of a stream of that GPU, for programs that have none of their own.
        """

    def all_reduce(self, input: Any, output: Any = None, *, op: str = 'sum', stream: Any = None) -> None:
        """
        Reduces element by element over all ranks: "sum", "prod", "max" or "min". Without output: in place.
        """

    def broadcast(self, array: Any, root: int, *, stream: Any = None) -> None:
        """Copies the array of rank `root` to that of every other rank."""

    def all_gather(self, input: Any, output: Any, *, stream: Any = None) -> None:
        """
        Concatenates the inputs of all ranks; output has `size` times the elements of input.
        """

    def check(self) -> None:
        """
        Raises if a rank has abandoned the communicator: operations in flight may then never complete.
        """

    def abort(self, reason: str = 'aborted by the program') -> None:
        """Aborts its operations on all ranks, permanently."""

    def release(self) -> None:
        """
        Gives it back: operations in flight must have completed. An idle one is kept for the next call.
        """

    def __enter__(self) -> Communicator: ...

    def __exit__(self, *args: object) -> None: ...

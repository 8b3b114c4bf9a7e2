# SPDX-License-Identifier: Apache-2.0
"""Step: a scope of sends and receives."""
import types
import typing

from ferry import _async, _core, _tree
from ferry._errors import text_of

if typing.TYPE_CHECKING:
    import datetime

    Timeout = typing.Union[float, "datetime.timedelta"]

Peer = typing.Union[int, typing.Tuple[int, typing.Any]]


class Step(_core.Step):
    """A scope of sends and receives, from Node.step: what is sent in a step is received in the same one.

    A context manager: its end closes the step, which waits until all that was sent has been received. An exception
    that leaves the block aborts the step instead.
    """

    async def arecv(self, key: str, source: Peer, *, like: typing.Any = None, **arguments: typing.Any) -> typing.Any:
        """recv() for coroutines. Cancelling the task cancels the receive."""
        if like is not None and arguments.get("out") is not None:
            raise TypeError("like= and out= exclude each other")
        transfer = self.irecv(key, source, **arguments)
        try:
            received = await transfer
        finally:
            # Without effect on one that is done.
            transfer.cancel()
        return received if like is None else _convert(received, like)

    async def asend(self, array: typing.Any, key: str, to: Peer, *, timeout: typing.Any = ...,
                    **arguments: typing.Any) -> None:
        """send() for coroutines."""
        await _async.wait(self.isend(array, key, to, **arguments), timeout)

    async def aflush(self, **arguments: typing.Any) -> None:
        """flush() for coroutines."""
        await _async.run_blocking(lambda: self.flush(**arguments))

    async def aclose(self, **arguments: typing.Any) -> None:
        """close() for coroutines."""
        await _async.run_blocking(lambda: self.close(**arguments))

    def send_many(self, arrays: typing.Mapping[str, typing.Any], to: Peer, **arguments: typing.Any) -> None:
        """Sends each array by its key, as send() does; small ones share messages."""
        wait_all(self.isend_many(arrays, to), **arguments)

    def isend_many(self, arrays: typing.Mapping[str, typing.Any], to: Peer) -> typing.List[_core.Transfer]:
        """As send_many, but returns at once, with a transfer for each array in order."""
        return self._send_many(arrays.items(), to)

    def recv_many(self, keys: typing.Iterable[str], source: Peer, *, out: typing.Optional[typing.Sequence[typing.Any]] = None,
                  like: typing.Any = None, **arguments: typing.Any) -> typing.Dict[str, typing.Any]:
        """Receives the arrays of all keys, which are requested together; returns them by their keys, in order.

        out: arrays to receive into, in the order of the keys. Raises as recv, for the first that fails.
        """
        if like is not None and out is not None:
            raise TypeError("like= and out= exclude each other")
        names = list(keys)
        if out is not None and len(out) != len(names):
            raise ValueError(f"there are {len(out)} arrays in out= for {len(names)} keys")
        received = self._recv_many(names, source, outs=out, **arguments)
        if like is not None:
            received = [_convert(each, like) for each in received]
        return dict(zip(names, received))

    def send_tree(self, tree: typing.Any, key: str, to: Peer, **arguments: typing.Any) -> None:
        """Sends nested dicts (whose keys are str), lists and tuples of arrays, None, bool, int, float, str and bytes.

        Arrays in host memory of up to 64 KiB travel in one message with the description of the tree, the others in
        one batch. Raises as send; TypeError naming the path of what is none of these.
        """
        wait_all(self.isend_tree(tree, key, to), **arguments)

    def isend_tree(self, tree: typing.Any, key: str, to: Peer) -> typing.List[_core.Transfer]:
        """As send_tree, but returns at once, with the transfers of the large arrays."""
        description, leaves = _tree.flatten(tree)
        return self._send_tree(description, leaves, key, to)

    def recv_tree(self, key: str, source: Peer, *, like: typing.Any = None, **arguments: typing.Any) -> typing.Any:
        """Receives what send_tree sends, with ferry.Tensors, or what `like` says, in the places of arrays.

        Small tensors are views of one message, whose memory stays in use while any of them does.
        """
        description, received = self._recv_tree(key, source, **arguments)
        if like is not None:
            received = [_convert(each, like) for each in received]
        return _tree.build(description, received)

    def __enter__(self) -> "Step":
        return self

    def __exit__(self, kind: typing.Optional[typing.Type[BaseException]], error: typing.Optional[BaseException],
                 traceback: typing.Optional[types.TracebackType]) -> None:
        if error is None:
            self.close()
        else:
            self.abort(text_of(error))

    async def __aenter__(self) -> "Step":
        return self

    async def __aexit__(self, kind: typing.Optional[typing.Type[BaseException]],
                        error: typing.Optional[BaseException],
                        traceback: typing.Optional[types.TracebackType]) -> None:
        if error is None:
            await self.aclose()
        else:
            self.abort(text_of(error))

    def __repr__(self) -> str:
        return f"<ferry.Step {self.id}>"


def wait_all(transfers: typing.Iterable[_core.Transfer], **arguments: typing.Any) -> typing.List[typing.Any]:
    """Waits for all transfers, each for `timeout` seconds at most; returns their results in order.

    Raises the first error in that order; the others continue.
    """
    return [transfer.wait(**arguments) for transfer in transfers]


def _convert(received: typing.Any, like: typing.Any) -> typing.Any:
    from ferry import _numpy

    return _numpy.convert(received, like)

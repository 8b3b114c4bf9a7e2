# SPDX-License-Identifier: Apache-2.0
"""Transfers in asyncio: one eventfd for each event loop wakes the coroutines whose transfers are done."""
import asyncio
import typing
import weakref

from ferry import _core


class _LoopQueue:
    """The transfers that coroutines of one event loop wait for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = _core.CompletionQueue()
        # Not the loop itself, which would keep it alive.
        self._loop = weakref.ref(loop)
        self._futures: typing.Dict[int, "asyncio.Future[None]"] = {}
        self._next_ticket = 0

    def wait_for(self, transfer: "_core.Transfer") -> "asyncio.Future[None]":
        loop = self._loop()
        assert loop is not None
        future: "asyncio.Future[None]" = loop.create_future()
        self._next_ticket += 1
        ticket = self._next_ticket
        if not self._futures:
            # While nothing is waited for, the loop has nothing to watch, and may be closed.
            loop.add_reader(self._queue.fileno(), self._wake)
        self._futures[ticket] = future
        transfer._notify(self._queue, ticket)
        return future

    def _wake(self) -> None:
        for ticket in self._queue.take():
            future = self._futures.pop(ticket, None)
            if future is not None and not future.done():
                future.set_result(None)
        if not self._futures:
            loop = self._loop()
            if loop is not None:
                loop.remove_reader(self._queue.fileno())


_queues: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopQueue]" = weakref.WeakKeyDictionary()


async def wait(transfer: "_core.Transfer", timeout: typing.Any = ...) -> typing.Any:
    """Transfer.wait() for coroutines. Without a timeout, a receive ends at its own."""
    seconds = transfer._seconds(timeout)
    if not transfer.done():
        loop = asyncio.get_running_loop()
        queue = _queues.get(loop)
        if queue is None:
            queue = _queues[loop] = _LoopQueue(loop)
        future = queue.wait_for(transfer)
        if transfer._ends_by_itself and timeout is ...:
            await future
        else:
            await asyncio.wait([future], timeout=seconds)
            if not transfer._ends_by_itself and transfer.done():
                transfer._check_receiver()
    return transfer._result(seconds)


def await_transfer(transfer: "_core.Transfer") -> typing.Generator[typing.Any, None, typing.Any]:
    """Transfer.__await__."""
    return wait(transfer).__await__()


async def run_blocking(call: typing.Callable[[], typing.Any]) -> typing.Any:
    """The result of a call that blocks, on a thread of the loop's executor."""
    return await asyncio.get_running_loop().run_in_executor(None, call)

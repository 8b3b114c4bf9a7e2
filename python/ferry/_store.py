# SPDX-License-Identifier: Apache-2.0
"""The job's key-value store, also as a mapping."""
import asyncio
import types
import typing

from ferry import _core
from ferry._errors import FerryTimeoutError

Key = typing.Union[str, bytes]


class KeyChange(typing.NamedTuple):
    """A change of the store."""

    key: str
    value: typing.Optional[bytes]
    """None: the key was deleted."""
    revision: int
    """Grows with every change of the store."""


class Store(_core.Store):
    """The job's key-value store, at the coordinator. Keys and values are bytes; text is UTF-8. The keys that begin with
    "ferry/" are Ferry's own; there are no others at first.

    get() waits for a key. As a mapping it does not: store["k"] raises KeyError. Iteration and len() read all keys.
    """

    def wait(self, keys: typing.Union[Key, typing.Iterable[Key]], **arguments: typing.Any) -> None:
        """Waits until the key exists, or all of them do. Raises FerryTimeoutError."""
        self.get_many([keys] if isinstance(keys, (str, bytes)) else keys, **arguments)

    def keys(self, prefix: Key = "") -> typing.List[str]:
        """The keys that begin with `prefix`, in order."""
        return [key for key, _ in self._list(prefix)]

    def items(self, prefix: Key = "") -> typing.List[typing.Tuple[str, bytes]]:
        """The entries whose key begins with `prefix`, in order."""
        return self._list(prefix)

    def __getitem__(self, key: Key) -> bytes:
        value = self._try_get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Key, value: Key) -> None:
        self.set(key, value)

    def __delitem__(self, key: Key) -> None:
        if self._try_get(key) is None:
            raise KeyError(key)
        self.delete(key)

    def __contains__(self, key: Key) -> bool:
        return self._try_get(key) is not None

    def __iter__(self) -> typing.Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._list(""))


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Watch(_core.Watch):
    """Changes of the store, from Node.watch. A context manager; for a coroutine also an asynchronous iterator."""

    def next(self, **arguments: typing.Any) -> KeyChange:
        """The next change. Raises FerryTimeoutError after `timeout` seconds (default: the job's)."""
        return KeyChange(*super().next(**arguments))

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, kind: typing.Optional[typing.Type[BaseException]], error: typing.Optional[BaseException],
                 traceback: typing.Optional[types.TracebackType]) -> None:
        self.close()

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> KeyChange:
        loop = asyncio.get_running_loop()
        while True:
            self._take_signal()
            change = self._poll()
            if change is not None:
                return KeyChange(*change)
            readable: "asyncio.Future[None]" = loop.create_future()
            loop.add_reader(self.fileno(), _finish, readable)
            try:
                await readable
            finally:
                loop.remove_reader(self.fileno())


__all__ = ["FerryTimeoutError", "KeyChange", "Store", "Watch"]

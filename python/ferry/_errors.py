# SPDX-License-Identifier: Apache-2.0
"""The exceptions. All are FerryErrors, and also the built-in exception that fits."""
import typing


class FerryError(RuntimeError):
    """An operation of Ferry failed.

    code: the kind, by the name of its gRPC status: "UNAVAILABLE".
    key: the tensor's or store's key, or the barrier's name; None for others.
    rank, host: the peer of the transfer, or None.
    waited: how long the call was to wait, in seconds, or None.
    """

    def __init__(self, message: str, *, code: str = "UNKNOWN", key: typing.Optional[str] = None,
                 rank: typing.Optional[int] = None, host: typing.Optional[str] = None,
                 waited: typing.Optional[float] = None) -> None:
        super().__init__(message)
        self.code = code
        self.key = key
        self.rank = rank
        self.host = host
        self.waited = waited


class FerryTimeoutError(FerryError, TimeoutError):
    """A deadline has passed.

    missing: the ranks that were waited for, of a barrier or of joining; empty for others.
    phase: how far a transfer had got ("not sent yet"), or None.
    """

    missing: typing.List[int]
    phase: typing.Optional[str]

    def __init__(self, message: str, **fields: typing.Any) -> None:
        self.missing = fields.pop("missing", [])
        self.phase = fields.pop("phase", None)
        super().__init__(message, **fields)


class BarrierTimeout(FerryTimeoutError):
    """The ranks `missing` have not come to a barrier, or have not joined, in time."""


class PeerDiedError(FerryError, ConnectionError):
    """The peer has died, cannot be reached, or was restarted; or the coordinator cannot be reached (rank None)."""


class StepClosedError(FerryError):
    """The step was closed, on this node or on the peer."""


class JobFailedError(FerryError):
    """The job has failed, or this node has left it."""


class TransferCancelledError(FerryError):
    """The operation was cancelled, by Transfer.cancel or with its step."""


class InvalidArgumentError(FerryError, ValueError):
    """An argument is wrong, or does not fit what has arrived."""


class KeyExistsError(FerryError):
    """The store's key, or the job's rank, is taken."""


class ResourceExhaustedError(FerryError, MemoryError):
    """A limit was reached, which the message names."""


_CLASSES: typing.Dict[str, typing.Type[FerryError]] = {
    "INVALID_ARGUMENT": InvalidArgumentError,
    "OUT_OF_RANGE": InvalidArgumentError,
    "UNIMPLEMENTED": InvalidArgumentError,
    "DEADLINE_EXCEEDED": FerryTimeoutError,
    "UNAVAILABLE": PeerDiedError,
    "ALREADY_EXISTS": KeyExistsError,
    "RESOURCE_EXHAUSTED": ResourceExhaustedError,
    "CANCELLED": TransferCancelledError,
    "ABORTED": StepClosedError,
}


# Tracebacks show the public names.
for _class in (FerryError, FerryTimeoutError, BarrierTimeout, JobFailedError, *_CLASSES.values()):
    _class.__module__ = "ferry"


def text_of(error: typing.Optional[BaseException]) -> str:
    """What the other nodes are told of an exception that ends a step or a node."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        # Its __str__ raises.
        text = type(error).__name__
    return text.encode(errors="replace").decode()


def from_status(code: str, message: str, *, missing: typing.List[int], phase: typing.Optional[str],
                **fields: typing.Any) -> FerryError:
    """The exception for a status of the C++ API."""
    cls = _CLASSES.get(code, FerryError)
    if code == "ABORTED" and fields["rank"] is None and "step" not in message:
        cls = JobFailedError
    elif code == "FAILED_PRECONDITION" and "has left the job" in message:
        cls = JobFailedError
    elif code == "ABORTED" and ("has left the job" in message or "restarted" in message):
        cls = PeerDiedError
    fields["code"] = code
    if issubclass(cls, FerryTimeoutError):
        if missing:
            cls = BarrierTimeout
        return cls(message, missing=missing, phase=phase, **fields)
    return cls(message, **fields)

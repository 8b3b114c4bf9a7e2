# SPDX-License-Identifier: Apache-2.0
"""Ferry: bootstraps GPU jobs over many machines, and moves tensors between any two of their devices.

    import ferry
    with ferry.join() as node:                     # from the environment of `ferry run`, torchrun, Slurm, ...
        with node.step(1) as step:
            step.send(array, "weights", to=1)      # or, on rank 1:
            tensor = step.recv("weights", source=0)

Every wait has a deadline; every error is a FerryError that names what was waited for. `ferry.torch` and the
other submodules adapt other frameworks; importing `ferry` alone imports none of them, and no NumPy.
"""
import importlib
import typing

from ferry._errors import (
    BarrierTimeout,
    FerryError,
    FerryTimeoutError,
    InvalidArgumentError,
    JobFailedError,
    KeyExistsError,
    PeerDiedError,
    ResourceExhaustedError,
    StepClosedError,
    TransferCancelledError,
)

__version__ = "0.1.0"

# The C++ part is loaded on the first use of one of these: ferry.torch's rendezvous does without it.
_HOMES = {
    "join": "ferry._node",
    "Node": "ferry._node",
    "NodeStatus": "ferry._node",
    "Step": "ferry._step",
    "Store": "ferry._store",
    "KeyChange": "ferry._store",
    "Watch": "ferry._store",
    "Communicator": "ferry._core",
    "Transfer": "ferry._core",
    "Tensor": "ferry._core",
    "Topology": "ferry._core",
    "NodeInfo": "ferry._core",
    "DeviceInfo": "ferry._core",
    "Link": "ferry._core",
    "wait_all": "ferry._step",
}

if typing.TYPE_CHECKING:
    from ferry._core import Communicator, DeviceInfo, Link, NodeInfo, Tensor, Topology, Transfer
    from ferry._node import Node, NodeStatus, join
    from ferry._step import Step, wait_all
    from ferry._store import KeyChange, Store, Watch

__all__ = [
    "BarrierTimeout", "Communicator", "DeviceInfo", "FerryError", "FerryTimeoutError", "InvalidArgumentError", "JobFailedError",
    "KeyChange", "KeyExistsError", "Link", "Node", "NodeInfo", "NodeStatus", "PeerDiedError",
    "ResourceExhaustedError", "Step", "StepClosedError", "Store", "Tensor", "Topology", "Transfer",
    "TransferCancelledError", "Watch", "join", "wait_all",
]


def __getattr__(name: str) -> typing.Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ferry' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> typing.List[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])

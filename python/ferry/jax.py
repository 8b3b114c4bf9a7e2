# SPDX-License-Identifier: Apache-2.0
"""JAX programs: a Ferry coordinator in the place of process 0's service, and a side channel of arrays.

    import ferry.jax
    ferry.jax.initialize()                     # jax.distributed.initialize, with the coordinator of `ferry run`
    with ferry.jax.join() as node:             # the processes of the JAX job as nodes
        with node.step(1) as step:
            step.send(array, "x", to=1)        # a jax.Array
            y = step.recv("x", source=0, like="jax")

Tested with jaxlib 0.9.0 and 0.10.2.
"""
import atexit
import contextlib
import ctypes
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import typing

from ferry._errors import FerryError, FerryTimeoutError
from ferry._node import Node

__all__ = ["initialize", "join"]

_ADDRESS_KEY = "ferry/side_channel/address"
_START_S = 30.0


def initialize(address: typing.Optional[str] = None, num_processes: typing.Optional[int] = None,
               process_id: typing.Optional[int] = None, **arguments: typing.Any) -> None:
    """jax.distributed.initialize with a Ferry coordinator.

    address: "HOST:PORT"; default: JAX_COORDINATOR_ADDRESS, which `ferry run` sets, or FERRY_COORDINATOR.
    num_processes, process_id: default: WORLD_SIZE and RANK, which `ferry run` sets.
    arguments: others of jax.distributed.initialize.

    jax.distributed always starts a coordination service in process 0; it is bound to an unused loopback port.
    Raises ValueError naming what is missing.
    """
    import jax

    environment = os.environ
    address = address or environment.get("JAX_COORDINATOR_ADDRESS") or environment.get("FERRY_COORDINATOR")
    if not address:
        raise ValueError("no coordinator: give its address, or start the program by `ferry run`")
    if num_processes is None:
        num_processes = _number("WORLD_SIZE", "num_processes")
    if process_id is None:
        process_id = _number("RANK", "process_id")
    arguments.setdefault("coordinator_bind_address", "127.0.0.1:0")
    jax.distributed.initialize(address, num_processes, process_id, **arguments)


def _number(variable: str, argument: str) -> int:
    text = os.environ.get(variable, "")
    if not text.isdigit():
        raise ValueError(f"{argument} is neither given nor in the environment ({variable}={text!r})")
    return int(text)


class _SideChannel(Node):
    """The node of process 0, which owns the side channel's coordinator."""

    def __init__(self, coordinator: "subprocess.Popen[bytes]", *args: typing.Any, **kwargs: typing.Any) -> None:
        super().__init__(*args, **kwargs)
        self._coordinator = coordinator

    def close(self) -> None:
        """Waits until the other nodes have left, for 5 s at most; leaves, and ends the coordinator."""
        if not self.closed:
            deadline = time.monotonic() + 5
            with contextlib.suppress(FerryError):
                while self.alive() != [self.rank] and time.monotonic() < deadline:
                    time.sleep(0.02)
        super().close()
        _stop(self._coordinator)


def join(*, timeout: float = 300.0, connect_timeout: float = 60.0, host: typing.Optional[str] = None,
         **options: typing.Any) -> Node:
    """The processes of this JAX job as nodes of a Ferry job, with the same ranks.

    Call it on every process after jax.distributed.initialize, with whatever coordinator. Process 0 starts
    `ferry coordinator` for it, which lives until that process closes its node, and publishes the address in JAX's
    key-value store.

    host: the name or address by which the others reach process 0's machine; default: the address from which it reaches
        JAX's coordinator.
    timeout, options: see ferry.join.

    Raises FerryTimeoutError if process 0 has not published the address within connect_timeout seconds.
    """
    from jax._src import distributed

    state = distributed.global_state
    if state.client is None:
        raise FerryError("call jax.distributed.initialize, or ferry.jax.initialize, first", code="FAILED_PRECONDITION")
    identity = {"rank": state.process_id, "world_size": state.num_processes}
    if state.process_id != 0:
        try:
            address = state.client.blocking_key_value_get(_ADDRESS_KEY, int(connect_timeout * 1000))
        except Exception as error:  # jaxlib's errors have changed their class
            raise FerryTimeoutError(
                f"process 0 has not started the side channel within {connect_timeout:g} s: every process calls "
                f"ferry.jax.join ({str(error).splitlines()[0]})", code="DEADLINE_EXCEEDED", rank=0,
                waited=connect_timeout) from error
        return Node(address, timeout=timeout, connect_timeout=connect_timeout, **identity, **options)
    host = host or _own_address(state.coordinator_address)
    coordinator, port = _start_coordinator(host, state.num_processes)
    try:
        state.client.key_value_set(_ADDRESS_KEY, f"{host}:{port}")
        return _SideChannel(coordinator, f"{host}:{port}", timeout=timeout, connect_timeout=connect_timeout, **identity,
                            **options)
    except BaseException:
        _stop(coordinator)
        raise


def _own_address(coordinator: str) -> str:
    """The address from which this machine reaches the coordinator. Nothing is sent."""
    name, _, port = coordinator.rpartition(":")
    family, kind, protocol, _, address = socket.getaddrinfo(name.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        own = str(probe.getsockname()[0])
    return f"[{own}]" if family == socket.AF_INET6 else own


def _tool() -> str:
    """The program `ferry`."""
    beside = os.path.join(os.path.dirname(sys.executable), "ferry")
    found = os.environ.get("FERRY_TOOL") or (beside if os.access(beside, os.X_OK) else shutil.which("ferry"))
    if not found:
        raise FerryError("the program `ferry` is neither beside the interpreter nor in PATH, nor does FERRY_TOOL name it",
                         code="NOT_FOUND")
    return found


def _die_with_parent() -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _start_coordinator(host: str, nodes: int) -> typing.Tuple["subprocess.Popen[bytes]", int]:
    command = [_tool(), "coordinator", f"--nodes={nodes}", f"--listen={host}:0"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               preexec_fn=_die_with_parent, start_new_session=True)
    atexit.register(_stop, process)
    assert process.stdout is not None
    deadline = time.monotonic() + _START_S
    said = b""
    while b"\n" not in said:
        readable = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]
        piece = os.read(process.stdout.fileno(), 4096) if readable else b""
        if not piece:
            _stop(process)
            raise FerryTimeoutError(f"`{' '.join(command)}` has not started within {_START_S:g} s",
                                    code="DEADLINE_EXCEEDED", waited=_START_S)
        said += piece
    match = re.search(rb":(\d+)\s", said)
    if match is None:
        _stop(process)
        raise FerryError(f"`{' '.join(command)}` said {said!r}", code="INTERNAL")
    return process, int(match.group(1))


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()

# SPDX-License-Identifier: Apache-2.0
"""The init_method ferry:// of init_process_group()."""
from __future__ import annotations

import atexit
import datetime
import os
import threading
from typing import Any, Dict, Iterator, Tuple
from urllib.parse import parse_qsl, urlparse

import torch.distributed as dist

from ..rendezvous_client import RendezvousClient, RendezvousFailure, parse_endpoint

_SCHEME = "ferry"
_OPTIONS = ("rank", "world_size", "run_id", "host")

_lock = threading.Lock()
# A process is one member of a run, even if it joins several groups in sequence. Keyed by endpoint, run id and pid.
_clients: Dict[Tuple[Tuple[str, int], str, int], RendezvousClient] = {}


def _client(endpoint: Tuple[str, int], run_id: str, host: str) -> RendezvousClient:
    with _lock:
        key = (endpoint, run_id, os.getpid())
        if key not in _clients:
            _clients[key] = RendezvousClient(endpoint, run_id, is_group=True, host=host)
            atexit.register(_clients[key].leave, 1.0)
        return _clients[key]


def _number(options: Dict[str, str], name: str, variable: str) -> int:
    text = options.get(name)
    # PyTorch passes -1 for an argument that the caller omitted.
    if text is None or text == "-1":
        text = os.environ.get(variable)
    if text is None:
        raise ValueError(f"ferry://: {name} is missing: pass it as an argument, in the URL or as ${variable}")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"ferry://: {name}={text!r} is not a number") from None


def rendezvous(url: str, timeout: datetime.timedelta = datetime.timedelta(minutes=30),
               **_: Any) -> Iterator[Tuple[dist.Store, int, int]]:
    """The handler of ferry://HOST[:PORT][?rank=R&world_size=N&run_id=ID&host=NAME].

    The ranks join a group at the coordinator, which opens a new, empty store for it. rank and world_size may also be
    arguments of init_process_group(), or RANK and WORLD_SIZE in the environment. run_id defaults to
    TORCHELASTIC_RUN_ID, and otherwise to "default". Concurrent groups need different run ids.

    Args:
        timeout: how long to wait for the other ranks, and the timeout of operations on the store.

    Yields:
        (store, rank, world size), once.

    Raises:
        ValueError: the URL, rank or world size is invalid.
        TimeoutError: ranks are missing; the message says which.
        RuntimeError: the coordinator cannot be reached, or refuses this rank.
    """
    parsed = urlparse(url)
    options = dict(parse_qsl(parsed.query, keep_blank_values=True))
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise ValueError(f"ferry://: unknown {', '.join(unknown)} in {url!r}; valid options are {', '.join(_OPTIONS)}")
    endpoint = parse_endpoint(parsed.netloc)
    rank = _number(options, "rank", "RANK")
    world_size = _number(options, "world_size", "WORLD_SIZE")
    if not 0 <= rank < world_size:
        raise ValueError(f"ferry://: rank {rank} is not in the range 0 to {world_size - 1}")
    run_id = options.get("run_id") or os.environ.get("TORCHELASTIC_RUN_ID") or "default"
    client = _client(endpoint, run_id, options.get("host", ""))
    try:
        assignment = client.join(world_size, world_size, rank=rank, join_timeout_s=timeout.total_seconds())
    except RendezvousFailure as failure:
        kind = TimeoutError if failure.code == "DEADLINE_EXCEEDED" else RuntimeError
        raise kind(f"ferry://: {failure}") from None
    store = dist.TCPStore(endpoint[0], assignment.port, is_master=False, wait_for_workers=False, timeout=timeout)
    yield store, rank, world_size
    raise RuntimeError("ferry://: a rendezvous can be used once only; call init_process_group() again")


def register_init_method() -> None:
    """Registers ferry:// with PyTorch. Idempotent."""
    try:
        dist.register_rendezvous_handler(_SCHEME, rendezvous)
    except RuntimeError:
        pass  # It is registered already.

# SPDX-License-Identifier: Apache-2.0
"""The rendezvous backend "ferry" of torchrun."""
from __future__ import annotations

import atexit
import datetime
import logging
import weakref
from typing import Any, Callable, Dict, Type

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import api

from ..rendezvous_client import RendezvousClient, RendezvousFailure, parse_endpoint

logger = logging.getLogger(__name__)

# The torchelastic errors for the coordinator's codes. Releases before 2.4 do not have RendezvousGracefulExitError.
_ERRORS: Dict[str, Type[Exception]] = {
    "FAILED_PRECONDITION": api.RendezvousClosedError,
    "DEADLINE_EXCEEDED": api.RendezvousTimeoutError,
    "UNAVAILABLE": api.RendezvousConnectionError,
    "CANCELLED": getattr(api, "RendezvousGracefulExitError", api.RendezvousClosedError),
}


def _error(failure: RendezvousFailure) -> Exception:
    return _ERRORS.get(failure.code, api.RendezvousStateError)(str(failure))


class FerryRendezvousHandler(api.RendezvousHandler):
    """The rendezvous handler of a torchrun agent.

    Each round has a store of its own on the coordinator, for the agents and their workers. No agent or worker hosts a
    store, so any node may fail without taking it away from the others.

    Args:
        params: with these options of --rdzv-conf, in seconds: join_timeout (600), last_call_timeout (30),
            close_timeout (30), read_timeout (60; of the agents' operations on the store), keep_alive_interval (5),
            connect_timeout (60; how long the coordinator may be unreachable); and keep_alive_max_attempt (3), the
            number of missed heartbeats after which a node is considered dead.

    Raises:
        ValueError: the endpoint or an option is invalid.
    """

    def __init__(self, params: api.RendezvousParameters) -> None:
        if not params.run_id:
            raise ValueError("a run needs an id (--rdzv-id)")
        self._params = params
        self._endpoint = parse_endpoint(params.endpoint)
        self._join_timeout_s = _positive(params, "join_timeout", 600)
        self._last_call_timeout_s = _positive(params, "last_call_timeout", 30)
        self._close_timeout_s = _positive(params, "close_timeout", 30)
        self._read_timeout_s = _positive(params, "read_timeout", 60)
        interval_s = _positive(params, "keep_alive_interval", 5)
        self._client = RendezvousClient(
            self._endpoint, params.run_id, host=getattr(params, "local_addr", None) or "",
            heartbeat_interval_s=interval_s,
            heartbeat_timeout_s=max(1.0, interval_s * _positive(params, "keep_alive_max_attempt", 3)),
            connect_timeout_s=_positive(params, "connect_timeout", 60))
        self._has_joined = False
        # An agent that exits without `shutdown`, as after a signal, leaves the run at once.
        atexit.register(_leave, weakref.ref(self._client))

    def get_backend(self) -> str:
        return "ferry"

    def get_run_id(self) -> str:
        return self._params.run_id

    @property
    def use_agent_store(self) -> bool:
        """True: the workers use the store that `next_rendezvous` returns."""
        return True

    def next_rendezvous(self) -> Any:
        """Joins the next round.

        Returns:
            RendezvousInfo; before PyTorch 2.4 the tuple (store, rank, world size).

        Raises:
            RendezvousClosedError: the run is closed.
            RendezvousTimeoutError: nodes are missing; the message says which have joined.
            RendezvousConnectionError: the coordinator, or the store, cannot be reached.
            RendezvousStateError: the coordinator refuses this node, for example because its --nnodes differs.
            RendezvousGracefulExitError: the run has ended, and this node was a spare.
        """
        try:
            assignment = self._client.join(self._params.min_nodes, self._params.max_nodes,
                                           last_call_timeout_s=self._last_call_timeout_s,
                                           join_timeout_s=self._join_timeout_s)
        except RendezvousFailure as failure:
            raise _error(failure) from None
        self._has_joined = True
        host = self._endpoint[0]
        logger.info("node %s is rank %d of %d in round %d of run %s; the store is at %s:%d", self._client.agent_id,
                    assignment.rank, assignment.nodes, assignment.round, self._params.run_id, host, assignment.port)
        try:
            store = dist.TCPStore(host, assignment.port, is_master=False, wait_for_workers=False,
                                  timeout=datetime.timedelta(seconds=self._read_timeout_s))
        except (RuntimeError, ValueError) as error:
            raise api.RendezvousConnectionError(
                f"cannot connect to the store of round {assignment.round} at {host}:{assignment.port}: {error}"
            ) from error
        store = dist.PrefixStore(f"torch.rendezvous.{self._params.run_id}.{assignment.round}", store)
        if not hasattr(api, "RendezvousInfo"):
            return store, assignment.rank, assignment.nodes
        return api.RendezvousInfo(store, assignment.rank, assignment.nodes,
                                  api.RendezvousStoreInfo(host, assignment.port))

    def num_nodes_waiting(self) -> int:
        """Returns the number of nodes that wait for the next round, or of members that the running one has lost. At
        least 1 if this node itself is no longer in the run, so that its agent joins again.
        """
        try:
            state = self._client.run_state()
        except RendezvousFailure as failure:
            raise _error(failure) from None
        if state.is_closed or not self._has_joined:
            return 0
        return state.waiting if state.is_known else max(1, state.waiting)

    def is_closed(self) -> bool:
        try:
            return self._client.run_state(max_age_s=0).is_closed
        except RendezvousFailure as failure:
            raise _error(failure) from None

    def set_closed(self) -> None:
        try:
            self._client.close(self._close_timeout_s)
        except RendezvousFailure as failure:
            raise _error(failure) from None

    def shutdown(self) -> bool:
        """Closes the run and leaves it. Returns whether the coordinator has closed it."""
        is_closed = True
        try:
            self._client.close(self._close_timeout_s)
        except RendezvousFailure as failure:
            logger.warning("run %s could not be closed: %s", self._params.run_id, failure)
            is_closed = False
        self._client.leave()
        return is_closed


def _leave(client: "weakref.ref[RendezvousClient]") -> None:
    alive = client()
    if alive is not None:
        alive.leave(timeout_s=1.0)


def _positive(params: api.RendezvousParameters, name: str, default: float) -> float:
    value = params.get(name)
    if value is None:
        return default
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError(f"the rendezvous option {name}={value!r} is not a positive number")
    return number


def create_handler(params: api.RendezvousParameters) -> FerryRendezvousHandler:
    """Creates the handler of --rdzv-backend=ferry."""
    return FerryRendezvousHandler(params)


def get_handler_creator() -> Callable[[api.RendezvousParameters], api.RendezvousHandler]:
    """The entry point in the group torchrun.handlers. Returns the function that creates handlers."""
    return create_handler


def register() -> None:
    """Registers the backend "ferry", for PyTorch before 2.4, whose torchrun has no entry points. Idempotent."""
    api.rendezvous_handler_registry.register("ferry", create_handler)

# SPDX-License-Identifier: Apache-2.0
"""A client of the rendezvous that `ferry coordinator` serves to PyTorch's nodes (proto/ferry_elastic.proto).

It needs only the standard library: the protocol is one JSON message per line, so that an environment with PyTorch needs
neither grpcio nor a release of protobuf that is compatible with its other packages.
"""
from __future__ import annotations

import dataclasses
import itertools
import json
import os
import select
import socket
import threading
import time
import uuid
import weakref
from typing import Any, Dict, List, Optional, Tuple

DEFAULT_PORT = 9470
# How long the coordinator may take to answer a call, in addition to the time to connect.
_ANSWER_MARGIN_S = 15.0
# The timeout of an attempt to connect, and the longest backoff between two attempts.
_CONNECT_ATTEMPT_S = 5.0
_LONGEST_PAUSE_S = 2.0
# The coordinator's limit: programs ask for timeouts of months in place of none.
_LONGEST_WAIT_S = 7 * 24 * 3600.0
# A reply that is longer does not come from a coordinator.
_MAX_LINE_BYTES = 1 << 20


class RendezvousFailure(Exception):
    """A call of RendezvousClient has failed.

    Attributes:
        code: the name of a gRPC status code, such as "DEADLINE_EXCEEDED"; "UNAVAILABLE" if the coordinator cannot be
            reached, "CANCELLED" if this client has left.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclasses.dataclass(frozen=True)
class Assignment:
    """The result of a successful join.

    Attributes:
        round: the number of the round, from 0.
        rank: the rank of this node.
        nodes: the number of nodes.
        port: the port of the round's store, on the coordinator's host.
    """

    round: int
    rank: int
    nodes: int
    port: int


@dataclasses.dataclass(frozen=True)
class RunState:
    """The state of the run, as the reply to a heartbeat.

    Attributes:
        is_known: whether this node is in the run; false if its heartbeats timed out, or the coordinator has restarted.
        is_closed: whether the run has been closed.
        waiting: the number of nodes that wait for the next round, or that the running one has lost.
    """

    is_known: bool
    is_closed: bool
    waiting: int


def parse_endpoint(endpoint: str) -> Tuple[str, int]:
    """Splits HOST, HOST:PORT, [IPV6] or [IPV6]:PORT.

    Raises:
        ValueError: it is none of these.
    """
    host, port = endpoint, ""
    if endpoint.startswith("["):
        host, bracket, rest = endpoint[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{endpoint!r} is not HOST:PORT")
        port = rest[1:]
    elif endpoint.count(":") <= 1:
        host, _, port = endpoint.partition(":")
    if not host or (port and not (port.isdecimal() and 0 < int(port) < 65536)):
        raise ValueError(f"{endpoint!r} is not HOST:PORT with a port of 1 to 65535")
    return host, int(port) if port else DEFAULT_PORT


class _Call:
    """A request without a reply, which is sent again over each new connection."""

    def __init__(self, request: Dict[str, Any]) -> None:
        # Numbers that JSON cannot say are an error of the caller, not one of the connection.
        self.line = (json.dumps(request, allow_nan=False) + "\n").encode()
        self.done = threading.Event()
        self.reply: Optional[Dict[str, Any]] = None


_clients: "weakref.WeakSet[RendezvousClient]" = weakref.WeakSet()


class RendezvousClient:
    """An agent of a run, or a rank of a group. Stays connected until `leave` or the end of the process.

    A daemon thread, "ferry-rendezvous", sends heartbeats, receives replies, and reconnects. Thread-safe.

    Args:
        endpoint: (host, port) of the coordinator.
        run_id: the id of the run.
        is_group: the members are processes with fixed ranks; run ids of groups and of others are separate name spaces.
        host: the name of this host in error messages; by default that of the machine.
        heartbeat_interval_s: the time between heartbeats.
        heartbeat_timeout_s: how long the coordinator waits for a heartbeat before it considers this process dead; at
            least 1. If the process exits, its connection ends, and it is considered dead after two seconds.
        connect_timeout_s: how long the coordinator may be unreachable before calls fail.
    """

    def __init__(self, endpoint: Tuple[str, int], run_id: str, is_group: bool = False, host: str = "",
                 heartbeat_interval_s: float = 5.0, heartbeat_timeout_s: float = 15.0,
                 connect_timeout_s: float = 60.0) -> None:
        self._endpoint = endpoint
        self._host = host or socket.gethostname()
        self._agent = {"run_id": run_id, "is_group": is_group,
                       "agent_id": f"{self._host[:180]}_{os.getpid()}_{uuid.uuid4().hex[:8]}"}
        self._heartbeat_interval_s = heartbeat_interval_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._ids = itertools.count(1)
        self._attempts = itertools.count(1)
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._calls: Dict[int, _Call] = {}
        self._socket: Optional[socket.socket] = None
        self._lost_since: Optional[float] = time.monotonic()
        self._lost_reason = "no attempt to connect has completed"
        self._thread: Optional[threading.Thread] = None
        self._is_ended = False
        self._run_state: Optional[Tuple[float, RunState]] = None
        self._wake_read, self._wake_write = socket.socketpair()
        self._pid = os.getpid()
        _clients.add(self)

    @property
    def agent_id(self) -> str:
        """The id of this process in the run."""
        return str(self._agent["agent_id"])

    def join(self, min_nodes: int, max_nodes: int, rank: Optional[int] = None, last_call_timeout_s: float = 30.0,
             join_timeout_s: float = 600.0) -> Assignment:
        """Joins the next round, and returns when it begins. A member of the running round leaves it.

        Args:
            min_nodes: the round begins `last_call_timeout_s` after this many nodes have joined.
            max_nodes: the round begins at once when this many nodes have joined.
            rank: groups only: the rank of this process.
            last_call_timeout_s: see min_nodes.
            join_timeout_s: how long to wait for the round to begin; at most a week.

        Raises:
            RendezvousFailure: with one of the codes of ElasticRendezvous::Join (coord/elastic/elastic_rendezvous.h).
        """
        request = {"agent": self._agent, "host": self._host, "attempt": next(self._attempts), "min_nodes": min_nodes,
                   "max_nodes": max_nodes, "last_call_timeout_s": min(last_call_timeout_s, _LONGEST_WAIT_S),
                   "join_timeout_s": min(join_timeout_s, _LONGEST_WAIT_S),
                   "heartbeat_timeout_s": self._heartbeat_timeout_s}
        if rank is not None:
            request["rank"] = rank
        # No timeout here: the coordinator applies join_timeout_s, except to spares, which may wait for any time.
        assignment = self._call("join", request, None)["assignment"]
        with self._lock:
            self._run_state = None
        return Assignment(assignment["round"], assignment["rank"], assignment["nodes"], assignment["port"])

    def run_state(self, max_age_s: float = 1.0) -> RunState:
        """Returns the state of the run as of the latest heartbeat, or queries it if that is older than `max_age_s`.

        Raises:
            RendezvousFailure: the coordinator could not be reached for `connect_timeout_s`.
        """
        with self._lock:
            if self._run_state is not None:
                at, run_state = self._run_state
                # While disconnected, the last known state is valid for connect_timeout_s.
                is_lost = self._lost_since is not None
                if time.monotonic() - at <= (self._connect_timeout_s if is_lost else max_age_s):
                    return run_state
        reply = self._call("keep_alive", {"agent": self._agent}, _ANSWER_MARGIN_S + self._connect_timeout_s)
        return self._update_run_state(reply["run_state"])

    def close(self, timeout_s: float = 30.0) -> None:
        """Closes the run for all of its nodes.

        Raises:
            RendezvousFailure: the coordinator has not answered within `timeout_s`.
        """
        self._call("close", {"agent": self._agent}, timeout_s)

    def leave(self, timeout_s: float = 5.0) -> None:
        """Removes this process from the run, if the coordinator is reachable, and ends the thread. Later calls fail.
        Never raises an error. Does nothing if called again, or in a forked child.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            is_idle = self._is_ended or self._socket is None
        try:
            if not is_idle:
                self._call("leave", {"agent": self._agent}, timeout_s)
        except RendezvousFailure:
            pass  # The end of the connection has the same effect, two seconds later.
        with self._lock:
            self._is_ended = True
            is_running = self._thread is not None
        if is_running:
            self._wake()
        else:
            self._wake_read.close()
            self._wake_write.close()

    def _call(self, name: str, request: Dict[str, Any], timeout_s: Optional[float]) -> Dict[str, Any]:
        if os.getpid() != self._pid:
            raise RuntimeError("this client is of the process that has forked this one; make another")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        number = next(self._ids)
        call = _Call({"id": number, name: request})
        with self._lock:
            if self._is_ended:
                raise RendezvousFailure("CANCELLED", "this client has left")
            if self._thread is None:
                self._lost_since = time.monotonic()
                thread = threading.Thread(target=self._run, name="ferry-rendezvous", daemon=True)
                thread.start()  # Raises an error if there can be no more threads.
                self._thread = thread
            self._calls[number] = call
            if self._socket is not None:
                self._send(call.line)
        try:
            while not call.done.wait(0.2):
                now = time.monotonic()
                with self._lock:
                    lost_since, why, is_ended = self._lost_since, self._lost_reason, self._is_ended
                if is_ended:
                    raise RendezvousFailure("CANCELLED", "this client has left")
                is_late = deadline is not None and now > deadline
                if lost_since is not None and (is_late or now - lost_since > self._connect_timeout_s):
                    raise RendezvousFailure(
                        "UNAVAILABLE", f"the Ferry coordinator at {self._address()} could not be reached for "
                                       f"{now - lost_since:.0f} s: {why}")
                if is_late:
                    raise RendezvousFailure(
                        "UNAVAILABLE", f"the Ferry coordinator at {self._address()} has not answered within "
                                       f"{timeout_s:g} s")
        finally:
            with self._lock:
                self._calls.pop(number, None)
        assert call.reply is not None
        if call.reply.get("error"):
            raise RendezvousFailure(call.reply["error"], call.reply.get("message", ""))
        return call.reply

    def _update_run_state(self, run_state: Dict[str, Any]) -> RunState:
        updated = RunState(bool(run_state.get("is_known")), bool(run_state.get("is_closed")),
                           int(run_state.get("waiting", 0)))
        with self._lock:
            self._run_state = (time.monotonic(), updated)
        return updated

    def _address(self) -> str:
        host, port = self._endpoint
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _wake(self) -> None:
        try:
            self._wake_write.send(b"x")
        except OSError:
            pass  # The thread has ended, or has a wake-up pending.

    # Called on the thread.

    def _run(self) -> None:
        pause_s = 0.1
        next_heartbeat = time.monotonic()
        last_received = next_heartbeat
        # If the coordinator's host fails, the connection stays open, but heartbeats get no replies.
        silence_s = max(self._heartbeat_timeout_s, 2 * self._heartbeat_interval_s)
        unread = b""
        # The last connection has had an answer; so may the first.
        has_answered = True
        while True:
            with self._lock:
                if self._is_ended:
                    self._drop("this client has left")
                    self._wake_read.close()
                    self._wake_write.close()
                    return
                connection = self._socket
            if connection is None:
                unread = b""
                # A server that accepts and closes at once is not asked without a pause either.
                if has_answered:
                    pause_s = 0.1
                else:
                    self._pause(pause_s)
                    pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                has_answered = False
                if not self._is_ended and self._connect():
                    # At once, since an agent that does not reconnect within two seconds is considered dead.
                    next_heartbeat = last_received = time.monotonic()
                continue
            now = time.monotonic()
            if now >= next_heartbeat:
                if now - last_received > silence_s:
                    self._disconnect(connection, f"no reply to heartbeats for {now - last_received:.0f} s")
                    continue
                next_heartbeat = now + self._heartbeat_interval_s
                self._send_heartbeat()
                continue
            try:
                if not self._wait(connection, next_heartbeat - now):
                    continue
                data = connection.recv(65536)
            except (OSError, ValueError) as error:  # ValueError: another thread has closed it.
                self._disconnect(connection, str(error))
                continue
            if not data:
                self._disconnect(connection, "the coordinator has closed the connection")
                continue
            last_received = time.monotonic()
            lines = (unread + data).split(b"\n")
            unread = lines.pop()
            try:
                if len(unread) > _MAX_LINE_BYTES:
                    raise ValueError(f"a reply has more than {_MAX_LINE_BYTES} bytes")
                for line in lines:
                    self._on_line(line)
                    has_answered = True
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._disconnect(connection, f"not a Ferry coordinator, or one without this protocol: {error}")

    def _wait(self, connection: Optional[socket.socket], timeout_s: float) -> bool:
        """Waits until the connection can be read, and returns whether it can, or until `_wake`."""
        # Not select(), which fails in processes that have more than 1024 files.
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if connection is not None:
            poll.register(connection, select.POLLIN)
        woken = self._wake_read.fileno()
        ready = [fd for fd, _ in poll.poll(max(0.0, timeout_s) * 1000)]
        if woken in ready:
            self._wake_read.recv(64)
        return any(fd != woken for fd in ready)

    def _pause(self, timeout_s: float) -> None:
        """Waits until the time is over or the client has left."""
        end = time.monotonic() + timeout_s
        while not self._is_ended and time.monotonic() < end:
            self._wait(None, end - time.monotonic())

    def _connect(self) -> bool:
        try:
            connection = socket.create_connection(self._endpoint, timeout=_CONNECT_ATTEMPT_S)
        except (OSError, ValueError) as error:  # ValueError: a name that no host can have.
            with self._lock:
                self._lost_reason = str(error)
            return False
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._socket = connection
            if self._lost_since is not None:
                self._lost_reason = "it accepted the connection and did not reply"
            # The first byte of the connection says which protocol it is.
            for number in sorted(self._calls):
                if not self._send(self._calls[number].line):
                    return False
        return True

    def _send_heartbeat(self) -> None:
        """Sends a heartbeat. Its reply updates the state that `run_state` returns."""
        with self._lock:
            call = _Call({"id": 0, "keep_alive": {"agent": self._agent}})
            if self._socket is not None:
                self._send(call.line)

    def _on_line(self, line: bytes) -> None:
        reply = json.loads(line)
        if reply.get("run_state"):
            self._update_run_state(reply["run_state"])
        with self._lock:
            # Only now: a server that accepts connections need not be a coordinator.
            self._lost_since = None
            call = self._calls.get(reply.get("id", 0))
            if call is None:
                # The reply to a heartbeat, or to a call that has timed out.
                if reply.get("error") and not reply.get("id"):
                    self._fail_all(reply)
                    raise ValueError(reply.get("message", ""))
                return
            call.reply = reply
        call.done.set()

    def _disconnect(self, connection: socket.socket, why: str) -> None:
        with self._lock:
            if self._socket is connection:
                self._drop(why)

    # Called with _lock held.

    def _fail_all(self, reply: Dict[str, Any]) -> None:
        """The coordinator cannot read a request, and does not say which. It could not the next time either."""
        for call in self._calls.values():
            call.reply = reply
            call.done.set()

    def _send(self, line: bytes) -> bool:
        assert self._socket is not None
        try:
            self._socket.sendall(line)
            return True
        except OSError as error:
            self._drop(str(error))
            self._wake()
            return False

    def _drop(self, why: str) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._lost_since is None:
            self._lost_since = time.monotonic()
        self._lost_reason = why


def _close_in_child() -> None:
    """A forked child must not keep the connection open, whose end shows that the parent has exited."""
    clients: List[RendezvousClient] = list(_clients)
    for client in clients:
        connection = client._socket
        if connection is not None:
            connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)

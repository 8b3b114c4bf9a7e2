# SPDX-License-Identifier: Apache-2.0
"""Processes of the interop tests: a coordinator, and real jaxlib clients.

Every wait has a deadline and every process is a child registered here, so a
failed case can neither hang the run nor leave anything behind."""
import atexit
import json
import os
import random
import re
import select
import socket
import subprocess
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HEARTBEAT_S = 5  # options of both clients and server
_children = []


def _reap():
    for child in _children:
        if child.poll() is None:
            child.kill()
    for child in _children:
        try:
            child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            pass


atexit.register(_reap)


class Failure(Exception):
    """An expectation that did not hold."""


def check(condition, why):
    if not condition:
        raise Failure(why)


def environment():
    env = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONUNBUFFERED="1")
    # A proxy meant for the outside must not swallow loopback connections.
    for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
        env.pop(name, None)
        env.pop(name.upper(), None)
    return env


def spawn(command, log, **keywords):
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log,
                             env=environment(), **keywords)
    _children.append(child)
    return child


def free_port():
    """A port that no process is assigned by chance before a server of another project uses it, which
    takes seconds: from below the range from which the kernel takes ports by itself."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as kernels:
        first = int(kernels.read().split()[0])
    # Some machines leave nothing below it.
    ports = range(max(1024, first // 2), first) if first > 4000 else range(first, 61000)
    for port in random.sample(ports, 100):
        with socket.socket() as probe:
            try:
                # All addresses, as TensorFlow's servers take.
                probe.bind(("", port))
                return port
            except OSError:
                pass
    raise Failure(f"of 100 ports from {ports.start} to {ports.stop} none is free")


class Log:
    """A child's stderr, kept in an unnamed file and shown when a case fails."""

    def __init__(self, name):
        self.name = name
        self.file = tempfile.TemporaryFile()

    def text(self):
        # pread: the child writes through the same open file, whose position
        # must stay where it is.
        size = os.fstat(self.file.fileno()).st_size
        return os.pread(self.file.fileno(), size, 0).decode(errors="replace")

    def tail(self, size=3000):
        text = self.text()[-size:].strip()
        return f"--- {self.name}\n{text}" if text else ""


class Server:
    """`ferry coordinator`, or with --real jaxlib's own service."""

    def __init__(self, options, nodes, deadline_s=30, heartbeat_s=HEARTBEAT_S):
        self.log = Log("coordinator")
        limits = [f"--nodes={nodes}"]
        if options.real:
            limits += [f"--heartbeat-timeout={heartbeat_s}", "--connect-timeout=20",
                       "--shutdown-timeout=20"]
            command = [options.python, os.path.join(HERE, "real_service.py"),
                       f"--address=127.0.0.1:{free_port()}", f"--service={options.service}"]
        else:
            # Every case is one job: a failure ends it.
            limits += ["--single-job", f"--heartbeat-timeout={heartbeat_s}s", "--connect-timeout=20s",
                       "--shutdown-timeout=20s"]
            command = [options.ferry, "coordinator", "--listen=127.0.0.1:0"]
        self.child = spawn(command + limits, self.log.file)
        readable, _, _ = select.select([self.child.stdout], [], [], deadline_s)
        line = self.child.stdout.readline().decode().strip() if readable else ""
        found = re.fullmatch(r"ferry coordinator listening on (\S+)", line)
        check(found, f"coordinator not ready, said {line!r}\n{self.log.tail()}")
        self.address = found.group(1)

    def stop(self):
        # Killed, not stopped: the shutdown is not under test here, and jaxlib's own service
        # notifies its clients of an orderly one.
        self.child.kill()
        self.child.wait(timeout=10)
        self.child.stdout.close()


class Call:
    """The pending answer to one command."""

    def __init__(self, what):
        self.what = what
        self.done = threading.Event()
        self.reply = None

    def result(self, deadline_s=30):
        check(self.done.wait(deadline_s), f"{self.what}: no answer in {deadline_s} s")
        return self.reply

    def value(self, deadline_s=30):
        reply = self.result(deadline_s)
        check(reply["ok"], f"{self.what}: {reply.get('error')}")
        return reply["value"]

    def error(self, pattern, deadline_s=30):
        reply = self.result(deadline_s)
        check(not reply["ok"], f"{self.what}: succeeded, wanted {pattern!r}")
        check(re.search(pattern, reply["error"], re.S),
              f"{self.what}: wanted {pattern!r}, got {reply['error'][:400]!r}")
        return reply["error"]


class Client:
    """A jax_client.py process."""

    def __init__(self, options, address, node, nodes, *extra):
        self.node = node
        self.log = Log(f"client {node}")
        self.child = spawn(
            [options.python, os.path.join(HERE, "jax_client.py"), f"--address={address}",
             f"--node-id={node}", f"--num-nodes={nodes}", f"--service={options.service}",
             f"--heartbeat-timeout={HEARTBEAT_S}", *extra],
            self.log.file, stdin=subprocess.PIPE)
        self.calls = {}
        self.ready = Call(f"client {node} start")
        # A client that learns of an error logs it and ends its process.
        self.noticed = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.child.stdout:
            message = json.loads(line)
            if message.get("event") == "ready":
                self._finish(self.ready, {"ok": True, "value": message})
            elif message["id"] in self.calls:
                self._finish(self.calls[message["id"]], message)
        self.noticed.set()
        gone = {"ok": False, "error": "PROCESS ENDED"}
        for call in [self.ready, *self.calls.values()]:
            if not call.done.is_set():
                self._finish(call, gone)

    @staticmethod
    def _finish(call, reply):
        call.reply = reply
        call.done.set()

    def has(self, method):
        return method in self.ready.value()["methods"]

    def call(self, method, *args):
        number = len(self.calls) + 1
        pending = self.calls[number] = Call(f"client {self.node} {method}{args!r:.120}")
        command = {"id": number, "method": method, "args": args}
        try:
            self.child.stdin.write((json.dumps(command) + "\n").encode())
            self.child.stdin.flush()
        except (BrokenPipeError, ValueError):
            self._finish(pending, {"ok": False, "error": "PROCESS ENDED"})
        return pending

    def kill(self):
        self.child.kill()
        self.child.wait(timeout=10)


class Cluster:
    """A coordinator and all of its clients, started together."""

    def __init__(self, options, nodes, *extra, connect=True, heartbeat_s=HEARTBEAT_S):
        self.options, self.nodes, self.extra = options, nodes, extra
        self.clients = []
        self.server = Server(options, nodes, heartbeat_s=heartbeat_s)
        try:
            self.clients = [self.client(node) for node in range(nodes)]
            for client in self.clients:
                client.ready.value(60)
            if connect:
                self.every("connect")
        except Failure as failure:
            self.close()
            raise Failure(f"{failure}\n{self.logs()}") from None

    def client(self, node, *extra):
        return Client(self.options, self.server.address, node, self.nodes,
                      *self.extra, *extra)

    def every(self, method, *args, deadline_s=40):
        pending = [client.call(method, *args) for client in self.clients]
        return [call.value(deadline_s) for call in pending]

    def logs(self):
        logs = [self.server.log, *(client.log for client in self.clients)]
        return "\n".join(filter(None, (log.tail() for log in logs)))

    def close(self):
        for client in self.clients:
            client.kill()
        self.server.stop()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        status = self.server.child.poll()
        self.close()
        if kind is None and status is not None:
            # A case that waits for clients to fail would pass on a crash.
            kind, error = Failure, f"the coordinator ended on its own with {status}"
        if kind is Failure:
            raise Failure(f"{error}\n{self.logs()}") from None


def wait_exit(child, deadline_s):
    end = time.monotonic() + deadline_s
    while child.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    return child.poll()

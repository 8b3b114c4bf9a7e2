# SPDX-License-Identifier: Apache-2.0
"""A client of PyTorch's TCPStore protocol in raw bytes, in its three dialects, and the coordinator that it is tested
against. Every wait has a deadline.
"""
import itertools
import os
import random
import re
import resource
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "cli"))
import harness  # noqa: E402

PATIENCE_S = harness.PATIENCE_S
MIB = 1 << 20
READY, NOT_READY = b"\0", b"\1"
STOP_WAITING, WAIT_CANCELED = b"\0", b"\1"


def u64(number):
    return struct.pack("<Q", number)


def i64(number):
    return struct.pack("<q", number)


def text(data):
    """A string or a vector of bytes on the wire."""
    return u64(len(data)) + data


class Dialect:
    """The requests of a range of releases of PyTorch. An operation that they do not have is a KeyError."""

    def __init__(self, name, hello, first, names):
        self.name = name
        self.hello = hello
        self.ops = {op: number for number, op in enumerate(names.split(), first)}

    def op(self, name):
        return bytes([self.ops[name]])

    def has(self, name):
        return name in self.ops

    def set(self, key, value):
        return self.op("SET") + text(key) + text(value)

    def compare_set(self, key, expected, desired):
        return self.op("COMPARE_SET") + text(key) + text(expected) + text(desired)

    def get(self, key):
        return self.op("GET") + text(key)

    def add(self, key, delta):
        return self.op("ADD") + text(key) + i64(delta)

    def keys(self, name, keys):
        return self.op(name) + u64(len(keys)) + b"".join(map(text, keys))

    def check(self, *keys):
        return self.keys("CHECK", keys)

    def wait(self, *keys):
        return self.keys("WAIT", keys)

    def multi_get(self, *keys):
        return self.keys("MULTI_GET", keys)

    def multi_set(self, pairs):
        return (self.op("MULTI_SET") + i64(len(pairs))
                + b"".join(text(key) + text(value) for key, value in pairs))

    def num_keys(self):
        return self.op("GETNUMKEYS")

    def delete(self, key):
        return self.op("DELETE_KEY") + text(key)

    def append(self, key, value):
        return self.op("APPEND") + text(key) + text(value)

    def cancel(self):
        return self.op("CANCEL_WAIT")

    def ping(self, nonce):
        return self.op("PING") + struct.pack("<I", nonce)

    def push(self, key, value):
        return self.op("QUEUE_PUSH") + text(key) + text(value)

    def pop(self, key):
        return self.op("QUEUE_POP") + text(key)

    def queue_len(self, key):
        return self.op("QUEUE_LEN") + text(key)

    def list_keys(self):
        return self.op("LIST_KEYS")

    def barrier(self, key, world_size):
        return self.op("BARRIER") + text(key) + i64(world_size)


HELLO = bytes.fromhex("00CEF7853C")
COMMON = "SET COMPARE_SET GET ADD CHECK WAIT GETNUMKEYS "
V1_13 = Dialect("1_13", b"", 0, COMMON + "WATCH_KEY DELETE_KEY")
V2_1 = Dialect("2_1", b"", 0, COMMON + "DELETE_KEY APPEND MULTI_GET MULTI_SET CANCEL_WAIT")
V2_2 = Dialect("2_2", HELLO, 1, COMMON + "DELETE_KEY APPEND MULTI_GET MULTI_SET CANCEL_WAIT PING QUEUE_PUSH QUEUE_POP"
                                         " QUEUE_LEN LIST_KEYS BARRIER")


class Client:
    """A connection. Methods without an answer only send."""

    unique = itertools.count(1)

    def __init__(self, address, dialect=V2_2):
        self.d = dialect
        self.socket = socket.create_connection(address, PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(dialect.hello)

    def close(self):
        self.socket.close()

    def reset(self):
        """Closes as the system does for a process that was killed with unread input."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    @property
    def name(self):
        return "%s:%d" % self.socket.getsockname()[:2]

    def send(self, *requests):
        self.socket.sendall(b"".join(requests))

    def read(self, size):
        """Exactly so many bytes; raises EOFError when the connection closes."""
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(min(size - len(data), MIB))
            if not piece:
                raise EOFError(f"closed after {bytes(data)!r}, {size} bytes expected")
            data += piece
        return bytes(data)

    def i64(self):
        return struct.unpack("<q", self.read(8))[0]

    def vector(self):
        size = struct.unpack("<Q", self.read(8))[0]
        if size > 256 * MIB:
            raise AssertionError(f"an answer of {size} bytes")
        return self.read(size)

    def readable(self):
        return bool(select.select([self.socket], [], [], 0)[0])

    def rest(self):
        """All bytes until the server closes the connection."""
        data = b""
        try:
            while True:
                piece = self.socket.recv(65536)
                if not piece:
                    return data
                data += piece
        except ConnectionError:
            return data

    def refused(self, *requests):
        """Sends, and returns what arrives until the server closes the connection: b"" unless it answered."""
        try:
            self.send(*requests)
        except ConnectionError:
            pass
        return self.rest()

    def set(self, key, value):
        self.send(self.d.set(key, value))

    def compare_set(self, key, expected, desired):
        self.send(self.d.compare_set(key, expected, desired))
        return self.vector()

    def get(self, key):
        self.send(self.d.get(key))
        return self.vector()

    def add(self, key, delta):
        self.send(self.d.add(key, delta))
        return self.i64()

    def check(self, *keys):
        self.send(self.d.check(*keys))
        return self.read(1)

    def num_keys(self):
        self.send(self.d.num_keys())
        return self.i64()

    def delete(self, key):
        self.send(self.d.delete(key))
        return self.i64()

    def multi_get(self, *keys):
        self.send(self.d.multi_get(*keys))
        return [self.vector() for _ in keys]

    def cancel(self):
        self.send(self.d.cancel())
        return self.read(1)

    def pop(self, key):
        """The length before the pop, and the element."""
        self.send(self.d.pop(key))
        length = self.i64()
        return length, self.vector() if length > 0 else None

    def queue_len(self, key):
        self.send(self.d.queue_len(key))
        return self.i64()

    def list_keys(self):
        self.send(self.d.list_keys())
        return [self.vector() for _ in range(self.i64())]

    def round_trip(self):
        self.begin_round_trip()()

    def begin_round_trip(self):
        """Returns what ends it. After it, the server has handled all earlier requests of this client, and has sent nothing but their
        answers: raises where other bytes arrive. The answer cannot be mistaken for another one."""
        number = next(self.unique) * 0x01010107
        if self.d.has("PING"):
            number &= 0xFFFFFFFF
            self.send(self.d.ping(number))
            expected = struct.pack("<I", number)
        else:
            self.send(self.d.add(b"round trip %d" % number, number))
            expected = i64(number)

        def end():
            got = self.read(len(expected))
            if got != expected:
                raise AssertionError(f"{got!r} arrived instead of {expected!r}")
        return end

    def park(self, request, other):
        """Sends a request that waits, and returns when the server has it: it has answered the request that precedes
        it in the same segment, and then some of another connection."""
        self.send(self.d.check(), request)
        if self.read(1) != READY:
            raise AssertionError("CHECK without keys is not ready")
        for _ in range(3):
            other.round_trip()


class Server:
    """`ferry coordinator`, whose log goes into a file.
        files: how many it may open.

    Its stores have as many threads as the environment variable STORE_THREADS says, if it is set."""

    def __init__(self, *flags, files=None):
        limit = None
        if files is not None:
            def limit():
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        if "STORE_THREADS" in os.environ:
            flags = (*flags, "--store-threads=" + os.environ["STORE_THREADS"])
        self.errors = tempfile.TemporaryFile("w+", errors="replace")
        self.popen = subprocess.Popen([harness.FERRY, "coordinator", "--listen=127.0.0.1:0", "--nodes=1", *flags],
                                      preexec_fn=limit,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors,
                                      env=harness.environment())
        deadline = time.monotonic() + PATIENCE_S
        said = b""
        while b"\n" not in said:
            if not select.select([self.popen.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"no address from {harness.FERRY} in {PATIENCE_S} s")
            piece = os.read(self.popen.stdout.fileno(), 4096)
            if not piece:
                raise AssertionError(f"{harness.FERRY} ended: {self.log()}")
            said += piece
        host, port = re.search(rb"listening on (\S+):(\d+)\n", said).groups()
        self.address = host.decode(), int(port)

    def log(self):
        # Positional reads: the file's offset is shared with the server, which writes there.
        size = os.fstat(self.errors.fileno()).st_size
        return os.pread(self.errors.fileno(), size, 0).decode(errors="replace")

    def resident_bytes(self):
        with open(f"/proc/{self.popen.pid}/status", encoding="ascii", errors="replace") as status:
            return int(re.search(r"VmRSS:\s*(\d+) kB", status.read()).group(1)) * 1024

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.popen.pid}/fd"))

    def stop(self):
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(PATIENCE_S)
        self.popen.stdout.close()
        self.errors.close()


class Case(harness.Case):
    """A server for the tests of a class, each of which has its own keys, and a connection that keeps the keys when
    others close."""

    dialect = V2_2

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.stop)
        cls.keeper = Client(cls.server.address)
        cls.addClassCleanup(cls.keeper.close)

    def setUp(self):
        self.client = self.connect()

    def tearDown(self):
        self.assertIsNone(self.server.popen.poll(), "the server ended: " + self.server.log()[-2000:])
        self.keeper.round_trip()

    def connect(self, dialect=None):
        client = Client(self.server.address, dialect or self.dialect)
        self.addCleanup(client.close)
        return client

    def server_of_its_own(self, *flags, files=None):
        server = Server(*flags, files=files)
        self.addCleanup(server.stop)
        return server

    def key(self, name="k"):
        return f"/{self._testMethodName}/{name}".encode()

    def assertQuiet(self, *clients):
        """The clients have received nothing but what they have read, and can go on."""
        for end in [client.begin_round_trip() for client in clients]:
            end()

    def assertWaits(self, client):
        """The wait of that client has not been answered, and is cancelled where the dialect can. An answer that is
        under way shows too: it would come first."""
        if client.d.has("CANCEL_WAIT"):
            self.assertEqual(client.cancel(), WAIT_CANCELED)
            self.assertQuiet(client)
        else:
            self.assertFalse(client.readable())

    def pause(self, seconds):
        """For conditions that are about time themselves: requests that arrive in parts."""
        time.sleep(seconds)

    def delete_all_keys(self):
        for key in self.keeper.list_keys():
            self.keeper.delete(key)

    def random(self):
        """A generator that repeats the test's draws; SEED=number in the environment gives others."""
        return random.Random(f"{os.environ.get('SEED', '1')} {self.id()}")


def in_each_dialect(cases):
    """Defines the tests of that class for each of the dialects: `Adds` becomes AddsOf1_13, AddsOf2_1, AddsOf2_2."""
    return in_dialects(V1_13, V2_1, V2_2)(cases)


def in_dialects(*dialects):
    def define(cases):
        module = sys.modules[cases.__module__]
        for dialect in dialects:
            name = f"{cases.__name__}Of{dialect.name}"
            made = type(name, (cases, Case), {"dialect": dialect, "__module__": cases.__module__})
            setattr(module, name, made)
        return cases
    return define


def raise_descriptor_limit(needed):
    """Lets this process and its children open so many files; returns how many they may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return needed


main = harness.main

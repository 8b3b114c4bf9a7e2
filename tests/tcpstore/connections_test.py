#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's TCPStore protocol on the coordinator's port: greetings, many connections, gRPC beside it, and any bytes.

    connections_test.py FERRY [CASE...]
"""
import json
import re
import select
import selectors
import socket
import struct
import threading

import store_client
from store_client import (HELLO, MIB, NOT_READY, READY, STOP_WAITING, V1_13, V2_1, V2_2, WAIT_CANCELED, Case, Client,
                          i64, in_dialects, in_each_dialect, main, text, u64)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# HTTP/2 frames: types and flags.
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
ACK, END_STREAM, END_HEADERS = 1, 1, 4


class Raw(Client):
    """A connection that has not sent anything."""

    def __init__(self, address):
        super().__init__(address, V1_13)


class Greetings(Case):
    def raw(self):
        client = Raw(self.server.address)
        self.addCleanup(client.close)
        return client

    def test_ping_after_the_greeting_is_answered(self):
        client = self.raw()
        client.send(bytes.fromhex("00CEF7853C"), bytes.fromhex("0D01000000"))
        self.assertEqual(client.read(4), bytes.fromhex("01000000"))

    def test_greeting_alone_is_not_answered(self):
        client = self.raw()
        client.send(HELLO)
        # A connection that is younger has been served.
        self.assertQuiet(self.connect())
        self.assertFalse(client.readable())
        client.send(V2_2.check())
        self.assertEqual(client.read(1), READY)
        client.d = V2_2
        self.assertQuiet(client)

    def test_greeting_in_single_bytes_is_one(self):
        client = self.raw()
        for byte in bytes.fromhex("00CEF7853C 0D01000000"):
            client.send(bytes([byte]))
            self.pause(0.01)
        self.assertEqual(client.read(4), bytes.fromhex("01000000"))

    def test_wrong_magic_ends_the_connection_and_stores_nothing(self):
        k = self.key()
        # One number away, the bytes reversed, and the first and the last bytes wrong.
        for magic in ("CFF7853C", "3C85F7CE", "CEF7853D", "00F7853C", "FFFFFFFF"):
            with self.subTest(magic):
                self.assertEqual(self.raw().refused(b"\0" + bytes.fromhex(magic) + V2_2.set(k, b"v")), b"")
                self.assertEqual(self.client.check(k), NOT_READY)

    def test_wrong_magic_after_the_greeting_ends_the_connection(self):
        k, client = self.key(), self.connect()
        self.assertEqual(client.refused(b"\0" + b"\1\2\3\4" + V2_2.set(k, b"v")), b"")
        self.assertEqual(self.client.check(k), NOT_READY)

    def test_http_1_and_tls_are_not_left_waiting(self):
        for request in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /x HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
                        bytes.fromhex("16030100c4010000c00303") + b"\x55" * 190, b"PRINT THIS PLEASE, NOW\r\n\r\n"):
            with self.subTest(request[:8]):
                self.raw().refused(request)

    def test_http_2_is_answered_as_http_2(self):
        client = self.raw()
        client.send(PREFACE, frame(SETTINGS))
        self.assertEqual(client.read(9)[3], SETTINGS)

    def test_unknown_operation_ends_the_connection(self):
        for dialect, numbers in ((V1_13, range(12, 256, 16)), (V2_1, range(12, 256, 16)), (V2_2, range(19, 256))):
            clients = {op: self.connect(dialect) for op in numbers}
            for op, client in clients.items():
                # The first byte of a connection could be that of another protocol.
                client.send(dialect.check(), bytes([op]))
            for op, client in clients.items():
                with self.subTest(dialect=dialect.name, op=op):
                    self.assertEqual(client.rest(), READY)
        self.assertQuiet(self.client)

    def test_watch_of_release_1_13_is_not_left_waiting(self):
        # Clients from 1.13 on do not send it, and 2.1 has a DELETE_KEY with its number.
        k, client = self.key(), self.connect(V1_13)
        client.send(V1_13.set(k, b"v"), b"\7" + text(k))
        try:
            self.assertEqual(client.i64(), 1)
        except (ConnectionError, EOFError):
            pass


class Log(Case):
    def test_unknown_operation_is_logged_with_the_peer_its_number_and_the_releases(self):
        client = self.connect()
        name = client.name
        self.assertEqual(client.refused(b"\xc8"), b"")
        self.eventually(lambda: re.search(rf"^.*{re.escape(name)}\b.*\b200\b.*PyTorch 2\.2 or later.*$",
                                          self.server.log(), re.M))

    def test_many_connections_that_are_refused_are_few_lines(self):
        server = self.server_of_its_own()
        for _ in range(200):
            client = Client(server.address)
            self.assertEqual(client.refused(b"\xc8"), b"")
            client.close()
        # The last line counts the rest.
        self.eventually(lambda: re.search(r"closed 1\d\d more connections of PyTorch stores", server.log()))
        self.assertLess(server.log().count("unknown operation"), 50)


class Descriptors(Case):
    def test_clients_of_the_store_leave_descriptors_for_others(self):
        server = self.server_of_its_own(files=300)
        clients = [Client(server.address) for _ in range(400)]
        self.addCleanup(lambda: [client.close() for client in clients])
        served = []
        for client in clients:
            try:
                client.round_trip()
                served.append(client)
            except (ConnectionError, EOFError):
                pass
        # Most of the descriptors are theirs, and the first clients are.
        self.assertEqual(served, clients[:len(served)])
        self.assertGreater(len(served), 150)
        self.assertLess(len(served), 230)
        self.assertLess(server.descriptors(), 260)
        self.assertRegex(server.log(), r"closed new connections of PyTorch stores.*raise `ulimit -n`")
        # Clients of gRPC and of Ferry, and one of the store when another has gone.
        for _ in range(3):
            status = self.run_ferry("status", "--coordinator=%s:%d" % server.address)
            self.assertEqual(status[0], 0, status)
        grpc = Raw(server.address)
        self.addCleanup(grpc.close)
        grpc.send(PREFACE, frame(SETTINGS))
        self.assertEqual(grpc.read(9)[3], SETTINGS)
        served.pop().close()
        self.eventually(lambda: self.is_served(server))

    def is_served(self, server):
        client = Client(server.address)
        try:
            client.round_trip()
            return True
        except (ConnectionError, EOFError):
            return False
        finally:
            client.close()


class JobsOneAfterAnother(Case):
    def test_job_that_begins_at_once_reads_no_key_of_the_one_before(self):
        server = self.server_of_its_own()
        for _ in range(3):
            clients = [Client(server.address) for _ in range(3)]
            for client in clients:
                client.add(b"init/", 1)
            self.assertEqual(clients[2].get(b"init/"), b"3")
            self.assertEqual(clients[1].get(b"/address/0"), b"")
            clients[0].set(b"/address/0", b"a")
            clients[0].round_trip()
            for client in clients:
                client.close()

    def test_client_that_comes_back_finds_its_keys(self):
        server = self.server_of_its_own("--store-idle-timeout=1m")
        for number in range(3):
            client = Client(server.address)
            self.assertEqual(client.get(b"/n"), b"%d" % number if number else b"")
            client.set(b"/n", b"%d" % (number + 1))
            client.round_trip()
            client.close()


class SharedMemory(Case):
    """All clients together may hold 64 MiB."""

    LIMIT = 64 * MIB

    def setUp(self):
        super().setUp()
        self.small = self.server_of_its_own("--max-store-client-bytes=%d" % self.LIMIT)
        self.other = self.connect_to_small()
        # A client that waits for a key must not be harmed.
        self.waiter = self.connect_to_small()
        self.waiter.park(V2_2.wait(b"/awaited"), self.other)
        self.other.round_trip()
        self.before = self.small.resident_bytes()

    def connect_to_small(self):
        client = Client(self.small.address)
        self.addCleanup(client.close)
        return client

    def store_clients(self):
        return json.loads(self.succeed("status", "--json", "--coordinator=%s:%d" % self.small.address))["store_clients"]

    def grown(self):
        self.other.round_trip()
        return self.small.resident_bytes() - self.before

    def assertOthersAreServed(self):
        self.other.round_trip()
        self.other.set(b"/large", b"v" * (4 * MIB))
        self.assertEqual(len(self.other.get(b"/large")), 4 * MIB)
        self.other.set(b"/awaited", b"")
        self.assertEqual(self.waiter.read(1), STOP_WAITING)
        self.assertQuiet(self.waiter, self.other)

    def test_clients_that_do_not_read_their_replies(self):
        self.other.set(b"/k", b"v" * 500)
        request = V2_2.multi_get(*[b"/k"] * 65536)
        # 33 MB each.
        for _ in range(40):
            self.connect_to_small().send(request)
        self.assertOthersAreServed()
        self.assertLess(self.grown(), 2 * self.LIMIT)

    def test_clients_that_keep_values_which_were_replaced(self):
        for number in range(60):
            self.other.set(b"/k", b"v" * (8 * MIB))
            client = self.connect_to_small()
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
            client.send(V2_2.get(b"/k"))
            # The reply has begun, so that it has the value.
            client.read(8)
        self.other.set(b"/k", b"")
        self.eventually(lambda: self.grown() < 3 * self.LIMIT)
        self.assertOthersAreServed()
        self.assertRegex(self.small.log(), r"\(--max-store-client-bytes\)")

    def test_clients_that_send_half_of_a_request(self):
        request = V2_2.set(b"/half", b"v" * (15 * MIB))
        # More than twice the limit, and no more: while memory is scarce each has its turn before the next client, and
        # after that a period until it is closed.
        halves = [self.connect_to_small() for _ in range(10)]
        for client in halves:
            client.socket.setblocking(False)
        sent = dict.fromkeys(halves, 0)
        end = len(request) - MIB
        # As far as the server reads, which is until half of the limit is held.
        while True:
            ready = select.select([], [c.socket for c in halves if sent[c] < end], [], 0.3)[1]
            if not ready:
                if self.store_clients()["bytes"] >= self.LIMIT // 2:
                    break
                continue
            for client in halves:
                if client.socket in ready:
                    try:
                        sent[client] += client.socket.send(request[sent[client]:min(end, sent[client] + MIB)])
                    except ConnectionError:
                        sent[client] = end
        self.assertLess(self.grown(), 2 * self.LIMIT)
        self.assertOthersAreServed()
        self.assertRegex(self.small.log(), r"\(--max-store-client-bytes\)")

    def test_many_large_values_at_once_are_all_stored(self):
        clients = [self.connect_to_small() for _ in range(40)]

        def store(number, client):
            client.set(b"/v%d" % number, b"%02d" % number * (4 * MIB))
            client.round_trip()
        threads = [threading.Thread(target=store, args=each) for each in enumerate(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(store_client.PATIENCE_S)
        for number in range(40):
            self.assertEqual(self.other.get(b"/v%d" % number)[-2:], b"%02d" % number)
        self.assertOthersAreServed()
        self.assertNotIn("--max-store-client-bytes", self.small.log())

    def test_status_tells_what_they_hold(self):
        self.connect_to_small().send(V2_2.set(b"/half", b"v" * (2 * MIB))[:MIB])
        at = "--coordinator=%s:%d" % self.small.address
        self.eventually(lambda: MIB - 100 <= self.store_clients()["bytes"] < 3 * MIB)
        self.assertEqual(self.store_clients()["max_bytes"], self.LIMIT)
        self.assertRegex(self.succeed("status", at).decode(), r"memory of clients: .* of 64\.0 MiB")


class SilentConnections(Case):
    def test_client_that_says_nothing_for_12_seconds_can_still_be_served(self):
        # Releases without a greeting send their first byte when the program first uses the store. 12 seconds are
        # longer than servers of HTTP usually wait for the first byte.
        clients = [self.connect(dialect) for dialect in (V1_13, V2_1, V2_2)]
        self.pause(12)
        for client in clients:
            with self.subTest(client.d.name):
                client.set(self.key(), b"v")
                self.assertEqual(client.get(self.key()), b"v")


class ManyConnections(Case):
    COUNT = 1000

    @classmethod
    def setUpClass(cls):
        # The server inherits it, and has a few of its own.
        cls.count = min(cls.COUNT, store_client.raise_descriptor_limit(2 * cls.COUNT + 200) // 2 - 100)
        super().setUpClass()

    def many(self, count):
        clients = [Client(self.server.address) for _ in range(count)]
        self.addCleanup(lambda: [client.close() for client in clients])
        return clients

    def test_thousand_connections_at_once_are_all_answered(self):
        clients = self.many(self.count)
        for nonce, client in enumerate(clients):
            client.send(V2_2.ping(nonce))
        for nonce, client in enumerate(clients):
            self.assertEqual(client.read(4), struct.pack("<I", nonce))

    def test_checks_on_200_connections_are_answered_one_by_one(self):
        here, there = self.key("here"), self.key("there")
        self.client.set(here, b"v")
        self.client.round_trip()
        clients, each, answers = self.many(min(200, self.count)), 50, 0
        requests = V2_2.check(here), V2_2.check(here, there)
        expected = READY, NOT_READY
        with selectors.DefaultSelector() as selector:
            for client in clients:
                selector.register(client.socket, selectors.EVENT_READ, [client, 0])
                client.send(requests[0])
            while answers < len(clients) * each:
                ready = selector.select(store_client.PATIENCE_S)
                self.assertTrue(ready, f"no answer to a CHECK, after {answers}")
                for event, _ in ready:
                    client, done = event.data
                    self.assertEqual(client.read(1), expected[done % 2])
                    answers += 1
                    event.data[1] = done = done + 1
                    if done < each:
                        client.send(requests[done % 2])
        self.assertQuiet(*clients)

    def test_store_and_grpc_share_the_port(self):
        # A call of a method that does not exist is answered by gRPC itself.
        call = headers_frame(1, b"/ferry.Nothing/Nothing", self.server.address)
        stores, calls = [], []
        for number in range(self.count // 2):
            stores += self.many(1)
            calls.append(Raw(self.server.address))
            self.addCleanup(calls[-1].close)
            calls[-1].send(PREFACE, frame(SETTINGS), frame(PING, 0, 0, u64(number)), call)
            stores[-1].send(V2_2.add(self.key("n"), 1), V2_2.set(self.key(str(number)), b"%d" % number))
        for number, client in enumerate(calls):
            self.assertTrue(self.has_answers(client, u64(number)))
        self.assertEqual(sorted(client.i64() for client in stores), list(range(1, len(stores) + 1)))
        for number, client in enumerate(stores):
            self.assertEqual(client.get(self.key(str(number))), b"%d" % number)
        self.assertQuiet(*stores)
        status = self.run_ferry("status", "--coordinator=%s:%d" % self.server.address)
        self.assertEqual(status[0], 0, status)

    def has_answers(self, client, ping):
        """The HTTP/2 server has acknowledged the ping, and has ended stream 1 with headers."""
        is_pinged = is_ended = False
        while not (is_pinged and is_ended):
            head = client.read(9)
            payload = client.read(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            if kind in (GOAWAY, RST_STREAM):
                return False
            is_pinged |= kind == PING and bool(flags & ACK) and payload == ping
            is_ended |= kind == HEADERS and bool(flags & END_STREAM) and stream == 1
        return True


def frame(kind, flags=0, stream=0, payload=b""):
    """An HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers_frame(stream, path, address):
    """A gRPC call without messages. Each field is literal and enters no table."""
    fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"%s:%d" % (
        address[0].encode(), address[1])), (b"te", b"trailers"), (b"content-type", b"application/grpc"))
    block = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields)
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, block)


class SlowReaders(Case):
    def test_client_that_does_not_read_delays_no_other_and_costs_bounded_memory(self):
        keys = [self.key(str(number)) for number in range(8)]
        values = [bytes([number]) * MIB for number in range(8)]
        for key, value in zip(keys, values):
            self.client.set(key, value)
        self.client.round_trip()
        before = self.server.resident_bytes()
        slow = self.connect()
        # Sixteen requests for 64 MiB each.
        request = V2_2.multi_get(*(keys * 8))
        slow.send(request * 16)
        for number in range(200):
            self.assertEqual(self.client.add(self.key("n"), 1), number + 1)
        self.assertTrue(slow.readable())
        self.assertLess(self.server.resident_bytes() - before, 512 * MIB)
        # The answers are complete for a client that reads after all.
        for number in range(64):
            self.assertTrue(slow.vector() == values[number % 8], f"value {number}")
        self.assertLess(self.server.resident_bytes() - before, 512 * MIB)
        # It dies with the others unread.
        slow.reset()
        self.assertQuiet(self.client)
        for key in keys:
            self.client.delete(key)

    def test_client_that_reads_slowly_gets_all_answers_in_order(self):
        k = self.key()
        self.client.set(k, b"v" * 100000)
        self.client.round_trip()
        slow = self.connect()
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
        for number in range(10):
            slow.send(V2_2.get(k), V2_2.ping(number))
        for number in range(10):
            self.assertEqual(slow.vector(), b"v" * 100000)
            self.assertEqual(slow.read(4), struct.pack("<I", number))
        self.assertQuiet(slow)


class Model:
    """The store as the protocol describes it: makes requests whose answers it knows. Only requests that do not wait."""

    def __init__(self, dialect, rng, prefix):
        self.d, self.rng = dialect, rng
        self.keys = [prefix + name for name in (b"", b"/a", b"/b", b"/\0", b"/" + b"long" * 400, b"/c", b"/d", b"/n")]
        self.queues = [prefix + b"/queue %d" % number for number in range(3)]
        self.values, self.elements = {}, {queue: [] for queue in self.queues}
        # WATCH_KEY is refused, and LIST_KEYS has no defined order.
        self.names = [name for name in dialect.ops if name not in ("VALIDATE", "WATCH_KEY", "LIST_KEYS")]

    def value(self):
        return self.rng.choice((b"", b"%d" % self.rng.randrange(-99, 99), self.rng.randbytes(self.rng.randrange(60)),
                                self.rng.randbytes(self.rng.randrange(4000))))

    def number(self, key):
        """The number that ADD finds there, or None."""
        value = self.values.get(key, b"0")
        return int(value) if re.fullmatch(rb"0|-?[1-9]\d{0,17}", value) else None

    def exists(self, key):
        return key in self.values or bool(self.elements.get(key))

    def next(self):
        """The name of an operation, its request, and its answer."""
        name = self.rng.choice(self.names)
        return name, *getattr(self, name.lower())(self.rng.choice(self.keys))

    def some(self, names):
        return [self.rng.choice(names) for _ in range(self.rng.randrange(6))]

    def set(self, key):
        value = self.values[key] = self.value()
        return self.d.set(key, value), b""

    def compare_set(self, key):
        expected = self.rng.choice((b"", self.values.get(key, b""), self.value()))
        desired, current = self.value(), self.values.get(key)
        answer = desired
        if current is None and expected:
            answer = expected
        elif current is not None and current != expected:
            answer = current
        else:
            self.values[key] = desired
        return self.d.compare_set(key, expected, desired), text(answer)

    def get(self, key):
        return self.d.get(key), text(self.values.get(key, b""))

    def add(self, key):
        if self.number(key) is None:
            return self.set(key)
        delta = self.rng.randrange(-2**31, 2**31)
        total = self.number(key) + delta
        self.values[key] = b"%d" % total
        return self.d.add(key, delta), i64(total)

    def check(self, _):
        keys = self.some(self.keys + self.queues)
        return self.d.check(*keys), READY if all(map(self.exists, keys)) else NOT_READY

    def wait(self, _):
        keys = [key for key in self.some(self.keys) if self.exists(key)]
        return self.d.wait(*keys), STOP_WAITING

    def getnumkeys(self, _):
        return self.d.num_keys(), i64(len(self.values))

    def delete_key(self, key):
        return self.d.delete(key), i64(self.values.pop(key, None) is not None)

    def append(self, key):
        value = self.value()
        if len(self.values.get(key, b"")) > 50000:
            value = b""
        self.values[key] = self.values.get(key, b"") + value
        return self.d.append(key, value), b""

    def multi_get(self, _):
        keys = self.some(self.keys)
        return self.d.multi_get(*keys), b"".join(text(self.values.get(key, b"")) for key in keys)

    def multi_set(self, _):
        pairs = [(key, self.value()) for key in self.some(self.keys)]
        self.values.update(pairs)
        return self.d.multi_set(pairs), b""

    def cancel_wait(self, _):
        return self.d.cancel(), WAIT_CANCELED

    def ping(self, _):
        nonce = self.rng.randbytes(4)
        return self.d.op("PING") + nonce, nonce

    def queue_push(self, _):
        queue, value = self.rng.choice(self.queues), self.value()
        self.elements[queue].append(value)
        return self.d.push(queue, value), b""

    def queue_pop(self, _):
        queue = self.rng.choice(self.queues)
        length = len(self.elements[queue])
        return self.d.pop(queue), i64(length) + (text(self.elements[queue].pop(0)) if length else b"")

    def queue_len(self, _):
        queue = self.rng.choice(self.queues)
        return self.d.queue_len(queue), i64(len(self.elements[queue]))

    def barrier(self, key):
        number = self.number(key)
        if number is None:
            return self.set(key)
        self.values[key] = b"%d" % (number + 1)
        return self.d.barrier(key, self.rng.randrange(number - 2, number + 2)), STOP_WAITING


@in_each_dialect
class RandomRequests:
    COUNT = 10000

    def test_answers_are_those_of_a_model_however_the_bytes_are_split(self):
        self.delete_all_keys()
        rng, d = self.random(), self.dialect
        model, client, done = Model(d, rng, b""), self.connect(), 0
        if d is V2_1:
            # Until an operation that 1.13 has not, a DELETE_KEY of 1.13 looks like an APPEND in two segments.
            self.assertEqual(client.cancel(), WAIT_CANCELED)
        while done < self.COUNT:
            names, requests, expected = [], b"", b""
            # An APPEND of 2.1 looks like a DELETE_KEY of 1.13 and more, so nothing follows that.
            while len(names) < 40 and not (d is V1_13 and names[-1:] == ["DELETE_KEY"]):
                name, request, answer = model.next()
                names.append(name)
                requests += request
                expected += answer
            done += len(names)
            at = 0
            while at < len(requests):
                size = rng.choice((1, 7, 500, 4096, 1 << 20)) if rng.random() < 0.3 else len(requests)
                client.send(requests[at:at + size])
                at += size
            got = client.read(len(expected))
            self.assertTrue(got == expected, f"after {done} requests, in the answers of {names}")
        self.assertEqual(sorted(self.keeper.list_keys()), sorted(model.values))
        self.assertFalse(client.readable())


@in_dialects(V2_1, V2_2)
class RandomBytes:
    COUNT = 20000

    def test_any_requests_of_any_lengths_neither_end_the_server_nor_fill_its_memory(self):
        rng, d = self.random(), self.dialect
        before, made = self.server.resident_bytes(), 0
        waiting = []
        while made < self.COUNT:
            client = self.connect()
            try:
                for _ in range(rng.randrange(1, 60)):
                    made += 1
                    client.send(self.request(rng, d))
                    self.drain(client)
            except ConnectionError:
                pass
            waiting.append(client)
            if len(waiting) > 50:
                getattr(waiting.pop(rng.randrange(len(waiting))), rng.choice(("close", "reset")))()
        self.assertQuiet(self.client)
        self.assertLess(self.server.resident_bytes() - before, 512 * MIB)

    def drain(self, client):
        while client.readable():
            if not client.socket.recv(MIB):
                raise ConnectionResetError
        if not select.select([], [client.socket], [], store_client.PATIENCE_S)[1]:
            raise AssertionError("the server does not read")

    def length(self, rng):
        return rng.choice((0, 1, 8, rng.randrange(300), rng.randrange(300), rng.randrange(300), 1 << 16,
                           rng.getrandbits(24), rng.getrandbits(64)) if rng.random() < 0.05 else (1, 3, 8))

    def field(self, rng):
        """A string whose length is not always true."""
        size = self.length(rng)
        data = rng.choice((b"abc", b"12345678", rng.randbytes(8)))[:min(size, 8)]
        data += b"x" * (min(size, 1 << 16) - len(data))
        return u64(size) + data

    def request(self, rng, d):
        name = rng.choice(list(d.ops))
        if rng.random() < 0.02:
            return rng.randbytes(rng.randrange(1, 40))
        count = 1 if rng.random() < 0.95 else self.length(rng)
        fields = {"PING": b"1234", "VALIDATE": HELLO[1:], "GETNUMKEYS": b"", "CANCEL_WAIT": b"", "LIST_KEYS": b""}
        if name in fields:
            return d.op(name) + fields[name]
        if name in ("CHECK", "WAIT", "MULTI_GET", "MULTI_SET"):
            each = 2 if name == "MULTI_SET" else 1
            return d.op(name) + u64(count) + b"".join(self.field(rng) for _ in range(each * min(count, 100)))
        after = {"SET": 1, "COMPARE_SET": 2, "APPEND": 1, "QUEUE_PUSH": 1}.get(name, 0)
        request = d.op(name) + b"".join(self.field(rng) for _ in range(1 + after))
        return request + rng.randbytes(8) if name in ("ADD", "BARRIER") else request


if __name__ == "__main__":
    main()

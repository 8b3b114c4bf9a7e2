# SPDX-License-Identifier: Apache-2.0
"""ferry.rendezvous_client against `ferry coordinator`. Run as: rendezvous_client_test.py FERRY"""
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir, "cli"), os.path.join(HERE, os.pardir, os.pardir, "python")]
import harness  # noqa: E402
from ferry.rendezvous_client import RendezvousClient, RendezvousFailure, parse_endpoint  # noqa: E402

PATIENCE_S = harness.PATIENCE_S
# A process that joins alone, and then does as the words of its command line say.
CHILD = """
import os, sys, threading, time
from ferry.rendezvous_client import RendezvousClient
client = RendezvousClient(("127.0.0.1", int(sys.argv[1])), "job", host="child", heartbeat_timeout_s=600)
assignment = client.join(1, 2, last_call_timeout_s=0.01)
if "fork" in sys.argv:
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
print("joined", assignment.rank, flush=True)
if "stay" in sys.argv:
    sys.stdin.read()
if "leave" in sys.argv:
    client.leave()
"""


class Answer(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, function):
        super().__init__(daemon=True)
        self.function, self.result, self.error = function, None, None
        self.start()

    def run(self):
        try:
            self.result = self.function()
        except RendezvousFailure as error:
            self.error = error

    def get(self):
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the call has not ended"
        if self.error:
            raise self.error
        return self.result


class Cut:
    """A TCP proxy whose connections can be cut, and whose port can be closed."""

    def __init__(self, port):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lock = threading.Lock()
        self.sockets = []
        self.is_open = True
        self.count = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            with self.lock:
                if not self.is_open:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self.target))
                self.count += 1
                self.sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def pump(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        finally:
            source.close()

    def cut(self, stays_closed=False):
        with self.lock:
            self.is_open = not stays_closed
            for one in self.sockets:
                # Its peer may have reset it, or its pump closed it, by now.
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self.sockets = []

    def close(self):
        self.listener.close()
        self.cut()


class RendezvousClients(harness.Case):
    def setUp(self):
        _, address = self.coordinator(1)
        self.port = int(address.rpartition(":")[2])

    def client(self, host, port=None, **options):
        client = RendezvousClient(("127.0.0.1", port or self.port), "job", host=host, **options)
        self.addCleanup(client.leave)
        return client

    def child(self, *words):
        env = harness.environment(PYTHONPATH=os.path.join(HERE, os.pardir, os.pardir, "python"))
        process = subprocess.Popen([sys.executable, "-c", CHILD, str(self.port), *words], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True, env=env, start_new_session=True)

        def end():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait(PATIENCE_S)
            process.stdin.close()
            process.stdout.close()
        self.addCleanup(end)
        self.assertEqual(process.stdout.readline().split()[0], "joined")
        return process

    def test_two_nodes_get_ranks_and_the_port_of_one_store(self):
        a, b = self.client("host-a"), self.client("host-b")
        joined = Answer(lambda: b.join(2, 2))
        assignment = a.join(2, 2)
        self.assertEqual((assignment.round, assignment.rank, assignment.nodes), (0, 0, 2))
        self.assertEqual(joined.get().rank, 1)
        self.assertEqual(joined.get().port, assignment.port)
        socket.create_connection(("127.0.0.1", assignment.port)).close()

    def test_node_that_comes_late_is_counted(self):
        a, b = self.client("host-a"), self.client("host-b")
        a.join(1, 2, last_call_timeout_s=0.01)
        self.assertEqual(a.run_state(0).waiting, 0)
        joined = Answer(lambda: b.join(1, 2))
        self.eventually(lambda: a.run_state(0).waiting == 1)
        assignment = a.join(1, 2)
        self.assertEqual((assignment.round, assignment.rank, joined.get().rank), (1, 0, 1))

    def test_error_of_a_missing_node_names_those_that_came(self):
        with self.assertRaisesRegex(RendezvousFailure, "1 of 2 nodes has joined: .*host-a.*1 node is missing") as raised:
            self.client("host-a").join(2, 2, join_timeout_s=0.2)
        self.assertEqual(raised.exception.code, "DEADLINE_EXCEEDED")

    def test_closed_run_refuses_nodes_until_all_have_left(self):
        a, b = self.client("host-a"), self.client("host-b")
        a.join(1, 2, last_call_timeout_s=0.01)
        a.close()
        self.assertTrue(a.run_state(0).is_closed)
        with self.assertRaisesRegex(RendezvousFailure, "was closed by .*host-a") as raised:
            b.join(1, 2)
        self.assertEqual(raised.exception.code, "FAILED_PRECONDITION")
        a.leave()

        def is_in():
            try:
                return b.join(1, 2, last_call_timeout_s=0.01).round == 0
            except RendezvousFailure:
                return False
        self.eventually(is_in)

    def test_heartbeats_keep_a_node_that_is_quiet(self):
        client = self.client("host-a", heartbeat_interval_s=0.1, heartbeat_timeout_s=1)
        client.join(1, 1)
        time.sleep(2.5)
        self.assertTrue(client.run_state(0).is_known)

    def test_call_goes_on_over_another_connection(self):
        proxy = Cut(self.port)
        self.addCleanup(proxy.close)
        a, b = self.client("host-a", proxy.port), self.client("host-b")
        joined = Answer(lambda: a.join(2, 2))
        self.eventually(lambda: proxy.count == 1)
        proxy.cut()
        self.eventually(lambda: proxy.count == 2)
        self.assertEqual(b.join(2, 2).nodes, 2)
        self.assertEqual(joined.get().rank, 0)
        proxy.cut()
        self.eventually(lambda: proxy.count == 3)
        self.assertTrue(a.run_state(0).is_known)
        self.assertEqual(b.run_state(0).waiting, 0)

    def test_connection_that_comes_back_keeps_a_quiet_node(self):
        proxy = Cut(self.port)
        self.addCleanup(proxy.close)
        a = self.client("host-a", proxy.port, heartbeat_interval_s=60, heartbeat_timeout_s=180)
        b = self.client("host-b")
        joined = Answer(lambda: a.join(2, 2))
        b.join(2, 2)
        joined.get()
        proxy.cut()
        # Its next heartbeat would come too late.
        self.eventually(lambda: proxy.count == 2)
        self.eventually(lambda: [agent["is_detached"] for agent in self.runs()[0]["agents"]] == [False, False])
        self.assertEqual(b.run_state(0).waiting, 0)

    def test_coordinator_out_of_reach_is_an_error_after_its_time(self):
        proxy = Cut(self.port)
        self.addCleanup(proxy.close)
        client = self.client("host-a", proxy.port, connect_timeout_s=1)
        client.join(1, 1)
        proxy.cut(stays_closed=True)

        def fails():
            try:
                client.run_state(0)
            except RendezvousFailure as error:
                self.assertEqual(error.code, "UNAVAILABLE")
                self.assertIn(f"127.0.0.1:{proxy.port} could not be reached for", str(error))
                return True
            return False
        self.eventually(fails)

    def test_port_without_a_coordinator_is_an_error_with_the_reason(self):
        with self.assertRaisesRegex(RendezvousFailure, "127.0.0.1:1 could not be reached for .*refused"):
            self.client("host-a", 1, connect_timeout_s=0.5).join(1, 1)

    def test_other_server_is_an_error_and_not_a_hang(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            def answer():
                while True:
                    try:
                        with listener.accept()[0] as connection:
                            connection.sendall(b"SSH-2.0-other\n")
                            # Closing with unread bytes would reset the connection.
                            while connection.recv(4096):
                                pass
                    except OSError:
                        return
            threading.Thread(target=answer, daemon=True).start()
            client = self.client("host-a", listener.getsockname()[1], connect_timeout_s=0.5)
            with self.assertRaisesRegex(RendezvousFailure, "did not reply|not a Ferry coordinator"):
                client.close(timeout_s=2)

    def test_server_that_closes_at_once_is_asked_with_pauses(self):
        count = 0
        with socket.create_server(("127.0.0.1", 0)) as listener:
            def close():
                nonlocal count
                while True:
                    try:
                        listener.accept()[0].close()
                    except OSError:
                        return
                    count += 1
            threading.Thread(target=close, daemon=True).start()
            client = self.client("host-a", listener.getsockname()[1], connect_timeout_s=1)
            with self.assertRaises(RendezvousFailure):
                client.join(1, 1)
            client.leave()
        # Pauses of 0.1, 0.2, 0.4 s, and so on.
        self.assertLess(count, 10)

    def test_thread_that_was_woken_asks_with_pauses(self):
        client = self.client("host-a", 1, connect_timeout_s=1)
        count = 0
        connect = client._connect

        def counting():
            nonlocal count
            count += 1
            client._wake()  # As when a request cannot be sent.
            return connect()
        client._connect = counting
        with self.assertRaises(RendezvousFailure):
            client.join(1, 1)
        self.assertLess(count, 10)

    def test_server_that_is_silent_is_an_error_with_the_reason(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = self.client("host-a", listener.getsockname()[1], connect_timeout_s=0.5)
            with self.assertRaisesRegex(RendezvousFailure, "accepted the connection and did not reply"):
                client.join(1, 1)

    def test_host_with_an_impossible_name_is_an_error_with_the_reason(self):
        client = RendezvousClient(("host..example", 1), "job", connect_timeout_s=0.5)
        self.addCleanup(client.leave)
        with self.assertRaisesRegex(RendezvousFailure, "could not be reached for .*label"):
            client.join(1, 1)

    def test_process_with_many_files_joins(self):
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = 1100
        if before[1] != resource.RLIM_INFINITY and before[1] < needed:
            self.skipTest(f"the limit of descriptors is {before[1]}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], needed), before[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1030)]
        try:
            client = self.client("host-a", connect_timeout_s=2)
            self.assertEqual(client.join(1, 1).nodes, 1)
            client.leave()
        finally:
            for file in files:
                os.close(file)

    def test_timeout_longer_than_the_coordinator_allows_is_a_week(self):
        for timeout_s in (30 * 24 * 3600, float("inf")):
            with self.subTest(timeout_s=timeout_s):
                client = self.client("host-a")
                assignment = client.join(1, 1, last_call_timeout_s=timeout_s, join_timeout_s=timeout_s)
                self.assertEqual(assignment.nodes, 1)
                client.leave()

    def test_request_that_cannot_be_said_is_an_error_at_once(self):
        with self.assertRaises(ValueError):
            self.client("host-a").join(1, 1, join_timeout_s=float("nan"))
        # No character, and too long for a line.
        for run_id in ("job\udcff", "x" * 20000):
            client = RendezvousClient(("127.0.0.1", self.port), run_id, host="host-a")
            self.addCleanup(client.leave)
            with self.assertRaises(RendezvousFailure) as raised:
                client.join(1, 1)
            self.assertEqual(raised.exception.code, "INVALID_ARGUMENT", str(raised.exception))

    def test_thread_that_could_not_be_started_is_started_later(self):
        client = self.client("host-a")
        with unittest.mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
            with self.assertRaisesRegex(RuntimeError, "new thread"):
                client.run_state(0)
        self.assertEqual(client.join(1, 1).nodes, 1)

    def test_client_of_another_process_is_refused(self):
        client = self.client("host-a")
        client.join(1, 1)
        child = os.fork()
        if child == 0:
            try:
                client.run_state(0)
            except RuntimeError as error:
                os._exit(0 if "another" in str(error) else 1)
            finally:
                os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue(client.run_state(0).is_known)

    def test_coordinator_that_is_restarted_is_asked_again(self):
        for stop in (signal.SIGTERM, signal.SIGKILL):
            with self.subTest(stop=stop):
                process, address = self.coordinator(1)
                client = self.client("host-a", int(address.rpartition(":")[2]))
                joined = Answer(lambda: client.join(2, 2))
                # It waits.
                self.eventually(lambda: client.run_state(0).is_known)
                os.kill(process.popen.pid, stop)
                process.wait(PATIENCE_S)
                self.start("coordinator", "--nodes=1", f"--listen={address}").wait_for("listening on")
                other = self.client("host-b", int(address.rpartition(":")[2]))
                other.join(2, 2, join_timeout_s=PATIENCE_S)
                joined.get()

    def test_process_that_is_killed_is_missed_at_once(self):
        for words in (["stay"], ["stay", "fork"]):
            with self.subTest(words=words):
                a = self.client("host-a")
                child = self.child(*words)
                joined = Answer(lambda: a.join(1, 2, last_call_timeout_s=0.01))
                self.eventually(lambda: a.run_state(0).waiting == 1)
                os.kill(child.pid, signal.SIGKILL)
                # Its fork still has what it inherited.
                self.assertEqual(joined.get().nodes, 1)
                a.leave()

    def test_process_ends_though_its_client_is_there(self):
        for words in ([], ["leave"]):
            with self.subTest(words=words):
                child = self.child(*words)
                self.assertEqual(child.wait(PATIENCE_S), 0)
                self.eventually(lambda: not self.runs())

    def test_client_that_has_left_is_of_no_use(self):
        client = self.client("host-a")
        client.join(1, 1)
        client.leave()
        client.leave()
        with self.assertRaisesRegex(RendezvousFailure, "has left"):
            client.join(1, 1)
        self.eventually(lambda: not self.runs())

    def test_status_shows_who_waits_and_how_many_are_missing(self):
        a = self.client("host-a")
        joined = Answer(lambda: a.join(3, 4, join_timeout_s=60))
        self.eventually(self.runs)
        text = self.succeed("status", f"--coordinator=127.0.0.1:{self.port}").decode()
        self.assertRegex(text, r"PYTORCH RUN +NODES +ROUND +MEMBERS +WAITING")
        self.assertRegex(text, r"job +3 to 4 +- +0 +1 ")
        self.assertRegex(text, r"job: host-a waits for round 0, for .*; 2 nodes are missing")
        a.close()
        with self.assertRaises(RendezvousFailure):
            joined.get()

    def test_status_names_missing_ranks(self):
        client = RendezvousClient(("127.0.0.1", self.port), "job", is_group=True, host="host-a")
        self.addCleanup(client.leave)
        joined = Answer(lambda: client.join(4, 4, rank=1))
        self.eventually(self.runs)
        text = self.succeed("status", f"--coordinator=127.0.0.1:{self.port}").decode()
        self.assertRegex(text, r"job: rank 1 on host-a waits for round 0, for .*; ranks 0,2,3 are missing")
        client.leave()
        with self.assertRaises(RendezvousFailure):
            joined.get()

    def test_error_names_missing_ranks(self):
        client = RendezvousClient(("127.0.0.1", self.port), "job", is_group=True, host="host-a")
        self.addCleanup(client.leave)
        with self.assertRaisesRegex(RendezvousFailure, "ranks 0,2,3 are missing"):
            client.join(4, 4, rank=1, join_timeout_s=0.2)

    def runs(self):
        out = self.succeed("status", "--json", f"--coordinator=127.0.0.1:{self.port}")
        return json.loads(out)["elastic_runs"]


class Endpoints(unittest.TestCase):
    def test_forms(self):
        for text, expected in (("host", ("host", 9470)), ("host:1", ("host", 1)), ("[::1]", ("::1", 9470)),
                               ("[::1]:65535", ("::1", 65535)), ("::1", ("::1", 9470))):
            self.assertEqual(parse_endpoint(text), expected)

    def test_wrong_forms(self):
        for text in ("", ":1", "host:0", "host:65536", "host:x", "[::1", "[::1]1", "[]:1", "host:-1"):
            with self.subTest(text=text), self.assertRaises(ValueError):
                parse_endpoint(text)


if __name__ == "__main__":
    harness.main()

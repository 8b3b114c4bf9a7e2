#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's program is replaced while PyTorch's stores are in use (SIGUSR2): no connection ends.

    handover_test.py FERRY [CASE...]
"""
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading

from store_client import (MIB, NOT_READY, PATIENCE_S, STOP_WAITING, V1_13, V2_1, V2_2, WAIT_CANCELED, Case, Client,
                          harness, i64, main, text)

TAKEN_OVER = "ferry coordinator: has taken over "
REFUSED = "ferry coordinator: is not handed over (SIGUSR2), and goes on: "


class HandoverCase(Case):
    """A server of its own for each test, whose program is a copy that can be replaced."""

    @classmethod
    def setUpClass(cls):
        pass

    def setUp(self):
        folder = tempfile.mkdtemp(prefix="ferry-handover-")
        self.addCleanup(shutil.rmtree, folder)
        self.program = os.path.join(folder, "ferry")
        os.symlink(harness.FERRY, self.program)
        self.server = self.start_server()
        self.keeper = self.connect()

    def tearDown(self):
        self.assertIsNone(self.server.popen.poll(), "the server ended: " + self.server.log()[-2000:])
        self.keeper.round_trip()

    def start_server(self, *flags):
        program, harness.FERRY = harness.FERRY, self.program
        try:
            return self.server_of_its_own(*flags)
        finally:
            harness.FERRY = program

    def install(self, make):
        """Puts another program at the path, in one step as an upgrade does. `make` creates the file."""
        new = self.program + ".new"
        make(new)
        os.rename(new, self.program)

    def install_script(self, script):
        def make(path):
            with open(path, "w", encoding="ascii") as file:
                file.write("#!/bin/sh\n" + script)
            os.chmod(path, 0o755)
        self.install(make)

    def install_original(self):
        self.install(lambda path: os.symlink(harness.FERRY, path))

    def ask(self):
        self.server.popen.send_signal(signal.SIGUSR2)

    def hand_over(self):
        """Returns when the successor serves."""
        count = self.server.log().count(TAKEN_OVER)
        self.ask()
        self.eventually(lambda: self.server.log().count(TAKEN_OVER) > count or REFUSED in self.server.log())
        self.assertEqual(self.server.log().count(TAKEN_OVER), count + 1, self.server.log())

    def refuse(self):
        """Asks, and returns why it is refused."""
        count = self.server.log().count(REFUSED)
        self.ask()
        self.eventually(lambda: self.server.log().count(REFUSED) > count)
        self.assertNotIn(TAKEN_OVER, self.server.log())
        return self.server.log().rpartition(REFUSED)[2].splitlines()[0]


class Handovers(HandoverCase):
    def test_process_and_port_stay_and_the_program_is_the_new_one(self):
        pid, before = self.server.popen.pid, os.readlink(f"/proc/{self.server.popen.pid}/exe")
        self.install(lambda path: shutil.copy(harness.FERRY, path))
        self.hand_over()
        self.assertEqual(os.readlink(f"/proc/{pid}/exe"), self.program)
        self.assertNotEqual(before, self.program)
        self.assertIn(TAKEN_OVER + "%s:%d\n" % self.server.address, self.server.log())
        self.connect().round_trip()
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            self.assertEqual(file.read().split(b"\0")[1:4], [b"coordinator", b"--listen=127.0.0.1:0", b"--nodes=1"])
        self.server.popen.send_signal(signal.SIGTERM)
        self.assertEqual(self.server.popen.wait(PATIENCE_S), 0)
        self.server = self.start_server()
        self.keeper = self.connect()

    def test_keys_queues_and_waits_of_all_releases_are_continued(self):
        waiters = [self.connect(dialect) for dialect in (V1_13, V2_1, V2_2)]
        for waiter in waiters:
            waiter.set(b"/of " + waiter.d.name.encode(), b"v")
            waiter.park(waiter.d.wait(b"/k", b"/l"), self.keeper)
        barrier, queue, other_queue = self.connect(), self.connect(), self.connect()
        barrier.park(V2_2.barrier(b"/b", 2), self.keeper)
        queue.park(V2_2.wait(b"q"), self.keeper)
        other_queue.park(V2_2.wait(b"q"), self.keeper)
        self.keeper.send(V2_2.push(b"r", b"1"), V2_2.push(b"r", b"2"), V2_2.set(b"/l", b""))
        self.assertEqual(self.keeper.delete(b"/l"), 1)
        self.hand_over()
        self.assertEqual(self.keeper.get(b"/of 1_13"), b"v")
        self.assertEqual(self.keeper.pop(b"r"), (2, b"1"))
        self.assertEqual(self.keeper.get(b"/b"), b"1")
        for waiter in waiters:
            self.assertFalse(waiter.readable())
        setter = self.connect(V2_1)
        setter.set(b"/k", b"v")
        for waiter in waiters:
            self.assertEqual(waiter.read(1), STOP_WAITING)
        self.keeper.send(V2_2.push(b"q", b"first"))
        self.assertEqual(queue.read(1), STOP_WAITING)
        # It is reserved for that client.
        self.assertEqual(self.keeper.pop(b"q"), (0, None))
        self.hand_over()
        self.assertEqual(self.keeper.pop(b"q"), (0, None))
        self.assertEqual(queue.pop(b"q"), (1, b"first"))
        self.keeper.send(V2_2.push(b"q", b"second"))
        self.assertEqual(other_queue.read(1), STOP_WAITING)
        self.assertEqual(other_queue.pop(b"q"), (1, b"second"))
        self.keeper.send(V2_2.barrier(b"/b", 2))
        self.assertEqual(self.keeper.read(1), STOP_WAITING)
        self.assertEqual(barrier.read(1), STOP_WAITING)
        self.assertQuiet(*waiters, barrier, queue, other_queue, setter, self.keeper)

    def test_client_that_cancels_its_wait_afterwards_is_answered_once(self):
        client = self.connect()
        client.park(V2_2.wait(b"/k"), self.keeper)
        self.hand_over()
        self.assertEqual(client.cancel(), WAIT_CANCELED)
        self.keeper.set(b"/k", b"")
        self.keeper.round_trip()
        self.assertQuiet(client)

    def test_request_that_is_half_sent_is_finished(self):
        value = bytes(range(256)) * 16384
        halves = []
        for dialect in (V1_13, V2_1, V2_2):
            key = b"/" + dialect.name.encode()
            request = dialect.set(key, value)
            for cut in (1, 7, 9 + len(key), len(request) // 2, len(request) - 1):
                client = self.connect(dialect)
                client.round_trip()
                client.send(request[:cut])
                halves.append((client, key, request[cut:]))
        self.keeper.round_trip()
        self.hand_over()
        for client, key, rest in halves:
            self.assertEqual(self.keeper.check(key), NOT_READY)
            client.send(rest)
            client.round_trip()
            self.assertEqual(self.keeper.get(key), value)
            self.assertEqual(self.keeper.delete(key), 1)

    def test_client_that_does_not_read_gets_all_of_its_replies(self):
        value = os.urandom(4 * MIB)
        self.keeper.set(b"/large", value)
        self.keeper.round_trip()
        reader, keys = self.connect(), [b"/large"] * 4
        expected = text(value) * 4
        reader.send(V2_2.multi_get(*keys), V2_2.set(b"/after", b""), V2_2.num_keys())
        self.keeper.round_trip()
        received = reader.read(1000)
        self.hand_over()
        received += reader.read(5 * MIB)
        self.hand_over()
        received += reader.read(len(expected) - len(received))
        self.assertTrue(received == expected)
        self.assertEqual(reader.i64(), 2)
        self.assertQuiet(reader)

    def test_clients_connect_during_hand_overs(self):
        stop, failures, connected = threading.Event(), [], [0]

        def connect():
            while not stop.is_set():
                try:
                    client = Client(self.server.address)
                    client.round_trip()
                    client.close()
                    connected[0] += 1
                except Exception as error:  # pylint: disable=broad-except
                    failures.append(repr(error))
                    return
        threads = [threading.Thread(target=connect) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            before = connected[0]
            self.hand_over()
            self.eventually(lambda before=before: failures or connected[0] > before + 20)
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        self.assertEqual(failures, [])

    def test_client_that_has_connected_and_said_nothing_can_still_be_served(self):
        silent = [socket.create_connection(self.server.address, PATIENCE_S) for _ in range(20)]
        self.keeper.round_trip()
        self.hand_over()
        for number, connection in enumerate(silent):
            connection.sendall(V1_13.add(b"/n", 1))
            self.assertEqual(connection.recv(8), i64(number + 1))
            connection.close()

    def test_sixteen_clients_that_add_draw_each_number_once_over_three_hand_overs(self):
        stop, numbers, failures = threading.Event(), [], []

        def add(dialect):
            try:
                client = Client(self.server.address, dialect)
                drawn = []
                while not stop.is_set():
                    drawn.append(client.add(b"/n", 1))
                client.close()
                numbers.append(drawn)
            except Exception as error:  # pylint: disable=broad-except
                failures.append(repr(error))
        threads = [threading.Thread(target=add, args=((V1_13, V2_1, V2_2)[i % 3],)) for i in range(16)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            before = self.keeper.add(b"/n", 0)
            self.hand_over()
            self.eventually(lambda before=before: self.keeper.add(b"/n", 0) > before + 100)
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        self.assertEqual(failures, [])
        self.assertEqual(len(numbers), 16)
        drawn = sorted(number for each in numbers for number in each)
        self.assertEqual(drawn, list(range(1, len(drawn) + 1)))
        self.assertEqual(self.keeper.add(b"/n", 0), len(drawn))

    def test_nothing_is_left_open_in_the_successor(self):
        self.hand_over()
        self.connect().round_trip()
        descriptors = self.server.descriptors()
        for _ in range(3):
            self.hand_over()
        self.connect().round_trip()
        self.eventually(lambda: self.server.descriptors() <= descriptors + 1)

    def test_successor_frees_values_that_are_deleted(self):
        keys = [b"/%d" % i for i in range(32)]
        for key in keys:
            self.keeper.set(key, os.urandom(4 * MIB))
        self.hand_over()
        self.assertEqual(self.keeper.num_keys(), len(keys))
        held = self.server.resident_bytes()
        for key in keys:
            self.assertEqual(self.keeper.delete(key), 1)
        self.eventually(lambda: self.server.resident_bytes() < held - 96 * MIB)

    def test_signals_that_come_at_once_are_hand_overs_or_one(self):
        for _ in range(5):
            self.ask()
        self.eventually(lambda: TAKEN_OVER in self.server.log())
        self.keeper.round_trip()
        self.assertNotIn(REFUSED, self.server.log())

    def test_next_job_on_the_port_does_not_read_the_keys_of_the_last_one(self):
        self.keeper.close()
        job = self.connect()
        self.assertEqual(job.add(b"init/", 1), 1)
        job.set(b"/of the first", b"")
        job.round_trip()
        self.hand_over()
        job.close()
        self.hand_over()
        following = self.connect()
        self.assertEqual(following.add(b"init/", 1), 1)
        self.assertEqual(following.check(b"/of the first"), NOT_READY)
        self.keeper = self.connect()


class Refusals(HandoverCase):
    def assertServes(self):
        self.keeper.round_trip()
        self.connect().round_trip()

    def test_program_that_fails_is_not_run(self):
        waiter = self.connect()
        waiter.park(V2_2.wait(b"/k"), self.keeper)
        self.install_script("echo 'no such library' >&2; exit 127\n")
        self.assertRegex(self.refuse(), "exited with status 127.*no such library")
        self.assertServes()
        self.keeper.set(b"/k", b"")
        self.assertEqual(waiter.read(1), STOP_WAITING)
        self.install_original()
        self.hand_over_after_refusal()
        self.assertQuiet(waiter)

    def hand_over_after_refusal(self):
        self.ask()
        self.eventually(lambda: TAKEN_OVER in self.server.log())
        self.assertServes()

    def test_program_of_another_format_is_not_run(self):
        self.install_script("echo 'ferry hand-over format 99'\n")
        self.assertRegex(self.refuse(), "reads the hand-over format 99, and this process writes 1")
        self.assertServes()

    def test_program_that_does_not_end_is_not_run(self):
        for script in ("exec sleep 1000\n", "exec >/dev/null 2>&1; exec sleep 1000\n", "exec yes\n"):
            self.install_script(script)
            self.assertRegex(self.refuse(), "has not ended within 5s")
            self.assertServes()

    def test_program_whose_child_keeps_its_output_is_not_waited_for(self):
        self.install_script("sleep 30 & echo 'ferry hand-over format 99'\n")
        self.assertRegex(self.refuse(), "reads the hand-over format 99")
        self.assertServes()

    def test_tool_that_has_ended_does_not_prevent_it(self):
        address = "%s:%d" % self.server.address
        self.assertEqual(self.run_ferry("status", f"--coordinator={address}")[0], 0)

        # The tool has ended, but the server may not have read the end of its connection yet.
        def is_taken_over():
            count = self.server.log().count(REFUSED)
            self.ask()
            self.eventually(lambda: TAKEN_OVER in self.server.log() or self.server.log().count(REFUSED) > count)
            return TAKEN_OVER in self.server.log()
        self.eventually(is_taken_over)
        self.assertServes()

    def test_program_without_the_flag_is_not_run(self):
        self.install_script('for each; do test "$each" = --handover-format && '
                            '{ echo "ferry: there is no verb or flag $each" >&2; exit 2; }; done\n')
        self.assertRegex(self.refuse(), "exited with status 2.*there is no verb or flag --handover-format")
        self.assertServes()

    def test_program_that_is_gone_or_cannot_be_executed_is_not_run(self):
        os.remove(self.program)
        self.assertRegex(self.refuse(), "cannot run .*/ferry: No such file or directory")
        self.install(lambda path: open(path, "w", encoding="ascii").close())
        self.assertRegex(self.refuse(), "cannot run .*/ferry: Permission denied")
        self.assertServes()

    def test_exec_that_fails_after_all_leaves_the_server_as_it_was(self):
        clients = [self.connect() for _ in range(8)]
        waiter = self.connect()
        waiter.park(V2_2.wait(b"/k"), self.keeper)
        # It removes itself: what is found by the trial run is gone for the hand-over.
        self.install_script('rm "$0"; echo "ferry hand-over format 1"\n')
        self.assertRegex(self.refuse(), "cannot run .*/ferry: No such file or directory")
        self.assertQuiet(*clients)
        self.assertServes()
        self.keeper.set(b"/k", b"")
        self.assertEqual(waiter.read(1), STOP_WAITING)
        self.install_original()
        self.hand_over_after_refusal()
        self.assertQuiet(*clients, waiter)

    def test_agent_that_is_connected_prevents_it(self):
        address = "%s:%d" % self.server.address
        worker = self.worker(address, 0, 1)
        worker.wait_for("joined at")
        self.assertRegex(self.refuse(), "it serves 1 task of a job, 1 connection of Ferry's agents or tools, "
                                        "which cannot be handed over")
        self.assertServes()
        worker.signal(signal.SIGTERM)
        worker.wait()

        def is_possible():
            self.ask()
            return TAKEN_OVER in self.server.log()
        self.eventually(is_possible)
        self.assertServes()

    def test_agent_of_torchrun_prevents_it(self):
        agent = socket.create_connection(self.server.address, PATIENCE_S)
        self.addCleanup(agent.close)
        agent.sendall(b'{"id": 1, "join": {"agent": {"run_id": "r", "agent_id": "a"}, "host": "h", "attempt": 1,'
                      b' "min_nodes": 2, "max_nodes": 2, "last_call_timeout_s": 30, "join_timeout_s": 60,'
                      b' "heartbeat_timeout_s": 30}}\n'
                      b'{"id": 2, "keep_alive": {"agent": {"run_id": "r", "agent_id": "a"}}}\n')
        self.assertIn(b'"id":2', agent.recv(4096).replace(b" ", b""))
        self.assertRegex(self.refuse(), "1 run of torchrun or ferry://")
        self.assertServes()


class UnreadableStates(harness.Case):
    def test_state_file_that_cannot_be_read_is_closed_and_the_server_starts_without_it(self):
        state = os.memfd_create("ferry-handover", os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, state)
        os.write(state, b"nothing that a coordinator writes")
        fcntl.fcntl(state, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        errors = self.enterContext(tempfile.TemporaryFile("w+"))
        popen = subprocess.Popen([harness.FERRY, "coordinator", "--listen=127.0.0.1:0", "--nodes=1"], pass_fds=[state],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                                 env=harness.environment(FERRY_HANDOVER_FD=str(state)))
        try:
            self.assertRegex(popen.stdout.readline(), b"listening on")
            targets = []
            for each in os.listdir(f"/proc/{popen.pid}/fd"):
                # The process may close one meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    targets.append(os.readlink(f"/proc/{popen.pid}/fd/{each}"))
            self.assertTrue(targets)
            self.assertFalse([target for target in targets if "ferry-handover" in target])
        finally:
            popen.kill()
            popen.wait(harness.PATIENCE_S)
            popen.stdout.close()
        errors.seek(0)
        self.assertIn("cannot continue its predecessor", errors.read())


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors between processes as the tool moves them, and the example program.

    FERRY_EXAMPLE=.../exchange cli_exchange_test.py FERRY [CASE...]
"""
import json
import os
import re
import signal
import tempfile
import time

import harness


class Example(harness.Case):
    def test_node_1_receives_from_node_0(self):
        out = self.succeed("run", "--nproc=2", "--", os.environ["FERRY_EXAMPLE"])
        self.assertRegex(out, rb"\A\[1\] got int32\[256,1024\] by shm\n\Z")


class SendRecv(harness.Case):
    def setUp(self):
        # Nodes that die are detected without it, and a loaded machine may starve one that has not.
        self.address = self.coordinator(2, "--heartbeat-timeout=90s")[1]

    def node(self, verb, node, *arguments, **variables):
        return self.start(verb, f"--coordinator={self.address}", f"--node-id={node}",
                          "--num-nodes=2", *arguments, **variables)

    def send(self, *arguments, **variables):
        return self.node("send", 0, "weights", "--to=1", *arguments, **variables)

    def recv(self, *arguments, **variables):
        return self.node("recv", 1, "weights", "--from=0", *arguments, **variables)

    def both(self, send, recv):
        sender = self.send(*send)
        receiver = self.recv(*recv)
        self.assertEqual((receiver.wait(), sender.wait()), (0, 0), receiver.err + sender.err)
        return receiver.out

    def rejected(self, send, recv):
        """A sender that was notified, and the receiver that has rejected its tensor. The sender waits a second for
        that: a loaded machine may be slower, but is not each time."""
        for _ in range(5):
            self.setUp()
            sender, receiver = self.send(*send), self.recv(*recv)
            self.assertEqual(receiver.wait(), 1)
            if sender.wait() == 1:
                return sender, receiver
            self.assertRegex(sender.out, r"taken after [1-9]\d*(\.\d+)?s\n")
        self.fail("the sender was not notified in five attempts")

    def test_a_receiver_that_comes_first_waits(self):
        receiver = self.recv("--verify")
        receiver.wait_for("waiting for node 0 to join")
        sender = self.send("--shape=3x5")
        self.assertEqual((receiver.wait(), sender.wait()), (0, 0), receiver.err + sender.err)
        self.assertRegex(receiver.out, r'\Aferry recv: "weights" from node 0 in step 1: '
                         r"float\[3,5\], 60 B, verified, after \S+, inline: .*\n\Z")
        self.assertRegex(sender.out, r'\Aferry send: "weights" to node 1 in step 1: '
                         r"float\[3,5\], 60 B; taken after \S+\n\Z")

    def test_a_sender_that_comes_first_waits(self):
        sender = self.send("--shape=1024x1024", "--dtype=int8", "--timeout=30s")
        sender.wait_for("waiting for node 1 to join")
        receiver = self.recv("--verify")
        self.assertEqual((receiver.wait(), sender.wait()), (0, 0), receiver.err + sender.err)
        self.assertRegex(receiver.out, r"by shm: shm \(.*\); not tcp \(")

    def test_the_required_path_is_used(self):
        out = self.both(["--shape=1024x1024", "--transport=tcp"],
                        ["--verify", "--transport=tcp", "--checksum"])
        self.assertRegex(out, r"verified, .* by tcp: not shm: .*only tcp is allowed")

    def test_grpc_works_too(self):
        out = self.both(["--shape=1024x1024", "--protocol=grpc"], ["--verify", "--protocol=grpc"])
        self.assertRegex(out, "verified, .* by grpc, which carries everything here")

    def test_deprecated_spellings_work_and_are_not_listed(self):
        out = self.both(["--shape=1024x1024", "--protocol=grpc"],
                        ["--verify", "--protocol=grpc", "--lane-queue-bytes=1048576"])
        self.assertRegex(out, "verified, .* by grpc, which carries everything here")
        out = self.both(["--shape=3x5", "--carrier=lane"], ["--verify"])
        self.assertRegex(out, "verified, .* inline: ")
        listed = self.succeed("recv", "--help").decode()
        self.assertRegex(listed, "(?s)--protocol .*--peer-queue-bytes ")
        self.assertNotRegex(listed, "--carrier|--lane-queue-bytes")

    def test_deprecated_flags_set_those_that_replace_them(self):
        out = self.both(["--shape=1024x1024", "--require=tcp", "--exchange-listen=127.0.0.1:0"],
                        ["--verify", "--require=tcp", "--lost-timeout=60s", "--max-waiting=9"])
        self.assertRegex(out, "verified, .* by tcp")
        listed = self.succeed("recv", "--help").decode()
        self.assertNotRegex(listed, r"--(require|exchange-listen|lost-timeout|max-waiting)\b(?!-)")
        # No other job begins, in which the node would wait for node 0 to join.
        self.address = self.coordinator(2, "--no-reuse")[1]
        self.both(["--shape=3"], ["--verify"])
        self.fail_with(1, "cannot reach node 0", "recv", "a", "--from=0", "--node-id=1", "--num-nodes=2",
                       f"--coordinator={self.address}", "--timeout=2s")

    def test_an_unavailable_required_path_fails_with_the_reason(self):
        # Over TCP there is no zero-copy transfer.
        sender, receiver = self.rejected(["--shape=1024x1024", "--transport=tcp"], ["--transport=shm", "--timeout=20s"])
        self.assertRegex(receiver.err, "sends by tcp, and shm is the required transport here")
        # Nor does the sender take it for received.
        self.assertEqual(sender.out, "")
        # By the control channel, or by the coordinator if that was faster.
        self.assertRegex(sender.err.splitlines()[-1],
                         "^ferry: ((node 1 (did not take what it was sent|has failed)|/job:\\S*/task:1 "
                         "reported): .*node 0 sends by tcp, and shm is the required transport here|"
                         "to node 1: Broken pipe)")

    def test_a_sender_is_notified_of_a_buffer_that_does_not_fit(self):
        for shape in ("3", "1024x1024"):
            with self.subTest(shape):
                sender, _ = self.rejected([f"--shape={shape}", "--dtype=int32"],
                                          ["--into", f"--shape={shape}", "--dtype=double"])
                self.assertEqual(sender.out, "")
                # By the control channel, or by the coordinator if that was faster.
                self.assertRegex(sender.err.splitlines()[-1],
                                 "^ferry: (node 1 (did not take what it was sent|has failed)|/job:\\S*/task:1 "
                                 r"reported): .*what came is int32\[")

    def receiver_of_a_sender_that_never_told_its_address(self, signal_number, *arguments):
        """The sender has joined, and hangs or dies before it has published its address; and that address."""
        # A value that the receiver holds when it is killed would be lost.
        sender = self.send("--step=8", "--recoverable", "--no-eager")
        receiver = self.recv("--timeout=20s", "--recoverable")
        receiver.wait_for("waiting for \"weights\" from node 0")
        receiver.kill()
        sender.signal(signal_number)
        at = ("ferry/exchange/0", f"--coordinator={self.address}")
        address = self.succeed("kv", "get", *at)
        self.succeed("kv", "rm", *at)
        return self.recv("--recoverable", "--connect-timeout=60s", "--enumerate-timeout=60s",
                         *arguments), address

    def receiver_of_a_sender_that_hangs(self, *arguments):
        # No node has been declared dead.
        return self.receiver_of_a_sender_that_never_told_its_address(signal.SIGSTOP, *arguments)

    def test_a_deadline_applies_to_a_sender_that_never_published_its_address(self):
        receiver, _ = self.receiver_of_a_sender_that_hangs("--timeout=3s")
        self.assertEqual(receiver.wait(), 1)
        self.assertRegex(receiver.err.splitlines()[-1],
                         "^ferry: waited 3s for the endpoint record of node 0 .*, "
                         "which node 0 has not published: it has ")

    def test_the_wait_for_an_address_is_part_of_the_deadline(self):
        receiver, address = self.receiver_of_a_sender_that_hangs("--timeout=9s")
        receiver.wait_for("waiting for \"weights\" from node 0")
        self.run_ferry("kv", "set", "ferry/exchange/0", f"--coordinator={self.address}", "-",
                       stdin=address)
        self.assertEqual(receiver.wait(), 1)
        self.assertRegex(receiver.err.splitlines()[-1], r"waited [1-8](\.\d+)?s in step 1 for")

    def test_the_deadline_includes_joining(self):
        receiver = self.recv("--timeout=2s")
        self.assertEqual(receiver.wait(), 1)
        self.assertEqual(receiver.err.splitlines()[-1],
                         "ferry: waited 2s for all tasks to connect; missing tasks: 0")

    def test_a_signal_ends_the_wait_for_an_address(self):
        receiver, _ = self.receiver_of_a_sender_that_hangs("--timeout=90s")
        receiver.wait_for("waiting for \"weights\" from node 0")
        receiver.signal(signal.SIGINT)
        self.assertEqual(receiver.wait(), 1)
        self.assertRegex(receiver.err.splitlines()[-1], "^ferry: .*stopped by SIGINT")

    def test_a_sender_that_died_before_it_published_its_address_is_named(self):
        # It had no connection to the receiver.
        self.address = self.coordinator(2, "--heartbeat-timeout=5s")[1]
        receiver, _ = self.receiver_of_a_sender_that_never_told_its_address(
            signal.SIGKILL, "--timeout=90s")
        self.assertEqual(receiver.wait(), 1)
        self.assertRegex(receiver.err.splitlines()[-1],
                         "^ferry: node 0 has died before it published")

    def test_into_an_existing_buffer(self):
        self.both(["--shape=8x8", "--dtype=double"],
                  ["--verify", "--into", "--shape=8x8", "--dtype=double"])

    def test_another_content_fails_the_verification(self):
        self.send("--shape=1000", "--fill=ones")
        receiver = self.recv("--verify")
        self.assertEqual(receiver.wait(), 1)
        self.assertRegex(receiver.err, r"not the pattern of this name and step: \d+ of 4000 bytes "
                         r"are wrong, the first at 0\n")

    def test_another_type_than_expected_fails_and_is_named(self):
        self.send("--shape=4", "--dtype=int32", "--fill=seq")
        receiver = self.recv("--dtype=float")
        self.assertEqual(receiver.wait(), 1)
        self.assertRegex(receiver.err, r'"weights" is int32\[4\], and --dtype=float\n')

    def test_files_round_trip(self):
        with tempfile.TemporaryDirectory() as folder:
            data = os.urandom(100_003)
            with open(f"{folder}/in", "wb") as file:
                file.write(data)
            self.both([f"--file={folder}/in"], [f"--output={folder}/out"])
            with open(f"{folder}/out", "rb") as file:
                self.assertEqual(file.read(), data)

    def test_files_without_a_size_are_read_to_the_end(self):
        """Files of /proc report 0 bytes, those of /sys a page, pipes and streams nothing."""
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(f"{folder}/pipe")
            for path in ("/proc/version", "/sys/kernel/notes", "/proc/sys/kernel/hostname"):
                if not os.access(path, os.R_OK):
                    continue
                with self.subTest(path):
                    self.both([f"--file={path}"], [f"--output={folder}/out"])
                    with open(f"{folder}/out", "rb") as got, open(path, "rb") as sent:
                        self.assertEqual(got.read(), sent.read())
            sender = self.send(f"--file={folder}/pipe")
            receiver = self.recv(f"--output={folder}/out")
            with open(f"{folder}/pipe", "wb") as pipe:
                for _ in range(3):
                    pipe.write(b"x" * 70_000)
                    pipe.flush()
            self.assertEqual((sender.wait(), receiver.wait()), (0, 0), sender.err + receiver.err)
            self.assertEqual(os.path.getsize(f"{folder}/out"), 210_000)

    def test_a_dash_is_standard_input_and_output(self):
        receiver = self.recv("--output=-")
        err = self.run_ferry("send", "weights", "--to=1", "--file=-", "--node-id=0",
                             f"--coordinator={self.address}", "--num-nodes=2",
                             stdin=b"from a pipe\n")[2]
        self.assertEqual(receiver.wait(), 0, err + receiver.err)
        self.assertEqual(receiver.out, "from a pipe\n")
        self.assertRegex(receiver.err, 'ferry recv: "weights" from node 0 in step 1: uint8.12., 12 B')
        self.assertFalse(os.path.exists("-"))

    def test_booleans_are_0_or_1(self):
        self.both(["--shape=100003", "--dtype=bool"], ["--verify", "--dtype=bool"])
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/in", "wb") as file:
                file.write(b"\0\1\2\1")
            sender = self.send(f"--file={folder}/in", "--dtype=bool")
            receiver = self.recv("--dtype=bool")
            self.assertEqual((receiver.wait(), sender.wait()), (1, 1))
            self.assertRegex(sender.err,
                             r'/in": element 2 of bool\[4\] is 2, and a boolean is 0 or 1\n')

    def test_numbers_are_encoded_by_their_type(self):
        for fill, dtype, expected in (("1.5", "half", "003e"), ("1e-7", "half", "0200"),
                                      ("-2", "bfloat16", "00c0"), ("ones", "int16", "0100"),
                                      ("65504", "half", "ff7b"), ("7", "bool", "01")):
            with self.subTest(fill, dtype=dtype), tempfile.TemporaryDirectory() as folder:
                self.both([f"--fill={fill}", f"--dtype={dtype}", "--shape=2"],
                          [f"--output={folder}/out"])
                with open(f"{folder}/out", "rb") as file:
                    self.assertEqual(file.read().hex(), expected * 2)

    def test_a_missing_tensor_is_named_with_its_progress(self):
        self.send("--step=8")
        # Joining is part of it.
        receiver = self.recv("--step=9", "--timeout=6s")
        self.assertEqual(receiver.wait(), 1)
        self.assertRegex(receiver.err, r"waited (6|[0-5]\.\d+)s in step 9 for .*;weights;0:0: asked node 0, "
                         "which has not sent it")

    def test_a_sender_that_is_killed_fails_the_receiver_at_once(self):
        sender = self.send("--step=8")
        receiver = self.recv("--step=9")
        receiver.wait_for("waiting for \"weights\" from node 0")
        sender.signal(signal.SIGKILL)
        # Long before the heartbeat timeout.
        self.assertEqual(receiver.wait(), 1)
        self.assertRegex(receiver.err.splitlines()[-1], "^ferry: .*node 0")

    def test_the_sender_fails_when_its_receiver_is_killed(self):
        sender = self.send("--step=8")
        receiver = self.recv("--step=9")
        receiver.wait_for("waiting for \"weights\" from node 0")
        receiver.signal(signal.SIGKILL)
        self.assertEqual((sender.wait(), sender.out), (1, ""))
        self.assertRegex(sender.err.splitlines()[-1], "^ferry: .*(task|node) 1")

    def test_a_signal_ends_the_wait(self):
        # Neither ends the other's job.
        # A value that the receiver holds when it is killed would be lost.
        sender = self.send("--step=8", "--recoverable", "--no-eager")
        receiver = self.recv("--step=9", "--recoverable")
        receiver.wait_for("waiting for \"weights\" from node 0")
        for process in (receiver, sender):
            process.signal(signal.SIGINT)
        for process in (receiver, sender):
            # One that has been notified of the other's end meanwhile is ending itself, and no
            # longer catches the signal.
            self.assertIn(process.wait(), (1, -signal.SIGINT))
            self.assertRegex(process.err.splitlines()[-1], "^ferry: .*stopped by SIGINT")

    def test_a_failure_reaches_the_other_side_at_once(self):
        """And not only that it is missed, a heartbeat timeout later."""
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            sender = self.send("--step=8")
            receiver = self.recv("--step=9")
            receiver.wait_for("waiting for \"weights\" from node 0")
            sender.signal(signal_number)
            self.assertEqual(sender.wait(), 1)
            self.assertEqual(receiver.wait(), 1)
            self.assertRegex(receiver.err.splitlines()[-1], "^ferry: .*task.0 reported: "
                             f"stopped by {signal_number.name}|^ferry: node 0: stopped by "
                             f"{signal_number.name}")
        # And the next job begins at once.
        self.assertRegex(self.both(["--shape=3"], ["--verify"]), "verified")

    def test_a_failed_start_reaches_the_other_side_at_once(self):
        receiver = self.recv()
        sender = self.send("--tensor-listen=203.0.113.1:0")
        self.assertEqual(sender.wait(), 1)
        self.assertRegex(sender.err.splitlines()[-1], "^ferry: .*203.0.113.1")
        self.assertEqual(receiver.wait(), 1)
        self.assertRegex(receiver.err.splitlines()[-1], "^ferry: .*task.0 reported: .*203.0.113.1")

    def test_a_node_stopped_while_joining_is_waited_for_again(self):
        sender = self.send("--shape=3")
        sender.wait_for("waiting for node 1 to join")
        sender.signal(signal.SIGTERM)
        self.assertEqual(sender.wait(), 1)
        self.assertEqual(sender.err.splitlines()[-1],
                         "ferry: stopped by SIGTERM while node 0 of 2 was joining")
        receiver = self.recv("--verify")
        receiver.wait_for("waiting for node 0 to join")
        sender = self.send("--shape=3")
        self.assertEqual((receiver.wait(), sender.wait()), (0, 0), receiver.err + sender.err)

    def test_retries_do_not_prolong_a_job_that_lost_a_node(self):
        self.address = self.coordinator(2, "--heartbeat-timeout=3s")[1]
        sender = self.send("--step=8")
        receiver = self.recv("--step=9")
        receiver.wait_for("waiting for \"weights\" from node 0")
        sender.signal(signal.SIGKILL)
        self.assertEqual(receiver.wait(), 1)

        def both_are_through():
            sender = self.send("--shape=3", "--timeout=20s")
            receiver = self.recv("--verify", "--timeout=20s")
            return (receiver.wait(), sender.wait()) == (0, 0)
        self.eventually(both_are_through)

    def test_a_worker_leaves_a_job_that_has_failed(self):
        self.address = self.coordinator(3, "--heartbeat-timeout=90s")[1]
        at = (f"--coordinator={self.address}", "--num-nodes=3")
        for _ in range(2):
            worker = self.start("worker", "--node-id=2", *at)
            send = self.start("send", "a", "--to=1", "--node-id=0", *at)
            recv = self.start("recv", "b", "--from=0", "--node-id=1", "--timeout=2s",
                              "--connect-timeout=30s", "--enumerate-timeout=30s", *at)
            self.assertEqual([each.wait() for each in (recv, send, worker)], [1, 1, 1])
            self.assertRegex(recv.err.splitlines()[-1], "waited .* in step 1 for .*;b;0:0")
            self.assertRegex(worker.err.splitlines()[-1], "task.1 reported: waited")

    def test_unread_output_delays_no_node(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(f"{folder}/pipe")
            sender = self.send("--shape=3")
            receiver = self.recv(f"--output={folder}/pipe")
            self.assertEqual(sender.wait(), 0, sender.err)
            # The job is over for it as well, and it can be stopped.
            self.eventually(lambda: b"left: nodes 0,1" in self.succeed(
                "status", f"--coordinator={self.address}"))
            receiver.signal(signal.SIGTERM)
            self.assertEqual(receiver.wait(), -signal.SIGTERM)

    def test_a_failure_after_the_transfer_affects_one_side_only(self):
        sender = self.send("--shape=1000", "--fill=ones")
        receiver = self.recv("--verify")
        self.assertEqual((receiver.wait(), sender.wait()), (1, 0), sender.err)
        self.assertRegex(sender.out, "taken after")

    def test_a_finished_transfer_succeeds_though_the_coordinator_has_ended(self):
        coordinator, self.address = self.coordinator(2, "--heartbeat-timeout=90s")
        sender = self.send("--shape=3", "--reconnect-timeout=60s")
        sender.wait_for("waiting for node 1 to join")
        receiver = self.recv("--verify", "--reconnect-timeout=60s", "--tensor-listen=127.0.0.1:0")
        sender.wait_for("to take|taken after")
        coordinator.signal(signal.SIGKILL)
        self.assertEqual((receiver.wait(), sender.wait()), (0, 0), receiver.err + sender.err)

    def test_a_coordinator_that_hangs_is_named(self):
        coordinator, self.address = self.coordinator(2, "--heartbeat-timeout=90s")
        sender = self.send("--step=8", "--timeout=3s")
        receiver = self.recv("--step=9", "--timeout=60s")
        receiver.wait_for("waiting for \"weights\" from node 0")
        coordinator.signal(signal.SIGSTOP)
        try:
            late = self.run_ferry("send", "late", "--to=1", f"--coordinator={self.address}",
                                  "--node-id=0", "--num-nodes=2", "--timeout=2s")
            self.assertEqual(late[0], 1)
            self.assertRegex(late[2].splitlines()[-1],
                             f"^ferry: .*the coordinator at {self.address}")
            # Its own deadline, and not that of the coordinator's answer to its leaving.
            self.assertEqual(sender.wait(), 1)
            self.assertRegex(sender.err.splitlines()[-1], "^ferry: step 8 was closed after 3s")
        finally:
            coordinator.signal(signal.SIGCONT)

    def test_a_sender_without_a_receive_names_the_receiver(self):
        for flags, phase in (((), "sent to node 1; not received there yet"),
                             (("--no-eager",), "node 1 has not asked for it")):
            with self.subTest(flags):
                self.address = self.coordinator(2)[1]
                sender = self.send("--step=8", "--timeout=1s", *flags)
                receiver = self.recv("--step=9")
                self.assertEqual(sender.wait(), 1)
                self.assertRegex(sender.err.splitlines()[-1],
                                 "^ferry: step 8 was closed after 1s, and 1 tensor that was sent "
                                 rf"has not been received: .*;weights;0:0 \({phase}\)$")
                self.assertEqual(receiver.wait(), 1)

    def test_a_receiver_with_another_token_is_reported_by_the_sender_too(self):
        sender = self.send("--timeout=4s", FERRY_JOB_TOKEN="ours")
        receiver = self.recv("--timeout=20s", "--recoverable", FERRY_JOB_TOKEN="theirs")
        self.assertEqual((receiver.wait(), sender.wait()), (1, 1))
        self.assertRegex(receiver.err.splitlines()[-1], "token")
        self.assertRegex(sender.err.splitlines()[-1], "token")


class Pending(harness.Case):
    def setUp(self):
        self.address = self.coordinator(3)[1]

    def node(self, verb, node, *arguments):
        return self.start(verb, f"--coordinator={self.address}", f"--node-id={node}",
                          "--num-nodes=3", *arguments)

    def pending(self):
        return json.loads(self.succeed("status", "--pending", "--json",
                                       f"--coordinator={self.address}"))

    def test_pending_operations_are_reported(self):
        self.node("send", 0, "grad", "--to=1", "--step=5", "--shape=1024")
        self.node("recv", 1, "weights", "--from=0", "--step=7")
        self.node("worker", 2).wait_for("joined at")

        # A node of a loaded machine may be late with its answer.
        def whole():
            found = self.pending()
            return found if (found["total"], found["silent"]) == (3, []) else None
        answer = self.eventually(whole)
        rows = {(row["node_id"], row["step_id"], row["side"], row["peer"], row["bytes"]): row
                for row in answer["pending"]}
        self.assertEqual(sorted(rows), [(0, 5, "send", 1, 4096), (0, 7, "recv", 1, 0),
                                        (1, 7, "recv", 0, 0)])
        fetch = rows[(1, 7, "recv", 0, 0)]
        self.assertEqual(fetch["phase"], "asked node 0, which has not sent it")
        self.assertRegex(fetch["key"], ";weights;")
        self.assertGreaterEqual(fetch["age_s"], 1)

        def whole_text():
            found = self.succeed("status", "--pending", f"--coordinator={self.address}").decode()
            return None if "no answer" in found else found
        text = self.eventually(whole_text)
        self.assertRegex(text, r"\A3 operations of 3 nodes have waited for over 1s\n")
        self.assertRegex(text, r'\n  0 +5 +send +1 +"grad" +\S+ +4.0 KiB +sent; not asked for yet')

    def test_a_node_that_hangs_is_named(self):
        workers = [self.node("worker", i) for i in range(3)]
        for worker in workers:
            worker.wait_for("joined at")
        self.eventually(lambda: self.pending() == {"total": 0, "pending": [], "silent": []})
        workers[1].signal(signal.SIGSTOP)
        try:
            self.eventually(lambda: self.pending()["silent"] == [1])
            self.eventually(lambda: "no answer within 2s of node 1\n" in self.succeed(
                "status", "--pending", f"--coordinator={self.address}").decode())
        finally:
            workers[1].signal(signal.SIGCONT)

    def test_topo_prints_the_path_of_tensors(self):
        for i in range(2):
            self.node("worker", i)
        self.node("worker", 2, "--transport=tcp").wait_for("joined at")
        # A node joins a moment before it publishes where its tensors can be had.
        text = self.eventually(lambda: re.search(
            r"(?s)paths of tensors:\n.*2>1.*", self.succeed(
                "topo", f"--coordinator={self.address}").decode())).group(0)
        self.assertRegex(text, r"\n  0>1 0>2 1>0 1>2 +shm \(1us assumed, no copy\); not tcp \(")
        self.assertRegex(text, r"\n  2>0 2>1 +not shm: .*; tcp \(\S+ \+ \S+ GB/s, ")
        # Each has measured its own copies.
        self.assertRegex(text, r"\n  .*0>0.* +local \(\S+.* measured at start, no copy\)")


class Status(harness.Case):
    def setUp(self):
        self.address = self.coordinator(3)[1]

    def node(self, verb, node, *arguments, **variables):
        return self.start(verb, f"--coordinator={self.address}", f"--node-id={node}",
                          "--num-nodes=3", *arguments, **variables)

    def status(self, *arguments):
        return self.succeed("status", f"--coordinator={self.address}", *arguments).decode()

    def exchange(self):
        """With a report of each node that has joined: one of a loaded machine may be late."""
        def of_all():
            answer = json.loads(self.status("--json"))["exchange"]
            self.assertIsNone(answer["error"])
            return answer if answer["silent"] == [] else None
        return {node["node_id"]: node for node in self.eventually(of_all)["nodes"]}

    def test_paths_reasons_pages_and_refusals_are_reported(self):
        self.node("worker", 2, FERRY_JOB_TOKEN="ours").wait_for("waiting|looking")
        self.node("send", 0, "a", "--to=1", "--step=5", "--shape=1024x1024", "--transport=tcp",
                  FERRY_JOB_TOKEN="ours")
        self.node("recv", 1, "b", "--from=0", "--step=7", FERRY_JOB_TOKEN="ours")
        nodes = self.eventually(lambda: (lambda found: found if len(found) == 3 and any(
            path["peer"] == 1 for path in found[0]["paths"]) else None)(self.exchange()))
        self.assertRegex(nodes[0]["arena"]["pages"], "pages")
        self.assertEqual(nodes[0]["arena"]["used_bytes"], 4 << 20)
        self.assertEqual(nodes[2]["arena"]["pages"], "none yet")
        path = [each for each in nodes[0]["paths"] if each["peer"] == 1 and each["in_arena"]][0]
        self.assertEqual(path["transport"], "tcp")
        self.assertRegex(path["refused"]["shm"], "descriptors cannot be passed between them")
        self.assertEqual(self.eventually(
            lambda: [each for each in self.exchange()[0]["paths"] if each["peer"] == 1][0]
            ["costs"]["tcp"]["latency_s"])["basis"], "measured")
        text = self.status()
        self.assertRegex(text, r"\n  0 +4.0 MiB of \d+\.\d [GM]iB +\S.* pages.* +1 by tcp +0\n")
        self.assertRegex(text, r"\n  0>1 .*not shm +descriptors cannot be passed between them")
        self.assertRegex(self.succeed("topo", f"--coordinator={self.address}").decode(),
                         r"\n  0>1 +not shm: .*; tcp \(\S+ measured \S+ ago \+ ")

    def test_connections_with_another_token_are_counted(self):
        for i in (0, 2):
            self.node("worker", i, "--recoverable", FERRY_JOB_TOKEN="ours")
        stranger = self.node("recv", 1, "b", "--from=0", "--timeout=20s", "--recoverable",
                             FERRY_JOB_TOKEN="theirs")
        self.assertEqual(stranger.wait(), 1)
        self.assertRegex(stranger.err, "token")
        # The remaining nodes report which nodes registered.
        nodes = json.loads(self.status("--json"))["exchange"]["nodes"]
        node = [each for each in nodes if each["node_id"] == 0][0]
        self.assertGreaterEqual(node["refused_connections"], 1)
        self.assertRegex(node["last_refusal"], "token")
        self.assertRegex(self.status(), r"\n  0 .* \d, last: .*token")

    def test_a_node_that_hangs_does_not_delay_the_rest(self):
        workers = [self.node("worker", i) for i in range(3)]
        for worker in workers:
            worker.wait_for("joined at")
        self.eventually(lambda: len(self.exchange()) == 3)
        workers[1].signal(signal.SIGSTOP)
        try:
            def status_in_time():
                start = time.monotonic()
                text = self.status()
                return time.monotonic() - start < 5 and text
            # A loaded machine may delay one, and not all.
            self.eventually(lambda: re.search(
                r"(?s)\n  2 +0 B of .*no word of its tensors from node 1\n|"
                r"no word of its tensors from node 1\n.*\n  2 +0 B of ", status_in_time() or ""))
        finally:
            workers[1].signal(signal.SIGCONT)

    def test_a_report_that_cannot_be_read_names_the_node_and_the_key(self):
        workers = [self.node("worker", i) for i in range(3)]
        for worker in workers:
            worker.wait_for("joined at")
        workers[1].signal(signal.SIGSTOP)

        def answer(record):
            """The status, with `record` in place of the stopped node's answer."""
            status = self.start("status", f"--coordinator={self.address}")
            while status.popen.poll() is None:
                self.succeed("kv", "set", "ferry/report/1", "-", "--overwrite",
                             f"--coordinator={self.address}", stdin=record)
            self.assertEqual(status.wait(), 0)
            return status.out

        try:
            self.eventually(lambda: "\n  node 1 publishes no valid transfer report at "
                            "ferry/report/1: its 1 bytes are no protocol buffer\n" in answer(b"\n"))
            # Version 2.5.
            self.eventually(lambda: "\n  the transfer report of node 1 at ferry/report/1 is of "
                            "version 2.5, and this process reads version 1.0: run the same version "
                            "of Ferry on all nodes\n" in answer(b"\x0a\x04\x08\x02\x10\x05"))
        finally:
            workers[1].signal(signal.SIGCONT)


if __name__ == "__main__":
    harness.main()

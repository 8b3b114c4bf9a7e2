#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors between processes as the tool moves them, and the example program.

    FERRY_EXAMPLE=.../exchange cli_exchange_test.py FERRY [CASE...]
"""
import os
import signal
import tempfile
import time

import harness


class Example(harness.Case):
    def test_node_1_gets_what_node_0_sends(self):
        out = self.succeed("run", "--nproc=2", "--", os.environ["FERRY_EXAMPLE"])
        self.assertRegex(out, rb"\A\[1\] got int32\[256,1024\] by shm\n\Z")


class SendRecv(harness.Case):
    def setUp(self):
        # Those who die are missed soon.
        self.address = self.coordinator(2, "--heartbeat-timeout=2s")[1]

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

    def test_the_path_that_is_required_is_taken(self):
        out = self.both(["--shape=1024x1024", "--require=tcp"],
                        ["--verify", "--require=tcp", "--checksum"])
        self.assertRegex(out, r"verified, .* by tcp: not shm: .*only tcp is allowed")

    def test_a_required_path_that_there_is_not_fails_with_the_reason(self):
        # Over TCP nobody can hand memory over.
        sender = self.send("--shape=1024x1024", "--require=tcp")
        receiver = self.recv("--require=shm", "--timeout=20s")
        self.assertEqual(receiver.wait(), 1)
        self.assertRegex(receiver.err, "sends by tcp, and shm is the required transport here")
        sender.kill()

    def test_into_a_buffer_that_is_there_before(self):
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

    def test_files_come_out_as_they_went_in(self):
        with tempfile.TemporaryDirectory() as folder:
            data = os.urandom(100_003)
            with open(f"{folder}/in", "wb") as file:
                file.write(data)
            self.both([f"--file={folder}/in"], [f"--output={folder}/out"])
            with open(f"{folder}/out", "rb") as file:
                self.assertEqual(file.read(), data)

    def test_numbers_are_encoded_as_their_type_says(self):
        for fill, dtype, expected in (("1.5", "half", "003e"), ("1e-7", "half", "0200"),
                                      ("-2", "bfloat16", "00c0"), ("ones", "int16", "0100"),
                                      ("65504", "half", "ff7b"), ("7", "bool", "01")):
            with self.subTest(fill, dtype=dtype), tempfile.TemporaryDirectory() as folder:
                self.both([f"--fill={fill}", f"--dtype={dtype}", "--shape=2"],
                          [f"--output={folder}/out"])
                with open(f"{folder}/out", "rb") as file:
                    self.assertEqual(file.read().hex(), expected * 2)

    def test_what_never_comes_is_named_with_how_far_it_was(self):
        self.send("--step=8")
        receiver = self.recv("--step=9", "--timeout=500ms")
        self.assertEqual(receiver.wait(), 1)
        self.assertRegex(receiver.err, "waited 500ms in step 9 for .*;weights;0:0: asked node 0, "
                         "which has not sent it")

    def test_a_sender_that_is_killed_fails_the_receiver_at_once(self):
        sender = self.send("--step=8")
        receiver = self.recv("--step=9")
        receiver.wait_for("waiting for \"weights\" from node 0")
        start = time.monotonic()
        sender.signal(signal.SIGKILL)
        self.assertEqual(receiver.wait(), 1)
        self.assertLess(time.monotonic() - start, 10)
        self.assertRegex(receiver.err.splitlines()[-1], "^ferry: .*node 0")

    def test_a_signal_ends_the_wait(self):
        sender = self.send("--step=8")
        receiver = self.recv("--step=9")
        receiver.wait_for("waiting for \"weights\" from node 0")
        for process in (receiver, sender):
            process.signal(signal.SIGINT)
            self.assertEqual(process.wait(), 1)
            self.assertRegex(process.err.splitlines()[-1], "^ferry: .*stopped by SIGINT")

    def test_a_tensor_over_the_budget_is_told_with_the_limit(self):
        sender = self.send("--shape=1024x1024", "--arena-budget-bytes=1000000")
        receiver = self.recv()
        self.assertEqual(sender.wait(), 1)
        self.assertRegex(sender.err, "budget_bytes")
        receiver.kill()


class Usage(harness.Case):
    def test_values_that_make_no_sense_are_refused_before_anyone_joins(self):
        here = ("--node-id=0", "--num-nodes=2", "--coordinator=127.0.0.1:1")
        for pattern, arguments in (
                ("--dtype.*floaty", ("send", "x", "--to=1", "--dtype=floaty", *here)),
                ("--dtype.*string", ("send", "x", "--to=1", "--dtype=string", *here)),
                ("--shape.*2y3", ("send", "x", "--to=1", "--shape=2y3", *here)),
                ("--shape", ("send", "x", "--to=1", "--shape=-2", *here)),
                ("--into needs", ("recv", "x", "--from=0", "--into", *here)),
                ("--require", ("recv", "x", "--from=0", "--require=smoke", *here)),
                ("--to is required", ("send", "x", *here)),
                ("--coordinator", ("recv", "x", "--from=0", "--coordinator", "nowhere"))):
            with self.subTest(arguments):
                self.fail_with(2, pattern, *arguments)


if __name__ == "__main__":
    harness.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Usage errors of ferry send and ferry recv before they join, and their errors without resources.

    cli_exchange_usage_test.py FERRY [CASE...]
"""
import os
import resource
import subprocess
import tempfile

import harness

# No process listens there: a command that gets as far as joining fails differently.
HERE = ("--node-id=0", "--num-nodes=2", "--coordinator=127.0.0.1:1", "--timeout=1s")


class BeforeAnyoneJoins(harness.Case):
    def refused(self, status, cases, **variables):
        for pattern, arguments in cases:
            with self.subTest(arguments):
                self.fail_with(status, pattern, *arguments, *HERE, stdin=b"abc", **variables)

    def test_invalid_values(self):
        self.refused(2, (
            ("--dtype.*floaty", ("send", "x", "--to=1", "--dtype=floaty")),
            ("--dtype.*string", ("send", "x", "--to=1", "--dtype=string")),
            ("--shape.*2y3", ("send", "x", "--to=1", "--shape=2y3")),
            ("--shape", ("send", "x", "--to=1", "--shape=-2")),
            ("--into needs", ("recv", "x", "--from=0", "--into")),
            ("--transport", ("recv", "x", "--from=0", "--transport=smoke")),
            ("--to is required", ("send", "x")),
            ("no ';'", ("send", "a;b", "--to=1")),
            ("not empty", ("recv", "", "--from=1")),
            ("at most 31744 bytes", ("send", "x" * 40_000, "--to=1")),
            ("--step: .99999999999999999999. is not a whole number",
             ("send", "x", "--to=1", "--step=99999999999999999999")),
            ("x:y:z.* is not an address that peers can be told",
             ("recv", "x", "--from=1", "--advertise=x:y:z")),
            ("is not an address that peers can be told",
             ("recv", "x", "--from=1", "--advertise=a\nb"))))
        self.fail_with(2, "--coordinator", "recv", "x", "--from=0", "--coordinator", "nowhere")

    def test_errors_about_former_flags_name_the_present_ones(self):
        for pattern, arguments in (
                ("--transport: smoke not in", ("worker", "--require=smoke")),
                ("--gpu-ipc-min-bytes: .x.", ("worker", "--gpu-stage-below-bytes=x")),
                ("--gpu-ipc-cache-bytes: .x.", ("worker", "--gpu-import-cap-bytes=x")),
                ("--gpu-ipc-idle-timeout: .-1s.", ("worker", "--gpu-ipc-idle-timeout=-1s")),
                ("--max-pending-ops: .0.", ("worker", "--max-waiting=0")),
                ("--reconnect-timeout: .soon.", ("worker", "--lost-timeout=soon")),
                ("--max-pending-gets: .0.", ("coordinator", "--max-parked-waits=0")),
                ("--no-wait", ("kv", "get", "a", "--try", "--timeout=1s")),
                # A bench's --transport says what to measure.
                ("smoke not in {local", ("bench", "ring", "--require=smoke"))):
            with self.subTest(arguments):
                self.fail_with(2, pattern, *arguments)

    def test_an_unknown_node(self):
        self.refused(2, (
            ("--to=2: there is no such node; the job has 2", ("send", "x", "--to=2")),
            ("--from=-1: there is no such node", ("recv", "x", "--from=-1")),
            ("--to=0 is this node itself", ("send", "x", "--to=0")),
            ("--from=0 is this node itself", ("recv", "x", "--from=0"))))

    def test_a_fill_out_of_the_types_range(self):
        self.refused(2, (
            ("--fill: 300 is not within uint8, 0 to 255",
             ("send", "x", "--to=1", "--fill=300", "--dtype=uint8")),
            ("--fill: -1 is not within uint64, 0 to 18446744073709551615",
             ("send", "x", "--to=1", "--fill=-1", "--dtype=uint64")),
            ("--fill: 9223372036854775808 is not within int64",
             ("send", "x", "--to=1", "--fill=9223372036854775808", "--dtype=int64")),
            ("--fill: 1.5 is not a whole number", ("send", "x", "--to=1", "--fill=1.5",
                                                "--dtype=int8")),
            ("--fill: nan is not a whole number", ("send", "x", "--to=1", "--fill=nan",
                                                "--dtype=int8")),
            ("--fill: .blue. is neither", ("send", "x", "--to=1", "--fill=blue")),
            ("--fill: elements of complex64", ("send", "x", "--to=1", "--fill=1",
                                               "--dtype=complex64"))))

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/three", "wb") as file:
                file.write(b"abc")
            os.mkfifo(f"{folder}/pipe")
            self.refused(1, (
                ("cannot read .*nothing.*: No such file", ("send", "x", "--to=1",
                                                           f"--file={folder}/nothing")),
                ("cannot read .*: Is a directory", ("send", "x", "--to=1", f"--file={folder}")),
                ("pipe. has not ended within 1s; it has given 0 bytes so far",
                 ("send", "x", "--to=1", f"--file={folder}/pipe")),
                ("/dev/zero. has more than the 1000000 bytes that the arena may have "
                 "[(]--arena-budget-bytes[)]",
                 ("send", "x", "--to=1", "--file=/dev/zero", "--arena-budget-bytes=1000000")),
                # One byte more than the shape's shows that there is more; the file may have no end.
                ("/dev/zero. has at least 1001 bytes, and uint8.1000. has 1000",
                 ("send", "x", "--to=1", "--file=/dev/zero", "--shape=1000", "--dtype=uint8")),
                ("/dev/zero. has at least 2097153 bytes, and int64.512,512. has 2097152",
                 ("send", "x", "--to=1", "--file=/dev/zero", "--shape=512x512", "--dtype=int64")),
                ("/dev/zero. has at least 1 bytes, and uint8.0. has 0",
                 ("send", "x", "--to=1", "--file=/dev/zero", "--shape=0", "--dtype=uint8")),
                ("has 2000000 bytes, and the arena may have 1000000 .--arena-budget-bytes",
                 ("send", "x", "--to=1", "--file=/dev/zero", "--shape=2000000", "--dtype=uint8",
                  "--arena-budget-bytes=1000000")),
                ("stdin has 3 bytes, and .*2.* has 4",
                 ("send", "x", "--to=1", "--file=-", "--dtype=int16", "--shape=2")),
                ("three. has 3 bytes, and .*2.* has 4", ("send", "x", "--to=1", "--dtype=int16",
                                                         "--shape=2", f"--file={folder}/three")),
                ("--output: cannot write .*nowhere/out.: No such file",
                 ("recv", "x", "--from=1", f"--output={folder}/nowhere/out")),
                ("--output: cannot write .*: Is a directory",
                 ("recv", "x", "--from=1", f"--output={folder}"))))
            self.assertEqual(sorted(os.listdir(folder)), ["pipe", "three"])

    def test_an_endless_file_takes_no_more_memory_than_the_arena_may(self):
        budget = 64 << 20
        with subprocess.Popen([harness.FERRY, "send", "x", "--to=1", *HERE, "--file=/dev/zero",
                               f"--arena-budget-bytes={budget}"], stdin=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, env=harness.environment()) as popen:
            err = popen.stderr.read().decode()
            _, status, usage = os.wait4(popen.pid, 0)
            popen.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(popen.returncode, 1, err)
        self.assertRegex(err, "/dev/zero. has more than the 67108864 bytes")
        # The tool itself takes some 20 MiB.
        self.assertLess(usage.ru_maxrss << 10, budget * 2)

    def test_a_dash_is_a_standard_stream_of_one_flag(self):
        """Not a file of that name."""
        for pattern, arguments in (
                ("--plot: - is stdout, where --json writes",
                 ("bench", "kv", "--json", "--plot=-")),
                ("--html: - is stdout, where --plot writes",
                 ("bench", "ring", "--html=-", "--plot=-")),
                ("--html: - is stdout, where --csv writes", ("bench", "cold", "--html=-", "--csv")),
                ("--write-nccl-xml: - is stdout, where --dot writes",
                 ("topo", "--write-nccl-xml=-", "--dot")),
                ("only one of OLD and NEW can be -", ("bench", "compare", "-", "-")),
                ("- is stdin, which can be only one of them",
                 ("step", "--graph=-", "--feed=x=@-", "--fetch=x"))):
            with self.subTest(arguments):
                self.fail_with(2, pattern, *arguments)
        self.assertFalse(os.path.exists("-"))
        page = self.succeed("bench", "barrier", "--nodes=2", "--iters=2", "--html=-")
        self.assertRegex(page, rb"\A<!DOCTYPE html>")
        self.assertNotIn(b"times are", page)

    def test_a_tensor_over_the_budget(self):
        self.refused(1, (
            ("has 4194304 bytes, and the arena may have 1000000 .--arena-budget-bytes",
             ("send", "x", "--to=1", "--shape=1024x1024", "--arena-budget-bytes=1000000")),
            ("has 4194304 bytes, and the arena may have 1000000 .--arena-budget-bytes",
             ("recv", "x", "--from=1", "--into", "--dtype=float", "--shape=1024x1024",
              "--arena-budget-bytes=1000000"))))

    def test_a_token_that_cannot_be_read(self):
        self.refused(2, (("FERRY_JOB_TOKEN_FILE=/nowhere/token: cannot be read",
                          ("send", "x", "--to=1")),), FERRY_JOB_TOKEN_FILE="/nowhere/token")
        self.refused(2, (("FERRY_JOB_TOKEN_FILE=/dev/zero: it has more than 4096 bytes",
                          ("send", "x", "--to=1")),), FERRY_JOB_TOKEN_FILE="/dev/zero")


class WithoutRoom(harness.Case):
    """Ends with a line and a status, not with a core file."""

    def limited(self, limits, *arguments):
        def limit():
            for which, value in limits:
                resource.setrlimit(which, (value, value))
        done = subprocess.run([harness.FERRY, *arguments], capture_output=True, preexec_fn=limit,
                              env=harness.environment(), timeout=harness.PATIENCE_S, check=False)
        return done.returncode, done.stderr.decode()

    def test_no_descriptors(self):
        status, err = self.limited([(resource.RLIMIT_NOFILE, 4)], "recv", "x", "--from=1", *HERE)
        self.assertEqual(status, 1, err)
        self.assertRegex(err, r"\Aferry: [^\n]*Too many open files[^\n]*\n\Z")

    def test_no_stack_for_a_thread(self):
        # Each thread has a stack as large as this limit; there is no room for any.
        status, err = self.limited([(resource.RLIMIT_STACK, 1 << 30),
                                    (resource.RLIMIT_AS, 1 << 30)],
                                   "recv", "x", "--from=1", *HERE)
        self.assertEqual(status, 1, err)
        self.assertRegex(err, r"\Aferry: cannot start the thread \"ferry-[a-z]+\": .*ulimit -v. "
                         r"1073741824 bytes.*\n\Z")

    def test_a_file_that_may_not_grow(self):
        address = self.coordinator(2)[1]
        with tempfile.TemporaryDirectory() as folder:
            at = (f"--coordinator={address}", "--num-nodes=2")
            sender = self.start("send", "x", "--to=1", "--node-id=0", "--shape=100000", *at)
            status, err = self.limited([(resource.RLIMIT_FSIZE, 100_000)], "recv", "x", "--from=0",
                                       "--node-id=1", f"--output={folder}/out", *at)
            self.assertEqual(status, 1, err)
            self.assertRegex(err.splitlines()[-1], "^ferry: cannot write .*: File too large")
            self.assertEqual(sender.wait(), 0, sender.err)


if __name__ == "__main__":
    harness.main()

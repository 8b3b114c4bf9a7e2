#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The verbs that talk to a running job: worker, kv, status, topo --coordinator.

    cli_jobs_test.py FERRY [CASE...]
"""
import array
import fcntl
import json
import random
import re
import signal
import subprocess
import termios
import time

import harness


class Kv(harness.Case):
    def setUp(self):
        self.address = self.coordinator(1)[1]

    def kv(self, *arguments, **options):
        return self.succeed("kv", *arguments, FERRY_COORDINATOR=self.address, **options)

    def kv_fails(self, pattern, *arguments, **options):
        self.fail_with(1, pattern, "kv", *arguments, FERRY_COORDINATOR=self.address, **options)

    def test_get_writes_exactly_the_value_of_set(self):
        self.kv("set", "a", "hello world")
        self.assertEqual(self.kv("get", "a"), b"hello world")

    def test_values_may_be_any_bytes(self):
        value = bytes(range(256)) * 5000
        self.kv("set", "bin", "-", stdin=value)
        self.assertEqual(self.kv("get", "bin"), value)

    def test_get_text_escapes_what_controls_a_terminal(self):
        self.kv("set", "bin", "-", stdin=b"x\x1b[2Jy\0\n")
        self.assertEqual(self.kv("get", "--text", "bin"), b"x\\033[2Jy\\000\n")

    def test_get_text_shows_the_fields_of_an_endpoint_record(self):
        worker = self.worker(self.address, 0, 1)
        worker.wait_for("joined at")
        text = self.kv("get", "--text", "ferry/exchange/0").decode()
        self.assertRegex(text, r"\Aversion {\n  major_version: 1\n}\nnode_id: 0\n")
        self.assertRegex(text, r'\ngrpc_address: "[0-9.:]+')
        # Byte for byte, it is a record; elsewhere, and when it is none, its bytes are shown.
        record = self.kv("get", "ferry/exchange/0")
        self.assertNotIn(b"grpc_address", record)
        self.kv("set", "elsewhere/0", "-", stdin=record)
        self.assertRegex(self.kv("get", "--text", "elsewhere/0"), rb"\A\n\\002\\010\\001\\020")
        self.kv("set", "ferry/exchange/0", "node 0", "--overwrite")
        self.assertEqual(self.kv("get", "--text", "ferry/exchange/0"), b"node 0\n")

    def test_an_empty_value_is_a_value(self):
        self.kv("set", "empty", "")
        self.assertEqual(self.kv("get", "empty", "--no-wait"), b"")

    def test_set_replaces_only_on_request(self):
        self.kv("set", "a", "1")
        self.kv_fails('"a" is there already.*--overwrite', "set", "a", "2")
        self.kv("set", "a", "2", "--overwrite")
        self.assertEqual(self.kv("get", "a"), b"2")

    def test_get_waits_for_a_key_that_comes(self):
        get = self.start("kv", "get", "later", "--timeout=30s", FERRY_COORDINATOR=self.address)
        get.wait_for("ferry: waiting for key \"later\"")
        self.kv("set", "later", "now")
        self.assertEqual((get.wait(), get.out), (0, "now"))

    def test_get_names_the_missing_key(self):
        self.kv_fails('"never"', "get", "never", "--timeout=300ms")
        self.kv_fails('"never" is not there', "get", "never", "--no-wait")

    def test_ls_and_rm_handle_prefixes_and_subtrees(self):
        for key in ("a", "a/1", "a/2", "ab", "b"):
            self.kv("set", key, key)
        self.assertEqual(self.kv("ls", "a"), b"a\na/1\na/2\nab\n")
        self.kv("rm", "a", "--recursive")
        self.assertEqual(self.kv("ls"), b"ab\nb\n")
        self.assertRegex(self.kv("ls", "--long").decode(), r"KEY +BYTES +REVISION +VALUE\nab +2 ")

    def test_rm_of_a_missing_key_reports_it(self):
        self.kv("set", "tree/1", "1")
        self.kv_fails('key "nope" is not there', "rm", "nope")
        self.kv_fails('key "tree" is not there', "rm", "tree")
        self.kv("rm", "tree", "--recursive")
        self.kv_fails('key "tree" is not there', "rm", "tree", "--recursive")

    def test_a_refusal_of_the_coordinator_is_a_failure_and_not_wrong_usage(self):
        self.address = self.coordinator(1, "--max-key-bytes=4")[1]
        for arguments in (("set", "12345", "v"), ("get", "12345"), ("get", "12345", "--no-wait")):
            self.kv_fails("key of 5 bytes is over the limit of 4", *arguments)

    def test_a_key_cannot_write_to_the_terminal(self):
        for key in ("x\033[2Jy", b"y\xff\xc2\x9b", "z\u00e9"):
            self.kv("set", key, "1")
        self.assertEqual(self.kv("ls"), b"x\\033[2Jy\ny\\377\\302\\233\nz\xc3\xa9\n")

    def test_watch_prints_existing_keys_and_then_every_change(self):
        self.kv("set", "w/1", "old")
        watch = self.start("kv", "watch", "w/", FERRY_COORDINATOR=self.address)
        watch.wait_for('set w/1 "old"\n')
        self.kv("set", "elsewhere", "x")
        self.kv("set", "w/2", "new")
        watch.wait_for('set w/2 "new"\n')
        self.kv("rm", "w/1")
        watch.wait_for("rm w/1\n")
        watch.signal(signal.SIGINT)
        self.assertEqual(watch.wait(), 0)
        self.assertNotIn("elsewhere", watch.out)

    def start_unread(self, *arguments):
        """A verb that has filled its stdout, a pipe of one page without a reader."""
        process = subprocess.Popen([harness.FERRY, *arguments], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=4096,
                                   env=harness.environment(FERRY_COORDINATOR=self.address))
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

        def unread_bytes():
            count = array.array("i", [0])
            fcntl.ioctl(process.stdout.fileno(), termios.FIONREAD, count)
            return count[0]
        self.eventually(lambda: unread_bytes() == 4096)
        return process

    def test_a_watch_with_unread_output_can_be_stopped(self):
        self.address = self.coordinator(200)[1]
        for i in range(3):
            self.kv("set", str(i) + "k" * 50_000, "v")
        for arguments in (("kv", "watch"), ("status", "--watch", "--all")):
            for number in (signal.SIGINT, signal.SIGTERM):
                with self.subTest(arguments, number=number):
                    watch = self.start_unread(*arguments)
                    watch.send_signal(number)
                    self.assertEqual(watch.wait(timeout=10), 0)

    def test_a_watch_with_unread_output_ends_with_its_coordinator(self):
        coordinator, self.address = self.coordinator(1)
        self.kv("set", "k" * 50_000, "v")
        watch = self.start_unread("kv", "watch")
        coordinator.kill()
        self.assertEqual(watch.wait(timeout=30), 1)
        self.assertRegex(watch.stderr.read().decode(),
                         r"(?s)out of reach.*the last 4\d{4} bytes of the output were not read")

    def test_a_watch_prints_everything_to_a_slow_reader(self):
        self.kv("set", "k" * 100_000, "v")
        watch = self.start_unread("kv", "watch")
        self.kv("set", "last", "v")
        line = b"set " + b"k" * 100_000 + b' "v"\nset last "v"\n'
        self.assertEqual(watch.stdout.read(len(line)), line)
        watch.send_signal(signal.SIGINT)
        self.assertEqual(watch.wait(timeout=10), 0)

    def test_a_watch_ends_when_its_reader_has_gone(self):
        """kv watch | head -1: no change may ever come that could not be written."""
        self.kv("set", "a", "1")
        watch = subprocess.Popen([harness.FERRY, "kv", "watch"], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=harness.environment(FERRY_COORDINATOR=self.address))
        self.addCleanup(watch.stderr.close)
        self.addCleanup(watch.wait)
        self.addCleanup(watch.kill)
        self.assertEqual(watch.stdout.readline(), b'set a "1"\n')
        watch.stdout.close()
        self.assertEqual(watch.wait(timeout=10), -signal.SIGPIPE)
        self.assertEqual(watch.stderr.read(), b"")

    def test_a_watch_ends_when_its_output_cannot_be_written(self):
        self.kv("set", "a", "1")
        for verb in ("kv watch", "status --watch", "status --watch --json"):
            for target in ("/dev/full", "&-"):
                with self.subTest(verb, target=target):
                    status, err = self.shell(f"{harness.FERRY} {verb} >{target}",
                                             FERRY_COORDINATOR=self.address)
                    self.assertEqual(status, 1)
                    self.assertRegex(err, r"\Aferry: cannot write the output: .+\n\Z")

    def test_stdin_without_end_is_refused(self):
        status, err = self.shell(f"{harness.FERRY} kv set a - </dev/zero",
                                 FERRY_COORDINATOR=self.address)
        self.assertEqual((status, err), (1, "ferry: stdin holds more than the largest value, "
                                            "1073741824 bytes\n"))

    def test_memory_that_runs_out_is_a_failure_and_no_abort(self):
        if re.search(r"/[at]san/", harness.FERRY):
            self.skipTest("a sanitizer's own memory does not fit in the limit")
        status, err = self.shell(f"ulimit -v 400000; {harness.FERRY} kv set a - </dev/zero",
                                 FERRY_COORDINATOR=self.address)
        self.assertEqual((status, err), (1, "ferry: out of memory\n"))

    def test_a_value_over_the_coordinators_limit_is_a_failure_and_not_usage(self):
        address = self.coordinator(1, "--max-value-bytes=10")[1]
        self.fail_with(1, "--max-value-bytes", "kv", "set", "a", "x" * 11,
                       f"--coordinator={address}")

    def test_without_a_coordinator_it_is_wrong_usage(self):
        self.fail_with(2, "--coordinator=HOST:PORT", "kv", "ls")

    def test_a_closed_reader_is_no_failure(self):
        for i in range(50):
            self.kv("set", f"k{i}", "v")
        done = subprocess.run(
            ["sh", "-c", f"{harness.FERRY} kv ls --coordinator={self.address} | head -1"],
            capture_output=True, timeout=harness.PATIENCE_S, env=harness.environment())
        self.assertEqual((done.stdout, done.stderr), (b"k0\n", b""))


class Status(harness.Case):
    def status(self, address):
        return json.loads(self.succeed("status", "--json", f"--coordinator={address}"))

    def test_a_missing_node_and_the_nodes_that_wait_for_it(self):
        address = self.coordinator(3)[1]
        self.worker(address, 0, 3)
        self.worker(address, 1, 3)
        self.eventually(lambda: [t["state"] for t in self.status(address)["tasks"]] ==
                        ["joining", "joining", "missing"])
        status = self.status(address)
        self.assertEqual(status["missing"], "2")
        self.assertEqual([(b["arrived"], b["missing"]) for b in status["barriers"]], [("0,1", "2")])
        text = self.succeed("status", f"--coordinator={address}").decode()
        self.assertRegex(text, r"^3 nodes: none joined; joining: nodes 0,1; missing: node 2\n")
        self.assertRegex(text, r"\n  0 +joining +- +\S+ +\d+ .* the others to join for ")
        self.assertRegex(text, r"\n  2 +missing +- ")

    def test_columns_are_aligned_with_their_titles(self):
        address = self.coordinator(2)[1]
        self.workers(address, 2)
        lines = self.succeed("status", f"--coordinator={address}").decode().splitlines()
        table = lines[lines.index("") + 1:][:3]
        for title in ("STATE", "HEARTBEAT", "HOST", "PID", "ADDRESS", "SERVICE"):
            at = table[0].index(title)
            for line in table[1:]:
                self.assertEqual((line[at - 1], line[at] != " "), (" ", True), table)

    def test_a_wait_outside_the_job_is_listed(self):
        address = self.coordinator(1)[1]
        self.start("kv", "get", "nobody-sets-it", "--timeout=60s", f"--coordinator={address}")
        waits = self.eventually(lambda: self.status(address)["anonymous_waits"])
        self.assertIn("nobody-sets-it", waits[0]["what"])
        text = self.succeed("status", f"--coordinator={address}").decode()
        self.assertRegex(text, 'others wait for: key "nobody-sets-it" for ')

    def test_neither_the_call_nor_what_the_coordinator_watches_is_a_wait(self):
        address = self.coordinator(2)[1]
        for _ in range(3):
            self.assertIn("; 0 parked waits, ", self.succeed("status", f"--coordinator={address}").decode())
        self.assertEqual(self.status(address)["parked_waits"], 0)
        self.start("kv", "get", "nobody-sets-it", "--timeout=60s", f"--coordinator={address}")
        self.eventually(lambda: self.status(address)["anonymous_waits"])
        self.assertEqual(self.status(address)["parked_waits"], 1)
        self.assertIn("; 1 parked wait, ", self.succeed("status", f"--coordinator={address}").decode())
        self.workers(address, 2)
        status = self.status(address)
        listed = len(status["anonymous_waits"]) + sum(len(t["waits"]) for t in status["tasks"])
        self.assertEqual(status["parked_waits"], listed)

    def test_the_store_is_counted(self):
        address = self.coordinator(1)[1]
        self.succeed("kv", "set", "k", "12345", f"--coordinator={address}")
        store = self.status(address)["store"]
        self.assertEqual((store["keys"], store["bytes"] >= 5), (1, True))

    def test_a_large_job_is_grouped_and_all_lists_it(self):
        address = self.coordinator(4096)[1]
        text = self.succeed("status", f"--coordinator={address}").decode()
        self.assertRegex(text, r"\n  0-4095 +4096 +missing ")
        self.assertLess(len(text.splitlines()), 15)
        text = self.succeed("status", "--all", f"--coordinator={address}").decode()
        self.assertRegex(text, r"\n  4095 +missing ")

    def test_watch_repeats_until_interrupted(self):
        address = self.coordinator(2)[1]
        watch = self.start("status", "--watch", f"--coordinator={address}")
        watch.wait_for(r"(?s)2 nodes.*2 nodes")
        self.assertNotIn("\033", watch.out)
        watch.signal(signal.SIGINT)
        self.assertEqual(watch.wait(), 0)

    def test_an_address_that_can_never_be_one_is_wrong_usage_at_once(self):
        for address in ("a\nb\033[31m:1", "host", "host:0", "host:65536", "host:", ":1", "a b:1"):
            for verb in (("status",), ("kv", "ls"), ("topo",), ("worker", "--node-id=0")):
                with self.subTest(verb, address=address):
                    self.fail_with(2, "--coordinator: .* is not HOST:PORT", *verb, "--coordinator",
                                   address, timeout_s=5)

    def test_watch_reports_a_lost_coordinator_and_reconnects(self):
        coordinator, address = self.coordinator(2)
        watch = self.start("status", "--watch", f"--coordinator={address}")
        watch.wait_for("2 nodes")
        coordinator.signal(signal.SIGKILL)
        start = time.monotonic()
        watch.wait_for(rf"ferry: the coordinator at {address} is out of reach since \d\d:\d\d:\d\d; "
                       "trying for 10s\n")
        self.assertLess(time.monotonic() - start, 5)
        self.start("coordinator", "--nodes=3", f"--listen={address}")
        watch.wait_for(r"3 nodes")
        self.assertIn("is there again", watch.err)
        self.assertEqual(watch.err.count("out of reach"), 1)
        watch.signal(signal.SIGINT)
        self.assertEqual(watch.wait(), 0)

    def test_watch_gives_up_on_a_coordinator_that_does_not_come_back(self):
        for number in (signal.SIGKILL, signal.SIGTERM):
            coordinator, address = self.coordinator(2)
            watch = self.start("status", "--watch", f"--coordinator={address}")
            watch.wait_for("2 nodes")
            coordinator.signal(number)
            self.assertEqual(watch.wait(), 1)
            self.assertEqual(watch.err.count(" is out of reach since"), 1, watch.err)

    def test_watch_can_be_interrupted_while_the_coordinator_hangs(self):
        coordinator, address = self.coordinator(2)
        watch = self.start("status", "--watch", f"--coordinator={address}")
        watch.wait_for("2 nodes")
        coordinator.signal(signal.SIGSTOP)
        watch.wait_for("out of reach since")
        watch.signal(signal.SIGINT)
        self.assertEqual(watch.wait(timeout_s=5), 0)

    def test_an_empty_address_is_no_address(self):
        for verb in (("status",), ("kv", "ls"), ("topo",), ("worker", "--node-id=0"),
                     ("run",)):
            command = ("true",) if verb == ("run",) else ()
            with self.subTest(verb):
                self.fail_with(2, "--coordinator", *verb, "--coordinator", "", *command, timeout_s=5)

    def test_a_bad_address_in_the_environment_matters_only_where_it_is_used(self):
        self.fail_with(2, "HOST:PORT", "status", FERRY_COORDINATOR="bad")
        self.succeed("topo", FERRY_COORDINATOR="bad")
        self.succeed("help", FERRY_COORDINATOR="bad")

    def test_the_error_of_a_failed_job_is_shown(self):
        # Long enough for a survivor on a loaded machine.
        address = self.coordinator(2, "--heartbeat-timeout=4s")[1]
        workers = self.workers(address, 2)
        workers[1].signal(signal.SIGKILL)
        workers[0].wait()
        text = self.succeed("status", f"--coordinator={address}").decode()
        self.assertRegex(text, r"the job has failed: .*heartbeat timeout.*1")
        self.assertRegex(text, r"failed: .*1")

    def test_an_unreachable_coordinator_is_a_failure_that_names_the_address(self):
        self.fail_with(1, r"127\.0\.0\.1:1 .*out of reach", "status", "--coordinator=127.0.0.1:1")


class Worker(harness.Case):
    def test_all_nodes_hold_one_topology_and_leave_in_good_order(self):
        coordinator, address = self.coordinator(3)
        workers = self.workers(address, 3)
        lines = [w.wait_for(r"ferry worker: node (\d) of 3 joined at \S+; 3 nodes on 1 machine, "
                            r"3 host devices, .*; topology ([0-9a-f]{16})\n") for w in workers]
        self.assertEqual([line.group(1) for line in lines], ["0", "1", "2"])
        self.assertEqual(len({line.group(2) for line in lines}), 1)
        topology = json.loads(self.succeed("topo", "--json", f"--coordinator={address}"))
        self.assertEqual(len(topology["nodes"]), 3)
        for worker in workers:
            worker.signal(signal.SIGTERM)
        self.assertEqual([worker.wait() for worker in workers], [0, 0, 0])
        coordinator.signal(signal.SIGTERM)
        self.assertEqual(coordinator.wait(), 0)

    def test_missing_nodes_are_printed_while_joining(self):
        address = self.coordinator(4)[1]
        worker = self.worker(address, 1, 4)
        worker.wait_for(r"ferry: waiting for nodes 0,2,3 to join \(")
        worker.signal(signal.SIGTERM)
        self.assertEqual(worker.wait(), 1)
        self.assertRegex(worker.err, "stopped by SIGTERM while node 1 of 4 was joining")

    def test_missing_nodes_are_named_when_joining_fails(self):
        address = self.coordinator(4)[1]
        self.worker(address, 0, 4)
        self.fail_with(1, r"1,3|2,3", "worker", f"--coordinator={address}", "--node-id=2",
                       "--num-nodes=4", "--connect-timeout=2s")

    def test_exit_after_join_leaves_together(self):
        address = self.coordinator(2)[1]
        workers = [self.worker(address, node, 2, "--exit-after-join") for node in range(2)]
        self.assertEqual([worker.wait() for worker in workers], [0, 0])

    def test_a_second_process_with_the_same_node_id_is_refused(self):
        address = self.coordinator(2)[1]
        workers = self.workers(address, 2)
        self.fail_with(1, "node 1 has joined already", "worker", f"--coordinator={address}",
                       "--node-id=1", "--num-nodes=2")
        self.assertEqual([worker.popen.poll() for worker in workers], [None, None])

    def test_a_job_of_another_size_is_refused(self):
        address = self.coordinator(2)[1]
        worker = self.worker(address, 0, 2)
        why = "serves a job of 2 nodes, but this is node 1 of 3"
        self.fail_with(1, why, "worker", f"--coordinator={address}", "--node-id=1",
                       "--num-nodes=3")
        # It is not waited for.
        self.assertEqual(worker.wait(), 1)
        self.assertRegex(worker.err, f"cannot take part: .*{why}")

    def test_the_others_report_the_name_of_a_dead_node(self):
        # Long enough for the survivors on a loaded machine.
        address = self.coordinator(3, "--heartbeat-timeout=4s")[1]
        workers = self.workers(address, 3)
        workers[2].signal(signal.SIGKILL)
        self.assertEqual([worker.wait() for worker in workers[:2]], [1, 1])
        for worker in workers[:2]:
            self.assertRegex(worker.err, r"\Aferry: node \d: .*heartbeat timeout.* 2 .*\n\Z")

    def test_a_coordinator_that_dies_is_named_within_the_timeout(self):
        coordinator, address = self.coordinator(2)
        workers = self.workers(address, 2, "--reconnect-timeout=2s")
        coordinator.signal(signal.SIGKILL)
        start = time.monotonic()
        self.assertEqual([worker.wait() for worker in workers], [1, 1])
        self.assertLess(time.monotonic() - start, 8)
        for worker in workers:
            self.assertRegex(worker.err, rf"\Aferry: .*{re.escape(address)} .*out of reach.*\n\Z")

    def test_slurm_needs_no_flags(self):
        # Any two concurrent runs of this test get different ports, most likely.
        job = str(random.randrange(1 << 30))
        workers = [self.start("worker", SLURM_JOB_ID=job, SLURM_PROCID=str(node), SLURM_NTASKS="3",
                              SLURM_STEP_ID="0", SLURM_LOCALID=str(node),
                              SLURM_JOB_NODELIST="localhost")
                   for node in range(3)]
        for node, worker in enumerate(workers):
            worker.wait_for(rf"node {node} of 3 \(SLURM_PROCID, SLURM_NTASKS\) joined at localhost:")
        self.assertIn("(run by this process)", workers[0].out)
        for worker in workers:
            worker.signal(signal.SIGTERM)
        self.assertEqual([worker.wait() for worker in workers], [0, 0, 0])

    def test_open_mpi_needs_no_flags(self):
        job = f"test-{random.randrange(1 << 30)}@1"
        workers = [self.start("worker", "--exit-after-join", PMIX_NAMESPACE=job,
                              OMPI_COMM_WORLD_RANK=str(node), OMPI_COMM_WORLD_SIZE="2",
                              OMPI_COMM_WORLD_LOCAL_RANK=str(node), OMPI_COMM_WORLD_LOCAL_SIZE="2")
                   for node in range(2)]
        self.assertEqual([(worker.wait(), worker.err) for worker in workers], [(0, ""), (0, "")])

    def test_without_an_identity_it_is_wrong_usage(self):
        self.fail_with(2, "which node is this", "worker")
        self.fail_with(2, "where is the coordinator", "worker", "--node-id=0", "--num-nodes=2")
        self.fail_with(2, "node id 5 is not below 2", "worker", "--node-id=5", "--num-nodes=2")


class Reset(harness.Case):
    def test_a_job_is_ended_by_hand_and_the_next_one_joins_beside_a_straggler(self):
        address = self.coordinator(2)[1]
        workers = self.workers(address, 2)
        # It neither leaves nor dies, and the heartbeat timeout is far away.
        workers[1].signal(signal.SIGSTOP)
        self.fail_with(1, "the job is healthy: 2 of 2 .*--force", "reset",
                       f"--coordinator={address}")
        out = self.succeed("reset", f"--coordinator={address}", "--force", "--reason=new nodes")
        self.assertRegex(out.decode(), r"\Aferry reset: job 1 has ended; nodes 0,1 were connected; "
                                       r"the next process that joins begins job 2\n\Z")
        self.assertEqual(workers[0].wait(), 1)
        self.assertRegex(workers[0].err, "new nodes")
        following = self.workers(address, 2)
        workers[1].signal(signal.SIGCONT)
        self.assertEqual(workers[1].wait(), 1)
        self.assertEqual([worker.popen.poll() for worker in following], [None, None])
        text = self.succeed("status", f"--coordinator={address}").decode()
        self.assertNotIn("failed", text)

    def test_a_job_with_a_token_is_ended_only_with_the_token(self):
        token = {"FERRY_JOB_TOKEN": "of this job"}
        coordinator = self.start("coordinator", "--nodes=1", "--listen=127.0.0.1:0", **token)
        address = coordinator.wait_for(r"listening on (\S+)\n").group(1)
        worker = self.worker(address, 0, 1, **token)
        worker.wait_for("joined at")
        for variables in ({}, {"FERRY_JOB_TOKEN": "guessed"}):
            self.fail_with(1, "FERRY_JOB_TOKEN", "reset", f"--coordinator={address}", "--force",
                           **variables)
        self.assertIsNone(worker.popen.poll())
        self.succeed("reset", f"--coordinator={address}", "--force", **token)
        self.assertEqual(worker.wait(), 1)

    def test_a_coordinator_without_a_job_has_nothing_to_end(self):
        address = self.coordinator(1)[1]
        self.assertIn(b"no node was connected", self.succeed("reset", f"--coordinator={address}"))


class Topo(harness.Case):
    def test_a_job_that_is_not_complete_has_no_topology(self):
        address = self.coordinator(2)[1]
        self.fail_with(1, "has no topology yet", "topo", f"--coordinator={address}")


if __name__ == "__main__":
    harness.main()

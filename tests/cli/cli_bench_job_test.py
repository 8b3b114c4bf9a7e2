# SPDX-License-Identifier: Apache-2.0
"""ferry bench as nodes of an existing job: rows, verification, and missing nodes."""
import json
import pathlib
import re
import signal
import subprocess
import tempfile

import harness

QUICK = ("--sizes=8,512K", "--iters=5", "--mode=into")


class JobBench(harness.Case):
    def bench(self, address, node, nodes, *arguments, **variables):
        return self.start("bench", *arguments, f"--coordinator={address}", f"--node-id={node}",
                          f"--num-nodes={nodes}", **variables)

    def all(self, address, nodes, *arguments):
        return [self.bench(address, node, nodes, *arguments) for node in range(nodes)]

    def document_of(self, processes):
        """The output of the first one, when all have succeeded; the others print nothing."""
        for process in processes:
            self.assertEqual(process.wait(timeout_s=60), 0, process.err)
        for process in processes[1:]:
            self.assertEqual(process.out, "")
        document = json.loads(processes[0].out)
        for row in document["rows"]:
            self.assertEqual(row["wrong_bytes"], 0)
            self.assertGreater(row["p50_s"], 0)
            self.assertTrue(row["path_reason"], row)
            if row["floor"] is not None:
                self.assertAlmostEqual(row["share_of_floor"] * row["p50_s"] / row["floor_s"], 1, 6)
        return document

    def keys(self, address):
        """Keys that benches have left in the store."""
        listed = self.succeed("kv", "ls", f"--coordinator={address}").decode().split()
        return [key for key in listed if "bench" in key]

    def error_of(self, process, timeout_s=harness.PATIENCE_S):
        """The line with which it ends."""
        self.assertEqual(process.wait(timeout_s), 1, process.out)
        lines = [line for line in process.err.splitlines()
                 if not re.match(harness.PROGRESS, line)]
        self.assertEqual(len(lines), 1, process.err)
        return lines[0]


class Rows(JobBench):
    def test_a_node_of_a_job_has_its_transports_already(self):
        _, address = self.coordinator(2)
        self.fail_with(2, "--transport=all: a node of a job", "bench", "sendrecv", "--transport=all",
                       f"--coordinator={address}", "--node-id=0")

    def test_sendrecv(self):
        _, address = self.coordinator(2)
        document = self.document_of(self.all(
            address, 2, "sendrecv", "--json", "--sizes=8,512K", "--iters=10", "--inflight=4"))
        rows = document["rows"]
        self.assertEqual([(row["mode"], row["inflight"], row["bytes"]) for row in rows],
                         [(mode, inflight, size) for mode in ("handoff", "handoff+read", "into")
                          for inflight in (1, 4) for size in (8, 524288)])
        self.assertEqual({(row["bytes"], row["path"]) for row in rows},
                         {(8, "eager"), (524288, "shm")})
        self.assertEqual(document["subject"],
                         f"nodes 0,1 of the job at {address} on 1 host")
        # They share no page to spin in.
        self.assertIsNone(document["spin_floor_s"])
        self.assertEqual({row["floor"] for row in rows}, {None, "memcpy", "read"})
        self.assertEqual(self.keys(address), [])

    def test_sendrecv_over_tcp_next_to_bare_sockets(self):
        """The sockets share only the path with the tensors."""
        _, address = self.coordinator(2)
        processes = self.all(address, 2, "sendrecv", "--json", "--sizes=8,512K,2M", "--iters=10",
                             "--inflight=4", "--transport=tcp", "--mode=into")
        rows = self.document_of(processes)["rows"]
        self.assertEqual([(row["inflight"], row["bytes"], row["floor"]) for row in rows],
                         [(inflight, size, floor)
                          for inflight, floor in ((1, "raw tcp"), (4, "raw tcp stream"))
                          for size in (8, 524288, 2 << 20)])
        self.assertNotIn("no floor", processes[0].err)
        self.assertEqual(self.keys(address), [])

    def test_sendrecv_of_two_machines_needs_no_flag_for_that(self):
        """The second one has a boot of its own, as far as it can see."""
        with tempfile.TemporaryDirectory() as folder:
            boot = pathlib.Path(folder) / "boot_id"
            boot.write_text("00000000-0000-4000-8000-000000000001\n")
            elsewhere = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
                         f"mount --bind {boot} /proc/sys/kernel/random/boot_id && exec \"$@\"", "sh")
            try:
                can = subprocess.run([*elsewhere, "true"], capture_output=True).returncode == 0
            except FileNotFoundError:
                can = False
            if not can:
                self.skipTest("this machine lets nobody mount anything")
            _, address = self.coordinator(2)
            flags = ("bench", "sendrecv", "--json", "--inflight=2", *QUICK,
                     f"--coordinator={address}")
            first = self.start(*flags, "--node-id=0")
            second = harness.Process([*elsewhere[1:], harness.FERRY, *flags, "--node-id=1"],
                                     harness.environment(), program=elsewhere[0])
            self.addCleanup(second.kill)
            document = self.document_of([first, second])
            self.assertIn("on 2 hosts", document["subject"])
            self.assertEqual([(row["path"], row["inflight"], row["floor"])
                              for row in document["rows"]],
                             [("eager", 1, "raw tcp"), ("tcp", 1, "raw tcp"),
                              ("eager", 2, "raw tcp stream"), ("tcp", 2, "raw tcp stream")])
            self.assertEqual(self.keys(address), [])

    def test_patterns_of_three(self):
        _, address = self.coordinator(3)
        for pattern, tensors, bus in (("ring", 3, 1), ("fan-in", 2, 2), ("fan-out", 2, 2)):
            with self.subTest(pattern):
                document = self.document_of(self.all(address, 3, pattern, "--json",
                                                     "--inflight=2", *QUICK))
                rows = document["rows"]
                self.assertEqual([(row["inflight"], row["bytes"], row["nodes"]) for row in rows],
                                 [(1, 8, 3), (1, 524288, 3), (2, 8, 3), (2, 524288, 3)])
                self.assertRegex(document["time"], "first node's clock.*an empty round takes ")
                self.assertEqual([row["floor"] for row in rows],
                                 [None, "empty round + memcpy", None, None])
                for row in rows:
                    by_second = row["bytes"] / row["p50_s"]
                    self.assertAlmostEqual(row["bytes_per_s"] / by_second, tensors, 6)
                    self.assertAlmostEqual(row["busbw_bytes_per_s"] / by_second, bus, 6)
                    self.assertGreater(row["cpu_s_per_gb"], 0)
        self.assertEqual(self.keys(address), [])

    def test_pairs_are_pings(self):
        _, address = self.coordinator(3)
        document = self.document_of(self.all(address, 3, "all-pairs", "--json", *QUICK))
        self.assertIn("half of a round trip", document["time"])
        self.assertEqual([(row["pair"], row["count"]) for row in document["rows"]],
                         [(f"{a}->{b}", 5) for a in range(3) for b in range(3) if a != b
                          for _ in range(2)])

    def test_patterns_of_two(self):
        _, address = self.coordinator(2)
        for pattern, flags, count in (("bidir", (), 5), ("keyed", ("--keys=40", "--threads=2", "--batch=1"), 200),
                                      ("steps", ("--inflight=1",), 5)):
            with self.subTest(pattern):
                document = self.document_of(self.all(address, 2, pattern, "--json", *flags, *QUICK))
                self.assertEqual([(row["bytes"], row["count"]) for row in document["rows"]],
                                 [(8, count), (524288, count)])
        self.assertEqual(self.keys(address), [])

    def test_barriers_of_some_nodes(self):
        _, address = self.coordinator(4)
        self.worker(address, 2, 4)
        processes = [self.bench(address, node, 4, "barrier", "--json", "--iters=20", "--node-list=0,1,3")
                     for node in (0, 1, 3)]
        for process in processes:
            self.assertEqual(process.wait(timeout_s=60), 0, process.err)
        self.assertEqual([process.out for process in processes[1:]], ["", ""])
        document = json.loads(processes[0].out)
        self.assertRegex(document["time"], "first node's clock.*have passed")
        [row] = document["rows"]
        self.assertEqual([row["mode"], row["nodes"], row["count"], row["wrong_bytes"], row["path"],
                          row["floor"]],
                         ["barrier", 3, 20, 0, "control stream", "empty round"])
        self.assertGreater(row["cpu_s_per_op"], 0)
        self.assertEqual(self.keys(address), [])

    def test_without_a_shared_host(self):
        """Only TCP between them, separate folders for shared files, and clocks that
        are a day apart where the kernel lets us have that."""
        elsewhere = ("unshare", "--user", "--map-root-user", "--time", "--monotonic", "100000")
        try:
            can = subprocess.run([*elsewhere, "true"], capture_output=True).returncode == 0
        except FileNotFoundError:
            can = False
        _, address = self.coordinator(2)
        for pattern, paths in (("ring", ["eager", "tcp"]), ("all-pairs", ["eager", "tcp"] * 2)):
            with self.subTest(pattern), tempfile.TemporaryDirectory() as folder:
                processes = []
                for node in range(2):
                    own = pathlib.Path(folder) / str(node)
                    own.mkdir()
                    before = [*elsewhere, harness.FERRY] if can and node == 1 else [harness.FERRY]
                    process = harness.Process(
                        [*before[1:], "bench", pattern, "--json", "--transport=tcp", *QUICK,
                         f"--coordinator={address}", f"--node-id={node}"],
                        harness.environment(TMPDIR=str(own)), program=before[0])
                    self.addCleanup(process.kill)
                    processes.append(process)
                rows = self.document_of(processes)["rows"]
                self.assertEqual([row["path"] for row in rows], paths)
                for row in rows:
                    self.assertLess(row["p99_9_s"], 60)

    def test_by_the_environment(self):
        """The launcher assigns the ranks, and the first node hosts the coordinator."""
        out = self.succeed("run", "--nproc=3", "--no-prefix", "--", harness.FERRY, "bench", "ring",
                           "--join", "--json", *QUICK, timeout_s=60).decode()
        self.assertEqual([row["nodes"] for row in json.loads(out)["rows"]], [3, 3])

    def test_a_table_and_files_at_the_first(self):
        _, address = self.coordinator(2)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "bench.html"
            first = self.bench(address, 0, 2, "bidir", *QUICK, f"--html={path}", "--min-gbps=1e6")
            second = self.bench(address, 1, 2, "bidir", *QUICK)
            self.assertEqual(second.wait(), 0, second.err)
            self.assertEqual(second.out, "ferry bench bidir: node 1 is through; node 0 has the rows\n")
            # Its gate counts.
            self.assertEqual(first.wait(), 1)
            self.assertIn("2 of 2 rows miss --min-gbps", first.err)
            self.assertIn("\nevery byte was verified\n", first.out)
            self.assertIn("nodes 0,1 of the job at", path.read_text())


class Others(JobBench):
    """The job belongs to others, too."""

    def test_two_benches_in_one_job(self):
        _, address = self.coordinator(4)
        self.succeed("kv", "set", "mine", "here", f"--coordinator={address}")
        quick = ("ring", "--json", *QUICK)
        left = [self.bench(address, node, 4, *quick, "--node-list=0,2") for node in (0, 2)]
        right = [self.bench(address, node, 4, *quick, "--node-list=1,3") for node in (1, 3)]
        for processes, nodes in ((left, "0,2"), (right, "1,3")):
            document = self.document_of(processes)
            self.assertIn(f"nodes {nodes} of the job", document["subject"])
            self.assertEqual([row["nodes"] for row in document["rows"]], [2, 2])
        self.assertEqual(self.keys(address), [])
        self.assertIn("mine", self.succeed("kv", "ls", f"--coordinator={address}").decode())

    def test_a_node_with_another_program(self):
        _, address = self.coordinator(3)
        self.worker(address, 1, 3)
        processes = [self.bench(address, node, 3, "ring", "--timeout=2s", *QUICK,
                                "--connect-timeout=30s") for node in (0, 2)]
        for process in processes:
            self.assertRegex(self.error_of(process),
                             "bench: node 1 did not come to the bench of nodes 0-2 within 2s: .*--node-list")
        # It was not notified of anything.
        status = self.succeed("status", f"--coordinator={address}").decode()
        self.assertRegex(status, r"(?m)^ *1 +joined ")
        self.assertEqual(self.keys(address), [])

    def test_a_node_that_never_joins(self):
        _, address = self.coordinator(3)
        processes = [self.bench(address, node, 3, "ring", "--timeout=2s", *QUICK)
                     for node in (0, 1)]
        for process in processes:
            self.assertRegex(self.error_of(process), "missing tasks?: .*2")

    def kill_one(self, *flags):
        """One of three, in the middle; the errors of the others."""
        _, address = self.coordinator(3, "--heartbeat-timeout=2s")
        processes = self.all(address, 3, "ring", "--sizes=8", "--iters=1000000", "--timeout=20s",
                             "--mode=handoff", *flags)
        # The rounds have begun when all have reported an empty one.
        self.eventually(lambda: re.search("measuring part [2-9]", processes[0].err)
                        or processes[0].pump(0.1))
        processes[2].signal(signal.SIGKILL)
        return address, [self.error_of(process, 60) for process in processes[:2]]

    def test_a_node_that_is_killed(self):
        for error in self.kill_one()[1]:
            self.assertRegex(error, "node 2 |task 2 |task:2|tasks? 2|2$")

    def test_a_recoverable_node_that_is_killed_leaves_the_job_alone(self):
        address, errors = self.kill_one("--recoverable")
        for error in errors:
            self.assertRegex(error, "node 2")
        self.assertEqual(self.keys(address), [])

    def test_a_node_that_hangs(self):
        """The others are not notified that it hangs; they notice that it does not answer."""
        _, address = self.coordinator(2)
        processes = self.all(address, 2, "ring", "--sizes=8", "--iters=1000000", "--mode=handoff",
                             "--timeout=3s", "--connect-timeout=30s")
        self.eventually(lambda: re.search("measuring part [2-9]", processes[0].err)
                        or processes[0].pump(0.1))
        processes[1].signal(signal.SIGSTOP)
        self.addCleanup(processes[1].signal, signal.SIGCONT)
        self.assertRegex(self.error_of(processes[0]), "bench: node 1 has sent no result of the bench within 3s")

    def test_a_node_that_is_killed_while_others_wait_for_its_keys(self):
        """No call of theirs fails because of that: the store only reports that a key is missing. They
        are notified of it long before their timeout."""
        _, address = self.coordinator(3, "--heartbeat-timeout=2s")
        processes = self.all(address, 3, "barrier", "--iters=1000000", "--timeout=10m",
                             "--recoverable")
        self.eventually(lambda: re.search("measuring part [2-9]", processes[0].err)
                        or processes[0].pump(0.1))

        def has_stopped_where_they_wait():
            processes[2].signal(signal.SIGSTOP)
            came = {tuple(map(int, key.split("/")[-2:]))
                    for key in self.keys(address) if "/came/" in key}
            for step, node in came:
                # With two in sequence one waits for the keys of the two others.
                if node != 2 and step % 3 == 1 - node and (step, 2) not in came:
                    return True
            processes[2].signal(signal.SIGCONT)
            return False

        self.eventually(has_stopped_where_they_wait)
        processes[2].signal(signal.SIGKILL)
        for process in processes[:2]:
            self.assertRegex(self.error_of(process),
                             "node 2 has died while this one was measuring part [2-9]: .*"
                             "start the bench again")
        self.assertEqual(self.keys(address), [])

    def test_a_node_that_is_killed_while_others_have_not_come(self):
        _, address = self.coordinator(3, "--heartbeat-timeout=2s")
        self.worker(address, 2, 3)
        first, second = [self.bench(address, node, 3, "ring", "--timeout=10m", "--recoverable")
                         for node in (0, 1)]
        # It checks for missing nodes when that takes longer than it should.
        self.eventually(lambda: len(self.keys(address)) == 2)
        first.wait_for("waiting for nodes 0-2 to come to the bench")
        second.signal(signal.SIGKILL)
        self.assertRegex(self.error_of(first),
                         "node 1 has died while this one was waiting for nodes 0-2 .*: ")

    def test_a_signal_ends_it_everywhere(self):
        _, address = self.coordinator(2)
        processes = self.all(address, 2, "sendrecv", "--sizes=8", "--iters=1000000")
        self.eventually(lambda: re.search("measuring part [2-9]", processes[0].err)
                        or processes[0].pump(0.1))
        processes[1].signal(signal.SIGTERM)
        self.assertRegex(self.error_of(processes[1]), "stopped by SIGTERM")
        self.assertRegex(self.error_of(processes[0]),
                         "bench: node 1 has ended the bench: stopped by SIGTERM")
        self.assertEqual(self.keys(address), [])


class Mistakes(JobBench):
    def test_flags_that_differ(self):
        for one, other, pattern in (
                (("ring", "--sizes=8,64"), ("ring", "--sizes=8,4K"),
                 "node 0 has --sizes=8,64 and node 1 has --sizes=8,4096"),
                (("ring",), ("bidir",), "node 0 has bench=ring and node 1 has bench=bidir"),
                (("ring", "--transport=tcp"), ("ring",),
                 "node 0 has --transport=tcp and node 1 has --transport=auto")):
            with self.subTest(one):
                _, address = self.coordinator(2)
                processes = [self.bench(address, 0, 2, *one), self.bench(address, 1, 2, *other)]
                for process in processes:
                    self.assertIn(pattern, self.error_of(process))
                self.assertEqual(self.keys(address), [])

    def test_keys_of_an_earlier_incarnation_of_a_node(self):
        """It does not mention the node that is missing."""
        _, address = self.coordinator(2)
        # A ferry.peer.v1.BenchProposal: version 1.0, node 1, incarnation 5, of ferry "0.0".
        left = b"\x0a\x02\x08\x01" b"\x10\x01" b"\x19\x05\0\0\0\0\0\0\0" b"\x22\x030.0"
        self.succeed("kv", "set", "ferry-bench/offers/1", "-", f"--coordinator={address}",
                     stdin=left)
        self.worker(address, 1, 2)
        bench = self.bench(address, 0, 2, "ring", "--timeout=2s", *QUICK, "--connect-timeout=30s")
        self.assertRegex(self.error_of(bench), "node 1 did not come to the bench")

    def test_who_takes_part(self):
        for nodes, flags, pattern in ((1, ("ring",), "2 to 64 nodes, and not of 1"),
                                      (1, ("ring", "--node-list=0,1"), "--node-list: .0,1. is no list"),
                                      (1, ("ring", "--nodes=3"), "of 3 nodes, and not of the 1"),
                                      (1, ("sendrecv",), "of 2 nodes, and not of the 1 of the job"),
                                      (1, ("barrier", "--nodes=2"), "--nodes: .*--node-list")):
            with self.subTest(flags):
                _, address = self.coordinator(nodes)
                self.fail_with(2, pattern, "bench", *flags, f"--coordinator={address}",
                               "--node-id=0", f"--num-nodes={nodes}")

    def test_benches_that_have_a_job_of_their_own(self):
        for bench, why in (("bootstrap", "a job of its own"), ("cold", "never met")):
            self.fail_with(2, f"--coordinator: .*{why}", "bench", bench,
                           "--coordinator=127.0.0.1:1")


if __name__ == "__main__":
    harness.main()

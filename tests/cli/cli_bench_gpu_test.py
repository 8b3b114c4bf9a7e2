#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ferry bench between GPUs, with the fake driver and its NCCL: its figures are meaningless
there, its paths, its baselines and its verification are checked.

    STRICT_CUDA=.../libstrict_cuda.so cli_bench_gpu_test.py FERRY [CASE...]
"""
import json
import os
import re
import tempfile

import harness

LIBRARIES = ("FERRY_CUDA_LIBRARY", "FERRY_NVML_LIBRARY", "FERRY_NCCL_LIBRARY")
SIZES = [8, 64 << 10, 1 << 20]


class BenchOfGpus(harness.Case):
    def setUp(self):
        session = tempfile.TemporaryDirectory()
        self.addCleanup(session.cleanup)
        self.variables = {name: os.environ["STRICT_CUDA"] for name in LIBRARIES}
        self.variables |= {"STRICT_CUDA_SESSION": session.name, "STRICT_CUDA_DEVICES": "2"}

    def bench(self, *arguments, **variables):
        document = json.loads(self.succeed(
            "bench", "sendrecv", "--sizes=8,64K,1M", "--iters=4", "--inflight=1",
            *([] if any("--transport" in each for each in arguments) else ["--transport=auto"]),
            *arguments, "--json", timeout_s=100, **self.variables, **variables))
        for row in document["rows"]:
            self.assertEqual((row["count"], row["wrong_bytes"]), (4, 0))
        return document

    def rows(self, *arguments):
        rows = self.bench(*arguments)["rows"]
        return [(row["mode"], row["bytes"], row["path"], row["floor"]) for row in rows]

    def test_on_one_gpu_it_is_a_view_or_a_copy(self):
        self.assertEqual(
            self.rows("--devices=gpu:0,gpu:0"),
            [("handoff", size, "cuda_ipc, view", "spin") for size in SIZES] +
            [("into", size, "cuda_ipc, copy", "cuMemcpyDtoD") for size in SIZES])

    def test_between_two_gpus_the_baseline_is_a_copy(self):
        document = self.bench("--devices=gpu:0,gpu:1", "--mode=into")
        self.assertEqual([(row["path"], row["floor"]) for row in document["rows"]],
                         [("cuda_ipc, copy", "cuMemcpyPeer")] * len(SIZES))
        self.assertTrue(all(row["floor_s"] > 0 for row in document["rows"]), document["rows"])
        self.assertIn("(gpu:0, gpu:1)", document["subject"])
        self.assertRegex(document["rows"][-1]["path_reason"], r"; cuda_ipc \(.*: a copy, since it is another GPU")

    def test_gpus_without_peer_access_have_no_such_baseline(self):
        """A process may not use a GPU in exclusive mode of another one: the bench continues, and reports it."""
        for variables, why in (({"STRICT_CUDA_PEERS": "none"}, "the machine has no peer access between gpu:0 and gpu:1"),
                               ({"STRICT_CUDA_ATTRIBUTES": "20=3"}, "gpu:1: .*")):
            with self.subTest(**variables):
                status, out, err = self.run_ferry("bench", "sendrecv", "--devices=gpu:0,gpu:1", "--sizes=64K",
                                 "--iters=3", "--mode=into", "--inflight=1", "--transport=shm",
                                 "--json",
                                 **self.variables, **variables)
                self.assertEqual(status, 0, err)
                rows = json.loads(out)["rows"]
                self.assertEqual([(row["path"], row["floor"]) for row in rows], [("shm, staged", None)])
                self.assertEqual(len(re.findall(f"no floor of copies between the GPUs: {why}\n",
                                                err)), 1, err)

    def test_by_nccl(self):
        """Beside the same sends and receives without Ferry, on the communicator of the keyed ones."""
        rows = self.bench("--devices=gpu:0,gpu:1", "--transport=nccl")["rows"]
        self.assertEqual([(row["mode"], row["path"], row["floor"]) for row in rows],
                         [(mode, "nccl", "raw nccl") for mode in ("handoff", "into") for _ in SIZES])
        self.assertTrue(all(row["floor_s"] > 0 for row in rows), rows)

    def test_many_by_nccl(self):
        """More than one group of NCCL's has."""
        document = json.loads(self.succeed(
            "bench", "sendrecv", "--iters=3", "--inflight=70", "--mode=into",
            "--devices=gpu:0,gpu:1", "--transport=nccl", "--dtype=complex128", "--sizes=16,64K", "--json",
            timeout_s=100, **self.variables))
        self.assertEqual([(row["inflight"], row["path"], row["floor"], row["wrong_bytes"]) for row in document["rows"]],
                         [(1, "nccl", "raw nccl", 0)] * 2 + [(70, "nccl", "raw nccl stream", 0)] * 2)

    def test_raw_nccl_is_made_on_no_other_communicator(self):
        """Each process initialises one, that of keyed transfers; where that is not used there is none."""
        flags = ("bench", "sendrecv", "--devices=gpu:0,gpu:1", "--sizes=64K", "--iters=3",
                 "--inflight=1", "--mode=into")
        self.succeed(*flags, "--transport=nccl", **self.variables,
                     STRICT_CUDA_FAIL="ncclCommInitRankConfig:3:1")
        self.succeed(*flags, "--transport=cuda_ipc", **self.variables,
                     STRICT_CUDA_FAIL="ncclCommInitRankConfig:3")

    def test_raw_nccl_that_fails_is_named(self):
        # One per round: the keyed ones have 13, preceded by a byte.
        # The other process fails as a consequence, and may be noticed first.
        self.fail_with(1, "process . exited .*: nccl(Send|Recv) failed", "bench", "sendrecv", "--devices=gpu:0,gpu:1",
                       "--sizes=64K", "--iters=3", "--inflight=1", "--mode=into", "--transport=nccl",
                       **self.variables, STRICT_CUDA_FAIL="ncclSend:5:14")

    def test_a_node_of_a_job_has_raw_nccl_too(self):
        rows, _ = self.two_nodes([{}, {}])
        self.assertEqual([(row["path"], row["floor"], row["wrong_bytes"]) for row in rows], [("nccl", "raw nccl", 0)])

    def test_a_node_that_dies_in_raw_nccl_is_named(self):
        """The other one waits on its GPU's thread for data that never arrives, until it is notified."""
        _, error = self.two_nodes([{}, {"STRICT_CUDA_FAIL": "ncclSend:-2:14"}])
        self.assertRegex(error, "node 1 (has died|has failed|left|was)")

    def two_nodes(self, variables):
        """In an existing job: the rows of the first one, and its output."""
        _, address = self.coordinator(2, "--recoverable", "--heartbeat-timeout=2s")
        processes = [self.start("bench", "sendrecv", f"--coordinator={address}", "--num-nodes=2", f"--node-id={node}",
                                "--devices=gpu:0,gpu:1", "--transport=nccl", "--sizes=64K", "--iters=3", "--inflight=1",
                                "--mode=into", "--json", **self.variables, **variables[node])
                     for node in (0, 1)]
        status = processes[0].wait(100)
        rows = json.loads(processes[0].out)["rows"] if status == 0 else []
        return rows, processes[0].err

    def test_all_paths_between_two_gpus(self):
        rows = self.bench("--devices=gpu:0,gpu:1", "--transport=all")["rows"]
        self.assertEqual([(row["mode"], row["transport"], row["path"]) for row in rows[2::3]],
                         [("handoff", None, "cuda_ipc, copy"), ("into", None, "cuda_ipc, copy")] +
                         [(mode, way, path) for way, path in
                          (("nccl", "nccl"), ("shm", "shm, staged"), ("tcp", "tcp, staged"))
                          for mode in ("handoff", "into")])
        self.assertEqual([row["floor"] for row in rows if row["transport"] == "nccl"], ["raw nccl"] * 6)

    def test_between_a_host_and_a_gpu(self):
        """There and back, either of which may be first."""
        for devices in ("host:0,gpu:1", "gpu:1,host:0"):
            rows = self.rows(f"--devices={devices}", "--mode=into")
            self.assertEqual([(size, floor) for _, size, _, floor in rows],
                             [(size, "cuMemcpy, pinned") for size in SIZES])

    def pattern(self, bench, *arguments):
        """Its rows: mode, tensors at a time, pair, path, floor."""
        document = json.loads(self.succeed("bench", bench, "--sizes=64K", "--iters=3", *arguments,
                                           "--json", timeout_s=100, **self.variables))
        for row in document["rows"]:
            self.assertEqual(row["wrong_bytes"], 0)
            self.assertTrue(row["path_reason"], row)
        return document["subject"], [(row["mode"], row["inflight"], row["pair"], row["path"], row["floor"])
                                     for row in document["rows"]]

    def test_patterns_of_one_gpu(self):
        """All processes share it."""
        for bench, *flags in (("bidir",), ("ring", "--nodes=3"), ("fan-in", "--nodes=3"),
                              ("fan-out", "--nodes=3")):
            with self.subTest(bench):
                subject, rows = self.pattern(bench, "--devices=gpu:0", *flags)
                self.assertIn("(gpu:0, gpu:0", subject)
                self.assertEqual(rows, [("handoff", 1, None, "cuda_ipc, view", "spin"),
                                        ("into", 1, None, "cuda_ipc, copy", "spin + cuMemcpyDtoD")])
        _, rows = self.pattern("keyed", "--keys=20", "--threads=3", "--batch=1", "--devices=gpu:0")
        self.assertEqual(rows, [("handoff", 20, None, "cuda_ipc, view", None),
                                ("into", 20, None, "cuda_ipc, copy", None)])

    def test_a_step_of_one_gpu_has_no_views(self):
        """It would not end while they are looked at."""
        _, rows = self.pattern("steps", "--inflight=3", "--batch=1", "--devices=gpu:0")
        self.assertEqual(rows, [("into", 1, None, "cuda_ipc, copy", "spin + cuMemcpyDtoD"),
                                ("into", 3, None, "cuda_ipc, copy", "spin + cuMemcpyDtoD x3")])
        self.fail_with(2, "--mode=handoff: .* one GPU", "bench", "steps", "--devices=gpu:1",
                       "--mode=handoff")
        _, rows = self.pattern("steps", "--inflight=1", "--devices=gpu:0,gpu:1", "--mode=handoff")
        self.assertEqual(rows, [("handoff", 1, None, "cuda_ipc, copy", None)])

    def test_patterns_of_two_by_nccl(self):
        """Beside as many raw sends and receives at once."""
        two = ("--devices=gpu:0,gpu:1", "--transport=nccl")
        _, rows = self.pattern("bidir", *two, "--inflight=2")
        self.assertEqual(rows, [(mode, inflight, None, "nccl", floor) for mode in ("handoff", "into")
                                for inflight, floor in ((1, "spin + raw nccl"), (2, None))])
        # More than a group of NCCL's has.
        _, rows = self.pattern("steps", *two, "--inflight=40", "--mode=into")
        self.assertEqual(rows, [("into", 1, None, "nccl", "spin + raw nccl"),
                                # One at a time, and in batches.
                                ("into", 40, None, "nccl", "spin + raw nccl x40"),
                                ("into", 40, None, "nccl", "spin + raw nccl x40")])

    def test_patterns_of_gpus_and_hosts(self):
        subject, rows = self.pattern("all-pairs", "--nodes=3", "--devices=host:0,gpu:0,gpu:1")
        self.assertIn("(host:0, gpu:0, gpu:1)", subject)
        # Copies are measured of the first GPU.
        self.assertEqual({pair: floor for mode, _, pair, _, floor in rows if mode == "into"},
                         {"0->1": "spin + cuMemcpy, pinned", "1->0": "spin + cuMemcpy, pinned",
                          "0->2": None, "2->0": None, "1->2": None, "2->1": None})
        self.assertEqual({path for *_, pair, path, _ in rows if pair in ("1->2", "2->1")},
                         {"cuda_ipc, copy"})
        self.assertEqual(len(rows), 2 * 6)
        _, rows = self.pattern("ring", "--nodes=4", "--devices=gpu:0,gpu:1", "--transport=nccl",
                               "--mode=into", "--inflight=2")
        self.assertEqual([row[3:] for row in rows], [("nccl", None)] * 2)

    def test_the_first_time(self):
        """Exported memory is released before the step ends; the first lines are about hosts."""
        for devices, way, copy in (("gpu:0", "cuda_ipc, view", "cuda_ipc, copy"),
                                   ("gpu:0,gpu:1", "cuda_ipc, copy", "cuda_ipc, copy")):
            document = json.loads(self.succeed("bench", "cold", "--sizes=1M", "--iters=2", "--dtype=half",
                                               f"--devices={devices}", "--json", **self.variables))
            self.assertEqual([(row["mode"], row["path"], row["wrong_bytes"]) for row in document["rows"]],
                             [("handshake", "inline", 0), ("match", "eager", 0),
                              ("registration", way, 0), ("handoff", way, 0), ("copy", copy, 0),
                              ("notify", "", 0)])

    def test_a_call_that_fails_is_named(self):
        self.fail_with(1, "process . exited .*: gpu:0: cuMemcpyHtoDAsync failed with code 719",
                       "bench", "sendrecv", "--devices=gpu:0,gpu:0", "--sizes=64K", "--iters=2",
                       **self.variables, STRICT_CUDA_FAIL="cuMemcpyHtoDAsync_v2:719")

    def test_the_first_cause_is_named_and_not_its_consequences(self):
        """The other process is only notified that the step is over."""
        self.fail_with(1, "process 0 exited .*: gpu:0: cuEventRecord failed with code 719",
                       "bench", "sendrecv", "--devices=gpu:0,host:0", "--sizes=1M", "--iters=2",
                       **self.variables, STRICT_CUDA_FAIL="cuEventRecord:719:3")

    def test_the_reason_for_having_no_gpu_is_printed(self):
        self.fail_with(1, r'node 1 has no device "gpu:0"; it has host:0: cuInit failed with code '
                          r'100 .*: CUDA_VISIBLE_DEVICES is set and empty', "bench", "sendrecv",
                       "--devices=host:0,gpu:0", **self.variables, CUDA_VISIBLE_DEVICES="")

    def test_available_gpus_are_named(self):
        self.fail_with(1, r'node 1 has no device "gpu:7"; it has host:0, gpu:0, gpu:1', "bench",
                       "sendrecv", "--devices=gpu:0,gpu:7", **self.variables)

    def test_disabled_features_are_reported(self):
        """Limits for which 0 means none."""
        def last(*flags):
            return self.bench("--devices=gpu:0,gpu:1", "--mode=into", *flags)["rows"][-1]
        self.assertIn("not nccl: it is switched off (--nccl-memory-bytes=0",
                      last("--nccl-memory-bytes=0")["path_reason"])
        self.assertNotIn("cuda_ipc", last("--gpu-ipc-cache-bytes=0")["path"])
        self.assertEqual("cuda_ipc, copy", last("--gpu-ipc-min-bytes=0",
                                                "--gpu-staging-budget-bytes=0")["path"])
        for flag in ("--gpu-arena-budget-bytes", "--pinned-budget-bytes"):
            self.fail_with(2, f'{flag}: "0" is not a whole number from 1', "bench", "sendrecv",
                           f"{flag}=0")

    def test_invalid_flags(self):
        for devices in ("gpu:", "gpu:0,tpu:1", "gpu:-1,gpu:0", "gpu:0,gpu:1,gpu:2"):
            self.fail_with(2, "--devices: (.* is no list of devices|3 devices of 2 processes)", "bench",
                           "sendrecv", f"--devices={devices}")
        self.fail_with(2, "--mode=read is of hosts", "bench", "sendrecv",
                       "--devices=gpu:0,gpu:0", "--mode=read")


if __name__ == "__main__":
    harness.main()

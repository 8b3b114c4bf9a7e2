#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPU programs as users run them, with the fake driver and its NCCL.

    FERRY_EXAMPLE=.../nccl_allreduce STRICT_CUDA=.../libstrict_cuda.so cli_gpu_test.py FERRY [CASE...]
"""
import os
import re
import signal
import tempfile
import time

import harness

LIBRARIES = ("FERRY_CUDA_LIBRARY", "FERRY_NVML_LIBRARY", "FERRY_NCCL_LIBRARY")


class GpuCase(harness.Case):
    def setUp(self):
        self.variables = {name: os.environ["STRICT_CUDA"] for name in LIBRARIES}
        session = tempfile.TemporaryDirectory()
        self.addCleanup(session.cleanup)
        self.variables["STRICT_CUDA_SESSION"] = session.name


class AllPairs(GpuCase):
    def run_all(self, nodes, count, seed, **variables):
        out = self.succeed("run", f"--nproc={nodes}", "--gpus-per-proc=1", "--",
                           os.environ["ALL_PAIRS"], str(count), str(seed), **self.variables,
                           STRICT_CUDA_DEVICES=str(nodes), **variables)
        self.assertEqual(out.count(f"all of {count * (nodes - 1)} have come".encode()), nodes, out)

    def test_any_order_from_any_thread(self):
        """The fake NCCL ends processes whose three devices wait for each other in a cycle."""
        for seed in range(3):
            self.run_all(4, 18, seed)

    def test_communicators_of_two_devices_fill_the_memory(self):
        self.run_all(3, 12, 7)


class Topo(GpuCase):
    def paths(self, visible, *flags):
        """The paths of tensors of a job, a node for each of `visible`, where no GPU is."""
        _, address = self.coordinator(len(visible))
        for node, gpus in enumerate(visible):
            self.worker(address, node, len(visible), *flags, **self.variables,
                        STRICT_CUDA_DEVICES="4", CUDA_VISIBLE_DEVICES=gpus)
        last = rf"{len(visible) - 1}>{len(visible) - 2}"
        # A node joins a moment before it publishes where its tensors can be had.
        return self.eventually(lambda: re.search(
            rf"(?s)paths of tensors:\n.*{last}.*", self.run_ferry(
                "topo", f"--coordinator={address}",
                FERRY_CUDA_LIBRARY="/nowhere/libcuda.so.1")[1].decode())).group(0)

    def test_each_pair_of_gpus_has_its_path_and_its_reasons(self):
        text = self.paths(["0,1", "2", ""])
        self.assertRegex(text, r"\n  0>1 0>2 1>0 1>2 2>0 2>1 +shm \(")
        self.assertRegex(text, r"\n  0/gpu:0>1/gpu:0 0/gpu:1>1/gpu:0 1/gpu:0>0/gpu:0 "
                               r"1/gpu:0>0/gpu:1 +not shm \(.*, staged through host memory\); "
                               r"not tcp \(.*, staged .*\); cuda_ipc \(.*\); "
                               r"not nccl \(")
        self.assertRegex(text, r"\n  0/gpu:0>0/gpu:1 0/gpu:1>0/gpu:0 +local, .* \(SYS|NODE\)")

    def test_the_reason_why_gpus_cannot_map_each_other_is_printed(self):
        text = self.paths(["0", "1"], "--transport=tcp")
        self.assertRegex(text, r"\n  0/gpu:0>1/gpu:0 1/gpu:0>0/gpu:0 +not shm: .*; (not )?tcp "
                               r"\(.*, staged through host memory\); not cuda_ipc: descriptors "
                               r"cannot be passed between them: the sender has no Unix socket; "
                               r"(not )?nccl \(")


class AllReduce(GpuCase):
    def command(self, count):
        return ("run", f"--nproc={count}", "--gpus-per-proc=1", "--", os.environ["FERRY_EXAMPLE"])

    def test_ids_go_through_the_store(self):
        out = self.succeed(*self.command(2), **self.variables)
        self.assertEqual(sorted(out.splitlines()),
                         [b"[0] the sum over 2 GPUs is 3", b"[1] the sum over 2 GPUs is 3"])

    def test_four_ranks(self):
        out = self.succeed(*self.command(4), **self.variables, STRICT_CUDA_DEVICES="4")
        self.assertEqual(out.count(b"the sum over 4 GPUs is 10"), 4)

    def test_communicators_are_made_again_when_one_rank_has_released_them(self):
        # With five ranks, the last ones have ids of their own.
        for nodes in (2, 5):
            out = self.succeed("run", f"--nproc={nodes}", "--gpus-per-proc=1", "--",
                               os.environ["COMMUNICATORS"], **self.variables,
                               STRICT_CUDA_DEVICES=str(nodes),
                               STRICT_CUDA_NCCL_MEMORY=str(32 << 20))
            self.assertEqual(out.count(b"made and made again"), nodes, out)

    def test_overlapping_communicators_are_requested_in_any_order(self):
        """The fake NCCL ends processes whose devices wait for each other's first exchanges."""
        out = self.succeed("run", "--nproc=3", "--gpus-per-proc=1", "--",
                           os.environ["COMMUNICATORS"], "overlap", **self.variables,
                           STRICT_CUDA_DEVICES="3")
        self.assertEqual(out.count(b"all made, in any order"), 3, out)

    def test_a_node_leaves_although_nccl_hangs(self):
        begun = time.monotonic()
        status, out, error = self.run_ferry("run", "--nproc=1", "--gpus-per-proc=1", "--",
                                            os.environ["COMMUNICATORS"], "leave", **self.variables,
                                            STRICT_CUDA_FAIL="ncclCommDestroy:-1,ncclCommAbort:-1")
        self.assertEqual((status, out), (0, b"[0] made and left\n"), error)
        self.assertRegex(error, "ferry: node 0 leaves although a communicator of its program's has "
                                "not ended within 300ms")
        self.assertLess(time.monotonic() - begun, 15)

    def lost(self, address, node, *arguments):
        """A node of two that runs the program."""
        process = harness.Process(arguments, harness.environment(
            **self.variables, FERRY_COORDINATOR=address, FERRY_NODE_ID=str(node),
            FERRY_NUM_NODES="2", CUDA_VISIBLE_DEVICES=str(node)), os.environ["COMMUNICATORS"])
        self.addCleanup(process.kill)
        return process

    def test_a_wait_for_a_killed_rank_fails_with_its_name(self):
        _, address = self.coordinator(2, "--heartbeat-timeout=2s", "--recoverable")
        waits, dies = [self.lost(address, node, "wait") for node in (0, 1)]
        self.assertEqual(dies.wait(), -signal.SIGKILL, dies.err)
        self.assertEqual(waits.wait(), 0, waits.out + waits.err)
        self.assertRegex(waits.out, r"rank 1 \(device \d+\) .* is gone: node 1 has died: ")

    def test_a_node_that_comes_back_has_cached_communicators(self):
        _, address = self.coordinator(2, "--heartbeat-timeout=2s", "--recoverable")
        stays = self.lost(address, 0, "live")
        for life in ("1", "2", "3"):
            comes = self.lost(address, 1, "live", life)
            for node in (comes, stays):
                node.wait_for(f"life {life}\n")
            comes.kill()
        self.assertEqual(stays.wait(), 0, stays.out + stays.err)
        self.assertIn("three lives", stays.out)

    def test_without_nccl_the_searched_folders_are_named(self):
        self.variables["FERRY_NCCL_LIBRARY"] = "/nowhere/libnccl.so.2"
        status, _, error = self.run_ferry(*self.command(2), **self.variables)
        self.assertNotEqual(status, 0)
        self.assertRegex(error, "UNAVAILABLE: no NCCL: .*/nowhere/libnccl.so.2")
        status, _, error = self.run_ferry("topo", **self.variables)
        self.assertEqual(status, 0, error)
        self.assertRegex(error, "^ferry topo: no NCCL: cannot load /nowhere/libnccl.so.2")


class SharedGpu(harness.Case):
    """Two nodes on the machine's only GPU."""

    def setUp(self):
        session = tempfile.TemporaryDirectory()
        self.addCleanup(session.cleanup)
        self.variables = {name: os.environ["STRICT_CUDA"] for name in LIBRARIES}
        self.variables.update(STRICT_CUDA_SESSION=session.name, STRICT_CUDA_DEVICES="1")
        self.address = self.coordinator(2)[1]

    def both(self, *flags):
        return [self.worker(self.address, node, 2, *flags, **self.variables) for node in (0, 1)]

    def test_it_is_refused_by_default(self):
        for worker in self.both():
            self.assertNotEqual(worker.wait(), 0)
            self.assertRegex(worker.err, "both report GPU .* share them .--share-gpus")

    def test_it_is_accepted_if_both_ask_for_it(self):
        for worker in self.both("--share-gpus"):
            worker.wait_for("joined at")


if __name__ == "__main__":
    harness.main()

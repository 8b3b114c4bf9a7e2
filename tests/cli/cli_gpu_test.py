#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPU programs as users run them, on the strict double of the driver and of NCCL.

    FERRY_EXAMPLE=.../nccl_allreduce STRICT_CUDA=.../libstrict_cuda.so cli_gpu_test.py FERRY [CASE...]
"""
import os
import tempfile

import harness

LIBRARIES = ("FERRY_CUDA_LIBRARY", "FERRY_NVML_LIBRARY", "FERRY_NCCL_LIBRARY")


class AllReduce(harness.Case):
    def setUp(self):
        self.variables = {name: os.environ["STRICT_CUDA"] for name in LIBRARIES}
        session = tempfile.TemporaryDirectory()
        self.addCleanup(session.cleanup)
        self.variables["STRICT_CUDA_SESSION"] = session.name

    def command(self, count):
        return ("run", f"--nproc={count}", "--gpus-per-proc=1", "--", os.environ["FERRY_EXAMPLE"])

    def test_ids_go_through_the_store(self):
        out = self.succeed(*self.command(2), **self.variables)
        self.assertEqual(sorted(out.splitlines()),
                         [b"[0] the sum over 2 GPUs is 3", b"[1] the sum over 2 GPUs is 3"])

    def test_four_ranks(self):
        out = self.succeed(*self.command(4), **self.variables, STRICT_CUDA_DEVICES="4")
        self.assertEqual(out.count(b"the sum over 4 GPUs is 10"), 4)

    def test_without_nccl_the_place_is_named(self):
        self.variables["FERRY_NCCL_LIBRARY"] = "/nowhere/libnccl.so.2"
        status, _, error = self.run_ferry(*self.command(2), **self.variables)
        self.assertNotEqual(status, 0)
        self.assertRegex(error, "UNAVAILABLE: no NCCL: .*/nowhere/libnccl.so.2")


if __name__ == "__main__":
    harness.main()

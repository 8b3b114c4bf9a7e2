#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPU programs as users run them, on the strict double of the driver and of NCCL.

    FERRY_EXAMPLE=.../nccl_allreduce STRICT_CUDA=.../libstrict_cuda.so cli_gpu_test.py FERRY [CASE...]
"""
import os

import harness

LIBRARIES = ("FERRY_CUDA_LIBRARY", "FERRY_NVML_LIBRARY", "FERRY_NCCL_LIBRARY")


class AllReduce(harness.Case):
    def setUp(self):
        self.variables = {name: os.environ["STRICT_CUDA"] for name in LIBRARIES}
        self.variables["STRICT_CUDA_SESSION"] = f"cli_gpu_{os.getpid()}_{self.id()[-20:]}"

    def ranks(self, count, **variables):
        for name, value in {**self.variables, **variables}.items():
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name, None)
        return ("run", f"--nproc={count}", "--gpus-per-proc=1", "--", os.environ["FERRY_EXAMPLE"])

    def test_ids_go_through_the_store(self):
        out = self.succeed(*self.ranks(2))
        self.assertEqual(sorted(out.splitlines()),
                         [b"[0] the sum over 2 GPUs is 3", b"[1] the sum over 2 GPUs is 3"])

    def test_four_ranks(self):
        out = self.succeed(*self.ranks(4, STRICT_CUDA_DEVICES="4"))
        self.assertEqual(out.count(b"the sum over 4 GPUs is 10"), 4)

    def test_without_nccl_the_places_are_named(self):
        self.variables["FERRY_NCCL_LIBRARY"] = "/nowhere/libnccl.so.2"
        run = self.start(*self.ranks(2))
        out, error = run.communicate(timeout=60)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn(b"no NCCL: ", out + error)
        self.assertIn(b"/nowhere/libnccl.so.2", out + error)


if __name__ == "__main__":
    harness.main()

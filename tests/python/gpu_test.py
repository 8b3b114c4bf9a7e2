#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors in the memory of GPUs from Python, between two processes with the emulated driver.

  gpu_test.py FERRY PACKAGE_FOLDER DRIVER_LIBRARY
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

FERRY, PACKAGE, DRIVER = sys.argv[1:4]
JOB = pathlib.Path(__file__).resolve().with_name("gpu_job.py")


class GpuTest(unittest.TestCase):
    def run_job(self, **environment):
        with tempfile.TemporaryDirectory() as session:
            done = subprocess.run(
                [FERRY, "run", "--nproc=2", "--gpus-per-proc=1", "--", sys.executable, str(JOB)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
                check=False,
                env={**os.environ, "PYTHONPATH": PACKAGE, "FERRY_CUDA_LIBRARY": DRIVER, "FERRY_NVML_LIBRARY": DRIVER,
                     "FERRY_NCCL_LIBRARY": DRIVER, "STRICT_CUDA_SESSION": session, **environment})
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout.count("the job is done"), 2, done.stdout)

    def test_exchange_and_collectives(self):
        self.run_job()

    def test_exchange_with_one_hardware_queue(self):
        self.run_job(STRICT_CUDA_CONNECTIONS="1")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

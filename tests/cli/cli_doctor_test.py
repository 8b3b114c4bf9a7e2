#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ferry doctor on this machine, and with the fake driver and its NCCL.

    STRICT_CUDA=.../libstrict_cuda.so cli_doctor_test.py FERRY [CASE...]
"""
import json
import os
import pathlib
import signal
import tempfile

import harness

LIBRARIES = ("FERRY_CUDA_LIBRARY", "FERRY_NVML_LIBRARY", "FERRY_NCCL_LIBRARY")
# Checks of the machine that runs this test may have any result.
HOST = ("kernel", "boot id", "pid namespace", "cores", "memory", "threads",
        "host arena", "/dev/shm", "memlock",
        "open files", "grpc", "ip families", "addresses", "interfaces", "rdma")
# Variables that this machine may have set, and that are tested here.
os.environ.pop("NCCL_COMM_ID", None)


class Doctor(harness.Case):
    def diagnose(self, *flags, **variables):
        """The findings other than the host's, by name; the exit status matches them."""
        status, out, error = self.run_ferry("doctor", "--json", *flags, **variables)
        report = json.loads(out)
        found = report["findings"]
        counts = {what: sum(each["status"] == what for each in found)
                  for what in ("ok", "warning", "wrong", "skipped")}
        self.assertEqual([report[name] for name in ("ok", "warnings", "wrong", "skipped")],
                         list(counts.values()))
        self.assertEqual(status, 1 if counts["wrong"] else 0, error)
        for each in found:
            if each["status"] == "wrong":
                self.assertIn(each["name"], error)
            needs_todo = each["status"] in ("warning", "wrong")
            self.assertEqual(each["todo"] != "", needs_todo, each)
        self.assertEqual(tuple(each["name"] for each in found[:len(HOST)]), HOST)
        return {each["name"]: each for each in found[len(HOST):]}

    def expect(self, found, name, status, seen, todo=""):
        self.assertEqual(found[name]["status"], status, found[name])
        self.assertRegex(found[name]["seen"], seen)
        if todo:
            self.assertRegex(found[name]["todo"], todo)

    def helpers_of(self, process):
        """Roles of the processes that a doctor has started, by pid."""
        helpers = {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if parent == process.popen.pid and b"doctor-helper" in words:
                helpers[int(folder.name)] = words[words.index(b"doctor-helper") + 1].decode()
        return helpers


class WithoutGpu(Doctor):
    # Independent of the software installed on the machine that runs this.
    absent = {"FERRY_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}

    def test_each_line_has_a_status_and_a_name(self):
        _, out, _ = self.run_ferry("doctor", **self.absent)
        lines = out.decode().splitlines()
        for line, name in zip(lines, HOST):
            self.assertRegex(line, rf"^(ok|warning|wrong|skipped) +{name} +\S")
        self.assertRegex(lines[-1], r"^\d+ ok, \d+ warnings?, \d+ wrong, \d+ skipped$")
        self.assertEqual(lines[-2], "")

    def test_a_named_library_that_does_not_exist_is_wrong(self):
        found = self.diagnose(**self.absent)
        self.expect(found, "driver", "wrong", "/nowhere/libcuda.so.1", "FERRY_CUDA_LIBRARY")
        self.expect(found, "ipc", "skipped", "no GPU that can be used")
        self.expect(found, "peer access", "skipped", "no GPU that can be used")

    def test_hidden_gpus_are_ok_unless_one_is_required(self):
        variables = {name: os.environ["STRICT_CUDA"] for name in LIBRARIES}
        found = self.diagnose(CUDA_VISIBLE_DEVICES="", **variables)
        self.expect(found, "driver", "skipped", "hides every GPU: cuInit")
        found = self.diagnose("--require-gpu", CUDA_VISIBLE_DEVICES="", **variables)
        self.expect(found, "driver", "wrong", "hides every GPU: cuInit", "--require-gpu")

    def test_a_named_nccl_that_does_not_exist_is_wrong(self):
        found = self.diagnose(**self.absent, FERRY_NCCL_LIBRARY="/nowhere/libnccl.so.2")
        self.expect(found, "nccl", "wrong", "/nowhere/libnccl.so.2", "FERRY_NCCL_LIBRARY")
        self.assertNotIn("nccl id", found)

    def test_the_coordinator_is_contacted(self):
        _, address = self.coordinator(3)
        found = self.diagnose(f"--coordinator={address}", **self.absent)
        self.expect(found, "coordinator", "ok", f"{address} answers after .*, a job of 3 nodes")

    def test_wrong_flags_are_usage(self):
        self.fail_with(2, "--coordinator", "doctor", "--coordinator=nowhere")
        self.fail_with(2, "--timeout", "doctor", "--timeout=0s")


class WithGpus(Doctor):
    def setUp(self):
        session = tempfile.TemporaryDirectory()
        self.addCleanup(session.cleanup)
        self.report = pathlib.Path(session.name) / "violations.log"
        self.variables = {**{name: os.environ["STRICT_CUDA"] for name in LIBRARIES},
                          "STRICT_CUDA_SESSION": session.name}

    def tearDown(self):
        # The fake driver ends a process that violates a rule, and reports it here.
        self.assertFalse(self.report.exists(), self.report)

    def test_a_healthy_machine(self):
        found = self.diagnose(**self.variables)
        self.expect(found, "driver", "ok", "^580.65.06, up to CUDA 13.0, by .*libstrict_cuda.so")
        self.expect(found, "gpus", "ok", "^2 GPUs$")
        self.expect(found, "gpu:1", "ok", "^Strict GPU, sm_90, 4 GiB, ")
        self.expect(found, "peer access", "ok", "^all 2 ordered pairs")
        for gpu in ("gpu:0 ipc", "gpu:1 ipc"):
            self.expect(found, gpu, "ok", "two processes, verified: by descriptor .* by handle ")
        self.expect(found, "nccl", "ok", r"^2.28.9, .*libstrict_cuda.so \(FERRY_NCCL_LIBRARY\)$")
        self.expect(found, "nccl id", "ok", "^made in ")

    def test_the_copies_wait_for_their_event(self):
        # The pattern is enqueued behind many writes, each of which lags: a reader that does not
        # wait gets zeros.
        found = self.diagnose(**self.variables, STRICT_CUDA_DELAY_US="5000")
        self.expect(found, "gpu:0 ipc", "ok", "by descriptor after .* by handle after ")
        self.expect(found, "peer access", "ok", "each with a copy verified")

    def test_one_gpu_of_several(self):
        found = self.diagnose(**self.variables, CUDA_VISIBLE_DEVICES="1")
        self.expect(found, "gpus", "ok", '^1 GPU by CUDA_VISIBLE_DEVICES="1"')
        self.expect(found, "peer access", "skipped", "no two GPUs")
        self.expect(found, "gpu:0 ipc", "ok", "verified")

    def test_pairs_without_access_are_named(self):
        found = self.diagnose(**self.variables, STRICT_CUDA_PEERS="0>1")
        self.expect(found, "peer access", "warning", "1 of 2 .*: gpu:1>gpu:0", "host memory")

    def test_access_that_is_promised_and_refused_is_wrong(self):
        found = self.diagnose(**self.variables, STRICT_CUDA_FAIL="cuCtxEnablePeerAccess:217")
        self.expect(found, "peer access", "wrong", "gpu:0>gpu:1: .*peer access", "ACS")

    def test_handles_may_be_refused(self):
        found = self.diagnose(**self.variables, STRICT_CUDA_FAIL="cuIpcOpenMemHandle_v2:801")
        self.expect(found, "gpu:0 ipc", "warning",
                    "by descriptor: verified; by handle: .*cuIpcOpenMemHandle.*801", "cudaMalloc")

    def test_descriptors_may_be_refused(self):
        fault = "cuMemImportFromShareableHandle:800"
        found = self.diagnose(**self.variables, STRICT_CUDA_FAIL=fault)
        self.expect(found, "gpu:1 ipc", "warning",
                    "by descriptor: gpu:1: cuMemImport.*800.*by handle: verified", "pid namespace")
        found = self.diagnose(**self.variables, STRICT_CUDA_ATTRIBUTES="102=0")
        self.expect(found, "gpu:0", "warning", "cannot be exported as descriptors")
        self.expect(found, "gpu:0 ipc", "warning", "no virtual memory management; by handle: ver")

    def test_both_methods_may_be_refused(self):
        fault = "cuIpcOpenMemHandle_v2:801,cuMemImportFromShareableHandle:801"
        found = self.diagnose(**self.variables, STRICT_CUDA_FAIL=fault)
        self.expect(found, "gpu:0 ipc", "wrong", "cuMemImport.*801.*cuIpcOpenMemHandle.*801")

    def test_events_may_be_refused(self):
        found = self.diagnose(**self.variables, STRICT_CUDA_FAIL="cuIpcGetEventHandle:801:0:9")
        self.expect(found, "gpu:0 ipc", "wrong", "cuIpcGetEventHandle")

    def test_a_gpu_of_another_process(self):
        fault = "cuDevicePrimaryCtxRetain:46:0:99"
        found = self.diagnose(**self.variables, STRICT_CUDA_FAIL=fault)
        for name in ("peer access", "gpu:0 ipc", "gpu:1 ipc"):
            self.expect(found, name, "wrong", "another process has it to itself",
                        "nvidia-smi -c 0")

    def test_exclusive_mode(self):
        found = self.diagnose(**self.variables, STRICT_CUDA_ATTRIBUTES="20=3")
        self.expect(found, "gpu:0", "warning", "Exclusive_Process", "nvidia-smi -i .* -c 0")

    def test_a_driver_that_waits_for_its_fabric(self):
        found = self.diagnose(**self.variables, STRICT_CUDA_FAIL="cuInit:802")
        self.expect(found, "driver", "wrong", "cuInit failed with code 802", "fabricmanager")
        self.expect(found, "ipc", "skipped", "no GPU that can be used")

    def test_an_old_driver(self):
        found = self.diagnose(**self.variables, STRICT_CUDA_DRIVER_VERSION="10020")
        self.expect(found, "driver", "wrong", "CUDA 10.2, at least 11.4", "newer driver")

    def test_absent_nvml_leaves_links_unknown(self):
        variables = {**self.variables, "FERRY_NVML_LIBRARY": "/nowhere/nvml"}
        found = self.diagnose(**variables)
        self.expect(found, "driver", "warning", "not known: cannot load /nowhere/nvml", "utility")

    def test_nccl(self):
        found = self.diagnose(**self.variables, STRICT_CUDA_NCCL_VERSION="21003")
        self.expect(found, "nccl", "wrong", "2.10.3, at least 2.19.1", "FERRY_NCCL_LIBRARY")
        found = self.diagnose(**self.variables, STRICT_CUDA_FAIL="ncclGetUniqueId:3")
        self.expect(found, "nccl id", "wrong", "ncclGetUniqueId failed with code 3", "NCCL_DEBUG")

    def test_nccl_that_never_returns_is_named_and_ended(self):
        for call, check, last in (("ncclGetUniqueId", "nccl id", "making an id"),
                                  ("ncclGetVersion", "nccl", "loading NCCL")):
            found = self.diagnose("--timeout=2s", **self.variables, STRICT_CUDA_FAIL=f"{call}:-1")
            self.expect(found, check, "wrong",
                        rf"\(pid \d+\) has said nothing for 2s, last {last}", "NCCL_DEBUG=INFO")

    def test_a_process_that_is_killed_is_named(self):
        doctor = self.start("doctor", **self.variables, STRICT_CUDA_DEVICES="1",
                            STRICT_CUDA_DELAY_US="1500000")
        # The importer is there once the exporter has opened its GPU.
        self.eventually(lambda: "import" in self.helpers_of(doctor).values())
        exporter = [pid for pid, role in self.helpers_of(doctor).items() if role == "export"]
        os.kill(exporter[0], signal.SIGKILL)
        self.assertEqual(doctor.wait(), 1)
        self.assertRegex(doctor.out, r"wrong +gpu:0 ipc +the exporting process was killed by "
                                     r"signal 9, last .* -> ")
        # Later checks run all the same.
        self.assertRegex(doctor.out, r"ok +nccl id +made in ")

    def test_a_process_that_hangs_is_named_and_ended(self):
        doctor = self.start("doctor", "--timeout=1s", **self.variables,
                            STRICT_CUDA_DELAY_US="20000000")
        self.assertEqual(doctor.wait(), 1)
        self.assertRegex(doctor.out, r"wrong +peer access +the process that looks at the GPUs "
                                     r"\(pid \d+\) has said nothing for 1s, last a copy by gpu:0 "
                                     r"out of the memory of gpu:1 -> ")
        self.assertRegex(doctor.out, r"wrong +gpu:1 ipc +the importing process \(pid \d+\) has "
                                     r"said nothing for 1s, last waiting for the other process's "
                                     r"memory by descriptor; the exporting process \(pid \d+\) "
                                     r"was last writing to memory of gpu:1 by descriptor -> ")
        for pid in harness.re.findall(r"\(pid (\d+)\)", doctor.out):
            self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())


if __name__ == "__main__":
    harness.main()

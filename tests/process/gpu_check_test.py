#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpu_check on the fake driver, without a GPU, and with parts that hang, crash and fail.

    gpu_check_test.py GPU_CHECK LIBSTRICT_CUDA SCRIPTS/GPU-CHECK GPU_REAL_TEST [CASE...]
"""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, FAKE_DRIVER, SCRIPT, REAL_TEST = (os.path.abspath(path) for path in sys.argv[1:5])
LIBRARIES = ("FERRY_CUDA_LIBRARY", "FERRY_NVML_LIBRARY", "FERRY_NCCL_LIBRARY")
RECORDER = os.path.join(os.path.dirname(PROGRAM), "libferry_cuda_recorder.so")
CALLS = os.path.join(os.path.dirname(SCRIPT), "cuda_calls")
PATIENCE_S = 300
# Parts that the fake driver cannot run. Every other part must pass.
MAY_BE_SKIPPED = {"tests"}
MEASURED = {"latency", "launch", "copy", "staged", "several_gpus", "nccl_keyed"}
# scripts/package packs them.
PROGRAMS = ("gpu_real_test", "gpu_cuda_test", "gpu_ipc_test", "gpu_exchange_test",
            "nccl_exchange_test")
# A test program with all that can happen to one.
PLAYED_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "played_tests.py")


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.session = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.session)

    def environment(self, **variables):
        env = {name: value for name, value in os.environ.items()
               if not name.startswith(("STRICT_CUDA_", "FERRY_", "NCCL_", "CUDA_"))}
        for name in LIBRARIES:
            env[name] = FAKE_DRIVER
        env["STRICT_CUDA_SESSION"] = self.session
        env["STRICT_CUDA_DELAY_US"] = "20"
        return {**env, **variables}

    def check(self, *arguments, **variables):
        """(exit status, the JSON, the report, stdout)."""
        files = [os.path.join(self.folder, name) for name in ("out.json", "out.md")]
        done = subprocess.run([PROGRAM, f"--json={files[0]}", f"--report={files[1]}", *arguments],
                              capture_output=True, text=True, timeout=PATIENCE_S,
                              env=self.environment(**variables))
        if not os.path.exists(files[0]):
            return done.returncode, None, None, done.stdout + done.stderr
        with open(files[0], encoding="utf-8") as out, open(files[1], encoding="utf-8") as report:
            return done.returncode, json.load(out), report.read(), done.stdout

    def parts(self, result):
        return {part["name"]: part for part in result["parts"]}

    def failures(self, result):
        return [(part["name"], part["status"], part["reason"], part["last_words"],
                 [check for check in part["checks"] if check["status"] == "failed"])
                for part in result["parts"] if part["status"] not in ("passed", "skipped")]


class OnFakeDriver(Case):
    def test_everything_runs_and_no_result_counts_as_a_measurement(self):
        listed = subprocess.run([PROGRAM, "--list"], capture_output=True, text=True, check=True)
        names = [line.split()[0] for line in listed.stdout.splitlines()]
        status, result, report, out = self.check("--quick", "--commit=abc",
                                                 STRICT_CUDA_NAME="Played GPU")
        self.assertEqual((status, self.failures(result)), (0, []), out)
        self.assertEqual([part["name"] for part in result["parts"]], names)
        self.assertEqual((result["device"], result["is_double"], result["commit"]),
                         ("Played GPU", True, "abc"))
        for part in result["parts"]:
            if part["status"] == "skipped":
                self.assertIn(part["name"], MAY_BE_SKIPPED)
                self.assertNotEqual(part["reason"], "")
            for check in part["checks"]:
                if check["status"] == "skipped":
                    self.assertNotEqual(check["reason"], "", check)
            if part["name"] in MEASURED:
                self.assertNotEqual(part["figures"], [], part["name"])
            for figure in part["figures"]:
                self.assertEqual((figure["device"], figure["is_double"], figure["meets_goal"],
                                  figure["wrong_bytes"]), ("Played GPU", True, None, 0))
                for times in (figure["ferry"], figure["floor"]):
                    self.assertGreater(times["count"], 0)
                    self.assertLessEqual(times["p10_us"], times["median_us"])
                    self.assertLessEqual(times["median_us"], times["p90_us"])
                self.assertNotEqual(figure["path"], "")
                if part["name"] == "launch":
                    # The receiver's result, with its path.
                    self.assertRegex(figure["path"], "^cuda_ipc, (view|copy)$")
                self.assertAlmostEqual(
                    figure["ratio"], figure["floor"]["median_us"] / figure["ferry"]["median_us"])
        self.assertIn('NOT A GPU.** This ran on a fake driver', report)
        self.assertIn('"Played GPU"', report)
        self.assertNotIn("met |", report)
        self.assertIn("NOT A GPU", out)
        rows = [row for row in report.splitlines() if row.startswith("| [fake driver] ")]
        self.assertEqual(len(rows), sum(len(part["figures"]) for part in result["parts"]))

    def test_every_path_and_every_kind_of_memory(self):
        _, result, _, _ = self.check("--quick", "--parts=ipc,foreign,running")
        parts = self.parts(result)
        names = [check["name"] for check in parts["ipc"]["checks"]]
        for way in ("a view of", "a copy into", "through the sender's ring",
                    "through host memory", "whatever way"):
            self.assertTrue(any(name.startswith(way) for name in names), names)
        paths = {check["name"].split(":")[0]: check["details"]["path"]
                 for check in parts["foreign"]["checks"] if "arrives" in check["name"]}
        mapped = ("cudaMalloc", "cudaMallocAsync, exportable pool",
                  "cuMemCreate, with a handle type")
        staged = ("cudaMallocAsync, default pool", "cuMemCreate, without a handle type",
                  "cudaMallocManaged")
        self.assertEqual(paths, {**dict.fromkeys(mapped, "cuda_ipc, view"),
                                 **dict.fromkeys(staged, "cuda_ipc, staged"),
                                 "cuMemCreate, in two pieces": "cuda_ipc, copy",
                                 "cudaMallocHost": "shm"})
        meant = [check for check in parts["foreign"]["checks"]
                 if "the way that is meant" in check["name"]]
        self.assertEqual([check["status"] for check in meant], ["passed"] * 8)
        self.assertEqual({note.rsplit(" ", 1)[-1] for note in parts["running"]["notes"]},
                         {"kernel"})

    def test_without_kernels_no_copy_waits_for_a_blocked_stream(self):
        # Like a driver that accepts no module, and whose copies out of pageable memory wait.
        status, result, _, out = self.check("--quick", "--parts=running,foreign",
                                            STRICT_CUDA_FAIL="cuModuleLoadData:209:0:100000",
                                            STRICT_CUDA_PAGEABLE="waits")
        parts = self.parts(result)
        self.assertEqual((status, self.failures(result)), (0, []), out)
        self.assertEqual({note.rsplit(" ", 1)[-1] for note in parts["running"]["notes"]},
                         {"function"})
        kernels = parts["machine"]["facts"]["kernels"]
        self.assertIn("patterns go by the host", kernels)
        self.assertIn("209", kernels)

    def test_a_driver_older_than_the_kernels_compiles_them(self):
        _, result, _, _ = self.check("--quick", "--parts=machine")
        if "no binaries" in self.parts(result)["machine"]["facts"]["kernels"]:
            self.skipTest("this build has only the PTX")
        # The first that each process loads; the fake driver then accepts the PTX.
        _, result, report, out = self.check("--quick", "--parts=machine",
                                            STRICT_CUDA_FAIL="cuModuleLoadData:222:0:1")
        kernels = self.parts(result)["machine"]["facts"]["kernels"]
        self.assertRegex(kernels, "on the GPU, by kernels made by the driver from PTX, since the "
                                  "binaries did not load: .* 222")
        self.assertIn("made by the driver from PTX", report)

    def test_an_unexpected_path_is_a_failure(self):
        # Like a driver that opens no descriptors: everything arrives, through the host.
        status, result, _, out = self.check(
            "--quick", "--parts=foreign",
            STRICT_CUDA_FAIL="cuMemImportFromShareableHandle:999:0:100000")
        failed = [check for check in self.parts(result)["foreign"]["checks"]
                  if check["status"] == "failed"]
        self.assertEqual((status, len(failed)), (1, 7), out)
        for check in failed:
            self.assertRegex(check["name"], ": comes the way that is meant for it$")
            self.assertIn("it went by shm, staged, and not by cuda_ipc, ", check["reason"])

    def test_a_mig_slice_is_identified_by_its_name(self):
        for name, is_mig in (("Strict GPU MIG 1g.10gb", True), ("Strict GPU", False)):
            _, result, _, _ = self.check("--quick", "--parts=machine", STRICT_CUDA_NAME=name)
            gpus = self.parts(result)["machine"]["facts"]["gpus"]
            self.assertEqual([gpu["is_mig"] for gpu in gpus], [is_mig] * 2)

    def test_one_rank_by_nccl_and_by_ferry(self):
        _, result, _, _ = self.check("--quick", "--parts=nccl_self", STRICT_CUDA_DEVICES="1")
        part = self.parts(result)["nccl_self"]
        names = [check["name"] for check in part["checks"] if check["status"] == "passed"]
        self.assertEqual((part["status"], len(names)), ("passed", 6), part)
        self.assertEqual(sum("by a communicator of Ferry's" in name for name in names), 3, names)

    def test_collectives_and_keyed_transfers_alternate(self):
        status, result, _, out = self.check("--quick", "--parts=nccl_turns")
        self.assertEqual((status, self.failures(result)), (0, []), out)
        details = {check["name"].split(": ")[1]: check.get("details", {})
                   for check in self.parts(result)["nccl_turns"]["checks"]}
        self.assertEqual(len(details), 7, details)
        self.assertEqual(list(details["the transfers of node 1"]["paths"]), ["nccl"])
        waited_for = details["a tensor that a sum waits for goes another way"]
        self.assertEqual(waited_for["before"], "nccl")
        self.assertNotEqual(waited_for["path"], "nccl")

    def test_they_alternate_on_one_gpu_too_where_nccl_has_it(self):
        for version, expected in (("23007", "passed"), ("22809", "skipped")):
            with self.subTest(version=version):
                status, result, _, out = self.check("--quick", "--parts=nccl_turns",
                                                    STRICT_CUDA_DEVICES="1",
                                                    STRICT_CUDA_NCCL_VERSION=version)
                part = self.parts(result)["nccl_turns"]
                self.assertEqual((status, self.failures(result), part["status"]),
                                 (0, [], expected), out)
                details = {check["name"].split(": ")[1]: check.get("details", {})
                           for check in part["checks"]}
                if expected == "passed":
                    self.assertEqual(list(details["the transfers of node 1"]["paths"]), ["nccl"])
                else:
                    self.assertIn("does not support two ranks on one", part["reason"])

    def test_figures_of_two_processes_on_one_gpu_are_marked(self):
        _, result, report, _ = self.check("--quick", "--parts=launch,several_gpus")
        parts = self.parts(result)
        self.assertEqual({figure["processes_on_gpu"] for figure in parts["launch"]["figures"]}, {2})
        self.assertEqual({figure["processes_on_gpu"]
                          for figure in parts["several_gpus"]["figures"]}, {1})
        self.assertIn("| processes on the GPU |", report)

    def test_copies_between_two_gpus_of_a_process(self):
        status, result, _, out = self.check("--quick", "--parts=several_gpus")
        self.assertEqual((status, self.failures(result)), (0, []), out)
        part = self.parts(result)["several_gpus"]
        self.assertIn("the first copy between two GPUs of a process enables peer access, both ways",
                      [check["name"] for check in part["checks"] if check["status"] == "passed"])
        figures = {figure["name"] for figure in part["figures"]
                   if figure["path"] == "Gpus::Move" and figure["wrong_bytes"] == 0}
        self.assertEqual(figures, {
            "copy within a process, cudaMalloc's memory, gpu:0 to gpu:1",
            "copy within a process, cudaMalloc's memory, gpu:1 to gpu:0"})

    def test_two_gpus_without_peer_access(self):
        status, result, _, out = self.check("--quick", "--parts=several_gpus",
                                            STRICT_CUDA_PEERS="none")
        part = self.parts(result)["several_gpus"]
        self.assertEqual((status, self.failures(result)), (0, []), out)
        self.assertIn("gpu:0 and gpu:1 have no peer access",
                      [check["reason"] for check in part["checks"] if check["status"] == "skipped"])
        self.assertTrue(any(check["status"] == "passed" for check in part["checks"]), part)

    def test_a_driver_that_refuses_is_named_and_the_rest_continues(self):
        # Unmappable memory fails where it was requested, and only there.
        status, result, report, out = self.check(
            "--quick", "--parts=ipc,staged",
            STRICT_CUDA_FAIL="cuMemImportFromShareableHandle:801:0:1000")
        parts = self.parts(result)
        self.assertEqual((status, parts["ipc"]["status"], parts["staged"]["status"]),
                         (1, "failed", "passed"), out)
        self.assertIn("cuMemImportFromShareableHandle", report)
        self.assertIn("FAILED", out)

    def test_one_gpu_is_enough(self):
        status, result, _, out = self.check(
            "--quick", "--parts=ipc,nccl_shared_gpu,several_gpus,nccl_keyed", STRICT_CUDA_DEVICES="1")
        self.assertEqual((status, self.failures(result)), (0, []), out)
        self.assertEqual(self.parts(result)["several_gpus"]["reason"], "this machine shows one GPU")
        self.assertEqual(self.parts(result)["nccl_shared_gpu"]["status"], "passed")

    def test_puts_are_checked_where_nccl_has_them(self):
        for version, devices, expected in (("23007", "1", "passed"), ("23007", "2", "passed"),
                                           ("22809", "2", "skipped")):
            with self.subTest(version=version, devices=devices):
                status, result, _, out = self.check(
                    "--quick", "--parts=nccl_keyed", STRICT_CUDA_DEVICES=devices,
                    STRICT_CUDA_NCCL_VERSION=version)
                self.assertEqual((status, self.failures(result)), (0, []), out)
                checks = {check["name"]: check
                          for check in self.parts(result)["nccl_keyed"]["checks"]}
                put = checks["keyed, by nccl, put into a pool"]
                self.assertEqual(put["status"], expected, put)
                if expected == "skipped":
                    self.assertIn("not supported here: NCCL is 2.28.9", put["reason"])

    def test_the_test_programs_are_run_too(self):
        status, result, _, out = self.check(f"--tests={os.path.dirname(REAL_TEST)}",
                                            "--parts=tests")
        tests = self.parts(result)["tests"]
        self.assertEqual((status, tests["status"]), (0, "passed"), out + str(tests))
        self.assertTrue(any(check["status"] == "passed" and check["name"].startswith("gpu_real_test")
                            for check in tests["checks"]), tests)

    def test_all_test_programs_pass_with_one_gpu(self):
        # As on a machine with one GPU, whose driver keeps callers that copy from pageable memory
        # waiting.
        status, result, _, out = self.check(
            f"--tests={os.path.dirname(os.path.dirname(REAL_TEST))}", "--parts=tests",
            STRICT_CUDA_DEVICES="1", STRICT_CUDA_PAGEABLE="waits")
        tests = self.parts(result)["tests"]
        self.assertEqual((status, self.failures(result)), (0, []), out)
        reasons = set()
        for program in PROGRAMS:
            checks = [check for check in tests["checks"]
                      if check["name"].startswith(program + ": ")]
            self.assertNotEqual(checks, [], program)
            self.assertFalse(any(check["name"].endswith(": the rest") for check in checks), tests)
            reasons |= {check["reason"] for check in checks if check["status"] == "skipped"}
            if program != "nccl_exchange_test":
                self.assertTrue(any(check["status"] == "passed" for check in checks), program)
        self.assertIn("this machine shows one GPU", reasons)
        self.assertNotIn("it says no reason", reasons)
        # Unknown behaviour of a real driver is reported, and not judged.
        self.assertTrue(any("what was seen: it held" in reason for reason in reasons), reasons)


class WhatGoesWrong(Case):
    def test_without_a_gpu_it_reports_a_reason_and_a_status(self):
        nowhere = {name: "/nowhere/libcuda.so.1" for name in LIBRARIES}
        status, result, report, out = self.check("--quick", **nowhere)
        self.assertEqual((status, result["gpu_count"], result["verdict"]), (3, 0, "no GPU"), out)
        self.assertIn("/nowhere/libcuda.so.1", result["no_gpu_reason"])
        self.assertIn("/nowhere/libcuda.so.1", report)
        for part in result["parts"]:
            self.assertEqual((part["status"], part["figures"]), ("skipped", []))
            self.assertIn("/nowhere/libcuda.so.1", part["reason"])
        # Once as the first part ends, and once at the end; not with each part.
        self.assertEqual(len(out.splitlines()), 2, out)
        self.assertNotIn("## ipc", report)

    def test_two_ranks_on_one_gpu_that_hang_have_not_failed(self):
        # The third size never arrives, without an error.
        status, result, report, out = self.check(
            "--quick", "--parts=nccl_shared_gpu,nccl_self", "--limit=12",
            STRICT_CUDA_NCCL_STOP_AFTER="1000000")
        parts = self.parts(result)
        self.assertEqual(status, 0, out)
        self.assertEqual([check["status"] for check in parts["nccl_shared_gpu"]["checks"]],
                         ["passed"] * 4 + ["skipped"] * 2, out)
        self.assertIn("NCCL before 2.30.3 does not support two ranks on one GPU", report)

    def test_node_that_fails_reports_it_although_its_gpu_hangs(self):
        """NCCL's kernel never ends, so that each call that frees memory of the GPU would hang too."""
        status, result, _, out = self.check(
            "--quick", "--parts=nccl_shared_gpu", "--limit=12", STRICT_CUDA_DEVICES="1",
            STRICT_CUDA_NCCL_VERSION="23007", STRICT_CUDA_NCCL_STOP_AFTER="1000000")
        part = self.parts(result)["nccl_shared_gpu"]
        failed = {check["name"]: check["reason"] for check in part["checks"]
                  if check["status"] == "failed"}
        self.assertEqual((status, part["status"]), (1, "failed"), out)
        self.assertEqual(len(failed), 2, failed)
        for reason in failed.values():
            self.assertRegex(reason, "^DEADLINE_EXCEEDED: the work on a stream has not ended")

    def test_measurements_without_time_are_skipped_and_have_not_failed(self):
        status, result, _, out = self.check("--parts=staged", "--limit=20")
        part = self.parts(result)["staged"]
        self.assertEqual((status, part["status"]), (0, "passed"), out)
        self.assertGreater(len(part["figures"]), 0, out)
        self.assertTrue(all("left out, for want of time" in note for note in part["notes"]), out)
        self.assertGreater(len(part["notes"]), 1, out)

    def test_a_measurement_that_takes_too_long_keeps_its_samples(self):
        # A round has several operations: two hundred of them take longer than that on any machine.
        status, result, report, out = self.check("--parts=latency", "--limit=16",
                                                 STRICT_CUDA_DELAY_US="50000")
        part = self.parts(result)["latency"]
        self.assertEqual((status, part["status"]), (0, "passed"), out)
        self.assertGreater(len(part["figures"]), 0, out)
        self.assertTrue(any("of 200 rounds, for want of time" in note for note in part["notes"]),
                        out)
        self.assertIn("of 200 rounds, for want of time", report)

    def test_without_nccl_its_parts_report_it(self):
        status, result, _, out = self.check("--quick", "--parts=nccl_self,nccl_shared_gpu",
                                            FERRY_NCCL_LIBRARY="/nowhere/libnccl.so.2")
        self.assertEqual(status, 0, out)
        for name in ("nccl_self", "nccl_shared_gpu"):
            part = self.parts(result)[name]
            self.assertEqual(part["status"], "skipped")
            self.assertIn("/nowhere/libnccl.so.2", part["reason"])

    def test_parts_that_hang_crash_and_fail_do_not_affect_the_others(self):
        status, result, report, out = self.check(
            "--quick", "--parts=_hang,_crash,_fail,_wrong,nccl_self")
        parts = self.parts(result)
        self.assertEqual({name: part["status"] for name, part in parts.items()},
                         {"machine": "passed", "nccl_self": "passed", "_hang": "killed",
                          "_crash": "crashed", "_fail": "failed", "_wrong": "failed"}, out)
        self.assertEqual(status, 1)
        self.assertEqual(result["verdict"],
                         "_hang killed, _crash crashed, _fail failed, _wrong failed")
        # Their results so far stay.
        for name in ("_hang", "_crash"):
            self.assertEqual(parts[name]["checks"][0]["status"], "passed")
        self.assertIn("was killed", parts["_hang"]["reason"])
        self.assertIn("signal 6", parts["_crash"]["reason"])
        self.assertIn("the last words of a part", parts["_crash"]["last_words"])
        self.assertIn("the last words of a part", report)
        # No other part has left unsent bytes.
        self.assertGreater(parts["_wrong"]["figures"][0]["wrong_bytes"], 0)

    def test_processes_of_a_part_are_killed_with_it(self):
        _, result, _, _ = self.check("--quick", "--parts=_hang")
        # The part forked one that sleeps for an hour.
        child = self.parts(result)["_hang"]["facts"]["child"]
        try:
            with open(f"/proc/{child}/stat", encoding="utf-8") as stat:
                # It may still wait to be reaped.
                self.assertIn(stat.read().rsplit(")", 1)[1].split()[0], "ZX")
        except FileNotFoundError:
            pass

    def test_a_timeout_is_reported(self):
        status, result, _, out = self.check("--quick", "--limit=1")
        self.assertEqual(status, 0, out)
        self.assertEqual(self.parts(result)["ipc"]["reason"], "no time was left for it")

    def test_parts_that_slow_initialisation_leaves_no_time_for_are_skipped(self):
        """Each process initialises the driver: two or more in each part, one before and after it."""
        status, result, report, out = self.check(
            "--quick", "--limit=12", "--parts=ipc,running,foreign,failures,latency,copy,_hang",
            STRICT_CUDA_INIT_MS="2500")
        parts = self.parts(result)
        self.assertEqual(parts["machine"]["status"], "passed", out)
        self.assertEqual(parts["copy"]["reason"], "no time was left for it")
        self.assertIn("no time was left for it", report)
        self.assertIn(status, (0, 1))

    def test_parts_see_two_gpus_and_the_first_one_all(self):
        for visible, shown in ((None, "0,1"), ("3,1,2", "3,1")):
            variables = {"STRICT_CUDA_DEVICES": "4"}
            if visible is not None:
                variables["CUDA_VISIBLE_DEVICES"] = visible
            status, result, report, out = self.check("--quick", "--parts=ipc", **variables)
            self.assertEqual(status, 0, out)
            self.assertEqual(result["gpu_count"], 3 if visible else 4)
            self.assertEqual(result["gpus_of_parts"], shown)
            self.assertIn(f"| gpus_of_parts | {shown} |", report)
            self.assertIn("take turns", result["gpu_sharing"])
            self.assertIn(result["gpu_sharing"], report)
            self.assertIn(f"| driver_kept_open | {result['driver_kept_open']} |", report)
            # One figure of free memory for each.
            self.assertEqual(len(self.parts(result)["ipc"]["free_bytes_before"]), 2)

    def test_unknown_flags_and_parts_are_usage(self):
        self.assertEqual(self.check("--quack")[0], 2)
        self.assertEqual(self.check("--parts=quack")[0], 2)


class TestPrograms(Case):
    def run_played(self, *arguments):
        folder = os.path.join(self.folder, "programs")
        os.makedirs(folder)
        path = os.path.join(folder, "gpu_real_test")
        shutil.copy(PLAYED_PROGRAM, path)
        os.chmod(path, 0o755)
        status, result, report, out = self.check(f"--tests={folder}", "--parts=tests", *arguments)
        part = self.parts(result)["tests"]
        checks = {check["name"].removeprefix("gpu_real_test: "): check for check in part["checks"]}
        return status, part, checks, report + out

    def test_one_that_hangs_or_crashes_fails_alone(self):
        status, part, checks, out = self.run_played("--test-limit=2")
        self.assertEqual((status, part["status"]), (1, "failed"), out)
        self.assertEqual({name: check["status"] for name, check in checks.items()
                          if name.startswith("Played.")},
                         {"Played.Passes": "passed", "Played.Hangs": "failed",
                          "Played.Crashes": "failed", "Played.Fails": "failed",
                          "Played.IsSkipped": "skipped", "Played.IsLast": "passed"})
        # Each reason says what failed, and nothing else.
        self.assertEqual(checks["Played.Hangs"]["reason"],
                         "INTERNAL: it did not end within 2s: played.cc:3: Failure\nit waits")
        self.assertIn("it died of signal 6: words of no account\nthe end is near",
                      checks["Played.Crashes"]["reason"])
        self.assertEqual(checks["Played.Fails"]["reason"],
                         "INTERNAL: played.cc:7: Failure\nExpected equality of these values:\n"
                         "  1\n  2")
        self.assertEqual(checks["Played.IsSkipped"]["reason"], "there is no moon")
        self.assertEqual(checks["Played.IsLast"]["details"], {"ms": 12, "seen": ["3 of 4"]})
        self.assertNotIn("gpu_real_test: the rest", out)

    def test_parts_without_time_have_not_failed(self):
        status, part, checks, out = self.run_played("--limit=10")
        self.assertEqual((status, part["status"]), (0, "passed"), out)
        self.assertEqual(checks["Played.Passes"]["status"], "passed")
        self.assertEqual(checks["the rest"]["reason"], "no time was left for 5 of its 6 tests")


class WhenItIsKilled(Case):
    def test_results_are_written_before_the_next_part(self):
        files = [os.path.join(self.folder, name) for name in ("out.json", "out.md")]
        running = subprocess.Popen(
            [PROGRAM, f"--json={files[0]}", f"--report={files[1]}", "--parts=_hang"],
            env=self.environment(), stdout=subprocess.DEVNULL)
        try:
            give_up = time.monotonic() + 60
            result = {}
            while "_hang" not in result.get("verdict", ""):
                self.assertLess(time.monotonic(), give_up, result)
                time.sleep(0.01)
                if os.path.exists(files[0]):
                    with open(files[0], encoding="utf-8") as out:
                        result = json.load(out)
        finally:
            running.send_signal(signal.SIGKILL)
            running.wait()
        with open(files[0], encoding="utf-8") as out, open(files[1], encoding="utf-8") as report:
            result, text = json.load(out), report.read()
        self.assertEqual(result["verdict"], "not finished: it had come to the part _hang")
        self.assertEqual([(part["name"], part["status"]) for part in result["parts"]],
                         [("machine", "passed")])
        self.assertEqual((result["gpu_count"], result["checks"]["passed"]), (2, 1))
        self.assertIn("not finished: it had come to the part _hang", text)
        self.assertIn("GPUs are found", text)

    def test_unwritable_files_are_reported_at_once(self):
        done = subprocess.run([PROGRAM, "--json=/nowhere/out.json", "--parts=machine"],
                              capture_output=True, text=True, timeout=PATIENCE_S,
                              env=self.environment())
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot write /nowhere/out.json", done.stderr)
        # Nothing was run for it.
        self.assertEqual(done.stdout, "")


class Script(Case):
    def package(self):
        package = os.path.join(self.folder, "package")
        os.makedirs(os.path.join(package, "bin"))
        os.symlink(PROGRAM, os.path.join(package, "bin", "gpu_check"))
        shutil.copy(SCRIPT, package)
        with open(os.path.join(package, "VERSION"), "w", encoding="utf-8") as version:
            version.write("ferry 9.9\ncommit 123abc\n")
        return package

    def test_it_runs_from_a_package(self):
        package = self.package()
        out = os.path.join(self.folder, "here")
        done = subprocess.run([os.path.join(package, "gpu-check"), f"--out={out}", "--quick",
                               "--parts=nccl_self"], capture_output=True, text=True,
                              timeout=PATIENCE_S, env=self.environment())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("# gpu-check", done.stdout)
        self.assertEqual(done.stdout.splitlines()[-1],
                         "gpu-check: all parts passed or were skipped")
        written = sorted(os.listdir(out))
        self.assertEqual([os.path.splitext(name)[1] for name in written], [".json", ".md"])
        with open(os.path.join(out, written[0]), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["commit"], "123abc")

    @unittest.skipUnless(os.path.exists(RECORDER), "this build has no recorder (sanitizers)")
    def test_it_records_the_calls_of_the_driver(self):
        package = self.package()
        os.makedirs(os.path.join(package, "lib"))
        os.symlink(RECORDER, os.path.join(package, "lib", os.path.basename(RECORDER)))
        out = os.path.join(self.folder, "here")
        done = subprocess.run([os.path.join(package, "gpu-check"), f"--out={out}", "--record",
                               "--quick", "--parts=ipc,memory"], capture_output=True, text=True,
                              timeout=PATIENCE_S, env=self.environment())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(glob.glob(os.path.join(out, "*.json"))[0], encoding="utf-8") as file:
            self.assertTrue(json.load(file)["is_double"])
        calls = glob.glob(os.path.join(out, "*.calls"))[0]
        summary = subprocess.run([CALLS, calls], capture_output=True, text=True, check=True).stdout
        rows = {row.split()[0]: row.split()[1:] for row in summary.splitlines()[1:]}
        self.assertGreater(int(rows["cuIpcOpenEventHandle"][0]), 0)
        # More memory than the device has was requested: code 2, out of memory.
        self.assertRegex(" ".join(rows["cuMemCreate"]), r" 2: \d+$")
        # A record without that call lacks that result, and the comparison reports it.
        fewer = os.path.join(self.folder, "fewer")
        os.makedirs(fewer)
        for path in glob.glob(os.path.join(calls, "*")):
            with open(path, encoding="utf-8") as source:
                kept = [line for line in source
                        if not re.search(r" cuMemCreate .* = 2 ", line)]
            with open(os.path.join(fewer, os.path.basename(path)), "w", encoding="utf-8") as target:
                target.writelines(kept)
        compared = subprocess.run([CALLS, calls, fewer], capture_output=True, text=True,
                                  check=True).stdout
        self.assertEqual(compared, f"only in {calls}:\n  cuMemCreate returned 2\n"
                                   f"only in {fewer}:\n")

    def test_without_a_recorder_it_names_the_target_that_builds_it(self):
        done = subprocess.run([os.path.join(self.package(), "gpu-check"), "--record"],
                              capture_output=True, text=True, timeout=PATIENCE_S, cwd=self.folder,
                              env=self.environment())
        self.assertEqual(done.returncode, 1)
        self.assertIn("scripts/build release ferry_cuda_recorder", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]], verbosity=2)

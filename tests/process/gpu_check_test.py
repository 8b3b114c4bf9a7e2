#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpu_check on the strict double, without a GPU, and with parts that hang, crash and fail.

    gpu_check_test.py GPU_CHECK LIBSTRICT_CUDA SCRIPTS/GPU-CHECK GPU_REAL_TEST [CASE...]
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM, DOUBLE, SCRIPT, REAL_TEST = (os.path.abspath(path) for path in sys.argv[1:5])
LIBRARIES = ("FERRY_CUDA_LIBRARY", "FERRY_NVML_LIBRARY", "FERRY_NCCL_LIBRARY")
PATIENCE_S = 200
# Whatever the double cannot do at all. Every other part must pass.
MAY_BE_SKIPPED = {"tests"}
MEASURED = {"latency", "launch", "copy", "staged", "several_gpus", "nccl_keyed"}


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
            env[name] = DOUBLE
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


class OnTheDouble(Case):
    def test_everything_runs_and_nothing_is_taken_for_a_figure(self):
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
                self.assertAlmostEqual(
                    figure["ratio"], figure["floor"]["median_us"] / figure["ferry"]["median_us"])
        self.assertIn('NOT A GPU.** This ran on a double', report)
        self.assertIn('"Played GPU"', report)
        self.assertNotIn("met |", report)
        self.assertIn("NOT A GPU", out)
        rows = [row for row in report.splitlines() if row.startswith("| [double] ")]
        self.assertEqual(len(rows), sum(len(part["figures"]) for part in result["parts"]))

    def test_every_way_and_every_kind_of_memory(self):
        _, result, _, _ = self.check("--quick", "--parts=ipc,foreign,running")
        parts = self.parts(result)
        names = [check["name"] for check in parts["ipc"]["checks"]]
        for way in ("a view of", "a copy into", "through host memory", "whatever way"):
            self.assertTrue(any(name.startswith(way) for name in names), names)
        paths = {check["name"].split(":")[0]: check["details"]["path"]
                 for check in parts["foreign"]["checks"] if "arrives" in check["name"]}
        mapped = ("cudaMalloc", "cudaMallocAsync, exportable pool", "cuMemCreate, with a handle type")
        staged = ("cudaMallocAsync, default pool", "cuMemCreate, without a handle type",
                  "cudaMallocManaged")
        self.assertEqual(paths, {**dict.fromkeys(mapped, "cuda_ipc, view"),
                                 **dict.fromkeys(staged, "cuda_ipc, staged"),
                                 "cuMemCreate, in two pieces": "cuda_ipc, copy",
                                 "cudaMallocHost": "shm"})
        self.assertEqual({note.rsplit(" ", 2)[-1] for note in parts["running"]["notes"]}, {"kernel"})

    def test_a_driver_that_refuses_is_named_and_the_rest_goes_on(self):
        # What cannot be mapped fails where it was asked for, and only there.
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

    def test_the_test_programs_are_run_too(self):
        status, result, _, out = self.check(f"--tests={os.path.dirname(REAL_TEST)}",
                                            "--parts=tests")
        tests = self.parts(result)["tests"]
        self.assertEqual((status, tests["status"]), (0, "passed"), out + str(tests))
        self.assertTrue(any(check["status"] == "passed" and check["name"].startswith("gpu_real_test")
                            for check in tests["checks"]), tests)


class WhatGoesWrong(Case):
    def test_without_a_gpu_there_is_a_reason_and_a_status(self):
        nowhere = {name: "/nowhere/libcuda.so.1" for name in LIBRARIES}
        status, result, report, out = self.check("--quick", **nowhere)
        self.assertEqual((status, result["gpu_count"], result["verdict"]), (3, 0, "no GPU"), out)
        self.assertIn("/nowhere/libcuda.so.1", result["no_gpu_reason"])
        self.assertIn("/nowhere/libcuda.so.1", report)
        for part in result["parts"]:
            self.assertEqual((part["status"], part["figures"]), ("skipped", []))
            self.assertIn("/nowhere/libcuda.so.1", part["reason"])

    def test_without_nccl_its_parts_say_so(self):
        status, result, _, out = self.check("--quick", "--parts=nccl_self,nccl_shared_gpu",
                                            FERRY_NCCL_LIBRARY="/nowhere/libnccl.so.2")
        self.assertEqual(status, 0, out)
        for name in ("nccl_self", "nccl_shared_gpu"):
            part = self.parts(result)[name]
            self.assertEqual(part["status"], "skipped")
            self.assertIn("/nowhere/libnccl.so.2", part["reason"])

    def test_parts_that_hang_crash_and_fail_leave_the_others_alone(self):
        status, result, report, out = self.check(
            "--quick", "--parts=_hang,_crash,_fail,_wrong,nccl_self")
        parts = self.parts(result)
        self.assertEqual({name: part["status"] for name, part in parts.items()},
                         {"machine": "passed", "nccl_self": "passed", "_hang": "killed",
                          "_crash": "crashed", "_fail": "failed", "_wrong": "failed"}, out)
        self.assertEqual(status, 1)
        # What they had found stays.
        for name in ("_hang", "_crash"):
            self.assertEqual(parts[name]["checks"][0]["status"], "passed")
        self.assertIn("was killed", parts["_hang"]["reason"])
        self.assertIn("signal 6", parts["_crash"]["reason"])
        self.assertIn("the last words of a part", parts["_crash"]["last_words"])
        self.assertIn("the last words of a part", report)
        # Nobody but that part has left bytes that were not sent.
        self.assertGreater(parts["_wrong"]["figures"][0]["wrong_bytes"], 0)

    def test_what_a_part_leaves_behind_is_killed_with_it(self):
        _, result, _, _ = self.check("--quick", "--parts=_hang")
        # The part forked one that sleeps for an hour.
        child = self.parts(result)["_hang"]["facts"]["child"]
        try:
            with open(f"/proc/{child}/stat", encoding="utf-8") as stat:
                # It may still wait for somebody to look at how it ended.
                self.assertIn(stat.read().rsplit(")", 1)[1].split()[0], "ZX")
        except FileNotFoundError:
            pass

    def test_time_that_is_over_is_said(self):
        status, result, _, out = self.check("--quick", "--limit=1")
        self.assertEqual(status, 0, out)
        self.assertEqual(self.parts(result)["ipc"]["reason"], "no time was left for it")

    def test_unknown_flags_and_parts_are_usage(self):
        self.assertEqual(self.check("--quack")[0], 2)
        self.assertEqual(self.check("--parts=quack")[0], 2)


class Script(Case):
    def test_it_runs_from_a_package(self):
        package = os.path.join(self.folder, "package")
        os.makedirs(os.path.join(package, "bin"))
        os.symlink(PROGRAM, os.path.join(package, "bin", "gpu_check"))
        shutil.copy(SCRIPT, package)
        with open(os.path.join(package, "VERSION"), "w", encoding="utf-8") as version:
            version.write("ferry 9.9\ncommit 123abc\n")
        out = os.path.join(self.folder, "here")
        done = subprocess.run([os.path.join(package, "gpu-check"), f"--out={out}", "--quick",
                               "--parts=nccl_self"], capture_output=True, text=True,
                              timeout=PATIENCE_S, env=self.environment())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("# gpu-check", done.stdout)
        written = sorted(os.listdir(out))
        self.assertEqual([os.path.splitext(name)[1] for name in written], [".json", ".md"])
        with open(os.path.join(out, written[0]), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["commit"], "123abc")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]], verbosity=2)

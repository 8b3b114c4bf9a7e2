#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/results_page: a stale page is detected, and every case comes from its newest file."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MACHINE = {"processor": "Test CPU", "cores": 2, "memory_bytes": 2**34, "kernel": "6.1",
           "system": "Debian"}


def row(peer, median, is_ferry=False, is_floor=False, ferry_is=None):
    return {"peer": peer, "median": median, "is_ferry": is_ferry, "is_floor": is_floor,
            "ferry_is": ferry_is}


def work(name, date, rows, unit="us", better="less"):
    return {"name": name, "title": f"title of {name}", "unit": unit, "bytes": 8, "better": better,
            "commit": "abc1234", "date": date, "rounds": 1, "rows": rows}


class ResultsPage(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        os.makedirs(os.path.join(self.root, "benchmarks/results"))

    def put(self, date, works, machine=None, quick=False):
        document = {"machine": machine or MACHINE, "cores": [0, 1], "quick": quick,
                    "order": ["host-8", "other"], "works": {each["name"]: each for each in works}}
        path = os.path.join(self.root, f"benchmarks/results/peers-{date}.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)

    def run_script(self, *arguments):
        script = os.path.join(ROOT, "scripts", "results_page")
        done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True,
                              timeout=30, check=False)
        return done.returncode, done.stdout + done.stderr

    def written(self):
        code, text = self.run_script("--write", self.root)
        self.assertEqual(code, 0, text)
        with open(os.path.join(self.root, "benchmarks/RESULTS.md"), encoding="utf-8") as file:
            return file.read()

    def test_the_repositorys_own_is_not_stale(self):
        self.assertEqual(self.run_script()[0], 0, self.run_script()[1])

    def test_a_page_that_differs_fails(self):
        self.put("2026-01-01", [work("host-8", "2026-01-01", [row("Ferry", 1e-6, is_ferry=True)])])
        code, text = self.run_script(self.root)
        self.assertEqual(code, 1)
        self.assertIn("run scripts/results_page --write", text)
        page = self.written()
        self.assertEqual(self.run_script(self.root)[0], 0)
        with open(os.path.join(self.root, "benchmarks/RESULTS.md"), "w", encoding="utf-8") as file:
            file.write(page.replace("1.00 us", "0.90 us"))
        self.assertEqual(self.run_script(self.root)[0], 1)

    def test_a_case_has_its_goal_the_best_peer_and_the_baseline(self):
        self.put("2026-01-01", [work("host-8", "2026-01-01", [
            row("Ferry", 1e-6, is_ferry=True), row("TensorPipe, shm", 4e-6, ferry_is=4.0),
            row("gRPC", 9e-6, ferry_is=9.0), row("broken", None), row("floor: spin", 2e-7, is_floor=True)])])
        self.assertIn("| title of host-8 (`host-8`) | TensorPipe >= 5.00: 4.00 MISSED; Open MPI and UCX >= 0.50: "
                      "not measured | 1.00 us | 4.00 us, TensorPipe, shm | 0.20 us, spin | 2026-01-01 | abc1234 | A |",
                      self.written())

    def test_the_highest_rate_is_the_best(self):
        self.put("2026-01-01", [work("other", "2026-01-01", [
            row("Ferry", 5e3, is_ferry=True), row("slow", 1e3), row("fast", 9e3)], "/s", "more")])
        self.assertIn("| 5.00 K/s | 9.00 K/s, fast |", self.written())

    def test_the_newest_figure_of_each_case_is_shown_with_its_machine(self):
        def ferry(name, date, median):
            return work(name, date, [row("Ferry", median, is_ferry=True)])

        self.put("2026-01-01", [ferry("host-8", "2026-01-01", 1e-6), ferry("other", "2026-01-01", 2e-6)])
        self.put("2026-01-02", [ferry("host-8", "2026-01-02", 3e-6)], {**MACHINE, "processor": "Newer"})
        # Quick runs give no figures.
        self.put("2026-01-03", [ferry("host-8", "2026-01-03", 7e-6)], quick=True)
        page = self.written()
        self.assertIn("| 3.00 us | - | - | 2026-01-02 | abc1234 | A |", page)
        self.assertIn("| 2.00 us | - | - | 2026-01-01 | abc1234 | B |", page)
        self.assertNotIn("1.00 us", page)
        self.assertNotIn("7.00 us", page)
        self.assertIn("- A: Newer, 2 cores", page)

    def put_gpu(self, date, median, is_double=False, gpu_count=1, mps=None, device="Test GPU"):
        figure = {"name": "copy", "bytes": 8, "in_flight": 1, "ferry": {"median_us": median},
                  "floor": {"median_us": 1.5}, "ratio": 1.5 / median, "goal": 0.95,
                  "meets_goal": False}
        document = {"gpu_count": gpu_count, "is_double": is_double, "device": device,
                    "date": f"{date}T00:00:00+00:00", "commit": "0123456789",
                    "versions": {"driver": "1.2"}, "parts": [{"figures": [figure]}]}
        if mps is not None:
            document["mps"] = mps
        name = f"gpu-{date}-mps.json" if mps else f"gpu-{date}.json"
        path = os.path.join(self.root, "benchmarks/results", name)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)

    def test_figures_of_gpus_come_from_the_newest_run_on_a_gpu(self):
        self.put("2026-01-01", [work("host-8", "2026-01-01", [row("Ferry", 1e-6, is_ferry=True)])])
        self.assertIn("No figure of a GPU has been taken yet", self.written())
        self.put_gpu("2026-01-04", 9.0, gpu_count=0)
        self.put_gpu("2026-01-05", 8.0, is_double=True)
        self.assertIn("No figure of a GPU has been taken yet", self.written())
        self.put_gpu("2026-01-01", 5.0)
        self.put_gpu("2026-01-02", 3.0)
        page = self.written()
        self.assertIn("| copy | 8 | 1 | 3.0 | 1.5 | 0.50 | >= 0.95: MISSED |", page)
        self.assertIn("Test GPU, 1 GPU, driver 1.2, NCCL none", page)
        self.assertIn("(results/gpu-2026-01-02.md)", page)
        for other in ("| 5.0 |", "| 8.0 |", "| 9.0 |", "No figure"):
            self.assertNotIn(other, page)

    def test_runs_with_mps_have_a_section_of_their_own(self):
        self.put("2026-01-01", [work("host-8", "2026-01-01", [row("Ferry", 1e-6, is_ferry=True)])])
        self.put_gpu("2026-01-02", 3.0, mps=False)
        self.put_gpu("2026-01-03", 4.0, mps=True)
        self.put_gpu("2026-01-04", 2.0, mps=True)
        before, _, after = self.written().partition("## GPUs: Test GPU, shared by MPS")
        self.assertIn("| copy | 8 | 1 | 3.0 |", before)
        self.assertIn("take turns", before)
        self.assertIn("| copy | 8 | 1 | 2.0 |", after)
        self.assertIn("(results/gpu-2026-01-04-mps.md)", after)
        self.assertNotIn("| 4.0 |", before + after)
        self.assertNotIn("take turns", after)

    def test_each_kind_of_gpu_has_a_section_of_its_own(self):
        self.put("2026-01-01", [work("host-8", "2026-01-01", [row("Ferry", 1e-6, is_ferry=True)])])
        self.put_gpu("2026-01-02", 3.0, device="Old GPU")
        self.put_gpu("2026-01-03", 2.0, device="New GPU")
        page = self.written()
        newer, _, older = page.partition("## GPUs: Old GPU")
        self.assertIn("## GPUs: New GPU", newer)
        self.assertIn("| copy | 8 | 1 | 2.0 |", newer)
        self.assertIn("| copy | 8 | 1 | 3.0 |", older)

    def test_a_folder_without_files_is_an_error(self):
        code, text = self.run_script("--write", self.root)
        self.assertEqual(code, 1)
        self.assertIn("no peers-*.json", text)


if __name__ == "__main__":
    unittest.main()

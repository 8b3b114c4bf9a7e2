# SPDX-License-Identifier: Apache-2.0
"""scripts/bench: one report of all programs, also of those that fail, within its time limit."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

BENCH = pathlib.Path(sys.argv[1]).resolve()
PATIENCE_S = 60

# A program's handling of Google Benchmark's flags, as far as scripts/bench uses them.
GOOD = """#!/bin/sh
for flag; do
  case $flag in --benchmark_out=*) out=${flag#*=} ;; esac
done
echo "{\\"context\\": {\\"flags\\": \\"$1\\"}, \\"benchmarks\\": [{\\"name\\": \\"BM_$(basename $0)\\"}]}" > $out
"""
FAILS = "#!/bin/sh\necho I cannot\nexit 3\n"
# With a process of its own, which must not outlive it.
HANGS = "#!/bin/sh\nsleep 600 & echo $! > $(dirname $0)/child\nwait\n"
ERROR = GOOD.replace('[{', '[{\\"error_occurred\\": true, \\"error_message\\": \\"no\\", ')


class Bench(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def bench(self, *arguments):
        done = subprocess.run([BENCH, f"--programs={self.folder}", "--out=-", *arguments],
                              capture_output=True, text=True, timeout=PATIENCE_S)
        report = json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout
        return done.returncode, report, done.stderr

    def test_one_report_of_all_programs(self):
        self.program("a_bench", GOOD)
        self.program("coordinator_bench", GOOD)
        self.program("not_one_of_them", FAILS)
        status, report, err = self.bench()
        self.assertEqual((status, sorted(report["programs"])), (0, ["a_bench", "coordinator_bench"]))
        self.assertEqual(report["programs"]["a_bench"]["benchmarks"], [{"name": "BM_a_bench"}])
        # Long ones are run in their quick form, unless a full run is requested.
        self.assertEqual(report["programs"]["coordinator_bench"]["context"]["flags"], "--quick")
        _, full, _ = self.bench("--full")
        self.assertNotIn("--quick", full["programs"]["coordinator_bench"]["command"])
        self.assertGreater(report["machine"]["cores"], 0)
        self.assertIn("2 benchmarks of 2 programs", err)
        self.assertEqual(self.bench("--list")[1], "a_bench\ncoordinator_bench\n")

    def test_one_that_fails_is_reported_and_the_others_run(self):
        self.program("a_bench", FAILS)
        self.program("b_bench", GOOD)
        self.program("c_bench", ERROR)
        status, report, err = self.bench()
        self.assertEqual(status, 1)
        self.assertEqual(report["programs"]["a_bench"]["error"], "it ended with 3")
        self.assertEqual(report["programs"]["a_bench"]["last_words"], "I cannot\n")
        self.assertNotIn("error", report["programs"]["b_bench"])
        self.assertIn("BM_c_bench: no", err)
        self.assertIn("2 programs FAILED", err)

    def test_one_that_hangs_is_ended_with_its_processes(self):
        self.program("a_bench", HANGS)
        self.program("b_bench", GOOD)
        status, report, _ = self.bench("--minutes=0.02")
        self.assertEqual(status, 1)
        self.assertRegex(report["programs"]["a_bench"]["error"], "was ended after 0.02 minutes")
        self.assertRegex(report["programs"]["b_bench"]["error"], "no time was left")
        child = int((self.folder / "child").read_text())
        deadline = time.monotonic() + PATIENCE_S
        # It has ended, or is a zombie that its new parent has not reaped yet.
        while time.monotonic() < deadline:
            try:
                state = pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                return
            if state == "Z":
                return
            os.sched_yield()
        self.fail(f"{child} is still there")

    def test_reports_missing_programs(self):
        done = subprocess.run([BENCH, "--preset=nowhere", "--out=-"], capture_output=True,
                              text=True, timeout=PATIENCE_S)
        self.assertEqual(done.returncode, 1)
        self.assertIn("scripts/build nowhere coordinator_bench", done.stderr)

    def test_usage(self):
        self.assertEqual(self.bench("--minutes=0")[0], 2)
        self.assertEqual(self.bench("--speed")[0], 2)
        self.assertEqual(self.bench()[0], 1)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)

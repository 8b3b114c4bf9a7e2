# SPDX-License-Identifier: Apache-2.0
# Proves that scripts/test_report counts cases and repeats the reasons of skipped ones.
import pathlib
import subprocess
import sys
import tempfile
import unittest
from xml.sax.saxutils import escape

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/test_report"


def gtest(*lines):
    return "\n".join(["[==========] Running 1 tests from 1 test suite.", *lines]) + "\n"


class TestReport(unittest.TestCase):
    def report(self, *tests):
        """Each test: (name, status, inner XML, output)."""
        cases = "".join(
            f'<testcase name="{name}" classname="{name}" time="0.1" status="{status}">{inner}'
            f"<system-out>{escape(output)}</system-out></testcase>"
            for name, status, inner, output in tests)
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(f'<?xml version="1.0"?><testsuite name="t">{cases}</testsuite>')
            file.flush()
            done = subprocess.run([sys.executable, SCRIPT, file.name], capture_output=True,
                                  text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip().splitlines()

    def test_counts_the_cases_of_a_gtest_binary(self):
        output = gtest("[ RUN      ] A.B", "[       OK ] A.B (0 ms)",
                       "[ RUN      ] A.C", "[       OK ] A.C (12 ms)",
                       "[  PASSED  ] 2 tests.")
        self.assertEqual(self.report(("a_test", "run", "", output)),
                         ["2 passed, 0 failed, 0 skipped"])

    def test_repeats_why_a_case_was_skipped_and_counts_it_once(self):
        output = gtest("[ RUN      ] Gpu.Copies", "gpu/copy_test.cc:12: Skipped",
                       "no GPU: libcuda.so.1 is", "not there", "",
                       "[  SKIPPED ] Gpu.Copies (0 ms)",
                       "[  SKIPPED ] 1 test, listed below:", "[  SKIPPED ] Gpu.Copies")
        self.assertEqual(self.report(("copy_test", "run", "", output)),
                         ["skipped: copy_test: Gpu.Copies: no GPU: libcuda.so.1 is not there",
                          "0 passed, 0 failed, 1 skipped"])

    def test_counts_a_failed_case_once(self):
        output = gtest("[ RUN      ] A.B/3", "a_test.cc:3: Failure",
                       "[  FAILED  ] A.B/3, where GetParam() = 3 (0 ms)",
                       "[  FAILED  ] 1 test, listed below:", "[  FAILED  ] A.B/3")
        self.assertEqual(self.report(("a_test", "fail", '<failure message=""/>', output)),
                         ["failed: a_test: A.B/3", "0 passed, 1 failed, 0 skipped"])

    def test_counts_the_case_in_which_the_binary_died(self):
        output = gtest("[ RUN      ] A.B", "[       OK ] A.B (0 ms)", "[ RUN      ] A.C")
        failure = '<failure message="SEGFAULT"/>'
        self.assertEqual(self.report(("a_test", "fail", failure, output)),
                         ["failed: a_test: A.C", "1 passed, 1 failed, 0 skipped"])

    def test_counts_a_binary_that_fails_after_its_last_case(self):
        # A leak that the sanitizer reports at exit belongs to no case.
        output = gtest("[ RUN      ] A.B", "[       OK ] A.B (0 ms)")
        failure = '<failure message="Failed"/>'
        self.assertEqual(self.report(("a_test", "fail", failure, output)),
                         ["failed: a_test: Failed", "1 passed, 1 failed, 0 skipped"])

    def test_counts_other_tests_as_one(self):
        self.assertEqual(self.report(("a", "run", "", "fine"), ("b", "fail", "", "no")),
                         ["failed: b", "1 passed, 1 failed, 0 skipped"])

    def test_repeats_why_another_test_was_skipped(self):
        skipped = '<skipped message="SKIP_RETURN_CODE=77"/>'
        self.assertEqual(
            self.report(("jax", "notrun", skipped, "trying\nSKIP: no package index\n")),
            ["skipped: jax: no package index", "0 passed, 0 failed, 1 skipped"])

    def test_counts_a_test_that_could_not_run_as_failed(self):
        self.assertEqual(
            self.report(("jax", "notrun", '<skipped message="Fixture dependency failed"/>', "")),
            ["failed: jax: Fixture dependency failed", "0 passed, 1 failed, 0 skipped"])


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/op_table: a stale table is detected."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FILES = ("tensorflow/graph/op_list.cc", "docs/tensorflow.md")


class OpTable(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        for path in FILES:
            os.makedirs(os.path.join(self.root, os.path.dirname(path)))
            shutil.copy(os.path.join(ROOT, path), os.path.join(self.root, path))

    def change(self, path, old, new):
        path = os.path.join(self.root, path)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.assertIn(old, text)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(old, new, 1))

    def run_script(self, *arguments):
        done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "op_table"), *arguments,
                               self.root], capture_output=True, text=True, timeout=30, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_the_repositorys_own_is_not_stale(self):
        self.assertEqual(self.run_script()[0], 0, self.run_script()[1])

    def test_an_added_or_removed_op_is_detected_and_written(self):
        for old, new in (('{"NoOp", "->"', '{"NoOp2", "->"'),
                         ('    {"NoOp2"', '    {"Added", "->", "", "CPU"},\n    {"NoOp2"')):
            self.change("tensorflow/graph/op_list.cc", old, new)
            code, text = self.run_script()
            self.assertEqual(code, 1)
            self.assertIn("run scripts/op_table --write", text)
            self.assertEqual(self.run_script("--write")[0], 0)
            self.assertEqual(self.run_script()[0], 0)

    def test_a_kernel_on_gpus_is_detected(self):
        self.change("tensorflow/graph/op_list.cc", '"CPU T{$real int32 int64 $complex}"},',
                    '"CPU; GPU T{float}"},')
        self.assertEqual(self.run_script()[0], 1)

    def test_a_page_without_a_table_is_an_error(self):
        self.change("docs/tensorflow.md", "<!-- scripts/op_table: end -->", "")
        code, text = self.run_script("--write")
        self.assertEqual(code, 1)
        self.assertIn("has no place for the table", text)


if __name__ == "__main__":
    unittest.main()

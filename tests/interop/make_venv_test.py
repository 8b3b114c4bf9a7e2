# SPDX-License-Identifier: Apache-2.0
"""Which interpreter make_venv.py uses for a release: one that runs, of the right version."""
import contextlib
import io
import os
import pathlib
import stat
import tempfile
import unittest
from unittest import mock

import make_venv


class FindPython(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        # Nothing of this machine is found.
        for patch in (mock.patch.dict(os.environ, {"PATH": str(self.root / "bin"),
                                                   "PYENV_ROOT": str(self.root / "pyenv")}),
                      mock.patch.object(make_venv.sys, "executable", "")):
            patch.start()
            self.addCleanup(patch.stop)

    def program(self, path, script):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\n" + script + "\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return str(file)

    def refuses(self, *versions):
        said = io.StringIO()
        with self.assertRaises(SystemExit) as ended, contextlib.redirect_stdout(said):
            make_venv.find_python(list(versions))
        self.assertEqual(ended.exception.code, 77)
        return said.getvalue()

    def test_a_shim_that_does_not_run_is_skipped(self):
        self.program("bin/python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
        self.assertEqual(self.refuses("3.12", "3.13"),
                         "SKIP: no python3.12 or python3.13 with the venv module\n")
        real = self.program("pyenv/versions/3.12.1/bin/python3.12", "echo 3.12")
        self.assertEqual(make_venv.find_python(["3.12"]), real)

    def test_one_whose_version_differs_from_its_name_is_skipped(self):
        self.program("bin/python3.13", "echo 3.11")
        self.assertIn("no python3.13", self.refuses("3.13"))

    def test_one_without_the_venv_module_is_skipped(self):
        self.program("bin/python3.12", "echo \"No module named 'ensurepip'\" >&2; exit 1")
        self.assertIn("no python3.12", self.refuses("3.12"))

    def test_the_first_installed_version_is_used(self):
        other = self.program("bin/python3.13", "echo 3.13")
        self.assertEqual(make_venv.find_python(["3.12", "3.13"]), other)
        best = self.program("bin/python3.12", "echo 3.12")
        self.assertEqual(make_venv.find_python(["3.12", "3.13"]), best)

    def test_each_release_lists_its_versions(self):
        folder = pathlib.Path(make_venv.HERE) / "requirements"
        versions = {path.stem: make_venv.versions_of(path.read_text())
                    for path in folder.glob("*.txt")}
        self.assertEqual(versions["jax-0.12.0.1"], ["3.12", "3.13"])
        self.assertEqual({tuple(found) for name, found in versions.items()
                          if name != "jax-0.12.0.1"}, {("3.11",)})


if __name__ == "__main__":
    unittest.main()

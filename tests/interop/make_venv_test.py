# SPDX-License-Identifier: Apache-2.0
"""Which interpreter make_venv.py uses for a release: one that runs, of the right version. What it installs of Debian's,
and the reasons for which it skips."""
import contextlib
import io
import os
import pathlib
import stat
import tempfile
import unittest
from unittest import mock

import make_venv


class Machine(unittest.TestCase):
    """A machine without a program but those that a test puts there."""

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

    def skips(self, function, *arguments):
        said = io.StringIO()
        with self.assertRaises(SystemExit) as ended, contextlib.redirect_stdout(said):
            function(*arguments)
        self.assertEqual(ended.exception.code, 77)
        return said.getvalue()


class FindPython(Machine):
    def refuses(self, *versions):
        return self.skips(make_venv.find_python, list(versions))

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


class InstallFromDebian(Machine):
    def setUp(self):
        super().setUp()
        # Root needs no sudo.
        patch = mock.patch.object(make_venv.os, "geteuid", lambda: 0)
        patch.start()
        self.addCleanup(patch.stop)
        self.program("bin/env", "shift; exec \"$@\"")
        self.program("bin/dpkg-query", f"eval package=\\${{$#}}; [ -e {self.root}/$package ] && printf installed")

    def apt_get(self, install):
        """Its calls are written to self.root / "calls"; `install` is its script for an installation."""
        self.program("bin/apt-get", f"echo \"$*\" >> {self.root}/calls\n"
                                    f"case \"$*\" in *install*) {install};; *) exit 100;; esac")

    def calls(self):
        file = self.root / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def test_another_system_is_skipped(self):
        (self.root / "bin/dpkg-query").unlink()
        self.assertEqual(self.skips(make_venv.install_from_debian, ["one"]), "SKIP: one: not a Debian system\n")

    def test_nothing_is_called_for_packages_that_are_there(self):
        self.apt_get("exit 1")
        (self.root / "one").touch()
        make_venv.install_from_debian(["one"])
        self.assertEqual(self.calls(), [])

    def test_only_missing_packages_are_installed_though_the_update_fails(self):
        self.apt_get("exit 0")
        (self.root / "one").touch()
        make_venv.install_from_debian(["one", "two"])
        self.assertTrue(self.calls()[-1].endswith(" install --yes --no-install-recommends two"), self.calls())

    def test_a_failed_installation_is_skipped_with_its_last_line(self):
        self.apt_get("echo first >&2; echo 'E: no such package' >&2; exit 100")
        self.assertEqual(self.skips(make_venv.install_from_debian, ["one"]),
                         "SKIP: apt-get install one: E: no such package\n")


class CheckSpace(Machine):
    def test_a_release_that_does_not_fit_is_skipped(self):
        there = str(self.root / "torch-2.6.0")
        make_venv.check_space("# Gigabytes: 0\n", there)
        make_venv.check_space("torch==2.6.0\n", there)
        self.assertRegex(self.skips(make_venv.check_space, "# Gigabytes: 999999\n", there),
                         r"^SKIP: torch-2.6.0 takes 999999 GB, and [0-9.]+ GB are free\n$")


if __name__ == "__main__":
    unittest.main()

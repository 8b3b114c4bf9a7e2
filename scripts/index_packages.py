# SPDX-License-Identifier: Apache-2.0
"""Installs pinned packages of the Python index into a folder, for scripts/get_nvcc and scripts/get_nanobind."""
import hashlib
import pathlib
import shutil
import subprocess
import sys

INSTALL_S = 600


class IndexPackages:
    """The packages of a requirements file, whose hashes are checked, in a virtual environment of their own.
        tool: the script's name, for its messages.

    Where that cannot work, methods print the reason on one line to stderr and end the process with 1."""

    def __init__(self, tool, requirements, folder):
        self.tool = tool
        self.requirements = pathlib.Path(requirements)
        self.folder = pathlib.Path(folder)
        self._stamp = self.folder / "installed"
        self._wanted = hashlib.sha256(self.requirements.read_bytes()).hexdigest()

    def install(self):
        """By pip and its configuration; does nothing when `finish` was called after the same file. Takes about half a
        minute if the index does not answer."""
        if self._stamp.exists() and self._stamp.read_text() == self._wanted:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.run("python3 -m venv", [sys.executable, "-m", "venv", str(self.folder)])
        self.run("pip install (does the index answer?)", [
            str(self.folder / "bin/python3"), "-m", "pip", "install", "--quiet",
            "--disable-pip-version-check", "--no-input", "--no-deps", "--only-binary=:all:",
            "--require-hashes", "--retries=1", "--timeout=10", f"--requirement={self.requirements}"])

    def find(self, pattern):
        """The first path below site-packages that matches the pattern, as text."""
        found = sorted(self.folder.glob(f"lib/python3*/site-packages/{pattern}"))
        if not found:
            self.fail(f"the packages of {self.requirements.name} have no {pattern.rpartition('/')[2]}")
        return str(found[0])

    def run(self, description, command):
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=INSTALL_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            self.fail(f"{description}: {error}")
        if done.returncode != 0:
            lines = [line for line in done.stdout.splitlines() if line.strip()]
            errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
            self.fail(f"{description} failed: {errors[-1] if errors else f'exit status {done.returncode}'}")

    def fail(self, reason):
        print(f"{self.tool}: {reason}", file=sys.stderr)
        sys.exit(1)

    def finish(self, result):
        """The installation is usable: prints `result`."""
        self._stamp.write_text(self._wanted)
        print(result)


def folder_argument(documentation):
    """The one argument of such a script; prints `documentation` and ends for others."""
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(documentation.rstrip("\n"))
        sys.exit(0 if len(sys.argv) == 2 else 2)
    return pathlib.Path(sys.argv[1]).absolute()

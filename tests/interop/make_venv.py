#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Create the virtual environment of one release of jaxlib or TensorFlow, once.

  make_venv.py DESTINATION RELEASE

installs requirements/RELEASE.txt into DESTINATION and leaves a stamp with
that file's hash, so the next call returns at once.  A line `# Python: 3.12 3.13`
in there names the interpreters for which it has wheels, the best first; 3.11 is
Debian 12's, and stands for a file without that line.  Where it cannot work, for
want of such an interpreter or of a reachable package index, it prints
`SKIP: reason` within about 20 s and ends with 77, which test runners count as
skipped.
"""
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PROBE_S = 20
INSTALL_S = 900


def skip(reason):
    print(f"SKIP: {reason}", flush=True)
    sys.exit(77)


def versions_of(requirements):
    """The interpreters that a requirements file is for: ["3.12", "3.13"]."""
    found = re.search(r"^# Python: (.+)$", requirements, re.MULTILINE)
    return found.group(1).split() if found else ["3.11"]


def candidates_of(version):
    """Where an interpreter of that version may be, whether it runs or not."""
    yield sys.executable
    yield shutil.which(f"python{version}")
    # On the path pyenv has only a shim, which fails for a version that is
    # installed and not selected: the interpreters themselves are in here.
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    yield from sorted(glob.glob(os.path.join(root, "versions", "*", "bin", f"python{version}")))
    yield shutil.which("python3")


def find_python(versions):
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    for version in versions:
        for path in filter(None, candidates_of(version)):
            try:
                probe = subprocess.run([path, "-c", code], capture_output=True, text=True,
                                       timeout=PROBE_S)
            except (OSError, subprocess.TimeoutExpired):
                continue
            if probe.stdout.strip() == version:
                return path
    skip(f"no python{' or python'.join(versions)} with the venv module")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    destination, release = os.path.abspath(sys.argv[1]), sys.argv[2]
    requirements = os.path.join(HERE, "requirements", f"{release}.txt")
    if not os.path.exists(requirements):
        sys.exit(f"no requirements/{release}.txt")
    with open(requirements, encoding="ascii") as file:
        content = file.read()
    wanted = hashlib.sha256(content.encode()).hexdigest()
    stamp = os.path.join(destination, "ferry-requirements.sha256")
    if os.path.exists(stamp):
        with open(stamp, encoding="ascii") as file:
            if file.read().strip() == wanted:
                return

    python = find_python(versions_of(content))
    # A half-made or outdated one is ours to replace only if it is a venv.
    if os.path.exists(destination):
        if not os.path.exists(os.path.join(destination, "pyvenv.cfg")):
            sys.exit(f"{destination} exists and is no virtual environment")
        shutil.rmtree(destination)
    subprocess.run([python, "-m", "venv", destination], check=True, timeout=120)
    pip = [os.path.join(destination, "bin", "python"), "-m", "pip",
           "--disable-pip-version-check", "--no-input"]
    # pip retries a dead index for minutes, so fetch one small file first.
    probe = pip + ["--retries=0", "--timeout=10", "download", "--quiet", "--no-deps",
                   "--no-cache-dir", f"--dest={os.path.join(destination, 'probe')}",
                   "opt_einsum==3.4.0"]
    try:
        reachable = subprocess.run(probe, capture_output=True, timeout=PROBE_S).returncode == 0
    except subprocess.TimeoutExpired:
        reachable = False
    shutil.rmtree(os.path.join(destination, "probe"), ignore_errors=True)
    if not reachable:
        skip("the Python package index is out of reach")
    subprocess.run(pip + ["install", "--quiet", "--requirement", requirements],
                   check=True, timeout=INSTALL_S)
    with open(stamp, "w", encoding="ascii") as file:
        file.write(wanted + "\n")


if __name__ == "__main__":
    main()

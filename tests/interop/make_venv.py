#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Create the virtual environment of one release of jaxlib or TensorFlow, once.

  make_venv.py DESTINATION RELEASE

installs requirements/RELEASE.txt into DESTINATION and leaves a stamp with
that file's hash, so the next call returns at once.  Where that cannot work, for
want of Python 3.11 or of a reachable package index, it prints `SKIP: reason`
within about 20 s and ends with 77, which test runners count as skipped.
"""
import hashlib
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PROBE_S = 20
INSTALL_S = 900


def skip(reason):
    print(f"SKIP: {reason}", flush=True)
    sys.exit(77)


def find_python():
    # All releases covered share one Python: 3.11.
    for candidate in (sys.executable, "python3.11", "python3"):
        path = shutil.which(candidate) if candidate else None
        if not path:
            continue
        code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        probe = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=PROBE_S)
        if probe.stdout.strip() == "3.11":
            return path
    skip("no python3.11 with the venv module")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    destination, release = os.path.abspath(sys.argv[1]), sys.argv[2]
    requirements = os.path.join(HERE, "requirements", f"{release}.txt")
    if not os.path.exists(requirements):
        sys.exit(f"no requirements/{release}.txt")
    with open(requirements, "rb") as file:
        wanted = hashlib.sha256(file.read()).hexdigest()
    stamp = os.path.join(destination, "ferry-requirements.sha256")
    if os.path.exists(stamp):
        with open(stamp, encoding="ascii") as file:
            if file.read().strip() == wanted:
                return

    python = find_python()
    # A half-made or outdated one is ours to replace only if it is a venv.
    if os.path.exists(destination):
        if not os.path.exists(os.path.join(destination, "pyvenv.cfg")):
            sys.exit(f"{destination} exists and is no virtual environment")
        shutil.rmtree(destination)
    subprocess.run([python, "-m", "venv", destination], check=True, timeout=120)
    pip = [os.path.join(destination, "bin", "python"), "-m", "pip",
           "--disable-pip-version-check", "--no-input"]
    # pip retries a dead index for minutes, so ask for one small file first.
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

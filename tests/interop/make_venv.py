#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Create the virtual environment of one release of jaxlib, TensorFlow, PyTorch or NCCL, once.

  make_venv.py DESTINATION RELEASE

installs requirements/RELEASE.txt into DESTINATION and leaves a stamp with
that file's hash, so the next call returns at once.  A line `# Python: 3.12 3.13`
in there names the interpreters for which it has wheels, the best first; 3.11 is
Debian 12's, and stands for a file without that line.  A line `# Gigabytes: 8` says how
much free disk space the installation takes.

A line `# Debian: python3-torch` stands for a release that Debian has: its packages
are installed with apt-get (as root or with sudo), and the environment is that of
/usr/bin/python3 with what Debian has installed for it, and with the packages of
the index that the file lists besides.

Where it cannot work, for want of an interpreter, of disk space, of a package or
of a reachable package index, it prints `SKIP: reason`, within about 20 s if
nothing can be downloaded, and ends with 77, which test runners count as skipped.
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
INSTALL_S = 1500
DEBIANS_PYTHON = "/usr/bin/python3"


def skip(reason):
    print(f"SKIP: {reason}", flush=True)
    sys.exit(77)


def words_of(requirements, name):
    """Those of the line `# name: words` of a requirements file."""
    found = re.search(rf"^# {name}: (.+)$", requirements, re.MULTILINE)
    return found.group(1).split() if found else []


def versions_of(requirements):
    """The interpreters that a requirements file is for: ["3.12", "3.13"]."""
    return words_of(requirements, "Python") or ["3.11"]


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


def is_installed(package):
    shown = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status}", package], capture_output=True, text=True,
                           timeout=PROBE_S)
    return shown.stdout == "installed"


def install_from_debian(packages):
    if not shutil.which("dpkg-query") or not shutil.which("apt-get"):
        skip(f"{' '.join(packages)}: not a Debian system")
    missing = [package for package in packages if not is_installed(package)]
    if not missing:
        return
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    apt = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=120",
           "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=30"]
    # Lists from a failed or an absent update may still do.
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
        try:
            done = subprocess.run([*apt, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=INSTALL_S)
            why = "" if done.returncode == 0 else last_line(done.stderr or done.stdout)
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
    if why:
        skip(f"apt-get install {' '.join(missing)}: {why}")


def last_line(text):
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def check_space(requirements, destination):
    wanted = int((words_of(requirements, "Gigabytes") or ["0"])[0])
    free = shutil.disk_usage(os.path.dirname(destination)).free / 1e9
    if free < wanted:
        skip(f"{os.path.basename(destination)} takes {wanted} GB, and {free:.1f} GB are free")


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

    debians = words_of(content, "Debian")
    of_index = [line for line in content.splitlines() if line and not line.startswith("#")]
    if debians:
        install_from_debian(debians)
        python = DEBIANS_PYTHON
        options = ["--system-site-packages", *([] if of_index else ["--without-pip"])]
    else:
        python, options = find_python(versions_of(content)), []
    # A half-made or outdated one is ours to replace only if it is a venv.
    if os.path.exists(destination):
        if not os.path.exists(os.path.join(destination, "pyvenv.cfg")):
            sys.exit(f"{destination} exists and is no virtual environment")
        shutil.rmtree(destination)
    os.makedirs(os.path.dirname(destination), exist_ok=True)
    check_space(content, destination)
    subprocess.run([python, "-m", "venv", *options, destination], check=True, timeout=120)
    if of_index:
        install_from_index(destination, requirements)
    with open(stamp, "w", encoding="ascii") as file:
        file.write(wanted + "\n")


def install_from_index(destination, requirements):
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
    done = subprocess.run(pip + ["install", "--quiet", "--requirement", requirements],
                          stderr=subprocess.PIPE, text=True, timeout=INSTALL_S)
    sys.stderr.write(done.stderr)
    if "No matching distribution found" in done.stderr:
        skip(last_line(done.stderr))
    if done.returncode:
        sys.exit(f"pip ended with {done.returncode}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The types of the Python package: mypy --strict takes its sources; its stub is what the module says, by nanobind and by
mypy's stubtest.

  python_types.py --python=INTERPRETER --package=FOLDER
"""
import argparse
import os
import pathlib
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(command, **environment):
    print("$", " ".join(map(str, command)), flush=True)
    return subprocess.run(command, stdin=subprocess.DEVNULL, cwd=ROOT / "python", check=False, timeout=240,
                          env={**os.environ, **environment}).returncode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--package", type=pathlib.Path, required=True)
    options = parser.parse_args()
    module = options.package / "ferry" / ("_core" + sysconfig.get_config_var("EXT_SUFFIX"))
    if not module.exists():
        print(f"SKIP: there is no {module.name} in the build: it is for another Python")
        return 77
    mypy = pathlib.Path(options.python).parent / "mypy"
    stubtest = mypy.with_name("stubtest")
    passed = [
        run([mypy, "--strict", "-p", "ferry"]),
        run([ROOT / "scripts/python_stubs", "--check", options.python]),
        run([stubtest, "ferry._core", "--ignore-disjoint-bases", "--concise", "--allowlist=stubtest_allowlist.txt"],
            PYTHONPATH=str(options.package), MYPYPATH=str(options.package)),
    ]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())

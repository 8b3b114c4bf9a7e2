#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ferry's declarations of CUDA and NCCL against the headers of NVIDIA's wheels, and its loader against their library.

  PYTHON nvidia_wheels.py --compiler=g++ --source=FERRY --test=build/release/tests/gpu/gpu_installed_nccl_test

PYTHON is the interpreter of an environment with the wheels of a CUDA runtime and of NCCL. The tests that compare the
declarations do so while they are compiled, so they are compiled and not run. No GPU is needed.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import sysconfig

COMPILE_S = 120
RUN_S = 120


def only(packages, pattern):
    """The file of the wheels that has this name."""
    found = sorted(packages.glob(f"nvidia/**/{pattern}"))
    if len(found) != 1:
        sys.exit(f"{packages}/nvidia has {len(found)} files {pattern}, not one")
    return found[0]


def run(what, command, timeout, environment=None):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout,
                          env=environment)
    print(f"{'ok' if done.returncode == 0 else 'FAILED'} {what}", flush=True)
    if done.returncode != 0:
        print(done.stdout, flush=True)
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("--test", required=True)
    parser.add_argument("--python")
    arguments = parser.parse_args()

    packages = pathlib.Path(sysconfig.get_path("purelib"))
    includes = ["-I", str(arguments.source)]
    for header in ("cuda.h", "nccl.h"):
        includes += ["-isystem", str(only(packages, header).parent)]
    library = str(only(packages, "libnccl.so.2"))

    results = []
    for test in ("driver_types_test.cc", "nccl_types_test.cc"):
        command = [arguments.compiler, "-std=c++20", "-fsyntax-only", *includes,
                   str(arguments.source / "tests" / "gpu" / test)]
        results.append(run(f"compile {test}", command, COMPILE_S))
    # A library that is named and cannot be loaded is a failure there.
    results.append(run(f"load {library}", [arguments.test], RUN_S, {**os.environ, "FERRY_NCCL_LIBRARY": library}))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one of examples/python, or the program of a document, under `ferry run`, and checks all that its processes print.

  python_example.py --python=INTERPRETER --ferry=PROGRAM --package=FOLDER EXAMPLE|DOCUMENT
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_S = 240

# The number of processes, and patterns of lines with how many processes print each.
EXPECTED = {
    "numpy_exchange": (2, {
        r"rank 0 received \[\[10.0, 11.0, 12.0\], \[13.0, 14.0, 15.0\]\]": 1,
        r"rank 1 received \[\[0.0, 1.0, 2.0\], \[3.0, 4.0, 5.0\]\]": 1,
        r"rank ([01]) received 8388608 bytes by shm, all ([01]): True": 2,
        r"rank 1 received epoch 7 and 2 layers": 1,
    }),
    "torch_weights": (5, {
        r"rank [1-4] has version 1: 4 tensors, checksum -?\d+\.\d+": 4,
        r"rank [1-4] has version 2: 4 tensors, checksum -?\d+\.\d+": 4,
        r"rank [1-4] has version 3: 4 tensors, checksum -?\d+\.\d+": 4,
    }),
    "jax_side_channel": (2, {
        r"process 0 of 2 received bfloat16 \[0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0\]": 1,
        r"process 1 of 2 received bfloat16 \[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0\]": 1,
        r"process 1 received \['b', 'w'\], sum 16.0": 1,
    }),
    "README.md": (2, {r"[01] \[0. 1. 2. 3.\]": 2}),
    "docs/python.md": (2, {r"\[0. 1. 2. 3.\]": 2}),
}


def program_of(example, folder):
    """The path of the example; for a document, that of its first Python block that imports ferry."""
    if not example.endswith(".md"):
        return ROOT / f"examples/python/{example}.py"
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / example).read_text(encoding="utf-8"), re.DOTALL)
    path = pathlib.Path(folder, "program.py")
    path.write_text(next(block for block in blocks if "import ferry\n" in block), encoding="utf-8")
    return path


def main():
    parser = argparse.ArgumentParser()
    for option in ("python", "ferry", "package"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("example", choices=EXPECTED)
    options = parser.parse_args()
    module = pathlib.Path(options.package, "ferry", "_core" + sysconfig.get_config_var("EXT_SUFFIX"))
    if not module.exists():
        print(f"SKIP: there is no {module.name} in the build: it is for another Python")
        return 77
    processes, expected = EXPECTED[options.example]
    environment = {name: value for name, value in os.environ.items()
                   if not re.match(r"FERRY_|JAX_|RANK$|WORLD_SIZE$|MASTER_|SLURM_|OMPI_|PMI", name)}
    environment.update(PYTHONPATH=options.package, FERRY_TOOL=options.ferry, JAX_PLATFORMS="cpu")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([options.ferry, "run", f"--nproc={processes}", "--", options.python,
                               str(program_of(options.example, folder))],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=environment, timeout=DEADLINE_S, check=False)
    print(done.stdout)
    lines = [re.sub(r"^\[\d+\] ", "", line) for line in done.stdout.splitlines()]
    faults = [] if done.returncode == 0 else [f"it ended with {done.returncode}"]
    for pattern, count in expected.items():
        found = sum(bool(re.fullmatch(pattern, line)) for line in lines)
        if found != count:
            faults.append(f"{found} lines, not {count}, match {pattern}")
    if "Traceback" in done.stdout:
        faults.append("there is a traceback")
    for fault in faults:
        print("python_example: " + fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

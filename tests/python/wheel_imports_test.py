#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The module `ferry` of a wheel in one process with PyTorch, JAX and TensorFlow, imported in every order.

  wheel_imports_test.py --python=INTERPRETER WHEEL-OR-FOLDER [--frameworks=torch,jax,tensorflow]

Each of them brings its own copies of Protobuf, Abseil and other libraries. For each order a new process imports them,
and then lets each do work in which those libraries take part. FOLDER: of wheels, of which the one for INTERPRETER is taken.
"""
import argparse
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

DEADLINE_S = 120

PROGRAM = """
import faulthandler, sys
faulthandler.enable()
order = sys.argv[1].split(",")
for name in order:
    __import__(name)
    if name == "ferry":
        import ferry._core

def of_ferry():
    import ferry, numpy
    with ferry.join(timeout=60) as node:
        node.store.set("k", b"v")
        assert node.store.get("k", timeout=30) == b"v"
        assert node.topology is not None
        x = numpy.arange(1 << 16, dtype=numpy.float32)
        with node.step(1) as step:
            sending = step.isend(x, "x", to=0)
            y = numpy.from_dlpack(step.recv("x", source=0, timeout=30))
            assert (x == y).all()
            sending.wait(timeout=30)

def of_torch():
    import torch
    x = torch.ones(64, 64)
    assert float((x @ x).sum()) == 64.0 ** 3

def of_jax():
    import jax, jax.numpy
    x = jax.numpy.ones((64, 64))
    assert float(jax.jit(lambda x: (x @ x).sum())(x)) == 64.0 ** 3

def of_tensorflow():
    import tensorflow as tf
    # Serialized by the Protobuf of Python, parsed by that of TensorFlow's C++.
    example = tf.train.Example(features=tf.train.Features(feature={
        "a": tf.train.Feature(int64_list=tf.train.Int64List(value=[7]))}))
    parsed = tf.io.parse_single_example(example.SerializeToString(), {"a": tf.io.FixedLenFeature([], tf.int64)})
    assert int(parsed["a"]) == 7
    double = tf.function(lambda x: tf.reduce_sum(tf.matmul(x, x)))
    assert float(double(tf.ones((64, 64)))) == 64.0 ** 3
    graph = double.get_concrete_function(tf.TensorSpec((64, 64))).graph.as_graph_def()
    assert tf.compat.v1.GraphDef.FromString(graph.SerializeToString()) == graph

# Twice, so that each also works after the others have.
for name in order + order[:-1]:
    globals()["of_" + name]()
print("all worked")
"""


def pick_wheel(path, version):
    """The wheel for that version, (3, 11), or None."""
    if path.is_file():
        return path
    for wheel in sorted(path.glob("ferry_runtime-*.whl"), key=lambda wheel: wheel.stat().st_mtime, reverse=True):
        found = re.search(r"-cp3(\d+)-(abi3|cp3)", wheel.name)
        if found and (int(found[1]) == version[1] or (found[2] == "abi3" and int(found[1]) <= version[1])):
            return wheel
    return None


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--frameworks", default="torch,jax,tensorflow")
    parser.add_argument("wheel", type=pathlib.Path)
    options = parser.parse_args()
    version = subprocess.run([options.python, "-c", "import sys; print(*sys.version_info[:2])"], check=True,
                             capture_output=True, text=True, timeout=60).stdout
    wheel = pick_wheel(options.wheel, tuple(map(int, version.split())))
    if not wheel:
        print(f"SKIP: {options.wheel} has no wheel for Python {version.strip().replace(' ', '.')}: scripts/wheel makes it")
        return 77
    faults, count = [], 0
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        tool, = pathlib.Path(folder).glob("*.data/scripts/ferry")
        tool.chmod(0o755)
        environment = {name: value for name, value in os.environ.items() if not re.match(r"FERRY_|JAX_|RANK$", name)}
        environment.update(PYTHONPATH=folder, JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="2")
        for order in itertools.permutations(["ferry", *options.frameworks.split(",")]):
            names = ",".join(order)
            try:
                done = subprocess.run([tool, "run", "--nproc=1", "--", options.python, "-c", PROGRAM, names],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      text=True, env=environment, cwd=folder, timeout=DEADLINE_S, check=False)
                worked, said = done.returncode == 0 and "all worked" in done.stdout, done.stdout
            except subprocess.TimeoutExpired as error:
                worked, said = False, f"{error}\n{error.stdout}"
            count += 1
            print(f"{names}: {'works' if worked else 'FAILS'}", flush=True)
            if not worked:
                faults.append(names)
                print(said)
    print(f"{count - len(faults)} of {count} orders work with {wheel.name}")
    return 1 if faults or not count else 0


if __name__ == "__main__":
    sys.exit(main())

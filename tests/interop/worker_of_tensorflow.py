# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's own master and worker drive a worker of ours, which then has nothing left.

  worker_of_tensorflow.py --program=build/release/tests/tensorflow/worker/worker_program
"""
import argparse
import os
import subprocess
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from harness import free_port  # noqa: E402

v1 = tf.compat.v1
FERRY = "/job:worker/task:1/cpu:0"
THEIRS = "/job:worker/task:0/cpu:0"


def expect_error(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), f"{text!r} is not in: {error}"
        return
    raise AssertionError(f"no {kind.__name__}")


def build():
    graph = {}
    with tf.device(THEIRS):
        graph["x"] = v1.placeholder(tf.float32, [None], name="x")
        graph["text"] = v1.placeholder(tf.string, [None])
    with tf.device(FERRY):
        graph["y"] = graph["x"] * 3.0
        graph["text_there"] = tf.identity(graph["text"])
        graph["own"] = v1.placeholder(tf.float32, [None], name="own")
        graph["own_plus"] = graph["own"] + 1.0
        graph["random"] = tf.random.uniform([2])
        graph["unfed"] = tf.identity(v1.placeholder(tf.float32, [None], name="never_fed"))
        graph["v"] = v1.get_variable("v", initializer=tf.constant(5.0), use_resource=True)
        graph["add"] = graph["v"].assign_add(2.0)
    with tf.device(THEIRS):
        graph["back"] = graph["y"] + 1.0
    with tf.device(FERRY):
        graph["again"] = graph["back"] * graph["back"]
    return graph


def drive(target):
    graph = build()
    session = v1.Session(target)
    names = [device.name for device in session.list_devices()]
    assert "/job:worker/replica:0/task:1/device:CPU:0" in names, names

    two = {graph["x"]: [1.0, 2.0]}
    assert list(session.run(graph["y"], two)) == [3.0, 6.0]
    again, y = session.run([graph["again"], graph["y"]], two)
    assert list(again) == [16.0, 49.0] and list(y) == [3.0, 6.0]
    texts = [b"", b"a\0b", b"\xff" * 100_000]
    assert list(session.run(graph["text_there"], {graph["text"]: texts})) == texts
    large = np.arange(1 << 22, dtype=np.float32)
    assert np.array_equal(session.run(graph["own_plus"], {graph["own"]: large}), large + 1)
    empty = session.run(graph["own_plus"], {graph["own"]: []})
    assert empty.shape == (0,)
    session.run(graph["v"].initializer)
    assert session.run(graph["add"]) == 7.0 and session.run(graph["v"]) == 7.0
    assert list(session.run(graph["random"])) != list(session.run(graph["random"]))

    expect_error(tf.errors.InvalidArgumentError,
                 "You must feed a value for placeholder tensor 'never_fed'",
                 lambda: session.run(graph["unfed"]))

    handle = session.partial_run_setup([graph["y"], graph["own_plus"]],
                                       [graph["x"], graph["own"]])
    assert list(session.partial_run(handle, graph["y"], {graph["x"]: [1.0]})) == [3.0]
    assert list(session.partial_run(handle, graph["own_plus"], {graph["own"]: [1.0]})) == [2.0]

    metadata = v1.RunMetadata()
    session.run(graph["again"], two, run_metadata=metadata,
                options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE,
                                      output_partition_graphs=True))
    rows = [row for device in metadata.step_stats.dev_stats if "task:1" in device.device
            for row in device.node_stats]
    assert any(row.node_name == "y" or "mul" in row.node_name for row in rows), rows
    assert any(" by grpc" in row.timeline_label for row in rows), rows
    assert len(metadata.partition_graphs) == 2

    begin = time.time()
    steps = 1000
    for _ in range(steps):
        session.run(graph["again"], two)
    print(f"{(time.time() - begin) / steps * 1e6:.0f} us a step with two crossings each way")
    session.close()
    v1.Session.reset(target)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", help="of no account")
    options = parser.parse_args()
    v1.disable_eager_execution()
    port = free_port()
    ferry = subprocess.Popen([options.program, f"127.0.0.1:{port}"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    address = ferry.stdout.readline().strip()
    server = tf.distribute.Server({"worker": [f"127.0.0.1:{port}", address]}, job_name="worker",
                                  task_index=0)
    status = 1
    try:
        drive(server.target)
        # Cleaning up is not waited for by masters.
        time.sleep(1)
        left = ferry.communicate("", timeout=30)[0].strip()
        print(left)
        assert left == "steps 0, rendezvous 0, graphs 0, sessions 0, variables 0", left
        status = 0
    finally:
        ferry.kill()
        sys.stdout.flush()
        sys.stderr.flush()
        # TensorFlow's server cannot be stopped.
        if status == 0:
            os._exit(0)


if __name__ == "__main__":
    main()

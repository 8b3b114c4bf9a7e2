#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real TensorFlow client that opens sessions and runs steps over three workers.

  tensorflow_session_test.py --ferry=build/ferry --python=VENV/bin/python
  tensorflow_session_test.py --real              --python=VENV/bin/python

With --real the servers are TensorFlow's own; a case that fails there has a wrong
expectation.  Prints `ok NAME`, `skipped NAME: why` or `FAILED NAME: why` per case and ends
non-zero if any failed.  --only=a,b picks cases.
"""
import argparse
import signal
import sys
import time

import grpc
import numpy as np
from session_cluster import (CASES, CPUS, WORKERS, WRONG_SIZE, Cluster, Skipped, case, equal,
                             errors, fails, pb, reshape_to_three, tf)
from step_stats import check_crossings, check_timeline
from tensorflow.core.protobuf import config_pb2

from harness import Failure, check


@case
def devices(cluster):
    with cluster.session(tf.Graph()) as session:
        found = {device.name: device for device in session.list_devices()}
    for task in range(WORKERS):
        name = f"/job:worker/replica:0/task:{task}/device:CPU:0"
        check(name in found, f"{name} is not in {sorted(found)}")
        check(found[name].device_type == "CPU", found[name].device_type)
    incarnations = {found[name].incarnation for name in found}
    check(len(incarnations) == len(found), "two workers have one incarnation")


@case
def feeds_and_fetches(cluster):
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None], name="x")
        y = tf.constant([1.0, 2.0], name="y")
        with tf.device(CPUS[1]):
            z = tf.add(x, y, name="z")
        nothing = tf.group(z)
    with cluster.session(graph) as session:
        equal(session.run(z, {x: [3, 4]}), np.float32([4, 6]))
        both = session.run({"z": z, "again": z, "y": y}, {x: [0, 1]})
        equal(both["z"], np.float32([1, 3]))
        equal(both["again"], both["z"])
        equal(both["y"], np.float32([1, 2]))
        check(session.run(nothing, {x: [0, 1]}) is None, "a target has a value")
        # A feed replaces the computed value.
        equal(session.run(z + 1, {z: [5, 6]}), np.float32([6, 7]))
        fails(errors.InvalidArgumentError, "You must feed a value for placeholder tensor 'x'",
              lambda: session.run(z))


@case
def types_cross(cluster):
    values = [np.array(v) for v in ([True, False], np.int8([-1, 2]), np.uint16([1, 2]),
                                    np.int32([[1], [2]]), np.int64([-5]), np.float16([0.5, 2]),
                                    np.float64([1.5]), np.complex64([1 + 2j]), np.float32([]),
                                    np.float32(3))]
    with tf.Graph().as_default() as graph:
        with tf.device(CPUS[0]):
            here = [tf.placeholder(v.dtype, v.shape) for v in values]
            texts = tf.placeholder(tf.string, [3])
        with tf.device(CPUS[2]):
            there = [tf.identity(h) for h in here]
            texts_there = tf.identity(texts)
    with cluster.session(graph) as session:
        got = session.run(there, dict(zip(here, values)))
        for result, value in zip(got, values):
            equal(result, value)
        words = [b"", b"\x00\xff", b"x" * 100000]
        got = session.run(texts_there, {texts: words})
        check(list(got) == words, "strings have changed")


@case
def grows(cluster):
    """Nodes that are added between steps are sent as an extension."""
    with tf.Graph().as_default() as graph, cluster.session(graph) as session:
        total = tf.constant(0.0)
        for i in range(20):
            with tf.device(CPUS[i % WORKERS]):
                total = total + float(i)
            equal(session.run(total), np.float32(i * (i + 1) / 2))


@case
def converges(cluster):
    """The largest eigenvalue of a matrix, by hundreds of steps over two workers."""
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float64, [2, 1])
        with tf.device(CPUS[1]):
            a = tf.constant([[3.0, 2.0], [-1.0, 0.0]], tf.float64)
            y = tf.matmul(a, x)
        with tf.device(CPUS[2]):
            normed = y / tf.sqrt(tf.reduce_sum(y * y))
    value = np.float64([[1.0], [1.0]])
    with cluster.session(graph) as session:
        for _ in range(300):
            product, value = session.run([y, normed], {x: value})
    check(abs(np.abs(product).max() / np.abs(value).max() - 2.0) < 1e-6, f"{product} {value}")


@case
def variables_are_shared(cluster):
    cluster_reset(cluster)
    with tf.Graph().as_default() as graph:
        with tf.device(CPUS[1]):
            v = tf.get_variable("v", [], initializer=tf.zeros_initializer(), use_resource=True)
            add = v.assign_add(2.0)
        read = v.read_value()
        init = v.initializer
    with cluster.session(graph) as one, cluster.session(graph) as other:
        one.run(init)
        one.run(add)
        equal(other.run(read), np.float32(2))
        other.run(add)
        equal(one.run(read), np.float32(4))
        with cluster.session(graph, isolate_session_state=True) as alone:
            fails(errors.FailedPreconditionError, "v", lambda: alone.run(read))
    cluster_reset(cluster)
    with cluster.session(graph) as later:
        fails(errors.FailedPreconditionError, "v", lambda: later.run(read))


def cluster_reset(cluster, containers=None):
    tf.Session.reset(cluster.target, containers)


@case
def reset_ends_sessions(cluster):
    with tf.Graph().as_default() as graph:
        one = tf.constant(1.0)
    session = cluster.session(graph)
    session.run(one)
    cluster_reset(cluster)
    fails((errors.AbortedError, errors.FailedPreconditionError, errors.CancelledError), "",
          lambda: session.run(one))


@case
def reset_clears_containers(cluster):
    """Those that it names, by default the one of variables that name none, which has the job's name."""
    for container, cleared, is_kept in [("", [], False), ("", ["worker"], False),
                                        ("", ["localhost", "box"], True), ("box", [], True),
                                        ("box", ["worker"], True), ("box", ["box"], False),
                                        ("worker", [], False)]:
        with tf.Graph().as_default() as graph, graph.container(container), tf.device(CPUS[1]):
            v = tf.get_variable("v", [], initializer=tf.ones_initializer(), use_resource=True)
            read, init = v.read_value(), v.initializer
        with cluster.session(graph) as session:
            session.run(init)
        cluster_reset(cluster, cleared)
        with cluster.session(graph) as session:
            if is_kept:
                equal(session.run(read), np.float32(1))
            else:
                fails(errors.FailedPreconditionError, f"container={container or 'worker'}, ",
                      lambda: session.run(read))


@case
def runs_in_pieces(cluster):
    with tf.Graph().as_default() as graph:
        with tf.device(CPUS[0]):
            a = tf.placeholder(tf.float32, [], name="a")
            b = tf.placeholder(tf.float32, [], name="b")
        with tf.device(CPUS[1]):
            c = tf.add(a, 1.0, name="c")
            d = tf.add(c, b, name="d")
    with cluster.session(graph) as session:
        for _ in range(5):
            handle = session.partial_run_setup([c, d], [a, b])
            equal(session.partial_run(handle, c, {a: 1}), np.float32(2))
            fails(errors.InvalidArgumentError, "can't be computed from the feeds",
                  lambda h=handle: session.partial_run(h, d))
            equal(session.partial_run(handle, d, {b: 10}), np.float32(12))
            fails(errors.InvalidArgumentError, "Must run PartialRunSetup",
                  lambda h=handle: session.partial_run(h, c, {a: 1}))
        handle = session.partial_run_setup([c, d], [a, b])
        session.partial_run(handle, c, {a: 1})
        fails(errors.InvalidArgumentError, "has already been fed",
              lambda: session.partial_run(handle, d, {a: 1}))
        fails(errors.InvalidArgumentError, "was not specified in partial_run_setup",
              lambda: session.partial_run(handle, d, {c: 1}))


@case
def callables(cluster):
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [2], name="x")
        y = tf.placeholder(tf.float32, [2], name="y")
        with tf.device(CPUS[2]):
            total = tf.add(x, y, name="total")
            twice = tf.add(x, x, name="twice")
    options = config_pb2.CallableOptions()
    options.feed.extend([y.name, x.name])
    options.fetch.extend([twice.name, total.name])
    with cluster.session(graph) as session:
        call = session._make_callable_from_options(options)
        for i in range(25):
            first, second = call(np.float32([1, i]), np.float32([2, 3]))
            equal(first, np.float32([4, 6]))
            equal(second, np.float32([3, 3 + i]))
        del call
        options.feed_devices[x.name] = CPUS[0]
        fails(errors.UnimplementedError, "", lambda: session._make_callable_from_options(options))


@case
def many_sessions(cluster):
    with tf.Graph().as_default() as graph:
        with tf.device(CPUS[1]):
            a = tf.constant(3.0)
        with tf.device(CPUS[2]):
            b = tf.identity(a)
    for _ in range(25):
        with cluster.session(graph) as session:
            equal(session.run(b), np.float32(3))


@case
def kernel_errors(cluster):
    graph, x, _, after = reshape_to_three()
    with cluster.session(graph) as session:
        text = fails(errors.InvalidArgumentError, WRONG_SIZE,
                     lambda: session.run(after, {x: [1, 2, 3, 4]}))
        check("reshaped" in text, f"does not name the node: {text}")
        equal(session.run(after, {x: [1, 2, 3]}), np.float32([1, 2, 3]))


@case
def placing(cluster):
    def pinned(device):
        with tf.Graph().as_default() as graph:
            with tf.device(device):
                return graph, tf.constant(1.0) + 1.0

    graph, value = pinned("/job:worker/task:9")
    with cluster.session(graph) as session:
        fails(errors.InvalidArgumentError, "task:9", lambda: session.run(value))
    graph, value = pinned("/job:worker/task:1/device:GPU:0")
    with cluster.session(graph) as session:
        fails(errors.InvalidArgumentError, "GPU:0", lambda: session.run(value))
    with cluster.session(graph, allow_soft_placement=True) as session:
        equal(session.run(value), np.float32(2))
    graph, value = pinned(CPUS[2])
    with cluster.session(graph, device_filters=["/job:worker/task:0"]) as session:
        fails(errors.InvalidArgumentError, "task:2", lambda: session.run(value))


@case
def timeouts(cluster):
    with tf.Graph().as_default() as graph:
        with tf.device(CPUS[1]):
            value = tf.random.uniform([1200, 1200])
            for _ in range(60):
                value = tf.matmul(value, value) / 600.0
            total = tf.reduce_sum(value)
    with cluster.session(graph) as session:
        began = time.monotonic()
        fails(errors.DeadlineExceededError, "",
              lambda: session.run(total, options=tf.RunOptions(timeout_in_ms=200)))
        check(time.monotonic() - began < 20, "the deadline came late")
        session.run(graph.get_operations()[0].outputs[0])


@case
def metadata(cluster):
    with tf.Graph().as_default() as graph:
        with tf.device(CPUS[1]):
            a = tf.random.uniform([1 << 18], name="a")
        with tf.device(CPUS[2]):
            b = tf.reduce_sum(a, 0, name="b")
        with tf.device(CPUS[0]):
            c = tf.add(a, b, name="c")
    with cluster.session(graph) as session:
        session.run(c)
        data = tf.RunMetadata()
        session.run(c, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE,
                                             output_partition_graphs=True), run_metadata=data)
        rows = {(device.device, node.node_name.split(":")[0])
                for device in data.step_stats.dev_stats for node in device.node_stats}
        names = {name for _, name in rows}
        check({"b", "c"} <= names, f"no row of b or c in {sorted(rows)}")
        devices = " ".join(device for device, _ in rows)
        check("task:1" in devices and "task:2" in devices, devices)
        check(len(data.partition_graphs) >= 2, f"{len(data.partition_graphs)} partition graphs")
        ops = [node.op for part in data.partition_graphs for node in part.node]
        check("_Send" in ops and "_Recv" in ops, f"{ops}")
        check_timeline(cluster, data.step_stats)
        check_crossings(cluster, data.partition_graphs, {
            device.device: [node.timeline_label for node in device.node_stats]
            for device in data.step_stats.dev_stats})
    config = tf.ConfigProto()
    config.experimental.disable_output_partition_graphs = True
    with tf.Session(cluster.target, graph=graph, config=config) as session:
        fails(errors.InvalidArgumentError, "disable_output_partition_graphs is true",
              lambda: session.run(b, options=tf.RunOptions(output_partition_graphs=True)))


@case
def compression(cluster):
    config = tf.ConfigProto()
    config.rpc_options.compression_algorithm = "deflate"
    config.rpc_options.compression_level = 3
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None])
        with tf.device(CPUS[1]):
            y = x + 1.0
    with tf.Session(cluster.target, graph=graph, config=config) as session:
        equal(session.run(y, {x: np.zeros(100000, np.float32)}), np.ones(100000, np.float32))


# After those above, and the last of them leaves a worker in its second incarnation.
import tensorflow_kernel_steps  # noqa: E402,F401
import tensorflow_master_cases  # noqa: E402,F401
import tensorflow_value_cases  # noqa: E402,F401
import tensorflow_load_cases  # noqa: E402,F401


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ferry")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--protoc", default="protoc")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if not options.real and not options.ferry:
        parser.error("--ferry or --real")
    pb.load(options.protoc)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen = [c for c in CASES if not options.only or c.__name__ in options.only.split(",")]
    failed = []
    cluster = Cluster(options)
    for function in chosen:
        began = time.monotonic()
        try:
            function(cluster)
            print(f"ok {function.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
        except Skipped as reason:
            print(f"skipped {function.__name__}: {reason}", flush=True)
        except (Failure, errors.OpError, grpc.RpcError, RuntimeError, ValueError) as failure:
            failed.append(function.__name__)
            print(f"FAILED {function.__name__}: {type(failure).__name__} {failure!s:.2000}",
                  flush=True)
            for child in cluster.children():
                if child.poll() is not None and function.__name__ != "a_worker_dies":
                    print(f"a server has ended with {child.poll()}\n{cluster.tails()}")
                    cluster.stop()
                    cluster = Cluster(options)
                    break
    if failed:
        print(cluster.tails())
    cluster.stop()
    print(f"{len(chosen) - len(failed)} of {len(chosen)} cases passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

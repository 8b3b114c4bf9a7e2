#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real TensorFlow client that places nodes on the GPUs of two workers.

  tensorflow_gpu_test.py --ferry=build/ferry --fake-driver=libstrict_cuda.so --python=VENV/bin/python

The GPUs are those of the fake driver, two for each worker; TensorFlow's own
servers have none here, so the expected results are those of NumPy and TensorFlow's CPU kernels.
Ends with 77 if this build has no kernels for GPUs.
"""
import argparse
import os
import sys
import tempfile
import time

import tensorflow_session_test as sessions  # first: it clears the environment
import numpy as np
import tensorflow.compat.v1 as tf
from harness import Failure, check
from tensorflow_session_test import equal, errors, fails

WORKERS = 2
CPUS = [f"/job:worker/task:{task}/device:CPU:0" for task in range(WORKERS)]
GPUS = [f"/job:worker/task:{task}/device:GPU:{gpu}" for task in range(WORKERS) for gpu in (0, 1)]
CASES = []


def case(function):
    CASES.append(function)
    return function


class Cluster(sessions.Cluster):
    def start_worker(self, task):
        # Four in all; each worker sees two.
        os.environ["CUDA_VISIBLE_DEVICES"] = f"{2 * task},{2 * task + 1}"
        super().start_worker(task)


def rows(data):
    """Nodes that ran: name, device and label."""
    return [(node.node_name, device.device, node.timeline_label)
            for device in data.step_stats.dev_stats for node in device.node_stats]


def traced(session, fetches, feeds=None):
    data = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    return session.run(fetches, feeds, options=options, run_metadata=data), rows(data)


@case
def devices(cluster):
    with cluster.session(tf.Graph()) as session:
        found = {device.name: device for device in session.list_devices()}
    check(len(found) == 3 * WORKERS, sorted(found))
    for task in range(WORKERS):
        task_name = f"/job:worker/replica:0/task:{task}"
        cpu = found[f"{task_name}/device:CPU:0"]
        for gpu in (0, 1):
            device = found[f"{task_name}/device:GPU:{gpu}"]
            check(device.device_type == "GPU", device.device_type)
            check(device.memory_limit_bytes == 4 << 30, device.memory_limit_bytes)
            check(device.incarnation == cpu.incarnation, "they have two lives")


@case
def arithmetic(cluster):
    random = np.random.RandomState(3)
    with tf.Graph().as_default() as graph:
        wanted = []
        for number, dtype in enumerate((tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int64)):
            x = tf.cast(tf.constant(random.randint(1, 50, [3, 1, 5])), dtype)
            y = tf.cast(tf.constant(random.randint(1, 9, [4, 1])), dtype)
            for op in (tf.add, tf.subtract, tf.multiply, tf.maximum, tf.minimum):
                with tf.device(CPUS[0]):
                    here = op(x, y)
                with tf.device(GPUS[number % 4]):
                    wanted.append((here, op(x, y)))
            if dtype == tf.int64:
                continue
            for op in (lambda: tf.realdiv(x, y), lambda: tf.sqrt(x), lambda: -x,
                       lambda: tf.add_n([x] * 12), lambda: tf.cast(x, tf.float64),
                       lambda: tf.zeros_like(x), lambda: tf.ones_like(y),
                       lambda: tf.fill([3, 2], tf.cast(2.5, dtype))):
                with tf.device(CPUS[0]):
                    here = op()
                with tf.device(GPUS[number % 4]):
                    wanted.append((here, op()))
    with cluster.session(graph, allow_soft_placement=True) as session:
        got, ran = traced(session, wanted)
    for here, there in got:
        equal(there, here)
    on_gpus = {name for name, device, _ in ran if "GPU" in device}
    check(len(on_gpus) >= len(wanted), f"only {len(on_gpus)} nodes ran on GPUs")


@case
def every_ordered_pair(cluster):
    places = CPUS + GPUS
    value = np.arange(50_000, dtype=np.float32)
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None])
        moved = {}
        for source in places:
            with tf.device(source):
                there = x + 1.0
            for destination in places:
                with tf.device(destination):
                    moved[source, destination] = there * 2.0
    with cluster.session(graph) as session:
        for _ in range(3):
            got, ran = traced(session, moved, {x: value})
            for result in got.values():
                equal(result, (value + 1) * 2)
    # Between devices of one worker it is always "local".
    labels = [label for _, _, label in ran if " by " in label and not label.endswith(" by local")]
    between = [label for label in labels if label.count("GPU") == 2]
    check(len(between) >= 8, f"{len(between)} rows of tensors between GPUs")
    for label in between:
        check(" by cuda_ipc" in label, label)


@case
def feeds_and_fetches(cluster):
    with tf.Graph().as_default() as graph:
        with tf.device(GPUS[3]):
            x = tf.placeholder(tf.float32, [None], name="x")
            y = x * 3.0
        with tf.device(GPUS[0]):
            z = y - 1.0
            rank = tf.rank(z)
        count = tf.shape(y) + 1
    with cluster.session(graph, allow_soft_placement=True) as session:
        equal(session.run([y, z, x], {x: [1, 2]})[1], np.float32([2, 5]))
        equal(session.run(z, {y: [7]}), np.float32([6]))
        equal(session.run(rank, {x: [1, 2, 3]}), np.int32(1))
        equal(session.run(count, {x: [1, 2, 3]}), np.int32([4]))
        equal(session.run(z, {x: []}), np.float32([]))
        fails(errors.InvalidArgumentError, "You must feed a value for placeholder tensor 'x'",
              lambda: session.run(z))
        handle = session.partial_run_setup([y, z], [x])
        equal(session.partial_run(handle, y, {x: [5]}), np.float32([15]))
        equal(session.partial_run(handle, z), np.float32([14]))


@case
def variables(cluster):
    with tf.Graph().as_default() as graph:
        with tf.device(GPUS[2]):
            v = tf.get_variable("v", initializer=np.float32([1, 2]), use_resource=True)
            more = v.assign_add([10, 20], read_value=False)
            twice = v * 2.0
        with tf.device(CPUS[0]):
            seen = tf.identity(v.read_value())
        init = tf.global_variables_initializer()
    with cluster.session(graph) as session:
        fails(errors.FailedPreconditionError, "Could not find variable", lambda: session.run(seen))
        session.run(init)
        for _ in range(20):
            session.run(more)
        equal(session.run(twice), np.float32([402, 804]))
        with cluster.session(graph) as another:
            equal(another.run(seen), np.float32([201, 402]))


def collective(op, places, inputs, keys, **options):
    """A node on each device; the first has the source of a broadcast."""
    made = []
    for number, place in enumerate(places):
        with tf.device(place):
            common = dict(group_size=len(places), timeout_seconds=30.0, **keys)
            if op == "reduce":
                made.append(tf.raw_ops.CollectiveReduceV2(
                    input=inputs[number], ordering_token=[], **common, **options))
            elif op == "gather":
                made.append(tf.raw_ops.CollectiveGatherV2(
                    input=inputs[number], ordering_token=[], **common))
            elif number == 0:
                made.append(tf.raw_ops.CollectiveBcastSendV2(input=inputs[0], **common))
            else:
                made.append(tf.raw_ops.CollectiveBcastRecvV2(
                    T=inputs[0].dtype, shape=inputs[0].shape, **common))
    return made


@case
def collectives(cluster):
    types = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)
    groups = {"gpus": GPUS, "mixed": [CPUS[0], GPUS[1], GPUS[3]], "pair": [GPUS[1], GPUS[2]]}
    values = np.random.RandomState(5).randint(-4, 5, [len(GPUS), 6, 5])
    with tf.Graph().as_default() as graph:
        fetches, wanted = {}, {}
        for number, (group, places) in enumerate(groups.items()):
            for dtype in types:
                inputs = []
                for place, value in zip(places, values):
                    with tf.device(place):
                        inputs.append(tf.cast(tf.constant(value), dtype))
                own = [value.astype(dtype.as_numpy_dtype) for value in values[:len(places)]]
                for merge, final in (("Add", "Id"), ("Add", "Div"), ("Max", "Id"), ("Min", "Id"),
                                     ("Mul", "Div")):
                    name = group, dtype.name, merge, final
                    keys = dict(group_key=number, instance_key=len(fetches))
                    fetches[name] = collective("reduce", places, inputs, keys, merge_op=merge,
                                               final_op=final)
                    merged = {"Add": np.add, "Mul": np.multiply, "Max": np.maximum,
                              "Min": np.minimum}[merge].reduce(own)
                    if final == "Div" and dtype.is_integer:
                        merged = np.trunc(merged / len(own))
                    elif final == "Div":
                        merged = merged / np.array(len(own)).astype(merged.dtype)
                    wanted[name] = merged.astype(own[0].dtype)
                if dtype != tf.bfloat16:
                    name = group, dtype.name, "gather"
                    keys = dict(group_key=number, instance_key=len(fetches))
                    fetches[name] = collective("gather", places, inputs, keys)
                    wanted[name] = np.concatenate(own)
                    name = group, dtype.name, "broadcast"
                    keys = dict(group_key=number, instance_key=len(fetches))
                    fetches[name] = collective("broadcast", places, inputs, keys)
                    wanted[name] = own[0]
    with cluster.session(graph) as session:
        for _ in range(3):
            got, ran = traced(session, fetches)
            for name, results in got.items():
                for each in results:
                    equal(each, wanted[name], str(name))
    labels = {label.split(" by ", 1)[1] for _, _, label in ran if "reduce by" in label}
    check("nccl" in labels, f"nothing went by NCCL: {labels}")
    check(any("staged (not by nccl: " in label for label in labels), f"nothing is staged: {labels}")


@case
def a_collective_without_all_members(cluster):
    with tf.Graph().as_default() as graph:
        with tf.device(GPUS[0]):
            alone = tf.raw_ops.CollectiveReduceV2(
                input=tf.constant([1.0]), group_size=2, group_key=1, instance_key=1,
                ordering_token=[], merge_op="Add", final_op="Id", timeout_seconds=0.5)
        with tf.device(GPUS[2]):
            other = tf.raw_ops.CollectiveReduceV2(
                input=tf.constant([1.0]), group_size=2, group_key=2, instance_key=1,
                ordering_token=[], merge_op="Add", final_op="Id", timeout_seconds=0.5)
    with cluster.session(graph) as session:
        for _ in range(2):
            fails(errors.DeadlineExceededError, "1 of 2 members have come",
                  lambda: session.run([alone, other]))


@case
def placing(cluster):
    with tf.Graph().as_default() as graph:
        # Where there are GPUs, nodes that may be anywhere are on one.
        a = tf.constant([[1.0, 2.0]]) + 1.0
    with cluster.session(graph) as session:
        value, ran = traced(session, a)
        equal(value, np.float32([[2, 3]]))
        check(any("GPU" in device and label.startswith("add = AddV2(") for _, device, label in ran),
              f"ran at {ran}")
    with tf.Graph().as_default() as graph:
        with tf.device(GPUS[1]):
            tf.matmul(a_here := tf.constant([[1.0]]), a_here)
            numbers = tf.range(5)
    with cluster.session(graph) as session:
        fails(errors.InvalidArgumentError,
              "Cannot assign a device for operation MatMul.*no supported kernel for GPU devices",
              lambda: session.run(numbers))
    with cluster.session(graph, allow_soft_placement=True) as session:
        value, ran = traced(session, numbers)
        equal(value, np.int32([0, 1, 2, 3, 4]))
        places = [device for name, device, _ in ran if name == "range"]
        check(places == ["/job:worker/replica:0/task:0/device:CPU:0"], f"ran at {places}")


@case
def many_steps(cluster):
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None])
        value = x
        for i in range(8):
            with tf.device(GPUS[(3 * i) % 4]):
                value = tf.sqrt(value * value + 1.0)
    with cluster.session(graph) as session:
        for step in range(100):
            got = session.run(value, {x: np.full([1000], step, np.float32)})
            check(np.allclose(got, np.sqrt(step * step + 8)), f"step {step}: {got[0]}")


def has_kernels(cluster):
    with tf.Graph().as_default() as graph, tf.device(GPUS[0]):
        total = tf.constant(1.0) + tf.constant(2.0)
    with cluster.session(graph) as session:
        try:
            equal(session.run(total), np.float32(3))
        except errors.UnimplementedError as error:
            check("made without nvcc" in str(error), error)
            return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ferry", required=True)
    parser.add_argument("--fake-driver", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    options.real = False
    for name in ("FERRY_CUDA_LIBRARY", "FERRY_NVML_LIBRARY", "FERRY_NCCL_LIBRARY"):
        os.environ[name] = options.fake_driver
    os.environ["STRICT_CUDA_DEVICES"] = "4"
    failed = 0
    chosen = [c for c in CASES if not options.only or c.__name__ in options.only.split(",")]
    with tempfile.TemporaryDirectory() as session:
        os.environ["STRICT_CUDA_SESSION"] = session
        cluster = Cluster(options, WORKERS)
        try:
            if not has_kernels(cluster):
                print("skipped: this build has no kernels for GPUs")
                return 77
            for function in chosen:
                began = time.monotonic()
                try:
                    function(cluster)
                    print(f"ok {function.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
                except (Failure, errors.OpError, RuntimeError, ValueError) as failure:
                    failed += 1
                    print(f"FAILED {function.__name__}: {type(failure).__name__} {failure!s:.2000}",
                          flush=True)
            for child in cluster.children():
                check(child.poll() is None, f"a server has ended with {child.poll()}")
        except Failure as failure:
            failed += 1
            print(f"FAILED: {failure}")
        finally:
            if failed:
                print(cluster.tails())
            cluster.stop()
    print(f"{len(chosen) - failed} of {len(chosen)} cases passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

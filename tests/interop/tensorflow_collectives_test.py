#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collectives in graphs of a real TensorFlow client, over three workers.

  tensorflow_collectives_test.py --ferry=build/ferry --python=VENV/bin/python
  tensorflow_collectives_test.py --real              --python=VENV/bin/python

As tensorflow_session_test.py: with --real the servers are TensorFlow's own.  An
error of a collective ends all collectives of TensorFlow's servers for good, so
those get new servers after each case that has one.
"""
import argparse
import itertools
import os
import re
import signal
import sys
import threading
import time

from tensorflow_session_test import (CPUS, WORKERS, Cluster, check, equal, errors, fails, grpc, np,
                                     tf, Failure)

CASES = []
raw = tf.raw_ops
# What every worker of TensorFlow's has to be told; here it means nothing.
LEADER = "/job:worker/replica:0/task:0"
_keys = itertools.count(100)


def case(breaks=False):
    def register(function):
        CASES.append((function, breaks))
        return function
    return register


def session_of(cluster, graph):
    config = tf.ConfigProto()
    config.experimental.collective_group_leader = LEADER
    return tf.Session(cluster.target, graph=graph, config=config)


def on_each(make, tasks=range(WORKERS)):
    """make(place) on the device of each task."""
    made = []
    for place, task in enumerate(tasks):
        with tf.device(CPUS[task]):
            made.append(make(place))
    return made


def nth(value, place):
    return value[place] if isinstance(value, list) else value


def reduces(inputs, tasks=range(WORKERS), first_version=False, **options):
    wanted = dict(group_size=len(inputs), group_key=next(_keys), instance_key=next(_keys),
                  merge_op="Add", final_op="Id", timeout_seconds=20.0)
    wanted.update(options)
    wanted.update(dict(subdiv_offsets=[0]) if first_version else dict(ordering_token=[]))
    op = raw.CollectiveReduce if first_version else raw.CollectiveReduceV2

    def make(place):
        return op(input=inputs[place], **{name: nth(value, place) if name != "ordering_token"
                                          and name != "subdiv_offsets" else value
                                          for name, value in wanted.items()})
    return on_each(make, tasks)


MERGES = {"Add": np.add, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum}


def reduced(values, merge, final):
    result = values[0]
    for value in values[1:]:
        result = MERGES[merge](result, value)
    if final == "Div":
        if np.issubdtype(result.dtype, np.integer):
            result = np.trunc(result / len(values))
        else:
            result = result / result.dtype.type(len(values))
    return result.astype(values[0].dtype)


@case()
def reduces_every_type(cluster):
    types = [np.float16, np.float32, np.float64, np.int32, np.int64,
             tf.bfloat16.as_numpy_dtype]
    draw = np.random.default_rng(3)
    fetches, wanted = [], []
    with tf.Graph().as_default() as graph:
        for dtype, merge, final in itertools.product(types, MERGES, ["Id", "Div"]):
            values = [draw.integers(-4, 5, [5, 3]).astype(dtype) for _ in range(WORKERS)]
            inputs = on_each(lambda place, values=values: tf.constant(values[place]))
            fetches.append(reduces(inputs, merge_op=merge, final_op=final,
                                   first_version=merge == "Max"))
            wanted.append((dtype, merge, final, reduced(values, merge, final)))
    with session_of(cluster, graph) as session:
        for got, (dtype, merge, final, value) in zip(session.run(fetches), wanted):
            for each in got:
                equal(each, value, f"{dtype.__name__} {merge} {final}")


@case()
def reduces_every_size(cluster):
    shapes = [[], [0], [1], [2], [7], [3, 0, 2], [1000], [33, 31, 3], [700001]]
    with tf.Graph().as_default() as graph:
        fetches = []
        for shape in shapes:
            inputs = on_each(lambda place, shape=shape: tf.fill(shape, float(2 ** place)))
            fetches.append(reduces(inputs))
        counted = on_each(lambda place: tf.range(300000) + place)
        fetches.append(reduces(counted))
    with session_of(cluster, graph) as session:
        for _ in range(3):
            results = session.run(fetches)
            for got, shape in zip(results, shapes):
                for each in got:
                    equal(each, np.full(shape, 7, np.float32), str(shape))
            for each in results[-1]:
                equal(each, np.arange(300000, dtype=np.int32) * 3 + 3)


@case()
def gathers(cluster):
    with tf.Graph().as_default() as graph:
        def gather(inputs, **options):
            keys = dict(group_size=WORKERS, group_key=next(_keys), instance_key=next(_keys),
                        timeout_seconds=20.0)
            return on_each(lambda place: raw.CollectiveGatherV2(
                input=inputs[place], ordering_token=[], **keys, **options))
        rows = gather(on_each(lambda place: tf.constant([float(place), 10.0])))
        tables = gather(on_each(lambda place: tf.fill([2, 3], place)))
        large = gather(on_each(lambda place: tf.range(100000, dtype=tf.int64) * (place + 1)))
        keys = dict(group_size=WORKERS, group_key=next(_keys), instance_key=next(_keys))
        # The shape that it says is not looked at.
        first = on_each(lambda place: raw.CollectiveGather(
            input=tf.constant([place / 2.0]), shape=[WORKERS], **keys))
    with session_of(cluster, graph) as session:
        for _ in range(2):
            got = session.run([rows, tables, large, first])
            for task in range(WORKERS):
                equal(got[0][task], np.float32([0, 10, 1, 10, 2, 10]))
                equal(got[1][task], np.repeat(np.int32([[0], [1], [2]]), 2, 0) * np.ones(
                    [1, 3], np.int32))
                equal(got[2][task],
                      np.concatenate([np.arange(100000) * (i + 1) for i in range(WORKERS)]))
                equal(got[3][task], np.float32([0, 0.5, 1]))


def broadcasts(value, source, first_version=False, **options):
    value = np.asarray(value)
    keys = dict(group_size=WORKERS, group_key=next(_keys), instance_key=next(_keys),
                timeout_seconds=20.0)
    keys.update(options)
    sources = source if isinstance(source, list) else [source]

    def make(task):
        if first_version:
            keys["shape"] = list(value.shape)
        send, recv = ((raw.CollectiveBcastSend, raw.CollectiveBcastRecv) if first_version else
                      (raw.CollectiveBcastSendV2, raw.CollectiveBcastRecvV2))
        if task in sources:
            return send(input=tf.constant(value), **keys)
        shape = {} if first_version else dict(shape=np.int32(value.shape))
        return recv(T=tf.as_dtype(value.dtype), **shape, **keys)
    return on_each(make)


@case()
def broadcasts_from_everybody(cluster):
    values = [np.float32([1, 2]), np.float32(7), np.zeros([0, 3], np.float32), np.array([True, False]),
              np.float16([[1], [2]]), np.int32([5]), np.int64([-6]),
              np.arange(200000, dtype=np.float64)]
    with tf.Graph().as_default() as graph:
        fetches = [broadcasts(value, index % WORKERS) for index, value in enumerate(values)]
        fetches += [broadcasts(value, 1, first_version=True) for value in values]
    with session_of(cluster, graph) as session:
        for _ in range(2):
            for got, value in zip(session.run(fetches), values * 2):
                for each in got:
                    equal(each, value)


@case()
def instances_do_not_mix(cluster):
    """Two of one group at once, others of a part of it, with new values in every step."""
    group = next(_keys)
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [4])
        parts = on_each(lambda place: x * float(place + 1))
        one = reduces(parts, group_key=group, instance_key=1)
        other = reduces(parts, group_key=group, instance_key=2, merge_op="Max")
        pair = reduces([parts[0], parts[2]], tasks=[0, 2])
        # What comes out of one goes into the next.
        chained = reduces(one, group_key=group, instance_key=3, final_op="Div")
    with session_of(cluster, graph) as session:
        for step in range(20):
            value = np.arange(4, dtype=np.float32) + step
            got = session.run([one, other, pair, chained], {x: value})
            for each in got[0]:
                equal(each, value * 6)
            for each in got[1]:
                equal(each, value * 3)
            for each in got[2]:
                equal(each, value * 4)
            for each in got[3]:
                equal(each, value * 6)


@case()
def options_that_change_nothing(cluster):
    with tf.Graph().as_default() as graph:
        fetches = [reduces(on_each(lambda place: tf.constant([1.0])), communication_hint=hint)
                   for hint in ("auto", "ring", "nccl", "anything")]
        alone = reduces([tf.constant([3.0])], tasks=[1], group_size=1)
    options = tf.RunOptions()
    options.experimental.collective_graph_key = 7
    with session_of(cluster, graph) as session:
        for _ in range(2):
            got = session.run([fetches, alone], options=options)
            equal(np.array(got[0]), np.full([4, WORKERS, 1], 3, np.float32))
            equal(got[1][0], np.float32([3]))


@case()
def variables_stay_together(cluster):
    """What data parallel training does: the same mean everywhere, in every step."""
    with tf.Graph().as_default() as graph:
        variables = on_each(lambda place: tf.get_variable(
            f"w{place}", [3], initializer=tf.ones_initializer(), use_resource=True))
        x = tf.placeholder(tf.float32, [WORKERS, 3])
        rows = tf.unstack(x)
        slopes = on_each(lambda place: variables[place] * rows[place])
        means = reduces(slopes, final_op="Div")
        train = [v.assign_add(-0.5 * mean) for v, mean in zip(variables, means)]
    draw = np.random.default_rng(5)
    value = np.ones(3, np.float32)
    with session_of(cluster, graph) as session:
        session.run([v.initializer for v in variables])
        for _ in range(30):
            inputs = draw.integers(0, 2, [WORKERS, 3]).astype(np.float32)
            got = session.run(train, {x: inputs})
            value = value - 0.5 * (value * inputs).mean(0)
            for each in got:
                check(np.allclose(each, value, rtol=1e-4), f"{each}, wanted {value}")
                equal(each, got[0], "workers have drifted apart")


def fails_then_goes_on(cluster, make, kinds, pattern, deadline_s=15):
    """The step fails in time; with Ferry the same session goes on."""
    with tf.Graph().as_default() as graph:
        wrong = make()
        right = reduces(on_each(lambda place: tf.constant([1.0])))
    began = time.monotonic()
    # Not closed with TensorFlow's, which may wait for what will not come.
    session = session_of(cluster, graph)
    text = fails(kinds, pattern, lambda: session.run(
        wrong, options=tf.RunOptions(timeout_in_ms=deadline_s * 1000)))
    check(time.monotonic() - began < deadline_s + 10, "the error came late")
    if not cluster.options.real:
        for each in session.run(right):
            equal(each, np.float32([3]))
        session.close()
    return text


def ones():
    return on_each(lambda place: tf.constant([1.0, 1.0]))


@case(breaks=True)
def group_sizes_differ(cluster):
    fails_then_goes_on(cluster, lambda: reduces(ones(), group_size=[3, 3, 2]),
                       errors.InternalError, r"is joining a group with size ?\d, but that group has "
                       r"size \d")


@case(breaks=True)
def group_is_full(cluster):
    fails_then_goes_on(cluster, lambda: reduces(ones(), group_size=2), errors.InternalError,
                       "is joining a group that is already full")


@case(breaks=True)
def shapes_differ(cluster):
    fails_then_goes_on(
        cluster, lambda: reduces(on_each(lambda place: tf.ones([2 + place // 2]))),
        errors.InvalidArgumentError, r"Shape mismatch in the collective instance \d+\. Op at device "
        r"\S+ expected shape \[\d\] but another member in the group expected shape \[\d\]")


@case(breaks=True)
def types_differ(cluster):
    fails_then_goes_on(
        cluster, lambda: reduces([x if i < 2 else tf.cast(x, tf.int32)
                                  for i, x in enumerate(ones())]),
        errors.InternalError, r"Collective instance \d+ expected type 0 and data_type \d but got "
        r"type 0 and data_type \d")


@case(breaks=True)
def sizes_are_checked(cluster):
    fails_then_goes_on(cluster, lambda: reduces(ones(), group_size=0), errors.InvalidArgumentError,
                       "group_size must be positive integer but got 0")


@case(breaks=True)
def keys_are_scalars(cluster):
    fails_then_goes_on(cluster, lambda: reduces(ones(), group_size=[[3], 3, 3]),
                       errors.InvalidArgumentError,
                       r"Unexpected dimensions on input group_size, got \[1\]")


@case(breaks=True)
def broadcast_without_source(cluster):
    fails_then_goes_on(cluster, lambda: broadcasts(np.float32([1]), []), errors.InternalError,
                       "found no source for broadcast")


@case(breaks=True)
def broadcast_with_two_sources(cluster):
    fails_then_goes_on(cluster, lambda: broadcasts(np.float32([1]), [0, 1], timeout_seconds=4.0),
                       errors.InternalError, "already has source .*, received second claim from")


@case(breaks=True)
def broadcast_of_another_shape(cluster):
    def make():
        keys = dict(group_size=WORKERS, group_key=next(_keys), instance_key=next(_keys),
                    timeout_seconds=4.0)
        return on_each(lambda task: raw.CollectiveBcastSendV2(input=tf.constant([1.0, 2.0]), **keys)
                       if task == 0 else
                       raw.CollectiveBcastRecvV2(T=tf.float32, shape=[task + 1], **keys))
    fails_then_goes_on(cluster, make, errors.InvalidArgumentError, "Shape mismatch")


@case(breaks=True)
def somebody_does_not_come(cluster):
    """Before the time that the node says, and the others are told who it is."""
    group = next(_keys)
    text = fails_then_goes_on(
        cluster, lambda: reduces(ones(), group_key=[group, group, next(_keys)],
                                 timeout_seconds=2.0),
        errors.DeadlineExceededError, "Collective has timed out waiting for other workers")
    if not cluster.options.real:
        check(re.search(r"not (1 of )?/job:worker/replica:0/task:[012]/device:CPU:0", text),
              f"names nobody: {text}")


@case(breaks=True)
def a_step_has_a_deadline_of_its_own(cluster):
    fails_then_goes_on(
        cluster, lambda: reduces(ones(), group_key=[next(_keys) for _ in ones()],
                                 timeout_seconds=0.0),
        errors.DeadlineExceededError, "", deadline_s=3)


@case(breaks=True)
def merges_differ(cluster):
    """TensorFlow computes something."""
    if cluster.options.real:
        return
    fails_then_goes_on(cluster, lambda: reduces(ones(), merge_op=["Add", "Add", "Mul"]),
                       errors.InvalidArgumentError, "is to merge by .*, but another member by")


@case(breaks=True)
def a_member_dies(cluster):
    """The last case.  TensorFlow's step may never end then, nor the session's closing."""
    if cluster.options.real:
        return
    with tf.Graph().as_default() as graph:
        with tf.device(CPUS[2]):
            value = tf.random.uniform([1200, 1200])
            for _ in range(100):
                value = tf.matmul(value, value) / 600.0
            late = tf.reshape(tf.reduce_sum(value), [1])
        parts = on_each(lambda place: tf.constant([1.0]))
        wrong = reduces(parts[:2] + [late], timeout_seconds=0.0)
        right = reduces(parts)
    session = session_of(cluster, graph)
    equal(session.run(right)[0], np.float32([3]))
    killer = threading.Timer(0.7, lambda: cluster.kill_worker(2))
    killer.start()
    began = time.monotonic()
    text = fails((errors.AbortedError, errors.UnavailableError), "", lambda: session.run(
        wrong, options=tf.RunOptions(timeout_in_ms=60000)))
    killer.join()
    check(time.monotonic() - began < 30, "the step's end came late")
    check("/job:worker/replica:0/task:2" in text, f"does not name the worker: {text}")
    session.close()
    cluster.start_worker(2)
    cluster.wait_worker(2)
    with session_of(cluster, graph) as again:
        equal(again.run(right)[0], np.float32([3]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ferry")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if not options.real and not options.ferry:
        parser.error("--ferry or --real")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen = [(function, breaks) for function, breaks in CASES
              if not options.only or function.__name__ in options.only.split(",")]
    failed = []
    cluster = Cluster(options)
    for function, breaks in chosen:
        began = time.monotonic()
        is_broken = False
        try:
            function(cluster)
            print(f"ok {function.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
        except (Failure, errors.OpError, grpc.RpcError, RuntimeError, ValueError) as failure:
            failed.append(function.__name__)
            is_broken = True
            print(f"FAILED {function.__name__}: {type(failure).__name__} {failure!s:.2000}",
                  flush=True)
            print(cluster.tails(), flush=True)
        if (is_broken or breaks and options.real) and function is not chosen[-1][0]:
            cluster.stop()
            cluster = Cluster(options)
    cluster.stop()
    print(f"{len(chosen) - len(failed)} of {len(chosen)} cases passed", flush=True)
    # Not by way of sessions that were left open.
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    main()

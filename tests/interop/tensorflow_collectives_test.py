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
import signal
import sys
import time

import tensorflow_collectives_errors  # noqa: F401, its cases
from collectives_ops import (CASES, KEYS, MERGES, broadcasts, case, on_each, raw, reduced, reduces,
                             session_of)
from session_cluster import Cluster, WORKERS, equal, errors, grpc, np, tf

from harness import Failure, check


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
            keys = dict(group_size=WORKERS, group_key=next(KEYS), instance_key=next(KEYS),
                        timeout_seconds=20.0)
            return on_each(lambda place: raw.CollectiveGatherV2(
                input=inputs[place], ordering_token=[], **keys, **options))
        rows = gather(on_each(lambda place: tf.constant([float(place), 10.0])))
        tables = gather(on_each(lambda place: tf.fill([2, 3], place)))
        large = gather(on_each(lambda place: tf.range(100000, dtype=tf.int64) * (place + 1)))
        keys = dict(group_size=WORKERS, group_key=next(KEYS), instance_key=next(KEYS))
        # Its shape attribute is ignored.
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
    group = next(KEYS)
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [4])
        parts = on_each(lambda place: x * float(place + 1))
        one = reduces(parts, group_key=group, instance_key=1)
        other = reduces(parts, group_key=group, instance_key=2, merge_op="Max")
        pair = reduces([parts[0], parts[2]], tasks=[0, 2])
        # The output of one is the input of the next.
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
    """As in data parallel training: the same mean everywhere, in every step."""
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
    # The ones that break TensorFlow's servers run last.
    chosen = [(function, breaks) for function, breaks in sorted(CASES, key=lambda case: case[1])
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
    # Not because of sessions that were left open.
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    main()

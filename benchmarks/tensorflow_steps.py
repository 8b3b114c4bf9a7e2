#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of TensorFlow's own client over Ferry and over TensorFlow's servers, side by side.

  tensorflow_steps.py --ferry=build/release/ferry --python=VENV/bin/python [--rounds=N]

Both clusters are up at once, two workers each on this machine, and alternate within
every round, so that the machine's load affects both.  Run by the python of
the interop tests' environment.  Prints one line per case, medians over the rounds.
"""
import argparse
import os
import statistics
import sys
import time
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tests/interop"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
    os.environ.pop(name, None)
    os.environ.pop(name.upper(), None)

import tensorflow.compat.v1 as tf  # noqa: E402

from session_cluster import Cluster  # noqa: E402

tf.disable_eager_execution()
HERE_0, THERE_1 = (f"/job:worker/task:{task}/device:CPU:0" for task in range(2))
MIB = 1 << 20


def empty():
    with tf.Graph().as_default() as graph:
        with tf.device(HERE_0):
            return graph, tf.no_op()


def crossing(floats, reads_all=False):
    """A tensor of one worker that the other one looks at: at one element, or at all of them."""
    with tf.Graph().as_default() as graph:
        with tf.device(THERE_1):
            made = tf.Variable(tf.ones([floats]), use_resource=True, trainable=False)
            sent = tf.identity(made.read_value())
        with tf.device(HERE_0):
            seen = tf.reduce_max(sent) if reads_all else tf.slice(sent, [0], [1])
        return graph, seen, made.initializer


class Side:
    """One cluster's session of one case."""

    def __init__(self, cluster, graph, fetch, initializer=None):
        self.session = cluster.session(graph)
        if initializer is not None:
            self.session.run(initializer)
        self.step = self.session.make_callable(fetch)
        for _ in range(5):
            self.step()

    def time(self, count):
        """Seconds per step."""
        began = time.perf_counter()
        for _ in range(count):
            self.step()
        return (time.perf_counter() - began) / count


def compare(clusters, what, unit, count, rounds, rate, *case):
    sides = {name: Side(cluster, *case) for name, cluster in clusters.items()}
    times = {name: [] for name in sides}
    for turn in range(rounds):
        # The first one would always find the machine in the state that the other left.
        order = list(sides) if turn % 2 == 0 else list(sides)[::-1]
        for name in order:
            times[name].append(sides[name].time(count))
    rates = {name: rate / statistics.median(each) for name, each in times.items()}
    ratios = [t / f for f, t in zip(times["ferry"], times["tensorflow"])]
    print(f"{what}: ferry {rates['ferry']:.4g} {unit}, tensorflow {rates['tensorflow']:.4g} {unit};"
          f" {statistics.median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f} of"
          f" {rounds} rounds of {count} steps)", flush=True)
    for side in sides.values():
        side.session.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ferry", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="empty,small,large")
    options = parser.parse_args()
    clusters = {}
    for name in ("ferry", "tensorflow"):
        kind = types.SimpleNamespace(ferry=options.ferry, python=options.python,
                                     real=name == "tensorflow")
        clusters[name] = Cluster(kind, workers=2)
    cases = options.only.split(",")
    if "empty" in cases:
        compare(clusters, "empty step", "steps/s", 200, options.rounds, 1, *empty())
    if "small" in cases:
        compare(clusters, "one crossing of 8 bytes", "steps/s", 200, options.rounds, 1, *crossing(2))
    if "large" in cases:
        floats = 64 * MIB // 4
        compare(clusters, "one crossing of 64 MiB", "GB/s", 5, options.rounds, 64 * MIB / 1e9,
                *crossing(floats))
        compare(clusters, "one crossing of 64 MiB, all of it read", "GB/s", 5, options.rounds,
                64 * MIB / 1e9, *crossing(floats, reads_all=True))
    for cluster in clusters.values():
        cluster.stop()


if __name__ == "__main__":
    main()

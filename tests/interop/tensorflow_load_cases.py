# SPDX-License-Identifier: Apache-2.0
"""Cases of many steps, many clients, large tensors, and workers that die."""
import os
import re
import threading
import time

import numpy as np
from session_cluster import CPUS, Skipped, case, equal, errors, fails, tf

from harness import check


@case
def every_ordered_pair(cluster):
    with tf.Graph().as_default() as graph:
        results = []
        for source in CPUS:
            for destination in CPUS:
                with tf.device(source):
                    a = tf.random.uniform([1000], seed=7)
                with tf.device(destination):
                    results.append((a, tf.identity(a)))
    with cluster.session(graph) as session:
        for sent, received in session.run(results):
            equal(received, sent)


def together(clients):
    """Runs all at once; fails with the error of any of them."""
    failures = []

    def guarded(index):
        try:
            clients[index]()
        except Exception as error:  # noqa: BLE001: reported by the main thread
            failures.append(f"client {index}: {error}")

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    check(not failures, "; ".join(failures))
    check(not any(thread.is_alive() for thread in threads), "a client hangs")


@case
def two_clients(cluster):
    def client(index):
        with tf.Graph().as_default() as graph:
            x = tf.placeholder(tf.float32, [])
            with tf.device(CPUS[1 + index % 2]):
                y = x * float(index)
        with cluster.session(graph) as session:
            for i in range(100):
                equal(session.run(y, {x: i}), np.float32(i * index))

    together([lambda index=index: client(index) for index in range(4)])


@case
def two_clients_reset_at_once(cluster):
    """Each a container of its own, twenty times. A reset ends the other's sessions as well, so each
    begins again until it has come through; a container that nobody names is kept."""
    ends = (errors.AbortedError, errors.CancelledError, errors.FailedPreconditionError)

    def graph_of(container):
        with tf.Graph().as_default() as graph, graph.container(container), tf.device(CPUS[1]):
            v = tf.get_variable("v", [], initializer=tf.ones_initializer(), use_resource=True)
            return graph, v.initializer, v.read_value(), v.is_initialized()

    def run(graph, fetch):
        end = time.monotonic() + 60
        while True:
            session = cluster.session(graph)
            try:
                value = session.run(fetch)
                session.close()
                return value
            except ends:
                check(time.monotonic() < end, "sessions are ended without end")

    def client(container):
        graph, init, read, is_there = graph_of(container)
        for _ in range(20):
            run(graph, init)
            equal(run(graph, read), np.float32(1))
            tf.Session.reset(cluster.target, [container])
            equal(run(graph, is_there), np.bool_(False))

    graph, init, read, _ = graph_of("kept")
    run(graph, init)
    together([lambda: client("one"), lambda: client("other")])
    equal(run(graph, read), np.float32(1))
    tf.Session.reset(cluster.target, ["kept"])


@case
def large_tensors(cluster):
    with tf.Graph().as_default() as graph:
        with tf.device(CPUS[1]):
            a = tf.fill([64, 1024, 256], 2.5)
        with tf.device(CPUS[2]):
            b = tf.reduce_max(a)
    with cluster.session(graph) as session:
        equal(session.run(b), np.float32(2.5))
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None])
        with tf.device(CPUS[1]):
            y = tf.negative(x)
    data = np.arange(8 << 20, dtype=np.float32)
    with cluster.session(graph) as session:
        equal(session.run(y, {x: data}), -data)


@case
def a_gibibyte(cluster):
    """Between workers, which a message of gRPC's own could just carry."""
    with open("/proc/meminfo", encoding="ascii") as file:
        available = int(dict(line.split(":") for line in file)["MemAvailable"].split()[0]) >> 20
    # TensorFlow's sender, its receiver, and messages in flight.
    if available < 6:
        raise Skipped(f"{available} GiB of memory are free, and 6 are wanted")
    with tf.Graph().as_default() as graph:
        with tf.device(CPUS[1]):
            x = tf.placeholder(tf.float32, [])
            a = tf.fill([1024, 1024, 256], x)
        with tf.device(CPUS[2]):
            b = tf.reduce_max(a), tf.reduce_min(a), tf.size(a)
    with cluster.session(graph) as session:
        for value in (2.5, -1.0):
            largest, least, size = session.run(b, {x: value})
            equal(largest, np.float32(value))
            equal(least, np.float32(value))
            equal(size, np.int32(1 << 28))


def usage(cluster):
    """Memory in KiB and descriptors of all servers."""
    pages = files = 0
    for child in cluster.children():
        with open(f"/proc/{child.pid}/statm", encoding="ascii") as file:
            pages += int(file.read().split()[1])
        files += len(os.listdir(f"/proc/{child.pid}/fd"))
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024, files


def check_growth(before, after):
    (memory, files), (memory_after, files_after) = before, after
    check(files_after <= files + 5, f"{files} descriptors, then {files_after}")
    check(memory_after < memory + 20 * 1024, f"{memory} KiB, then {memory_after}")


@case
def a_thousand_steps(cluster):
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [1000])
        with tf.device(CPUS[1]):
            y = x + 1.0
        with tf.device(CPUS[2]):
            z = y + 1.0
    with cluster.session(graph) as session:
        data = np.zeros(1000, np.float32)
        for _ in range(200):
            session.run(z, {x: data})
        memory, files = usage(cluster)
        for _ in range(1000):
            session.run(z, {x: data})
        after, files_after = usage(cluster)
    check_growth((memory, files), (after, files_after))
    if cluster.options.real:
        return
    # Operations of a step that wait for over a second.
    pending = cluster.tool("status", "--pending")
    check(re.match("nothing of ", pending), f"something is left of the steps: {pending}")


@case
def sessions_leave_nothing(cluster):
    """Each has graphs of its own at all workers."""
    def open_one(index):
        with tf.Graph().as_default() as graph:
            value = tf.constant(float(index))
            for device in CPUS:
                with tf.device(device):
                    value = value + tf.ones([20000])
        with cluster.session(graph) as session:
            equal(session.run(value)[0], np.float32(index + len(CPUS)))

    for i in range(50):
        open_one(i)
    before = usage(cluster)
    for i in range(200):
        open_one(i)
    check_growth(before, usage(cluster))


@case
def a_worker_dies(cluster):
    """The last case: it leaves a worker in its second incarnation."""
    with tf.Graph().as_default() as graph:
        with tf.device(CPUS[0]):
            here = tf.constant(1.0)
        with tf.device(CPUS[2]):
            value = tf.random.uniform([1200, 1200])
            for _ in range(100):
                value = tf.matmul(value, value) / 600.0
            total = tf.reduce_sum(value)
            quick = tf.constant(5.0) + 1.0
        with tf.device(CPUS[1]):
            after = total + 1.0
    session = cluster.session(graph)
    equal(session.run(quick), np.float32(6))
    killer = threading.Timer(0.7, lambda: cluster.kill_worker(2))
    killer.start()
    began = time.monotonic()
    lost = (errors.AbortedError, errors.UnavailableError)
    text = fails(lost, "", lambda: session.run(after))
    killer.join()
    check(time.monotonic() - began < 30, "the step's end came late")
    if not cluster.options.real:
        check("/job:worker/replica:0/task:2" in text, f"does not name the worker: {text}")
        equal(session.run(here), np.float32(1))
    cluster.start_worker(2)
    cluster.wait_worker(2)
    fails(lost, "", lambda: session.run(quick))
    session.close()
    with cluster.session(graph) as again:
        equal(again.run(quick), np.float32(6))

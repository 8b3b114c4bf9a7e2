#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real TensorFlow client that opens sessions and runs steps over three workers.

  tensorflow_session_test.py --ferry=build/ferry --python=VENV/bin/python
  tensorflow_session_test.py --real              --python=VENV/bin/python

With --real the servers are TensorFlow's own; a case that fails there has a wrong
expectation.  Prints `ok NAME` or `FAILED NAME: why` per case and ends non-zero if
any failed.  --only=a,b picks cases; --big also moves 1 GiB between workers.
"""
import argparse
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Ours are children on loopback.
for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
    os.environ.pop(name, None)
    os.environ.pop(name.upper(), None)

import grpc  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: E402
from tensorflow.core.protobuf import config_pb2  # noqa: E402

from harness import HERE, Failure, Log, check, free_port, spawn, wait_exit  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(HERE))
tf.disable_eager_execution()
WORKERS = 3
CPUS = [f"/job:worker/task:{task}/device:CPU:0" for task in range(WORKERS)]
CASES = []


def case(function):
    CASES.append(function)
    return function


class Cluster:
    """Three workers, and where clients find the master."""

    def __init__(self, options):
        self.options = options
        self.logs = []
        self.workers = {}
        self.master = None
        try:
            self._start()
        except Failure as failure:
            self.stop()
            raise Failure(f"{failure}\n{self.tails()}") from None

    def _start(self):
        if self.options.real:
            self.ports = [free_port() for _ in range(WORKERS)]
            self.address = f"127.0.0.1:{self.ports[0]}"
        else:
            self.master = self._spawn("coordinator", [
                self.options.ferry, "coordinator", f"--nodes={WORKERS}", "--listen=127.0.0.1:0",
                "--recoverable", "--heartbeat-timeout=5s", "--worker-timeout=20s"])
            line = self._line(self.master, "listening on")
            self.address = line.split()[-1]
        for task in range(WORKERS):
            self.start_worker(task)
        for task in range(WORKERS):
            self.wait_worker(task)
        self.target = f"grpc://{self.address}"

    def start_worker(self, task):
        if self.options.real:
            command = [self.options.python, os.path.join(HERE, "tensorflow_server.py"), str(task),
                       *map(str, self.ports)]
        else:
            command = [self.options.ferry, "worker", f"--coordinator={self.address}",
                       f"--node-id={task}", f"--num-nodes={WORKERS}", "--recoverable"]
        self.workers[task] = self._spawn(f"worker {task}", command)

    def wait_worker(self, task):
        self._line(self.workers[task], "serving" if self.options.real else "WorkerService at")

    def _spawn(self, name, command):
        log = Log(name)
        self.logs.append(log)
        return spawn(command, log.file)

    @staticmethod
    def _line(child, text, deadline_s=60):
        end = time.monotonic() + deadline_s
        seen = b""
        while time.monotonic() < end:
            readable, _, _ = select.select([child.stdout], [], [], 1)
            if readable:
                chunk = os.read(child.stdout.fileno(), 4096)
                check(chunk, f"a server ended, having said {seen!r}")
                seen += chunk
            for line in seen.decode(errors="replace").split("\n")[:-1]:
                if text in line:
                    return line
        raise Failure(f"no {text!r} in {deadline_s} s, only {seen!r}")

    def kill_worker(self, task):
        self.workers[task].kill()
        self.workers[task].wait(timeout=10)

    def children(self):
        return [child for child in [self.master, *self.workers.values()] if child is not None]

    def tails(self):
        return "\n".join(filter(None, (log.tail() for log in self.logs)))

    def stop(self):
        for child in self.children():
            child.kill()
        for child in self.children():
            wait_exit(child, 10)

    def session(self, graph=None, **config):
        return tf.Session(self.target, graph=graph, config=tf.ConfigProto(**config))

    def call(self, method, request, response, timeout=30, service="tensorflow.MasterService"):
        """One method of the master, without TensorFlow's client."""
        with grpc.insecure_channel(self.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            return channel.unary_unary(f"/{service}/{method}",
                                       request_serializer=type(request).SerializeToString,
                                       response_deserializer=response.FromString)(
                                           request, timeout=timeout)


class Messages:
    """What clients say to masters, which TensorFlow's wheel does not have."""

    def load(self, protoc):
        with tempfile.NamedTemporaryFile() as file:
            subprocess.run([protoc, f"--proto_path={ROOT}", "--include_imports",
                            f"--descriptor_set_out={file.name}", "proto/tf_master.proto"],
                           check=True, timeout=60)
            files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
        # Not the pool that TensorFlow's own messages of the same names are in.
        self.pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            self.pool.Add(file)

    def __getattr__(self, name):
        return message_factory.GetMessageClass(
            self.pool.FindMessageTypeByName(f"tensorflow.{name}"))


pb = Messages()


def fails(kinds, pattern, function):
    """The text of the error, which is one of TensorFlow's."""
    try:
        result = function()
    except kinds as error:
        text = getattr(error, "message", None) or str(error)
        check(re.search(pattern, text, re.S), f"wanted {pattern!r}, got {text[:600]!r}")
        return text
    raise Failure(f"succeeded with {result!r:.200}, wanted {pattern!r}")


def equal(got, wanted, what=""):
    if isinstance(wanted, (bytes, str)):
        check(got == wanted, f"{what} got {got!r:.200}, wanted {wanted!r:.200}")
        return
    got, wanted = np.asarray(got), np.asarray(wanted)
    check(got.shape == wanted.shape and got.dtype == wanted.dtype and (got == wanted).all(),
          f"{what} got {got!r:.300}, wanted {wanted!r:.300}")


errors = tf.errors


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
        # A feed stands for what would have been computed.
        equal(session.run(z + 1, {z: [5, 6]}), np.float32([6, 7]))
        fails(errors.InvalidArgumentError, "You must feed a value for placeholder tensor 'x'",
              lambda: session.run(z))


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
def two_clients(cluster):
    def client(index):
        with tf.Graph().as_default() as graph:
            x = tf.placeholder(tf.float32, [])
            with tf.device(CPUS[1 + index % 2]):
                y = x * float(index)
        with cluster.session(graph) as session:
            for i in range(100):
                equal(session.run(y, {x: i}), np.float32(i * index))

    failures = []

    def guarded(index):
        try:
            client(index)
        except Exception as error:  # noqa: BLE001: told by the main thread
            failures.append(f"client {index}: {error}")

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    check(not failures, "; ".join(failures))
    check(not any(thread.is_alive() for thread in threads), "a client hangs")


@case
def kernel_errors(cluster):
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None], name="x")
        with tf.device(CPUS[2]):
            reshaped = tf.reshape(x, [3], name="reshaped")
        with tf.device(CPUS[1]):
            after = tf.identity(reshaped)
    with cluster.session(graph) as session:
        text = fails(errors.InvalidArgumentError, "4 values, but the requested shape has 3",
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
            a = tf.random.uniform([10], name="a")
        with tf.device(CPUS[2]):
            b = tf.identity(a, name="b")
    with cluster.session(graph) as session:
        session.run(b)
        data = tf.RunMetadata()
        session.run(b, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE,
                                             output_partition_graphs=True), run_metadata=data)
        rows = {(device.device, node.node_name.split(":")[0])
                for device in data.step_stats.dev_stats for node in device.node_stats}
        names = {name for _, name in rows}
        check("b" in names, f"no row of b in {sorted(rows)}")
        devices = " ".join(device for device, _ in rows)
        check("task:1" in devices and "task:2" in devices, devices)
        check(len(data.partition_graphs) >= 2, f"{len(data.partition_graphs)} partition graphs")
        ops = [node.op for part in data.partition_graphs for node in part.node]
        check("_Send" in ops and "_Recv" in ops, f"{ops}")
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


@case
def large_tensors(cluster):
    megabytes = 1024 if cluster.options.big else 64
    with tf.Graph().as_default() as graph:
        with tf.device(CPUS[1]):
            a = tf.fill([megabytes, 1024, 256], 2.5)
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
def unknown_handles(cluster):
    """Without TensorFlow's client, which would not send these."""
    def status(method, request, response, code, pattern):
        try:
            cluster.call(method, request, response)
        except grpc.RpcError as error:
            check(error.code() == code, f"{method}: {error.code()}, wanted {code}")
            check(re.search(pattern, error.details()), f"{method}: {error.details()!r}")
            return
        raise Failure(f"{method} succeeded")

    aborted = grpc.StatusCode.ABORTED
    status("ExtendSession", pb.ExtendSessionRequest(session_handle=b"x"), pb.ExtendSessionResponse,
           aborted, "Session x is not found")
    status("RunStep", pb.RunStepRequest(session_handle=b"x"), pb.RunStepResponse, aborted,
           "Session x is not found")
    status("CloseSession", pb.CloseSessionRequest(session_handle=b"x"), pb.CloseSessionResponse,
           aborted, "Possibly, this master has restarted")
    status("ListDevices", pb.ListDevicesRequest(session_handle=b"x"), pb.ListDevicesResponse,
           grpc.StatusCode.INVALID_ARGUMENT, "Session x is not found")
    for method, kind in [("MakeCallable", "MakeCallable"), ("RunCallable", "RunCallable"),
                         ("ReleaseCallable", "ReleaseCallable"),
                         ("PartialRunSetup", "PartialRunSetup")]:
        status(method, getattr(pb, kind + "Request")(session_handle=b"x"),
               getattr(pb, kind + "Response"), aborted, "Session x is not found")
    listed = cluster.call("ListDevices", pb.ListDevicesRequest(), pb.ListDevicesResponse)
    check(len(listed.local_device) >= 1, "no local device")
    check(len(listed.local_device) + len(listed.remote_device) >= WORKERS, "devices are missing")


def node(name, op="NoOp", inputs=()):
    graph = pb.GraphDef()
    graph.versions.producer = tf.Graph().as_graph_def().versions.producer
    add_node(graph, name, op, inputs)
    return graph


def add_node(graph, name, op="NoOp", inputs=()):
    graph.node.add(name=name.encode(), op=op.encode(), input=[i.encode() for i in inputs])


@case
def versions(cluster):
    """Of many extensions of one version one succeeds."""
    handle = cluster.call("CreateSession", pb.CreateSessionRequest(graph_def=node("a")),
                          pb.CreateSessionResponse).session_handle
    outcomes = []

    def extend(index):
        try:
            outcomes.append(cluster.call(
                "ExtendSession", pb.ExtendSessionRequest(
                    session_handle=handle, graph_def=node(f"n{index}"), current_graph_version=0),
                pb.ExtendSessionResponse).new_graph_version)
        except grpc.RpcError as error:
            outcomes.append(error.code())

    threads = [threading.Thread(target=extend, args=(i,)) for i in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    check(sorted(map(str, outcomes)) == ["1"] + [str(grpc.StatusCode.ABORTED)] * 99,
          f"{sorted(map(str, outcomes))[:5]}")
    try:
        cluster.call("ExtendSession", pb.ExtendSessionRequest(
            session_handle=handle, graph_def=node("a"), current_graph_version=1),
            pb.ExtendSessionResponse)
        raise Failure("a node came twice")
    except grpc.RpcError as error:
        check(error.code() == grpc.StatusCode.INVALID_ARGUMENT, str(error.code()))
        check("created by a previous call" in error.details(), error.details())
    # An error in the response, and a request that comes again.
    request = pb.RunStepRequest(session_handle=handle, fetch=[b"none:0"],
                                store_errors_in_response_body=True)
    response = cluster.call("RunStep", request, pb.RunStepResponse)
    check(response.status_code == 5 and b"none" in response.status_error_message, str(response))
    request = pb.RunStepRequest(session_handle=handle, target=[b"a"], request_id=11,
                                store_errors_in_response_body=True)
    check(cluster.call("RunStep", request, pb.RunStepResponse).status_code == 0, "first")
    response = cluster.call("RunStep", request, pb.RunStepResponse)
    check(response.status_code == 10 and b"received twice" in response.status_error_message,
          str(response))
    cluster.call("CloseSession", pb.CloseSessionRequest(session_handle=handle),
                 pb.CloseSessionResponse)


@case
def bad_graphs(cluster):

    def refused(graph, code, pattern):
        try:
            cluster.call("CreateSession", pb.CreateSessionRequest(graph_def=graph),
                         pb.CreateSessionResponse)
        except grpc.RpcError as error:
            check(error.code() == code, f"{error.code()}, wanted {code}: {error.details()}")
            check(re.search(pattern, error.details()), error.details())
            return
        raise Failure(f"accepted {graph}")

    invalid = grpc.StatusCode.INVALID_ARGUMENT
    for name in ("a:b", "a:0", "_a"):
        refused(node(name), invalid, "Illegal op name")
    for name in ("a:first", "_a", "_a:0", "a:01"):
        refused(node("b", "NoOp", [name]), invalid, "Illegal op input name")
    refused(node("a", "NoSuchOp"), grpc.StatusCode.NOT_FOUND, "NoSuchOp")
    twice = node("a")
    add_node(twice, "a")
    refused(twice, invalid, "not unique")
    refused(node("a", "NoOp", ["^missing"]), invalid, "missing")
    circle = node("a", "NoOp", ["^b"])
    add_node(circle, "b", "NoOp", ["^a"])
    refused(circle, invalid, "cycle")


def usage(cluster):
    """Memory in KiB and descriptors of all servers."""
    pages = files = 0
    for child in cluster.children():
        with open(f"/proc/{child.pid}/statm", encoding="ascii") as file:
            pages += int(file.read().split()[1])
        files += len(os.listdir(f"/proc/{child.pid}/fd"))
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024, files


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
    check(files_after <= files + 5, f"{files} descriptors, then {files_after}")
    check(after < memory + 20 * 1024, f"{memory} KiB, then {after}")


@case
def close_ends_a_step(cluster):
    with tf.Graph().as_default() as graph:
        with tf.device(CPUS[1]):
            value = tf.random.uniform([1200, 1200])
            for _ in range(60):
                value = tf.matmul(value, value) / 600.0
            total = tf.reduce_sum(value)
    handle = cluster.call("CreateSession", pb.CreateSessionRequest(
        graph_def=pb.GraphDef.FromString(graph.as_graph_def().SerializeToString())),
                          pb.CreateSessionResponse).session_handle
    outcome = []

    def run():
        outcome.append(cluster.call("RunStep", pb.RunStepRequest(
            session_handle=handle, fetch=[total.name.encode()], store_errors_in_response_body=True),
            pb.RunStepResponse, timeout=100))

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.5)
    cluster.call("CloseSession", pb.CloseSessionRequest(session_handle=handle),
                 pb.CloseSessionResponse, timeout=60)
    thread.join(60)
    check(outcome, "the step hangs")
    check(outcome[0].status_code == 1, str(outcome[0])[:300])
    check(b"explicit call to `Session::Close()`" in outcome[0].status_error_message,
          outcome[0].status_error_message)


@case
def a_worker_dies(cluster):
    """The last case: it leaves a worker in its second life."""
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ferry")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--protoc", default="protoc")
    parser.add_argument("--only", default="")
    parser.add_argument("--big", action="store_true")
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

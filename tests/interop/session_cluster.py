# SPDX-License-Identifier: Apache-2.0
"""A job of workers, Ferry's or TensorFlow's own, and helpers for the cases of a client.

The cases are in tensorflow_session_test.py and what that imports; benchmarks use the
cluster as well."""
import os
import re
import select
import subprocess
import tempfile
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
    """Some workers, and where clients find the master.

    options: real (whether they are TensorFlow's own), ferry and python (programs)."""

    def __init__(self, options, workers=WORKERS):
        self.options = options
        self.size = workers
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
            self.ports = [free_port() for _ in range(self.size)]
            self.address = f"127.0.0.1:{self.ports[0]}"
        else:
            self.master = self._spawn("coordinator", [
                self.options.ferry, "coordinator", f"--nodes={self.size}", "--listen=127.0.0.1:0",
                "--recoverable", "--heartbeat-timeout=5s", "--worker-timeout=20s"])
            line = self._line(self.master, "listening on")
            self.address = line.split()[-1]
        for task in range(self.size):
            self.start_worker(task)
        for task in range(self.size):
            self.wait_worker(task)
        self.target = f"grpc://{self.address}"

    def start_worker(self, task):
        if self.options.real:
            command = [self.options.python, os.path.join(HERE, "tensorflow_server.py"), str(task),
                       *map(str, self.ports)]
        else:
            command = [self.options.ferry, "worker", f"--coordinator={self.address}",
                       f"--node-id={task}", f"--num-nodes={self.size}", "--recoverable"]
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

    def tool(self, *arguments):
        """The output of a verb of the tool about the job. Not of TensorFlow's servers."""
        done = subprocess.run([self.options.ferry, *arguments, f"--coordinator={self.address}"],
                              capture_output=True, timeout=60, check=False)
        check(done.returncode == 0, done.stderr.decode(errors="replace"))
        return done.stdout.decode(errors="replace")

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
    """Messages of clients to masters, which TensorFlow's wheel does not have."""

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


class Skipped(Exception):
    """This machine cannot do it."""


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


# The error of the graph below for a feed of four values.
WRONG_SIZE = "4 values, but the requested shape has 3"


def reshape_to_three():
    """A graph whose reshape, at worker 2, fails unless three values are fed: (graph, x, reshaped,
    after), the last one at worker 1."""
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None], name="x")
        with tf.device(CPUS[2]):
            reshaped = tf.reshape(x, [3], name="reshaped")
        with tf.device(CPUS[1]):
            after = tf.identity(reshaped)
    return graph, x, reshaped, after


errors = tf.errors

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two workers of TensorFlow (tf.distribute.Server): tensorflow_pair.py BYTES STEPS HOPS PORT

One step takes a tensor there and back, HOPS times one way: each is a RecvTensor under a key of its own. The time is that
of the step by HOPS. Optimisers are off, else nothing would cross. One line of JSON, as the programs of pair.h."""
import json
import os
import signal
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
    os.environ.pop(name, None)
    os.environ.pop(name.upper(), None)


def main():
    if len(sys.argv) != 5:
        sys.exit("tensorflow_pair.py BYTES STEPS HOPS PORT")
    size, steps, hops, port = (int(word) for word in sys.argv[1:])
    if size % 8 or hops % 2:
        sys.exit("BYTES: a multiple of 8; HOPS: of 2")
    child = os.fork()
    import tensorflow.compat.v1 as tf
    tf.disable_eager_execution()
    cluster = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port + task}" for task in range(2)]})
    config = tf.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    server = tf.distribute.Server(cluster, "worker", 1 if child == 0 else 0, config=config)
    if child == 0:
        server.join()
    with tf.Graph().as_default():
        with tf.device("/job:worker/task:0/device:CPU:0"):
            words = tf.range(size // 8, dtype=tf.int64) * 0x1E3779B97F4A7C15 + 77
            variable = tf.Variable(words, use_resource=True, trainable=False)
            tensor = variable.read_value()
        for hop in range(hops):
            with tf.device(f"/job:worker/task:{1 - hop % 2}/device:CPU:0"):
                tensor = tf.identity(tensor)
        with tf.device("/job:worker/task:0/device:CPU:0"):
            wrong_words = tf.math.count_nonzero(tf.not_equal(tensor, variable.read_value()))
        session = tf.Session(server.target, config=config)
        session.run(variable.initializer)
        step = session.make_callable(tensor.op)
        for _ in range(2 if size > 64 << 10 else 10):
            step()
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            step()
            times.append((time.perf_counter() - start) / hops)
        wrong = 8 * int(session.run(wrong_words))
    print(json.dumps({"name": "seconds", "value": statistics.median(times), "samples": len(times),
                      "wrong_bytes": wrong}), flush=True)
    os.kill(child, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()

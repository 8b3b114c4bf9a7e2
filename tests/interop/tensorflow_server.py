#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One task of TensorFlow's own cluster, so that every expectation of
tensorflow_session_test.py is first held against the servers it claims to
describe.  Runs until it is killed.

  tensorflow_server.py TASK PORT PORT ...     the ports of all tasks of the job
"""
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf  # noqa: E402

task, ports = int(sys.argv[1]), sys.argv[2:]
config = tf.compat.v1.ConfigProto()
# Without one, groups of collectives are never complete.
config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
server = tf.distribute.Server({"worker": [f"127.0.0.1:{port}" for port in ports]},
                              job_name="worker", task_index=task, protocol="grpc", config=config)
print("serving", flush=True)
server.join()

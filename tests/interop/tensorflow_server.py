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
server = tf.distribute.Server({"worker": [f"127.0.0.1:{port}" for port in ports]},
                              job_name="worker", task_index=task, protocol="grpc")
print("serving", flush=True)
server.join()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""jaxlib's OWN coordination server, so that every expectation of run_interop.py
is first held against the server it claims to describe.  Prints the same ready
line as `ferry coordinator` and runs until it is killed."""
import argparse
import signal

import jaxlib

try:
    from jaxlib import _jax as ext
except ImportError:
    from jaxlib import xla_extension as ext

VERSION = tuple(int(part) for part in jaxlib.__version__.split(".")[:3])

parser = argparse.ArgumentParser()
parser.add_argument("--address", required=True)
parser.add_argument("--nodes", type=int, required=True)
parser.add_argument("--service", default="coordination")
parser.add_argument("--heartbeat-timeout", type=int, default=5)
parser.add_argument("--connect-timeout", type=int, default=20)
parser.add_argument("--shutdown-timeout", type=int, default=20)
options = parser.parse_args()

positional = [options.address, options.nodes]
keywords = dict(shutdown_timeout=options.shutdown_timeout)
if VERSION < (0, 4, 15):
    positional.append(options.service == "coordination")
if VERSION < (0, 7, 0):
    keywords.update(heartbeat_interval=1, max_missing_heartbeats=options.heartbeat_timeout)
else:
    keywords.update(heartbeat_timeout=options.heartbeat_timeout,
                    cluster_register_timeout=options.connect_timeout)
service = ext.get_distributed_runtime_service(*positional, **keywords)
print(f"ferry coordinator listening on {options.address}", flush=True)
signal.pause()

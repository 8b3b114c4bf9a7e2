#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ONE real, unmodified jaxlib coordination client, driven from outside.

--scenario=driven (default): commands arrive on stdin as JSON lines
    {"id": 7, "method": "key_value_set", "args": ["k", "v"]}
and every answer leaves on stdout as one JSON line, in completion order:
    {"id": 7, "ok": true, "value": null, "seconds": 0.01}
    {"id": 7, "ok": false, "error": "ALREADY_EXISTS: ..."}
Each command runs in its own thread, so one that waits does not stop the next.
Bytes travel as {"hex": "..."}.

--scenario=smoke: connect, set, get, barrier, shut down; for use by hand.

Only jaxlib is imported, never jax: it starts faster and the calls under test
are the ones jax.distributed itself makes.
"""
import argparse
import json
import os
import sys
import threading
import time

import jaxlib

try:
    from jaxlib import _jax as ext  # 0.6.1 and later
except ImportError:
    from jaxlib import xla_extension as ext

VERSION = tuple(int(part) for part in jaxlib.__version__.split(".")[:3])

# The protocol owns the real stdout; output of native code goes to stderr with the logs.
_out = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
_out_lock = threading.Lock()


def emit(message):
    with _out_lock:
        _out.write(json.dumps(message) + "\n")
        _out.flush()


def make_client(options):
    heartbeat = options.heartbeat_timeout
    keywords = dict(
        init_timeout=options.init_timeout,
        shutdown_timeout=options.shutdown_timeout,
        # With False, clients of the coordination service (not those of the
        # older service) send no ShutdownTask from shutdown() at all, so the
        # cases about clean shutdown ask for True, which is also jax's default.
        shutdown_on_destruction=options.shutdown_rpc,
    )
    positional = [options.address, options.node_id]
    if VERSION < (0, 4, 15):
        positional.append(options.service == "coordination")
    if VERSION < (0, 7, 0):
        keywords.update(heartbeat_interval=1, max_missing_heartbeats=heartbeat)
    else:
        keywords.update(heartbeat_timeout=heartbeat)
    if VERSION >= (0, 4, 36):
        # As jax.distributed does: requests are gzip-compressed.
        keywords.update(use_compression=True)
    # No missed_heartbeat_callback, although the argument exists: 0.4.13 cannot convert any Python
    # callable (TypeError), and 0.9.0 and 0.10.2 cannot convert the status for the call
    # (std::bad_cast, which ends the process). With the default one the client logs the error and
    # ends the process, as users of jax see it; the driver looks for exactly that.
    return ext.get_distributed_runtime_client(*positional, **keywords)


def decode(value):
    if isinstance(value, dict) and "hex" in value:
        return bytes.fromhex(value["hex"])
    return value


def encode(value):
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, dict):
        # JSON object keys are text; node ids and incarnations are not.
        return {"pairs": sorted([key, entry] for key, entry in value.items())}
    if isinstance(value, (list, tuple)):
        return [encode(entry) for entry in value]
    return value if isinstance(value, (int, float, str, type(None))) else str(value)


def call(client, method, args):
    try:
        return getattr(client, method)(*[decode(arg) for arg in args])
    except TypeError as error:
        # 0.4.13 performs the delete and then fails to hand its status to
        # Python; the RPC itself succeeded or failed unseen.
        if method == "key_value_delete" and "return value" in str(error):
            return None
        raise


def answer(client, command):
    begin = time.monotonic()
    try:
        value = call(client, command["method"], command.get("args", []))
        reply = {"ok": True, "value": encode(value)}
    except Exception as error:  # every failure is a result of the test
        reply = {"ok": False, "error": str(error)}
    emit({"id": command["id"], "seconds": time.monotonic() - begin, **reply})


def driven(client):
    methods = [name for name in dir(client) if not name.startswith("_")]
    emit({"event": "ready", "version": jaxlib.__version__, "methods": methods})
    for line in sys.stdin:
        command = json.loads(line)
        threading.Thread(target=answer, args=(client, command), daemon=True).start()


def smoke(client, options):
    client.connect()
    client.key_value_set(f"smoke/{options.node_id}", "here")
    for node in range(options.num_nodes):
        client.blocking_key_value_get(f"smoke/{node}", 30_000)
    client.wait_at_barrier("smoke", 30_000)
    client.shutdown()
    emit({"event": "done"})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", required=True)
    parser.add_argument("--node-id", type=int, required=True)
    parser.add_argument("--num-nodes", type=int, required=True)
    parser.add_argument("--scenario", choices=["driven", "smoke"], default="driven")
    parser.add_argument("--service", choices=["drs", "coordination"], default="coordination")
    parser.add_argument("--heartbeat-timeout", type=int, default=5)
    parser.add_argument("--init-timeout", type=int, default=20)
    parser.add_argument("--shutdown-timeout", type=int, default=20)
    parser.add_argument("--shutdown-rpc", action="store_true")
    options = parser.parse_args()
    if options.service == "drs" and VERSION >= (0, 4, 15):
        parser.error(f"jaxlib {jaxlib.__version__} cannot speak the drs service")
    if options.scenario == "smoke":
        options.shutdown_rpc = True
        smoke(make_client(options), options)
    else:
        driven(make_client(options))
    # Destructors of a client whose peers have ended may abort; nothing is left to do here.
    os._exit(0)


if __name__ == "__main__":
    main()

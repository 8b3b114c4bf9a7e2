# SPDX-License-Identifier: Apache-2.0
"""The statistics of a step, as TensorFlow's own tools read them, and its transfers."""
import json
import re

from tensorflow.python.client import timeline

from harness import check


def check_crossings(cluster, partitions, labels):
    """Each tensor that goes from a worker to another one has a row at both of them; that of the
    receiver names the path. TensorFlow's servers have such rows only while they log transfers,
    and without the path."""
    found = []
    for part in partitions:
        for node in part.node:
            if node.op not in ("_Send", "_Recv") or node.attr["client_terminated"].b:
                continue
            source, target, tensor = (node.attr[name].s.decode() for name in (
                "send_device", "recv_device", "tensor_name"))
            found.append((node.op, source, target))
            if cluster.options.real:
                continue
            size, by = (r"4B", "(inline|eager)") if tensor.endswith("_b") else (r"1\.0MB", "(shm|tcp).*")
            pattern = rf"\[{size}\] {tensor} from {source} to {target}"
            if node.op == "_Recv":
                pattern += f" by {by}"
            rows = [label for label in labels[source if node.op == "_Send" else target]
                    if re.fullmatch(pattern, label)]
            check(len(rows) == 1, f"{len(rows)} rows are {pattern!r}: {labels}")
    cpus = [f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in range(3)]
    wanted = [(cpus[1], cpus[2]), (cpus[1], cpus[0]), (cpus[2], cpus[0])]
    check(sorted(found) == sorted((op, *ends) for op in ("_Send", "_Recv") for ends in wanted),
          f"{found}")


def check_timeline(cluster, stats):
    """TensorFlow's own timeline of a step: ops by their names, and their inputs."""
    events = json.loads(timeline.Timeline(stats).generate_chrome_trace_format())["traceEvents"]
    ops = {event["args"]["name"]: event["args"] for event in events if event["ph"] == "X"}
    check(ops["b"]["op"] == "Sum" and "a" in ops["b"]["input0"], f"{ops}")
    check(ops["c"]["op"] == "AddV2", f"{ops}")
    # TensorFlow's servers have no rows for copies of a tensor from another device.
    flows = [event["name"] for event in events if event["ph"] == "t"]
    check(cluster.options.real or flows, "nothing is shown to go from node to node")

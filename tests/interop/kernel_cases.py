#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write random cases for the kernels of the host, with TensorFlow's own answers.

  kernel_cases.py DESTINATION [--count=4000] [--seed=1] [--op=NAME] [--max-bytes=N]
                  [--check=PROGRAM] [--print-errors]

Each case is one op run by the TensorFlow that is installed: attributes and inputs
are drawn at random, valid and invalid ones, and the outputs or the error are
TensorFlow's.  The file is a row of GraphDefs, each behind
its length in four bytes, little-endian.  The first node of a GraphDef is the op;
the nodes in0, in1, ... and out0, out1, ... are Consts of its inputs and outputs, or
of an input that is a variable its VarHandleOp; if it failed there is a node `error`
with the attributes `code` and `text`.  Variables persist from case to case.
"""
import argparse
import re
import struct
import subprocess
import sys

# Before TensorFlow: it sets the environment.
from kernel_draw import Draw, Variable
from kernel_makers import MAKERS

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.eager import context, execute


def set_attr(value, attr):
    if isinstance(value, bool):
        attr.b = value
    elif isinstance(value, int):
        attr.i = value
    elif isinstance(value, tf.DType):
        attr.type = value.as_datatype_enum
    elif isinstance(value, list):
        attr.list.SetInParent()
        for one in value:
            if isinstance(one, tf.DType):
                attr.list.type.append(one.as_datatype_enum)
            else:
                attr.list.i.append(one)
    else:
        attr.shape.CopyFrom(value)


def flat_attrs(case):
    flat = []
    for name, value in case.attrs.items():
        if isinstance(value, tf.DType):
            value = value.as_datatype_enum
        elif isinstance(value, list) and value and isinstance(value[0], tf.DType):
            value = [one.as_datatype_enum for one in value]
        elif not isinstance(value, (bool, int, list)):
            value = tf.TensorShape(value)
        flat += [name, value]
    return tuple(flat)


def add_const(graph, name, array, dtype):
    node = graph.node.add(name=name, op="Const")
    node.attr["dtype"].type = dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(array, dtype=dtype, shape=array.shape))


def add_variable(graph, name, variable):
    """Its handle in this process."""
    node = graph.node.add(name=name, op="VarHandleOp")
    node.attr["container"].s = variable.container.encode()
    node.attr["shared_name"].s = variable.name.encode()
    node.attr["dtype"].type = tf.float32.as_datatype_enum
    node.attr["shape"].shape.unknown_rank = True
    return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=tf.TensorShape(None), container=variable.container,
                                  shared_name=variable.name)


def plain_text(message):
    """The kernel's error, without the text that eager execution adds."""
    message = re.sub(r"^\{\{function_node [^}]*\}\} ?", "", message)
    return re.sub(r" \[Op:\w+\](?: name: ?.*)?$", "", message, flags=re.DOTALL)


def answer(case):
    graph = graph_pb2.GraphDef()
    node = graph.node.add(name=case.op, op=case.op)
    for name, value in case.attrs.items():
        set_attr(value, node.attr[name])
    inputs = []
    for index, given in enumerate(case.inputs):
        node.input.append(f"in{index}")
        if isinstance(given, Variable):
            inputs.append(add_variable(graph, f"in{index}", given))
            continue
        array, dtype = given
        add_const(graph, f"in{index}", array, dtype)
        inputs.append(tf.constant(array, dtype=dtype, shape=array.shape))
    try:
        outputs = execute.execute(case.op.encode(), case.outputs, inputs, flat_attrs(case), context.context())
    except tf.errors.OpError as error:
        said = graph.node.add(name="error", op="NoOp")
        said.attr["code"].i = error.error_code
        said.attr["text"].s = plain_text(error.message).encode()
        return graph
    for index, output in enumerate(outputs or []):
        add_const(graph, f"out{index}", np.asarray(output.numpy(), dtype=object if output.dtype == tf.string else None),
                  output.dtype)
    return graph


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("destination")
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--op", action="append")
    parser.add_argument("--max-bytes", type=int, default=1 << 20, help="larger cases are left out")
    parser.add_argument("--check", help="the program that compares; its exit status is ours")
    parser.add_argument("--python", help="of no account")
    parser.add_argument("--print-errors", action="store_true")
    arguments = parser.parse_args()

    draw = Draw(arguments.seed)
    ops = arguments.op or sorted(MAKERS)
    written, failed, seen = 0, 0, set()
    with open(arguments.destination, "wb") as file:
        for number in range(arguments.count):
            with np.errstate(all="ignore"):
                graph = answer(MAKERS[ops[number % len(ops)]](draw))
            data = graph.SerializeToString(deterministic=True)
            # Values that later cases read are kept.
            if len(data) > arguments.max_bytes and not graph.node[0].op.startswith("Assign"):
                continue
            file.write(struct.pack("<I", len(data)) + data)
            written += 1
            last = graph.node[-1]
            if last.name == "error":
                failed += 1
                text = last.attr["text"].s.decode(errors="replace")
                line = (graph.node[0].op, last.attr["code"].i, re.sub(r"-?\d+", "#", text)[:200])
                if arguments.print_errors and line not in seen:
                    seen.add(line)
                    print(*line[:2], text[:300], flush=True)
    print(f"kernel_cases: {written} cases of {len(ops)} ops, {failed} of them errors; "
          f"TensorFlow {tf.__version__}, seed {arguments.seed}", flush=True)
    if arguments.check:
        return subprocess.run([arguments.check, arguments.destination], check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())

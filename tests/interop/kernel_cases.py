#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write random cases for the kernels of the host, with TensorFlow's own answers.

  kernel_cases.py DESTINATION [--count=4000] [--seed=1] [--op=NAME] [--max-bytes=N]
                  [--check=PROGRAM] [--print-errors]

Each case is one op run by the TensorFlow that is installed: attributes and inputs
are drawn at random, what the host allows and what it does not, and the outputs or
the error are what TensorFlow says.  The file is a row of GraphDefs, each behind
its length in four bytes, little-endian.  The first node of a GraphDef is the op;
the nodes in0, in1, ... and out0, out1, ... are Consts of its inputs and outputs;
if it failed there is a node `error` with the attributes `code` and `text`.
"""
import argparse
import os
import re
import struct
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Otherwise products are oneDNN's, which rounds in another way.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from tensorflow.core.framework import graph_pb2  # noqa: E402
from tensorflow.python.eager import context, execute  # noqa: E402

HALVES = [tf.float16, tf.bfloat16]
FLOATS = HALVES + [tf.float32, tf.float64]
UNSIGNED = [tf.uint8, tf.uint16, tf.uint32, tf.uint64]
SIGNED = [tf.int8, tf.int16, tf.int32, tf.int64]
COMPLEX = [tf.complex64, tf.complex128]
NUMBERS = FLOATS + UNSIGNED + SIGNED + COMPLEX
ANY = NUMBERS + [tf.bool, tf.string]
INDEX = [tf.int32, tf.int64]


class Case:
    """What is asked: an op, its attributes, its inputs as NumPy arrays with their types."""

    def __init__(self, op, attrs, inputs, outputs=1):
        self.op, self.attrs, self.inputs, self.outputs = op, attrs, inputs, outputs


class Draw:
    """Random types, shapes and values."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def chance(self, probability):
        return self.rng.random() < probability

    def pick(self, values):
        return values[int(self.rng.integers(len(values)))]

    def integer(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def shape(self, max_rank=4, max_dim=5, empty=0.08):
        rank = self.integer(0, max_rank)
        return [0 if self.chance(empty / 2) else self.integer(1, max_dim) for _ in range(rank)]

    def values(self, dtype, shape, special=0.1, small=False):
        """An array of `dtype`; with probability `special` per array some of its elements are extreme."""
        count = int(np.prod(shape, dtype=np.int64))
        extreme = self.chance(special * 3)
        if dtype == tf.string:
            words = [b"", b"a", b"ferry", b"\x00\xff", b"x" * 40, "é".encode()]
            flat = np.array([self.pick(words) for _ in range(count)], dtype=object)
            return flat.reshape(shape)
        numpy_type = dtype.as_numpy_dtype
        if dtype == tf.bool:
            return (self.rng.random(count) < 0.5).reshape(shape)
        if dtype.is_integer:
            low, high = (0, 9) if dtype.is_unsigned else (-9, 9)
            flat = self.rng.integers(low, high + 1, count)
            flat = flat.astype(numpy_type)
            if extreme and not small:
                info = np.iinfo(numpy_type)
                edges = [info.min, info.max, info.max // 2 + 1, info.max - 1]
                for i in range(count):
                    if self.chance(0.4):
                        flat[i] = self.pick(edges)
            return flat.reshape(shape)
        if dtype.is_complex:
            flat = self.rng.normal(size=count) * 4 + 1j * self.rng.normal(size=count) * 4
            return flat.astype(numpy_type).reshape(shape)
        scale = self.pick([1.0, 1.0, 10.0, 1000.0])
        flat = (self.rng.normal(size=count) * scale).astype(numpy_type)
        if extreme and not small:
            edges = [np.nan, np.inf, -np.inf, 0.0, -0.0, 6e4, -6e4, 0.5, 1.5, 2.5, -0.5]
            for i in range(count):
                if self.chance(0.3):
                    flat[i] = self.pick(edges)
        return flat.reshape(shape)

    def summands(self, dtype, shape):
        """Values whose sums do not overflow, or do, as one adds them up."""
        values = self.values(dtype, shape, special=0.02)
        if dtype in HALVES:
            values = np.where(np.isfinite(values), np.clip(values, -30, 30), values).astype(dtype.as_numpy_dtype)
        return values

    def broadcast_shapes(self):
        """Two shapes that mostly fit each other."""
        shape = self.shape()
        pair = []
        for _ in range(2):
            one = [1 if self.chance(0.25) else dim for dim in shape]
            if self.chance(0.3):
                one = one[self.integer(0, len(one)):]
            pair.append(one)
        if self.chance(0.06):
            pair[self.integer(0, 1)].append(self.integer(2, 4))
        return pair

    def indices(self, dtype, values):
        return (np.array(values, dtype=np.int64).astype(dtype.as_numpy_dtype).reshape([len(values)]), dtype)


def unary(op, types):
    def make(draw):
        dtype = draw.pick(types)
        attrs = {"T": dtype}
        return Case(op, attrs, [(draw.values(dtype, draw.shape()), dtype)])
    return make


def binary(op, types):
    def make(draw):
        dtype = draw.pick(types)
        shapes = draw.broadcast_shapes()
        return Case(op, {"T": dtype}, [(draw.values(dtype, shape), dtype) for shape in shapes])
    return make


def make_add_n(draw):
    dtype = draw.pick(NUMBERS)
    shape = draw.shape()
    count = draw.integer(1, 20)
    shapes = [list(shape) for _ in range(count)]
    if draw.chance(0.08):
        shapes[-1].append(2)
    inputs = [(draw.values(dtype, one, special=0.02), dtype) for one in shapes]
    return Case("AddN", {"N": count, "T": dtype}, inputs)


def make_cast(draw):
    types = NUMBERS + [tf.bool]
    source, target = draw.pick(types), draw.pick(types)
    if draw.chance(0.02):
        target = tf.string
    shape = draw.shape(max_dim=6)
    values = draw.values(source, shape)
    if source in FLOATS and draw.chance(0.4):
        with np.errstate(all="ignore"):
            values = (np.asarray(draw.rng.normal(size=shape)) * draw.pick([1, 100, 300, 7e4, 5e9, 1e20])).astype(
                source.as_numpy_dtype)
    # Double to complex64, truncated, loses its exponent in TensorFlow 2.15.
    truncates = draw.chance(0.3) and (source, target) != (tf.float64, tf.complex64)
    return Case("Cast", {"SrcT": source, "DstT": target, "Truncate": truncates}, [(values, source)])


def make_identity(draw):
    dtype = draw.pick(ANY)
    return Case("Identity", {"T": dtype}, [(draw.values(dtype, draw.shape()), dtype)])


def make_identity_n(draw):
    types = [draw.pick(ANY) for _ in range(draw.integer(1, 4))]
    inputs = [(draw.values(dtype, draw.shape()), dtype) for dtype in types]
    return Case("IdentityN", {"T": types}, inputs, outputs=len(types))


def make_fill(draw):
    dtype, index = draw.pick(ANY), draw.pick(INDEX)
    dims = draw.shape()
    if draw.chance(0.08):
        dims.append(-2)
    if draw.chance(0.04):
        dims = [2**31 - 1] * 4
    value_shape = [] if draw.chance(0.9) else draw.shape(max_rank=2, max_dim=2)
    dims_value = draw.indices(index, dims)
    if draw.chance(0.04):
        dims_value = (np.array(3, dtype=index.as_numpy_dtype), index)
    return Case("Fill", {"T": dtype, "index_type": index},
                [dims_value, (draw.values(dtype, value_shape), dtype)])


def make_reshape(draw):
    dtype, index = draw.pick(ANY), draw.pick(INDEX)
    shape = draw.shape()
    target = [dim for dim in shape if dim != 1]
    draw.rng.shuffle(target)
    if len(target) > 1 and draw.chance(0.3):
        target = [target[0] * target[1]] + target[2:]
    if target and draw.chance(0.4):
        target[draw.integer(0, len(target) - 1)] = -1
    if draw.chance(0.2):
        target.insert(draw.integer(0, len(target)), draw.pick([1, 1, 2, 0, -1, -3]))
    if draw.chance(0.02):
        target = [2**31 - 1] * 4
    return Case("Reshape", {"T": dtype, "Tshape": index},
                [(draw.values(dtype, shape), dtype), draw.indices(index, target)])


def make_shape(draw):
    dtype = draw.pick(ANY)
    if draw.chance(0.3):
        return Case("Rank", {"T": dtype}, [(draw.values(dtype, draw.shape()), dtype)])
    return Case("Shape", {"T": dtype, "out_type": draw.pick(INDEX)},
                [(draw.values(dtype, draw.shape()), dtype)])


def make_range(draw):
    dtype = draw.pick([tf.int32, tf.int64, tf.float32, tf.float64])
    if dtype.is_integer:
        numbers = [draw.integer(-20, 20), draw.integer(-20, 20), draw.integer(-3, 5)]
        if draw.chance(0.05):
            # Not from a negative one: TensorFlow computes the difference with an overflow.
            numbers = [0, dtype.max, dtype.max // draw.pick([3, 4, 5])]
    else:
        numbers = [draw.rng.normal() * 10, draw.rng.normal() * 10, draw.rng.normal()]
        if draw.chance(0.05):
            numbers[draw.integer(0, 2)] = draw.pick([np.nan, np.inf, 1e30, 0.0])
    if draw.chance(0.7) and (numbers[1] - numbers[0]) * numbers[2] < 0:
        numbers[2] = -numbers[2]
    shape = [] if draw.chance(0.95) else draw.pick([[1], [2], [1, 1]])
    inputs = [(np.full(shape if i == 0 else [], number, dtype=dtype.as_numpy_dtype), dtype)
              for i, number in enumerate(numbers)]
    return Case("Range", {"Tidx": dtype}, inputs)


def make_pack(draw):
    dtype = draw.pick(ANY)
    shape = draw.shape(max_rank=3)
    count = draw.integer(1, 5)
    shapes = [list(shape) for _ in range(count)]
    if draw.chance(0.08):
        shapes[-1].append(2)
    axis = draw.integer(-len(shape) - 1, len(shape)) if draw.chance(0.92) else draw.pick([-9, 7])
    return Case("Pack", {"N": count, "T": dtype, "axis": axis},
                [(draw.values(dtype, one), dtype) for one in shapes])


def make_unpack(draw):
    dtype = draw.pick(ANY)
    shape = draw.shape()
    axis = draw.integer(-len(shape), max(len(shape) - 1, 0)) if draw.chance(0.92) else draw.pick([-9, 7])
    in_range = -len(shape) <= axis < len(shape)
    number = shape[axis] if in_range and draw.chance(0.93) else draw.integer(1, 4)
    return Case("Unpack", {"num": number, "T": dtype, "axis": axis},
                [(draw.values(dtype, shape), dtype)], outputs=number)


def make_concat(draw):
    dtype, index = draw.pick(ANY), draw.pick(INDEX)
    shape = draw.shape()
    axis = draw.integer(-len(shape), max(len(shape) - 1, 0)) if draw.chance(0.93) else draw.pick([-9, 7])
    shapes = []
    for _ in range(draw.integer(2, 5)):
        one = list(shape)
        if one and -len(one) <= axis < len(one):
            one[axis] = draw.integer(0, 4)
        shapes.append(one)
    if draw.chance(0.06) and shapes[-1]:
        shapes[-1][draw.integer(0, len(shape) - 1)] += 1
    if draw.chance(0.05):
        shapes[-1] = shapes[-1] + [2]
    if draw.chance(0.05):
        shapes[-1] = [0]
    axis_value = (np.array(axis, dtype=index.as_numpy_dtype), index)
    if draw.chance(0.04):
        axis_value = draw.indices(index, draw.pick([[axis], [axis, 0]]))
    return Case("ConcatV2", {"N": len(shapes), "T": dtype, "Tidx": index},
                [(draw.values(dtype, one), dtype) for one in shapes] + [axis_value])


def make_split(draw):
    dtype = draw.pick(ANY)
    shape = draw.shape()
    axis = draw.integer(-len(shape), max(len(shape) - 1, 0)) if draw.chance(0.93) else draw.pick([-9, 7])
    number = draw.integer(1, 4)
    if -len(shape) <= axis < len(shape) and draw.chance(0.9):
        shape[axis] = number * draw.integer(0, 3)
    axis_value = (np.array(axis, dtype=np.int32), tf.int32)
    if draw.chance(0.04):
        axis_value = draw.indices(tf.int32, draw.pick([[axis], [axis, 0]]))
    return Case("Split", {"num_split": number, "T": dtype},
                [axis_value, (draw.values(dtype, shape), dtype)], outputs=number)


def make_slice(draw):
    dtype, index = draw.pick(ANY), draw.pick(INDEX)
    shape = draw.shape(max_rank=draw.pick([2, 4, 8]), max_dim=4)
    begin = [draw.integer(0, dim) if draw.chance(0.6) else 0 for dim in shape]
    size = [draw.integer(0, dim - first) if draw.chance(0.6) else -1 for dim, first in zip(shape, begin)]
    if shape and draw.chance(0.1):
        draw.pick([begin, size])[draw.integer(0, len(shape) - 1)] = draw.pick([-2, 9, 2**31 - 1])
    if draw.chance(0.04):
        size.append(1)
    return Case("Slice", {"T": dtype, "Index": index},
                [(draw.values(dtype, shape), dtype), draw.indices(index, begin), draw.indices(index, size)])


def make_transpose(draw):
    dtype, index = draw.pick(ANY), draw.pick(INDEX)
    shape = draw.shape(max_rank=draw.pick([2, 3, 6]), max_dim=4)
    if draw.chance(0.03):
        shape = [draw.integer(30, 70), draw.integer(30, 70)]
    order = list(range(len(shape)))
    draw.rng.shuffle(order)
    # Negative axes end the process of TensorFlow 2.15.
    order = [int(axis) for axis in order]
    if order and draw.chance(0.06):
        order[draw.integer(0, len(order) - 1)] = draw.pick([0, 9])
    if draw.chance(0.03):
        order.append(0)
    permutation = draw.indices(index, order)
    if draw.chance(0.02):
        permutation = (permutation[0].reshape([1, -1]), index)
    return Case("Transpose", {"T": dtype, "Tperm": index}, [(draw.values(dtype, shape), dtype), permutation])


def make_expand_dims(draw):
    dtype, index = draw.pick(ANY), draw.pick(INDEX)
    shape = draw.shape()
    axis = draw.integer(-len(shape) - 1, len(shape)) if draw.chance(0.9) else draw.pick([-9, 7])
    value = (np.array(axis, dtype=index.as_numpy_dtype), index)
    if draw.chance(0.1):
        value = draw.indices(index, draw.pick([[axis], [axis, 0]]))
    return Case("ExpandDims", {"T": dtype, "Tdim": index}, [(draw.values(dtype, shape), dtype), value])


def make_squeeze(draw):
    dtype = draw.pick(ANY)
    shape = [1 if draw.chance(0.5) else dim for dim in draw.shape()]
    ones = [axis for axis, dim in enumerate(shape) if dim == 1]
    axes = [axis - (len(shape) if draw.chance(0.3) else 0) for axis in ones if draw.chance(0.5)]
    if draw.chance(0.1):
        axes.append(draw.integer(-5, 5))
    return Case("Squeeze", {"T": dtype, "squeeze_dims": axes}, [(draw.values(dtype, shape), dtype)])


def make_mat_mul(draw):
    dtype = draw.pick(FLOATS + [tf.int32, tf.int64] + COMPLEX)
    rows, inner, columns = (draw.integer(0, 9) if draw.chance(0.9) else draw.integer(20, 50) for _ in range(3))
    transpose = [draw.chance(0.3), draw.chance(0.3)]
    shapes = [[rows, inner], [inner, columns]]
    shapes = [one[::-1] if turned else one for one, turned in zip(shapes, transpose)]
    if draw.chance(0.06):
        shapes[0][0] += 1
        shapes[0][1] += 1
    if draw.chance(0.05):
        shapes[draw.integer(0, 1)].insert(0, draw.integer(1, 2))
    if draw.chance(0.03):
        shapes[draw.integer(0, 1)].pop()
    inputs = [draw.summands(dtype, one) for one in shapes]
    return Case("MatMul", {"transpose_a": transpose[0], "transpose_b": transpose[1], "T": dtype},
                [(values, dtype) for values in inputs])


def reduction(op, types):
    def make(draw):
        dtype, index = draw.pick(types), draw.pick(INDEX)
        shape = draw.shape(max_rank=draw.pick([2, 4, 6]), max_dim=4)
        if draw.chance(0.05):
            shape = [draw.integer(100, 300), draw.integer(1, 20)][::draw.pick([1, -1])]
        axes = [axis - (len(shape) if draw.chance(0.3) else 0) for axis in range(len(shape)) if draw.chance(0.5)]
        if draw.chance(0.06):
            axes.append(draw.pick([9, -9] + ([0] if shape else [])))
        axes_value = draw.indices(index, axes)
        if len(axes) == 1 and draw.chance(0.3):
            axes_value = (axes_value[0].reshape([]), index)
        if draw.chance(0.02):
            axes_value = (axes_value[0].reshape([1, -1]), index)
        return Case(op, {"T": dtype, "Tidx": index, "keep_dims": draw.chance(0.4)},
                    [(draw.summands(dtype, shape), dtype), axes_value])
    return make


SEEDS = iter(range(1, 1 << 30))


def random(op):
    def make(draw):
        dtype, index = draw.pick(FLOATS), draw.pick(INDEX)
        shape = draw.shape() if draw.chance(0.8) else [draw.integer(0, 700)]
        if draw.chance(0.06):
            shape.append(draw.pick([-1, -5]))
        # A generator goes on where it was as long as its seeds are the same: each pair occurs once.
        seeds = [next(SEEDS), draw.pick([0, 7, -3, 2**40 + 1])]
        if draw.chance(0.3):
            seeds = [-seeds[0], seeds[1]]
        shape_value = draw.indices(index, shape)
        if draw.chance(0.04):
            shape_value = (np.array(3, dtype=index.as_numpy_dtype), index)
        return Case(op, {"seed": seeds[0], "seed2": seeds[1], "dtype": dtype, "T": index}, [shape_value])
    return make


MAKERS = {
    "Identity": make_identity,
    "IdentityN": make_identity_n,
    "PlaceholderWithDefault": lambda draw: (lambda dtype: Case(
        "PlaceholderWithDefault", {"dtype": dtype, "shape": tf.TensorShape(None).as_proto()},
        [(draw.values(dtype, draw.shape()), dtype)]))(draw.pick(ANY)),
    "Fill": make_fill,
    "Reshape": make_reshape,
    "Shape": make_shape,
    "Range": make_range,
    "Pack": make_pack,
    "Unpack": make_unpack,
    "ConcatV2": make_concat,
    "Split": make_split,
    "Slice": make_slice,
    "Transpose": make_transpose,
    "ExpandDims": make_expand_dims,
    "Squeeze": make_squeeze,
    "ZerosLike": unary("ZerosLike", ANY),
    "OnesLike": unary("OnesLike", NUMBERS + [tf.bool]),
    "Cast": make_cast,
    "Add": binary("Add", FLOATS + [tf.uint8] + SIGNED + COMPLEX + [tf.string]),
    "AddV2": binary("AddV2", NUMBERS),
    "AddN": make_add_n,
    "Sub": binary("Sub", NUMBERS),
    "Mul": binary("Mul", NUMBERS),
    "RealDiv": binary("RealDiv", FLOATS + COMPLEX),
    "Maximum": binary("Maximum", FLOATS + UNSIGNED + SIGNED),
    "Minimum": binary("Minimum", FLOATS + UNSIGNED + SIGNED),
    "Neg": unary("Neg", FLOATS + SIGNED + COMPLEX),
    "Sqrt": unary("Sqrt", FLOATS + COMPLEX),
    "MatMul": make_mat_mul,
    "Sum": reduction("Sum", NUMBERS),
    "Mean": reduction("Mean", NUMBERS),
    "Max": reduction("Max", FLOATS + UNSIGNED + SIGNED),
    "Min": reduction("Min", FLOATS + UNSIGNED + SIGNED),
    "RandomUniform": random("RandomUniform"),
    "RandomStandardNormal": random("RandomStandardNormal"),
}


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


def plain_text(message):
    """What the kernel said, without what eager execution writes around it."""
    message = re.sub(r"^\{\{function_node [^}]*\}\} ?", "", message)
    return re.sub(r" \[Op:\w+\](?: name: ?.*)?$", "", message, flags=re.DOTALL)


def answer(case):
    graph = graph_pb2.GraphDef()
    node = graph.node.add(name=case.op, op=case.op)
    for name, value in case.attrs.items():
        set_attr(value, node.attr[name])
    inputs = []
    for index, (array, dtype) in enumerate(case.inputs):
        add_const(graph, f"in{index}", array, dtype)
        node.input.append(f"in{index}")
        inputs.append(tf.constant(array, dtype=dtype, shape=array.shape))
    try:
        outputs = execute.execute(case.op.encode(), case.outputs, inputs, flat_attrs(case), context.context())
    except tf.errors.OpError as error:
        said = graph.node.add(name="error", op="NoOp")
        said.attr["code"].i = error.error_code
        said.attr["text"].s = plain_text(error.message).encode()
        return graph
    for index, output in enumerate(outputs):
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
            if len(data) > arguments.max_bytes:
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

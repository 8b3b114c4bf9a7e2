# SPDX-License-Identifier: Apache-2.0
"""A function for each op, which draws a case of it, valid or invalid on the host."""
from kernel_draw import ANY, COMPLEX, FLOATS, INDEX, NUMBERS, SIGNED, UNSIGNED, Case

import numpy as np
import tensorflow as tf


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
        # A generator continues as long as its seeds are the same: each pair occurs once.
        seeds = [next(SEEDS), draw.pick([0, 7, -3, 2**40 + 1])]
        if draw.chance(0.3):
            seeds = [-seeds[0], seeds[1]]
        shape_value = draw.indices(index, shape)
        if draw.chance(0.04):
            shape_value = (np.array(3, dtype=index.as_numpy_dtype), index)
        return Case(op, {"seed": seeds[0], "seed2": seeds[1], "dtype": dtype, "T": index}, [shape_value])
    return make


def make_placeholder(draw):
    dtype = draw.pick(ANY)
    shape = None if draw.chance(0.3) else draw.shape()
    return Case("Placeholder", {"dtype": dtype, "shape": tf.TensorShape(shape).as_proto()}, [])


def variable_value(draw, variable, types, fits):
    """A value that fits the variable, or one that may not."""
    if variable.dtype not in types or not draw.chance(fits):
        return draw.pick(types), draw.shape(max_rank=2)
    return variable.dtype, variable.shape if draw.chance(fits) else draw.shape(max_rank=2)


def make_assign_variable(draw):
    variable = draw.variable()
    dtype, shape = variable_value(draw, variable, ANY, fits=0.7)
    # Another type is refused, and leaves it as it was.
    if variable.dtype in (None, dtype):
        variable.dtype, variable.shape = dtype, shape
    return Case("AssignVariableOp", {"dtype": dtype, "validate_shape": draw.chance(0.3)},
                [variable, (draw.values(dtype, shape), dtype)], outputs=0)


def make_assign_add_variable(draw):
    variable = draw.variable()
    dtype, shape = variable_value(draw, variable, NUMBERS, fits=0.9)
    return Case("AssignAddVariableOp", {"dtype": dtype}, [variable, (draw.values(dtype, shape), dtype)], outputs=0)


def make_read_variable(draw):
    variable = draw.variable()
    dtype = variable.dtype if variable.dtype and draw.chance(0.9) else draw.pick(ANY)
    return Case("ReadVariableOp", {"dtype": dtype}, [variable])


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
    "Placeholder": make_placeholder,
    "AssignVariableOp": make_assign_variable,
    "AssignAddVariableOp": make_assign_add_variable,
    "ReadVariableOp": make_read_variable,
    "VarIsInitializedOp": lambda draw: Case("VarIsInitializedOp", {}, [draw.variable()]),
}

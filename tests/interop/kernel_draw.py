# SPDX-License-Identifier: Apache-2.0
"""Random types, shapes and values, of which kernel_makers.py makes cases."""
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Otherwise products are oneDNN's, which rounds differently.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

HALVES = [tf.float16, tf.bfloat16]
FLOATS = HALVES + [tf.float32, tf.float64]
UNSIGNED = [tf.uint8, tf.uint16, tf.uint32, tf.uint64]
SIGNED = [tf.int8, tf.int16, tf.int32, tf.int64]
COMPLEX = [tf.complex64, tf.complex128]
NUMBERS = FLOATS + UNSIGNED + SIGNED + COMPLEX
ANY = NUMBERS + [tf.bool, tf.string]
INDEX = [tf.int32, tf.int64]


class Case:
    """A case: an op, its attributes, its inputs as NumPy arrays with their types."""

    def __init__(self, op, attrs, inputs, outputs=1):
        self.op, self.attrs, self.inputs, self.outputs = op, attrs, inputs, outputs


class Variable:
    """An input that is the handle of a variable, which later cases may use as well."""

    def __init__(self, name, container):
        self.name, self.container = name, container
        # The last assigned value, as far as the cases know; the assignment may have failed.
        self.dtype, self.shape = None, []


class Draw:
    """Random types, shapes and values."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.variables = []

    def variable(self):
        """One of the last, or a new one that nothing was assigned to."""
        if not self.variables or self.chance(0.15):
            # The default container is called as the job, which is another one in TensorFlow's own process.
            self.variables.append(Variable(f"v{len(self.variables)}", self.pick(["here", "there"])))
        return self.pick(self.variables[-4:])

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

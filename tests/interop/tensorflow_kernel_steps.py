# SPDX-License-Identifier: Apache-2.0
"""The random cases of kernels, in steps of a client: one worker is fed, another one computes, a
third has the outputs.  Each step must give what the same node gives in TensorFlow's own process."""
import os

from kernel_cases import set_attr
from kernel_draw import Draw, Variable
from kernel_makers import MAKERS

import numpy as np
from session_cluster import CPUS, case, tf
from tensorflow.core.framework import graph_pb2

from harness import check

STEPS = int(os.environ.get("FERRY_KERNEL_STEPS", "600"))
# Their sums and products may be in another order.
INEXACT = {"Sum", "Mean", "MatMul", "RandomStandardNormal", "Mul", "RealDiv", "Sqrt"}


def definition(kernel, name, device):
    """A GraphDef of the kernel's node, in which its inputs are to be put."""
    graph = graph_pb2.GraphDef()
    node = graph.node.add(name=name, op=kernel.op, device=device)
    for attr, value in kernel.attrs.items():
        set_attr(value, node.attr[attr])
    for index, given in enumerate(kernel.inputs):
        node.input.append(f"in{index}")
        dtype = tf.resource if isinstance(given, Variable) else given[1]
        graph.node.add(name=f"in{index}", op="Placeholder").attr["dtype"].type = dtype.as_datatype_enum
    return graph


class Steps:
    """Steps with a kernel each in one session; with devices, if it is one of a cluster."""

    def __init__(self, target, kernels, devices):
        self.graph = tf.Graph()
        self.steps = []
        with self.graph.as_default():
            for number, kernel in enumerate(kernels):
                self.steps.append(self._add(kernel, f"k{number}", devices))
        # Kernels, not equivalent graphs of several nodes.
        config = tf.ConfigProto()
        config.graph_options.optimizer_options.opt_level = -1
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        self.session = tf.Session(target, graph=self.graph, config=config)

    @staticmethod
    def _add(kernel, name, devices):
        feeds, inputs = {}, {}
        for index, given in enumerate(kernel.inputs):
            if isinstance(given, Variable):
                with tf.device(devices[1]):
                    inputs[f"in{index}"] = tf.raw_ops.VarHandleOp(
                        # It has the node's type: clients check it.
                        dtype=kernel.attrs.get("dtype", tf.float32), shape=tf.TensorShape(None),
                        container=given.container, shared_name=given.name)
                continue
            with tf.device(devices[0]):
                # The shape is unknown, so that clients cannot find mistakes by it.
                inputs[f"in{index}"] = tf.placeholder(given[1], None)
            feeds[inputs[f"in{index}"]] = given[0]
        wanted = [f"{name}:{i}" for i in range(kernel.outputs)] or [name]
        made = tf.import_graph_def(definition(kernel, name, devices[1] or ""), input_map=inputs,
                                   return_elements=wanted, name="")
        with tf.device(devices[2]):
            return [tf.identity(each) for each in made] if kernel.outputs else made, feeds

    def run(self, number):
        """The outputs, or the error."""
        fetches, feeds = self.steps[number]
        try:
            return self.session.run(fetches, feeds)
        except tf.errors.OpError as error:
            return error


def defined(kernel, result):
    """Where it is said what comes out: not where a float is no integer of the type that it becomes."""
    if kernel.op != "Cast" or result.dtype.kind not in "iu" or kernel.attrs["SrcT"].is_integer:
        return np.full(result.shape, True)
    with np.errstate(all="ignore"):
        numbers = np.trunc(np.asarray(kernel.inputs[0][0]).astype(np.complex128).real)
    return (numbers >= np.iinfo(result.dtype).min) & (numbers <= np.iinfo(result.dtype).max)


def differs(kernel, got, wanted):
    if isinstance(got, tf.errors.OpError) or isinstance(wanted, tf.errors.OpError):
        return getattr(got, "error_code", 0) != getattr(wanted, "error_code", 0)
    for one, other in zip(got, wanted):
        one, other = np.asarray(one), np.asarray(other)
        if one.shape != other.shape or one.dtype != other.dtype:
            return True
        if one.dtype.kind in "biuOS":
            same = ((one == other) | ~defined(kernel, one)).all()
        else:
            wide = np.complex128 if one.dtype.kind == "c" else np.float64
            near = 1e-5 if kernel.op in INEXACT else 0
            if one.dtype in (np.float16, tf.bfloat16.as_numpy_dtype):
                near *= 1000
            with np.errstate(all="ignore"):
                one, other = one.astype(wide), other.astype(wide)
                size = np.abs(other[np.isfinite(other)]).max(initial=1)
                same = np.allclose(one, other, rtol=near, atol=near * size, equal_nan=True)
        if not same:
            return True
    return False


@case
def kernels_in_steps(cluster):
    tf.Session.reset(cluster.target, ["here", "there"])
    draw = Draw(29)
    ops = sorted(MAKERS)
    with np.errstate(all="ignore"):
        kernels = [MAKERS[ops[i % len(ops)]](draw) for i in range(STEPS)]
    # One session each: variables of this process go with theirs.
    there = Steps(cluster.target, kernels, CPUS)
    here = Steps("", kernels, [None] * 3)
    wrong, ended = [], 0
    for number, kernel in enumerate(kernels):
        got, wanted = there.run(number), here.run(number)
        ended += isinstance(wanted, tf.errors.OpError)
        if differs(kernel, got, wanted):
            wrong.append(f"{kernel.op} {kernel.attrs} {kernel.inputs}: {got!r:.300}, and in this "
                         f"process {wanted!r:.300}")
    there.session.close()
    here.session.close()
    tf.Session.reset(cluster.target, ["here", "there"])
    check(not wrong, f"{len(wrong)} of {STEPS}: " + "\n".join(wrong[:5]))
    # And it was about something.
    check(0 < ended < STEPS / 2, f"{ended} of {STEPS} steps end with errors")

# SPDX-License-Identifier: Apache-2.0
"""Cases of invalid or unusually encoded values: booleans of other bits, shapes of no tensor."""
import numpy as np
from session_cluster import (CPUS, WRONG_SIZE, case, equal, errors, fails, pb, reshape_to_three,
                             tf)
from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2, types_pb2
from tensorflow.core.protobuf import config_pb2

from harness import check

NO_FEED = "Invalid TensorProto for feed value "


@case
def booleans_of_other_bits(cluster):
    """A mask that was made by a view of bytes, by every method of feeding."""
    bad = np.array([0, 1, 2, 255], np.uint8).view(bool)
    good = np.array([0, 1, 1, 0], np.uint8).view(bool)
    with tf.Graph().as_default() as graph:
        with tf.device(CPUS[0]):
            other = tf.placeholder(tf.float32, [], name="other")
            x = tf.placeholder(tf.bool, [None], name="x")
            here = tf.cast(x, tf.int32)
        with tf.device(CPUS[1]):
            there = tf.cast(x, tf.int32)
            same = tf.identity(x)
            both = tf.identity(other)
    with cluster.session(graph) as session:
        for fetch in (here, there, same):
            text = fails(errors.InvalidArgumentError, NO_FEED + "0",
                         lambda f=fetch: session.run(f, {x: bad}))
            check("From /job" not in text, f"the master knows by itself: {text}")
        # Feeds are counted in the client's order.
        fails(errors.InvalidArgumentError, NO_FEED + "[01]",
              lambda: session.run([there, both], {other: 1, x: bad}))
        equal(session.run(there, {x: good}), np.int32([0, 1, 1, 0]))
        equal(session.run(same, {x: good}), good)
        large = np.zeros(3_000_000, np.uint8)
        large[2_999_999] = 2
        fails(errors.InvalidArgumentError, NO_FEED + "0",
              lambda: session.run(there, {x: large.view(bool)}))
        handle = session.partial_run_setup([there], [x])
        fails(errors.InvalidArgumentError, NO_FEED + "0",
              lambda: session.partial_run(handle, there, {x: bad}))
        options = config_pb2.CallableOptions(feed=[x.name], fetch=[there.name])
        call = session._make_callable_from_options(options)
        fails(errors.InvalidArgumentError, NO_FEED + "0", lambda: call(bad))
        equal(call(good)[0], np.int32([0, 1, 1, 0]))


def tensor(dtype, dims=(), unknown_rank=False, **values):
    proto = tensor_pb2.TensorProto(dtype=dtype, **values)
    proto.tensor_shape.CopyFrom(shape(dims, unknown_rank))
    return proto


def shape(dims=(), unknown_rank=False):
    proto = tensor_shape_pb2.TensorShapeProto(unknown_rank=unknown_rank)
    for dim in dims:
        proto.dim.add(size=dim)
    return proto


FLOAT, BOOL = types_pb2.DT_FLOAT, types_pb2.DT_BOOL
TWO = np.float32([3, 4]).tobytes()
# Name: a tensor, and its value; None for none.
ODD_TENSORS = {
    "scalar of unknown rank": (tensor(FLOAT, (), True, float_val=[3]), np.float32(3)),
    "content of unknown rank": (tensor(FLOAT, (), True, tensor_content=TWO[:4]), np.float32(3)),
    "too much of unknown rank": (tensor(FLOAT, (), True, tensor_content=TWO), None),
    "dimensions and unknown rank": (tensor(FLOAT, (2,), True, float_val=[1, 2]),
                                    np.float32([1, 2])),
    "an unknown dimension and rank": (tensor(FLOAT, (-1,), True, float_val=[1]), None),
    "an unknown dimension": (tensor(FLOAT, (-1,), float_val=[1, 2]), None),
    "an unknown dimension with content": (tensor(FLOAT, (-1, 2), tensor_content=TWO), None),
    "a negative dimension": (tensor(FLOAT, (-2,), float_val=[1, 2]), None),
    "none of an unknown number": (tensor(FLOAT, (0, -1)), None),
    "an unknown number of none": (tensor(FLOAT, (-1, 0)), None),
    "more elements than can be counted": (tensor(FLOAT, (1 << 32, 1 << 32)), None),
    "254 dimensions": (tensor(FLOAT, (1,) * 254, float_val=[1]), np.ones((1,) * 20, np.float32)),
    "255 dimensions": (tensor(FLOAT, (1,) * 255, float_val=[1]), None),
    "none with content": (tensor(FLOAT, (0,), tensor_content=b"xxx"), np.float32([])),
    "none with values": (tensor(FLOAT, (0,), float_val=[1]), np.float32([])),
    "content that is too short": (tensor(FLOAT, (2,), tensor_content=TWO[:7]), None),
    "a boolean of 2": (tensor(BOOL, (2,), tensor_content=b"\0\2"), None),
    "a boolean of 255 and unknown rank": (tensor(BOOL, (), True, tensor_content=b"\xff"), None),
    "no booleans with content": (tensor(BOOL, (0,), tensor_content=b"\2"), np.array([], bool)),
    "booleans": (tensor(BOOL, (2,), tensor_content=b"\1\0"), np.array([True, False])),
    "booleans as values": (tensor(BOOL, (2,), bool_val=[True]), np.array([True, True])),
    "strings that are cut off": (tensor(types_pb2.DT_STRING, (2,), tensor_content=b"\1\5a"), None),
}


def new_session(cluster, graph):
    request = pb.CreateSessionRequest()
    request.graph_def.ParseFromString(graph.SerializeToString())
    return cluster.call("CreateSession", request, pb.CreateSessionResponse).session_handle


def run_step(cluster, graph, feed=None):
    """The value of y, or the error's code and text, from a session of its own."""
    handle = new_session(cluster, graph)
    request = pb.RunStepRequest(session_handle=handle, fetch=[b"y:0"],
                                store_errors_in_response_body=True)
    if feed is not None:
        request.feed.add(name=b"x:0").tensor.ParseFromString(feed.SerializeToString())
    response = cluster.call("RunStep", request, pb.RunStepResponse)
    cluster.call("CloseSession", pb.CloseSessionRequest(session_handle=handle),
                 pb.CloseSessionResponse)
    if response.status_code:
        return response.status_code, response.status_error_message.decode(errors="replace")
    got = tensor_pb2.TensorProto.FromString(response.tensor[0].tensor.SerializeToString())
    return 0, got


def graph_of(source, dtype):
    """`source` at task 0, and y, which is the same, at task 1."""
    graph = tf.GraphDef()
    graph.versions.producer = tf.Graph().as_graph_def().versions.producer
    graph.node.add().CopyFrom(source)
    y = graph.node.add(name="y", op="Identity", device=CPUS[1], input=[source.name])
    y.attr["T"].type = dtype
    return graph


def source_of(name, op, dtype):
    node = tf.NodeDef(name=name, op=op, device=CPUS[0])
    node.attr["dtype"].type = dtype
    return node


def check_outcome(what, outcome, wanted, pattern):
    code, got = outcome
    if wanted is None:
        check(code == 3 and pattern in got, f"{what}: wanted {pattern!r}, got {code} {got!s:.300}")
        return
    check(code == 0, f"{what}: {code} {got!s:.300}")
    if len(got.tensor_shape.dim) > 64:  # more than numpy has
        return
    equal(tf.make_ndarray(got), wanted, what)


@case
def odd_tensors_are_fed(cluster):
    for what, (proto, wanted) in ODD_TENSORS.items():
        source = source_of("x", "Placeholder", proto.dtype)
        source.attr["shape"].shape.unknown_rank = True
        check_outcome(what, run_step(cluster, graph_of(source, proto.dtype), proto), wanted,
                      NO_FEED + "0")


@case
def odd_tensors_are_constants(cluster):
    for what, (proto, wanted) in ODD_TENSORS.items():
        source = source_of("x", "Const", proto.dtype)
        source.attr["value"].tensor.CopyFrom(proto)
        check_outcome(what, run_step(cluster, graph_of(source, proto.dtype)), wanted,
                      "Cannot parse tensor from proto: ")


@case
def odd_shapes_are_attributes(cluster):
    fed = tensor(FLOAT, (2,), float_val=[1, 2])
    must_feed = "You must feed a value for placeholder tensor 'x' with dtype float"
    for proto, text in [
            (shape(unknown_rank=True), must_feed),
            (shape((2,), True), "An unknown shape must not have any dimensions set."),
            (shape((-1,)), must_feed + " and shape [?]"),
            (shape((-2,)), "Shape [-2] has dimensions with values below -1"),
            (shape(), must_feed),
            (shape((1,) * 255), "has too many dimensions"),
            (shape((1 << 32, 1 << 32)), "Shape [4294967296,4294967296] is too large"),
            (shape((-1, 1 << 62, 1 << 62)), must_feed + " and shape [?,"),
            (shape((3,)), must_feed + " and shape [3]")]:
        source = source_of("x", "Placeholder", FLOAT)
        source.attr["shape"].shape.CopyFrom(proto)
        graph = graph_of(source, FLOAT)
        # The fed value replaces the node, whose shape is not checked.
        check_outcome(f"{proto!s:.60} fed", run_step(cluster, graph, fed), np.float32([1, 2]), "")
        check_outcome(f"{proto!s:.60}", run_step(cluster, graph), None, text)


@case
def the_worker_that_failed_is_named(cluster):
    """Others are only notified of it, perhaps before the master is."""
    graph, x, reshaped, after = reshape_to_three()
    with graph.as_default(), tf.device(CPUS[0]):
        last = tf.identity(after) + tf.identity(reshaped)
    with cluster.session(graph) as session:
        for _ in range(100):
            text = fails(errors.InvalidArgumentError, WRONG_SIZE,
                         lambda: session.run(last, {x: [1, 2, 3, 4]}))
            # TensorFlow's own master sometimes names another worker: its copies have no mark.
            if not cluster.options.real:
                check("From /job:worker/replica:0/task:2:" in text and text.count("From /job") == 1,
                      f"another worker is named: {text}")
            check("_Derived_" not in text, text)
        equal(session.run(last, {x: [1, 2, 3]}), np.float32([2, 4, 6]))

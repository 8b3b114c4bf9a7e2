# SPDX-License-Identifier: Apache-2.0
"""Cases without TensorFlow's client, which would not send such requests to a master."""
import re
import threading
import time

import grpc
from session_cluster import CPUS, WORKERS, case, pb, tf

from harness import Failure, check


@case
def unknown_handles(cluster):
    """Without TensorFlow's client, which would not send these."""
    def status(method, request, response, code, pattern):
        try:
            cluster.call(method, request, response)
        except grpc.RpcError as error:
            check(error.code() == code, f"{method}: {error.code()}, wanted {code}")
            check(re.search(pattern, error.details()), f"{method}: {error.details()!r}")
            return
        raise Failure(f"{method} succeeded")

    aborted = grpc.StatusCode.ABORTED
    status("ExtendSession", pb.ExtendSessionRequest(session_handle=b"x"), pb.ExtendSessionResponse,
           aborted, "Session x is not found")
    status("RunStep", pb.RunStepRequest(session_handle=b"x"), pb.RunStepResponse, aborted,
           "Session x is not found")
    status("CloseSession", pb.CloseSessionRequest(session_handle=b"x"), pb.CloseSessionResponse,
           aborted, "Possibly, this master has restarted")
    status("ListDevices", pb.ListDevicesRequest(session_handle=b"x"), pb.ListDevicesResponse,
           grpc.StatusCode.INVALID_ARGUMENT, "Session x is not found")
    for method, kind in [("MakeCallable", "MakeCallable"), ("RunCallable", "RunCallable"),
                         ("ReleaseCallable", "ReleaseCallable"),
                         ("PartialRunSetup", "PartialRunSetup")]:
        status(method, getattr(pb, kind + "Request")(session_handle=b"x"),
               getattr(pb, kind + "Response"), aborted, "Session x is not found")
    listed = cluster.call("ListDevices", pb.ListDevicesRequest(), pb.ListDevicesResponse)
    check(len(listed.local_device) >= 1, "no local device")
    check(len(listed.local_device) + len(listed.remote_device) >= WORKERS, "devices are missing")


def node(name, op="NoOp", inputs=()):
    graph = pb.GraphDef()
    graph.versions.producer = tf.Graph().as_graph_def().versions.producer
    add_node(graph, name, op, inputs)
    return graph


def add_node(graph, name, op="NoOp", inputs=()):
    graph.node.add(name=name.encode(), op=op.encode(), input=[i.encode() for i in inputs])


def new_session(cluster, graph, **config):
    request = pb.CreateSessionRequest(graph_def=graph, config=pb.ConfigProto(**config))
    return cluster.call("CreateSession", request, pb.CreateSessionResponse).session_handle


@case
def versions(cluster):
    """One of many extensions of one version succeeds."""
    handle = new_session(cluster, node("a"))
    outcomes = []

    def extend(index):
        try:
            outcomes.append(cluster.call(
                "ExtendSession", pb.ExtendSessionRequest(
                    session_handle=handle, graph_def=node(f"n{index}"), current_graph_version=0),
                pb.ExtendSessionResponse).new_graph_version)
        except grpc.RpcError as error:
            outcomes.append(error.code())

    threads = [threading.Thread(target=extend, args=(i,)) for i in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    check(sorted(map(str, outcomes)) == ["1"] + [str(grpc.StatusCode.ABORTED)] * 99,
          f"{sorted(map(str, outcomes))[:5]}")
    try:
        cluster.call("ExtendSession", pb.ExtendSessionRequest(
            session_handle=handle, graph_def=node("a"), current_graph_version=1),
            pb.ExtendSessionResponse)
        raise Failure("a node came twice")
    except grpc.RpcError as error:
        check(error.code() == grpc.StatusCode.INVALID_ARGUMENT, str(error.code()))
        check("created by a previous call" in error.details(), error.details())
    # An error in the response, and a duplicate request.
    request = pb.RunStepRequest(session_handle=handle, fetch=[b"none:0"],
                                store_errors_in_response_body=True)
    response = cluster.call("RunStep", request, pb.RunStepResponse)
    check(response.status_code == 5 and b"none" in response.status_error_message, str(response))
    request = pb.RunStepRequest(session_handle=handle, target=[b"a"], request_id=11,
                                store_errors_in_response_body=True)
    check(cluster.call("RunStep", request, pb.RunStepResponse).status_code == 0, "first")
    response = cluster.call("RunStep", request, pb.RunStepResponse)
    check(response.status_code == 10 and b"received twice" in response.status_error_message,
          str(response))
    cluster.call("CloseSession", pb.CloseSessionRequest(session_handle=handle),
                 pb.CloseSessionResponse)


@case
def bad_graphs(cluster):

    def refused(graph, code, pattern):
        try:
            cluster.call("CreateSession", pb.CreateSessionRequest(graph_def=graph),
                         pb.CreateSessionResponse)
        except grpc.RpcError as error:
            check(error.code() == code, f"{error.code()}, wanted {code}: {error.details()}")
            check(re.search(pattern, error.details()), error.details())
            return
        raise Failure(f"accepted {graph}")

    invalid = grpc.StatusCode.INVALID_ARGUMENT
    for name in ("a:b", "a:0", "_a"):
        refused(node(name), invalid, "Illegal op name")
    for name in ("a:first", "_a", "_a:0", "a:01"):
        refused(node("b", "NoOp", [name]), invalid, "Illegal op input name")
    refused(node("a", "NoSuchOp"), grpc.StatusCode.NOT_FOUND, "NoSuchOp")
    twice = node("a")
    add_node(twice, "a")
    refused(twice, invalid, "not unique")
    refused(node("a", "NoOp", ["^missing"]), invalid, "missing")
    circle = node("a", "NoOp", ["^b"])
    add_node(circle, "b", "NoOp", ["^a"])
    refused(circle, invalid, "cycle")
    older = node("a")
    older.versions.producer = -1
    refused(older, invalid, "producer version -1 below min producer 0")
    far = node("a")
    far.node[0].device = b"/cpu:99999999999"
    refused(far, invalid, "available devices are")
    far.node[0].device = b"/cpu:18446744073709551616"
    refused(far, invalid, "Malformed device specification")
    # An index that is not there is replaced, however large.
    far.node[0].device = b"/job:worker/task:1/cpu:99999999999"
    handle = new_session(cluster, far, allow_soft_placement=True)
    response = cluster.call("RunStep", pb.RunStepRequest(session_handle=handle, target=[b"a"]),
                            pb.RunStepResponse)
    check(response.status_code == 0, str(response))


@case
def workers_log_and_do_not_trace(cluster):
    """Calls of TensorFlow's masters to a worker other than steps."""
    if cluster.options.real:
        address = f"127.0.0.1:{cluster.ports[1]}"
    else:
        record = cluster.tool("kv", "get", "--text", "ferry/exchange/1")
        address = re.search(r'grpc_address: "([0-9.]+:\d+)', record).group(1)

    def call(method, request):
        with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            return channel.unary_unary(f"/tensorflow.WorkerService/{method}")(request, timeout=10)

    # LoggingRequest: on; fetch step 5, of which there is nothing; off and clear.
    for request in (b"\x08\x01", b"\x1a\x01\x05", b"\x10\x01\x20\x01"):
        check(call("Logging", request) == b"", "nothing has come yet")
    try:
        call("Tracing", b"")
        raise Failure("Tracing succeeded")
    except grpc.RpcError as error:
        check(error.code() == grpc.StatusCode.UNIMPLEMENTED and error.details() == "Tracing",
              f"{error.code()} {error.details()}")


@case
def pieces_name_tensors(cluster):
    """A piece may fetch a tensor twice; it spells names as the set-up does."""
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [], name="x")
        with tf.device(CPUS[1]):
            y = tf.add(x, 1.0, name="y")
            tf.add(y, 1.0, name="z")
    handle = new_session(cluster, pb.GraphDef.FromString(graph.as_graph_def().SerializeToString()))
    fed = tf.make_tensor_proto(1.0).SerializeToString()

    def piece(partial, feeds, fetches):
        request = pb.RunStepRequest(session_handle=handle, partial_run_handle=partial,
                                    fetch=fetches, store_errors_in_response_body=True)
        for name in feeds:
            request.feed.add(name=name).tensor.ParseFromString(fed)
        return cluster.call("RunStep", request, pb.RunStepResponse, timeout=10)

    def fetched(response, wanted):
        check(response.status_code == 0, response.status_error_message)
        check({tensor.name for tensor in response.tensor} == wanted, str(response.tensor))

    def refused(response, pattern):
        check(response.status_code == 3 and re.search(pattern, response.status_error_message),
              str(response))

    def set_up():
        return cluster.call("PartialRunSetup", pb.PartialRunSetupRequest(
            session_handle=handle, feed=[b"x:0"], fetch=[b"y:0", b"z:0"]),
            pb.PartialRunSetupResponse).partial_run_handle

    partial = set_up()
    fetched(piece(partial, [b"x:0"], [b"y:0", b"y:0"]), {b"y:0"})
    refused(piece(partial, [], [b"y:0"]), b"The fetch y:0 has already been fetched.")
    fetched(piece(partial, [], [b"z:0", b"z:0"]), {b"z:0"})
    partial = set_up()
    refused(piece(partial, [b"x"], [b"y:0"]), b"The feed x was not specified")
    refused(piece(partial, [b"x:0"], [b"y"]), b"The fetch y was not specified")
    fetched(piece(partial, [b"x:0"], [b"y:0", b"z:0"]), {b"y:0", b"z:0"})
    cluster.call("CloseSession", pb.CloseSessionRequest(session_handle=handle),
                 pb.CloseSessionResponse)


@case
def close_ends_a_step(cluster):
    with tf.Graph().as_default() as graph:
        with tf.device(CPUS[1]):
            value = tf.random.uniform([1200, 1200])
            for _ in range(400):
                value = tf.matmul(value, value) / 600.0
            total = tf.reduce_sum(value)
    handle = cluster.call("CreateSession", pb.CreateSessionRequest(
        graph_def=pb.GraphDef.FromString(graph.as_graph_def().SerializeToString())),
                          pb.CreateSessionResponse).session_handle
    outcome = []

    def run():
        outcome.append(cluster.call("RunStep", pb.RunStepRequest(
            session_handle=handle, fetch=[total.name.encode()], store_errors_in_response_body=True),
            pb.RunStepResponse, timeout=100))

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.5)
    cluster.call("CloseSession", pb.CloseSessionRequest(session_handle=handle),
                 pb.CloseSessionResponse, timeout=60)
    thread.join(60)
    check(outcome, "the step hangs")
    check(outcome[0].status_code == 1, str(outcome[0])[:300])
    check(b"explicit call to `Session::Close()`" in outcome[0].status_error_message,
          outcome[0].status_error_message)

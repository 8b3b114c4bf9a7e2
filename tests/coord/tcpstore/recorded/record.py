#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what PyTorch's own store and its own clients say to each other.

  PYTHON record.py

PYTHON is an interpreter that has torch. Each scenario below goes to torch-VERSION-SCENARIO.txt in this folder: a line
for each piece that arrived, in their order, `CONNECTION > HEX` from a client and `CONNECTION < HEX` from the server,
and `closed` in place of the digits for the end of a connection. tcp_store_recorded_test.cc replays the files against
Ferry's store.

The clients use a proxy. It passes one piece on at a time and then waits for answers for a moment, so that the server
handles the pieces in the order of the file.
"""
import datetime
import os
import select
import signal
import socket
import sys
import threading
import traceback

import torch
import torch.distributed as dist

HERE = os.path.dirname(os.path.abspath(__file__))
# How long the server may take for an answer after a piece; a late one is recorded where it comes.
SETTLE_S = 0.01
PATIENCE_S = 60
VERSION = {"1.13.0a0": "1.13.1"}.get(torch.__version__, torch.__version__.partition("+")[0])


def seconds(number):
    return datetime.timedelta(seconds=number)


def fork(function):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        function()
        status = 0
    except BaseException:  # Nothing of the parent may run in this process.
        traceback.print_exc()
    finally:
        os._exit(status)


def serve(pipe):
    # Its own client is not recorded.
    store = dist.TCPStore("127.0.0.1", 0, None, True, seconds(PATIENCE_S), wait_for_workers=False)
    os.write(pipe, f"{store.port}\n".encode())
    signal.pause()


def proxy(listener, server_port, name):
    """Until all of its connections have ended."""
    lines, pairs, names, is_client = [], {}, {}, {}

    def end(sock):
        other = pairs.pop(sock, None)
        if other is not None:
            lines.append(f"{names[sock]} {'>' if is_client[sock] else '<'} closed")
            pairs.pop(other)
            other.close()
        sock.close()

    def pass_on(sock):
        try:
            piece = sock.recv(1 << 16)
        except ConnectionError:
            piece = b""
        if not piece:
            return end(sock)
        lines.append(f"{names[sock]} {'>' if is_client[sock] else '<'} {piece.hex()}")
        pairs[sock].sendall(piece)

    def drain():
        while True:
            ready = [sock for sock in select.select(list(pairs), [], [], SETTLE_S)[0] if not is_client[sock]]
            if not ready:
                return
            for sock in ready:
                if sock in pairs:
                    pass_on(sock)

    count = 0
    while pairs or not count:
        ready = select.select([listener, *pairs], [], [], PATIENCE_S)[0]
        if not ready:
            raise TimeoutError(f"{name}: nothing has been said for {PATIENCE_S} s")
        if listener in ready:
            client, server = listener.accept()[0], socket.create_connection(("127.0.0.1", server_port))
            for sock, which in ((client, True), (server, False)):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                names[sock], is_client[sock] = count, which
            pairs[client], pairs[server] = server, client
            count += 1
        for sock in ready:
            if sock in pairs:
                pass_on(sock)
                drain()
    with open(os.path.join(HERE, f"torch-{VERSION}-{name}.txt"), "w", encoding="ascii") as file:
        file.write(f"# SPDX-License-Identifier: Apache-2.0\n# PyTorch {VERSION}, {name}: made by record.py.\n")
        file.write("\n".join(lines) + "\n")


def fails(function):
    try:
        function()
    except Exception:  # Its type differs between releases.
        return
    raise AssertionError("no error")


def operations(port):
    """Two clients of one process; one of them waits for the other."""
    def client():
        return dist.TCPStore("127.0.0.1", port, None, False, seconds(PATIENCE_S), wait_for_workers=False)
    one, other = client(), client()
    one.set("k", "value")
    one.get("k")
    if hasattr(one, "list_keys"):
        # The only key: the order of several is not determined.
        assert one.list_keys() == ["k"], one.list_keys()
    other.get("k")
    one.set("empty", "")
    one.get("empty")
    one.set("large", "v" * 1500)
    other.get("large")
    for value in (5, -7, 0):
        other.add("n", value)
    one.get("n")
    for expected, desired in (("x", "y"), ("", "y"), ("z", "w"), ("y", "w"), ("", "v")):
        one.compare_set("c", expected, desired)
    one.wait(["k", "n"])
    if hasattr(one, "check"):
        for keys in (["n"], ["n", "absent"], []):
            one.check(keys)
    one.num_keys()
    one.delete_key("k")
    other.delete_key("k")
    one.num_keys()
    prefixed = dist.PrefixStore("prefix", one)
    prefixed.set("k", "in it")
    prefixed.get("k")
    if hasattr(one, "append"):
        one.append("a", "one")
        one.append("a", "two")
        one.get("a")
        one.multi_set(["m1", "m2"], ["first", "second"])
        one.multi_get(["m2", "m1", "a"])
        many = [f"many {number}" for number in range(20)]
        one.multi_set(many, many)
        other.multi_get(many)
    if hasattr(one, "queue_push"):
        one.queue_push("q", "first")
        one.queue_push("q", "second")
        one.queue_len("q")
        other.queue_pop("q")
        one.queue_pop("q")
        fails(lambda: one.queue_pop("q", False))
        one.queue_len("q")
    if hasattr(one, "clone"):
        clone = one.clone()
        clone.set("clone", "v")
        clone.get("clone")
    waiter = threading.Thread(target=lambda: other.get("late"))
    waiter.start()
    waiter.join(0.3)
    one.set("late", "v")
    waiter.join(PATIENCE_S)
    if hasattr(one, "barrier"):
        waiter = threading.Thread(target=lambda: other.barrier("b", 2))
        waiter.start()
        waiter.join(0.3)
        one.barrier("b", 2)
        waiter.join(PATIENCE_S)
        assert not waiter.is_alive()
    # Releases before 2.1 only stop to listen for the answer.
    fails(lambda: one.wait(["never"], seconds(1)))
    one.set("after", "it")
    one.get("after")
    fails(lambda: other.add("after", 1))


def gloo(port):
    """Two ranks: a group, another one, an all-reduce in each, a barrier."""
    def rank(number):
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            del os.environ[name]
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(number), WORLD_SIZE="2",
                          TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0",
                          TORCHELASTIC_RUN_ID="job", GLOO_SOCKET_IFNAME="lo", TORCH_DIST_INIT_BARRIER="1")
        dist.init_process_group("gloo", timeout=seconds(PATIENCE_S))
        for group in (None, dist.new_group([0, 1])):
            tensor = torch.ones(10)
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [2.0] * 10, tensor
        dist.barrier()
        dist.destroy_process_group()
    ranks = [fork(lambda number=number: rank(number)) for number in range(2)]
    assert [os.waitpid(pid, 0)[1] for pid in ranks] == [0, 0]


def main():
    for name, scenario in (("operations", operations), ("gloo", gloo)):
        reader, writer = os.pipe()
        server = fork(lambda: serve(writer))
        port = int(os.read(reader, 16))
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        recorder = fork(lambda: proxy(listener, port, name))
        listener_port = listener.getsockname()[1]
        listener.close()
        ended = os.waitpid(fork(lambda: scenario(listener_port)), 0)[1]
        recorded = os.waitpid(recorder, 0)[1]
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        if ended or recorded:
            sys.exit(f"{name}: the scenario ended with {ended}, the proxy with {recorded}")


if __name__ == "__main__":
    main()

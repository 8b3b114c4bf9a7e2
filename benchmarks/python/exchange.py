#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transfers from Python between two processes of a host, in turns with PyTorch's gloo where torch is installed.

    ferry run --nproc=2 -- python3 benchmarks/python/exchange.py [--rounds=5] [--json=FILE]

Each row is the median of the rounds; each round runs every row once, the two libraries in turns. Latencies are half of a
round trip. `--polling` is ferry.join's: a wait polls for so long before it sleeps.
"""
import argparse
import asyncio
import json
import os
import statistics
import sys
import time

import numpy

import ferry

SMALL_REPEATS = 4000
LEAVES = 1000
LEAF_BYTES = 4096
BIG_BYTES = 64 << 20
AWAITS = 1000


class Exchange:
    def __init__(self, node, step):
        self.node = node
        self.step = step
        self.peer = 1 - node.rank
        self.first = node.rank == 0
        self.serial = 0
        self.small = numpy.zeros(1, numpy.int64)
        self.small_out = numpy.zeros(1, numpy.int64)
        self.big = numpy.ones(BIG_BYTES, numpy.uint8)
        self.big_out = numpy.ones(BIG_BYTES, numpy.uint8)
        self.shared = node.empty(BIG_BYTES, "uint8")
        numpy.asarray(self.shared)[:] = 1
        self.leaves = {f"leaf{i}": numpy.ones(LEAF_BYTES // 4, numpy.float32) for i in range(LEAVES)}

    def name(self):
        self.serial += 1
        return f"x{self.serial}"

    def ping_pong(self, receive, repeats=SMALL_REPEATS):
        """Microseconds of half a round trip."""
        step, peer, small = self.step, self.peer, self.small
        names = [f"p{i % 64}" for i in range(repeats)]
        self.node.barrier("start")
        begin = time.perf_counter()
        for name in names:
            if self.first:
                step.send(small, name, peer)
                receive(name)
            else:
                receive(name)
                step.send(small, name, peer)
        return (time.perf_counter() - begin) / repeats / 2 * 1e6

    def row_8b_recv(self):
        return self.ping_pong(lambda name: self.step.recv(name, self.peer))

    def row_8b_recv_into(self):
        return self.ping_pong(lambda name: self.step.recv(name, self.peer, out=self.small_out))

    def row_8b_poll(self):
        def receive(name):
            transfer = self.step.irecv(name, self.peer)
            while not transfer.done():
                pass
            transfer.wait()
        return self.ping_pong(receive)

    def one_way(self, send, receive):
        """Seconds at the receiver, from a barrier on; None at the sender."""
        self.node.barrier("start")
        begin = time.perf_counter()
        if self.first:
            send()
            return None
        receive()
        return time.perf_counter() - begin

    def row_64mib_into(self):
        name = self.name()
        seconds = self.one_way(lambda: self.step.send(self.big, name, self.peer),
                               lambda: self.step.recv(name, self.peer, out=self.big_out))
        return seconds and BIG_BYTES / seconds / 1e9

    def row_64mib_into_of_empty(self):
        """Out of memory of Node.empty, as `ferry bench` has it."""
        name = self.name()
        seconds = self.one_way(lambda: self.step.send(self.shared, name, self.peer),
                               lambda: self.step.recv(name, self.peer, out=self.big_out))
        return seconds and BIG_BYTES / seconds / 1e9

    def row_64mib_view(self):
        name = self.name()
        tensor = self.node.empty(BIG_BYTES, "uint8") if self.first else None
        if self.first:
            numpy.asarray(tensor)[::4096] = 1
        seconds = self.one_way(lambda: self.step.send(tensor, name, self.peer),
                               lambda: self.step.recv(name, self.peer))
        return seconds and seconds * 1e6

    def row_tree(self):
        name = self.name()
        seconds = self.one_way(lambda: self.step.send_tree(self.leaves, name, self.peer),
                               lambda: self.step.recv_tree(name, self.peer))
        return seconds and seconds * 1e6

    def row_tree_as_calls(self):
        name = self.name()

        def send():
            for leaf, array in self.leaves.items():
                self.step.send(array, name + leaf, self.peer)

        def receive():
            for leaf in self.leaves:
                self.step.recv(name + leaf, self.peer)
        seconds = self.one_way(send, receive)
        return seconds and seconds * 1e6

    def row_1000_awaits(self):
        name = self.name()

        def send():
            for i in range(AWAITS):
                self.step.send(self.small, f"{name}/{i}", self.peer)

        async def gather():
            await asyncio.gather(*(self.step.arecv(f"{name}/{i}", self.peer) for i in range(AWAITS)))
        seconds = self.one_way(send, lambda: asyncio.run(gather()))
        return seconds and seconds * 1e6


class Gloo:
    """The same by torch.distributed."""

    def __init__(self, node):
        import torch
        import torch.distributed as dist
        self.torch, self.dist, self.node = torch, dist, node
        dist.init_process_group("gloo", rank=node.rank, world_size=2)
        self.peer = 1 - node.rank
        self.small = torch.zeros(1, dtype=torch.int64)
        self.big = torch.ones(BIG_BYTES, dtype=torch.uint8)
        self.leaves = [torch.ones(LEAF_BYTES // 4) for _ in range(LEAVES)]

    def row_8b_recv_into(self):
        dist, small, peer = self.dist, self.small, self.peer
        self.node.barrier("start")
        begin = time.perf_counter()
        for _ in range(SMALL_REPEATS):
            if self.node.rank == 0:
                dist.send(small, peer)
                dist.recv(small, peer)
            else:
                dist.recv(small, peer)
                dist.send(small, peer)
        return (time.perf_counter() - begin) / SMALL_REPEATS / 2 * 1e6

    def one_way(self, tensors):
        self.node.barrier("start")
        begin = time.perf_counter()
        for tensor in tensors:
            if self.node.rank == 0:
                self.dist.send(tensor, self.peer)
            else:
                self.dist.recv(tensor, self.peer)
        return None if self.node.rank == 0 else time.perf_counter() - begin

    def row_64mib_into(self):
        seconds = self.one_way([self.big])
        return seconds and BIG_BYTES / seconds / 1e9

    def row_tree_as_calls(self):
        seconds = self.one_way(self.leaves)
        return seconds and seconds * 1e6


def memcpy_gb_s():
    source, target = numpy.ones(BIG_BYTES, numpy.uint8), numpy.ones(BIG_BYTES, numpy.uint8)
    begin = time.perf_counter()
    numpy.copyto(target, source)
    return BIG_BYTES / (time.perf_counter() - begin) / 1e9


UNITS = {"8b_recv": "us", "8b_recv_into": "us", "8b_poll": "us", "64mib_into": "GB/s",
         "64mib_into_of_empty": "GB/s", "64mib_view": "us", "tree": "us",
         "tree_as_calls": "us", "1000_awaits": "us", "memcpy": "GB/s"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--polling", type=float, default=20e-6)
    parser.add_argument("--json")
    options = parser.parse_args()
    with ferry.join(polling=options.polling) as node, node.step(1) as step:
        libraries = {"ferry": Exchange(node, step)}
        try:
            libraries["gloo"] = Gloo(node)
        except ImportError:
            pass
        figures = {}
        for _ in range(options.rounds + 1):
            for row in UNITS:
                for library, exchange in libraries.items():
                    measure = getattr(exchange, "row_" + row, None)
                    if measure is not None:
                        figures.setdefault(f"{library} {row}", []).append(measure())
            if node.rank == 1:
                figures.setdefault("floor memcpy", []).append(memcpy_gb_s())
        if node.rank == 1:
            # The first round warms up: connections, and pages that were never written.
            medians = {name: statistics.median(values[1:]) for name, values in figures.items()}
            for name, median in medians.items():
                values = " ".join(f"{each:.3g}" for each in figures[name][1:])
                print(f"{name:24s} {median:10.3g} {UNITS[name.split()[1]]:5s} ({values})")
            if options.json:
                with open(options.json, "w", encoding="utf-8") as out:
                    json.dump({"polling_s": options.polling, "rounds": options.rounds, "medians": medians,
                               "units": UNITS, "figures": figures}, out, indent=1)
        node.barrier("end")
        if "gloo" in libraries:
            libraries["gloo"].dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())

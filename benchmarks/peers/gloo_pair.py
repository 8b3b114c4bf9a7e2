#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two processes of PyTorch's Gloo: gloo_pair.py pingpong BYTES ROUNDS PORT

One line of JSON, as the programs of pair.h. Receives are posted before anyone sends."""
import json
import os
import signal
import statistics
import sys
import time

import torch
import torch.distributed as dist

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)


def fill(words, plain, side, number):
    torch.add(plain, (side + 1) * 1_000_003 + number * 7_919, out=words)


def run(side, port, size, rounds):
    store = dist.TCPStore("127.0.0.1", port, 2, side == 0)
    dist.init_process_group("gloo", store=store, rank=side, world_size=2)
    # Patterns are made by one thread in each process: there are two cores.
    torch.set_num_threads(1)
    warmups = 1 if size > 64 << 20 else 3 if size > 1 << 20 else 10
    plain = torch.arange(size // 8, dtype=torch.int64) * GOLDEN
    sent, received, expected = (torch.zeros_like(plain) for _ in range(3))
    times, wrong = [], 0
    for number in range(warmups + rounds):
        fill(sent, plain, side, number)
        waiting = dist.irecv(received, 1 - side)
        dist.barrier()
        start = time.perf_counter()
        if side == 0:
            dist.send(sent, 1)
            waiting.wait()
        else:
            waiting.wait()
            dist.send(sent, 0)
        if number >= warmups:
            times.append((time.perf_counter() - start) / 2)
        fill(expected, plain, 1 - side, number)
        # In one pass if all is correct: counting takes seconds.
        if not torch.equal(received, expected):
            wrong += 8 * int((received != expected).sum())
    total = torch.tensor([wrong])
    dist.all_reduce(total)
    if side == 0:
        print(json.dumps({"name": "seconds", "value": statistics.median(times), "samples": len(times),
                          "wrong_bytes": int(total)}), flush=True)


def main():
    if len(sys.argv) != 5 or sys.argv[1] != "pingpong":
        sys.exit("gloo_pair.py pingpong BYTES ROUNDS PORT")
    size, rounds, port = (int(word) for word in sys.argv[2:])
    if size % 8:
        sys.exit("BYTES: a multiple of 8")
    child = os.fork()
    run(1 if child == 0 else 0, port, size, rounds)
    if child != 0:
        os.kill(child, signal.SIGKILL)
    # Gloo's shutdown of a process waits for both.
    os._exit(0)


if __name__ == "__main__":
    main()

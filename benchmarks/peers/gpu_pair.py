#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two processes with a GPU each (of ipc, the same one): gpu_pair.py nccl|torch|ipc BYTES ROUNDS PORT

There and back, halved, until the stream is through. One line of JSON, as the programs of pair.h."""
import ctypes
import datetime
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

NCCL_UINT8 = 1
WARMUPS = 5


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 128)]


class RawNccl:
    """ncclSend and ncclRecv on a communicator of two; the library is the one that PyTorch has loaded."""

    def __init__(self, rank, store):
        self.nccl = ctypes.CDLL("libnccl.so.2")
        unique = UniqueId()
        if rank == 0:
            self.check(self.nccl.ncclGetUniqueId(ctypes.byref(unique)))
            store.set("id", bytes(unique))
        else:
            ctypes.memmove(ctypes.byref(unique), store.get("id"), 128)
        self.comm = ctypes.c_void_p()
        self.stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.peer = 1 - rank
        self.check(self.nccl.ncclCommInitRank(ctypes.byref(self.comm), 2, unique, rank))

    def check(self, result):
        if result != 0:
            sys.exit(f"NCCL failed with {result}")

    def move(self, call, tensor):
        self.check(call(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.numel()), NCCL_UINT8, self.peer,
                        self.comm, self.stream))

    def send(self, tensor):
        self.move(self.nccl.ncclSend, tensor)

    def recv(self, tensor):
        self.move(self.nccl.ncclRecv, tensor)


class TorchNccl:
    def __init__(self, rank, store):
        self.peer = 1 - rank
        dist.init_process_group("nccl", store=store, rank=rank, world_size=2)

    def send(self, tensor):
        dist.send(tensor, self.peer)

    def recv(self, tensor):
        dist.recv(tensor, self.peer)


class CudaIpc:
    """The receiver copies from the sender's memory, when notified through a pipe."""

    def __init__(self, mine, theirs, pipe):
        self.mine, self.theirs, self.pipe = mine, theirs, pipe

    def send(self, tensor):
        torch.cuda.synchronize()
        self.pipe.send(b"there")

    def recv(self, tensor):
        self.pipe.recv()
        tensor.copy_(self.theirs)


def pattern(size, side, number):
    words = torch.arange((size + 7) // 8, dtype=torch.int64, device="cuda") * 0x1E3779B97F4A7C15
    return (words + (side + 1) * 1_000_003 + number * 7_919).view(torch.uint8)[:size]


def run(rank, way, size, rounds, port, pipe):
    torch.cuda.set_device(0 if way == "ipc" else rank)
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timeout=datetime.timedelta(seconds=30))
    sent, received = torch.zeros(size, dtype=torch.uint8, device="cuda"), torch.zeros(size, dtype=torch.uint8, device="cuda")
    if way == "ipc":
        pipe.send(sent)
        link = CudaIpc(sent, pipe.recv(), pipe)
    else:
        link = {"nccl": RawNccl, "torch": TorchNccl}[way](rank, store)
    times, wrong = [], 0
    for number in range(WARMUPS + rounds):
        sent.copy_(pattern(size, rank, number))
        torch.cuda.synchronize()
        store.set(f"ready/{rank}/{number}", "1")
        store.wait([f"ready/{1 - rank}/{number}"])
        start = time.perf_counter()
        for move, tensor in ((link.send, sent), (link.recv, received))[::1 if rank == 0 else -1]:
            move(tensor)
        torch.cuda.synchronize()
        if number >= WARMUPS:
            times.append((time.perf_counter() - start) / 2)
        wrong += int((received != pattern(size, 1 - rank, number)).sum())
        store.set(f"seen/{rank}/{number}", "1")
        store.wait([f"seen/{1 - rank}/{number}"])
    store.set(f"wrong/{rank}", str(wrong))
    wrong += int(store.get(f"wrong/{1 - rank}"))
    if rank == 0:
        print(json.dumps({"name": "seconds", "value": statistics.median(times), "samples": len(times),
                          "wrong_bytes": wrong}), flush=True)
    store.set(f"done/{rank}", "1")
    store.wait([f"done/{1 - rank}"])


def main():
    if len(sys.argv) != 5 or sys.argv[1] not in ("nccl", "torch", "ipc"):
        sys.exit("gpu_pair.py nccl|torch|ipc BYTES ROUNDS PORT")
    way, numbers = sys.argv[1], [int(word) for word in sys.argv[2:]]
    context = multiprocessing.get_context("spawn")
    ends = context.Pipe()
    other = context.Process(target=run, args=(1, way, *numbers, ends[1]), daemon=True)
    other.start()
    run(0, way, *numbers, ends[0])
    other.join(30)


if __name__ == "__main__":
    main()

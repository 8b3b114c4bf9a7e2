# SPDX-License-Identifier: Apache-2.0
"""The works: the measured quantities, the peers, their differences, and Ferry's goals."""

import outputs
from groups import Figure, Entry, Group, Work
from processes import Failed
from stores_works import BARRIERS, BOOTSTRAP, KV, TORCH_OPERATIONS, TORCH_STORE

MIB = 1 << 20
GIB = 1 << 30

VERIFIED = "verified"
OWN = "own program; verified"


def ferry_pair(work, label, differs, words, needs=("ferry",), **row):
    """Ferry's row of this work, and the floor of its run."""
    def measure(tools):
        found = tools.sendrecv(*words, **row)
        figures = [Figure(work, found["p50_s"])]
        if found["floor_s"]:
            figures.append(Figure(work, found["floor_s"], peer=f"floor: {found['floor']}", is_floor=True,
                                  differs="of Ferry's runs, between the same two processes"))
        return figures
    return Entry(label, list(needs), measure, differs, is_ferry=True)


def one(work, label, needs, differs, call):
    return Entry(label, needs, lambda tools: [Figure(work, call(tools))], differs)


def mpi(work, label, way, differs, words):
    return one(work, label, ["mpi_pair"], differs, lambda tools: tools.mpi(way, *words(tools)))


def ucx(work, label, transports, differs, words, what="p50_s"):
    return one(work, label, ["ucx"], differs, lambda tools: tools.ucx(transports, *words(tools))[what])


def tensorpipe(work, label, differs, words):
    return one(work, label, ["tensorpipe_pair"], differs, lambda tools: tools.tensorpipe(*words(tools)))


def grpc(work, label, differs, words):
    return one(work, label, ["grpc_pair"], differs, lambda tools: tools.grpc(*words(tools)))


def gloo(work, differs, size, rounds):
    return one(work, "Gloo (PyTorch)", ["gloo"], differs, lambda tools: tools.gloo(size, tools.count(rounds)))


def tensorflow(work, differs, size, steps, hops):
    return one(work, "TensorFlow RecvTensor", ["tensorflow"], differs,
               lambda tools: tools.tensorflow(size, tools.count(steps), hops))


SMALL = lambda tools: ["pingpong", 8, tools.count(20000)]  # noqa: E731
LARGE = lambda tools: ["pingpong", 64 * MIB, tools.count(8)]  # noqa: E731
HUGE = lambda tools: ["pingpong", GIB, 2 if tools.is_quick else 3]  # noqa: E731
STREAM = lambda tools: ["stream", 64 * MIB, tools.count(4), 8]  # noqa: E731
MESSAGES = lambda tools: ["stream", 8, tools.count(2000), 64]  # noqa: E731
UCX_SMALL = lambda tools: ["-t", "tag_lat", "-s", 8, "-n", tools.count(20000)]  # noqa: E731
UCX_LARGE = lambda tools: ["-t", "tag_lat", "-s", 64 * MIB, "-n", tools.count(8), "-w", 3]  # noqa: E731
UCX_HUGE = lambda tools: ["-t", "tag_lat", "-s", GIB, "-n", 3, "-w", 1]  # noqa: E731
UCX_STREAM = lambda tools: ["-t", "tag_bw", "-s", 64 * MIB, "-n", tools.count(32), "-w", 3]  # noqa: E731
UCX_MESSAGES = lambda tools: ["-t", "tag_bw", "-s", 8, "-n", tools.count(500000)]  # noqa: E731

NO_KEYS = "polling, a core to each process; a rank and a tag, no keys"
UCX_SAYS = "ucx_perftest: not verified, the same warm buffer each time"
TAGS = f"{NO_KEYS}; {UCX_SAYS}"
COPIES = "into a buffer that the receiver had"

def micro(work, label, name, counter, differs, program="exchange_bench", floor=None):
    """A counter of one of Ferry's micro-benchmarks, in seconds or per second; `floor`: (counter, peer, differs) of
    its run. Counters that end in _us are in microseconds."""
    def measure(tools):
        found = outputs.counters(tools.micro(program, f"{name}(/|$)"), f"{name}/")
        if counter not in found:
            raise Failed(f"{program} printed no {counter} of {name}")
        scale = 1e-6 if counter.endswith("_us") else 1
        figures = [Figure(work, found[counter] * scale)]
        if floor:
            figures.append(Figure(work, found[floor[0]] * scale, peer=f"floor: {floor[1]}", is_floor=True,
                                  differs=floor[2]))
        return figures
    return Entry(label, [program], measure, differs, is_ferry=True)


HOST_8 = Group("host-8", [Work("host-8", "8 B there and back within a host, halved; both sides poll", "us", 8)], [
    ferry_pair("host-8", "Ferry", "polling; keyed by step and name, into a buffer; verified",
               ["--sizes=8", "--mode=into", "--poll"], bytes=8),
    micro("host-8", "Ferry, round after round", "BM_Shm_8B_Polling/into:1", "p50_us",
          "of exchange_bench: a round begins when the one before it has ended, as the peers' do; polling; keyed, into a "
          "buffer; not verified"),
    mpi("host-8", "Open MPI, shared memory", "fifo", f"{NO_KEYS}; {OWN}", SMALL),
    ucx("host-8", "UCX, posix", "posix", TAGS, UCX_SMALL),
    tensorpipe("host-8", "TensorPipe, shm, as payload", f"its threads poll; no keys; all in its callbacks; {OWN}",
               lambda tools: ["shm", "cma", "payload", *SMALL(tools)]),
    tensorpipe("host-8", "TensorPipe, shm + CMA, as tensor", f"its threads poll; no keys; all in its callbacks; {OWN}",
               lambda tools: ["shm", "cma", "tensor", *SMALL(tools)])])

HOST_8_BLOCKING = Group("host-8-blocking", [
    Work("host-8-blocking", "8 B there and back within a host, halved; blocking waits", "us", 8)], [
        ferry_pair("host-8-blocking", "Ferry", "polls for 20 us, then sleeps; keyed; verified",
                   ["--sizes=8", "--mode=into"], bytes=8),
        ferry_pair("host-8-blocking", "Ferry, --spin=0", "sleeps at once; keyed; verified",
                   ["--sizes=8", "--mode=into", "--spin=0"], bytes=8),
        grpc("host-8-blocking", "gRPC, unary, unix socket", f"sleeps; its own threads; {OWN}",
             lambda tools: ["unix", "unary", "pingpong", 8, tools.count(2000)]),
        Entry("floor: unix socket", ["wake_floor"],
              lambda tools: [Figure("host-8-blocking", tools.own("wake_floor", "unix", tools.count(5000))["seconds"],
                                    is_floor=True)], "a byte there and back, halved, a core to each process, asleep")])

HOST_8_UNEXPECTED = Group("host-8-unexpected", [
    Work("host-8-unexpected", "8 B there and back within a host, halved; each receive posted when a word in a shared page "
         "says that its tensor was sent; both sides poll", "us", 8)], [
             ferry_pair("host-8-unexpected", "Ferry", "polling; keyed by step and name, into a buffer; verified",
                        ["--sizes=8", "--mode=into", "--poll", "--unexpected"], bytes=8),
             mpi("host-8-unexpected", "Open MPI, shared memory", "fifo", f"{NO_KEYS}; {OWN}",
                 lambda tools: ["unexpected", 8, tools.count(20000)]),
             ucx("host-8-unexpected", "UCX, posix", "posix", f"a probe finds each message before its receive; {TAGS}",
                 lambda tools: [*UCX_SMALL(tools), "-U"])])


RATE = Group("rate-8", [Work("rate-8", "messages of 8 B within a host, many in flight", "/s", 8, "more")], [
    Entry("Ferry", ["ferry"], lambda tools: [Figure("rate-8", 1 / tools.sendrecv(
        "--sizes=8", "--mode=into", "--poll", "--inflight=64", "--keys=64", bytes=8, inflight=64)["p50_s"])],
          "polling; 64 in flight and one answer; keyed, each with a key of its own; verified", is_ferry=True),
    Entry("Ferry, 1000 keys in random orders", ["ferry"], lambda tools: [Figure("rate-8", outputs.ferry(tools.bench(
        "keyed", "--sizes=8", "--poll", "--mode=into", "--batch=1"), bytes=8)["ops_per_s"])],
          "polling; two threads send and two receive on two cores; verified", is_ferry=True),
    Entry("Ferry, 1000 keys in random orders, in batches of 64", ["ferry"], lambda tools: [Figure(
        "rate-8", outputs.ferry(tools.bench("keyed", "--sizes=8", "--poll", "--mode=into"), bytes=8,
                                batch=64)["ops_per_s"])],
          "the same, 64 sent and 64 posted at a time", is_ferry=True),
    Entry("Ferry, steadily", ["exchange_bench"], lambda tools: [Figure("rate-8", outputs.counters(
        tools.micro("exchange_bench", "BM_Shm_8B_Messages"), "BM_Shm_8B_Messages")["items_per_second"])],
          "of exchange_bench: polling; 256 in flight and one answer, over and over; one key; not verified", is_ferry=True),
    micro("rate-8", "Ferry, steadily, each name new", "BM_Shm_8B_Stream/names:0/into:1/batch:1", "per_s",
          "of exchange_bench: polling; 512 in flight; no name is used twice; into buffers; verified"),
    micro("rate-8", "Ferry, steadily, each name new, in batches of 64", "BM_Shm_8B_Stream/names:0/into:1/batch:64",
          "per_s", "the same, 64 sent and 64 posted at a time"),
    one("rate-8", "Open MPI, shared memory", ["mpi_pair"], f"64 in flight and one answer; {NO_KEYS}; {OWN}",
        lambda tools: 1 / tools.mpi("fifo", *MESSAGES(tools))),
    one("rate-8", "Open MPI, shared memory, 64 tags", ["mpi_pair"],
        f"64 in flight, each with a tag of its own, and one answer; polling, a core to each process; {OWN}",
        lambda tools: 1 / tools.mpi("fifo", "tagged", *MESSAGES(tools)[1:])),
    ucx("rate-8", "UCX, posix", "posix", f"a steady stream; {TAGS}", UCX_MESSAGES, "per_s"),
    one("rate-8", "TensorPipe, shm, as payload", ["tensorpipe_pair"],
        f"64 in flight and one answer; its threads poll; no keys; {OWN}",
        lambda tools: 1 / tools.tensorpipe("shm", "cma", "payload", *MESSAGES(tools)))])

TREE_TENSORS, TREE_BYTES = 1000, 4096
TREE_WORDS = lambda tools: ["stream", TREE_BYTES, tools.count(50), TREE_TENSORS]  # noqa: E731
TREE = Group("tree-4K", [
    Work("tree-4K", "1000 tensors of 4 KiB within a host, one direction, into the receiver's memory: all of them", "us",
         TREE_TENSORS * TREE_BYTES)], [
             micro("tree-4K", "Ferry, SendMany and RecvMany", "BM_Api_Tree/posted:1", "p50_us",
                   "of api_bench: the public API, plain memory on both sides, two nodes of one process; polls for 20 us, "
                   "then sleeps; keyed; verified", "api_bench",
                   ("memcpy_us", "memcpy", "of Ferry's runs: one copy of all bytes by one thread")),
             micro("tree-4K", "Ferry, both begin together", "BM_Api_Tree/posted:0", "p50_us",
                   "the same, RecvMany is not called before SendMany", "api_bench"),
             one("tree-4K", "Open MPI, FIFO", ["mpi_pair"], f"and one answer; {NO_KEYS}; {COPIES}; {OWN}",
                 lambda tools: TREE_TENSORS * tools.mpi("fifo", *TREE_WORDS(tools))),
             one("tree-4K", "TensorPipe, shm, as payload", ["tensorpipe_pair"],
                 f"and one answer; its threads poll; no keys; {OWN}",
                 lambda tools: TREE_TENSORS * tools.tensorpipe("shm", "cma", "payload", *TREE_WORDS(tools)))])


def host_copies(name, title, size, own_words, ucx_words, rounds):
    large = f"{COPIES}; {OWN}"
    wanted = dict(bytes=size, inflight=1)
    text = "64M" if size < GIB else "1G"
    entries = [
        ferry_pair(name, "Ferry", f"polling; the receiver copies with two threads, {COPIES}; keyed; verified",
                   [f"--sizes={text}", "--mode=into", "--poll"], **wanted),
        ferry_pair(name, "Ferry, asleep", f"polls for 20 us, then sleeps; the receiver copies with two threads, {COPIES}; keyed; verified",
                   [f"--sizes={text}", "--mode=into"], **wanted),
        mpi(name, "Open MPI, FIFO", "fifo", f"{NO_KEYS}; two copies, {large}", own_words),
        mpi(name, "Open MPI, CMA", "cma", f"{NO_KEYS}; one copy by the kernel, {large}", own_words),
        ucx(name, "UCX, posix", "posix", f"two copies; {TAGS}", ucx_words),
        ucx(name, "UCX, posix + CMA", "posix,cma", f"one copy by the kernel; {TAGS}", ucx_words),
        tensorpipe(name, "TensorPipe, shm + CMA", f"its threads poll; one copy by the kernel, {large}",
                   lambda tools: ["shm", "cma", "tensor", *own_words(tools)]),
        grpc(name, "gRPC, one stream, unix socket", f"asleep; chunks of 1 MiB, {large}",
             lambda tools: ["unix", "stream", *own_words(tools)]),
        gloo(name, f"TCP, which is all it has; asleep; from Python; {COPIES}; {VERIFIED}", size, rounds)]
    return Group(name, [Work(name, title, "GB/s", size)], entries)


HOST_64M = host_copies("host-64M", "64 MiB there and back within a host, halved, into the receiver's buffer", 64 * MIB,
                       LARGE, UCX_LARGE, 8)
HOST_1G = host_copies("host-1G", "1 GiB there and back within a host, halved, into the receiver's buffer", GIB, HUGE,
                      UCX_HUGE, 3)
HOST_STREAM = Group("host-64M-stream", [
    Work("host-64M-stream", "64 MiB within a host, one direction, 8 in flight, into the receiver's buffers", "GB/s", 64 * MIB)], [
        Entry("Ferry", ["ferry"], lambda tools: [Figure("host-64M-stream", tools.sendrecv(
            "--sizes=64M", "--mode=into", "--poll", "--inflight=8", bytes=64 * MIB, inflight=8)["p50_s"])],
              f"polling; {COPIES}, a buffer to each; keyed; verified", is_ferry=True),
        mpi("host-64M-stream", "Open MPI, FIFO", "fifo", f"{NO_KEYS}; {COPIES}, a buffer to each; {OWN}", STREAM),
        ucx("host-64M-stream", "UCX, posix", "posix", f"a steady stream into one buffer; {TAGS}", UCX_STREAM, "overall_s"),
        tensorpipe("host-64M-stream", "TensorPipe, shm + CMA", f"its threads poll; {COPIES}, a buffer to each; {OWN}",
                   lambda tools: ["shm", "cma", "tensor", *STREAM(tools)])])

SIZES = {"8": 8, "64K": 64 << 10, "64M": 64 * MIB, "1G": GIB}


def handoffs(tools):
    text = tools.bench("sendrecv", "--sizes=" + ",".join(SIZES), "--mode=handoff", "--poll")
    return [Figure(f"handoff-{name}", outputs.ferry(text, bytes=size)["p50_s"]) for name, size in SIZES.items()]


WARM = "BM_Shm_HandOver_Polling"


def warm_handoffs(tools):
    text = tools.micro("exchange_bench", f"{WARM}/(65536|67108864|1073741824)")
    return [Figure(f"handoff-{name}", outputs.counters(text, f"{WARM}/{size}/")["p50_us"] / 1e6)
            for name, size in SIZES.items() if size > 8]


HANDOFF = Group("handoff", [
    Work(f"handoff-{name}", f"{name.replace('M', ' Mi').replace('K', ' Ki').replace('G', ' Gi')}B zero-copy within a "
         "host: a view of the sender's memory", "us", size) for name, size in SIZES.items()], [
             Entry("Ferry", ["ferry"], handoffs, "polling; no bytes are copied; keyed; verified, so that "
                   "each round begins with cold caches; no peer has it", is_ferry=True),
             Entry("Ferry, warm", ["exchange_bench"], warm_handoffs,
                   "of exchange_bench: the same, but the bytes are neither written nor read between rounds", is_ferry=True)])

TCP_8 = Group("tcp-8", [Work("tcp-8", "8 B there and back over TCP on loopback, halved; both sides poll", "us", 8)], [
    ferry_pair("tcp-8", "Ferry", "polling; keyed; verified", ["--sizes=8", "--mode=into", "--poll", "--transport=tcp"],
               bytes=8),
    mpi("tcp-8", "Open MPI, TCP", "tcp", f"{NO_KEYS}; {OWN}", SMALL),
    ucx("tcp-8", "UCX, tcp", "tcp", TAGS, UCX_SMALL)])

BATCHED = {"8": 8, "4K": 4096}


def tcp_batches(size, name):
    work = f"tcp-{name}-batches"
    return Group(work, [Work(work, f"messages of {size} B over TCP on loopback, 64 at a time", "/s", size, "more")], [
        micro(work, "Ferry", f"BM_Tcp_Batches/bytes:{size}", "per_s",
              "of exchange_bench: polling; 64 sent and 64 posted at a time, 1024 in flight; keyed, into buffers; verified",
              floor=("raw_per_s", "raw sockets", "of Ferry's runs: as many bytes by one send for each batch, one answer "
                     "for eight")),
        one(work, "Open MPI, TCP", ["mpi_pair"], f"512 in flight and one answer; {NO_KEYS}; {OWN}",
            lambda tools: 1 / tools.mpi("tcp", "stream", size, tools.count(200), 512)),
        ucx(work, "UCX, tcp", "tcp", f"a steady stream; {TAGS}",
            lambda tools: ["-t", "tag_bw", "-s", size, "-n", tools.count(100000)], "per_s")])


TCP_BATCHES = [tcp_batches(size, name) for name, size in BATCHED.items()]

ASLEEP = f"asleep; {OWN}"
TCP_8_BLOCKING = Group("tcp-8-blocking", [
    Work("tcp-8-blocking", "8 B there and back over TCP on loopback, halved; blocking waits", "us", 8)], [
        ferry_pair("tcp-8-blocking", "Ferry", "polls for 20 us, then sleeps; keyed; verified",
                   ["--sizes=8", "--mode=into", "--transport=tcp"], bytes=8),
        ferry_pair("tcp-8-blocking", "Ferry, --spin=0", "sleeps at once; keyed; verified",
                   ["--sizes=8", "--mode=into", "--transport=tcp", "--spin=0"], bytes=8),
        gloo("tcp-8-blocking", f"asleep; from Python; {VERIFIED}", 8, 2000),
        tensorpipe("tcp-8-blocking", "TensorPipe, uv, as payload", f"asleep; all in its callbacks; no keys; {OWN}",
                   lambda tools: ["uv", "basic", "payload", "pingpong", 8, tools.count(2000)]),
        grpc("tcp-8-blocking", "gRPC, unary", ASLEEP, lambda tools: ["tcp", "unary", "pingpong", 8, tools.count(2000)]),
        tensorflow("tcp-8-blocking", "asleep; keyed; 40 ways in one step, whose own time is shared by them; verified", 8,
                   100, 40)])

TCP_64M = Group("tcp-64M", [
    Work("tcp-64M", "64 MiB there and back over TCP on loopback, halved, into the receiver's buffer", "GB/s", 64 * MIB)], [
        ferry_pair("tcp-64M", "Ferry", "polls for 20 us, then sleeps; two connections; no checksum; keyed; verified",
                   ["--sizes=64M", "--mode=into", "--transport=tcp"], bytes=64 * MIB),
        ferry_pair("tcp-64M", "Ferry, polling", "polling; two connections; no checksum; keyed; verified",
                   ["--sizes=64M", "--mode=into", "--transport=tcp", "--poll"], bytes=64 * MIB),
        mpi("tcp-64M", "Open MPI, TCP", "tcp", f"{NO_KEYS}; one connection; {OWN}", LARGE),
        ucx("tcp-64M", "UCX, tcp", "tcp", TAGS, UCX_LARGE),
        gloo("tcp-64M", f"asleep; one connection; from Python; {VERIFIED}", 64 * MIB, 8),
        tensorpipe("tcp-64M", "TensorPipe, uv", f"asleep; one connection; {OWN}",
                   lambda tools: ["uv", "basic", "tensor", *LARGE(tools)]),
        grpc("tcp-64M", "gRPC, unary", f"{ASLEEP}; copied into a buffer", lambda tools: ["tcp", "unary", *LARGE(tools)]),
        grpc("tcp-64M", "gRPC, one stream", f"{ASLEEP}; chunks of 1 MiB, copied into a buffer",
             lambda tools: ["tcp", "stream", *LARGE(tools)]),
        tensorflow("tcp-64M", "asleep; keyed; into new memory; 4 ways in one step; verified", 64 * MIB, 6, 4)])


def gpu(work, label, way):
    return Entry(label, ["gpus" if way != "ipc" else "gpu"],
                 lambda tools: [Figure(work, tools.gpu(way, 64 * MIB, tools.count(20))["seconds"])], OWN)


def ferry_gpu(label, need, devices, transport, differs):
    return ferry_pair("gpu-64M", label, f"keyed; a match and an answer for each; {differs}; verified",
                      ["--sizes=64M", "--mode=into", f"--devices={devices}", f"--transport={transport}"],
                      needs=("ferry", need), bytes=64 * MIB)


GPU = Group("gpu-64M", [Work("gpu-64M", "64 MiB between GPUs of a host, there and back, halved", "GB/s", 64 * MIB)], [
    ferry_gpu("Ferry, NCCL", "gpus", "gpu:0,gpu:1", "nccl", "a batch that both agree on before it is launched"),
    ferry_gpu("Ferry, CUDA IPC", "gpus", "gpu:0,gpu:1", "cuda_ipc", "copied from the other GPU's memory"),
    ferry_gpu("Ferry, CUDA IPC, one GPU", "gpu", "gpu:0,gpu:0", "cuda_ipc", "both processes on the first GPU"),
    gpu("gpu-64M", "raw NCCL, ncclSend and ncclRecv", "nccl"),
    gpu("gpu-64M", "PyTorch, NCCL send and recv", "torch"),
    gpu("gpu-64M", "CUDA IPC (PyTorch), copy from the other's memory", "ipc")])

GROUPS = [HOST_8, HOST_8_UNEXPECTED, HOST_8_BLOCKING, RATE, TREE, HOST_64M, HOST_STREAM, HOST_1G, HANDOFF, TCP_8,
          *TCP_BATCHES, TCP_8_BLOCKING, TCP_64M, KV, *BARRIERS, *BOOTSTRAP, *TORCH_STORE, GPU]

# Why goals of small tensors are missed.
SMALL_TENSORS = "see docs/small_tensors.md, {}"
SHM_PEERS = ["Open MPI", "UCX", "TensorPipe", "gRPC", "Gloo"]
GOALS = [
    {"text": "8 B, polling: TensorPipe's time by Ferry's", "works": ["host-8"], "peers": ["TensorPipe"], "least": 5},
    {"text": "8 B, receive posted first: half of the speed of Open MPI and UCX", "works": ["host-8"],
     "peers": ["Open MPI", "UCX"], "least": 1 / 2, "why": SMALL_TENSORS.format("stages")},
    {"text": "8 B, receive posted late: half of the speed of Open MPI and UCX", "works": ["host-8-unexpected"],
     "peers": ["Open MPI", "UCX"], "least": 1 / 2, "why": SMALL_TENSORS.format("stages")},
    {"text": "messages of 8 B, each name new", "works": ["rate-8"], "peers": ["Ferry, steadily, each name new"],
     "least_per_s": 5e6, "why": SMALL_TENSORS.format("names")},
    {"text": "the same in batches of 64", "works": ["rate-8"],
     "peers": ["Ferry, steadily, each name new, in batches of 64"], "least_per_s": 12e6,
     "why": SMALL_TENSORS.format("names")},
    {"text": "1000 keys in random orders, two threads on each side", "works": ["rate-8"],
     "peers": ["Ferry, 1000 keys in random orders"], "least_per_s": 2e6, "why": SMALL_TENSORS.format("instructions")},
    {"text": "tree of 1000 x 4 KiB: beside one memcpy", "works": ["tree-4K"], "peers": ["Ferry, SendMany and RecvMany"],
     "floor": "floor: memcpy", "most": 1.5, "plus_s": 1e-4, "why": SMALL_TENSORS.format("tree")},
    {"text": "TCP, 8 B: beside raw sockets", "works": ["tcp-8"], "peers": ["Ferry"], "floor": "floor: raw tcp",
     "most": 1.1, "why": SMALL_TENSORS.format("TCP")},
    {"text": "TCP, batches of 64: beside raw sockets", "works": [f"tcp-{name}-batches" for name in BATCHED],
     "peers": ["Ferry"], "floor": "floor: raw sockets", "least": 0.9, "why": SMALL_TENSORS.format("TCP")},
    {"text": "64 MiB into the receiver's buffer, against the best peer", "works": ["host-64M"], "peers": SHM_PEERS,
     "least": 1.5},
    {"text": "1 GiB into the receiver's buffer, against the best peer", "works": ["host-1G"], "peers": SHM_PEERS,
     "least": 1},
    {"text": "hand-off, slowest by fastest size, 8 B to 1 GiB", "works": [f"handoff-{name}" for name in SIZES],
     "peers": ["Ferry"], "least": 1.5, "flat": True},
    {"text": "the same, warm, 64 KiB to 1 GiB", "works": [f"handoff-{name}" for name in SIZES if name != "8"],
     "peers": ["Ferry, warm"], "least": 1.5, "flat": True},
    {"text": "TCP, 64 MiB: against Open MPI", "works": ["tcp-64M"], "peers": ["Open MPI"], "least": 1.2},
    {"text": "TCP, 64 MiB: against gRPC", "works": ["tcp-64M"], "peers": ["gRPC"], "least": 2.5},
    {"text": "TCP, 64 MiB: against UCX and Gloo", "works": ["tcp-64M"], "peers": ["UCX", "Gloo"], "least": 1},
    {"text": "messages per second: against TensorPipe", "works": ["rate-8"], "peers": ["TensorPipe"], "least": 10},
    {"text": "start of 512 ranks: against TCPStore", "works": ["bootstrap-512"], "peers": ["TCPStore"], "least": 12},
    {"text": "start of 512 ranks: against JAX's service", "works": ["bootstrap-512"], "peers": ["JAX"], "least": 1},
    {"text": "store, one at a time and 64: against etcd", "works": ["kv-set", "kv-get", "kv-set-rate", "kv-get-rate"],
     "peers": ["etcd"], "least": 1},
    {"text": "store, get, one at a time and 64: against TCPStore", "works": ["kv-get", "kv-get-rate"],
     "peers": ["TCPStore"], "least": 1},
    {"text": "store, set on our stream: against TCPStore's add", "works": ["kv-set", "kv-set-rate"],
     "peers": ["TCPStore, add"], "least": 1},
    {"text": "PyTorch's store, one client: against PyTorch", "works": [f"torch-{name}" for name in TORCH_OPERATIONS],
     "peers": ["PyTorch"], "least": 1},
    {"text": "PyTorch's store, 64 clients: against PyTorch", "works": [f"torch-{name}-rate" for name in TORCH_OPERATIONS],
     "peers": ["PyTorch"], "least": 1},
    {"text": "PyTorch's store, 512 ranks of gloo: against PyTorch", "works": ["torch-gloo-512"], "peers": ["PyTorch"],
     "least": 2},
    {"text": "PyTorch's store, 512 ranks with multi_get: seconds", "works": ["torch-multi-get-512"], "peers": ["Ferry"],
     "most_s": 0.2},
    {"text": "PyTorch's store, 4096 connections: seconds", "works": ["torch-connect-4096"], "peers": ["Ferry"],
     "most_s": 2},
    {"text": "barriers of 2 to 512: against JAX's service", "works": [f"barrier-{count}" for count in (2, 16, 64, 512)],
     "peers": ["JAX"], "least": 1},
]

# SPDX-License-Identifier: Apache-2.0
"""Stores, barriers and starts."""
import outputs
from groups import Entry, Figure, Group, Work

OPERATIONS = ("set", "get", "add")
FERRY_ADD = "acknowledged, in memory; 64: over one connection, all to one sum; verified"
JAX_DIFFERS = "jaxlib's service, unary gRPC; our client in C++, without Python, asks it"


def of_loads(one, many, differs=None, only=OPERATIONS):
    """Times of one at a time, rates of 64."""
    figures = []
    for name in only:
        if f"{name}_p50_s" in one:
            figures.append(Figure(f"kv-{name}", one[f"{name}_p50_s"], differs=(differs or {}).get(name)))
            figures.append(Figure(f"kv-{name}-rate", many[f"{name}_per_s"], differs=(differs or {}).get(name)))
    return figures


def ferry_kv(tools):
    text = tools.bench("kv", "--sizes=8", "--inflight=64", f"--iters={tools.count(5000)}")
    figures = []
    for name in OPERATIONS:
        row = outputs.ferry(text, mode=name, inflight=1)
        figures.append(Figure(f"kv-{name}", row["p50_s"]))
        figures.append(Figure(f"kv-{name}", row["floor_s"], peer=f"floor: {row['floor']}", is_floor=True,
                              differs="raw call of as many bytes, in turns with Ferry's"))
        row = outputs.ferry(text, mode=name, inflight=64)
        figures.append(Figure(f"kv-{name}-rate", row["ops_per_s"], differs=FERRY_ADD if name == "add" else None))
    return figures


def ferry_stream(tools):
    case = "streams:64/inflight:64/batch:1"
    text = tools.micro("coordinator_bench", f"BM_Stream_(Set|Get)/{case}")
    return [Figure(f"kv-{name.lower()}-rate", outputs.counters(text, f"BM_Stream_{name}/{case}")["rate"])
            for name in ("Set", "Get")]


def tcpstore_kv(tools):
    one = tools.own("tcpstore", "kv", 1, tools.count(2000))
    many = tools.own("tcpstore", "kv", 64, tools.count(20000))
    figures = of_loads(one, many, {"set": "NOT acknowledged: what is timed is a write to a socket; C++"})
    for work, load, what in (("kv-set", one, "p50_s"), ("kv-set-rate", many, "per_s")):
        figures.append(Figure(work, load[f"add_{what}"], peer="TCPStore, add",
                              differs="its write that is acknowledged; 64: as many connections and threads; C++"))
    return figures


def etcd_kv(folder):
    return lambda tools: of_loads(tools.etcd(folder, 1, tools.count(1000), 1), tools.etcd(folder, 64, tools.count(10000), 8))


KV = Group("kv", [
    *(Work(f"kv-{name}", f"store: {name} of 8 B, one at a time", "us") for name in OPERATIONS),
    *(Work(f"kv-{name}-rate", f"store: {name} of 8 B, 64 at a time", "/s", better="more") for name in OPERATIONS)], [
        Entry("Ferry", ["ferry"], ferry_kv, "acknowledged, in memory; 64: over one connection; verified", is_ferry=True),
        Entry("Ferry, 64 connections", ["coordinator_bench"], ferry_stream,
              "of coordinator_bench: the agents' connection without agents", is_ferry=True),
        Entry("TCPStore", ["tcpstore"], tcpstore_kv, "in memory; 64: as many connections and threads; C++; verified"),
        Entry("Redis", ["redis"], lambda tools: of_loads(tools.redis(1, tools.count(2000)), tools.redis(64, tools.count(20000))),
              "in memory, nothing is saved; 64: as many connections and one thread; redis-benchmark: not verified"),
        Entry("etcd, data on disk", ["etcd_client"], etcd_kv(None),
              "every set is on disk before it is acknowledged; 64: over 8 channels; our client in C++; verified"),
        Entry("etcd, data in memory", ["etcd_client"], etcd_kv("/dev/shm"),
              "its log is in a tmpfs; 64: over 8 channels; our client in C++; verified"),
        Entry("JAX's service", ["jax"], lambda tools: of_loads(tools.jax(1, "kv", 1, tools.count(2000), 1),
                                                               tools.jax(1, "kv", 64, tools.count(20000), 8)),
              f"{JAX_DIFFERS}; 64: over 8 channels; verified")])


def ferry_barrier(count):
    def measure(tools):
        row = outputs.ferry(tools.bench("barrier", f"--nodes={count}", f"--iters={tools.count(100)}"), nodes=count)
        return [Figure(f"barrier-{count}", row["p50_s"]),
                Figure(f"barrier-{count}", row["floor_s"], peer=f"floor: {row['floor']}", is_floor=True,
                       differs="as many raw calls that are held, in turns with Ferry's")]
    return measure


def barrier(count):
    rounds = lambda tools: tools.count(50)  # noqa: E731
    return Group(f"barrier-{count}", [Work(f"barrier-{count}", f"barrier of {count}", "us" if count < 64 else "ms")], [
        Entry("Ferry", ["ferry"], ferry_barrier(count),
              "agents of one process, a connection each; one thread calls for all, sequentially; verified", is_ferry=True),
        Entry("TCPStore", ["tcpstore"], lambda tools: [Figure(f"barrier-{count}", tools.own(
            "tcpstore", "barrier", count, rounds(tools))["seconds"])],
              "made of add, set and wait; a connection and a thread each, as its calls wait; C++; verified"),
        Entry("JAX's service", ["jax"], lambda tools: [Figure(f"barrier-{count}", tools.jax(
            count, "barrier", count, rounds(tools))["seconds"])],
              f"{JAX_DIFFERS}; a channel each; one thread calls for all, sequentially")])


def ferry_bootstrap(count):
    def measure(tools):
        row = outputs.ferry(tools.bench("bootstrap", f"--nodes={count}", "--iters=3"), nodes=count)
        return [Figure(f"bootstrap-{count}", row["p50_s"]),
                Figure(f"bootstrap-{count}", row["floor_s"], peer=f"floor: {row['floor']}", is_floor=True,
                       differs="as many channels of gRPC connect and make a call each")]
    return measure


def bootstrap(count):
    name = f"bootstrap-{count}"
    return Group(name, [Work(name, f"start of {count} ranks until each has all endpoints", "ms")], [
        Entry("Ferry", ["ferry"], ferry_bootstrap(count),
              "ranks are agents of one process, a thread and a connection each; all devices too; verified "
              "afterwards", is_ferry=True),
        Entry("TCPStore", ["tcpstore"], lambda tools: [Figure(name, tools.own("tcpstore", "bootstrap", count)["seconds"])],
              "ranks are threads of one process, a connection each; connect, set, meet, get each of the others: it has no "
              "call for many; no devices, no liveness; C++; verified afterwards"),
        Entry("JAX's service", ["jax"], lambda tools: [Figure(name, tools.jax(count, "bootstrap", count)["seconds"])],
              f"{JAX_DIFFERS}; a channel each; register, set, meet, get the whole directory with one call, each begun by "
              "the answer before; no devices; verified afterwards")])


# The protocol of PyTorch's store, spoken by the same clients to each server.
TORCH_OPERATIONS = {"set": "a set and a check, since a set has no answer", "get": "a wait and a get, as PyTorch's client does",
                    "add": "an add", "check": "a check of one key"}
TORCH_SERVERS = [
    ("Ferry", ["ferry", "store_driver"], "ferry", "ferry coordinator; verified"),
    ("PyTorch 2.15", ["torch", "store_driver"], "torch-2.15.0", "its own server (libuv), in C++; verified"),
    ("PyTorch 1.13", ["gloo", "store_driver"], "1.13", "its own server (poll), in C++; without greetings; verified"),
    ("floor: raw TCP", ["store_driver"], "floor", "as many bytes there and back; one thread with epoll, which sleeps")]


def torch_entries(measure, differs="", releases=("Ferry", "PyTorch 2.15", "PyTorch 1.13", "floor: raw TCP")):
    return [Entry(peer, needs, lambda tools, kind=kind, peer=peer: [
        Figure(figure.work, figure.value, is_floor=peer.startswith("floor")) for figure in measure(tools, kind)],
                  told + differs, is_ferry=peer == "Ferry")
            for peer, needs, kind, told in TORCH_SERVERS if peer in releases]


def torch_kv(tools, kind):
    one = tools.torch_store(kind, "kv", 1, tools.count(5000))
    many = tools.torch_store(kind, "kv", 64, tools.count(32000))
    return [Figure(f"torch-{name}{rate}", load[f"{name}_{what}"]) for name in TORCH_OPERATIONS
            for rate, load, what in (("", one, "p50_s"), ("-rate", many, "per_s"))]


TORCH_KV = Group("torch-kv", [
    *(Work(f"torch-{name}", f"PyTorch's store: {text}, one client", "us") for name, text in TORCH_OPERATIONS.items()),
    *(Work(f"torch-{name}-rate", f"PyTorch's store: {name}, 64 clients", "/s", better="more")
      for name in TORCH_OPERATIONS)],
                 torch_entries(torch_kv, "; 64: as many connections and one thread; sets by the hundred and a check"))


def torch_start(name, title, unit, *words, **options):
    def measure(tools, kind):
        return [Figure(name, tools.torch_store(kind, *words)["seconds"])]
    return Group(name, [Work(name, f"PyTorch's store: {title}", unit)], torch_entries(measure, **options))


GREETING = ("Ferry", "PyTorch 2.15", "floor: raw TCP")
TORCH_STORE = [
    TORCH_KV,
    torch_start("torch-gloo-64", "64 ranks of gloo exchange their addresses, three round trips for each pair", "ms",
                "gloo", 64),
    torch_start("torch-gloo-512", "512 ranks of gloo exchange their addresses, three round trips for each pair", "ms",
                "gloo", 512),
    torch_start("torch-multi-get-512", "512 ranks get 512 keys each, with one call", "ms", "multi_get", 512,
                releases=GREETING),
    torch_start("torch-connect-4096", "4096 clients connect and are greeted", "ms", "connect", 4096, releases=GREETING)]
BARRIERS = [barrier(count) for count in (2, 16, 64, 512)]
BOOTSTRAP = [bootstrap(count) for count in (64, 512)]

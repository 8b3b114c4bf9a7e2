# SPDX-License-Identifier: Apache-2.0
"""How each peer is run, and how its output is parsed."""
import dataclasses
import os
import pathlib
import shutil
import tempfile

import outputs
from processes import free_port, run, server

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MPI = {"fifo": ["self,vader", "--mca", "btl_vader_single_copy_mechanism", "none"], "cma": ["self,vader"],
       "tcp": ["self,tcp", "--mca", "btl_tcp_if_include", "lo"]}


@dataclasses.dataclass
class Tools:
    """Where things are, and how patient one is. `missing` has why a need is not there."""
    ferry: pathlib.Path
    programs: pathlib.Path
    benchmarks: pathlib.Path
    venvs: pathlib.Path
    cores: tuple
    limit_s: float
    is_quick: bool
    missing: dict = dataclasses.field(default_factory=dict)

    def count(self, wanted):
        return max(2, wanted // 10) if self.is_quick else wanted

    def on(self, *cores):
        return ["taskset", "-c", ",".join(str(core) for core in cores or self.cores)]

    def run(self, command, extra=None, keep=(), cores=()):
        return run([*self.on(*cores), *command], self.limit_s, extra, keep)

    def own(self, program, *words, keep=()):
        return outputs.own(self.run([self.programs / program, *words], keep=keep))

    def bench(self, *words):
        # One row for the request: no other paths or streams.
        for usual in ("--transport=auto", "--inflight=1") if words[0] == "sendrecv" else ():
            if not any(word.startswith(usual.partition("=")[0]) for word in words):
                words = (*words, usual)
        return self.run([self.ferry, "bench", *words, "--json"], {"FERRY_LOG_LEVEL": "warn"})

    def sendrecv(self, *words, **row):
        return outputs.ferry(self.bench("sendrecv", *words), **row)

    def mpi(self, way, *words):
        # It binds each process to one of the cores that it is given.
        command = ["mpirun", "--allow-run-as-root", "-n", "2", "--bind-to", "core", "--mca", "pml", "ob1",
                   "--mca", "btl", *MPI[way], self.programs / "mpi_pair", *words]
        return outputs.own(self.run(command))["seconds"]

    def ucx(self, transports, *words):
        port = free_port()
        extra = {"UCX_TLS": transports}
        with server([*self.on(self.cores[1]), "ucx_perftest", "-p", port], port, extra) as pid:
            return outputs.ucx(self.run(["ucx_perftest", "127.0.0.1", "-p", port, "-f", *words], extra, [pid],
                                        self.cores[:1]))

    def tensorpipe(self, *words):
        return self.own("tensorpipe_pair", *words)["seconds"]

    def grpc(self, *words):
        return self.own("grpc_pair", *words)["seconds"]

    def gloo(self, size, rounds):
        script = [HERE / "gloo_pair.py", "pingpong", size, rounds, free_port()]
        return outputs.own(self.run(["/usr/bin/python3", *script]))["seconds"]

    def tensorflow(self, size, steps, hops):
        script = [HERE / "tensorflow_pair.py", size, steps, hops, free_port(2)]
        return outputs.own(self.run([self.python("tensorflow-2.15.1"), *script]))["seconds"]

    def gpu(self, way, size, rounds):
        return outputs.own(self.run(["/usr/bin/env", "python3", HERE / "gpu_pair.py", way, size, rounds, free_port()]))

    def python(self, release):
        return self.venvs / release / "bin/python"

    def jax(self, ranks, *words):
        port = free_port()
        command = [self.python("jax-0.10.2"), ROOT / "tests/interop/real_service.py", f"--address=127.0.0.1:{port}",
                   f"--nodes={ranks}", "--heartbeat-timeout=600", "--connect-timeout=600"]
        with server([*self.on(), *command], port, {"TF_CPP_MIN_LOG_LEVEL": "3"}) as pid:
            return self.own("jax_client", f"127.0.0.1:{port}", *words, keep=[pid])

    def etcd(self, folder, *words):
        port = free_port(2)
        client, peer = (f"http://127.0.0.1:{each}" for each in (port, port + 1))
        data = tempfile.mkdtemp(prefix="ferry-peers-etcd-", dir=folder)
        command = ["etcd", "--data-dir", data, "--listen-client-urls", client, "--advertise-client-urls", client,
                   "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                   "--initial-cluster", f"default={peer}", "--log-level", "error"]
        try:
            with server([*self.on(), *command], port) as pid:
                return self.own("etcd_client", f"127.0.0.1:{port}", *words, keep=[pid])
        finally:
            shutil.rmtree(data, ignore_errors=True)

    def redis(self, clients, operations):
        port = free_port()
        command = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        words = ["redis-benchmark", "-p", port, "-t", "set,get,incr", "-c", clients, "-n", operations, "-d", 8,
                 "-r", operations, "--csv"]
        with server([*self.on(), *command], port) as pid:
            return outputs.redis(self.run(words, keep=[pid]))

    def without_dns(self, command):
        """The command, with host names from files alone. PyTorch's server and its clients look up the name of the
        address of each connection; with many of them queries are lost, and each takes 5 s then."""
        names = self.programs / "nsswitch.conf"
        names.write_text("hosts: files\n")
        as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
        return ["unshare", "--mount", *as_root, "sh", "-c", 'mount --bind "$0" /etc/nsswitch.conf && exec "$@"', names,
                *command]

    def torch_store(self, kind, *words):
        """The clients of store_driver with a server of this kind, which is new: ferry, a Python's PyTorch, or floor."""
        if kind == "floor":
            return self.own("store_driver", "floor", *words)
        port = free_port()
        if kind == "ferry":
            command, flags = [self.ferry, "coordinator", f"--listen=127.0.0.1:{port}", "--nodes=1"], []
        else:
            python = "/usr/bin/python3" if kind == "1.13" else self.python(kind)
            command, flags = [python, HERE / "tcpstore_server.py", port], ["--release=1.13"] if kind == "1.13" else []
        with server([*self.on(), *self.without_dns(command)], port, {"FERRY_LOG_LEVEL": "warn"}) as pid:
            return self.own("store_driver", *flags, port, *words, keep=[pid])

    def micro(self, program, benchmark):
        words = [f"--benchmark_filter={benchmark}"]
        if self.is_quick and program == "coordinator_bench":
            words.append("--quick")
        return self.run([self.benchmarks / program, *words])

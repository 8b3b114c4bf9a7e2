#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch stores that the coordinator serves: for the ranks of ferry run, and as ferry status and
ferry kv show them.

    cli_store_test.py FERRY [CASE...]

TORCH_PYTHON: a Python with torch, else /usr/bin/python3; cases that need it are skipped without.
"""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading

import harness

# A client of PyTorch's store, as of version 2.2: see docs/pytorch.md. `go` waits for a file, with
# which the test lets a rank go on.
CLIENT = r"""
import os, socket, struct, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 30)
store.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE))
stream = store.makefile("rb")
text = lambda s: struct.pack("<Q", len(s)) + s.encode()
number = lambda: struct.unpack("<q", stream.read(8))[0]
def get(key):
    store.sendall(b"\3" + text(key))
    return stream.read(number()).decode()
def put(key, value):
    store.sendall(b"\1" + text(key) + text(value))
    assert get(key) == value
def wait(key):
    store.sendall(b"\6" + struct.pack("<Q", 1) + text(key))
    assert stream.read(1) == b"\0"
def keys():
    store.sendall(b"\x11")
    return sorted(stream.read(number()).decode() for _ in range(number()))
def go(path):
    deadline = time.monotonic() + 60
    while not os.path.exists(path):
        assert time.monotonic() < deadline, path
        time.sleep(0.02)
"""
# The bootstrap of PyTorch's backend gloo; rank 3 begins when the file GO is there.
GLOO = CLIENT + r"""
if rank == 3: go(os.environ["GO"])
put(f"/default_pg/0//cpu//0/{rank}", f"address of {rank}")
for other in range(world): wait(f"/default_pg/0//cpu//0/{other}")
print("met", flush=True)
"""
TORCH = r"""
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for round in range(2):
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    assert total.item() == 10, total
group = dist.new_group([0, 3])
dist.barrier()
print("reduced", type(dist.distributed_c10d._get_default_store()).__name__, flush=True)
dist.destroy_process_group()
"""
VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "LOCAL_WORLD_SIZE",
             "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID")


def python(script):
    return ("--", sys.executable, "-c", script)


class Proxy:
    """Passes connections on to `address`, and what clients send through `change`."""

    def __init__(self, address, change):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.server.getsockname()[1]
        self.target, self.change = address.rsplit(":", 1), change
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            server = socket.create_connection(self.target, harness.PATIENCE_S)
            for ends in ((client, server, self.change), (server, client, bytes)):
                threading.Thread(target=self.forward, args=ends, daemon=True).start()

    @staticmethod
    def forward(source, destination, change):
        try:
            while data := source.recv(1 << 16):
                destination.sendall(change(data))
            destination.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self.server.close()


class Case(harness.Case):
    def variables(self, out):
        """Those of each rank, from the output of env."""
        ranks = {}
        for line in out.decode().splitlines():
            rank, name, value = re.fullmatch(r"\[(\d+)\] ([^=]*)=?(.*)", line).groups()
            if name in VARIABLES:
                ranks.setdefault(int(rank), {})[name] = value
        return ranks

    def status(self, address):
        return json.loads(self.succeed("status", "--json", f"--coordinator={address}"))

    def scopes(self, address):
        return self.status(address)["store_scopes"]


class Run(Case):
    def test_ranks_are_clients_of_the_coordinators_store(self):
        ranks = self.variables(self.succeed("run", "--nproc=2", "--", "env"))
        self.assertEqual(ranks[0], ranks[1])
        self.assertEqual(set(ranks[0]), set(VARIABLES))
        self.assertEqual(ranks[0]["MASTER_ADDR"], "127.0.0.1")
        self.assertEqual(ranks[0]["TORCHELASTIC_USE_AGENT_STORE"], "True")
        self.assertEqual(ranks[0]["TORCHELASTIC_RESTART_COUNT"], "0")
        self.assertRegex(ranks[0]["TORCHELASTIC_RUN_ID"], "^ferry-[0-9a-f]{8,16}$")
        self.assertEqual((ranks[0]["GROUP_RANK"], ranks[0]["LOCAL_WORLD_SIZE"]), ("0", "2"))

    def test_each_run_has_a_store_of_its_own(self):
        _, address = self.coordinator(2)
        for _ in range(2):
            out = self.succeed("run", "--nproc=2", f"--coordinator={address}",
                               *python(CLIENT + "if rank == 0: print(keys())\n"
                                       "else: wait('/k0')\n"
                                       "put(f'/k{rank}', 'v'); wait('/k1'); print(keys())"))
            self.assertIn(b"[0] []\n", out)
            self.assertEqual(out.count(b"['/k0', '/k1']"), 2, out)

    def test_machines_share_the_store_which_closes_with_the_first_ones_run(self):
        _, address = self.coordinator(4)
        with tempfile.TemporaryDirectory() as folder:
            go = os.path.join(folder, "go")
            runs = [self.start("run", "--nodes=2", f"--node-id={machine}", "--nproc=2",
                               f"--coordinator={address}", *python(GLOO), GO=go)
                    for machine in (1, 0)]
            self.eventually(lambda: [scope["clients"] for scope in self.scopes(address)] == [4])
            pathlib.Path(go).touch()
            self.assertEqual([run.wait() for run in runs], [0, 0], runs[0].err + runs[1].err)
        self.assertEqual([run.out.count("met") for run in runs], [2, 2])
        self.assertEqual(runs[0].err + runs[1].err, "")
        self.eventually(lambda: self.scopes(address) == [])
        # Nothing is left of the exchange of the address.
        self.assertEqual(self.succeed("kv", "ls", f"--coordinator={address}"), b"")

    def test_second_machine_has_the_run_id_and_its_group_rank(self):
        _, address = self.coordinator(2)
        runs = [self.start("run", "--nodes=2", f"--node-id={machine}", f"--coordinator={address}",
                           "--", "env") for machine in (0, 1)]
        self.assertEqual([run.wait() for run in runs], [0, 0], runs[0].err + runs[1].err)
        first = self.variables(runs[0].out.encode())[0]
        second = self.variables(runs[1].out.encode())[1]
        self.assertEqual((first.pop("GROUP_RANK"), second.pop("GROUP_RANK")), ("0", "1"))
        self.assertEqual(first, second)

    def test_address_of_the_environment_or_no_store_lets_rank_0_host_it(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
        for flags, variables in ((["--no-store"], {}), ([], {"MASTER_PORT": port}),
                                 ([], {"MASTER_ADDR": "127.0.0.1"})):
            with self.subTest(flags=flags, variables=variables):
                out = self.succeed("run", *flags, "--", "env", **variables)
                ranks = self.variables(out)
                self.assertEqual(set(ranks[0]), {"MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"})
                for name, value in variables.items():
                    self.assertEqual(ranks[0][name], value)

    def test_coordinator_that_is_not_there_is_reported_and_rank_0_hosts_it(self):
        status, out, err = self.run_ferry("run", "--coordinator=127.0.0.1:1", "--", "env")
        self.assertEqual(status, 0, err)
        self.assertNotIn("TORCHELASTIC_USE_AGENT_STORE", self.variables(out)[0])
        self.assertRegex(err, r"^ferry run: the coordinator at 127\.0\.0\.1:1 serves no PyTorch "
                              r"store: .*; rank 0 hosts it\n$")

    def test_coordinator_without_stores_is_reported_and_rank_0_hosts_it(self):
        # A coordinator of a version before the request answers it as any that it does not know, such as one with
        # another number.
        _, address = self.coordinator(1)
        open_store, unknown = b"\xca\x01", b"\x82\x7d"
        proxy = Proxy(address, lambda data: re.sub(open_store + rb"(?=.\x0a.run/ferry-)", unknown, data, flags=re.S))
        self.addCleanup(proxy.close)
        status, out, err = self.run_ferry("run", f"--coordinator={proxy.address}", "--", "env")
        self.assertEqual(status, 0, err)
        variables = self.variables(out)[0]
        self.assertNotIn("TORCHELASTIC_USE_AGENT_STORE", variables)
        self.assertIn("MASTER_PORT", variables)
        self.assertEqual(err, f"ferry run: the coordinator at {proxy.address} is of a version that does not serve "
                              "PyTorch's store; rank 0 hosts it\n")

    def test_launcher_that_is_killed_leaves_no_store(self):
        _, address = self.coordinator(1)
        run = self.start("run", f"--coordinator={address}", "--", "sleep", "60")
        self.eventually(lambda: self.scopes(address))
        run.signal(signal.SIGKILL)
        run.wait()
        self.eventually(lambda: not self.scopes(address))


class Status(Case):
    def test_rank_that_has_not_set_its_key_is_named(self):
        _, address = self.coordinator(4)
        with tempfile.TemporaryDirectory() as folder:
            go = os.path.join(folder, "go")
            run = self.start("run", "--nproc=4", f"--coordinator={address}", *python(GLOO), GO=go)
            key = "/default_pg/0//cpu//0/3"
            self.eventually(lambda: [missing["clients"] for scope in self.scopes(address)
                                     for missing in scope["missing"]] == [3])
            [scope] = self.scopes(address)
            self.assertRegex(scope["name"], "^run/ferry-[0-9a-f]+$")
            self.assertEqual((scope["clients"], scope["keys"]), (4, 3))
            self.assertGreater(scope["port"], 0)
            self.assertGreater(scope["bytes"], 3 * len(key))
            [missing] = scope["missing"]
            self.assertEqual((missing["key"], missing["ranks"]), (key, "3"))
            self.assertEqual([wait["keys"] for wait in scope["waits"]], [[key]] * 3)
            self.assertRegex(scope["waits"][0]["peer"], r"^ipv4:127\.0\.0\.1:\d+$")
            text = self.succeed("status", f"--coordinator={address}").decode()
            self.assertRegex(text, rf"(?m)^  {scope['name']} +{scope['port']} +4 +3 ")
            self.assertRegex(text, rf"(?m)^  {scope['name']}: rank 3 has not set {key}; "
                                   r"3 clients wait for it, the longest for \S+$")
            pathlib.Path(go).touch()
            self.assertEqual(run.wait(), 0, run.err)
        self.assertNotIn("PYTORCH", self.succeed("status", f"--coordinator={address}").decode())

    def test_store_of_the_coordinators_port_is_shown_and_emptied(self):
        _, address = self.coordinator(1, "--store-idle-timeout=50ms")
        host, port = address.rsplit(":", 1)
        client = CLIENT + "put('/a', 'b'); print('ready', flush=True); wait('/never')"
        process = harness.Process(["-c", client], harness.environment(
            RANK="0", WORLD_SIZE="1", MASTER_ADDR=host, MASTER_PORT=port), program=sys.executable)
        self.addCleanup(process.kill)
        process.wait_for("ready")
        self.eventually(lambda: [scope["missing"] for scope in self.scopes(address)] != [[]])
        text = self.succeed("status", f"--coordinator={address}").decode()
        self.assertRegex(text, r"(?m)^  shared +the coordinator's +1 +1 ")
        self.assertRegex(text, r"shared: key /never is not set; 1 client waits for it, for ")
        process.kill()
        self.eventually(lambda: self.scopes(address) == [])


class Kv(Case):
    def test_reads_a_store_by_its_name(self):
        _, address = self.coordinator(1)
        at = f"--coordinator={address}"
        with tempfile.TemporaryDirectory() as folder:
            go = os.path.join(folder, "go")
            run = self.start("run", at, *python(CLIENT + "put('/a', 'x'); put('/ab', 'y')\n"
                             "put('/b', 'z'); print('ready', flush=True); go(os.environ['GO'])"),
                             GO=go)
            run.wait_for("ready")
            scope = f"--scope={self.scopes(address)[0]['name']}"
            self.assertEqual(self.succeed("kv", "ls", at, scope), b"/a\n/ab\n/b\n")
            self.assertEqual(self.succeed("kv", "ls", at, scope, "/a"), b"/a\n/ab\n")
            self.assertRegex(self.succeed("kv", "ls", at, scope, "--long", "/ab").decode(),
                             r'/ab +1 +0 +"y"')
            self.assertEqual(self.succeed("kv", "get", at, scope, "/a", "--no-wait"), b"x")
            self.fail_with(1, 'key "/" is not there', "kv", "get", at, scope, "/", "--no-wait")
            self.fail_with(2, "--no-wait", "kv", "get", at, scope, "/a")
            # The coordinator's own store is another.
            self.assertEqual(self.succeed("kv", "ls", at), b"")
            pathlib.Path(go).touch()
            self.assertEqual(run.wait(), 0, run.err)
        self.fail_with(1, "no store with the scope", "kv", "ls", at, scope)
        self.fail_with(1, "the coordinator's port", "kv", "ls", at, "--scope=shared")


class Torch(Case):
    def setUp(self):
        self.python = os.environ.get("TORCH_PYTHON", "/usr/bin/python3")
        found = subprocess.run([self.python, "-c", "import torch.distributed as d, torch; "
                                "assert d.is_gloo_available() if hasattr(d, 'is_gloo_available') "
                                "else d.is_available(); print(torch.__version__)"],
                               capture_output=True, timeout=120) \
            if os.path.exists(self.python) else None
        if found is None or found.returncode != 0:
            self.skipTest(f"{self.python} has no torch with gloo")

    def test_4_ranks_of_gloo_reduce(self):
        _, address = self.coordinator(4)
        for _ in range(2):
            out = self.succeed("run", "--nproc=4", f"--coordinator={address}", "--", self.python,
                               "-c", TORCH, timeout_s=120, OMP_NUM_THREADS="1")
            self.assertEqual(out.count(b"reduced"), 4, out)
        self.eventually(lambda: self.scopes(address) == [])


if __name__ == "__main__":
    harness.main()

# SPDX-License-Identifier: Apache-2.0
"""ferry.torch against `ferry coordinator`, with a fake of what it uses of PyTorch. Run as: handler_test.py FERRY"""
import datetime
import importlib
import os
import subprocess
import sys
import threading
import time
import types

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.abspath(os.path.join(HERE, os.pardir, os.pardir, "python"))
sys.path[:0] = [os.path.join(HERE, os.pardir, "cli"), PACKAGE]
import harness  # noqa: E402


class TCPStore:
    def __init__(self, host_name, port, world_size=None, is_master=False, timeout=None, wait_for_workers=True):
        if is_master or wait_for_workers:
            raise ValueError("a store of its own, or one that waits")
        self.host, self.port, self.timeout = host_name, port, timeout


class PrefixStore:
    def __init__(self, prefix, store):
        self.prefix, self.store = prefix, store


class Parameters:
    """As RendezvousParameters."""

    def __init__(self, endpoint, run_id="job", min_nodes=1, max_nodes=1, **config):
        self.backend, self.endpoint, self.run_id = "ferry", endpoint, run_id
        self.min_nodes, self.max_nodes, self.config, self.local_addr = min_nodes, max_nodes, config, "host-a"

    def get(self, key, default=None):
        return self.config.get(key, default)


def make_torch(api_names):
    """Modules with the names of PyTorch's, whose errors are those of `api_names`."""
    modules = {name: types.ModuleType(name) for name in (
        "torch", "torch.distributed", "torch.distributed.elastic", "torch.distributed.elastic.rendezvous",
        "torch.distributed.elastic.rendezvous.api")}
    dist = modules["torch.distributed"]
    dist.TCPStore, dist.PrefixStore, dist.Store = TCPStore, PrefixStore, object
    handlers = {}

    def register(scheme, handler):
        if scheme in handlers:
            raise RuntimeError("already registered")
        handlers[scheme] = handler
    dist.register_rendezvous_handler, dist.handlers = register, handlers
    api = modules["torch.distributed.elastic.rendezvous.api"]
    modules["torch"].distributed = dist
    modules["torch.distributed.elastic.rendezvous"].api = api
    api.RendezvousError = type("RendezvousError", (Exception,), {})
    for name in api_names:
        setattr(api, name, type(name, (api.RendezvousError,), {}))
    api.RendezvousHandler, api.RendezvousParameters = object, Parameters
    api.rendezvous_handler_registry = types.SimpleNamespace(
        creators={}, register=lambda name, creator: api.rendezvous_handler_registry.creators.update({name: creator}))
    return modules, dist, api


ERRORS = ["RendezvousClosedError", "RendezvousTimeoutError", "RendezvousConnectionError", "RendezvousStateError"]


class Handlers(harness.Case):
    def setUp(self):
        modules, self.dist, self.api = make_torch(ERRORS + ["RendezvousGracefulExitError"])
        self.api.RendezvousInfo = lambda store, rank, size, info: types.SimpleNamespace(
            store=store, rank=rank, world_size=size, bootstrap_store_info=info)
        self.api.RendezvousStoreInfo = lambda host, port: types.SimpleNamespace(master_addr=host, master_port=port)
        self.load(modules)
        _, self.address = self.coordinator(1)

    def load(self, modules):
        for name in [name for name in sys.modules if name == "torch" or name.startswith(("torch.", "ferry.torch"))]:
            del sys.modules[name]
        sys.modules.update(modules)
        self.package = importlib.import_module("ferry.torch")

    def tearDown(self):
        for name in [name for name in sys.modules if name == "torch" or name.startswith(("torch.", "ferry.torch"))]:
            del sys.modules[name]

    def handler(self, **options):
        handler = self.package.create_handler(Parameters(options.pop("endpoint", self.address), **options))
        self.addCleanup(handler._client.leave)
        return handler

    def test_import_of_the_package_does_not_import_torch(self):
        done = subprocess.run([sys.executable, "-c", "import ferry, sys; sys.exit('torch' in sys.modules)"],
                              env=harness.environment(PYTHONPATH=PACKAGE), timeout=harness.PATIENCE_S)
        self.assertEqual(done.returncode, 0)

    def test_entry_point_returns_the_function_that_creates_handlers(self):
        with open(os.path.join(PACKAGE, "pyproject.toml"), encoding="utf-8") as file:
            self.assertIn('[project.entry-points."torchrun.handlers"]\nferry = "ferry.torch.rendezvous:get_handler_creator"',
                          file.read())
        creator = importlib.import_module("ferry.torch.rendezvous").get_handler_creator()
        handler = creator(Parameters(self.address))
        self.assertEqual((handler.get_backend(), handler.get_run_id(), handler.use_agent_store), ("ferry", "job", True))
        self.package.register()
        self.assertIs(self.api.rendezvous_handler_registry.creators["ferry"], creator)

    def test_round_has_a_store_of_the_coordinator(self):
        handler = self.handler(read_timeout="7")
        info = handler.next_rendezvous()
        self.assertEqual((info.rank, info.world_size), (0, 1))
        self.assertEqual(info.store.prefix, "torch.rendezvous.job.0")
        self.assertEqual(info.store.store.timeout, datetime.timedelta(seconds=7))
        self.assertEqual(info.bootstrap_store_info.master_addr, "127.0.0.1")
        self.assertEqual(info.bootstrap_store_info.master_port, info.store.store.port)
        self.assertEqual(handler.num_nodes_waiting(), 0)
        again = handler.next_rendezvous()
        self.assertEqual(again.store.prefix, "torch.rendezvous.job.1")
        self.assertNotEqual(again.bootstrap_store_info.master_port, info.bootstrap_store_info.master_port)

    def test_release_without_infos_gets_a_tuple(self):
        modules, _, _ = make_torch(ERRORS)
        self.load(modules)
        store, rank, size = self.handler().next_rendezvous()
        self.assertEqual((store.prefix, rank, size), ("torch.rendezvous.job.0", 0, 1))

    def test_timeout_names_the_nodes_that_came(self):
        handler = self.handler(min_nodes=2, max_nodes=2, join_timeout="0.2")
        with self.assertRaisesRegex(self.api.RendezvousTimeoutError, "1 of 2 nodes has joined: .*host-a"):
            handler.next_rendezvous()

    def test_closed_run_is_closed_for_all(self):
        first, second = self.handler(), self.handler()
        first.next_rendezvous()
        self.assertFalse(first.is_closed())
        first.set_closed()
        self.assertTrue(first.is_closed())
        self.assertEqual(first.num_nodes_waiting(), 0)
        with self.assertRaisesRegex(self.api.RendezvousClosedError, "closed"):
            second.next_rendezvous()
        self.assertTrue(first.shutdown())

    def test_spare_of_a_run_that_ends_exits_gracefully(self):
        first, spare = self.handler(), self.handler()
        first.next_rendezvous()
        errors = []

        def wait():
            try:
                spare.next_rendezvous()
            except self.api.RendezvousError as error:
                errors.append(type(error))
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        deadline = time.monotonic() + harness.PATIENCE_S
        while b'"is_waiting": true' not in self.succeed("status", "--json", f"--coordinator={self.address}"):
            self.assertLess(time.monotonic(), deadline)
        self.assertEqual(first.num_nodes_waiting(), 0)
        first.shutdown()
        thread.join(harness.PATIENCE_S)
        self.assertEqual(errors, [self.api.RendezvousGracefulExitError])

    def test_other_sizes_are_refused(self):
        self.handler().next_rendezvous()
        with self.assertRaisesRegex(self.api.RendezvousStateError, "asks for 2"):
            self.handler(min_nodes=2, max_nodes=2).next_rendezvous()

    def test_coordinator_that_is_absent_is_named(self):
        handler = self.handler(endpoint="127.0.0.1:1", connect_timeout="0.3", close_timeout="0.3")
        with self.assertRaisesRegex(self.api.RendezvousConnectionError, "127.0.0.1:1"):
            handler.next_rendezvous()
        self.assertFalse(handler.shutdown())

    def test_coordinator_that_restarts_makes_nodes_join_again(self):
        process, address = self.coordinator(1)
        handler = self.handler(endpoint=address)
        handler.next_rendezvous()
        self.assertEqual(handler.num_nodes_waiting(), 0)
        process.kill()
        self.start("coordinator", "--nodes=1", f"--listen={address}").wait_for("listening on")
        self.eventually(lambda: handler.num_nodes_waiting() == 1)
        self.assertEqual(handler.next_rendezvous().rank, 0)
        self.eventually(lambda: handler.num_nodes_waiting() == 0)

    def test_wrong_options_are_refused(self):
        for options in ({"endpoint": ":1"}, {"run_id": ""}, {"join_timeout": "soon"}, {"join_timeout": "0"},
                        {"last_call_timeout": "-1"}, {"read_timeout": "inf"}):
            with self.subTest(options=options), self.assertRaises(ValueError):
                self.package.create_handler(Parameters(options.pop("endpoint", self.address), **options))

    def test_url_has_a_store_for_each_attempt(self):
        handler = self.dist.handlers["ferry"]
        ports = []
        for _ in range(2):
            rendezvous = handler(f"ferry://{self.address}?rank=0&world_size=1&run_id=url",
                                 timeout=datetime.timedelta(seconds=20))
            store, rank, size = next(rendezvous)
            self.assertEqual((rank, size, store.timeout), (0, 1, datetime.timedelta(seconds=20)))
            ports.append(store.port)
            with self.assertRaisesRegex(RuntimeError, "used once only"):
                next(rendezvous)
        self.assertNotEqual(*ports)

    def test_url_that_is_wrong_is_refused(self):
        handler = self.dist.handlers["ferry"]
        for url, why in (("ferry://:1?rank=0&world_size=1", "HOST:PORT"), ("ferry://host?world_size=1", "RANK"),
                         ("ferry://host?rank=0", "WORLD_SIZE"), ("ferry://host?rank=0&world_size=-1", "WORLD_SIZE"),
                         ("ferry://host?rank=1&world_size=1", "rank 1"), ("ferry://host?rank=x&world_size=1", "number"),
                         ("ferry://host?rank=0&world_size=1&speed=2", "unknown speed")):
            with self.subTest(url=url), self.assertRaisesRegex(ValueError, why):
                next(handler(url))

    def test_missing_ranks_of_a_url_are_named(self):
        handler = self.dist.handlers["ferry"]
        with self.assertRaisesRegex(TimeoutError, "ranks 0,2 are missing"):
            next(handler(f"ferry://{self.address}?rank=1&world_size=3&run_id=missing",
                         timeout=datetime.timedelta(seconds=0.2)))


if __name__ == "__main__":
    harness.main()

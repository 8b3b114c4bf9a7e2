# SPDX-License-Identifier: Apache-2.0
"""ferry bench cold, kv, barrier and bootstrap: those that measure a beginning, or a coordinator."""
import pathlib
import tempfile
import xml.etree.ElementTree

import harness
from bench_rows import rows_of


class Cold(harness.Case):
    """The first time, which warm-ups hide."""

    def test_the_first_transfer_phase_by_phase(self):
        document, rows = rows_of(self, "cold", "--sizes=8,1M", "--iters=3")
        self.assertEqual([(row["mode"], row["bytes"], row["count"], row["path"]) for row in rows],
                         [(phase, size, 3, path) for size, way in ((8, "eager"), (1 << 20, "shm"))
                          for phase, path in (("handshake", "inline"), ("match", "eager"),
                                              ("registration", way), ("handoff", way), ("read", way),
                                              ("copy", way), ("notify", ""))])
        self.assertRegex(document["arena_pages"], "pages")
        # Two messages, the first of which has to find the other process.
        first, second = (row["p50_s"] for row in rows[:2])
        self.assertGreater(first, second)

    def test_over_tcp_connections_are_made_before_the_hand_off(self):
        _, rows = rows_of(self, "cold", "--sizes=256K", "--iters=3", "--transport=tcp")
        self.assertEqual([row["path"] for row in rows], ["inline", "eager"] + ["tcp"] * 4 + [""])

    def test_without_eager_values_every_tensor_is_requested(self):
        _, rows = rows_of(self, "cold", "--sizes=8", "--iters=3", "--no-eager")
        self.assertEqual([row["path"] for row in rows], ["inline"] * 6 + [""])

    def test_has_no_modes(self):
        self.fail_with(2, "--mode", "bench", "cold", "--mode=into")


class Coordinator(harness.Case):
    """The store, barriers and the start of a job, beside raw calls of gRPC."""

    def test_the_store(self):
        _, rows = rows_of(self, "kv", "--sizes=8,4K", "--iters=200", "--inflight=16")
        self.assertEqual([(row["mode"], row["inflight"], row["bytes"]) for row in rows],
                         [(mode, inflight, size) for mode in ("set", "get")
                          for inflight in (1, 16) for size in (8, 4096)] +
                         [("add", 1, 8), ("add", 16, 8)])
        for row in rows:
            self.assertEqual((row["count"], row["floor"]), (200, "grpc unary"))
            self.assertGreater(row["cpu_s_per_op"], 0)
            # In sequence they take as long as all together, less the time between them.
            if row["inflight"] == 1:
                self.assertLess(row["ops_per_s"] * row["p50_low_s"], 1.5)
            self.assertIsNone(row["bytes_per_s"])

    def test_the_store_of_an_existing_job_is_not_changed(self):
        _, address = self.coordinator(1)
        self.succeed("kv", "set", "mine", "here", f"--coordinator={address}")
        _, rows = rows_of(self, "kv", "--sizes=8", "--iters=20", f"--coordinator={address}")
        # Its duration cannot be observed from outside.
        self.assertEqual({row["cpu_s_per_op"] for row in rows}, {None})
        self.assertEqual(self.succeed("kv", "ls", f"--coordinator={address}").decode().split(),
                         ["mine"])

    def test_a_coordinator_that_dies_ends_it(self):
        coordinator, address = self.coordinator(1)
        bench = self.start("bench", "kv", "--sizes=8", "--iters=100000",
                           f"--coordinator={address}")
        self.eventually(lambda: b"ferry-bench" in self.succeed(
            "kv", "ls", f"--coordinator={address}"))
        coordinator.kill()
        self.assertEqual(bench.wait(timeout_s=60), 1)
        self.assertRegex(bench.err, "ferry: bench: .*(coordinator|out of reach)")

    def test_barriers_of_several_numbers_of_nodes(self):
        _, rows = rows_of(self, "barrier", "--nodes=2,5", "--iters=20")
        self.assertEqual([(row["mode"], row["nodes"], row["count"], row["floor"]) for row in rows],
                         [("barrier", 2, 20, "held grpc unary"),
                          ("barrier", 5, 20, "held grpc unary")])
        out = self.succeed("bench", "barrier", "--nodes=3", "--iters=10").decode()
        self.assertRegex(out, r"MODE +NODES +COUNT")
        self.assertIn("\nevery passage was verified\n", out)

    def test_starts_of_several_numbers_of_nodes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "start.svg"
            _, rows = rows_of(self, "bootstrap", "--nodes=2:8:x4", "--iters=3", f"--plot={path}")
            self.assertEqual([(row["nodes"], row["count"], row["floor"]) for row in rows],
                             [(2, 3, "grpc connect + unary"), (8, 3, "grpc connect + unary")])
            # Over the number of nodes, and without GB/s.
            svg = "{http://www.w3.org/2000/svg}"
            picture = xml.etree.ElementTree.parse(path).getroot()
            labels = {text.text for text in picture.findall(svg + "text")}
            self.assertLessEqual({"nodes", "bootstrap", "2", "8"}, labels)
            self.assertNotIn("GB/s", labels)
            self.assertEqual(len(picture.findall(svg + "polyline")), 2)

    def test_gates_and_usage(self):
        self.fail_with(1, "1 of 1 rows miss --max-us=0.1: barrier [(]", "bench", "barrier",
                       "--nodes=2", "--iters=5", "--max-us=0.1")
        for pattern, arguments in (("--nodes", ("barrier", "--nodes=1")),
                                   ("--nodes", ("bootstrap", "--nodes=2:8")),
                                   ("--sizes.*at most 1 MiB", ("kv", "--sizes=2M")),
                                   ("--min-gbps", ("kv", "--min-gbps=1"))):
            with self.subTest(arguments):
                self.fail_with(2, pattern, "bench", *arguments)


if __name__ == "__main__":
    harness.main()

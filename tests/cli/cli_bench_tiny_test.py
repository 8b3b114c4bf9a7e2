# SPDX-License-Identifier: Apache-2.0
"""Each ferry bench at the smallest counts: no row is there twice, and its values are right.

    cli_bench_tiny_test.py FERRY [CASE...]
"""
import re

import harness
from bench_rows import rows_of

# Small sizes that are named twice, and larger and smaller than a depth.
SIZES = "--sizes=8,4K,8"
# A bench's flags, and how many samples of one at a time a row of it has at --iters=N.
BENCHES = {
    "sendrecv": (SIZES, "--inflight=4"),
    "bidir": (SIZES, "--inflight=4"),
    "ring": (SIZES, "--inflight=4", "--nodes=3"),
    "fan-in": (SIZES, "--inflight=4", "--nodes=3"),
    "fan-out": (SIZES, "--inflight=4", "--nodes=3"),
    "all-pairs": (SIZES, "--inflight=4", "--nodes=2"),
    "keyed": (SIZES, "--keys=3", "--threads=2", "--batch=2"),
    "steps": (SIZES, "--inflight=4"),
    "cold": (SIZES,),
    "kv": (SIZES, "--inflight=4"),
    "barrier": ("--nodes=2,3,2",),
    "bootstrap": ("--nodes=2,3,2",),
}


def name_of(row):
    return tuple(row[key] for key in ("mode", "transport", "inflight", "batch", "nodes", "threads",
                                      "pair", "bytes"))


class Tiny(harness.Case):
    def verbs(self):
        listed = self.succeed("bench", "--help").decode().split("Subcommands:")[1]
        return set(re.findall(r"^  ([\w-]+) {2,}\S", listed, re.MULTILINE))

    def test_every_bench_is_among_them(self):
        self.assertEqual(self.verbs() - {"compare"}, set(BENCHES))

    def test_rows_occur_once_and_count_the_requested_operations(self):
        for bench, flags in BENCHES.items():
            for iterations in (1, 6):
                with self.subTest(bench=bench, iterations=iterations):
                    _, rows = rows_of(self, bench, *flags, f"--iters={iterations}")
                    names = [name_of(row) for row in rows]
                    self.assertEqual(len(names), len(set(names)), names)
                    for row in rows:
                        at_a_time = row["inflight"] if bench not in ("steps", "kv") else 1
                        # Whole rounds, and no more of them than needed.
                        self.assertEqual(row["count"] % at_a_time, 0, row)
                        least = iterations
                        if bench == "keyed":
                            least = iterations * row["inflight"]
                        self.assertGreaterEqual(row["count"], least, row)
                        self.assertLess(row["count"], least + at_a_time, row)

    def test_depths_beyond_the_operations_of_the_store_are_one_row(self):
        """At --iters=6 a batch had one operation: both depths were one at a time, and one sum."""
        for iterations in (1, 4, 5, 6, 9, 10, 64, 65):
            for inflight in (1, 2, 64):
                with self.subTest(iterations=iterations, inflight=inflight):
                    _, rows = rows_of(self, "kv", "--sizes=8", f"--iters={iterations}",
                                      f"--inflight={inflight}")
                    depths = sorted({1, min(iterations, inflight)})
                    self.assertEqual([(row["mode"], row["inflight"], row["count"]) for row in rows],
                                     [(mode, depth, iterations) for mode in ("set", "get", "add")
                                      for depth in depths])

    def test_large_values_of_a_store_are_as_many_as_requested(self):
        """16 MiB of a batch's values are kept at a time."""
        _, rows = rows_of(self, "kv", "--sizes=1M", "--iters=40", "--inflight=64")
        self.assertEqual([(row["mode"], row["inflight"], row["count"]) for row in rows],
                         [("set", 1, 40), ("set", 13, 40), ("get", 1, 40), ("get", 13, 40),
                          ("add", 1, 40), ("add", 40, 40)])


if __name__ == "__main__":
    harness.main()

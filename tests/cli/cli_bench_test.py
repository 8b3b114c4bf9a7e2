#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long tensors take, as the tool measures it.

    cli_bench_test.py FERRY [CASE...]
"""
import csv
import json
import pathlib
import tempfile
import xml.etree.ElementTree

import harness


class Bench(harness.Case):
    def bench(self, *arguments):
        return json.loads(self.succeed("bench", "sendrecv", "--json", *arguments, timeout_s=100))

    def test_each_size_in_each_mode_beside_its_floor(self):
        document = self.bench("--sizes=8,100,4K,1M", "--iters=20")
        rows = document["rows"]
        self.assertEqual([(row["mode"], row["bytes"]) for row in rows],
                         [(mode, size) for mode in ("handoff", "into")
                          for size in (8, 100, 4096, 1 << 20)])
        for row in rows:
            self.assertEqual((row["wrong_bytes"], row["count"]), (0, 20))
            self.assertGreaterEqual(row["one_way_p99_s"], row["one_way_p50_s"])
            self.assertAlmostEqual(row["bytes_per_s"] * row["one_way_p50_s"] / row["bytes"], 1, 6)
            self.assertAlmostEqual(row["share_of_floor"] * row["one_way_p50_s"] / row["floor_s"],
                                   1, 6)
            self.assertEqual(row["path"], "inline" if row["bytes"] < 1000 else "shm")
        self.assertEqual({row["floor"] for row in rows}, {"spin", "spin + memcpy"})
        self.assertRegex(document["arena_pages"], "pages")

    def test_over_tcp_and_with_many_in_flight(self):
        document = self.bench("--sizes=64K", "--iters=64", "--transport=tcp", "--inflight=16",
                              "--mode=into")
        self.assertEqual([(row["inflight"], row["path"], row["floor"], row["wrong_bytes"])
                          for row in document["rows"]],
                         [(1, "tcp", "raw tcp", 0), (16, "tcp", None, 0)])

    def test_the_table_stands_in_columns(self):
        out = self.succeed("bench", "sendrecv", "--sizes=8:512:x8", "--iters=10", "--poll",
                           "--mode=handoff").decode()
        lines = out.split("\n\n")[1].splitlines()
        self.assertEqual(len(lines), 4)
        at = lines[0].index("P50")
        self.assertTrue(all(line[at - 1] == " " and line[at] != " " for line in lines), out)
        self.assertIn("\nevery byte was verified\n", out)

    def test_gates_decide_over_the_exit_status(self):
        quick = ("bench", "sendrecv", "--sizes=8,64", "--iters=10", "--mode=handoff")
        out = self.succeed(*quick, "--csv", "--max-us=1e9", "--min-gbps=1e-12").decode()
        header, *rows = csv.reader(out.splitlines())
        self.assertEqual([row[header.index("bytes")] for row in rows], ["8", "64"])
        self.fail_with(1, "2 of 2 rows miss --min-gbps=1e[+]06: handoff 8 B", *quick,
                       "--min-gbps=1e6")

    def test_a_picture_has_a_line_for_each_mode_and_its_floor(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "bench.svg"
            self.succeed("bench", "sendrecv", "--sizes=8,64,4K", "--iters=10", "--inflight=4",
                         f"--plot={path}")
            picture = xml.etree.ElementTree.parse(path).getroot()
            svg = "{http://www.w3.org/2000/svg}"
            width, height = (float(each) for each in picture.get("viewBox").split()[2:])
            lines = picture.findall(svg + "polyline")
            # Of four modes and two floors, in two charts.
            self.assertEqual(len(lines), 2 * (4 + 2))
            self.assertEqual(len([1 for line in lines if line.get("stroke-dasharray")]), 2 * 2)
            self.assertEqual(len(picture.findall(svg + "circle")), 2 * 4 * 3)
            for line in lines:
                points = [tuple(map(float, point.split(","))) for point in
                          line.get("points").split()]
                self.assertEqual(len(points), 3)
                self.assertEqual(points, sorted(points))
                for x, y in points:
                    self.assertTrue(0 < x < width and 0 < y < height, line.get("points"))
            labels = {text.text for text in picture.findall(svg + "text")}
            self.assertLessEqual({"handoff", "into x4", "floor of handoff: spin", "8", "4K", "bytes",
                                  "GB/s"}, labels)
        self.fail_with(1, "cannot write|No such file", "bench", "sendrecv", "--sizes=8",
                       "--iters=3", "--plot=/nowhere/bench.svg")

    def test_two_runs_are_compared(self):
        run = self.bench("--sizes=8,64", "--iters=500", "--mode=handoff")
        with tempfile.TemporaryDirectory() as folder:
            paths = {}
            for name, factor in (("now", 1), ("before", 0.1)):
                for row in run["rows"]:
                    for key in ("one_way_p50_s", "p50_low_s", "p50_high_s"):
                        row[key] *= factor
                paths[name] = pathlib.Path(folder) / f"{name}.json"
                paths[name].write_text(json.dumps(run))
            out = self.succeed("bench", "compare", paths["now"], paths["now"]).decode()
            self.assertIn("0 slower, 0 faster, 2 the same", out)
            self.succeed("bench", "compare", paths["now"], paths["before"])
            # Ten times as slow.
            self.fail_with(1, "of 2 rows are slower by more than 10%", "bench", "compare",
                           paths["before"], paths["now"])
            self.succeed("bench", "compare", "--threshold=5000", paths["before"], paths["now"])
            run["transport"] = "tcp"
            paths["before"].write_text(json.dumps(run))
            self.fail_with(1, "cannot be compared.*tcp", "bench", "compare", paths["before"],
                           paths["now"])
            self.fail_with(1, "cannot read", "bench", "compare", folder, paths["now"])

    def test_wrong_usage_is_told_with_the_flag(self):
        for pattern, arguments in (("--sizes", ("--sizes=8:4:x2",)), ("--sizes", ("--sizes=8:1G",)),
                                   ("--min-gbps", ("--min-gbps=-1",)), ("--csv", ("--csv", "--json")),
                                   ("--sizes", ("--sizes=0",)), ("--mode", ("--mode=sideways",)),
                                   ("--transport", ("--transport=smoke",))):
            with self.subTest(arguments):
                self.fail_with(2, pattern, "bench", "sendrecv", *arguments)


if __name__ == "__main__":
    harness.main()

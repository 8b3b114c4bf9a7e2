# SPDX-License-Identifier: Apache-2.0
"""scripts/bench-peers: parses the peers' output, computes its table, and survives peers that hang or fail."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(sys.argv[1]).resolve()
ROOT = SCRIPT.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks/peers"))
sys.dont_write_bytecode = True
PATIENCE_S = 60

import figures  # noqa: E402
import outputs  # noqa: E402
import processes  # noqa: E402
import ready  # noqa: E402
import table  # noqa: E402
import works  # noqa: E402
from groups import Entry, Figure, Group, Work  # noqa: E402
from tools import Tools  # noqa: E402

LOADER = importlib.machinery.SourceFileLoader("bench_peers", str(SCRIPT))
driver = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_peers", LOADER))
LOADER.exec_module(driver)

# As printed by the peers' own benchmarks.
UCX_LATENCY = """+--------------+--------------+------------------------------+---------------------+-----------------------+
|              |              |        latency (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
|     Test     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
                          10  12501.421 12827.206 12827.307     4989.40    4989.40          78          79
"""
UCX_RATE = """|    Stage     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
Final:                500000      0.040     0.065     0.066      118.21     118.21    15493717    15493718
"""
REDIS = '''"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"SET","79365.08","0.419","0.064","0.415","0.487","0.607","2.807"
"GET","78125.00","0.426","0.080","0.423","0.495","0.735","4.447"
"INCR","76923.08","0.434","0.096","0.431","0.567","0.791","2.775"
'''
BENCHMARK = """Benchmark                                  Time             CPU   Iterations UserCounters...
BM_Stream_Set/streams:64/inflight:64/batch:1/iterations:3/manual_time   10.2 us  1791 us  3 floor_rate=45.956k p50_us=533.757 rate=98.6245k ratio_to_floor=2.15375
BM_Stream_Get/streams:64/inflight:64/batch:1/iterations:3/manual_time   10.3 us  1774 us  3 floor_rate=49.7203k p50_us=577.479 rate=1.5M
"""
OWN = '{"name": "seconds", "value": 3.4e-06, "samples": 2000, "wrong_bytes": 0}\n'


def ferry_says(rows, wrong=0):
    row = {"mode": "into", "inflight": 1, "bytes": 8, "p50_s": 1e-6, "floor": "spin", "floor_s": 1e-7}
    return json.dumps({"rows": [{**row, **each} for each in rows], "wrong_bytes": wrong})


def tools(**changes):
    told = dict(ferry=pathlib.Path("ferry"), programs=pathlib.Path("programs"), benchmarks=pathlib.Path("benchmarks"),
                venvs=pathlib.Path("venvs"), cores=(0, 1), limit_s=30, is_quick=True)
    return Tools(**{**told, **changes})


def group(*entries, better="less", unit="us"):
    return Group("w", [Work("w", "a work", unit, 8, better)], list(entries))


def entry(peer, values, is_ferry=False, needs=()):
    """Gives one after the other; those that are text are failures."""
    left = list(values)

    def measure(_):
        value = left.pop(0)
        if isinstance(value, str):
            raise processes.Failed(value)
        return [Figure("w", value)]
    return Entry(peer, list(needs), measure, "differs", is_ferry)


def is_gone(pid):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        os.sched_yield()
    return False


class Outputs(unittest.TestCase):
    def test_ucx(self):
        told = outputs.ucx(UCX_LATENCY)
        self.assertAlmostEqual(told["p50_s"], 12501.421e-6)
        self.assertAlmostEqual(told["overall_s"], 12827.307e-6)
        self.assertEqual(outputs.ucx(UCX_RATE)["per_s"], 15493718)
        with self.assertRaisesRegex(processes.Failed, "no line of figures"):
            outputs.ucx(UCX_LATENCY.rpartition("+\n")[0])

    def test_redis(self):
        told = outputs.redis(REDIS)
        self.assertEqual((told["set_per_s"], told["add_per_s"]), (79365.08, 76923.08))
        self.assertAlmostEqual(told["get_p50_s"], 423e-6)
        with self.assertRaisesRegex(processes.Failed, "no figure"):
            outputs.redis("Could not connect to Redis at 127.0.0.1:1: Connection refused\n")

    def test_counters_of_google_benchmark(self):
        self.assertAlmostEqual(outputs.counters(BENCHMARK, "BM_Stream_Set")["rate"], 98624.5)
        self.assertAlmostEqual(outputs.counters(BENCHMARK, "BM_Stream_Get")["rate"], 1.5e6)
        with self.assertRaisesRegex(processes.Failed, "no BM_Other"):
            outputs.counters(BENCHMARK, "BM_Other")

    def test_wrong_bytes_are_no_figure(self):
        self.assertEqual(outputs.own("noise\n" + OWN), {"seconds": 3.4e-06})
        with self.assertRaisesRegex(processes.Failed, "16 bytes were wrong"):
            outputs.own(OWN.replace('"wrong_bytes": 0', '"wrong_bytes": 16'))
        with self.assertRaisesRegex(processes.Failed, "no figure"):
            outputs.own("noise\n")
        with self.assertRaisesRegex(processes.Failed, "3 bytes were wrong"):
            outputs.ferry(ferry_says([{}], wrong=3), bytes=8)

    def test_one_row_of_ferry(self):
        text = ferry_says([{"inflight": 1}, {"inflight": 64, "p50_s": 5e-7}])
        self.assertEqual(outputs.ferry(text, bytes=8, inflight=64)["p50_s"], 5e-7)
        with self.assertRaisesRegex(processes.Failed, "2 rows"):
            outputs.ferry(text, bytes=8)


class Figures(unittest.TestCase):
    def test_the_ratio_is_the_median_of_those_of_rounds(self):
        # 2, 10 and 3 times as long; the quotient of the medians would be 4.
        self.assertEqual(figures.advantage([1, 2, 3], [2, 20, 9], "less"), 3)
        self.assertEqual(figures.advantage([10, 20], [5, 5], "more"), 3)
        self.assertEqual(figures.advantage([1, None, 4], [3, 9, None], "less"), 3)
        self.assertIsNone(figures.advantage([1, None], [None, 2], "less"))

    def test_goals_take_the_best_of_the_peers(self):
        told, _ = driver.measure(group(entry("Ferry", [1, 1], True), entry("Ferry, slow", [9, 9], True),
                                       entry("Open MPI, a", [4, 4]), entry("Open MPI, b", [2, 2])), tools(), 2)
        goal = {"works": ["w"], "peers": ["Open MPI"], "least": 1.5}
        self.assertEqual(figures.outcome(goal, told), (2, True))
        self.assertEqual(figures.outcome({**goal, "least": 3}, told), (2, False))
        self.assertEqual(figures.outcome({**goal, "peers": ["Gloo"]}, told), (None, None))
        # The least of several works counts, and all of them must exist.
        self.assertEqual(figures.outcome({**goal, "works": ["w", "v"]}, told), (None, None))
        flat = {"works": ["w", "v"], "peers": ["Ferry"], "least": 1.5, "flat": True}
        short = {"rows": [{"peer": "Ferry", "median": 1}]}
        self.assertEqual(figures.outcome(flat, {"w": short, "v": {"rows": [{"peer": "Ferry", "median": 2}]}}), (2, False))
        self.assertEqual(figures.outcome(flat, {"w": short}), (None, None))

    def test_goals_in_seconds_are_those_of_one_row(self):
        goal = {"text": "t", "works": ["w"], "peers": ["Ferry"], "most_s": 0.2}
        told = {"w": {"rows": [{"peer": "Ferry", "median": 0.1}, {"peer": "Ferry, slow", "median": 9}]}}
        self.assertEqual(figures.outcome(goal, told), (0.1, True))
        self.assertEqual(figures.outcome({**goal, "most_s": 0.05}, told), (0.1, False))
        self.assertEqual(figures.outcome({**goal, "works": ["w", "v"]}, told), (None, None))
        self.assertEqual(table.of_goals([goal], told)[4], "| t | 0.10 | <= 0.20 s | reached |")

    def test_goals_per_second_are_those_of_one_row(self):
        goal = {"text": "t", "works": ["w"], "peers": ["Ferry"], "least_per_s": 5e6, "why": "because"}
        told = {"w": {"rows": [{"peer": "Ferry", "median": 2e6}, {"peer": "Ferry, fast", "median": 9e6}]}}
        self.assertEqual(figures.outcome(goal, told), (2e6, False))
        self.assertEqual(figures.outcome({**goal, "least_per_s": 2e6}, told), (2e6, True))
        self.assertEqual(table.of_goals([goal], told)[4], "| t | 2.00 M/s | >= 5.00 M/s | MISSED: because |")
        self.assertEqual(table.of_goals([goal], {})[4], "| t | - | >= 5.00 M/s | not measured |")

    def test_goals_beside_a_floor_are_ratios(self):
        rows = {"rows": [{"peer": "Ferry", "median": 3e-4}, {"peer": "floor: memcpy", "median": 1e-4}]}
        goal = {"text": "t", "works": ["w"], "peers": ["Ferry"], "floor": "floor: memcpy", "most": 1.5}
        self.assertEqual(figures.outcome(goal, {"w": rows})[1], False)
        self.assertAlmostEqual(figures.outcome(goal, {"w": rows})[0], 3)
        self.assertEqual(figures.outcome({**goal, "plus_s": 1.6e-4}, {"w": rows})[1], True)
        self.assertEqual(figures.outcome({**goal, "plus_s": 1.4e-4}, {"w": rows})[1], False)
        self.assertEqual(table.wanted({**goal, "plus_s": 1e-4}), "<= 1.50 + 100 us")
        self.assertEqual(figures.outcome({**goal, "floor": "floor: other"}, {"w": rows}), (None, None))
        rate = {"works": ["w"], "peers": ["Ferry"], "floor": "floor: raw", "least": 0.9}
        for mine, reached in ((9e5, True), (8e5, False)):
            told = {"w": {"rows": [{"peer": "Ferry", "median": mine}, {"peer": "floor: raw", "median": 1e6}]}}
            self.assertEqual(figures.outcome(rate, told), (mine / 1e6, reached))

    def test_goals_name_works_and_peers_that_exist(self):
        known = {work.name: each for each in works.GROUPS for work in each.works}
        peers = [row.peer for each in works.GROUPS for row in each.entries] + ["TCPStore, add"]
        for goal in works.GOALS:
            self.assertTrue(all(name in known for name in goal["works"]), goal)
            self.assertTrue(all(any(row.startswith(peer) for row in peers) for peer in goal["peers"]), goal)
        needs = {need for each in works.GROUPS for row in each.entries for need in row.needs}
        self.assertEqual(needs - set(ready.PACKAGES) - set(ready.VENVS) - set(ready.GPUS), {"ferry", *ready.BENCHMARKS})

    def test_parts_are_put_together(self):
        machine = {"machine": {"cores": 2}, "quick": False, "cores": [0, 1], "order": ["a", "w"]}
        first, _ = driver.measure(group(entry("Ferry", [1, 2], True), entry("peer", [3, "no"])), tools(), 2)
        second, _ = driver.measure(group(entry("Ferry", [5], True), entry("peer", [10])), tools(), 1)
        old = {**machine, "works": first}
        both = figures.merged(old, {**machine, "works": second}, True)["works"]["w"]
        self.assertEqual([row["rounds"] for row in both["rows"]], [[1, 2, 5], [3, None, 10]])
        self.assertEqual((both["rounds"], both["rows"][1]["ferry_is"], both["rows"][1]["reason"]), (3, 2.5, "no"))
        self.assertEqual(figures.merged(old, {**machine, "works": second})["works"], second)
        other = {**machine, "works": {"a": {"name": "a"}}}
        self.assertEqual(list(figures.merged(old, other)["works"]), ["a", "w"])
        elsewhere = {**other, "machine": {"cores": 3}}
        self.assertEqual(figures.merged(old, elsewhere)["works"], elsewhere["works"])


class Rounds(unittest.TestCase):
    def test_entries_alternate(self):
        seen = []

        def noting(name):
            return Entry(name, [], lambda _: seen.append(name) or [Figure("w", 1.0)], "")
        driver.measure(group(noting("a"), noting("b")), tools(), 3)
        self.assertEqual(seen, ["a", "b", "b", "a", "a", "b"])

    def test_a_peer_that_fails_has_a_row_with_its_reason(self):
        told, has_failed = driver.measure(
            group(entry("Ferry", [1, 1, 1], True), entry("once", [2, "fell over", 4]),
                  entry("never", ["is broken", "is broken"]), entry("absent", [], needs=["etcd"])),
            tools(missing={"etcd": "no etcd here"}), 3)
        self.assertTrue(has_failed)
        text = "\n".join(table.of_work(told["w"]))
        self.assertRegex(text, r"\| once \| 3000000 us \| .* 2 of 3 rounds, in others: fell over \|")
        self.assertRegex(text, r"\| never \| - \| - \| - \| no figure: is broken \|")
        self.assertRegex(text, r"\| absent \| - \| - \| - \| no figure: no etcd here \|")
        # A missing peer has not failed.
        self.assertFalse(driver.measure(group(entry("absent", [], needs=["x"])), tools(missing={"x": "no"}), 1)[1])


class Table(unittest.TestCase):
    def test_figures_in_their_units(self):
        work = {"unit": "GB/s", "bytes": 64 << 20}
        self.assertEqual(table.shown(0.01, work), "6.71 GB/s")
        # The lowest rate is of the longest time.
        self.assertEqual(table.spread({"low": 0.01, "high": 0.02}, work), "3.36 GB/s to 6.71 GB/s")
        self.assertEqual(table.shown(1.234e-6, {"unit": "us"}), "1.23 us")
        self.assertEqual(table.shown(0.1234, {"unit": "ms"}), "123 ms")
        self.assertEqual([table.shown(rate, {"unit": "/s"}) for rate in (12.34, 12340, 1.234e6)],
                         ["12.3 /s", "12.3 K/s", "1.23 M/s"])

    def test_a_row_that_ferry_loses_stays(self):
        told, _ = driver.measure(group(entry("Ferry", [4], True), entry("peer", [1])), tools(), 1)
        self.assertIn("| peer | 1000000 us | 1000000 us to 1000000 us | 0.25 | differs |", table.of_work(told["w"]))
        goals = [{"text": "ahead of peer", "works": ["w"], "peers": ["peer"], "least": 1},
                 {"text": "of nobody", "works": ["v"], "peers": ["peer"], "least": 1}]
        lines = table.of_goals(goals, told)
        self.assertIn("| ahead of peer | 0.25 | >= 1.00 | MISSED |", lines)
        self.assertIn("| of nobody | - | >= 1.00 | not measured |", lines)


class Processes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        processes.adopt()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, name, text):
        path = self.folder / name
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return path

    def test_a_hanging_one_is_ended_with_all_its_processes(self):
        # One of them has left its group and its parent.
        hangs = self.program("hangs", f"echo I wait >&2; setsid sleep 600 & echo $! > {self.folder}/pid; sleep 600\n")
        with self.assertRaisesRegex(processes.Failed, "still ran after 0.5 s: I wait"):
            processes.run([hangs], 0.5)
        self.assertTrue(is_gone(int((self.folder / "pid").read_text())))

    def test_a_failing_one_reports_why(self):
        with self.assertRaisesRegex(processes.Failed, "ended with 3: I cannot"):
            processes.run([self.program("fails", "echo I cannot; exit 3\n")], PATIENCE_S)
        with self.assertRaisesRegex(processes.Failed, "nowhere: No such file"):
            processes.run([self.folder / "nowhere"], PATIENCE_S)

    def test_load_of_others_is_distinguished_from_ours(self):
        core = min(os.sched_getaffinity(0))
        spin = ["taskset", "-c", core, sys.executable, "-c",
                "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"]
        meter = processes.Others([core])
        processes.run(spin, PATIENCE_S)
        start, (end, busy, own) = meter.start, meter.now()
        self.assertGreaterEqual(own - start[2], 0.5)
        # The kernel counts busy time in ticks.
        self.assertGreaterEqual(busy - start[1], 0.4)
        self.assertGreater(end, start[0])
        meter.start = (end - 2, busy - 1, own - 0.5)
        meter.now = lambda: (end, busy, own)
        self.assertAlmostEqual(meter.share(), 0.25)

    def test_a_server_runs_while_it_is_needed(self):
        listens = (f"exec {sys.executable} -c 'import socket, sys, time; s = socket.create_server((\"127.0.0.1\", "
                   "int(sys.argv[1]))); time.sleep(600)' $1\n")
        port = processes.free_port()
        with processes.server([self.program("listens", listens), port], port) as pid:
            self.assertTrue(processes.listens(port))
            # Processes that run meanwhile do not affect it.
            self.assertEqual(processes.run(["echo", "hello"], PATIENCE_S, keep=[pid]), "hello\n")
            self.assertTrue(processes.listens(port))
        self.assertTrue(is_gone(pid))
        with self.assertRaisesRegex(processes.Failed, "ended with 4: no port"):
            with processes.server([self.program("no", "echo no port; exit 4\n")], processes.free_port()):
                pass

    def test_tables_of_a_run_and_the_page_of_all_are_written(self):
        told, _ = driver.measure(group(entry("Ferry", [1e-6], True), entry("peer", [3e-6])), tools(), 1)
        document = {"machine": driver.machine(), "cores": [0, 1], "quick": False, "order": ["w"], "works": told}
        out = self.folder / "peers-2026-01-01.json"
        out.write_text(json.dumps(document))
        driver.write_tables(document, out, self.folder, self.folder / "RESULTS.md")
        self.assertIn("| peer |", out.with_suffix(".md").read_text())
        self.assertIn("(`w`) | - | 1.00 us | 3.00 us, peer |", (self.folder / "RESULTS.md").read_text())

    def test_missing_builds_and_packages_are_reported(self):
        said = []
        told = tools(ferry=self.folder / "ferry", programs=self.folder / "built", venvs=self.folder)
        found = ready.reasons({"ferry", "tensorflow"}, told, False, said.append)
        self.assertRegex(found["ferry"], "is not there: scripts/build")
        self.assertRegex(found["tensorflow"], "tensorflow-2.15.1 is not in")
        self.assertEqual(said, [])

    def test_the_whole_of_it(self):
        rows = [{"mode": "handoff", "bytes": size, "p50_s": 2e-6} for size in works.SIZES.values()]
        ferry = self.program("ferry", f"cat <<'JSON'\n{ferry_says(rows)}\nJSON\n")
        out = self.folder / "results/out.json"
        command = [SCRIPT, "--only=handoff", "--no-install", "--no-table", "--quick", "--rounds=2", f"--out={out}",
                   f"--ferry={ferry}", "--benchmarks=/nowhere", f"--cores={','.join([str(min(os.sched_getaffinity(0)))] * 2)}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| hand-off, slowest by fastest size, 8 B to 1 GiB | 1.00 | <= 1.50 | reached |", done.stdout)
        found = json.loads(out.read_text())["works"]
        self.assertEqual(found["handoff-1G"]["rows"][0]["rounds"], [2e-6, 2e-6])
        ferry.write_text("#!/bin/sh\necho no such thing >&2; exit 1\n")
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no figure: ended with 1: no such thing", done.stdout)

    def test_usage(self):
        for words in (["--rounds=0"], ["--cores=1"], ["--cores=a,b"], ["--only=("], ["--speed"], ["--only=nobody"]):
            done = subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=PATIENCE_S)
            self.assertEqual(done.returncode, 2, words)
        done = subprocess.run([SCRIPT, "--list", "--only=^tcp-64M$"], capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertIn("tcp-64M: Ferry; Ferry, polling; Open MPI, TCP; UCX, tcp", done.stdout)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)

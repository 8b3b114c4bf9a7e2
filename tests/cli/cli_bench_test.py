# SPDX-License-Identifier: Apache-2.0
"""ferry bench: its measurements are complete, verified, and decide the exit status."""
import contextlib
import csv
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

import harness
from bench_rows import rows_of


def pid_of_node(case, bench, node):
    """The pid of that node of a bench, once it has started."""
    tasks = pathlib.Path(f"/proc/{bench.popen.pid}/task")

    def find():
        # Threads and processes may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pids = [pid for task in tasks.iterdir()
                    for pid in (task / "children").read_text().split()]
            return [int(pid) for pid in pids if f"--node-id={node}".encode()
                    in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
        return []

    return case.eventually(find)[0]


def kill_node(case, bench, node):
    os.kill(pid_of_node(case, bench, node), signal.SIGKILL)


# The cheapest path, one at a time.
ALONE = ("--transport=auto", "--inflight=1")


class SendRecv(harness.Case):
    def bench(self, *arguments):
        return rows_of(self, "sendrecv", *arguments)[0]

    def test_each_size_in_each_mode_next_to_its_baseline(self):
        document = self.bench("--sizes=8,100,4K,1M", "--iters=20", *ALONE)
        rows = document["rows"]
        self.assertEqual([(row["mode"], row["bytes"]) for row in rows],
                         [(mode, size) for mode in ("handoff", "handoff+read", "into")
                          for size in (8, 100, 4096, 1 << 20)])
        for row in rows:
            self.assertEqual((row["wrong_bytes"], row["count"]), (0, 20))
            self.assertGreaterEqual(row["p99_s"], row["p50_s"])
            self.assertAlmostEqual(row["bytes_per_s"] * row["p50_s"] / row["bytes"], 1, 6)
            self.assertAlmostEqual(row["share_of_floor"] * row["p50_s"] / row["floor_s"],
                                   1, 6)
            self.assertEqual(row["path"], "eager" if row["bytes"] < 1000 else "shm")
            self.assertRegex(row["path_reason"],
                             "before it was requested" if row["bytes"] < 1000 else "shm .*not tcp")
        self.assertEqual([row["floor"] for row in rows[::4]],
                         ["spin", "spin + read", "spin + memcpy"])
        # A view has to be read in the measured time, and reading takes longer for larger ones.
        read = {row["bytes"]: row["floor_s"] for row in rows if row["floor"] == "spin + read"}
        self.assertGreater(read[1 << 20], read[8])
        self.assertRegex(document["arena_pages"], "pages")

    def test_needs_no_folder(self):
        """The files that its processes share are in none."""
        for bench in ("sendrecv", "ring", "cold"):
            with self.subTest(bench):
                self.succeed("bench", bench, "--sizes=64K", "--iters=5", TMPDIR="/nonexistent")

    def test_sleeping_waits_are_compared_with_futexes(self):
        """Both methods of waking up are measured in each run; the output names the one that counts."""
        for bench, floors in (("sendrecv", ["futex", "futex + read", "futex + memcpy"]),
                              ("ring", ["futex", "futex + read", "futex + memcpy"])):
            document, rows = rows_of(self, bench, "--sizes=64K", "--iters=5", "--spin=0",
                                     "--transport=auto", "--inflight=1")
            self.assertEqual([row["floor"] for row in rows], floors)
            self.assertEqual(document["waiting"], "sleeping")
            self.assertGreater(document["spin_floor_s"], 0)
            self.assertEqual(rows[0]["floor_s"], document["futex_floor_s"])
        out = self.succeed("bench", "bidir", "--sizes=8", "--iters=3").decode()
        self.assertRegex(out, "; floors of the same run: spinning wake-up [^,]+, futex wake-up [^,]+\n")

    def test_over_tcp_and_with_many_in_flight(self):
        document = self.bench("--sizes=512K", "--iters=64", "--transport=tcp", "--inflight=16",
                              "--mode=into")
        self.assertEqual([(row["inflight"], row["path"], row["floor"], row["wrong_bytes"])
                          for row in document["rows"]],
                         [(1, "tcp", "raw tcp", 0), (16, "tcp", "raw tcp stream", 0)])

    def test_names_in_turns(self):
        """Fewer than are in flight, and more: what is received is compared with what was sent under its name."""
        for keys in (3, 50):
            document, rows = rows_of(self, "sendrecv", "--sizes=8,64K", "--iters=20", "--inflight=8",
                                     "--transport=auto", "--mode=into", f"--keys={keys}")
            self.assertIn(f", {keys} names in turns", document["subject"])
            self.assertEqual([(row["inflight"], row["bytes"]) for row in rows],
                             [(1, 8), (1, 65536), (8, 8), (8, 65536)])

    def test_without_eager_values_every_tensor_is_requested(self):
        for flag in "--no-eager", "--checksum":
            with self.subTest(flag):
                rows = self.bench("--sizes=8,1M", "--iters=20", "--mode=into", flag, *ALONE)["rows"]
                self.assertEqual([(row["path"], row["wrong_bytes"]) for row in rows],
                                 [("inline", 0), ("shm", 0)])
                self.assertRegex(rows[0]["path_reason"], "small enough")

    def test_receives_posted_after_the_sends(self):
        document, rows = rows_of(self, "sendrecv", "--sizes=8,64K", "--iters=20", "--inflight=8",
                                 "--transport=auto", "--unexpected")
        self.assertIn("receives posted after the sends", document["subject"])
        self.assertEqual([(row["mode"], row["inflight"], row["bytes"]) for row in rows],
                         [(mode, inflight, size) for mode in ("handoff", "handoff+read", "into")
                          for inflight in (1, 8) for size in (8, 65536)])
        self.fail_with(2, "not woken by a word", "bench", "sendrecv", "--unexpected", "--spin=0")
        self.fail_with(2, "share no page", "bench", "sendrecv", "--unexpected", "--node-id=1",
                       "--coordinator=127.0.0.1:1")

    def test_all_paths_of_the_pair(self):
        """The cheapest in all modes, one by one and as a stream; then the others, in those that are theirs."""
        document = self.bench("--sizes=8,512K", "--iters=5")
        self.assertEqual(document["transport"], "all")
        self.assertEqual([(row["mode"], row["inflight"], row["transport"], row["bytes"], row["path"],
                           row["floor"]) for row in document["rows"]],
                         [(mode, inflight, None, size, path, floor if inflight == 1 else None)
                          for mode, floor in (("handoff", "spin"), ("handoff+read", "spin + read"),
                                              ("into", "spin + memcpy"))
                          for inflight in (1, 64) for size, path in ((8, "eager"), (524288, "shm"))] +
                         [(mode, inflight, "tcp", size, path, floor) for mode in ("handoff", "into")
                          for inflight, floor in ((1, "raw tcp"), (64, "raw tcp stream"))
                          for size, path in ((8, "eager"), (524288, "tcp"))])
        # Each row finds the one of the other run.
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "all.json"
            path.write_text(json.dumps(document))
            out = self.succeed("bench", "compare", path, path).decode()
            self.assertIn("into x64 by tcp", out)
            self.assertIn("0 slower, 0 faster, 20 the same", out)
        _, rows = rows_of(self, "ring", "--nodes=3", "--sizes=512K", "--iters=5", "--mode=handoff",
                          "--transport=all")
        self.assertEqual([(row["transport"], row["path"]) for row in rows], [(None, "shm"), ("tcp", "tcp")])
        # Both differ from the selected path: memory that is handed over is read, too.
        _, rows = rows_of(self, "sendrecv", "--sizes=8", "--iters=3", "--inflight=1")
        self.assertEqual([(row["mode"], row["transport"]) for row in rows],
                         [(mode, None) for mode in ("handoff", "handoff+read", "into")] +
                         [(mode, "shm") for mode in ("handoff", "handoff+read", "into")] +
                         [(mode, "tcp") for mode in ("handoff", "into")])
        _, rows = rows_of(self, "ring", "--nodes=2", "--sizes=512K", "--iters=3", "--mode=read",
                          "--transport=all")
        self.assertEqual([(row["mode"], row["transport"]) for row in rows],
                         [("handoff+read", None), ("handoff+read", "tcp")])
        # Gates apply to the selected path: sockets are not as fast as reading a page.
        self.succeed("bench", "sendrecv", "--sizes=64M", "--iters=3", "--mode=handoff",
                     "--inflight=1", "--min-gbps=50")
        self.fail_with(2, "--transport=all: say one", "bench", "cold", "--transport=all")

    def test_the_table_is_aligned(self):
        out = self.succeed("bench", "sendrecv", "--sizes=8:512:x8", "--iters=10", "--poll",
                           "--mode=handoff", *ALONE).decode()
        lines = out.split("\n\n")[1].splitlines()
        self.assertEqual(len(lines), 4)
        at = lines[0].index("P50")
        self.assertTrue(all(line[at - 1] == " " and line[at] != " " for line in lines), out)
        self.assertIn("\nevery byte was verified\n", out)
        # In one unit, and with where the median lies.
        self.assertRegex(lines[0], r"P50 US +[+]- +P90 US +P99 US +P99.9 US")
        self.assertRegex(lines[1], r" 10 +\d+[.]?\d* +\d+% +\d+[.]?\d* ")

    def test_a_document_records_where_when_and_how_it_was_made(self):
        run = self.bench("--sizes=8", "--iters=6", "--mode=handoff", *ALONE)
        kernel = os.uname()
        self.assertEqual(run["run"]["kernel"], f"Linux {kernel.release} {kernel.machine}")
        self.assertRegex(run["run"]["command"], "ferry bench sendrecv --sizes=8 --iters=6 --mode=handoff ")
        self.assertRegex(run["run"]["date"], r"^\d{4}-\d\d-\d\d \d\d:\d\d UTC$")
        self.assertEqual(set(run["run"]), {"host", "kernel", "processors", "ferry", "date", "command"})
        for row in run["rows"]:
            self.assertAlmostEqual(row["p50_spread"] * 2 * row["p50_s"],
                                   row["p50_high_s"] - row["p50_low_s"], 12)

    def test_gates_decide_the_exit_status(self):
        quick = ("bench", "sendrecv", "--sizes=8,64", "--iters=10", "--mode=handoff", *ALONE)
        out = self.succeed(*quick, "--csv", "--max-us=1e9", "--min-gbps=1e-12").decode()
        header, *rows = csv.reader(out.splitlines())
        self.assertEqual([row[header.index("bytes")] for row in rows], ["8", "64"])
        self.fail_with(1, "2 of 2 rows miss --min-gbps=1e[+]06: handoff 8 B", *quick,
                       "--min-gbps=1e6")

    def test_a_picture_has_a_line_for_each_mode_and_its_baseline(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "bench.svg"
            self.succeed("bench", "sendrecv", "--sizes=8,64,4K", "--iters=10", "--inflight=4",
                         "--mode=both", "--transport=auto", f"--plot={path}")
            picture = xml.etree.ElementTree.parse(path).getroot()
            svg = "{http://www.w3.org/2000/svg}"
            width, height = (float(each) for each in picture.get("viewBox").split()[2:])
            lines = picture.findall(svg + "polyline")
            # For four modes and two baselines, in two charts.
            self.assertEqual(len(lines), 2 * (4 + 2))
            self.assertEqual(len([1 for line in lines if line.get("stroke-dasharray")]), 2 * 2)
            # For each point, and each line in the legend; those of streams are hollow.
            circles = picture.findall(svg + "circle")
            self.assertEqual(len(circles), 2 * 4 * 3 + 4)
            self.assertEqual(len([1 for circle in circles if circle.get("fill") == "#fff"]),
                             len(circles) / 2)
            self.assertEqual(len({circle.get("stroke") for circle in circles}), 2)
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
        run = self.bench("--sizes=8,64", "--iters=500", "--mode=handoff", *ALONE)
        with tempfile.TemporaryDirectory() as folder:
            paths = {}
            for name, factor in (("now", 1), ("before", 0.1)):
                for row in run["rows"]:
                    for key in ("p50_s", "p50_low_s", "p50_high_s"):
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

    def test_load_of_other_processes_is_reported(self):
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        out = self.succeed("bench", "sendrecv", "--sizes=64K", "--iters=20000", "--mode=handoff", *ALONE)
        took = re.search(rb"others took (\d[.]\d+) of this machine's \d+ cores? meanwhile", out)
        self.assertGreater(float(took.group(1)), 0.1, out)

    def test_a_process_that_is_killed_ends_it_by_name(self):
        bench = self.start("bench", "sendrecv", "--sizes=8", "--iters=1000000", "--mode=handoff")
        kill_node(self, bench, 1)
        self.assertEqual(bench.wait(), 1)
        self.assertIn("process 1 was killed by signal 9", bench.err)

    def test_wrong_usage_names_the_flag(self):
        for pattern, arguments in (("--sizes", ("--sizes=8:4:x2",)), ("--sizes", ("--sizes=8:1G",)),
                                   ("--min-gbps", ("--min-gbps=-1",)), ("--csv", ("--csv", "--json")),
                                   ("--sizes", ("--sizes=0",)), ("--mode", ("--mode=sideways",)),
                                   ("--transport", ("--transport=smoke",))):
            with self.subTest(arguments):
                self.fail_with(2, pattern, "bench", "sendrecv", *arguments)


class Patterns(harness.Case):
    """Several processes at the same time."""

    def test_each_pattern_moves_what_it_says(self):
        for pattern, nodes, tensors, bus in (("bidir", 2, 2, 1), ("ring", 3, 3, 1),
                                             ("fan-in", 3, 2, 2), ("fan-out", 3, 2, 2)):
            with self.subTest(pattern):
                flags = ["--sizes=8,64K", "--iters=10", "--inflight=4"]
                if nodes != 2:
                    flags.append(f"--nodes={nodes}")
                document, rows = rows_of(self, pattern, *flags)
                self.assertEqual([(row["mode"], row["inflight"], row["bytes"]) for row in rows],
                                 [(mode, inflight, size)
                                  for mode in ("handoff", "handoff+read", "into")
                                  for inflight in (1, 4) for size in (8, 65536)])
                self.assertGreater(document["spin_floor_s"], 0)
                for row in rows:
                    self.assertEqual((row["nodes"], row["pair"]), (nodes, None))
                    self.assertEqual(row["path"], "eager" if row["bytes"] == 8 else "shm")
                    self.assertEqual(row["floor"], None if row["inflight"] == 4 else
                                     {"handoff": "spin", "handoff+read": "spin + read",
                                      "into": "spin + memcpy"}[row["mode"]])
                    by_second = row["bytes"] / row["p50_s"]
                    self.assertAlmostEqual(row["bytes_per_s"] / by_second, tensors, 6)
                    self.assertAlmostEqual(row["busbw_bytes_per_s"] / by_second, bus, 6)
                    self.assertGreater(row["cpu_s_per_gb"], 0)

    def test_all_pairs_are_a_matrix(self):
        arguments = ("--nodes=3", "--sizes=64K", "--iters=5", "--mode=handoff")
        _, rows = rows_of(self, "all-pairs", *arguments)
        self.assertEqual([row["pair"] for row in rows],
                         [f"{a}->{b}" for a in range(3) for b in range(3) if a != b])
        self.assertEqual({(row["count"], row["busbw_bytes_per_s"]) for row in rows}, {(5, None)})
        out = self.succeed("bench", "all-pairs", *arguments).decode()
        matrix = re.search(r"handoff 64 KiB, GB/s of one pair at a time\n(.*?)\n\n", out,
                           re.DOTALL).group(1).splitlines()
        self.assertEqual(len(matrix), 4)
        for node, line in enumerate(matrix[1:]):
            cells = line.split()
            self.assertEqual((cells[0], cells[1 + node]), (str(node), "-"))
            self.assertEqual(len([cell for cell in cells[1:] if float(cell.replace("-", "1")) > 0]), 3)

    def test_a_page_needs_nothing_but_itself(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "bench.html"
            _, rows = rows_of(self, "all-pairs", "--nodes=3", "--sizes=64K", "--iters=5",
                              f"--html={path}")
            text = path.read_text()
        # It is well-formed, except for the HTML doctype.
        page = xml.etree.ElementTree.fromstring(
            text.replace("<!DOCTYPE html>", "").replace('<meta charset="utf-8">', ""))
        for element in page.iter():
            self.assertNotIn(element.tag.rpartition("}")[2], ("script", "link", "img", "iframe"))
            self.assertFalse({"src", "href"} & set(element.attrib))
        self.assertNotIn("url(", text)
        maps = page.findall(".//table[@class='heat']")
        # One for the devices, and one for each mode.
        self.assertEqual(len(maps), 1 + 3)
        self.assertIn("LOC", [cell.text for cell in maps[0].iter("td")])
        for heat in maps[1:]:
            cells = list(heat.iter("td"))
            self.assertEqual(len(cells), 9)
            hot = [cell for cell in cells if cell.get("style")]
            self.assertEqual(len(hot), 6)
            # The fastest pair is the hottest; several may read alike.
            most = max(float(cell.text) for cell in hot)
            self.assertIn("background:#6baed6",
                          [cell.get("style") for cell in hot if float(cell.text) == most])
        table = [line for line in page.iter("tr")
                 if [cell.text for cell in line][:1] in (["handoff"], ["handoff+read"], ["into"])]
        self.assertEqual(len(table), len(rows))
        svg = "{http://www.w3.org/2000/svg}"
        self.assertEqual(len(page.findall(f".//{svg}svg")), 1)
        # Lines of all pairs and of one baseline, in two charts; pairs are reported together.
        self.assertEqual(len(page.findall(f".//{svg}polyline")), 2 * 3 * (6 + 1))
        legend = [text.text for text in page.iter(f"{svg}text") if "each pair" in (text.text or "")]
        self.assertEqual(legend, ["handoff, 3 nodes, each pair", "handoff+read, 3 nodes, each pair",
                                  "into, 3 nodes, each pair", "floor of handoff, 3 nodes, each pair: spin",
                                  "floor of handoff+read, 3 nodes, each pair: spin + read",
                                  "floor of into, 3 nodes, each pair: spin + memcpy"])
        self.assertIn("by shm: shm (", text)
        self.assertIn("ferry bench all-pairs --nodes=3 --sizes=64K", text)
        self.fail_with(1, "cannot write|No such file", "bench", "barrier", "--nodes=2", "--iters=1",
                       "--html=/nowhere/bench.html")

    def test_over_tcp(self):
        _, rows = rows_of(self, "ring", "--nodes=3", "--sizes=512K", "--iters=5", "--mode=into",
                          "--transport=tcp")
        self.assertEqual([(row["path"], row["floor"]) for row in rows], [("tcp", None)])

    def test_many_keys_from_many_threads(self):
        _, rows = rows_of(self, "keyed", "--keys=60", "--threads=3", "--sizes=8,4K", "--iters=5",
                          "--batch=7")
        self.assertEqual([(row["mode"], row["bytes"], row["inflight"], row["batch"], row["threads"],
                           row["count"], row["path"]) for row in rows],
                         [(mode, size, 60, batch, 3, 300, path)
                          for mode in ("handoff", "handoff+read", "into") for batch in (1, 7)
                          for size, path in ((8, "eager"), (4096, "shm"))])
        for row in rows:
            self.assertAlmostEqual(row["ops_per_s"] * row["p50_s"], 1, 6)

    def test_a_batch_is_at_most_the_keys_of_a_thread(self):
        for keys, threads, batches in ((1, 1, [1]), (2, 2, [1]), (3, 2, [1, 2]), (200, 2, [1, 64])):
            with self.subTest(keys=keys, threads=threads):
                _, rows = rows_of(self, "keyed", f"--keys={keys}", f"--threads={threads}", "--sizes=8",
                                  "--iters=1", "--mode=into")
                self.assertEqual([row["batch"] for row in rows], batches)
        _, rows = rows_of(self, "keyed", "--sizes=8", "--iters=1", "--mode=into", "--batch=1")
        self.assertEqual([row["batch"] for row in rows], [1])

    def test_whole_steps(self):
        _, rows = rows_of(self, "steps", "--sizes=8,64K", "--iters=10", "--inflight=3",
                          "--mode=handoff")
        self.assertEqual([(row["inflight"], row["batch"], row["bytes"], row["count"], row["floor"],
                           row["path"]) for row in rows],
                         [(inflight, batch, size, 10, "spin", path)
                          for inflight, batch in ((1, 1), (3, 1), (3, 3))
                          for size, path in ((8, "eager"), (65536, "shm"))])
        for row in rows:
            self.assertAlmostEqual(row["bytes_per_s"] * row["p50_s"],
                                   2 * row["inflight"] * row["bytes"], 3)
        _, rows = rows_of(self, "steps", "--sizes=64K", "--iters=5", "--inflight=3", "--batch=2",
                          "--mode=read")
        self.assertEqual([(row["batch"], row["floor"]) for row in rows],
                         [(1, "spin + read"), (1, "spin + read x3"), (2, "spin + read x3")])

    def test_elements_of_another_type(self):
        """The same bytes, and so many elements as that makes."""
        for bench in ("sendrecv", "bidir", "keyed", "cold"):
            with self.subTest(bench):
                _, rows = rows_of(self, bench, "--sizes=8,4K", "--iters=3", "--dtype=bfloat16")
                self.assertEqual({(row["bytes"], row["dtype"], row["elements"]) for row in rows},
                                 {(8, "bfloat16", 4), (4096, "bfloat16", 2048)})
                # The only type of which not every pattern of bits is an element.
                _, rows = rows_of(self, bench, "--sizes=8,256K", "--iters=3", "--dtype=bool")
                self.assertEqual({(row["bytes"], row["elements"], row["wrong_bytes"]) for row in rows},
                                 {(8, 8, 0), (256 * 1024, 256 * 1024, 0)})
        out = self.succeed("bench", "bidir", "--sizes=8", "--iters=3", "--dtype=double").decode()
        self.assertRegex(out, r"SIZE +ELEMENTS +TYPE")
        self.assertRegex(out, r"8 B +1 +double")
        for pattern, flag in (("--sizes: 12 B are no whole number of double", "--dtype=double"),
                              ('--dtype: "string" is no type of elements of one size',
                               "--dtype=string"),
                              ('--dtype: "byte" is no type', "--dtype=byte")):
            self.fail_with(2, pattern, "bench", "bidir", "--sizes=12", flag)

    def test_a_process_that_is_killed_ends_it_by_name(self):
        bench = self.start("bench", "ring", "--nodes=3", "--sizes=8", "--iters=1000000",
                           "--mode=handoff")
        kill_node(self, bench, 2)
        self.assertEqual(bench.wait(), 1)
        self.assertIn("process 2 was killed by signal 9", bench.err)

    def test_a_process_that_is_stopped_is_named_while_others_wait(self):
        for bench, node in (("ring", 1), ("sendrecv", 0)):
            process = self.start("bench", bench, "--sizes=8", "--iters=1000000", "--mode=handoff")
            pid = pid_of_node(self, process, node)
            os.kill(pid, signal.SIGSTOP)
            process.wait_for(rf"ferry: .*; process {node} \(pid {pid}\) is stopped: kill -CONT {pid} ")

    def test_wrong_usage_names_the_flag(self):
        for pattern, arguments in (("--nodes", ("ring", "--nodes=1")),
                                   ("--nodes", ("bidir", "--nodes=3")),
                                   ("--keys", ("keyed", "--keys=0")),
                                   ("--inflight", ("keyed", "--inflight=2")),
                                   ("--batch", ("bidir", "--batch=2")),
                                   ("--batch", ("steps", "--batch=0")),
                                   ("--sizes.*1000 keys", ("keyed", "--sizes=16M"))):
            with self.subTest(arguments):
                self.fail_with(2, pattern, "bench", *arguments)


if __name__ == "__main__":
    harness.main()

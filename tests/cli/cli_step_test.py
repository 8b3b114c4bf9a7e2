#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of TensorFlow's graphs as the tool runs them, and their traces.

    cli_step_test.py FERRY [CASE...]
"""
import json
import os
import re
import signal
import struct
import tempfile

import harness

EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/crossing.pbtxt")
DEVICE = "/job:worker/replica:0/task:{}/device:CPU:0"
# A minute of work on one core.
SLOW = """
node { name: "n" op: "Const" attr { key: "dtype" value { type: DT_INT32 } }
       attr { key: "value" value { tensor { dtype: DT_INT32 tensor_shape { dim { size: 2 } }
                                            int_val: 1500 } } } }
node { name: "a" op: "RandomUniform" input: "n" attr { key: "T" value { type: DT_INT32 } }
       attr { key: "dtype" value { type: DT_FLOAT } } }
""" + "".join(f"""
node {{ name: "m{i}" op: "MatMul" input: "{'m' + str(i - 1) if i else 'a'}" input: "a"
        attr {{ key: "T" value {{ type: DT_FLOAT }} }} }}
""" for i in range(400))


# Two devices reduce; one of them is busy with that minute before it joins.
COLLECTIVE = SLOW.replace('op: "MatMul"', f'op: "MatMul" device: "{DEVICE.format(1)}"') + """
node { name: "one" op: "Const" attr { key: "dtype" value { type: DT_FLOAT } }
       attr { key: "value" value { tensor { dtype: DT_FLOAT tensor_shape { } float_val: 1 } } } }
""" + "".join(f"""
node {{ name: "key{i}" op: "Const" attr {{ key: "dtype" value {{ type: DT_INT32 }} }}
        attr {{ key: "value" value {{ tensor {{ dtype: DT_INT32 tensor_shape {{ }} int_val: {i} }} }} }} }}
""" for i in (1, 2)) + "".join(f"""
node {{ name: "r{task}" op: "CollectiveReduceV2" device: "{DEVICE.format(task)}"
        input: "one" input: "key2" input: "key1" input: "key1" {late}
        attr {{ key: "T" value {{ type: DT_FLOAT }} }}
        attr {{ key: "merge_op" value {{ s: "Add" }} }} attr {{ key: "final_op" value {{ s: "Id" }} }} }}
""" for task, late in ((0, ""), (1, 'input: "^m399"')))


def placeholder(name, dtype, dims):
    shape = " ".join(f"dim {{ size: {dim} }}" for dim in dims)
    return f"""node {{ name: "{name}" op: "Placeholder" attr {{ key: "dtype" value {{ type: {dtype} }} }}
               attr {{ key: "shape" value {{ shape {{ {shape} }} }} }} }}
               node {{ name: "{name}_out" op: "Identity" input: "{name}"
                       attr {{ key: "T" value {{ type: {dtype} }} }} }}
            """


class Files(harness.Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, name, content):
        path = f"{self.folder}/{name}"
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return path


class TemporaryJob(harness.Case):
    def test_the_example_runs_on_a_job_of_its_own(self):
        out = self.succeed("step", f"--graph={EXAMPLE}", "--feed=x=[1, 2]", "--fetch=z",
                           "--count=20").decode()
        self.assertRegex(out, r"\Aferry step: 4 nodes in the graph, \d+ in a step .*"
                         r"\(task 0 CPU:0: \d+, task 1 CPU:0: \d+\)\n")
        self.assertIn("\nz = float[2] [10, 40]\n", out)
        self.assertRegex(out, r"\ncrossings: 1, 8 bytes per step\n"
                         r"  edge_\S+: task 1 CPU:0 -> task 0 CPU:0, 8 bytes by \w+.*\n")
        self.assertRegex(out, r"\n20 steps: p50 \S+ us, p99 \S+ us; \d+ steps/s\n"
                         r"an empty call of the same server, in turns: p50 \S+ us, .*\n\Z")


class Usage(Files):
    def fails(self, pattern, *arguments, status=2):
        self.fail_with(status, pattern, "step", *arguments)

    def test_wrong_usage_is_reported_before_anything_starts(self):
        graph = f"--graph={EXAMPLE}"
        self.fails("--graph is required")
        self.fails("say what to run, --fetch=NAME or --target=NAME; the graph has x, w, z, empty", graph)
        self.fails('--fetch: the graph has no node "v"', graph, "--fetch=v")
        self.fails(r'--fetch: node z \(Mul\) has 1 outputs, and no "z:1"', graph, "--fetch=z:1")
        self.fails('--target: the graph has no node "v"', graph, "--target=v")
        self.fails('"x" is not NAME=VALUE', graph, "--fetch=z", "--feed=x")
        self.fails(r"--feed=x: its shape is \[3\], and float\[2\] is wanted", graph, "--fetch=z",
                   "--feed=x=[1, 2, 3]")
        self.fails("--feed=x: a row of 1 stands beside one of 2", graph, "--fetch=z",
                   "--feed=x=[[1, 2], [3]]")
        self.fails("neither a number nor a list", graph, "--fetch=z", "--feed=x=[1, 2")
        self.fails('"true" is no float', graph, "--fetch=z", "--feed=x=[1, true]")
        self.fails("is not HOST:PORT", graph, "--fetch=z", "--coordinator=here")

    def test_files_that_are_no_graphs(self):
        self.fails("No such file", f"--graph={self.folder}/none", "--fetch=z", status=1)
        path = self.file("graph", "node {\n  nmae: \"x\"\n}\n")
        self.fails(r"is no GraphDef: line 2:\d+: .*nmae", f"--graph={path}", "--fetch=z", status=1)
        path = self.file("graph", b"\x0a\xff\xff\xff\x00")
        self.fails("neither the text nor the bytes", f"--graph={path}", "--fetch=z", status=1)
        path = self.file("graph", "")
        self.fails("without nodes", f"--graph={path}", "--fetch=z", status=1)
        path = self.file("graph", 'node { name: "x" op: "NoSuchOp" }')
        self.fails("NoSuchOp", f"--graph={path}", "--fetch=x", status=1)

    def test_no_server(self):
        self.fails("no response from 127.0.0.1:1 within 10s", f"--graph={EXAMPLE}", "--fetch=w",
                   "--coordinator=127.0.0.1:1", status=1)


class Steps(Files):
    """One job for all."""
    @classmethod
    def setUpClass(cls):
        case = harness.Case()
        cls.addClassCleanup(case.doCleanups)
        cls.address = case.coordinator(2)[1]
        case.workers(cls.address, 2)

    def step(self, graph, *arguments, **options):
        return json.loads(self.succeed("step", f"--graph={graph}", "--json",
                                       f"--coordinator={self.address}",
                                       *arguments, **options))

    def fails(self, pattern, graph, *arguments):
        self.fail_with(1, pattern, "step", f"--graph={graph}", f"--coordinator={self.address}",
                       *arguments)

    def test_values_round_trip(self):
        for dtype, dims, text, values in (
                ("DT_FLOAT", [-1, 2], "[[1.5, 2], [3, 1e-3]]", [1.5, 2, 3, 0.001]),
                ("DT_INT64", [], "-9007199254740993", [-9007199254740993]),
                ("DT_UINT8", [2], "[0, 255]", [0, 255]),
                ("DT_BOOL", [2], "[true, false]", [True, False]),
                ("DT_HALF", [3], '[0.1, 65504, "inf"]', [0.09997559, 65504, "inf"]),
                ("DT_STRING", [], "plain words", ["plain words"]),
                ("DT_STRING", [2], '["a", "\\u00fc"]', ["a", "\u00fc"]),
                ("DT_FLOAT", [0], "[]", [])):
            with self.subTest(dtype, text=text):
                graph = self.file("graph.pbtxt", placeholder("x", dtype, dims))
                told = self.step(graph, f"--feed=x={text}", "--fetch=x_out")
                self.assertEqual(told["fetches"][0]["values"], values)

    def test_numbers_out_of_the_types_range_are_refused(self):
        for dtype, text in (("DT_UINT8", "256"), ("DT_UINT8", "-1"), ("DT_INT32", "2147483648"),
                            ("DT_INT32", "1.5"), ("DT_BOOL", "1")):
            with self.subTest(dtype, text=text):
                graph = self.file("graph.pbtxt", placeholder("x", dtype, []))
                self.fail_with(2, f'--feed=x: "{text}" is no ', "step", f"--graph={graph}",
                               f"--feed=x={text}", "--fetch=x_out")

    def test_files_are_fed(self):
        graph = self.file("graph.pbtxt", placeholder("x", "DT_INT32", [-1, 2]))
        raw = self.file("raw", struct.pack("<4i", 1, 2, 3, 4))
        told = self.step(graph, f"--feed=x=@{raw}", "--fetch=x_out:0")["fetches"][0]
        self.assertEqual((told["shape"], told["values"]), ([2, 2], [1, 2, 3, 4]))
        header = b"{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2), }"
        header += b" " * (117 - len(header)) + b"\n"
        numpy = self.file("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header +
                          struct.pack("<2i", 7, 8))
        told = self.step(graph, f"--feed=x=@{numpy}", "--fetch=x_out")["fetches"][0]
        self.assertEqual((told["shape"], told["values"]), ([1, 2], [7, 8]))
        for content, pattern in ((b"12345", "no multiple of the 4"),
                                 (b"1234", r"1 elements, which are no int32\[\?,2\]"),
                                 (b"\x93NUMPY\x01\x00\xff\xff", "header is broken")):
            path = self.file("bad", content)
            self.fail_with(2, pattern, "step", f"--graph={graph}", f"--feed=x=@{path}",
                           "--fetch=x_out")

    def test_files_of_booleans_hold_booleans(self):
        graph = self.file("graph.pbtxt", placeholder("x", "DT_BOOL", [4]))
        good = self.file("good", b"\0\1\1\0")
        told = self.step(graph, f"--feed=x=@{good}", "--fetch=x_out")["fetches"][0]
        self.assertEqual(told["values"], [False, True, True, False])
        header = b"{'descr': '|b1', 'fortran_order': False, 'shape': (4,), }"
        header += b" " * (117 - len(header)) + b"\n"
        numpy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
        for start in (b"", numpy):
            path = self.file("bad", start + b"\0\1\xff\2")
            self.fail_with(2, r"element 2 of bool\[4\] is 255, and a boolean is 0 or 1", "step",
                           f"--graph={graph}", f"--feed=x=@{path}", "--fetch=x_out")

    def test_bytes_that_crossed_are_counted_exactly(self):
        graph = self.file("graph.pbtxt", f"""
            node {{ name: "dims" op: "Const" attr {{ key: "dtype" value {{ type: DT_INT32 }} }}
                    attr {{ key: "value" value {{ tensor {{ dtype: DT_INT32 int_val: 100003
                            tensor_shape {{ dim {{ size: 1 }} }} }} }} }}
                    device: "{DEVICE.format(1)}" }}
            node {{ name: "a" op: "RandomUniform" input: "dims" device: "{DEVICE.format(1)}"
                    attr {{ key: "T" value {{ type: DT_INT32 }} }}
                    attr {{ key: "dtype" value {{ type: DT_FLOAT }} }} }}
            node {{ name: "b" op: "Neg" input: "a" device: "{DEVICE.format(0)}"
                    attr {{ key: "T" value {{ type: DT_FLOAT }} }} }}""")
        told = self.step(graph, "--target=b")
        self.assertEqual(told["bytes_per_step"], 400012)
        crossing, = told["crossings"]
        self.assertEqual((crossing["from"], crossing["to"], crossing["transport"]),
                         (DEVICE.format(1), DEVICE.format(0), "shm"))
        self.assertEqual((told["fetches"], told["count"]), ([], 100))

    def test_many_in_flight(self):
        told = self.step(EXAMPLE, "--feed=x=[1, 2]", "--fetch=z", "--concurrency=8", "--count=400")
        self.assertEqual((told["concurrency"], told["count"]), (8, 400))
        self.assertGreater(told["steps_per_s"], 0)
        self.assertNotIn("empty_call_p50_us", told)

    def test_errors_are_one_line_with_the_servers_message(self):
        self.fails("step: .*You must feed a value for placeholder tensor 'x'", EXAMPLE, "--fetch=z")
        graph = self.file("graph.pbtxt", placeholder("x", "DT_FLOAT", []).replace(
            'op: "Identity"', 'op: "Identity" device: "/job:worker/task:9"'))
        self.fails("step: .*task:9.*task:0", graph, "--feed=x=1", "--fetch=x_out")
        graph = self.file("graph.pbtxt", placeholder("x", "DT_FLOAT", []).replace(
            'op: "Identity"', 'op: "Identity" device: "/job:worker/task:1/device:GPU:7"'))
        self.fails("step: .*GPU:7", graph, "--feed=x=1", "--fetch=x_out")
        self.step(graph, "--feed=x=1", "--fetch=x_out", "--soft-placement")
        slow = self.file("slow.pbtxt", SLOW)
        self.fails("step: .*timed out after 300ms", slow, "--target=m399", "--timeout=300ms")

    def test_it_can_be_stopped_in_the_middle_of_a_step(self):
        slow = self.file("slow.pbtxt", SLOW)
        process = self.start("step", f"--graph={slow}", f"--coordinator={self.address}",
                             "--target=m399")
        process.wait_for("waiting for steps at")
        process.signal(signal.SIGINT)
        self.assertEqual(process.wait(), 1)
        self.assertRegex(process.err, "ferry: step: stopped by SIGINT\n")

    def pending(self):
        return json.loads(self.succeed("status", "--pending", "--json",
                                       f"--coordinator={self.address}"))

    def test_a_client_killed_in_a_collective_leaves_nothing(self):
        """Neither pending operations nor the step, although its session continues."""
        graph = self.file("collective.pbtxt", COLLECTIVE)
        client = self.start("step", f"--graph={graph}", f"--coordinator={self.address}",
                            "--target=r0", "--target=r1")

        def collectives():
            return {row["step_id"] for row in self.pending()["pending"] if "collective" in row["key"]}

        step, = self.eventually(collectives)
        client.signal(signal.SIGKILL)
        client.wait()
        self.eventually(lambda: self.pending()["total"] == 0)

        # The master and both workers keep a run when it has ended.
        def ends():
            trace = json.loads(self.succeed("trace", "--last=10", "-o", "-",
                                            f"--coordinator={self.address}"))
            found = [event["args"]["status"] for event in trace["traceEvents"]
                     if event.get("cat") == "step" and event["args"]["step_id"] == str(step)]
            return found if len(found) == 3 else None

        self.assertLessEqual(set(self.eventually(ends)), {"ABORTED", "CANCELLED"})
        out = self.step(EXAMPLE, "--feed=x=[1, 2]", "--fetch=z", "--count=1")
        self.assertEqual(out["fetches"][0]["values"], [10, 40])


class OtherCoordinators(harness.Case):
    def test_the_one_that_ferry_run_starts_is_a_session_target(self):
        run = self.start("run", "--nproc=2", "--", harness.FERRY, "worker")
        address = run.wait_for(r"the coordinator is at (\S+)\n").group(1)
        out = self.succeed("step", f"--graph={EXAMPLE}", "--feed=x=[1, 2]", "--fetch=z",
                           f"--coordinator={address}", "--count=1")
        self.assertIn(b"z = float[2] [10, 40]", out)

    def test_a_job_without_graphs_reports_it(self):
        run = self.start("run", "--nproc=1", "--no-graphs", "--", harness.FERRY, "worker")
        address = run.wait_for(r"the coordinator is at (\S+)\n").group(1)
        self.fail_with(1, f"the server at {address} serves no graphs", "step", f"--graph={EXAMPLE}",
                       "--fetch=w", f"--coordinator={address}")


class Trace(Files):
    def trace(self, address, *arguments):
        path = f"{self.folder}/trace.json"
        out = self.succeed("trace", f"--coordinator={address}", "-o", path, *arguments).decode()
        with open(path, encoding="utf-8") as file:
            return out, json.load(file)

    def job(self, *flags, worker=()):
        address = self.coordinator(2, *flags)[1]
        self.workers(address, 2, *worker)
        return address

    def step(self, address, count):
        self.succeed("step", f"--graph={EXAMPLE}", "--feed=x=[1, 2]", "--fetch=z", "--warmup=0",
                     f"--coordinator={address}", f"--count={count}")

    def test_the_last_steps_are_printed_node_by_node(self):
        address = self.job()
        self.fail_with(1, "trace: no step has been run yet", "trace", "-o", "-",
                       f"--coordinator={address}")
        # The session has ended by then, and its graphs with it.
        self.step(address, 5)
        out, trace = self.trace(address, "--last=3")
        self.assertRegex(out, r"\Aferry trace: 3 steps, 18 nodes at 2 workers, in .*trace.json; ")
        events = trace["traceEvents"]
        slices = [event for event in events if event["ph"] == "X"]
        steps = {event["args"]["step_id"] for event in slices}
        self.assertEqual(len(steps), 3)
        crossing = [event for event in slices if event["name"] == "receive edge_0_w"]
        self.assertEqual([(event["args"]["from"], event["args"]["to"], event["args"]["bytes"])
                          for event in crossing],
                         [(DEVICE.format(1), DEVICE.format(0), 8)] * 3)
        # The first one may be requested.
        self.assertLessEqual({event["args"]["transport"] for event in crossing},
                             {"inline", "eager"})
        # Arrows begin and end in slices that are there, and go forward.
        arrows = {kind: {event["id"]: event for event in events if event["ph"] == kind}
                  for kind in "sf"}
        self.assertEqual(arrows["s"].keys(), arrows["f"].keys())
        self.assertGreaterEqual(len(arrows["s"]), 3)
        for number, begin in arrows["s"].items():
            self.assertLessEqual(begin["ts"], arrows["f"][number]["ts"])
        for event in [*arrows["s"].values(), *arrows["f"].values()]:
            self.assertTrue(any(
                (each["pid"], each["tid"]) == (event["pid"], event["tid"]) and
                each["ts"] <= event["ts"] <= each["ts"] + each["dur"] + 0.001 for each in slices))
        # Parts of a step are in the master's record of it.
        master = {event["args"]["step_id"]: event for event in slices
                  if event["pid"] == 1 and event["cat"] == "step"}
        for event in slices:
            whole = master[event["args"]["step_id"]]
            self.assertGreaterEqual(event["ts"], whole["ts"])
            if event["cat"] in ("compute", "send", "receive"):
                self.assertLessEqual(event["ts"] + event["dur"], whole["ts"] + whole["dur"] + 0.001)
        clocks = trace["otherData"]["clocks"]
        self.assertEqual([clock["offset_ns"] for clock in clocks], [0, 0, 0])

    def test_clocks_of_other_machines_are_adjusted(self):
        """All times are the coordinator's, with an error of no more than the printed one."""
        preload = os.environ.get("OTHER_HOST")
        if not preload:
            self.skipTest("the library of another machine cannot be preloaded into this build")
        ahead_ns = [-90 * 10**9, 3600 * 10**9]
        address = self.coordinator(2)[1]
        workers = [self.worker(address, node, 2, LD_PRELOAD=preload,
                               FERRY_TEST_CLOCK_AHEAD_NS=str(ahead),
                               FERRY_TEST_BOOT_ID=self.file(f"boot{node}", f"machine-{node}\n"))
                   for node, ahead in enumerate(ahead_ns)]
        for worker in workers:
            worker.wait_for("joined at")
        self.step(address, 5)
        out, trace = self.trace(address, "--last=3")
        errors_us = [0, 0]
        for node, ahead in enumerate(ahead_ns):
            told = re.search(rf"task:{node}: its clock is (-?\d+)us ahead, known to (\d+)us", out)
            self.assertTrue(told, out)
            errors_us.append(int(told[2]))
            self.assertAlmostEqual(int(told[1]), ahead / 1000, delta=errors_us[-1] + 1)
            clock = trace["otherData"]["clocks"][node + 1]
            self.assertAlmostEqual(clock["offset_ns"], -ahead, delta=clock["error_ns"])
        slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        master = {event["args"]["step_id"]: event for event in slices
                  if event["pid"] == 1 and event["cat"] == "step"}
        self.assertEqual(len(master), 3)
        for event in slices:
            whole, error = master[event["args"]["step_id"]], errors_us[event["pid"]]
            self.assertGreaterEqual(event["ts"], whole["ts"] - error)
            if event["cat"] in ("compute", "send", "receive"):
                self.assertLessEqual(event["ts"] + event["dur"], whole["ts"] + whole["dur"] + error)
        arrows = {kind: {event["id"]: event["ts"] for event in trace["traceEvents"]
                         if event["ph"] == kind} for kind in "sf"}
        self.assertGreaterEqual(len(arrows["s"]), 3)
        for number, begin in arrows["s"].items():
            self.assertLessEqual(begin, arrows["f"][number] + sum(errors_us))

    def test_a_limited_number_is_kept(self):
        address = self.job("--trace-steps=4", worker=("--trace-steps=2",))
        self.step(address, 10)
        trace = self.trace(address, "--last=100")[1]
        slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        kept = [{event["args"]["step_id"] for event in slices
                 if event["pid"] == pid and event["cat"] == "step"} for pid in (1, 2, 3)]
        self.assertEqual([len(each) for each in kept], [4, 2, 2])
        self.assertLessEqual(kept[1] | kept[2], kept[0])

    def test_nothing_is_kept_when_disabled(self):
        address = self.job("--trace-steps=0")
        self.step(address, 1)
        self.fail_with(1, "trace: the coordinator keeps no steps", "trace", "-o", "-",
                       f"--coordinator={address}")
        address = self.job(worker=("--trace-steps=0",))
        self.step(address, 1)
        out, trace = self.trace(address, "--last")
        self.assertRegex(out, r"1 step, 0 nodes at 2 workers.*\n(  /job:worker/replica:0/task:\d keeps "
                         r"no steps.*\n){2}\Z")
        self.assertEqual([event for event in trace["traceEvents"] if event["ph"] in "sf"], [])

    def test_usage(self):
        self.fail_with(2, "which coordinator", "trace", "-o", "-")
        self.fail_with(2, "--output is required", "trace", "--coordinator=127.0.0.1:1")
        self.fail_with(1, "no response from", "trace", "--coordinator=127.0.0.1:1", "-o", "-")
        address = self.job()
        self.step(address, 1)
        self.fail_with(1, "trace: cannot write .*No such file", "trace", f"--coordinator={address}",
                       "-o", f"{self.folder}/none/trace.json")


if __name__ == "__main__":
    harness.main()

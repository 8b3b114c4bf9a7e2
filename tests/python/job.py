# SPDX-License-Identifier: Apache-2.0
"""Jobs for tests of the module `ferry`: a coordinator, nodes that live in threads of the test, and real processes.

Run a test as: TEST FERRY [unittest's arguments], with the folder of the module in PYTHONPATH. Every wait has a deadline.
"""
import concurrent.futures
import faulthandler
import os
import sys
import textwrap
import threading

# tests/interop/in_venv.sh adds it.
sys.argv[1:] = [argument for argument in sys.argv[1:] if not argument.startswith("--python=")]
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "cli"))
import harness  # noqa: E402

import ferry  # noqa: E402
try:
    import ferry._core  # noqa: E402
except ImportError as error:
    print(f"SKIP: the module ferry is for another Python: {error}")
    sys.exit(77)

PATIENCE_S = harness.PATIENCE_S
# Long enough to be a wait, short enough for a test.
SHORT_S = 0.2


class Job:
    """A coordinator for `size` nodes. Those that the test does not close are closed behind it."""

    def __init__(self, case, size, *flags):
        self.case, self.size = case, size
        self.coordinator, self.address = case.coordinator(size, *flags)

    def join(self, rank, **options):
        options = {"timeout": PATIENCE_S, "connect_timeout": PATIENCE_S, **options}
        node = ferry.join(self.address, rank=rank, world_size=self.size, **options)
        self.case.addCleanup(node.close)
        return node

    def nodes(self, **options):
        """All of them, by rank."""
        return in_threads(*(lambda rank=rank: self.join(rank, **options) for rank in range(self.size)))

    def variables(self, rank):
        return {"FERRY_COORDINATOR": self.address, "FERRY_NODE_ID": str(rank), "FERRY_NUM_NODES": str(self.size)}

    def process(self, rank, code, *options, **variables):
        """A Python process with the identity of a node, that runs `code`, in which say(words) prints a line."""
        return self.case.python(code, *options, **self.variables(rank), **variables)


class Case(harness.Case):
    def job(self, size, *flags):
        return Job(self, size, *flags)

    def nodes(self, size, **options):
        return self.job(size).nodes(**options)

    def steps(self, size, **options):
        return [node.step(1) for node in self.nodes(size, **options)]

    def python(self, code, *options, **variables):
        program = PRELUDE + textwrap.dedent(code)
        variables = harness.environment(PYTHONFAULTHANDLER="1", **variables)
        process = harness.Process([*options, "-c", program], variables, program=sys.executable)
        self.addCleanup(process.kill)
        return process

    def ends_well(self, process):
        self.assertEqual(process.wait(), 0, process.out + process.err)
        self.assertNotIn("Traceback", process.err)

    def raises(self, error, call, *arguments, **options):
        """The error, which is of that very class."""
        with self.assertRaises(error) as caught:
            call(*arguments, **options)
        self.assertIs(type(caught.exception), error, caught.exception)
        return caught.exception


PRELUDE = """
import os, signal, sys, threading, time
import ferry
def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()
"""


def in_threads(*calls):
    """Runs all at the same time; their results, or the first error."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(call) for call in calls]
        return [future.result(2 * PATIENCE_S) for future in running]


class Later:
    """A call in a thread of its own; result() waits for it, with a deadline."""

    def __init__(self, call, *arguments, **options):
        self.future = concurrent.futures.Future()

        def run():
            try:
                self.future.set_result(call(*arguments, **options))
            except BaseException as error:  # pylint: disable=broad-except
                self.future.set_exception(error)
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def result(self):
        try:
            return self.future.result(PATIENCE_S)
        finally:
            self.thread.join(PATIENCE_S)


def main():
    # Tells where a test hangs, before ctest ends it.
    faulthandler.enable()
    faulthandler.dump_traceback_later(220, exit=True)
    harness.main()

# SPDX-License-Identifier: Apache-2.0
"""Every numeric flag of every verb refuses text that resembles a number, and names the flag.

The flags come from the help, so that a new one is among them.

    cli_numbers_test.py FERRY [CASE...]
"""
import concurrent.futures
import os
import re

import harness

# The help's names for values of flags that take a number, a duration, or a list of numbers.
NUMERIC = {"N", "K", "M", "T", "I", "ID", "NODE", "GBPS", "US", "PERCENT", "NUMBER", "DURATION",
           "SIZES", "COUNTS", "2x3"}
# Everything else that a flag may take.
OTHERS = {"HOST:PORT", "[HOST]:PORT", "HOST[:PORT]", "RANK|none", "FILE", "FILE.svg", "NAME", "WHAT", "TYPE", "VERB", "KEY",
          "VALUE", "PREFIX", "NAME=VALUE|NAME=@FILE", "TEXT", "local|shm|tcp|cuda_ipc|nccl",
          "native|grpc", "shm|tcp|cuda_ipc|nccl|auto|all", "handoff|read|into|both|all",
          "host:0|gpu:N,...", "float|int8|bfloat16|...", "PATH",
          # Ranges of a job's nodes, which are checked after joining it.
          "NODES"}
JUNK = ("nan", "-nan", "inf", "-inf", "1e999", "", " ", "0x10", "1x", " 1", "1 ", "+1", "1,5,", "one")
# Flags that accept a negative number.
SIGNED = {"--step"}
# A command that "run" needs.
TAIL = {"run": ["--", "true"]}
# Arguments to precede it where another value would be checked first.
PLACE = ["x", "--node-id=0", "--num-nodes=2", "--coordinator=127.0.0.1:1"]
LEAD = {("send", "--shape"): ["x", "--to=1"], ("recv", "--shape"): ["x", "--from=0"],
        ("send", "--to"): PLACE, ("recv", "--from"): PLACE}
OPTION = re.compile(r"^  ((?:-\w,)?--[\w-]+)(?: (\S+))?(.*)$")


def options_of(text):
    """(flag, type) of each flag with a value."""
    for line in text.splitlines():
        found = OPTION.match(line)
        if not found:
            continue
        flag = found.group(1).split(",")[-1]
        kind = found.group(2)
        # Two blanks precede the description of a flag that takes none.
        if kind is None or kind == "Excludes:" or line[found.end(1):].startswith("  "):
            continue
        # "N=64": with its default.
        yield flag, kind if kind in OTHERS else kind.split("=")[0]


class Numbers(harness.Case):
    def help_of(self, *verb):
        return self.succeed(*verb, "--help").decode()

    def verbs(self, *path):
        """All verbs that have no others below them."""
        below = self.help_of(*path).split("Subcommands:")
        names = re.findall(r"^  ([\w-]+) {2,}\S", below[1], re.MULTILINE) if len(below) > 1 else []
        if not names:
            yield path
        for name in names:
            yield from self.verbs(*path, name)

    def setUp(self):
        self.flags = [(verb, flag, kind) for verb in self.verbs()
                      for flag, kind in options_of(self.help_of(*verb))]

    def test_each_flag_is_classified_as_numeric_or_not(self):
        """A flag of a type of CLI11's own (INT, FLOAT) would be read by it."""
        self.assertGreater(len(self.flags), 150)
        unknown = {(flag, kind) for _, flag, kind in self.flags if kind not in NUMERIC | OTHERS}
        self.assertEqual(unknown, set())
        found = {flag for _, flag, kind in self.flags if kind in NUMERIC}
        for flag in ("--max-us", "--min-gbps", "--threshold", "--iters", "--inflight", "--nproc",
                     "--timeout", "--max-keys", "--trace-steps", "--num-nodes", "--step", "--to"):
            self.assertIn(flag, found)

    def test_invalid_numbers_are_refused_by_the_flag(self):
        cases = []
        seen = set()
        for verb, flag, kind in self.flags:
            if kind not in NUMERIC:
                continue
            # All texts for each flag once, and one text for each further verb that has it.
            is_new = (flag, kind) not in seen
            seen.add((flag, kind))
            junk = JUNK + (() if flag in SIGNED else ("-1",)) if is_new else JUNK[:1]
            for text in junk:
                # 0x10 is a valid shape.
                if (flag, text) == ("--shape", "0x10"):
                    continue
                lead = LEAD.get((verb[-1], flag), [])
                cases.append((flag, [*verb, *lead, f"{flag}={text}", *TAIL.get(verb[-1], [])]))
        self.assertGreater(len(cases), 1000)

        def run(case):
            flag, arguments = case
            status, out, err = self.run_ferry(*arguments)
            is_good = (status == 2 and out == b"" and flag in err and len(err.splitlines()) == 1)
            return None if is_good else (arguments, status, err)

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            wrong = [result for result in pool.map(run, cases) if result]
        self.assertEqual(wrong, [])

    def test_a_gate_of_nan_does_not_open(self):
        for gate in ("--max-us=nan", "--min-gbps=nan", "--max-us=inf", "--max-us=0"):
            flag = gate.split("=")[0]
            self.fail_with(2, f"{flag}: .*is not a number above 0", "bench", "sendrecv", "--sizes=8",
                           "--iters=1", "--transport=auto", "--inflight=1", gate)

    def test_a_number_has_one_base(self):
        """010 is ten, as to everything else that reads numbers, and not eight."""
        self.fail_with(2, '--nproc: "65" is not a whole number from 2 to 64', "demo", "--nproc=65")
        out = self.succeed("bench", "barrier", "--nodes=02", "--iters=010", "--json").decode()
        self.assertRegex(out, r'"count": 10,')


if __name__ == "__main__":
    harness.main()
